"""The live requests of a router, and the one dictionary that `route()` reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undercurrent.errors import RouterError, did_you_mean
from undercurrent.router.bounded import BoundedBinding, ForkedGuard
from undercurrent.router.forked import ForkedBinding
from undercurrent.router.inline import Dispatch, InlineBinding
from undercurrent.router.sampling import SkippedBinding, reads_every_record, thinned
from undercurrent.spec import ActivationRecord, ExtractionPoint, TensorType

__all__ = ["LiveRequest", "RequestTable", "RouteKey"]

RouteKey = tuple[str, str, int, str]
"""(request_id, point name, layer, tensor type): all that `route()` checks, so that one look-up checks it."""

SHUT_DOWN = "the router has been shut down; create a new `Router`"
_NOT_REGISTERED = (
    "is not registered or has already ended; call `register_request()` first, or use `with router.request(...)`"
)


LocalBinding = InlineBinding | SkippedBinding
_LOCAL_TYPES = (InlineBinding, SkippedBinding)
_INLINE_TYPES = (*_LOCAL_TYPES, BoundedBinding, ForkedGuard)

if TYPE_CHECKING:
    from undercurrent.workers import AsyncBinding
    from undercurrent.workers.binding import RowTarget

    WorkerBinding = AsyncBinding | BoundedBinding | ForkedBinding
    Binding = LocalBinding | WorkerBinding


@dataclass(slots=True)
class LiveRequest:
    """A registered request; owned by the table until it is taken out to be ended."""

    request_id: str
    points: dict[str, ExtractionPoint]
    bindings: dict[str, Binding]
    """By point name, in the order of registration."""
    model: str | None = None
    """The model that the request's context names."""
    routes: dict[RouteKey, Dispatch] = field(init=False)
    row_targets: dict[RouteKey, RowTarget] = field(init=False)
    """The routes whose records go to a worker without further ado, so that many can go in one call."""
    bounded_routes: dict[RouteKey, BoundedBinding] = field(init=False)
    """The routes that wait for a guard, so that several can wait together."""

    def __post_init__(self) -> None:
        self._build_routes()

    def inline_names(self) -> list[str]:
        """The names of the inline points, bounded ones included."""
        return [name for name, binding in self.bindings.items() if isinstance(binding, _INLINE_TYPES)]

    def async_bindings(self) -> dict[str, AsyncBinding | ForkedBinding]:
        """The bindings of async points, by point name."""
        return {name: b for name, b in self.bindings.items() if not isinstance(b, _INLINE_TYPES)}

    def worker_bindings(self) -> dict[str, WorkerBinding]:
        """The bindings whose probes run in workers, by point name."""
        return {name: binding for name, binding in self.bindings.items() if not isinstance(binding, _LOCAL_TYPES)}

    def abandon(self) -> None:
        """Tells workers to drop what they have; nobody will ask for results."""
        for binding in self.worker_bindings().values():
            binding.abandon()

    def replace_worker_bindings(self, replacement: Callable[[str, ExtractionPoint], ForkedBinding]) -> None:
        """Puts another binding in place of each async one, and of each bounded inline one."""
        for name, binding in self.worker_bindings().items():
            if isinstance(binding, BoundedBinding):
                self.bindings[name] = binding.in_child()
            else:
                self.bindings[name] = replacement(self.request_id, self.points[name])
        self._build_routes()

    def _build_routes(self) -> None:
        self.routes = {}
        self.row_targets = {}
        self.bounded_routes = {}
        for name, binding in self.bindings.items():
            point = self.points[name]
            bounded = binding if isinstance(binding, BoundedBinding) and reads_every_record(point) else None
            dispatch: Dispatch
            target = None
            if isinstance(binding, _LOCAL_TYPES):
                dispatch = binding.dispatch
            else:
                dispatch, target = binding.accept, binding.row_target
            if not reads_every_record(point):
                dispatch, target = thinned(dispatch, point), None
            word = tensor_type_word(point.tensor_type)
            for layer in point.layers:
                key = (self.request_id, name, layer, word)
                self.routes[key] = dispatch
                if target is not None:
                    self.row_targets[key] = target
                if bounded is not None:
                    self.bounded_routes[key] = bounded


