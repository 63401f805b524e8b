"""A server that shows its metrics: `/metrics` is what Prometheus scrapes, beside the work that the server is there for.

Run it: `python -m undercurrent.examples.metrics_server`, then

    curl --data 'the sea is calm' http://127.0.0.1:8766/
    curl http://127.0.0.1:8766/metrics

The handler of `/metrics` only formats what the router has counted: it asks no probe, waits for no worker and takes no
lock that `route()` takes. `docs/metrics.md` says what each metric means and when to be woken up by it.
"""

import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from undercurrent.core import ProbeFactory
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.router import (
    OPENMETRICS_CONTENT_TYPE,
    PROMETHEUS_CONTENT_TYPE,
    Router,
    openmetrics_text,
    prometheus_text,
)
from undercurrent.spec import ActivationRecord, load_spec

SPEC = load_spec("""
extraction_points:
  - {name: guard, layers: 4, tensor_type: mlp_out, position: "generated[*]", probe_type: running_mean,
     probe_kind: trajectory}
  - {name: monitor, layers: 4, tensor_type: mlp_out, position: "generated[*]", probe_type: running_mean,
     probe_kind: trajectory, execution_mode: async}
""")
PROBES = {"running_mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.9})}
PROMPT_BYTES_MAX = 64 * 1024


def answer(router: Router, prompt: str) -> dict[str, object]:
    """Stands for a generation: one activation per word, until the inline probe says stop."""
    with router.request(SPEC) as request:
        for position, word in enumerate(prompt.split()):
            activation = np.full(1024, min(len(word), 10) / 10, dtype=np.float32)
            signals = [
                request.route(ActivationRecord(request.request_id, name, 4, position, "mlp_out", activation, True))
                for name in SPEC.names
            ]
            if any(said is not None and said.action == "abort" for said in signals):
                break
    return {name: result.metadata["coverage"] for name, result in request.results.items()}


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /` with what the probes covered, and `GET /metrics` with the totals."""

    router: Router

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404)
        elif "application/openmetrics-text" in self.headers.get("Accept", ""):
            self._send(OPENMETRICS_CONTENT_TYPE, openmetrics_text(self.router))
        else:
            self._send(PROMETHEUS_CONTENT_TYPE, prometheus_text(self.router))

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        prompt = self.rfile.read(min(length, PROMPT_BYTES_MAX)).decode(errors="replace")
        self._send("application/json", json.dumps(answer(self.router, prompt)))

    def _send(self, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a scraper comes every few seconds."""


def make_server(router: Router, host: str = "127.0.0.1", port: int = 8766) -> ThreadingHTTPServer:
    """A server over a router that the caller owns; `serve_forever` runs it. Port 0 takes a free one."""
    return ThreadingHTTPServer((host, port), type("BoundHandler", (Handler,), {"router": router}))


def main() -> None:
    """Serves until SIGTERM or Ctrl-C."""
    with Router(probe_registry=PROBES) as router, make_server(router) as server:
        router.prewarm(SPEC)
        for number in (signal.SIGINT, signal.SIGTERM):
            # From a thread: `shutdown` waits for the loop that this handler has interrupted.
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        print("listening on", *server.server_address, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
