"""One request as a context manager: registered on entry, ended on exit, whatever happens in between."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from undercurrent.core import ProbeResult, ProbeSignal, RequestContext
from undercurrent.errors import RouterError
from undercurrent.spec import ActivationRecord, ExtractionPoint

if TYPE_CHECKING:
    from undercurrent.router.router import Router

__all__ = ["AsyncRequestHandle", "RequestHandle"]

_logger = logging.getLogger("undercurrent.router")


class _Handle:
    """What both kinds of handle share: identity, routing and results. Can be entered once."""

    def __init__(
        self,
        router: Router,
        request_id: str,
        extraction_points: Sequence[ExtractionPoint],
        prompt_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._router = router
        self._request_id = request_id
        self._points = list(extraction_points)
        self._context = RequestContext(request_id, dict(prompt_metadata or {}), None)
        self._is_entered = False
        self._is_active = False
        self._has_ended = False
        self._results: dict[str, ProbeResult] | None = None

    @property
    def request_id(self) -> str:
        """The id that records of this request carry."""
        return self._request_id

    @property
    def request_ctx(self) -> RequestContext:
        """What its probes were told."""
        return self._context

    @property
    def ended(self) -> bool:
        """Whether the `with` block has been left."""
        return self._has_ended

    @property
    def results(self) -> dict[str, ProbeResult]:
        """The results by point name.

        Raises:
            RouterError: the request has not ended, or ending it failed.
        """
        if self._results is not None:
            return self._results
        if self._has_ended:
            raise RouterError(f"ending request {self._request_id!r} failed, so it has no results; the error was logged")
        raise RouterError(f"request {self._request_id!r} has no results yet; read them after its `with` block")

    def route(self, record: ActivationRecord) -> ProbeSignal | None:
        """Routes a record of this request; see `Router.route`.

        Raises:
            RouterError: outside the `with` block, for another request's record, or as `Router.route` does.
        """
        if not self._is_active:
            raise RouterError(f"request {self._request_id!r} is not active; call `route()` inside its `with` block")
        if record.request_id != self._request_id:
            raise RouterError(
                f"a record of request {self._request_id!r} was expected, got one of {record.request_id!r}; route each "
                "record through the handle of its own request"
            )
        return self._router.route(record)

    def _enter(self) -> None:
        if self._is_entered:
            raise RouterError(f"the handle of request {self._request_id!r} can be entered once; make a new one")
        self._is_entered = True

    def _leave(self, body_error: BaseException | None, error: BaseException) -> None:
        """Decides about an error of the end: the body's error is the one to raise, so this one is logged."""
        if body_error is None:
            raise error
        _logger.error("ending request %r failed after its body had failed", self._request_id, exc_info=error)


class RequestHandle(_Handle):
    """A request for a `with` block; made by `Router.request`."""

    def __enter__(self) -> Self:
        self._enter()
        self._router.register_request(self._request_id, self._points, self._context)
        self._is_active = True
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._is_active = False
        self._has_ended = True
        # Ctrl-C waits for no verdict, and each result says so.
        timeout_s = 0.0 if isinstance(exc, KeyboardInterrupt) else None
        try:
            self._results = self._router.end_request(self._request_id, timeout_s=timeout_s)
        except Exception as error:
            self._leave(exc, error)


class AsyncRequestHandle(_Handle):
    """A request for an `async with` block; made by `Router.arequest`. `route` is a plain call here too."""

    async def __aenter__(self) -> Self:
        self._enter()
        await self._router.aregister_request(self._request_id, self._points, self._context)
        self._is_active = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._is_active = False
        self._has_ended = True
        try:
            self._results = await self._router.aend_request(self._request_id)
        except Exception as error:
            self._leave(exc, error)
