"""`Router`: registers requests, dispatches their records, ends them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from undercurrent.core import ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import ProbingValueError, RouterError
from undercurrent.router.accounts import Accounts
from undercurrent.router.awaiting import Awaiting
from undercurrent.router.breakers import Breakers
from undercurrent.router.defaults import (
    DEFAULT_CIRCUIT_BREAKER_THRESHOLD,
    DEFAULT_DRAIN_TIMEOUT,
    DEFAULT_QUEUE_DEPTH,
    default_worker_pool_size,
)
from undercurrent.router.ending import EndListeners, collect_results, tell_workers
from undercurrent.router.forked import ForkedBinding, renew_in_children
from undercurrent.router.handle import AsyncRequestHandle, RequestHandle
from undercurrent.router.metrics import MetricsSink
from undercurrent.router.observing import ObservedRouter
from undercurrent.router.planning import PointDefaults, ProbeSource, as_probe_registry, plan_request, worker_plans
from undercurrent.router.registration import build_request
from undercurrent.router.requests import LiveRequest, RequestTable
from undercurrent.router.rows import RowLike, route_rows
from undercurrent.router.step import Step
from undercurrent.router.supervision import Supervision, WorkerSettings
from undercurrent.spec import ActivationRecord, ExtractionPoint, InterventionPolicy, OverflowPolicy, TensorType
from undercurrent.workers.measures import Measures

__all__ = ["Router"]

_FLUSH_TIMEOUT_S = 30.0


class Router(ObservedRouter):
    """Dispatches records to probes: inline ones here and now, async ones in worker processes.

    All methods may be called on any thread. Processes start with the first async or bounded point, or with `prewarm`;
    a router with plain inline points only starts none. `shutdown` (or leaving a `with` block) ends them.

    >>> from undercurrent.core import ProbeFactory
    >>> from undercurrent.core.examples import TrajectoryScoreProbe
    >>> from undercurrent.spec import parse_yaml
    >>> spec = parse_yaml('''
    ... extraction_points:
    ...   - {name: guard, layers: 4, tensor_type: mlp_out, position: "generated[*]", probe_type: running_mean,
    ...      probe_kind: trajectory}
    ... ''')
    >>> with Router({"running_mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.5})}) as router:
    ...     with router.request(spec) as request:
    ...         record = ActivationRecord(request.request_id, "guard", 4, 10, "mlp_out", [0.9, 0.8], True)
    ...         print(request.route(record).action.value)
    abort
    """

    def __init__(
        self,
        probe_registry: ProbeSource = None,
        *,
        worker_pool_size: int | None = None,
        default_queue_depth: int = DEFAULT_QUEUE_DEPTH,
        default_overflow_policy: OverflowPolicy | str = OverflowPolicy.DROP_OLDEST,
        drain_timeout: float = DEFAULT_DRAIN_TIMEOUT,
        metrics_sink: MetricsSink | None = None,
        default_intervention_policy: InterventionPolicy | None = None,
        circuit_breaker_threshold: int = DEFAULT_CIRCUIT_BREAKER_THRESHOLD,
        worker_mode: str = "process",
        engine_cpus: Collection[int] | None = None,
        memory_max_bytes: int | None = None,
    ) -> None:
        """Starts nothing.

        `probe_registry` is None for the registered probes and plugins, a `ProbeRegistry`, or a mapping, which is copied
        and then the only source. `worker_mode="thread"` runs the workers' loop in threads of this process, for
        debugging: breakpoints work, isolation does not. `engine_cpus` are the CPUs that workers keep off; None leaves
        out that of the thread that routes first. `memory_max_bytes` bounds the rings of all workers together.

        Raises:
            ProbingValueError: an argument is out of range.
        """
        self.worker_pool_size = default_worker_pool_size() if worker_pool_size is None else worker_pool_size
        if not drain_timeout >= 0:
            raise ProbingValueError(f"`drain_timeout` must be >= 0 seconds, got {drain_timeout!r}")
        if circuit_breaker_threshold < 1:
            raise ProbingValueError(f"`circuit_breaker_threshold` must be >= 1, got {circuit_breaker_threshold!r}")
        self._drain_timeout_s = drain_timeout
        self._defaults = PointDefaults.checked(
            registry=as_probe_registry(probe_registry),
            queue_depth=default_queue_depth,
            overflow_policy=default_overflow_policy,
            intervention=default_intervention_policy,
        )
        self._table = RequestTable()
        self._routes = self._table.routes
        self._listeners = EndListeners()
        self._breakers = Breakers(circuit_breaker_threshold)
        self._awaiting = Awaiting()
        settings = WorkerSettings(self.worker_pool_size, worker_mode, engine_cpus, memory_max_bytes)
        measures = Measures()
        self._supervision = Supervision(settings, measures, on_created=lambda: self._accounts.start_relay())
        self._accounts = Accounts(self._table, self._supervision, measures, metrics_sink)
        renew_in_children(self)

    # ---- the life of a request -------------------------------------------------------------------------------------

    def register_request(
        self,
        request_id: str,
        extraction_points: Iterable[ExtractionPoint],
        request_ctx: RequestContext,
        *,
        wait_s: float | None = None,
    ) -> None:
        """Registers a request: all of its points, or none.

        Never waits for a worker, unless `wait_s` asks to: then an async probe that does not start within that time, or
        whose constructor or `on_start` raises, is an error of this call. Without it such a probe ends with a result
        whose coverage says `start_error`. Inline probes are built and started on this thread, with no lock held; those
        of bounded points in guards, which are waited for up to 10 s and then done without.

        Raises:
            RouterError: the id is in use, two points share a name, a probe type is unknown, kinds do not fit, a setting
                is out of range, or the router was shut down.
            ProbeTransferError: an async probe cannot travel to a worker.
            RingMemoryError: the rings would take more than `memory_max_bytes`.
            Exception: whatever an inline probe's constructor or `on_start` raises; with `wait_s` an async one's too.
        """
        plans = plan_request(request_id, extraction_points, request_ctx, self._defaults)
        self._table.reserve(request_id)
        try:
            request = build_request(request_id, plans, request_ctx, self._supervision, self._breakers, wait_s=wait_s)
        except BaseException:
            self._table.release(request_id)
            raise
        try:
            self._accounts.publish(request)
        except RouterError:
            request.abandon()
            raise

    def route(self, record: ActivationRecord) -> ProbeSignal | None:
        """Hands a record to its probe and returns an inline probe's signal; None for an async point.

        No lock is taken before or while an inline probe runs. An async record is copied before this returns, and never
        raises because of a full ring: what is dropped is counted in the coverage of the result.

        Raises:
            RouterError: unknown or ended request, unknown point, or a layer or tensor type that is not the point's.
            Exception: whatever an inline probe raises, unless its point says `on_error: abort | continue`.
        """
        try:
            dispatch = self._routes[record.request_id, record.extraction_point_name, record.layer, record.tensor_type]
        except (KeyError, TypeError):
            raise self._table.explain_miss(record) from None
        return dispatch(record)

    def route_rows(
        self, rows: Any, layer: int, tensor_type: TensorType | str, entries: Sequence[RowLike]
    ) -> list[ProbeSignal | None]:
        """Routes many rows of one layer and step, and returns one answer per entry, in order.

        `rows` is an array or tensor of shape `(n, hidden)` on the CPU. An entry is
        `(request_id, extraction_point_name, token_pos, is_generated)` for the row at its own index, or has the row's
        index as a fifth field. Nothing keeps a view of `rows` after the call.

        Raises:
            RowsError: some entries failed; all others were routed, and the error holds their signals.
            ValueError: an entry has not four or five fields, or `rows` has not two dimensions; nothing was routed.
            IndexError: an entry for a worker names a row that is not there; nothing was routed.
        """
        return route_rows(self._table, rows, layer, tensor_type, entries)

    def step(self) -> Step:
        """A context for all `route` calls of one decode step: each worker is woken at most once, at its end."""
        return Step(self._supervision.supervisor)

    def end_request(self, request_id: str, *, timeout_s: float | None = None) -> dict[str, ProbeResult]:
        """Ends a request and returns the result of every point, by name, in the order of registration.

        Workers drain what waits, side by side, within `timeout_s` (None: `drain_timeout`) for the whole request; inline
        points get their `on_end` on this thread meanwhile. `metadata["coverage"]` of each result says what it is based
        on. Returns after the signals and results of this request have reached the attached sinks, within that time, and
        the listeners were called.

        Raises:
            RouterError: the request is unknown, has ended, or is being ended by another thread.
        """
        return self._finish(*self._take(request_id, timeout_s))

    def request(
        self,
        extraction_points: Iterable[ExtractionPoint],
        *,
        request_id: str | None = None,
        prompt_metadata: Mapping[str, Any] | None = None,
    ) -> RequestHandle:
        """A request for a `with` block, which ends it in any case; the id is made up where none is given."""
        return RequestHandle(self, request_id or uuid.uuid4().hex, list(extraction_points), prompt_metadata)

    # ---- the same for asyncio --------------------------------------------------------------------------------------

    async def aregister_request(
        self,
        request_id: str,
        extraction_points: Iterable[ExtractionPoint],
        request_ctx: RequestContext,
        *,
        wait_s: float | None = None,
    ) -> None:
        """`register_request` on a thread, so that no constructor or `on_start` holds the loop up.

        When the awaiting task is cancelled, the request is abandoned as soon as it is registered.
        """
        points = list(extraction_points)
        await self._awaiting.run(
            lambda: self.register_request(request_id, points, request_ctx, wait_s=wait_s),
            undo=lambda: self._abandon(request_id),
        )

    async def aend_request(self, request_id: str) -> dict[str, ProbeResult]:
        """`end_request` whose waiting, inline `on_end` calls and listeners happen on a thread.

        The request is taken out and its workers are told before the first suspension. When the awaiting task is
        cancelled, the request ends all the same.
        """
        taken = self._take(request_id)
        return await self._awaiting.run(lambda: self._finish(*taken))

    def arequest(
        self,
        extraction_points: Iterable[ExtractionPoint],
        *,
        request_id: str | None = None,
        prompt_metadata: Mapping[str, Any] | None = None,
    ) -> AsyncRequestHandle:
        """A request for an `async with` block, which ends it in any case."""
        return AsyncRequestHandle(self, request_id or uuid.uuid4().hex, list(extraction_points), prompt_metadata)

    # ---- workers ---------------------------------------------------------------------------------------------------

    def check(self, extraction_points: Iterable[ExtractionPoint]) -> bool:
        """Raises what registering such points would, and starts nothing; says whether they need worker processes.

        Raises:
            RouterError: a point cannot be served.
        """
        plans = plan_request("check", extraction_points, RequestContext("check", {}, None), self._defaults)
        return bool(worker_plans(plans))

    def prewarm(self, extraction_points: Iterable[ExtractionPoint] = (), *, loads_torch: bool = False) -> None:
        """Starts what the first async registration would start, and workers for the async points of a spec.

        Say `loads_torch` where records will be torch tensors: workers import it before they yield to the engine. Else
        the first record pays for it, at the lowest priority: seconds, and on a busy machine longer than a drain lasts.

        Raises:
            RouterError: a point cannot be served.
        """
        context = RequestContext("prewarm", {}, None)
        plans = plan_request("prewarm", extraction_points, context, self._defaults)
        in_workers = worker_plans(plans)
        supervisor = self._supervision.get()
        for plan in in_workers:
            supervisor.check(plan)
        supervisor.prewarm(in_workers, loads_torch=loads_torch)

    def flush(self, timeout_s: float = _FLUSH_TIMEOUT_S) -> bool:
        """Waits until workers have handled what was routed so far and every sink has it; False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        supervisor = self._supervision.supervisor
        are_workers_done = supervisor is None or supervisor.flush(deadline)
        is_outlet_empty = self._supervision.outlet.flush(deadline)
        return self._accounts.flush(deadline) and is_outlet_empty and are_workers_done

    def shutdown(self, wait: bool = True, timeout: float | None = None) -> None:
        """Ends the workers; every later call but this one raises `RouterError`. Idempotent.

        With `wait`, workers first handle what waits in the rings, within `timeout` seconds (None: `drain_timeout`) for
        all of them together. Requests that are still live get no result.
        """
        deadline = time.monotonic() + (self._drain_timeout_s if timeout is None else max(0.0, timeout))
        requests = self._table.close()
        self._supervision.close(wait=wait, deadline=deadline)
        self._accounts.close(requests, flush_until=deadline if wait else None)
        self._awaiting.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        # Ctrl-C waits for no verdict: a slow probe would hold the program up for `drain_timeout`.
        self.shutdown(wait=not isinstance(exc, KeyboardInterrupt))

    # ---- within ----------------------------------------------------------------------------------------------------

    def _take(self, request_id: str, timeout_s: float | None = None) -> tuple[LiveRequest, float]:
        """Takes a request out of the table and tells its workers; returns it with its deadline."""
        request = self._table.take(request_id)
        deadline = time.monotonic() + (self._drain_timeout_s if timeout_s is None else timeout_s)
        try:
            tell_workers(request, deadline)  # first of all: what follows happens while they work
        finally:
            self._table.withdraw(request)
        return request, deadline

    def _finish(self, request: LiveRequest, deadline: float) -> dict[str, ProbeResult]:
        try:
            results = collect_results(request, deadline)
        except BaseException:
            self._accounts.end(request, {})
            raise
        inline_names = request.inline_names()
        if inline_names:
            outlet = self._supervision.outlet
            outlet.take_results({name: results[name] for name in inline_names}, request.request_id, request.model)
            outlet.flush(deadline)
        self._accounts.end(request, results)
        self._listeners.notify(request.request_id, results)
        return results

    def _abandon(self, request_id: str) -> None:
        request = self._table.take(request_id)
        self._table.withdraw(request)
        self._accounts.abandon(request)
        request.abandon()

    def _renew_after_fork(self) -> None:
        self._table.renew_after_fork(ForkedBinding)
        self._listeners.renew_after_fork()
        self._breakers.renew_after_fork()
        self._supervision.renew_after_fork()
        self._accounts.renew_after_fork()
        self._awaiting = Awaiting()
