"""A loopback HTTP server that answers as it is told and keeps what it got."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sink_lines import SIGNAL, records_of

from undercurrent.sinks import WebhookLogSink


@dataclass
class Reply:
    """What one request gets: a status with headers and body, later if `after` is given, or a reset connection."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: threading.Event | None = None
    is_reset: bool = False


@dataclass
class Endpoint:
    """A running server. `replies` are used up in order; then `default` is the answer."""

    replies: list[Reply] = field(default_factory=list)
    default: Reply = field(default_factory=Reply)
    records: list[Any] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, target and headers of each request."""
    peers: set[tuple[str, int]] = field(default_factory=set)
    """The other ends of the connections."""
    arrived: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens, with what must stay secret."""
        return f"http://127.0.0.1:{self.port}/hook/s3cret?token=t0ken"

    def await_requests(self, count: int, timeout_s: float = 20.0) -> bool:
        """Whether `count` requests have come in."""
        with self.arrived:
            return self.arrived.wait_for(lambda: len(self.requests) >= count, timeout_s)

    def ids(self) -> list[str]:
        """The request ids of the records it got, in order."""
        return [record["request_id"] for record in self.records]


class Handler(BaseHTTPRequestHandler):
    """Keeps the request and gives the next reply."""

    protocol_version = "HTTP/1.1"
    endpoint: Endpoint

    def do_POST(self) -> None:
        endpoint = self.endpoint
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with endpoint.arrived:
            endpoint.requests.append((self.command, self.path, {k.title(): v for k, v in self.headers.items()}))
            endpoint.peers.add(self.client_address)
            if body:
                endpoint.records.append(json.loads(body))
            reply = endpoint.replies.pop(0) if endpoint.replies else endpoint.default
            endpoint.arrived.notify_all()
        if reply.after is not None:
            reply.after.wait(30)
        if reply.is_reset:
            # A linger of no seconds turns the close into a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Lets a client that went away go."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def serving(*replies: Reply, default: Reply | None = None, certificate: Path | None = None) -> Iterator[Endpoint]:
    """A server on a port of its own until the block ends; over TLS with the key and certificate of one file."""
    endpoint = Endpoint(list(replies), default or Reply())
    server = Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"endpoint": endpoint}))
    endpoint.port = server.server_address[1]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write(sink: WebhookLogSink, count: int, first: int = 0) -> None:
    for index in range(first, first + count):
        sink.write_signal(f"req-{index}", "monitor", SIGNAL)


def ids(count: int, first: int = 0) -> list[str]:
    return [f"req-{index}" for index in range(first, first + count)]


def reasons(path: Path) -> list[tuple[str, int]]:
    return [(record["dead_letter"]["reason"], record["dead_letter"]["attempts"]) for record in records_of(path)]
