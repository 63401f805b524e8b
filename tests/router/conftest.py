"""A router per worker mode, shared by the tests of a module, and a gate for slow probes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from router_points import REGISTRY, Gate, ListSink

from undercurrent.router import Router
from undercurrent.workers.guards import GuardLane

_PREPARATIONS = GuardLane._preparations


@pytest.fixture(autouse=True)
def _guards_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have loaded torch here; each guard would import it too, which takes longer than most tests."""
    monkeypatch.setattr(GuardLane, "_preparations", lambda _: [])


@pytest.fixture
def guards_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards import torch as they do outside of these tests."""
    monkeypatch.setattr(GuardLane, "_preparations", _PREPARATIONS)


@pytest.fixture(name="router", scope="module", params=["process", "thread"])
def _router(request: pytest.FixtureRequest) -> Iterator[Router]:
    with Router(REGISTRY, worker_mode=request.param, worker_pool_size=2) as router:
        yield router


@pytest.fixture(name="sink")
def _sink(router: Router) -> Iterator[ListSink]:
    sink = ListSink()
    router.attach_log_sink(sink)
    yield sink
    router.attach_log_sink(None)


@pytest.fixture(name="gate")
def _gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.open()
