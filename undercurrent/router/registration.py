"""How planned points become a live request: all of them, or none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from undercurrent.core import RequestContext
from undercurrent.router.bounded import BoundedBinding
from undercurrent.router.breakers import Breakers
from undercurrent.router.inline import InlineBinding, model_of
from undercurrent.router.inline_outlet import InlineOutlet
from undercurrent.router.planning import BoundedPlan, InlinePlan, Plan, worker_plans
from undercurrent.router.requests import LiveRequest
from undercurrent.router.sampling import SkippedBinding, skips_request
from undercurrent.router.supervision import Supervision
from undercurrent.spec import InterventionPolicy
from undercurrent.workers import BindingPlan

if TYPE_CHECKING:
    from undercurrent.router.requests import Binding
    from undercurrent.workers import Supervisor
    from undercurrent.workers.guard_binding import GuardBinding

__all__ = ["build_request"]


def build_request(
    request_id: str,
    plans: Sequence[Plan],
    context: RequestContext,
    supervision: Supervision,
    breakers: Breakers,
    *,
    wait_s: float | None,
) -> LiveRequest:
    """Builds and starts every binding of a request; holds no lock, as constructors and `on_start` are the user's code.

    Inline probes are built and started first, on this thread: what fails there has not touched a worker. Whatever
    raises leaves nothing behind; probes that had started get no `on_end`, as their request never existed. Bounded
    points wait for their guards last.
    """
    kept = [plan for plan in plans if not skips_request(plan.point, request_id)]
    in_workers = worker_plans(kept)
    if in_workers:
        supervisor = supervision.get()
        if len(in_workers) < len(kept):
            for plan in in_workers:
                supervisor.check(plan)
    bindings: dict[str, Binding] = {}
    inline = [
        _spawn_inline(request_id, plan, context, supervision.outlet) for plan in kept if isinstance(plan, InlinePlan)
    ]
    for binding in inline:
        binding.start()
        bindings[binding.point.name] = binding
    if in_workers:
        bounded = {plan.point.name: plan.policy for plan in kept if isinstance(plan, BoundedPlan)}
        bindings.update(_open(supervisor, in_workers, bounded, breakers, supervision.outlet, wait_s=wait_s))
    points = {plan.point.name: plan.point for plan in plans}
    in_order = {name: bindings.get(name) or SkippedBinding(request_id, name) for name in points}
    return LiveRequest(request_id, points, in_order, model_of(context))


def _spawn_inline(request_id: str, plan: InlinePlan, context: RequestContext, outlet: InlineOutlet) -> InlineBinding:
    probe = plan.factory.spawn(request_id, plan.point.name, **plan.point.probe_args)
    return InlineBinding(request_id=request_id, point=plan.point, probe=probe, context=context, outlet=outlet)


def _open(
    supervisor: Supervisor,
    plans: Sequence[BindingPlan],
    bounded: Mapping[str, InterventionPolicy],
    breakers: Breakers,
    outlet: InlineOutlet,
    *,
    wait_s: float | None,
) -> dict[str, Binding]:
    """Opens a binding per plan; waits for the probes of bounded points to start, and with `wait_s` for all."""
    opened = supervisor.open_bindings(plans)
    bindings: dict[str, Binding] = {}
    try:
        deadline = time.monotonic() + (wait_s or 0.0)
        for plan, binding in zip(plans, opened, strict=True):
            name = plan.point.name
            if name not in bounded:
                bindings[name] = binding
                if wait_s is not None:
                    binding.wait_started(deadline)
                continue
            gate = BoundedBinding(
                guard=cast("GuardBinding", binding),
                policy=bounded[name],
                breaker=breakers.of(name),
                context=plan.context,
                outlet=outlet,
            )
            bindings[name] = gate
            gate.start(None if wait_s is None else max(0.0, deadline - time.monotonic()))
    except BaseException:
        for binding in opened:
            binding.abandon()
        raise
    return bindings
