"""Errors become one line, a hint and a status; tracebacks are for --debug and for defects."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import click
import pytest
from command_lines import COMMAND, call

from undercurrent.cli import CLIError, UsageError, main
from undercurrent.cli.failures import EXIT_STATUSES, run_guarded
from undercurrent.errors import RingMemoryError, RouterError, SpecValidationError, UndercurrentError


def raising(error: BaseException, *arguments: str) -> int:
    """Returns the status of a verb that raises `error`."""

    def work() -> None:
        raise error

    return run_guarded(work, arguments)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UndercurrentError("no"), 1),
        (RouterError("no"), 1),
        (RingMemoryError("no"), 1),
        (CLIError("no"), 1),
        (UsageError("no"), 2),
        (FileNotFoundError(2, "No such file or directory", "x"), 1),
        (click.UsageError("no"), 2),
        (click.ClickException("no"), 1),
        (ZeroDivisionError("no"), 70),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(32, "Broken pipe"), 141),
        (SystemExit(3), 3),
        (SystemExit(), 0),
        (SystemExit("why"), 1),
        (click.exceptions.Exit(1), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_kind_of_error_has_its_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A broken pipe points standard output at nothing; here at the test's file, not at pytest's.
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert raising(error) == status
    assert status in EXIT_STATUSES or status == 3


def test_ctrl_c_while_a_class_is_made_is_no_defect(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    assert run_guarded(lambda: type("Made", (), {"field": Interrupted()}), ()) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(RouterError("point 'a': no such request")) == 1
    assert capsys.readouterr() == ("", "error: point 'a': no such request\n")


def test_hint_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    raising(CLIError("it is gone", hint="undercurrent init"))
    assert capsys.readouterr().err == "error: it is gone\nhint: undercurrent init\n"


def test_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    raising(PermissionError(13, "Permission denied", "/etc/shadow"))
    assert capsys.readouterr().err == "error: '/etc/shadow': Permission denied\n"


@pytest.mark.parametrize("place", [("--debug", "status", "nobody"), ("status", "nobody", "--debug")])
def test_debug_shows_the_traceback_before_the_line(place: tuple[str, ...]) -> None:
    answer = call(*place)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("Traceback")
    assert answer.stderr.splitlines()[-1].startswith("error: no instance 'nobody'")


def test_word_behind_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    raising(CLIError("no"), "run", "--", "--debug", "--json")
    assert capsys.readouterr() == ("", "error: no\n")


def test_defect_shows_its_traceback_and_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ZeroDivisionError("division by zero")) == 70
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "error: ZeroDivisionError: division by zero" in shown
    assert "please report it" in shown


@pytest.mark.parametrize("wish", [("--json",), ("--format", "json"), ("--format=json",)])
def test_error_as_json_is_the_last_line_of_standard_output(
    wish: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    raising(CLIError("it is gone", hint="undercurrent init"), *wish)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert json.loads(shown.out) == {
        "error": {"type": "CLIError", "message": "it is gone", "hint": "undercurrent init", "exit_status": 1}
    }


def test_problems_of_a_spec_are_a_list_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    raising(SpecValidationError("2 problems", issues=["a", "b"]), "--json")
    assert json.loads(capsys.readouterr().out)["error"]["issues"] == ["a", "b"]


def test_usage_error_as_json_although_the_line_did_not_parse() -> None:
    answer = call("status", "--json", "--nonsense")
    assert answer.exit_code == 2
    assert json.loads(answer.stdout)["error"]["type"] == "NoSuchOption"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("statsu", "did you mean 'status'?"),
        ("status --jsn", "did you mean '--json'?"),
        ("inspect-model tiny --backend vlm", "did you mean 'vllm'?"),
        ("completion bsh", "did you mean 'bash'?"),
        ("bench rings", "did you mean 'ring'?"),
    ],
)
def test_misspelt_word_is_answered_with_the_nearest(line: str, meant: str) -> None:
    answer = call(*line.split())
    assert answer.exit_code == 2
    assert meant in answer.stderr
    assert "--help" in answer.stderr


def test_no_command_prints_the_list_to_standard_error_as_0_1_0_did() -> None:
    answer = call()
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "Usage: undercurrent" in answer.stderr


def test_main_returns_the_status_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "nobody"]) == 1
    assert capsys.readouterr().err.startswith("error: no instance 'nobody'")


def test_reader_that_leaves_ends_the_command_quietly(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = subprocess.run(
            [str(COMMAND), "help", "--markdown"], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, timeout=50
        )
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", ["version", "--help", "schema"])
def test_full_disk_is_told_in_one_line(arguments: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [str(COMMAND), arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=50
        )
    assert (answer.returncode, answer.stderr) == (1, "error: No space left on device\n")


@pytest.mark.parametrize(("line", "status", "said"), [("version >&-", 0, ""), ("validate - <&-", 1, "is closed")])
def test_closed_streams_are_no_defect(line: str, status: int, said: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        ["bash", "-c", f"{COMMAND} {line}"], capture_output=True, text=True, cwd=tmp_path, timeout=50
    )
    assert answer.returncode == status, answer.stderr
    assert said in answer.stdout
    assert not answer.stderr


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_that_want_it(variables: dict[str, str], is_coloured: bool, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    ours, terminal = pty.openpty()
    try:
        subprocess.run(
            [str(COMMAND), "statsu"], stdout=subprocess.PIPE, stderr=terminal, cwd=tmp_path, env=environment, timeout=50
        )
        shown = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(terminal)
    assert ("\x1b[" in shown) is is_coloured
    assert "error:" in shown


def test_pipe_gets_no_colour(tmp_path: Path) -> None:
    answer = subprocess.run([str(COMMAND), "statsu"], capture_output=True, text=True, cwd=tmp_path, timeout=50)
    assert answer.stderr.startswith("error: no verb 'statsu'")
