"""Breakers of bounded points: they open, keep the policy's answer, try again, and can be read and reset."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_probes import GATES, TRIGGER, gate_point
from router_points import ListSink, context, fresh_id, make_record

from undercurrent.core import ProbeAction
from undercurrent.router import BreakerCounts, Router, RouterError, TimeoutAction, breakers
from undercurrent.router.breakers import Breaker

BOUND_MS = 60


class Clock:
    """The breakers' clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(breakers.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(breakers.time, "time", lambda: self.now + 5000.0)


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def fail(breaker: Breaker, count: int) -> list[int]:
    """Lets `count` records through and fails each; returns what each failure says."""
    answers = []
    for _ in range(count):
        assert breaker.admit()
        answers.append(breaker.note_failure(is_timeout=True))
    return answers


def test_consecutive_failures_open_it_and_say_so_once(clock: Clock) -> None:
    breaker = Breaker("guard", 3)

    assert fail(breaker, 3) == [0, 0, 3]
    assert not breaker.admit()
    assert breaker.note_failure(is_timeout=True) == 0  # of a record that was sent before it opened
    status = breaker.status()
    assert (status.state, status.failures, status.trips) == ("open", 3, 1)
    assert (status.opened_at, status.retry_at) == (6000.0, 6000.0 + breakers.PAUSE_S)


def test_an_answer_in_between_begins_the_count_anew(clock: Clock) -> None:
    breaker = Breaker("guard", 3)
    fail(breaker, 2)
    assert breaker.admit()
    breaker.note_answer()

    fail(breaker, 2)

    assert breaker.is_closed


def test_after_a_pause_one_record_is_let_through_and_closes_it(clock: Clock) -> None:
    breaker = Breaker("guard", 1)
    fail(breaker, 1)
    clock.now += breakers.PAUSE_S - 0.1
    assert not breaker.admit()
    clock.now += 0.1

    assert breaker.admit()
    assert not breaker.admit()  # its answer is awaited
    assert breaker.status().state == "half_open"
    breaker.note_answer()

    assert breaker.is_closed
    assert breaker.status().retry_at is None
    assert breaker.status().counts == BreakerCounts(answered=1, timeouts=1, short_circuited=2, trips=1)


def test_each_failed_try_doubles_the_pause_up_to_a_bound(clock: Clock) -> None:
    breaker = Breaker("guard", 1)
    fail(breaker, 1)
    pauses = []
    for _ in range(9):
        retry_at = breaker.status().retry_at
        assert retry_at is not None
        pauses.append(retry_at - 5000.0 - clock.now)
        clock.now = retry_at - 5000.0
        assert fail(breaker, 1) == [0]

    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
    assert breaker.status().opened_at == 6000.0
    assert breaker.status().trips == 10


def test_a_try_that_was_not_sent_is_no_try(clock: Clock) -> None:
    breaker = Breaker("guard", 1)
    fail(breaker, 1)
    clock.now += breakers.PAUSE_S
    assert breaker.admit()
    breaker.note_unsent()

    assert breaker.admit()


def test_a_late_success_closes_no_open_breaker(clock: Clock) -> None:
    breaker = Breaker("guard", 1)
    assert breaker.admit()
    fail(breaker, 1)
    breaker.note_answer()

    assert not breaker.admit()


def test_a_reset_closes_it_at_once_and_keeps_the_counts(clock: Clock) -> None:
    breaker = Breaker("guard", 2)
    fail(breaker, 2)

    breaker.reset()

    assert breaker.admit()
    assert (breaker.status().state, breaker.status().failures, breaker.status().trips) == ("closed", 0, 1)
    assert breaker.status().counts.timeouts == 2


# ---- in a router ---------------------------------------------------------------------------------------------------


@pytest.fixture(name="router")
def _router() -> Iterator[Router]:
    with Router(GATES, worker_pool_size=1, circuit_breaker_threshold=2) as router:
        yield router


def hanging(name: str, folder: Path, **more: Any) -> Any:
    """A point whose probe answers position `TRIGGER` when the test lets it."""
    return gate_point(
        name, "slow", timeout_ms=BOUND_MS, probe_timeout_s=60.0, probe_args={"folder": str(folder)}, **more
    )


def route_all(router: Router, request_id: str, positions: list[int], name: str = "slow") -> list[Any]:
    answers = [router.route(make_record(request_id, name, position=position)) for position in positions]
    return [None if answer is None else (answer.action, answer.metadata.get("reason")) for answer in answers]


