"""Coverage is complete exactly when nothing is missing, and no missing record goes without a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.core import Coverage, CoverageReason
from undercurrent.errors import ProbingValueError


def test_everything_seen_is_complete() -> None:
    coverage = Coverage.settle(routed=3, seen=3)

    assert coverage.complete
    assert coverage.to_dict() == {
        "routed": 3,
        "seen": 3,
        "dropped": 0,
        "errors": 0,
        "lost": 0,
        "restarts": 0,
        "complete": True,
        "reasons": [],
    }


def test_nothing_routed_is_complete() -> None:
    assert Coverage.settle(routed=0, seen=0).complete


@pytest.mark.parametrize(
    ("counts", "reasons"),
    [
        ({"routed": 3, "seen": 2, "dropped": 1}, ["dropped"]),
        ({"routed": 3, "seen": 3, "errors": 1}, ["probe_error"]),
        ({"routed": 3, "seen": 2, "lost": 1, "restarts": 1}, ["worker_died"]),
        ({"routed": 3, "seen": 3, "restarts": 1}, ["worker_died"]),
        ({"routed": 3, "seen": 2}, ["unseen"]),
        ({"routed": 3, "seen": 0, "dropped": 1, "lost": 1, "errors": 0}, ["dropped", "worker_died", "unseen"]),
    ],
)
def test_count_without_a_reason_gets_one(counts: dict[str, int], reasons: list[str]) -> None:
    assert Coverage.settle(**counts).to_dict()["reasons"] == reasons


@pytest.mark.parametrize("reason", ["no_memory", "unsupported", "too_large", "block_timeout"])
def test_known_cause_of_a_drop_stands_alone(reason: str) -> None:
    assert Coverage.settle(routed=3, seen=2, dropped=1, reasons=[reason]).to_dict()["reasons"] == [reason]


@pytest.mark.parametrize("reason", ["neighbour", "probe_timeout", "daemon_restarted"])
def test_known_cause_of_a_restart_stands_alone(reason: str) -> None:
    coverage = Coverage.settle(routed=3, seen=2, lost=1, restarts=1, reasons=[reason])

    assert coverage.to_dict()["reasons"] == [reason]


def test_reason_without_a_count_makes_it_incomplete() -> None:
    assert not Coverage.settle(routed=3, seen=3, reasons=["sampled"]).complete


def test_reasons_come_in_one_order() -> None:
    coverage = Coverage.settle(routed=3, seen=1, dropped=2, reasons=["sampled", "probe_error", "dropped", "sampled"])

    assert coverage.reasons == (CoverageReason.DROPPED, CoverageReason.PROBE_ERROR, CoverageReason.SAMPLED)


def test_unknown_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="bad luck"):
        Coverage.settle(routed=1, seen=1, reasons=["bad luck"])


def test_negative_count_is_refused() -> None:
    with pytest.raises(ProbingValueError, match="`dropped` must be >= 0, got -1"):
        Coverage.settle(routed=1, seen=1, dropped=-1)


counts = st.integers(0, 50)


@given(
    routed=counts,
    seen=counts,
    dropped=counts,
    errors=counts,
    lost=counts,
    restarts=counts,
    reasons=st.lists(st.sampled_from(list(CoverageReason))),
)
def test_no_partial_coverage_passes_for_a_whole_one(
    routed: int,
    seen: int,
    dropped: int,
    errors: int,
    lost: int,
    restarts: int,
    reasons: list[CoverageReason],
) -> None:
    coverage = Coverage.settle(
        routed=routed, seen=seen, dropped=dropped, errors=errors, lost=lost, restarts=restarts, reasons=reasons
    )

    is_whole = seen >= routed and not (dropped or errors or lost or restarts or reasons)
    assert coverage.complete == is_whole
    assert set(reasons) <= set(coverage.reasons)
    assert Coverage.from_dict(coverage.to_dict()) == coverage
