"""Folders that the published package loads too: both give equal answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from laya_folders import ask_peer, find_peer, write_folder
from tiny_checkpoints import QUESTIONS, STATES

from undercurrent.predict import Agent

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

MORE = {
    **QUESTIONS,
    "turned": {**QUESTIONS["topic"], "option_order": [2, 0, 1]},
    "named": {"type": "noul", "instructions": "is it late", "labels": {"false": "calm", "true": "late"}},
    "listed": {"type": "choice", "instructions": {"ask": "what"}, "criteria": [f"card {at}" for at in range(7)]},
    "single": {"type": "choice", "instructions": "what", "criteria": ["other"]},
}
LONG = ["my card was paid twice " * 30, [{"content": "hello " * 90}, {"content": "my bill is wrong"}], "a [MASK] b", ""]
LONG_CALL: dict[str, Any] = {"load": {}, "method": "predict_long", "arguments": [LONG[0], QUESTIONS], "options": {}}


def assert_equal(ours: Any, theirs: Any) -> None:
    """Same keys, texts and counts; figures, which have four digits, differ by one in the last at most."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=1.01e-4)
    else:
        assert ours == theirs


@pytest.mark.parametrize("layout", ["sequential", "parallel"])
def test_both_packages_answer_alike(layout: str, tmp_path: Path) -> None:
    python = find_peer()
    if python is None:
        pytest.skip("laya 0.4.15 is not installed; run: make test-engines")
    folder = write_folder(tmp_path / "model", option_layout=layout)
    tongues = {"de": {"temperature": [2.0, 2.0, 2.0], "temperature_by_options": {"noul:2": 4.0}}}
    calls: list[dict[str, Any]] = [
        {"load": {}, "method": "predict_batch", "arguments": [[*STATES, *LONG], MORE], "options": {}},
        {"load": {}, "method": "predict_batch", "arguments": [LONG, MORE], "options": {"max_len": 70}},
        {"load": {}, "method": "predict_batch", "arguments": [LONG, QUESTIONS], "options": {"head_max_len": 24}},
        LONG_CALL,
        {
            "load": {},
            "method": "predict_long",
            "arguments": [LONG[0], QUESTIONS],
            "options": {"window": 20, "stride": 20},
        },
        {
            "load": {"lang_temperatures": tongues},
            "method": "predict_batch",
            "arguments": [list(STATES), QUESTIONS],
            "options": {"lang": "de-CH"},
        },
    ]
    theirs = ask_peer(python, folder, calls, tmp_path)
    for call, answers in zip(calls, theirs, strict=True):
        ours = getattr(Agent(str(folder), **call["load"]), call["method"])(*call["arguments"], **call["options"])
        for one, other in zip(*([each] if isinstance(each, dict) else each for each in (ours, answers)), strict=True):
            assert_equal(one["answers"], other["answers"])
            assert_equal(one["usage"], other["usage"])