@pytest.mark.parametrize("on_timeout", [TimeoutAction.ABORT, TimeoutAction.CONTINUE])
def test_a_hung_probe_never_hangs_generation_and_a_fail_closed_gate_stays_closed(
    router: Router, tmp_path: Path, on_timeout: TimeoutAction, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()
    router.attach_log_sink(sink)
    request_id = fresh_id()
    router.register_request(request_id, [hanging("slow", tmp_path, on_timeout=on_timeout)], context(request_id))

    with caplog.at_level(logging.WARNING, "undercurrent.router"):
        answers = route_all(router, request_id, [TRIGGER] * 40)
    status = router.breakers()["slow"]
    (tmp_path / "gate").touch()
    result = router.end_request(request_id)["slow"]
    assert router.flush(20)

    action = ProbeAction(on_timeout.value)
    assert answers == [(action, "timeout")] * 2 + [(action, "breaker_open")] * 38
    assert (status.state, status.failures, status.trips) == ("open", 2, 1)
    assert status.counts == BreakerCounts(timeouts=2, short_circuited=38, trips=1)
    assert result.metadata["fallbacks"] == {"timeout": 2, "breaker_open": 38}
    assert result.metadata["coverage"]["routed"] == 40
    assert {"probe_timeout", "unseen"} <= set(result.metadata["coverage"]["reasons"])
    warnings = [record for record in caplog.records if "breaker" in record.getMessage()]
    assert len(warnings) == 1
    (event,) = [event for event in sink.events if event[0] == "signal"]
    assert event[1:3] == (request_id, "slow")
    assert event[3].action is ProbeAction.FLAG
    assert event[3].metadata == {
        "circuit_breaker_tripped": True,
        "extraction_point_name": "slow",
        "consecutive_failures": 2,
        "reason": "timeout",
    }


def test_an_open_breaker_tries_again_and_closes(
    router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakers, "PAUSE_S", 0.0)
    request_id = fresh_id()
    router.register_request(request_id, [hanging("slow", tmp_path)], context(request_id))
    assert route_all(router, request_id, [TRIGGER] * 2) == [(ProbeAction.ABORT, "timeout")] * 2
    (tmp_path / "gate").touch()
    router.reset_breaker("slow")  # gives the new, short pause to the next opening
    tried: list[Any] = []
    while not tried or tried[-1] != (ProbeAction.FLAG, None):
        tried += route_all(router, request_id, [1])
        assert len(tried) < 1000

    assert router.breakers()["slow"].state == "closed"
    router.end_request(request_id)


def test_one_points_breaker_leaves_the_others_alone(router: Router, tmp_path: Path) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [hanging("slow", tmp_path), gate_point("fine")], context(request_id))
    route_all(router, request_id, [TRIGGER] * 2)

    assert route_all(router, request_id, [1], "fine") == [(ProbeAction.FLAG, None)]
    assert {name: status.state for name, status in router.breakers().items()} == {"slow": "open", "fine": "closed"}
    (tmp_path / "gate").touch()
    router.end_request(request_id)


def test_breakers_can_be_reset_by_name_and_read_but_not_changed(router: Router, tmp_path: Path) -> None:
    request_id = fresh_id()
    router.register_request(request_id, [hanging("slow", tmp_path)], context(request_id))
    route_all(router, request_id, [TRIGGER] * 2)

    with pytest.raises(RouterError, match=r"did you mean 'slow'.*points with a breaker: 'slow'"):
        router.reset_breaker("slwo")
    with pytest.raises(dataclasses.FrozenInstanceError):
        router.breakers()["slow"].state = "closed"  # type: ignore[misc]
    router.reset_breaker("slow")

    assert router.breakers()["slow"].state == "closed"
    assert route_all(router, request_id, [TRIGGER]) == [(ProbeAction.ABORT, "timeout")]
    (tmp_path / "gate").touch()
    router.end_request(request_id)


def test_a_request_registers_while_the_breaker_is_open(router: Router, tmp_path: Path) -> None:
    first, second = fresh_id(), fresh_id()
    router.register_request(first, [hanging("slow", tmp_path)], context(first))
    route_all(router, first, [TRIGGER] * 2)

    router.register_request(second, [hanging("slow", tmp_path)], context(second))

    assert route_all(router, second, [1]) == [(ProbeAction.ABORT, "breaker_open")]
    (tmp_path / "gate").touch()
    for request_id in (first, second):
        router.end_request(request_id)
