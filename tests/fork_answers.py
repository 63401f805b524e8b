"""Runs a piece of a test in a forked child."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import msgspec


def answer_of_child(work: Callable[[], Any]) -> Any:
    """Runs `work` in a forked child and returns what it returned, as JSON carries it."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with open(write_fd, "wb") as pipe:
                pipe.write(msgspec.json.encode(work()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return msgspec.json.decode(answer)
