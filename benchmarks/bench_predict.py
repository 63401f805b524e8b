"""What does the prediction life cycle cost, with a model that costs nothing?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from undercurrent.benchmarks.harness import BenchmarkError, Row, Runner, at_most, value
from undercurrent.benchmarks.predict_peer import PREDICT_PEER, predict_peer_python

PROGRAM = Path(__file__).resolve().parent / "common" / "uc_bench_predict.py"

# What is measured, the scenario and its arguments, and the share of the published package's cost that is to be reached.
COSTS: tuple[tuple[str, str, dict[str, Any], float], ...] = (
    ("Agent, two questions, tensors collated", "agent", {"has_collate": True}, 0.5),
    ("Agent, two questions, collation stubbed too", "agent", {"has_collate": False}, 0.5),
    ("predict.Router, checkpoint named", "router_pinned", {}, 0.5),
    ("predict.Router, routed by 13 words", "router_auto", {"is_long": False}, 0.55),
    ("predict.Router, routed by 6.6 kB", "router_auto", {"is_long": True}, 0.25),
    ("a no-op hook, per event", "no_op_hook", {}, 0.35),
    ("predict_batch of 1,000, per request", "batch", {"count": 1000}, 0.55),
)


def run(runner: Runner) -> list[Row]:
    """CPU time of the calling thread per request, as a share of the published package's where `--peer` is given."""
    peer = _peer(runner)
    return [*(_cost(runner, peer, *cost) for cost in COSTS), _deadline(runner)]


def measure(runner: Runner, python: Path | None, scenario: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs one scenario, under this interpreter where `python` is None."""
    runner.say(f"{scenario} {json.dumps(arguments)} ({'ours' if python is None else 'peer'})")
    return runner.script(PROGRAM, scenario, json.dumps(arguments), python=python)


def _cost(runner: Runner, peer: Path | None, what: str, scenario: str, arguments: dict[str, Any], share: float) -> Row:
    ours = measure(runner, None, scenario, arguments)
    theirs: dict[str, Any] | None = None
    if peer is not None:
        try:
            theirs = measure(runner, peer, scenario, arguments)
        except BenchmarkError as error:
            runner.say(f"peer: {error}")
    reached = None if theirs is None else at_most(share, ours["us"] / theirs["us"])
    return Row(
        what,
        "us",
        ours["us"],
        f"<= {share:g} of the peer",
        reached,
        value(theirs, "us"),
        details=ours,
        peer_name=PREDICT_PEER.replace("==", " "),
    )


def _deadline(runner: Runner) -> Row:
    measured = measure(runner, None, "deadline", {"pairs": 50 if runner.is_quick else 1000})
    return Row(
        "a hook with a deadline, by the wall",
        "us",
        measured["us"],
        "<= 1.5 hand-offs",
        at_most(1.5, measured["ratio"]),
        floor=measured["hand_off_us"],
        floor_name="a thread's hand-off and back",
        details=measured,
    )


def _peer(runner: Runner) -> Path | None:
    if runner.peer_python is None:
        return None
    try:
        return predict_peer_python()
    except BenchmarkError as error:
        runner.say(f"peer: {error}")
        return None
