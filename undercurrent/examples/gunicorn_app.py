"""A web application for a server that preloads and forks: one router per server process, made after the fork.

Run it: `gunicorn --config python:undercurrent.examples.gunicorn_app undercurrent.examples.gunicorn_app:app`, then

    curl --data 'the sea is calm' http://127.0.0.1:8000/

Gunicorn's master imports this module once (`preload_app`), so that all server processes share the model's memory. A
router has worker processes, a thread and rings, and none of them survives a fork: `post_fork` makes a router in each
server process, `worker_exit` ends it. A request registered in the master would stay the master's: what a server process
routes to it is counted, not seen, and said once in the log; its coverage has the reason `unseen`.
"""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from undercurrent.core import ProbeFactory
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, load_spec

# Read by gunicorn, which takes this module for its configuration too.
preload_app = True
workers = 2

SPEC = load_spec("""
extraction_points:
  - name: monitor
    layers: 4
    tensor_type: mlp_out
    position: "generated[*]"
    probe_type: running_mean
    probe_kind: trajectory
    execution_mode: async
""")
PROBES = {"running_mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.5})}
PROMPT_BYTES_MAX = 64 * 1024
MODEL = np.linspace(0.0, 1.0, 256 * 1024, dtype=np.float32).reshape(256, 1024)  # stands for weights worth sharing

router: Router | None = None


def post_fork(server: object, worker: object) -> None:
    """Called by gunicorn in each new server process."""
    global router
    router = Router(probe_registry=PROBES)
    router.prewarm(SPEC)  # the first request would else start the worker


def worker_exit(server: object, worker: object) -> None:
    """Called by gunicorn in a server process that ends."""
    if router is not None:
        router.shutdown()


def app(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Answers a prompt with the probe's verdict over a generation of the same length."""
    assert router is not None, "no router: start gunicorn with `--config python:undercurrent.examples.gunicorn_app`"
    prompt = environ["wsgi.input"].read(min(int(environ.get("CONTENT_LENGTH") or 0), PROMPT_BYTES_MAX))
    with router.request(SPEC) as request:
        for position, token in enumerate(prompt, start=len(prompt)):
            request.route(ActivationRecord(request.request_id, "monitor", 4, position, "mlp_out", MODEL[token], True))
    result = request.results["monitor"]
    body = {"pid": os.getpid(), "verdict": result.verdict, "coverage": result.metadata["coverage"]}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]
