"""Streams: tokens and signals as they come, the output last; closing early ends the generation and the request."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from engine_points import PROBES, make_point
from router_points import REGISTRY, ListSink, wait_until

from undercurrent import GenerationOutput, ProbedModel
from undercurrent.core import ProbeAction, ProbeFactory
from undercurrent.engines import SyntheticEngine
from undercurrent.errors import ProbingRuntimeError, ProbingTypeError
from undercurrent.model import SignalEvent, TokenEvent
from undercurrent.model.settings import StopCutter
from undercurrent.router import Router
from undercurrent.spec import ExecutionMode

FLAGGING = {"probe_type": "flagging", "probe_kind": "trajectory"}


def test_a_stream_gives_tokens_then_the_output(tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        *tokens, output = model.stream("some text", max_new_tokens=9)
        plain = model.generate("some text", max_new_tokens=9)
    assert isinstance(output, GenerationOutput)
    assert (output.text, output.token_ids) == (plain.text, plain.token_ids)
    assert "".join(event.text for event in tokens) == plain.text
    told = [event for event in tokens if event.token_id is not None]
    assert [(event.token_id, event.index) for event in told] == list(zip(plain.token_ids, range(9), strict=True))
    assert len(output.probe_results["point"].verdict) == 8


def test_inline_signals_come_before_the_token_of_their_step(engine: SyntheticEngine) -> None:
    with ProbedModel(backend=engine, spec=[make_point(**FLAGGING)], probes=REGISTRY) as model:
        events = list(model.stream("abc", max_new_tokens=4))
    assert [type(event).__name__ for event in events] == [
        "TokenEvent",
        *["SignalEvent", "TokenEvent"] * 3,
        "GenerationOutput",
    ]
    signals = [event for event in events if isinstance(event, SignalEvent)]
    assert [(event.point, event.signal.metadata["position"]) for event in signals] == [("point", n) for n in (3, 4, 5)]


def test_an_abort_is_streamed_and_ends_the_stream(engine: SyntheticEngine) -> None:
    point = make_point(probe_type="abort", probe_args={"count": 2})
    with ProbedModel(backend=engine, spec=[point], probes=PROBES) as model:
        events = list(model.stream("abc"))
    *_, signal, token, output = events
    assert isinstance(signal, SignalEvent)
    assert signal.signal.action is ProbeAction.ABORT
    assert isinstance(token, TokenEvent)
    assert isinstance(output, GenerationOutput)
    assert (output.aborted, output.abort_point) == (True, "point")


def test_signals_of_async_probes_come_while_the_text_does() -> None:
    engine = SyntheticEngine(layer_count=4, hidden_size=8)
    sink = ListSink()
    point = make_point("watch", execution_mode=ExecutionMode.ASYNC, overflow_policy="block", **FLAGGING)
    arguments = {"probes": REGISTRY, "router_kwargs": {"worker_mode": "thread"}, "log_sink": sink}
    with ProbedModel(backend=engine, spec=[point], **arguments) as model:
        with model.stream("abc", max_new_tokens=2_000_000) as stream:
            event = next(event for event in stream if isinstance(event, SignalEvent))
        assert (event.point, event.signal.action) == ("watch", ProbeAction.FLAG)
        assert stream.output.finish_reason == "cancelled"
        assert stream.output.probe_results["watch"].metadata["coverage"]["complete"]
    # The stream's own sink stood beside the caller's and is gone.
    assert sink.events
    assert [attached.sink for attached in model.router._supervision._sinks] == [sink]


def test_closing_a_stream_early_stops_the_generation_and_ends_the_request(tiny: dict[str, Any]) -> None:
    ended: list[str] = []
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        model.router.on_request_end(lambda request_id, _results: ended.append(request_id))
        with model.stream("some text", max_new_tokens=1500) as stream:
            next(stream)
        assert list(stream) == []
        output = stream.output
        assert (output.finish_reason, ended) == ("cancelled", [output.request_id])
        assert len(output.token_ids) < 1500
        assert len(output.probe_results["point"].verdict) == len(output.token_ids) - 1


def test_dropping_a_stream_stops_the_generation(engine: SyntheticEngine) -> None:
    with ProbedModel(backend=engine) as model:
        stream = model.stream("abc", max_new_tokens=50_000_000)
        next(stream)
        thread = stream._thread
        del stream
        gc.collect()
        thread.join(30)
        assert not thread.is_alive()


def test_closing_the_model_ends_its_streams_and_generations(engine: SyntheticEngine) -> None:
    model = ProbedModel(backend=engine)
    outputs: list[GenerationOutput] = []
    errors: list[ProbingRuntimeError] = []

    def generate_list() -> None:
        try:
            model.generate(["xyz"] * 100, max_new_tokens=50_000_000)
        except ProbingRuntimeError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=lambda: outputs.append(model.generate("xyz", max_new_tokens=50_000_000))),
        threading.Thread(target=generate_list),
    ]
    for thread in threads:
        thread.start()
    stream = model.stream("abc", max_new_tokens=50_000_000)
    next(stream)
    assert wait_until(lambda: len(engine._cancelled) == 10)  # one, one, and a batch of eight
    model.close()
    for thread in threads:
        thread.join(30)
    assert [str(error) for error in errors] == ["closed after 8 of 100 prompts"]
    assert [output.finish_reason for output in (*outputs, stream.output)] == ["cancelled"] * 2


def test_what_fails_is_raised_by_the_iteration(engine: SyntheticEngine) -> None:
    point = make_point(probe_type="broken", probe_args={"count": 2})
    with ProbedModel(backend=engine, spec=[point], probes=PROBES) as model:
        with model.stream("abc") as stream, pytest.raises(RuntimeError, match="this probe is broken"):
            list(stream)
        with pytest.raises(ProbingRuntimeError, match="no outcome"):
            print(stream.output)
        with pytest.raises(ProbingTypeError, match="a prompt must be a string"):
            model.stream(["abc"])  # type: ignore[arg-type]
        assert model.generate("ab", max_new_tokens=1).text


def test_a_request_of_a_broken_stream_is_ended(engine: SyntheticEngine) -> None:
    ended: list[str] = []
    point = make_point(probe_type="broken")
    with Router(PROBES) as router, ProbedModel(backend=engine, spec=[point], router=router) as model:
        router.on_request_end(lambda request_id, _results: ended.append(request_id))
        with model.stream("abc") as stream, pytest.raises(RuntimeError):
            list(stream)
        assert len(ended) == 1


CTRL_C = """
import sys
from undercurrent import ProbedModel
from undercurrent.engines import SyntheticEngine