class RequestTable:
    """Knows which requests live. `routes` is read without the lock: no change leaves it in between."""

    def __init__(self) -> None:
        self.routes: dict[RouteKey, Dispatch] = {}
        self.row_targets: dict[RouteKey, RowTarget] = {}
        self.bounded_routes: dict[RouteKey, BoundedBinding] = {}
        self.is_closed = False
        self._lock = threading.Lock()
        self._requests: dict[str, LiveRequest | None] = {}  # guarded by _lock; None: being registered or ended

    def reserve(self, request_id: str) -> None:
        """Takes `request_id` for a registration in progress.

        Raises:
            RouterError: the id is in use, or the table is closed.
        """
        with self._lock:
            if self.is_closed:
                raise RouterError(SHUT_DOWN)
            if request_id in self._requests:
                raise RouterError(
                    f"request_id {request_id!r} is already registered; end the earlier one with `end_request()`, or "
                    "use a fresh id, such as `uuid.uuid4().hex`"
                )
            self._requests[request_id] = None

    def release(self, request_id: str) -> None:
        """Gives a reserved id back."""
        with self._lock:
            if self._requests.get(request_id, ...) is None:
                del self._requests[request_id]

    def publish(self, request: LiveRequest, first_routes: Mapping[RouteKey, Dispatch]) -> None:
        """Makes a reserved request routable; `first_routes` stand in place of some of its own for a while.

        Raises:
            RouterError: the table was closed since `reserve`.
        """
        with self._lock:
            if self.is_closed:
                raise RouterError(SHUT_DOWN)
            self._requests[request.request_id] = request
            self.row_targets.update(request.row_targets)
            self.bounded_routes.update(request.bounded_routes)
            self.routes.update(request.routes)
            self.routes.update(first_routes)

    def replace_route(self, key: RouteKey, expected: Dispatch, replacement: Dispatch) -> None:
        """Puts another dispatch in place of `expected`, unless the route is gone or leads elsewhere by now."""
        with self._lock:
            if self.routes.get(key) is expected:
                self.routes[key] = replacement

    def take(self, request_id: str) -> LiveRequest:
        """Takes a request out, so that it can be ended once; its id is in use until it is withdrawn.

        Raises:
            RouterError: unknown, already taken, still being registered, or the table is closed.
        """
        with self._lock:
            request = self._find_live(request_id)
            self._requests[request_id] = None
            return request

    def withdraw(self, request: LiveRequest) -> None:
        """Refuses records of a request that was taken."""
        with self._lock:
            self._requests.pop(request.request_id, None)
            for key in request.routes:
                self.routes.pop(key, None)
                self.row_targets.pop(key, None)
                self.bounded_routes.pop(key, None)

    def find_binding(self, request_id: str, point_name: str) -> Binding:
        """Returns a live binding.

        Raises:
            RouterError: unknown request or point, or the table is closed.
        """
        with self._lock:
            request = self._find_live(request_id)
            binding = request.bindings.get(point_name)
            if binding is None:
                raise RouterError(_no_such_point(point_name, request))
            return binding

    def live_requests(self) -> list[LiveRequest]:
        """The requests that can be routed to now."""
        with self._lock:
            return [request for request in self._requests.values() if request is not None]

    def close(self) -> list[LiveRequest]:
        """Refuses everything from now on and returns what was live; idempotent."""
        with self._lock:
            requests = [request for request in self._requests.values() if request is not None]
            self.is_closed = True
            self._requests.clear()
            self.routes.clear()
            self.row_targets.clear()
            self.bounded_routes.clear()
            return requests

    def find_route(self, record: ActivationRecord) -> Dispatch:
        """Returns the dispatch of a record.

        Raises:
            RouterError: unknown or ended request, unknown point, or a layer or tensor type that is not the point's.
        """
        try:
            return self.routes[record.request_id, record.extraction_point_name, record.layer, record.tensor_type]
        except (KeyError, TypeError):
            raise self.explain_miss(record) from None

    def explain_miss(self, record: ActivationRecord) -> RouterError:
        """The error for a record that `routes` does not know."""
        with self._lock:
            if self.is_closed:
                return RouterError(SHUT_DOWN)
            request = self._requests.get(record.request_id)
            if request is None:
                return RouterError(
                    f"request_id {record.request_id!r} {_NOT_REGISTERED}{self._suggest(record.request_id)}"
                )
        point = request.points.get(record.extraction_point_name)
        if point is None:
            return RouterError(_no_such_point(record.extraction_point_name, request))
        expected = tensor_type_word(point.tensor_type)
        if record.layer not in point.layers:
            return RouterError(
                f"a record of extraction point {point.name!r} must be of one of its layers {list(point.layers)}, got "
                f"layer {record.layer!r}"
            )
        return RouterError(
            f"a record of extraction point {point.name!r} must have tensor_type {expected!r}, got "
            f"{record.tensor_type!r}{did_you_mean(str(record.tensor_type), [expected])}"
        )

    def renew_after_fork(self, replacement: Callable[[str, ExtractionPoint], ForkedBinding]) -> None:
        """Puts stand-ins in place of async bindings; called in a forked child, where no other thread runs."""
        # One of the parent's other threads may have held the lock, or been registering a request: neither goes on here.
        self._lock = threading.Lock()
        self._requests = {key: request for key, request in self._requests.items() if request is not None}
        for request in self.live_requests():
            if request.worker_bindings():
                request.replace_worker_bindings(replacement)
                self.routes.update(request.routes)
        self.row_targets.clear()
        self.bounded_routes.clear()

    def _find_live(self, request_id: str) -> LiveRequest:
        """Returns a request that can be routed to; called with the lock held."""
        if self.is_closed:
            raise RouterError(SHUT_DOWN)
        request = self._requests.get(request_id)
        if request is None:
            raise RouterError(f"request_id {request_id!r} {_NOT_REGISTERED}{self._suggest(request_id)}")
        return request

    def _suggest(self, request_id: str) -> str:
        live = [key for key, request in self._requests.items() if request is not None]
        # Ids are often random: comparing with thousands of them would cost more than it tells.
        return did_you_mean(request_id, live[:64]) if isinstance(request_id, str) else ""


def tensor_type_word(tensor_type: TensorType | str) -> str:
    """The word of a tensor type as a plain string."""
    return tensor_type.value if isinstance(tensor_type, TensorType) else str(tensor_type)


def _no_such_point(name: str, request: LiveRequest) -> str:
    known = list(request.points)
    listing = ", ".join(map(repr, known)) or "none"
    return (
        f"request {request.request_id!r} has no extraction point {name!r}{did_you_mean(name, known)}; "
        f"its points: {listing}"
    )
