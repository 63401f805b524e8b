"""What becomes of a router in a forked child: its workers belong to the parent, which must not notice the child."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

from undercurrent.core import Coverage, CoverageReason, ProbeResult, ProbeSignal
from undercurrent.errors import WorkerError
from undercurrent.router.inline import empty_result, with_coverage
from undercurrent.router.tally import Tally
from undercurrent.spec import ActivationRecord, ExtractionPoint
from undercurrent.workers import BindingStatistics

__all__ = ["ForkedBinding", "renew_in_children"]

_logger = logging.getLogger("undercurrent.router")


class _Forkable(Protocol):
    def _renew_after_fork(self) -> None: ...


_alive: weakref.WeakSet[_Forkable] = weakref.WeakSet()


def renew_in_children(router: _Forkable) -> None:
    """Has `router` renewed in every child that this process forks, as long as the router lives."""
    _alive.add(router)


def _renew_all() -> None:
    for router in list(_alive):
        router._renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class ForkedBinding:
    """An async binding of the parent's, seen from a forked child: it counts records and answers without a verdict."""

    row_target = None

    def __init__(self, request_id: str, point: ExtractionPoint) -> None:
        self._request_id = request_id
        self._point = point
        self._routed = Tally()

    def accept(self, record: ActivationRecord) -> ProbeSignal | None:
        """Counts `record`; the first of a binding is logged."""
        if self._routed.bump() == 0:
            _logger.warning(
                "point %r of request %r: this process is a fork of the router's, its records are counted and not "
                "seen; register requests in the process that routes them (said once)",
                self._point.name,
                self._request_id,
            )
        return None

    def end(self, drain_until: float | None = None) -> None:
        """There is no worker to tell."""

    def wait_started(self, deadline: float) -> None:
        """Raises, as no worker of this process will start the probe."""
        raise WorkerError(f"async point {self._point.name!r} was registered before this process was forked")

    def wait_result(self, deadline: float) -> ProbeResult:
        """Returns a result without a verdict, whose coverage counts what was routed in this process."""
        routed = self._routed.value
        coverage = Coverage.settle(routed=routed, seen=0, reasons=[CoverageReason.UNSEEN])
        return with_coverage(empty_result(self._request_id, self._point.name), coverage)

    def abandon(self) -> None:
        """There is no worker to tell."""

    def statistics(self) -> BindingStatistics:
        """What this process routed counts as dropped."""
        return BindingStatistics(produced=self._routed.value, dropped=self._routed.value)
