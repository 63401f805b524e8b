"""What stays in memory: counts, bytes, pins, use, and builds that many ask for at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from predict_checkpoints import LATE, Recorder, StubAgent, Trace, WordCheckpoint, make_router, raising

from undercurrent.predict import Agent, PredictContext, Router


def sized(**sizes: int) -> dict[str, Any]:
    """Sources of checkpoints with these sizes in bytes."""
    return {name: (lambda name=name, size=size: WordCheckpoint(name, size_bytes=size)) for name, size in sizes.items()}


def test_the_one_used_longest_ago_goes_first() -> None:
    router = Router(sized(a=1, b=1, c=1), max_loaded=2)
    for name in ("a", "b", "a", "c"):
        router.load(name)
    assert router.loaded == ["a", "c"]


def test_bytes_are_a_limit_beside_the_count() -> None:
    router = Router(sized(a=40, b=40, c=40), max_loaded=None, max_loaded_bytes=100)
    for name in ("a", "b", "c"):
        router.load(name)
    assert router.loaded == ["b", "c"]
    assert router.loaded_bytes == 80


def test_one_larger_than_the_limit_stays_alone() -> None:
    router = Router(sized(a=40, large=500), max_loaded_bytes=100)
    router.load("a")
    router.load("large")
    assert router.loaded == ["large"]


def test_pinned_and_attached_ones_are_not_evicted_for_room() -> None:
    trace: Trace = []
    router = Router(sized(a=1, b=1, c=1), max_loaded=1, pinned=["a"], hooks=Recorder("H", trace))
    router.attach("mine", StubAgent())
    for name in ("a", "b", "c"):
        router.load(name)
    assert router.loaded == ["mine", "a", "c"]
    assert router.pinned == {"a"}
    router.unpin("a")
    assert router.loaded == ["mine", "c"]
    assert trace[-1] == ("H", "on_evict", "a")


def test_one_in_use_is_not_evicted_until_its_last_user_is_done() -> None:
    trace: Trace = []
    router = Router(sized(a=1, b=1), max_loaded=1, hooks=Recorder("H", trace))
    loaded_within: list[list[str]] = []

    def load_another(ctx: PredictContext) -> None:
        if ctx.model == "a":
            router.load("b")
            loaded_within.append(router.loaded)

    router.predict("s", LATE, model="a", on_predict_start=load_another)
    assert loaded_within == [["a", "b"]]
    assert router.loaded == ["b"]
    assert trace[-2:] == [("H", "on_predict_end", "s"), ("H", "on_evict", "a")]


def test_unload_takes_also_what_is_pinned_attached_or_in_use_and_the_call_ends_well() -> None:
    trace: Trace = []
    router = Router(sized(a=1), pinned=["a"], hooks=Recorder("H", trace))
    router.attach("mine", StubAgent())
    result = router.predict("s", LATE, model="a", on_predict_start=lambda ctx: router.unload())
    assert result["model"] == "a"
    assert router.loaded == []
    assert [step[2] for step in trace if step[1] == "on_evict"] == ["mine", "a"]


def test_attach_in_the_place_of_another_evicts_that_one() -> None:
    trace: Trace = []
    router = Router(sized(a=1), hooks=Recorder("H", trace))
    built = router.load("a")
    router.attach("a", StubAgent())
    assert trace[-1] == ("H", "on_evict", "a")
    assert router.load("a") is not built
    assert len([step for step in trace if step[1] == "on_load"]) == 1


def test_attached_agent_that_was_unloaded_cannot_be_built() -> None:
    router = Router()
    router.attach("mine", StubAgent())
    router.unload("mine")
    with pytest.raises(ValueError, match="attach it again"):
        router.load("mine")


def test_many_threads_share_one_build() -> None:
    builds: list[str] = []
    may_build = threading.Event()

    def build() -> WordCheckpoint:
        assert may_build.wait(30)
        builds.append("a")
        return WordCheckpoint()

    trace: Trace = []
    router = Router({"a": build}, hooks=Recorder("H", trace))
    agents: list[Agent] = []
    threads = [threading.Thread(target=lambda: agents.append(router.load("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    may_build.set()
    for thread in threads:
        thread.join(30)
    assert builds == ["a"]
    assert len(agents) == 8
    assert len(set(map(id, agents))) == 1
    assert trace == [("H", "on_load", "a")]


def test_threads_share_the_error_of_a_build_and_the_next_load_tries_again() -> None:
    failures = [ValueError("no weights")]

    def build() -> WordCheckpoint:
        if failures:
            raise failures.pop()
        return WordCheckpoint()

    router = Router({"a": build})
    with pytest.raises(ValueError, match="no weights"):
        router.load("a")
    assert router.load("a").model_id == "words"


def test_factory_that_asks_for_itself_is_told_so() -> None:
    router: Router = Router({"a": lambda: router.load("a")})
    with pytest.raises(RuntimeError, match="asks for 'a' while it makes it"):
        router.load("a")


def test_hooks_of_load_and_evict_may_call_back() -> None:
    router = Router(sized(a=1, b=1), max_loaded=1)

    def call_back(ctx: PredictContext) -> None:
        router.predict("within", LATE, model="b")

    router.load("a")
    router.add_hook(Recorder("H", [], {"on_load": call_back, "on_evict": call_back}))
    router.load("b")
    assert router.loaded == ["b"]


def test_failing_evict_hook_does_not_cost_the_load_hook_and_the_checkpoint_stays() -> None:
    trace: Trace = []
    router = make_router(trace, max_loaded=1)
    router.load("english")
    router.add_hook(
        Recorder("H", trace, {"on_evict": raising(ValueError("evict")), "on_load": raising(OSError("load"))})
    )
    trace.clear()
    with pytest.raises(ValueError, match="evict") as raised:
        router.load("multilingual")
    assert [step[:2] for step in trace] == [("build", "multilingual"), ("H", "on_evict"), ("H", "on_load")]
    assert any("load" in note for note in raised.value.__notes__)
    assert router.loaded == ["multilingual"]


def test_preload_makes_room_for_what_it_loads() -> None:
    router = Router(sized(a=1, b=1, c=1, english=1, multilingual=1), max_loaded=1)
    router.preload(["a", "b", "c"])
    assert router.loaded == ["a", "b", "c"]


def test_registering_another_source_lets_the_old_one_go() -> None:
    router = Router(sized(a=1))
    router.load("a")
    router.register("a", lambda: WordCheckpoint("new"), "a newer one")
    assert router.loaded == []
    assert router.load("a").model_id == "new"
    assert router.registered["a"]["description"] == "a newer one"
    router.unregister("a")
    with pytest.raises(ValueError, match="no checkpoint is known as 'a'"):
        router.load("a")


def test_threads_that_predict_while_others_evict_all_get_answers() -> None:
    router = Router(sized(a=1, b=1, c=1), max_loaded=1)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(30):
                assert router.predict("s", LATE, model=name)["model"] == name
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcabc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(router.loaded) == 1
