"""What the prediction life cycle costs with a stubbed model; run as a program by ours or by the published package's
interpreter, whose names are the same.

    python -P uc_bench_predict.py NAME '{"argument": value}'

prints one JSON object on its last line. Times are CPU time of the calling thread unless they say otherwise.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import threading
import time

try:
    Router = importlib.import_module("laya").Router
except ImportError:
    from undercurrent.predict import Agent, EncodedState, Router, Scores

    IS_PEER = False
else:
    IS_PEER = True

THIRTEEN_WORDS = "My package was left in the rain and everything inside it is ruined."
PARAGRAPH = (
    "The invoice arrived twice this month and I would like one of them refunded. "
    + THIRTEEN_WORDS
    + " Could you tell me when the technician will come to repair the heating? Where is my order?\n"
)
LONG = PARAGRAPH * 28
QUESTIONS = {
    "topic": {"type": "choice", "instructions": "what is it about", "criteria": ["bill", "parcel", "other"]},
    "late": {"type": "noul", "instructions": "a parcel is late"},
}
ANSWERS = {"topic": {"type": "choice", "choice": "bill"}, "late": {"type": "noul", "noul": 0.5}}
SAMPLES = 40


def best_us(call, count):
    """The smallest mean of many samples, in microseconds of CPU: what neighbours add can only make it larger."""
    call()
    best = float("inf")
    for _ in range(SAMPLES):
        started_at = time.thread_time_ns()
        for _ in range(count):
            call()
        best = min(best, (time.thread_time_ns() - started_at) / count / 1000)
    return best


class StubAgent:
    """An agent whose model costs nothing."""

    model_id = "stub"

    def system_one(self, state, questions, lang=None, **arguments):
        return {"model": "stub", "answers": ANSWERS, "usage": {"input_tokens": 40, "output_tokens": 0}}

    def predict_batch(self, states, questions, batch_size=None, **arguments):
        return [self.system_one(state, questions) for state in states]


class NoOp:
    """A hook of all events that does nothing."""

    def on_predict_start(self, ctx):
        pass

    def on_predict_end(self, ctx):
        pass

    def on_route(self, ctx):
        pass

    def on_load(self, ctx):
        pass

    def on_evict(self, ctx):
        pass

    def on_error(self, ctx):
        pass


def stub_router(**arguments):
    """A router with a stub under both names."""
    router = Router(**arguments)
    router.attach("english", StubAgent())
    router.attach("multilingual", StubAgent())
    return router


def router_pinned():
    """One request to a checkpoint it names."""
    router = stub_router()
    return {"us": best_us(lambda: router.predict(THIRTEEN_WORDS, QUESTIONS, model="english"), 200)}


def router_auto(is_long):
    """One request whose text says where it goes."""
    router, state = stub_router(), LONG if is_long else THIRTEEN_WORDS
    assert router.route(state)["model"] == "english"
    return {"us": best_us(lambda: router.predict(state, QUESTIONS), 20 if is_long else 100), "characters": len(state)}


def no_op_hook():
    """What one more no-op hook adds to one event: 20 of them over the three events of a request."""
    bare, hooked = stub_router(), stub_router(hooks=[NoOp() for _ in range(20)])
    without = best_us(lambda: bare.predict(THIRTEEN_WORDS, QUESTIONS, model="english"), 100)
    with_hooks = best_us(lambda: hooked.predict(THIRTEEN_WORDS, QUESTIONS, model="english"), 50)
    return {"us": (with_hooks - without) / 60}


def batch(count):
    """A batch to one checkpoint with one dict of questions; per request."""
    router = stub_router()
    requests = [{"state": f"state {at}", "questions": QUESTIONS, "model": "english"} for at in range(count)]
    return {"us": best_us(lambda: router.predict_batch(requests), 1) / count}


def agent(has_collate):
    """One request to an Agent whose tokenizer, model and decoding are stubs, with two questions."""
    stub = peer_agent(has_collate) if IS_PEER else Agent(stub_checkpoint(has_collate))
    return {"us": best_us(lambda: stub.system_one(THIRTEEN_WORDS, QUESTIONS), 100)}


ROW = [
    {"ids": list(range(24)), "markers": [1, 5, 9], "qtype": 0},
    {"ids": list(range(20)), "markers": [1, 5], "qtype": 2},
]


def collated(rows):
    """Tensors of a batch, as a checkpoint makes them; what the published package's collation costs, in both."""
    import numpy as np
    import torch

    length, most = max(len(row["ids"]) for row in rows), max(len(row["markers"]) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    at = np.zeros((len(rows), most), dtype=np.int64)
    has = np.zeros((len(rows), most), dtype=bool)
    for number, row in enumerate(rows):
        ids[number, : len(row["ids"])] = row["ids"]
        mask[number, : len(row["ids"])] = 1
        at[number, : len(row["markers"])] = row["markers"]
        has[number, : len(row["markers"])] = True
    return [torch.from_numpy(one) for one in (ids, mask, at, has)]


def stub_checkpoint(has_collate):
    """Ours: encoding, the forward pass and decoding are stubs; collation too, unless it is asked for."""
    scores = [[Scores([0.2, 0.3, 0.5]), Scores([0.4, 0.6])]]
    encoded = EncodedState(ROW, input_tokens=44, state_tokens=13)

    class Stub:
        model_id, device, size_bytes, uses_lang = "stub", "cpu", 0, False

        def check(self, questions, options):
            pass

        def encode(self, state, questions, options):
            return encoded

        def collate(self, rows):
            return collated(rows[0].row) if has_collate else None

        def forward(self, rows):
            return None

        def decode(self, output, rows, questions, options):
            return scores

    return Stub()


def peer_agent(has_collate):
    """Theirs, built by hand as its own tests do."""
    import torch

    peer = importlib.import_module("laya.agent")

    stub = peer.Agent.__new__(peer.Agent)
    stub.cfg, stub.model_id = {"max_len": 512, "head_max_len": 192}, "stub"
    stub.tok = type("Tok", (), {"pad_token_id": 0, "mask_token": "[MASK]"})()
    rows = [
        {
            **row,
            "options": {"options": 3, "options_distinct": 3},
            "state_stats": {"state_tokens": 13, "state_tokens_dropped": 0, "truncated": False},
        }
        for row in ROW
    ]
    logits = torch.zeros(2, 3), torch.zeros(2, 1)
    stub._encode_state = lambda *arguments, **named: rows
    stub._forward = lambda batch: logits
    stub._decode_answers = lambda *arguments, **named: dict(ANSWERS)
    if not has_collate:
        made = peer.collate_items([rows], 0)
        peer.collate_items = lambda batch, pad: made
    stub.system_one(THIRTEEN_WORDS, QUESTIONS)
    return stub


def deadline(pairs):
    """A hook with a deadline beside a bare hand-off to a waiting thread and back, by the wall, in turn."""
    from undercurrent.predict.context import PredictContext
    from undercurrent.predict.hooks import HookRegistry

    registry = HookRegistry(NoOp(), None, None, hooks_raise=True, hooks_concurrent=True, hooks_timeout=60.0)
    chain, ctx = registry._chain(), PredictContext([THIRTEEN_WORDS], QUESTIONS)
    there, back = threading.Lock(), threading.Lock()
    there.acquire()
    back.acquire()

    def serve():
        while there.acquire():
            back.release()

    threading.Thread(target=serve, daemon=True).start()

    def bare():
        there.release()
        back.acquire()

    def hook():
        assert chain.run("on_predict_start", ctx) is None

    wall = {bare: [], hook: []}
    for _ in range(pairs):
        for call, taken in wall.items():
            call()
            started_at = time.perf_counter_ns()
            for _ in range(20):
                call()
            taken.append((time.perf_counter_ns() - started_at) / 20000)
    # Neighbours come and go: a pair is measured within a millisecond, and the median of many pairs is judged.
    ratio = statistics.median(one / other for one, other in zip(wall[hook], wall[bare], strict=True))
    return {"us": statistics.median(wall[hook]), "hand_off_us": statistics.median(wall[bare]), "ratio": ratio}


SCENARIOS = {f.__name__: f for f in (router_pinned, router_auto, no_op_hook, batch, agent, deadline)}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](**json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))))
