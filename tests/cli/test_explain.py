"""`undercurrent explain` and `reanalyze`: table, page, JSON, a run that is interrupted and resumed, refusals."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_lines import call, start

from undercurrent.core import ProbeFactory, register_probe, unregister_probe
from undercurrent.core.examples import TrajectoryScoreProbe

pytest.importorskip("shapiq")

CHAT = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "document", "text": "The river bends.\n", "name": "rivers"},
                {"type": "document", "text": "Hills <stand> & wait.\n", "name": "hills"},
                "Which?",
            ],
        }
    ]
}
SPEC = """\
extraction_points:
  - {name: height, layers: [2], tensor_type: residual_stream, position: "generated[*]", probe_type: mean_height,
     probe_kind: trajectory, execution_mode: EXECUTION}
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a prompt and a spec, where we are; the spec's probe is registered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.json").write_text(json.dumps(CHAT))
    for mode in ("inline", "async"):
        (tmp_path / f"{mode}.yaml").write_text(SPEC.replace("EXECUTION", mode))
    register_probe("mean_height", ProbeFactory(TrajectoryScoreProbe, {"threshold": 99}))
    yield tmp_path
    unregister_probe("mean_height")


def explain(*arguments: str) -> Any:
    return call("explain", "--model", "tiny", "--max-new-tokens", "3", *arguments)


def explained(*arguments: str) -> dict[str, Any]:
    answer = explain("--json", *arguments)
    assert answer.exit_code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("mode", ["inline", "async"])
def test_documents_get_the_share_of_the_verdict_they_are_due(folder: Path, mode: str) -> None:
    found = explained("--spec", f"{mode}.yaml", "--prompt-file", "chat.json", "--players", "documents")
    attribution = found["attribution"]
    assert found["value_name"] == "height"
    assert sum(attribution["values"]) == pytest.approx(attribution["grand"] - attribution["empty"])
    assert [player["label"] for player in found["players"]["players"]] == ["rivers", "hills"]
    assert Path(found["archive"], "archive.sqlite").exists()


def test_the_table_names_parts_and_what_the_values_rest_on(folder: Path) -> None:
    answer = explain("--prompt", "The river bends", "--players", "words")
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].split() == ["value", "95", "%", "interval", "part"]
    assert {line.split()[-1] for line in lines[1:4]} == {"The", "river", "bends"}
    assert "8 coalitions by kernel (SV), absent parts by `delete`; 9 generated, 0 from before" in answer.stdout
    assert "3 parts, up to 9 generations" in answer.stderr
    assert "score it again with: undercurrent reanalyze runs/" in answer.stderr


class Page(HTMLParser):
    """The tags of a page, its marked texts, and whatever it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.marked: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "p") or tag == "script":
            self.open.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            self.open.remove(tag)

    def handle_data(self, data: str) -> None:
        if "mark" in self.open:
            self.marked.append(data)


def test_the_page_colours_the_prompt_and_loads_nothing(folder: Path) -> None:
    answer = explain("--prompt-file", "chat.json", "--players", "documents", "--html", "why.html")
    assert answer.exit_code == 0, answer.stderr
    text = (folder / "why.html").read_text()
    page = Page(text)
    assert page.marked == ["The river bends.\n", "Hills <stand> & wait.\n"]
    assert page.loaded == []
    assert "<script" not in text
    assert "<stand>" not in text
    assert "exact" in text
    assert [path.name for path in folder.glob(".why*")] == []


def test_the_same_command_asks_the_model_for_nothing_again(folder: Path) -> None:
    first = explained("--prompt", "The river bends", "--players", "words")
    again = explained("--prompt", "The river bends", "--players", "words")
    assert again["attribution"] == first["attribution"]
    assert again["metrics"]["executed"] == 0
    refused = explain("--prompt", "The river bends", "--players", "words", "--on-exists", "error")
    assert refused.exit_code == 1
    assert "holds a finished" in refused.stderr


def test_a_finished_run_is_scored_again_without_the_model(folder: Path) -> None:
    found = explained(
        "--prompt", "The river bends", "--players", "words", "--run-folder", "run", "--value", "similarity"
    )
    same = json.loads(call("reanalyze", "run", "--json").stdout)
    assert same["attribution"] == found["attribution"]
    other = json.loads(call("reanalyze", "run", "--json", "--value", "exact_match", "--estimator", "loo").stdout)
    assert (other["value_name"], other["attribution"]["index"]) == ("exact_match", "LOO")
    assert call("reanalyze", "run", "--estimator", "banzhaf").exit_code == 0


@pytest.mark.timeout(300)
def test_an_interrupted_run_goes_on_where_it_stopped(folder: Path) -> None:
    arguments = ("explain", "--model", "tiny", "--prompt", "a b c d e f", "--players", "words", "--json")
    # Long enough that no machine is through with all 64 before the signal comes.
    running = start(*arguments, "--max-new-tokens", "40", "--run-folder", "run", cwd=folder)
    assert running.stderr is not None
    try:
        # The whole prompt's answer is on disk before any part is left out.
        while not (folder / "run" / "base_generation.txt").exists():
            assert running.poll() is None, running.stderr.read()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=40)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130
    refused = call("reanalyze", "run")
    assert refused.exit_code == 1
    assert "has not finished; resume it first" in refused.stderr
    resumed = call(*arguments, "--max-new-tokens", "40", "--run-folder", "run")
    metrics = json.loads(resumed.stdout)["metrics"]
    assert metrics["executed"] < 65
    assert metrics["cache_hits"] >= 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "either --prompt TEXT or --prompt-file FILE is needed, not both"),
        (["--prompt", "x", "--players", "word"], 1, "did you mean 'words'"),
        (["--prompt", "x", "--absence", "delet"], 2, "did you mean 'delete'"),
        (["--prompt", "x", "--estimator", "kernl"], 1, "did you mean 'kernel'"),
        (["--prompt", "x", "--players", "documents"], 1, "a prompt with documents was expected, got none"),
        (["--prompt", "a b", "--players", "words", "--value", "similar"], 2, "did you mean 'similarity'"),
        (["--prompt-file", "bad.json"], 1, "bad.json:1:2: expected JSON"),
        (["--prompt", "a b c d e f g h i j k l", "--players", "words", "--budget", "5"], 1, "a budget of at least 26"),
    ],
)
def test_what_cannot_be_explained_is_refused(folder: Path, arguments: list[str], status: int, message: str) -> None:
    (folder / "bad.json").write_text("{")
    answer = explain(*arguments)
    assert answer.exit_code == status
    assert message in answer.stderr


def test_a_spec_of_several_points_needs_a_choice(folder: Path) -> None:
    points = SPEC.replace("EXECUTION", "inline")
    (folder / "two.yaml").write_text(points + points.partition("\n")[2].replace("height,", "depth,", 1))
    answer = explain("--spec", "two.yaml", "--prompt", "x")
    assert answer.exit_code == 2
    assert "the spec has several points; choose one with --value: height, depth" in answer.stderr
