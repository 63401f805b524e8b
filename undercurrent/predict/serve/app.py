"""The ASGI application: endpoints, deadlines, and what becomes of errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from undercurrent.predict.context import PredictContext, new_id
from undercurrent.predict.errors import (
    BatchFailure,
    CheckpointNotFoundError,
    PredictTypeError,
    PredictValueError,
)
from undercurrent.predict.life import correlated
from undercurrent.predict.serve.bodies import read_batch, read_predict
from undercurrent.predict.serve.counters import METRICS_TYPE, ServeCounters
from undercurrent.predict.serve.limits import ServeLimits
from undercurrent.predict.serve.openapi import document
from undercurrent.predict.serve.problems import Problem
from undercurrent.predict.serve.turns import Turns

__all__ = ["DecisionApp"]

_LOG = logging.getLogger(__name__)
_CLIENT_LEFT = 499
_WORK = "/v1/"

Endpoint = Callable[[Request], Awaitable[Response]]


class DecisionRouter(Protocol):
    """What the app needs of a Router."""

    def resolve(self, name: object) -> str:
        """Returns the name a checkpoint is known by."""

    def predict(self, state: Any, questions: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        """Answers one request."""

    def predict_batch(self, requests: Sequence[Mapping[str, Any]], **arguments: Any) -> list[dict[str, Any]]:
        """Answers many."""


class DecisionApp:
    """Serves the decisions of a Router, which stays the caller's.

    `POST /v1/predict`, `POST /v1/predict_batch`, `GET /healthz`, `/readyz`, `/metrics` and `/openapi.json`. `metrics`
    are functions whose texts `/metrics` shows too, such as `MetricsHook().prometheus_text`. An app belongs to one
    asyncio event loop; its ASGI lifespan ends with `stop()`.
    """

    def __init__(
        self,
        router: DecisionRouter,
        *,
        limits: ServeLimits | None = None,
        metrics: Iterable[Callable[[], str]] = (),
    ) -> None:
        self.limits = limits or ServeLimits()
        self._router = router
        self._metrics = tuple(metrics)
        self._turns = Turns(self.limits)
        self._counters = ServeCounters()
        self._under_way: set[asyncio.Future[None]] = set()
        self._is_stopping = False
        self._document = msgspec.json.encode(document(self.limits, metadata.version("undercurrent")))
        self._endpoints: dict[str, Endpoint] = {
            "/v1/predict": self._predict,
            "/v1/predict_batch": self._predict_batch,
            "/healthz": self._live,
            "/readyz": self._ready,
            "/metrics": self._show_metrics,
            "/openapi.json": self._show_document,
        }
        self._app: ASGIApp = Starlette(
            routes=[
                Route(path, endpoint, methods=["POST" if path.startswith(_WORK) else "GET"])
                for path, endpoint in self._endpoints.items()
            ],
            exception_handlers={
                Problem: _refused,
                HTTPException: _refused_by_starlette,
                ClientDisconnect: _nobody_there,
                Exception: _failed,
            },
            lifespan=self._lifespan,
        )

    # ---- life ------------------------------------------------------------------------------------------------------

    def begin_stop(self) -> None:
        """Refuses new requests from now on, and is not ready any more; those it has go on."""
        self._is_stopping = True

    async def stop(self, timeout_s: float | None = None) -> bool:
        """Begins to stop, and waits until every request has its answer; for whom it takes longer than `timeout_s`
        (None: that of the limits) gets 503. Returns whether all were answered."""
        self.begin_stop()
        left = set(self._under_way)
        if left:
            _, left = await asyncio.wait(left, timeout=self.limits.stop_timeout_s if timeout_s is None else timeout_s)
        if left:
            self._turns.fail_pending(Problem(503, "stopping", "the server stopped before there was an answer"))
            await asyncio.wait(left, timeout=self.limits.body_timeout_s)
        self._turns.close()
        return not left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; called by an ASGI server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at, status = time.perf_counter(), _CLIENT_LEFT

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        done = asyncio.get_running_loop().create_future()
        if scope["path"].startswith(_WORK):
            self._under_way.add(done)
        scope.setdefault("state", {})["correlation_id"] = new_id()
        try:
            await self._app(scope, receive, counted)
        finally:
            self._under_way.discard(done)
            done.set_result(None)
            endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
            self._counters.count(endpoint, status, time.perf_counter() - started_at)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        self._is_stopping = False
        yield
        await self.stop()

    # ---- decisions -------------------------------------------------------------------------------------------------

    async def _predict(self, request: Request) -> Response:
        body = read_predict(await self._body(request), self.limits)
        arguments = msgspec.structs.asdict(body)
        self._check_model(arguments["model"])
        state, questions = arguments.pop("state"), arguments.pop("questions")
        result = await self._answer(
            request, lambda stage: self._router.predict(state, questions, hooks=stage, **arguments)
        )
        return _json(request, _public(result))

    async def _predict_batch(self, request: Request) -> Response:
        body = read_batch(await self._body(request), self.limits)
        requests = [msgspec.structs.asdict(item) for item in body.requests]
        for one in requests:
            self._check_model(one["model"])
        results = await self._answer(
            request,
            lambda stage: self._router.predict_batch(requests, min_confidence=body.min_confidence, hooks=stage),
        )
        return _json(request, {"results": [_public(result) for result in results]})

    async def _body(self, request: Request) -> bytes:
        """The body of a request, within its limits of size and time."""
        if self._is_stopping:
            raise Problem(503, "stopping", "the server is stopping; try again", headers={"Retry-After": "1"})
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Problem(415, "unsupported_media_type", f"the body must be application/json, got {kind!r}")
        most = self.limits.body_bytes_max
        too_large = Problem(413, "body_too_large", f"a body may have {most} bytes", headers={"Connection": "close"})
        said = request.headers.get("content-length", "0")
        if said.isascii() and said.isdecimal() and int(said) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_timeout_s):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise Problem(
                408, "body_timeout", f"the body did not come within {self.limits.body_timeout_s:g} s"
            ) from None
        return b"".join(parts)

    async def _answer(self, request: Request, work: Callable[[_Stage], Any]) -> Any:
        """Runs `work` when its turn comes; it is given a hook that tells a caller's mistake from ours."""
        stage = _Stage()

        def run() -> Any:
            with correlated(request.state.correlation_id):
                return work(stage)

        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return await self._while_connected(request, self._turns.run(run))
        except TimeoutError:
            raise Problem(
                504, "timeout", f"no answer within {self.limits.timeout_s:g} s; send less, or try again later"
            ) from None
        except (Problem, ClientDisconnect):
            raise
        except Exception as error:
            raise _problem_of(error, request.state.correlation_id, has_checkpoint=stage.has_checkpoint) from error

    async def _while_connected(self, request: Request, answer: Any) -> Any:
        """Awaits `answer`, and gives up when the client leaves, so that nothing runs for nobody."""
        work = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            return work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    def _check_model(self, name: str | None) -> None:
        if name is None:
            return
        try:
            self._router.resolve(name)
        except CheckpointNotFoundError as error:
            raise Problem(422, "unknown_model", str(error).partition(". Add one")[0]) from None

    # ---- what is not a decision ------------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        return _json(request, {"status": "live"})

    async def _ready(self, request: Request) -> Response:
        if self._is_stopping:
            return _json(request, {"status": "stopping"}, status=503)
        if not self._turns.has_room:
            return _json(request, {"status": "busy"}, status=503)
        return _json(request, {"status": "ready"})

    async def _show_metrics(self, request: Request) -> Response:
        gauges = {
            "busy": ("Calls that run on a thread.", float(self._turns.busy_count)),
            "waiting": ("Requests that wait for a thread.", float(self._turns.waiting_count)),
            "stopping": ("1 once the server stops.", float(self._is_stopping)),
        }
        texts = [self._counters.text(gauges), *(text() for text in self._metrics)]
        return Response("".join(texts), headers={"Content-Type": METRICS_TYPE})

    async def _show_document(self, _request: Request) -> Response:
        return Response(self._document, media_type="application/json")


