"""The `undercurrent` command, run as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from router_points import REGISTRY, context, fresh_id, make_point, make_record, wait_until

from undercurrent.cli import main
from undercurrent.ipc.page import ControlPage
from undercurrent.router import Router

COMMAND = Path(sys.executable).with_name("undercurrent")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the installed command into a pipe, without colours."""
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(
        [str(COMMAND), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=50
    )


@pytest.fixture(name="page")
def _page() -> Iterator[ControlPage]:
    """A page with one lane, one worker and one binding."""
    with ControlPage(f"test-{os.getpid()}") as page:
        page.write_row("lanes", 0, id=1, name="lane", counters=(1, 3 << 20, 33, 16, 0))
        page.write_row("workers", 0, id=1, name="monitor", detail="running", pid=os.getpid(), counters=(1, 70, 5, 0, 2))
        page.write_row(
            "bindings", 3, id=9, name="monitor", detail="req-1", counters=(100, 70, 10, 0, 0, 1, 0, 0, 16, 3, 0, 0)
        )
        yield page


def read_json(page: ControlPage, cwd: Path) -> dict[str, Any]:
    """Returns what `status --json` says of one page."""
    answer = run("status", "--json", page.instance, cwd=cwd)
    assert answer.returncode == 0, answer.stderr
    (router,) = json.loads(answer.stdout)
    return dict(router)


def test_version_is_printed(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).stdout == "undercurrent 0.2.0\n"


def test_without_a_command_help_is_shown(tmp_path: Path) -> None:
    assert "status" in run(cwd=tmp_path).stderr + run("--help", cwd=tmp_path).stdout


def test_module_is_the_command(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "undercurrent", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert answer.stdout.endswith("0.2.0\n")


def test_unknown_command_is_a_usage_error(tmp_path: Path) -> None:
    answer = run("statsu", cwd=tmp_path)
    assert answer.returncode == 2
    assert "statsu" in answer.stderr


def test_main_returns_a_status_and_does_not_exit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["nonsense"]) == 2
    assert "0.2.0" in capsys.readouterr().out


def test_status_names_workers_and_bindings_with_their_counters(page: ControlPage, tmp_path: Path) -> None:
    lines = run("status", page.instance, cwd=tmp_path).stdout.splitlines()
    assert lines[0].startswith(f"router {page.instance}: process {os.getpid()}")
    assert "1 lane with 3.0 MiB of slots" in lines[0]
    assert lines[2].split()[:8] == ["monitor", "running", str(os.getpid()), "1", "70", "5", "0", "2"]
    assert lines[4].split() == ["monitor", "req-1", "100", "70", "16", "3", "11", "0", "0"]


def test_status_as_json_has_every_counter(page: ControlPage, tmp_path: Path) -> None:
    router = read_json(page, tmp_path)
    assert (router["pid"], router["is_stale"]) == (os.getpid(), False)
    (binding,) = router["bindings"]
    assert (binding["produced"], binding["consumed"], binding["dropped_oldest"], binding["waiting"]) == (
        100,
        70,
        10,
        16,
    )
    assert router["lanes"][0]["committed_bytes"] == 3 << 20
    assert router["workers"][0]["memory_bytes"] > 0


def test_status_shows_what_changed(page: ControlPage, tmp_path: Path) -> None:
    page.clear_row("bindings", 3)
    assert read_json(page, tmp_path)["bindings"] == []


def test_status_lists_every_page(page: ControlPage, tmp_path: Path) -> None:
    with ControlPage(f"{page.instance}-b"):
        found = {router["instance"] for router in json.loads(run("status", "--json", cwd=tmp_path).stdout)}
    assert {page.instance, f"{page.instance}-b"} <= found


def test_long_list_of_bindings_is_cut_with_a_word_about_it(page: ControlPage, tmp_path: Path) -> None:
    for index in range(50):
        page.write_row("bindings", index, id=index, name=f"monitor-{index}")
    assert "and 10 more bindings" in run("status", page.instance, cwd=tmp_path).stdout
    assert len(read_json(page, tmp_path)["bindings"]) == 50


def test_unknown_instance_is_answered_with_the_nearest(page: ControlPage, tmp_path: Path) -> None:
    answer = run("status", f"{page.instance}x", cwd=tmp_path)
    assert answer.returncode == 1
    assert page.instance in answer.stderr


def test_page_of_a_dead_process_says_so(tmp_path: Path) -> None:
    instance = f"test-{os.getpid()}-dead"
    program = f"import os; from undercurrent.ipc.page import ControlPage; ControlPage({instance!r}); os._exit(0)"
    subprocess.run([sys.executable, "-P", "-c", program], check=True, cwd=tmp_path)
    try:
        assert "its process is gone" in run("status", instance, cwd=tmp_path).stdout
    finally:
        ControlPage.remove_stale()


def test_status_shows_a_router_that_runs(tmp_path: Path) -> None:
    request = fresh_id()
    with Router(REGISTRY) as router:
        router.register_request(request, [make_point("monitor", "async")], context(request), wait_s=30)
        for position in range(5):
            router.route(make_record(request, "monitor", position=position))
        assert router.flush(20)

        def bindings() -> list[dict[str, Any]]:
            found = json.loads(run("status", "--json", cwd=tmp_path).stdout)
            return [row for page in found if page["pid"] == os.getpid() for row in page["bindings"]]

        assert wait_until(lambda: [row["consumed"] for row in bindings() if request in row["detail"]] == [5])
    assert not bindings()
