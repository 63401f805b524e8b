"""Calls an ASGI application in this process: requests whose bodies come in parts, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What an application sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class Call:
    """One request. `leave()` is a client that hangs up."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        *,
        body: bytes | Sequence[bytes] = b"",
        content: Any = None,
        headers: dict[str, str] | None = None,
        is_complete: bool = True,
    ) -> None:
        self.answer = Answer()
        self._app = app
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        if content is not None:
            body = json.dumps(content).encode()
        parts = [body] if isinstance(body, bytes) else list(body)
        for part in parts:
            self._events.put_nowait({"type": "http.request", "body": part, "more_body": True})
        if is_complete:
            self._events.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        given = {"content-type": "application/json", **(headers or {})}
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    def leave(self) -> None:
        """Hangs up."""
        self._events.put_nowait({"type": "http.disconnect"})

    async def run(self) -> Answer:
        """Sends the request and returns the answer."""
        await self._app(self._scope, self._events.get, self._send)
        return self.answer

    def start(self) -> asyncio.Task[Answer]:
        """Sends it as a task."""
        return asyncio.create_task(self.run())

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.answer.body += message.get("body", b"")


def ask(app: Any, method: str, path: str, **arguments: Any) -> Answer:
    """Sends one request on a loop of its own."""
    return asyncio.run(Call(app, method, path, **arguments).run())
