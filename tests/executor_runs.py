"""What tests of executors share: an executor over hashes, a loop with an end, and processes that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from executor_generators import HashModel

from undercurrent.runtime.executors import LocalExecutor


@asynccontextmanager
async def hashes(folder: Path | None = None, **options: Any) -> AsyncIterator[LocalExecutor]:
    kwargs = {} if folder is None else {"folder": str(folder)}
    async with LocalExecutor(HashModel, kwargs=kwargs, **options) as executor:
        yield executor


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 50))  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Dead, whether or not somebody has looked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
