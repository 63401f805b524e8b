"""An asyncio server that streams tokens, while a probe in a worker process watches every one of them.

Run it: `python -m undercurrent.examples.asyncio_server`, then ask it something:

    printf '{"prompt": "the sea is calm"}\n' | nc -N 127.0.0.1 8765

Registering and ending a request wait on other threads (`arequest`); `route()` is a plain call that copies an activation
and returns. So the loop never waits for the probe, and other connections never feel it.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator

import numpy as np

from undercurrent.core import ProbeFactory
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.errors import UndercurrentError
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, load_spec

SPEC = load_spec("""
extraction_points:
  - name: monitor
    layers: 4
    tensor_type: mlp_out
    position: "generated[*]"
    probe_type: running_mean
    probe_kind: trajectory
    execution_mode: async
    queue_depth: 64
""")
PROBES = {"running_mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 0.5})}
PROMPT_BYTES_MAX = 64 * 1024


async def generate(prompt: str) -> AsyncIterator[tuple[str, np.ndarray]]:
    """Stands for a model: yields the words of the prompt, each with the activation of one layer."""
    for word in prompt.split():
        await asyncio.sleep(0.002)
        yield word, np.full(1024, min(len(word), 10) / 10, dtype=np.float32)


async def answer(router: Router, prompt: str, writer: asyncio.StreamWriter) -> None:
    """Streams one generation, then the probe's verdict and what it is based on."""
    async with router.arequest(SPEC, prompt_metadata={"prompt": prompt}) as request:
        position = len(prompt.split())
        async for token, activation in generate(prompt):
            request.route(ActivationRecord(request.request_id, "monitor", 4, position, "mlp_out", activation, True))
            position += 1
            writer.write(json.dumps({"token": token}).encode() + b"\n")
            await writer.drain()
    result = request.results["monitor"]
    closing = {"verdict": result.verdict, "coverage": result.metadata["coverage"]}
    writer.write(json.dumps(closing).encode() + b"\n")
    await writer.drain()


async def serve(host: str = "127.0.0.1", port: int = 8765) -> None:
    """Serves until SIGTERM or Ctrl-C, then ends the workers."""
    router = Router(probe_registry=PROBES)
    await asyncio.to_thread(router.prewarm, SPEC)  # the first request would else start the worker

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            prompt = json.loads(await reader.readline())["prompt"]
            await answer(router, prompt, writer)
        except (ValueError, KeyError, TypeError, AttributeError, UndercurrentError) as error:
            writer.write(json.dumps({"error": str(error)}).encode() + b"\n")
        except ConnectionError:
            pass  # the client left in the middle; its request has been ended by `arequest`
        finally:
            writer.close()

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await asyncio.start_server(handle, host, port, limit=PROMPT_BYTES_MAX)
    print("listening on", *server.sockets[0].getsockname(), flush=True)
    async with server:
        await stop.wait()
    await asyncio.to_thread(router.shutdown)


if __name__ == "__main__":
    asyncio.run(serve())