with ProbedModel(backend=SyntheticEngine(layer_count=2, hidden_size=4)) as model:
    for index, event in enumerate(model.stream("abc", max_new_tokens=50_000_000)):
        if index == 3:
            print("reading", flush=True)
"""
WITHOUT_CLOSING = (
    CTRL_C.replace("with ProbedModel(", "model = ProbedModel(").replace(") as model:", ")").replace("\n    ", "\n")
)


@pytest.mark.parametrize("program", [CTRL_C, WITHOUT_CLOSING], ids=["with", "bare"])
def test_ctrl_c_ends_a_stream_and_the_program(program: str) -> None:
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "reading\n"
            os.kill(child.pid, signal.SIGINT)
            _, errors = child.communicate(timeout=40)
        finally:
            child.kill()  # else a stream that does not end outlives the tests
    assert child.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("pieces", [["ab", "cd", "ef"], list("abcdef"), ["abcdef"], ["abc", "", "def"]])
@pytest.mark.parametrize(
    ("stops", "text"),
    [([], "abcdef"), (["cd"], "ab"), (["cx", "ef"], "abcd"), (["f", "bcd"], "a"), (["efg"], "abcdef"), (["a"], "")],
)
def test_a_text_is_cut_before_its_first_stop_string_however_it_comes(
    pieces: list[str], stops: list[str], text: str
) -> None:
    cutter = StopCutter(stops)
    shown = [cutter.push(piece) for piece in pieces]
    assert "".join(shown) + cutter.finish() == text
    assert not any(stop in "".join(shown) for stop in stops)


def test_streamed_text_holds_no_part_of_a_stop_string(tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny) as model:
        whole = model.generate("some text").text
        letter = next(letter for letter in whole[2:] if letter.isascii() and letter not in whole[:2])
        *tokens, output = model.stream("some text", stop=letter)
    assert isinstance(output, GenerationOutput)
    assert "".join(event.text for event in tokens if isinstance(event, TokenEvent)) == output.text
    assert letter not in output.text


def test_a_log_sink_put_in_the_place_of_all_others_is_no_harm(engine: SyntheticEngine) -> None:
    point = make_point("watch", execution_mode=ExecutionMode.ASYNC, **FLAGGING)
    probes = {"flagging": ProbeFactory(REGISTRY["flagging"].probe_cls, {"flags": True})}
    with ProbedModel(backend=engine, spec=[point], probes=probes, router_kwargs={"worker_mode": "thread"}) as model:
        with model.stream("abc", max_new_tokens=1_000_000) as stream:
            next(stream)
            model.router.attach_log_sink(ListSink())
        assert stream.output.finish_reason == "cancelled"
