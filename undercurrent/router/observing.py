"""The part of a router that others watch: who listens to it, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable

from undercurrent.core import Probe
from undercurrent.errors import RouterError
from undercurrent.router.accounts import Accounts
from undercurrent.router.bounded import BoundedBinding
from undercurrent.router.breakers import Breakers, BreakerStatus
from undercurrent.router.ending import EndListeners, RequestEndListener
from undercurrent.router.inline import InlineBinding
from undercurrent.router.metrics import MetricsSink, MetricsSnapshot
from undercurrent.router.requests import LocalBinding, RequestTable
from undercurrent.router.supervision import LogSinkLike, Supervision
from undercurrent.router.totals import RouterMetrics

__all__ = ["ObservedRouter"]


class ObservedRouter:
    """Sinks and listeners, counters, breakers and probes; `Router` makes the parts and closes them."""

    _table: RequestTable
    _listeners: EndListeners
    _breakers: Breakers
    _supervision: Supervision
    _accounts: Accounts

    def attach_log_sink(self, sink: LogSinkLike | None, *, inline: bool = False) -> None:
        """Makes `sink` the only log sink, for live requests too; None detaches every sink.

        A sink that is a handle, such as `FileLogSink`, works in the workers; any other object with `write_signal` and
        `write_result` is called on a thread of this process, in order. What it raises is logged. With `inline`, aborts,
        flags and results of inline points reach it too, on another thread of this process.

        Raises:
            ProbingTypeError: the sink lacks a method.
        """
        self._supervision.replace_sinks(sink, is_inline=inline)

    def add_log_sink(self, sink: LogSinkLike, *, inline: bool = False) -> None:
        """Adds a log sink behind those attached. Raises as `attach_log_sink`."""
        self._supervision.add_sink(sink, is_inline=inline)

    def remove_log_sink(self, sink: LogSinkLike) -> None:
        """Detaches one log sink.

        Raises:
            RouterError: it is not attached.
        """
        self._supervision.remove_sink(sink)

    def attach_metrics_sink(self, sink: MetricsSink | None) -> None:
        """Makes `sink` the metrics sink; None detaches it. See `MetricsSink` for the thread it is called on."""
        self._accounts.attach(sink)

    def on_request_end(self, listener: RequestEndListener) -> Callable[[], None]:
        """Calls `listener(request_id, results)` after each end, on the thread that ended the request; what it raises is
        logged. Returns the function that removes it again."""
        return self._listeners.add(listener)

    def get_metrics(self, request_id: str, extraction_point_name: str) -> MetricsSnapshot:
        """The counters of a live async binding, read from shared memory.

        Raises:
            RouterError: unknown or ended request, unknown point, or an inline point.
        """
        binding = self._table.find_binding(request_id, extraction_point_name)
        if isinstance(binding, LocalBinding | BoundedBinding):
            raise RouterError(
                f"extraction point {extraction_point_name!r} has no queue, as it runs inline; metrics are those of "
                "async points"
            )
        return MetricsSnapshot.of(binding.statistics())

    def totals(self) -> RouterMetrics:
        """Everything counted since this router was made, requests that ended included; works after `shutdown` too.

        Counters of records are exact. What workers measure (signals of live async requests, and times) is up to two
        seconds old; `flush` brings it up to date.
        """
        return self._accounts.totals(self.breakers())

    def get_probe(self, request_id: str, extraction_point_name: str) -> Probe:
        """The probe instance of a live inline point.

        Raises:
            RouterError: unknown or ended request, unknown point, or an async point, whose probe lives in a worker.
        """
        binding = self._table.find_binding(request_id, extraction_point_name)
        if not isinstance(binding, InlineBinding):
            raise RouterError(
                f"the probe of extraction point {extraction_point_name!r} lives in a worker and cannot be reached from "
                "here; read its signals from a log sink and its verdict from `end_request`"
            )
        return binding.probe

    def breakers(self) -> dict[str, BreakerStatus]:
        """The breakers of bounded inline points, by point name: their state and counts, over all requests so far."""
        return self._breakers.statuses()

    def reset_breaker(self, point_name: str) -> None:
        """Closes the breaker of a point at once, so that its next record is sent to the probe; its counts stay.

        Raises:
            RouterError: no bounded inline point of that name was registered.
        """
        self._breakers.reset(point_name)
