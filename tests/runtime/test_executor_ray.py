"""What a Ray executor says before there is a cluster. The runs are in `tests/cluster`."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from executor_generators import HashModel
from runtime_jobs import make_job

from undercurrent.errors import MissingDependencyError
from undercurrent.runtime import Executor
from undercurrent.runtime.errors import RuntimeStateError, RuntimeTypeError, RuntimeValueError
from undercurrent.runtime.executors import ExecutorUnavailableError, RayExecutor


def start(executor: RayExecutor) -> None:
    asyncio.run(asyncio.wait_for(executor.start(), 50))


def test_an_executor_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    executor = RayExecutor(HashModel, actors=3)
    assert isinstance(executor, Executor)
    assert executor.capacity == 3
    with pytest.raises(MissingDependencyError, match=r"pip install 'undercurrent\[ray\]', or use a local executor"):
        start(executor)


def test_a_cluster_that_does_not_answer_is_named_at_once() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ExecutorUnavailableError, match=rf"no Ray cluster at '{address}': .*is its head running\?"):
            start(RayExecutor(HashModel, address=address))


def test_an_address_that_is_none_is_refused() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(ExecutorUnavailableError, match="must be `host:port`, `ray://host:port` or `auto`, got 'head'"):
        start(RayExecutor(HashModel, address="head"))


def test_numbers_out_of_range_and_factories_nobody_can_import_are_refused() -> None:
    with pytest.raises(RuntimeValueError, match="`actors` must be >= 1, got 0"):
        RayExecutor(HashModel, actors=0)
    with pytest.raises(RuntimeValueError, match="`idle_timeout_s` must be a finite number above 0, got 0"):
        RayExecutor(HashModel, idle_timeout_s=0)
    with pytest.raises(RuntimeTypeError, match="must be importable"):
        RayExecutor(lambda: HashModel())


def test_an_executor_that_has_not_started_answers_nothing() -> None:
    executor = RayExecutor(HashModel)
    with pytest.raises(RuntimeStateError, match="has not started"):
        asyncio.run(executor.generate_batch([make_job(0)]))
    with pytest.raises(RuntimeStateError, match="has not started"):
        _ = executor.model_id
    asyncio.run(executor.aclose())
    with pytest.raises(RuntimeStateError, match="was closed"):
        asyncio.run(executor.generate_batch([make_job(0)]))
