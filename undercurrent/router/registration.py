"""How planned points become a live request: all of them, or none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from undercurrent.core import RequestContext
from undercurrent.router.inline import InlineBinding, model_of
from undercurrent.router.inline_outlet import InlineOutlet
from undercurrent.router.planning import InlinePlan, Plan
from undercurrent.router.requests import LiveRequest
from undercurrent.router.sampling import SkippedBinding, skips_request
from undercurrent.router.supervision import Supervision
from undercurrent.workers import BindingPlan

if TYPE_CHECKING:
    from undercurrent.router.requests import Binding
    from undercurrent.workers import AsyncBinding, Supervisor

__all__ = ["build_request"]


def build_request(
    request_id: str,
    plans: Sequence[Plan],
    context: RequestContext,
    supervision: Supervision,
    *,
    wait_s: float | None,
) -> LiveRequest:
    """Builds and starts every binding of a request; holds no lock, as constructors and `on_start` are the user's code.

    Inline probes are built and started first, on this thread: what fails there has not touched a worker. Whatever
    raises leaves nothing behind; probes that had started get no `on_end`, as their request never existed.
    """
    kept = [plan for plan in plans if not skips_request(plan.point, request_id)]
    async_plans = [plan for plan in kept if isinstance(plan, BindingPlan)]
    if async_plans:
        supervisor = supervision.get()
        for plan in async_plans:
            supervisor.check(plan)
    bindings: dict[str, Binding] = {}
    inline = [
        _spawn_inline(request_id, plan, context, supervision.outlet) for plan in kept if isinstance(plan, InlinePlan)
    ]
    for binding in inline:
        binding.start()
        bindings[binding.point.name] = binding
    if async_plans:
        bindings.update(_open_async(supervisor, async_plans, wait_s))
    points = {plan.point.name: plan.point for plan in plans}
    in_order = {name: bindings.get(name) or SkippedBinding(request_id, name) for name in points}
    return LiveRequest(request_id, points, in_order, model_of(context))


def _spawn_inline(request_id: str, plan: InlinePlan, context: RequestContext, outlet: InlineOutlet) -> InlineBinding:
    probe = plan.factory.spawn(request_id, plan.point.name, **plan.point.probe_args)
    return InlineBinding(request_id=request_id, point=plan.point, probe=probe, context=context, outlet=outlet)


def _open_async(supervisor: Supervisor, plans: Sequence[BindingPlan], wait_s: float | None) -> dict[str, AsyncBinding]:
    """Opens a binding per plan; with `wait_s`, waits up to that long for all their probes to start."""
    bindings = supervisor.open_bindings(plans)
    try:
        if wait_s is not None:
            deadline = time.monotonic() + wait_s
            for binding in bindings:
                binding.wait_started(deadline)
    except BaseException:
        for binding in bindings:
            binding.abandon()
        raise
    return {plan.point.name: binding for plan, binding in zip(plans, bindings, strict=True)}