async def _gone(request: Request) -> None:
    """Returns when the client has left; the body was read to its end before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Stage:
    """A hook that says where a call failed: a checkpoint that cannot be had is nothing the caller could change."""

    def __init__(self) -> None:
        self.has_checkpoint = True

    def on_error(self, ctx: PredictContext) -> None:
        """Told without an agent where routing or loading failed."""
        self.has_checkpoint = ctx.agent is not None


def _problem_of(error: Exception, correlation_id: str, *, has_checkpoint: bool) -> Problem:
    """What a client is told of an exception. Only what the caller got wrong is told in words."""
    more: dict[str, Any] = {"correlation_id": correlation_id}
    failure = getattr(error, "batch", None)
    if isinstance(failure, BatchFailure):
        more |= {"failed": list(failure.failed), "not_started": list(failure.not_started)}
    if has_checkpoint and isinstance(error, PredictValueError | PredictTypeError):
        return Problem(422, "invalid_request", str(error), more=more)
    # The text of an exception may hold states, or paths of this machine.
    _LOG.error("decision %s failed: %s", correlation_id, type(error).__name__)
    _LOG.debug("decision %s", correlation_id, exc_info=error)
    if not has_checkpoint:
        detail = "the checkpoint could not be chosen or loaded; the log of the server says why"
        return Problem(503, "checkpoint_unavailable", detail, more=more)
    return Problem(500, "failed", "the decision failed; the log of the server says why", more=more)


def _public(result: Any) -> Any:
    """A result without the places of checkpoints on this machine."""
    if not isinstance(result, dict):
        return result
    shown = dict(result)
    if isinstance(shown.get("model"), str):
        shown["model"] = os.path.basename(shown["model"].rstrip(os.sep))
    if isinstance(shown.get("routing"), Mapping):
        shown["routing"] = {key: value for key, value in shown["routing"].items() if key != "repo"}
    return shown


def _json(request: Request, content: Any, *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(content, enc_hook=_plain),
        status_code=status,
        media_type="application/json",
        headers={"X-Correlation-Id": request.state.correlation_id},
    )


def _plain(value: Any) -> Any:
    """What JSON has for a value of another kind: numbers of numpy and torch as numbers, others as their text. Booleans
    come here where they are keys, as the labels of a choice may be."""
    if isinstance(value, bool):
        return "true" if value else "false"
    for method in ("tolist", "item"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    return str(value)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _refused_by_starlette(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "unknown_path", 405: "wrong_method"}.get(error.status_code, "refused")
    return Problem(error.status_code, code, error.detail, headers=error.headers).response()


async def _nobody_there(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_CLIENT_LEFT)


async def _failed(request: Request, error: Exception) -> Response:
    correlation_id = request.state.correlation_id
    return _problem_of(error, correlation_id, has_checkpoint=True).response()
