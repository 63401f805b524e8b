"""From a request's points to plans: every check a registration makes before anything is built or started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from undercurrent.core import Probe, ProbeFactory, ProbeRegistry, RequestContext, default_registry
from undercurrent.errors import (
    ProbeNotFoundError,
    ProbingTypeError,
    ProbingValueError,
    RouterError,
    did_you_mean,
    one_of,
)
from undercurrent.router.defaults import PROBE_TIMEOUT_S, default_guard_timeout_s
from undercurrent.spec import (
    ExecutionMode,
    ExtractionPoint,
    InterventionMode,
    InterventionPolicy,
    OnError,
    OverflowPolicy,
    ProbeKind,
    find_point_problems,
)
from undercurrent.workers import BindingPlan

__all__ = ["BoundedPlan", "InlinePlan", "Plan", "PointDefaults", "as_probe_registry", "plan_request", "worker_plans"]

ProbeSource = Mapping[str, ProbeFactory | type[Probe]] | ProbeRegistry | None
"""What a caller may pass as `probe_registry`."""


@dataclass(frozen=True, slots=True)
class InlinePlan:
    """An inline point whose probe can be built."""

    point: ExtractionPoint
    factory: ProbeFactory


@dataclass(frozen=True, slots=True)
class BoundedPlan:
    """A bounded inline point whose guard can be asked for."""

    guard: BindingPlan
    policy: InterventionPolicy

    @property
    def point(self) -> ExtractionPoint:
        """The point."""
        return self.guard.point


Plan = InlinePlan | BoundedPlan | BindingPlan


@dataclass(frozen=True, slots=True)
class PointDefaults:
    """What a router gives a point that does not say it itself."""

    registry: ProbeRegistry
    queue_depth: int
    overflow_policy: OverflowPolicy
    intervention: InterventionPolicy

    @classmethod
    def checked(
        cls,
        *,
        registry: ProbeRegistry,
        queue_depth: int,
        overflow_policy: OverflowPolicy | str,
        intervention: InterventionPolicy | None,
    ) -> PointDefaults:
        """The defaults of these arguments.

        Raises:
            ProbingValueError: one is out of range.
        """
        if not isinstance(queue_depth, int) or queue_depth < 1:
            raise ProbingValueError(f"`default_queue_depth` must be >= 1, got {queue_depth!r}")
        words = [policy.value for policy in OverflowPolicy]
        if overflow_policy not in words:
            raise ProbingValueError(
                f"`default_overflow_policy` must be {one_of(words)}, got {overflow_policy!r}"
                f"{did_you_mean(str(overflow_policy), words)}"
            )
        return cls(registry, queue_depth, OverflowPolicy(overflow_policy), intervention or InterventionPolicy())


def as_probe_registry(source: ProbeSource) -> ProbeRegistry:
    """Returns the registry to look probe types up in; a mapping is copied and knows no plugins."""
    if source is None:
        return default_registry
    if isinstance(source, ProbeRegistry):
        return source
    registry = ProbeRegistry(load_entry_points=False)
    for name, probe in source.items():
        registry.register(name, probe)
    return registry


def plan_request(
    request_id: str, points: Iterable[ExtractionPoint], context: RequestContext, defaults: PointDefaults
) -> list[Plan]:
    """Returns one plan per point, in order.

    Raises:
        RouterError: a point cannot be served; the message names it and the way out.
        ProbingTypeError: `request_id` is no string, or something in `points` is no extraction point.
    """
    if not isinstance(request_id, str):
        raise ProbingTypeError(f"`request_id` must be a non-empty string, got {type(request_id).__name__}")
    if not request_id:
        raise RouterError("`request_id` must be a non-empty string, got ''; a fresh one is `uuid.uuid4().hex`")
    plans: dict[str, Plan] = {}
    for point in points:
        if not isinstance(point, ExtractionPoint):
            raise ProbingTypeError(f"an `ExtractionPoint` was expected in a request's points, got {point!r}")
        if point.name in plans:
            raise RouterError(
                f"extraction point {point.name!r} occurs twice in request {request_id!r}; results are keyed by name, "
                "so give each point a name of its own"
            )
        plans[point.name] = _plan_point(request_id, point, context, defaults)
    return list(plans.values())


def _plan_point(request_id: str, point: ExtractionPoint, context: RequestContext, defaults: PointDefaults) -> Plan:
    factory = _resolve_factory(point, defaults.registry)
    key = (id(point), id(factory), id(defaults))
    checked = _checked.get(key)
    if checked is None:
        _check_kinds(point, factory)
        _check_intervention(point, point.intervention or defaults.intervention)
        _check_fields(point)
        is_async = point.execution_mode == ExecutionMode.ASYNC
        if len(_checked) >= _CHECKED_MAX:
            _checked.clear()
        settings = _async_settings(point, defaults) if is_async else None
        checked = _checked[key] = (point, factory, defaults, settings)
    if checked[3] is not None:
        return BindingPlan(request_id, point, factory, context, *checked[3])
    policy = point.intervention or defaults.intervention
    if point.execution_mode == ExecutionMode.INLINE and policy.mode == InterventionMode.BLOCK_UNTIL_SIGNAL:
        return _plan_bounded(request_id, point, factory, context, policy)
    return InlinePlan(point, factory)


_AsyncSettings = tuple[int, OverflowPolicy, float | None, float, int]
"""The fields of a `BindingPlan` behind `context`."""

# Servers register the same few points for every request. The objects are kept beside their ids, so that an id names no
# other object while its entry lives; all of them are frozen.
_checked: dict[tuple[int, int, int], tuple[ExtractionPoint, ProbeFactory, PointDefaults, _AsyncSettings | None]] = {}
_CHECKED_MAX = 256


def _async_settings(point: ExtractionPoint, defaults: PointDefaults) -> _AsyncSettings:
    queue_depth = defaults.queue_depth if point.queue_depth is None else point.queue_depth
    if point.batch is not None and point.batch > queue_depth:
        raise RouterError(
            f"extraction point {point.name!r}: `batch` must be from 1 to the queue's depth {queue_depth}, got "
            f"{point.batch!r}; remove it to use the most"
        )
    return (
        queue_depth,
        OverflowPolicy(point.overflow_policy or defaults.overflow_policy),
        point.block_timeout_s,
        PROBE_TIMEOUT_S if point.probe_timeout_s is None else point.probe_timeout_s,
        point.workers,
    )


def _plan_bounded(
    request_id: str,
    point: ExtractionPoint,
    factory: ProbeFactory,
    context: RequestContext,
    policy: InterventionPolicy,
) -> BoundedPlan:
    assert policy.timeout_ms is not None, "a bounded policy has a timeout"
    timeout_s = point.probe_timeout_s
    guard = BindingPlan(
        request_id=request_id,
        point=point,
        factory=factory,
        context=context,
        # One record waits at most: what its caller has given up on must not delay the next one.
        queue_depth=1,
        overflow_policy=OverflowPolicy.DROP_OLDEST,
        probe_timeout_s=default_guard_timeout_s(policy.timeout_ms / 1000) if timeout_s is None else timeout_s,
        is_bounded=True,
    )
    return BoundedPlan(guard, policy)


def worker_plans(plans: Iterable[Plan]) -> list[BindingPlan]:
    """The plans of bindings whose probes run in workers and guards."""
    guards = (plan.guard if isinstance(plan, BoundedPlan) else plan for plan in plans)
    return [plan for plan in guards if isinstance(plan, BindingPlan)]


def _resolve_factory(point: ExtractionPoint, registry: ProbeRegistry) -> ProbeFactory:
    try:
        return registry.of_kind(registry.get(point.probe_type), point.probe_kind)
    except ProbeNotFoundError as error:
        raise RouterError(f"extraction point {point.name!r}: {error}") from error


def _check_kinds(point: ExtractionPoint, factory: ProbeFactory) -> None:
    probe_kind = ProbeKind(factory.probe_cls.probe_kind)
    if probe_kind != point.probe_kind:
        raise RouterError(
            f"extraction point {point.name!r}: `probe_kind` is {ProbeKind(point.probe_kind).value!r}, but probe_type "
            f"{point.probe_type!r} is `{factory.probe_cls.__qualname__}`, a {probe_kind.value!r} probe; write "
            f"`probe_kind: {probe_kind.value}` or name another probe"
        )
    if point.execution_mode == ExecutionMode.ASYNC and probe_kind == ProbeKind.SINGLE_SHOT:
        raise RouterError(
            f"extraction point {point.name!r}: an async point needs a 'trajectory' probe, got 'single_shot'; make "
            "the point inline or use a trajectory probe"
        )


def _check_fields(point: ExtractionPoint) -> None:
    """Applies the rules of a spec, as a point that was built by hand has not passed them."""
    try:
        problems = _find_known_problems(point)
    except TypeError:  # a field of the wrong type, such as a list, has no hash
        problems = find_point_problems(point)
    if problems:
        raise RouterError(f"extraction point {point.name!r}: {'; '.join(problems)}")


# The rules take a hundred times as long as the rest of a registration, and requests share their points. Few entries,
# as each keeps its point's probe_args alive.
_find_known_problems = lru_cache(maxsize=256)(find_point_problems)


def _check_intervention(point: ExtractionPoint, policy: InterventionPolicy) -> None:
    if policy.mode == InterventionMode.REJECT:
        return
    if point.execution_mode == ExecutionMode.ASYNC:
        raise RouterError(
            f"extraction point {point.name!r}: an async point cannot block until a signal; use `mode: reject` or make "
            "the point inline"
        )
    if point.on_error != OnError.RAISE:
        raise RouterError(
            f"extraction point {point.name!r}: `on_error` goes with an unbounded inline point, got "
            f"{str(point.on_error)!r}; under the router's default 'block_until_signal', `on_timeout` answers for errors"
        )
