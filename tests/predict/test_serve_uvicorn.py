"""The app in a real server on loopback, to its graceful end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import urllib3
import uvicorn
from predict_checkpoints import TOPIC, StubAgent

from undercurrent.predict import Router
from undercurrent.predict.serve import DecisionApp

ASKED = {"state": "where is my parcel", "questions": TOPIC, "model": "waiting"}


class Waiting(StubAgent):
    """An agent that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__("waiting")
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def system_one(self, state: Any, questions: Any) -> dict[str, Any]:
        self.entered.set()
        assert self.go_on.wait(50)
        return super().system_one(state, questions)


async def serve(agent: Waiting) -> list[int]:
    router = Router()
    router.attach("waiting", agent)
    app = DecisionApp(router)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(40):
            while not server.started:
                await asyncio.sleep(0.001)
            port = server.servers[0].sockets[0].getsockname()[1]
            # Two connections: the second answers while the first waits, and is refused when the server stops.
            pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=2, timeout=30, retries=False)
            ready = await asyncio.to_thread(pool.request, "GET", "/readyz")
            under_way = asyncio.create_task(asyncio.to_thread(pool.request, "POST", "/v1/predict", json=ASKED))
            await asyncio.to_thread(agent.entered.wait, 30)
            app.begin_stop()
            refused = await asyncio.to_thread(pool.request, "POST", "/v1/predict", json=ASKED)
            server.should_exit = True
            agent.go_on.set()
            answered = await under_way
            await serving
            pool.close()
    finally:
        agent.go_on.set()
        server.should_exit = True
        await serving
    return [ready.status, refused.status, answered.status]


def test_server_answers_refuses_while_it_stops_and_ends() -> None:
    assert asyncio.run(serve(Waiting())) == [200, 503, 200]
