"""The ASGI app under load: turns, deadlines, clients that leave, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgi_client import Call, ask
from predict_checkpoints import TOPIC, StubAgent, make_router

from undercurrent.predict import Router
from undercurrent.predict.serve import DecisionApp, ServeLimits

ASKED = {"state": "where is my parcel", "questions": TOPIC}


class Waiting(StubAgent):
    """An agent that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__("waiting")
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def system_one(self, state: Any, questions: Any) -> dict[str, Any]:
        self.entered.release()
        assert self.go_on.wait(50)
        return super().system_one(state, questions)


@contextmanager
def waiting_app(**limits: Any) -> Iterator[tuple[DecisionApp, Waiting]]:
    """An app whose every call waits."""
    agent = Waiting()
    router = Router()
    router.attach("waiting", agent)
    try:
        yield DecisionApp(router, limits=ServeLimits(**limits)), agent
    finally:
        agent.go_on.set()


def waiting_call(app: DecisionApp) -> Call:
    return Call(app, "POST", "/v1/predict", content={**ASKED, "model": "waiting"})


def until(condition: Callable[[], bool]) -> Any:
    """Lets the loop run until something is so."""

    async def wait() -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)

    return wait()


async def entered(agent: Waiting) -> None:
    assert await asyncio.to_thread(agent.entered.acquire, True, 30)


def test_full_queue_refuses_with_retry_after_and_is_not_ready() -> None:
    async def run(app: DecisionApp, agent: Waiting) -> None:
        tasks = [waiting_call(app).start()]
        await entered(agent)
        tasks.append(waiting_call(app).start())
        await until(lambda: app._turns.waiting_count == 1)
        refused = await waiting_call(app).run()
        assert (refused.status, refused.json["code"]) == (503, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await Call(app, "GET", "/readyz").run()).json == {"status": "busy"}
        assert (await Call(app, "GET", "/healthz").run()).status == 200
        agent.go_on.set()
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200, 200]
        assert (await Call(app, "GET", "/readyz").run()).json == {"status": "ready"}

    with waiting_app(concurrency=1, queue_depth=1) as (app, agent):
        asyncio.run(run(app, agent))


def test_request_over_its_time_gets_504_and_keeps_its_thread_until_it_returns() -> None:
    async def run(app: DecisionApp, agent: Waiting) -> None:
        late = await waiting_call(app).run()
        assert (late.status, late.json["code"]) == (504, "timeout")
        assert app._turns.busy_count == 1
        refused = await waiting_call(app).run()
        assert (refused.status, refused.json["code"]) == (503, "busy")
        agent.go_on.set()
        await until(lambda: app._turns.busy_count == 0)
        assert (await waiting_call(app).run()).status == 200

    with waiting_app(concurrency=1, queue_depth=0, timeout_s=0.05) as (app, agent):
        asyncio.run(run(app, agent))


def test_client_that_leaves_the_queue_is_never_computed_for() -> None:
    async def run(app: DecisionApp, agent: Waiting) -> None:
        first = waiting_call(app).start()
        await entered(agent)
        call = waiting_call(app)
        second = call.start()
        await until(lambda: app._turns.waiting_count == 1)
        call.leave()
        assert (await second).status == 499
        assert app._turns.waiting_count == 0
        agent.go_on.set()
        assert (await first).status == 200
        assert agent.calls == 1
        assert app._turns.busy_count == 0

    with waiting_app(concurrency=1) as (app, agent):
        asyncio.run(run(app, agent))


def test_body_that_does_not_come_ends_with_408() -> None:
    app = DecisionApp(make_router(), limits=ServeLimits(body_timeout_s=0.05))
    answer = asyncio.run(Call(app, "POST", "/v1/predict", body=b"{", is_complete=False).run())
    assert (answer.status, answer.json["code"]) == (408, "body_timeout")


def test_client_that_leaves_in_its_body_is_counted() -> None:
    app = DecisionApp(make_router())
    call = Call(app, "POST", "/v1/predict", body=b"{", is_complete=False)
    call.leave()
    asyncio.run(call.run())
    assert 'requests_total{endpoint="/v1/predict",status="499"} 1' in ask(app, "GET", "/metrics").body.decode()


# ---- stopping --------------------------------------------------------------------------------------------------------


def test_stop_lets_requests_finish_and_refuses_new_ones() -> None:
    async def run(app: DecisionApp, agent: Waiting) -> None:
        under_way = waiting_call(app).start()
        await entered(agent)
        stopping = asyncio.create_task(app.stop())
        await until(lambda: app._is_stopping)
        refused = await waiting_call(app).run()
        assert (refused.status, refused.json["code"]) == (503, "stopping")
        assert "retry-after" in refused.headers
        assert (await Call(app, "GET", "/readyz").run()).json == {"status": "stopping"}
        assert not stopping.done()
        agent.go_on.set()
        assert await stopping is True
        assert (await under_way).status == 200

    with waiting_app() as (app, agent):
        asyncio.run(run(app, agent))


def test_stop_ends_the_wait_for_what_takes_too_long() -> None:
    async def run(app: DecisionApp, agent: Waiting) -> None:
        calls = [waiting_call(app).start()]
        await entered(agent)
        calls.append(waiting_call(app).start())
        await until(lambda: app._turns.waiting_count == 1)
        assert await app.stop(timeout_s=0.01) is False
        assert [(answer.status, answer.json["code"]) for answer in await asyncio.gather(*calls)] == [
            (503, "stopping")
        ] * 2

    with waiting_app(concurrency=1) as (app, agent):
        asyncio.run(run(app, agent))


def test_app_that_was_stopped_with_a_hung_model_can_serve_again() -> None:
    async def run(app: DecisionApp, agent: Waiting) -> None:
        hung = waiting_call(app).start()
        await entered(agent)
        assert await app.stop(timeout_s=0.01) is False
        assert (await hung).status == 503
        app._is_stopping = False  # as the start of a lifespan does
        again = waiting_call(app).start()
        await entered(agent)
        agent.go_on.set()
        assert (await again).status == 200

    with waiting_app(concurrency=2) as (app, agent):
        asyncio.run(run(app, agent))


def test_lifespan_ends_with_a_stop() -> None:
    async def run() -> list[str]:
        app = DecisionApp(make_router())
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        events.put_nowait({"type": "lifespan.startup"})
        events.put_nowait({"type": "lifespan.shutdown"})
        sent: list[str] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, events.get, send)
        assert app._is_stopping
        return sent

    assert asyncio.run(run()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
