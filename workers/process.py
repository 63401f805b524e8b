"""The entry of a worker process: called by the nursery's child with the descriptors of its lane."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
from collections.abc import Callable, Sequence

from undercurrent.ipc import ConsumerLane
from undercurrent.workers import messages as m
from undercurrent.workers.nursery_child import yield_to_engine
from undercurrent.workers.nursery_frames import SpawnOrder
from undercurrent.workers.outlets import Outlets
from undercurrent.workers.tensors import load_torch
from undercurrent.workers.worker import Worker

_logger = logging.getLogger("undercurrent.workers")

_PR_SET_TIMERSLACK = 29  # prctl(2)


def run(order: SpawnOrder, fds: Sequence[int]) -> None:
    """The entry of a worker process; see `serve`."""

    def load_then_yield() -> None:
        try:
            load_torch()
        except Exception:
            _logger.exception("worker %s could not import torch ahead of its records", order.worker_name)
        finally:
            yield_to_engine(order.nice)

    serve(fds, Worker, prepare=load_then_yield if order.loads_torch else None)


def serve(fds: Sequence[int], worker_type: type[Worker], *, prepare: Callable[[], None] | None = None) -> None:
    """Serves a lane until the engine says stop or is gone. `fds`: socket, control, payload, the engine's pidfd.

    For `prepare` see `Worker`.
    """
    _sharpen_timers()
    sock_fd, control_fd, payload_fd, engine_pidfd = fds
    lane = ConsumerLane(control_fd, payload_fd)
    os.close(control_fd)
    os.close(payload_fd)
    worker = worker_type(lane, socket.socket(fileno=sock_fd), engine_pidfd=engine_pidfd, prepare=prepare)
    handler = _EngineLogHandler(worker.outlets)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    worker.run()


def _sharpen_timers() -> None:
    """Lets this thread's timers end on time: by default the kernel adds up to 50 us, a quarter of a worker's nap."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


class _EngineLogHandler(logging.Handler):
    """Sends log events to the engine's process, where they appear under the same logger."""

    def __init__(self, outlets: Outlets) -> None:
        super().__init__()
        self._outlets = outlets

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        try:
            self._outlets.send(m.Logged(record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)
