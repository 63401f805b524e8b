"""The asyncio surface: nothing that blocks runs on the loop's thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from router_points import REGISTRY, Collect, context, fresh_id, make_point, make_record, positions

from undercurrent.core import ProbeResult, RequestContext
from undercurrent.router import Router, RouterError
from undercurrent.router.call_threads import CallThreads


class Recording(Collect):
    """Notes the threads that its `on_start` and `on_end` run on."""

    def on_start(self, request_ctx: RequestContext) -> None:
        super().on_start(request_ctx)
        request_ctx.prompt_metadata["threads"].append(threading.get_ident())

    def on_end(self, request_ctx: RequestContext) -> ProbeResult:
        request_ctx.prompt_metadata["threads"].append(threading.get_ident())
        return super().on_end(request_ctx)


def test_start_and_end_run_off_the_loop() -> None:
    threads: list[int] = []

    async def serve() -> dict[str, ProbeResult]:
        with Router({"recording": Recording}) as router:
            async with router.arequest(
                [make_point(probe_type="recording")], request_id="req", prompt_metadata={"threads": threads}
            ) as request:
                request.route(make_record("req"))
            return request.results

    results = asyncio.run(serve())

    assert results["guard"].metadata["coverage"]["routed"] == 1
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_loop_turns_while_a_probe_starts() -> None:
    class Slow(Collect):
        def on_start(self, request_ctx: RequestContext) -> None:
            assert request_ctx.prompt_metadata["may_start"].wait(30)

    async def serve() -> int:
        may_start = threading.Event()
        with Router({"slow": Slow}) as router:
            registration = asyncio.ensure_future(
                router.aregister_request("req", [make_point(probe_type="slow")], context("req", may_start=may_start))
            )
            turns = 0
            while turns < 100:
                await asyncio.sleep(0)
                turns += 1
            assert not registration.done()
            may_start.set()
            await registration
            await router.aend_request("req")
        return turns

    assert asyncio.run(serve()) == 100


def test_errors_arrive_at_the_await() -> None:
    async def serve() -> None:
        with Router(REGISTRY) as router:
            with pytest.raises(RouterError, match="not registered"):
                await router.aend_request("unknown")
            with pytest.raises(RouterError, match="no probe is registered"):
                await router.aregister_request("req", [make_point(probe_type="nobody")], context("req"))
            with pytest.raises(KeyError):
                async with router.arequest([make_point()], request_id="body"):
                    raise KeyError("body")
            with pytest.raises(RouterError, match="not registered"):
                router.end_request("body")

    asyncio.run(serve())


def test_cancelled_registration_is_undone() -> None:
    class Slow(Collect):
        def on_start(self, request_ctx: RequestContext) -> None:
            request_ctx.prompt_metadata["entered"].set()
            assert request_ctx.prompt_metadata["may_start"].wait(30)

    async def serve() -> None:
        entered, may_start = threading.Event(), threading.Event()
        with Router({"slow": Slow, "collect": Collect}) as router:
            metadata = {"entered": entered, "may_start": may_start}
            registration = asyncio.ensure_future(
                router.aregister_request("req", [make_point(probe_type="slow")], context("req", **metadata))
            )
            while not entered.is_set():
                await asyncio.sleep(0.001)
            registration.cancel()
            with pytest.raises(asyncio.CancelledError):
                await registration
            may_start.set()
            for _ in range(5000):
                try:
                    router.register_request("req", [make_point()], context("req"))
                    break
                except RouterError:
                    await asyncio.sleep(0.001)
            router.route(make_record("req"))

    asyncio.run(serve())


def test_cancelled_end_still_ends_the_request() -> None:
    class Slow(Collect):
        def on_end(self, request_ctx: RequestContext) -> ProbeResult:
            assert request_ctx.prompt_metadata["may_end"].wait(30)
            return super().on_end(request_ctx)

    async def serve() -> list[str]:
        may_end = threading.Event()
        ended: list[str] = []
        with Router({"slow": Slow}) as router:
            router.on_request_end(lambda request_id, results: ended.append(request_id))
            await router.aregister_request("req", [make_point(probe_type="slow")], context("req", may_end=may_end))
            ending = asyncio.ensure_future(router.aend_request("req"))
            await asyncio.sleep(0)
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            may_end.set()
            for _ in range(5000):
                if ended:
                    break
                await asyncio.sleep(0.001)
        return ended

    assert asyncio.run(serve()) == ["req"]


def test_more_calls_than_threads_are_all_made() -> None:
    threads = CallThreads(name="undercurrent-test", thread_count_max=2)
    futures = [threads.submit(lambda number=number: number * 2) for number in range(50)]  # type: ignore[misc]
    answers = [future.result(timeout=30) for future in futures]
    running = [thread for thread in threading.enumerate() if thread.name == "undercurrent-test"]
    threads.close()
    threads.close()
    for thread in running:
        thread.join(30)

    assert answers == [number * 2 for number in range(50)]
    assert 1 <= len(running) <= 2
    assert not any(thread.is_alive() for thread in running)
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(lambda: None)


def test_calls_submitted_before_close_are_still_made() -> None:
    threads = CallThreads(name="undercurrent-test", thread_count_max=1)
    gate = threading.Event()
    futures: list[Any] = [threads.submit(lambda: gate.wait(30)), threads.submit(lambda: "second")]
    threads.close()
    gate.set()

    assert [future.result(timeout=30) for future in futures] == [True, "second"]


def test_concurrent_requests_with_async_points(router: Router) -> None:
    async def serve(number: int) -> list[int]:
        request_id = fresh_id()
        points = [make_point("watch", "async", overflow_policy="block"), make_point()]
        async with router.arequest(points, request_id=request_id) as request:
            for position in range(number):
                request.route(make_record(request_id, "watch", position=position))
                request.route(make_record(request_id, position=position))
                await asyncio.sleep(0)
        assert positions(request.results["watch"]) == positions(request.results["guard"])
        return positions(request.results["watch"])

    async def serve_all() -> list[list[int]]:
        return list(await asyncio.gather(*(serve(number) for number in range(40))))

    assert asyncio.run(serve_all()) == [list(range(number)) for number in range(40)]


def test_awaited_registration_raises_an_async_start_error(router: Router) -> None:
    bad = make_point("bad", "async", probe_type="failing", probe_args={"where": "on_start"})

    async def serve() -> None:
        request_id = fresh_id()
        with pytest.raises(ValueError, match="in on_start"):
            await router.aregister_request(request_id, [bad], context(request_id), wait_s=30)
        await router.aregister_request(request_id, [make_point("good", "async")], context(request_id), wait_s=30)
        results = await router.aend_request(request_id)
        assert results["good"].metadata["coverage"]["complete"]

    asyncio.run(serve())
