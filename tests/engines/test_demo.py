"""The demo's parts, its texts, and the demo itself with random weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from texts.make_texts import THINGS, build_rows

from undercurrent.core import ProbeAction
from undercurrent.engines.cache_folder import cache_folder
from undercurrent.examples.demo.measuring import Speed
from undercurrent.examples.demo.probes import SlowTopicProbe, TopicProbe
from undercurrent.examples.demo.story import _compare, _this_python
from undercurrent.examples.demo.training import Text, base_rate, evaluate, fit, load_texts
from undercurrent.spec import ActivationRecord

_TEXTS = Path(__file__).resolve().parent.parent / "texts" / "texts.jsonl"


def test_the_committed_texts_are_those_that_the_script_writes() -> None:
    assert [json.loads(line) for line in _TEXTS.read_text(encoding="utf-8").splitlines()] == build_rows()


def test_at_least_400_texts_in_equal_halves_share_no_template_across_the_split() -> None:
    rows = build_rows()
    assert len({row["text"] for row in rows}) == len(rows) >= 400
    assert len(set(Counter((row["topic"], row["split"]) for row in rows).values())) == 1
    splits = {row["template"]: row["split"] for row in rows}
    assert all(splits[row["template"]] == row["split"] for row in rows)
    for things in THINGS.values():
        assert not set(things["train"]) & set(things["held_out"])


def test_topics_share_people_numbers_and_times() -> None:
    from texts.make_texts import NUMBERS, PEOPLE, TIMES

    texts = load_texts(_TEXTS)
    for words in (PEOPLE, NUMBERS, TIMES):
        for word in words:
            topics = {text.is_medicine for text in texts if word.lower() in text.text.lower()}
            assert topics == {True, False}, word


def test_training_finds_a_direction_and_is_judged_on_held_out_texts_alone() -> None:
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(12)
    texts = [Text("", bool(index % 2), index >= 40, "t") for index in range(80)]
    rows = [
        (rng.standard_normal((9, 12)) + (2.0 if text.is_medicine else -2.0) * direction).astype(np.float32)
        for text in texts
    ]
    probe = fit(rows, texts, layer=1, tail=4, penalty=1.0)
    by_text, by_token = evaluate(probe, rows, texts, tail=4)
    assert (by_text.count, by_token.count) == (40, 360)
    assert by_text.rate == 1.0
    assert by_token.rate > 0.95
    assert base_rate(texts).rate == 0.5
    assert by_text.interval[0] < 1.0 == by_text.interval[1]


def _record(position: int, value: float) -> ActivationRecord:
    return ActivationRecord("r", "p", 1, position, "residual_stream", np.array([value, 0.0], np.float32), True)


def _probe(cls: type[TopicProbe] = TopicProbe, **fields: object) -> TopicProbe:
    weights = np.array([1.0, 0.0], np.float32)
    return cls.spawn("r", "p", **{"weights": weights, "bias": 0.5, "threshold": 2.0, "window": 2, **fields})


def test_the_probe_acts_once_the_mean_of_its_window_is_above_the_threshold() -> None:
    probe = _probe(action="abort")
    actions = [probe.on_activation(_record(index, value)).action for index, value in enumerate([9.0, -7.0, 3.0, 1.0])]
    assert actions == [ProbeAction.CONTINUE, ProbeAction.CONTINUE, ProbeAction.CONTINUE, ProbeAction.ABORT]
    assert probe.on_end(None).verdict == {"tokens": 4, "above_threshold": 1, "highest": 2.5}


def test_the_slow_probe_says_what_the_quick_one_says() -> None:
    quick, slow = _probe(), _probe(SlowTopicProbe, turns=1000)
    for index, value in enumerate([1.0, 3.0, 2.0]):
        mine, other = (probe.on_activation(_record(index, value)) for probe in (quick, slow))
        assert (mine.action, mine.metadata, mine.confidence) == (other.action, other.metadata, other.confidence)


def test_the_cache_folder_follows_the_desktop_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/undercurrent")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "undercurrent"


@pytest.mark.parametrize(
    ("threads", "said"),
    [
        ((60.0, 61.0, 59.0), "is 40% slower than with processes"),
        ((60.0, 101.0, 60.0), "slower by the median, but not in every round"),
        ((99.0, 101.0, 100.0), "probes in threads do not hurt"),
        ((120.0, 120.0, 120.0), "probes in threads do not hurt"),
    ],
)
def test_the_demo_says_whether_threads_hurt_and_claims_it_only_when_every_round_does(
    threads: tuple[float, ...], said: str
) -> None:
    processes = Speed("processes", (100.0, 100.0, 100.0), 1.0, {})
    assert said in _compare(processes, Speed("threads", threads, 1.0, {}))


@pytest.mark.parametrize("activated", [True, False])
def test_the_next_command_finds_the_package_with_and_without_an_activated_environment(
    activated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Path(sys.executable)
    monkeypatch.setenv("PATH", str(running.parent) if activated else "/nowhere")
    monkeypatch.chdir(running.parent.parent.parent)
    assert _this_python() == ("python" if activated else str(running.relative_to(Path.cwd())))


def _start_demo(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-u", "-m", "undercurrent.examples.demo", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tiny_demo_stops_a_generation_and_shows_its_figures(tmp_path: Path) -> None:
    with _start_demo("--tiny", "--keep", str(tmp_path)) as demo:
        output = demo.communicate()[0]
    assert demo.returncode == 0, output
    for expected in (
        "480 short texts",
        "stopped by 'guard' after",
        "the slow probe spends",
        "async probes in processes",
        "the same in threads",
        "lines of NDJSON",
        "Next, try",
    ):
        assert expected in output, output
    command = output.rstrip().splitlines()[-1]
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("aborted at step 2"), (command, done.stderr)
    lines = [json.loads(line) for line in (tmp_path / "signals.ndjson").read_text().splitlines()]
    assert {line["extraction_point_name"] for line in lines} == {"monitor", "slow-monitor"}
    assert {line["request_id"] for line in lines} == {"demo-harmless", "demo-stopped"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    with _start_demo("--tiny", "--keep", str(tmp_path)) as demo:
        assert demo.stdout is not None
        seen = ""
        for line in demo.stdout:
            seen += line
            if "starting worker processes" in line:
                break
        demo.send_signal(signal.SIGINT)
        output = demo.communicate()[0]
    # A shell sees 130 either way: `python -m` ends by the signal itself where Ctrl-C fell into an `exec` of a string,
    # such as that of a dataclass that is being imported.
    assert demo.returncode in (130, -signal.SIGINT), seen + output
    assert "interrupted" in output
    assert "Traceback" not in output


def test_missing_texts_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    with _start_demo("--tiny", "--texts", str(tmp_path / "none.jsonl")) as demo:
        output = demo.communicate()[0]
    assert demo.returncode == 2
    assert "run this in a checkout, or give a file with --texts" in output
