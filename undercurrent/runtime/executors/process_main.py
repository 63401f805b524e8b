"""The program of one process of a `LocalExecutor`: makes the generator, answers batches, ends with its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import socket

from undercurrent.runtime.executors.frames import (
    Answered,
    Ask,
    Boot,
    Cancel,
    Failed,
    Finished,
    Frame,
    Ready,
    Stop,
    Tokenize,
    Tokens,
    encode_frame,
    read_frame,
)
from undercurrent.runtime.executors.host import BatchOrder, BatchReport, GeneratorHost, pack_error

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(sock: socket.socket) -> None:
    """Serves until the parent says stop, or is gone."""
    # The kernel ends this process with the thread that started it, whatever a model is busy with: prctl(2).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A terminal's Ctrl-C, and a unit's SIGTERM, are the parent's to interpret.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_serve(sock))


async def _serve(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock)
    boot = await read_frame(reader)
    assert isinstance(boot, Boot)
    if os.getppid() != boot.parent_pid:
        return  # it died before the kernel was asked to tell
    try:
        host = GeneratorHost(boot.factory)
    except (Exception, SystemExit) as error:
        writer.write(encode_frame(Failed(pack_error(error))))
        await writer.drain()
        return
    writer.write(encode_frame(Ready(host.description)))
    try:
        await _Line(host, reader, writer).serve()
        await host.close()
    except (EOFError, ConnectionError):
        os._exit(1)  # the parent is gone, and a generator's threads must not hold this process


class _Line:
    """The talk with the parent: one batch at a time."""

    def __init__(self, host: GeneratorHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._batch: asyncio.Task[BatchReport] | None = None

    async def serve(self) -> None:
        """Returns when the parent said stop, and the batch at hand has ended."""
        while True:
            match await read_frame(self._reader):
                case Ask(order):
                    self._batch = asyncio.create_task(self._run(order))
                    # Not in the task: one that is cancelled before its first step runs none of its code.
                    self._batch.add_done_callback(self._finish)
                case Cancel():
                    self._cancel()
                case Tokenize(texts):
                    await self._tokenize(texts)
                case Stop():
                    self._cancel()
                    if self._batch is not None:
                        await asyncio.wait([self._batch])
                    return
                case frame:
                    raise AssertionError(f"a parent sends no {type(frame).__name__}")

    def _cancel(self) -> None:
        if self._batch is not None:
            self._batch.cancel()

    async def _tokenize(self, texts: tuple[str, ...]) -> None:
        try:
            self._send(Tokens(await self._host.tokenize(texts)))
        except Exception as error:
            self._send(Failed(pack_error(error)))

    async def _run(self, packed: bytes) -> BatchReport:
        order = _read_order(packed)
        if isinstance(order, BatchOrder):
            return await self._host.run(order, lambda index, answer: self._send(Answered(index, answer)))
        self._send(Answered(-1, order))
        return BatchReport()

    def _finish(self, batch: asyncio.Task[BatchReport]) -> None:
        self._send(Finished(BatchReport() if batch.cancelled() else batch.result()))

    def _send(self, frame: Frame) -> None:
        self._writer.write(encode_frame(frame))


def _read_order(packed: bytes) -> BatchOrder | bytes:
    try:
        order: BatchOrder = pickle.loads(packed)
    except Exception as error:
        error.add_note("a job's snapshot must be importable in the executor's processes")
        return pack_error(error)
    return order
