"""Answers again what was answered before, without a model.

Policy: open. A cache that cannot be read is a miss, and a cache is never worth a failed call. It can be wrong only by
its key, which holds everything an answer depends on: checkpoint, state, questions with their order, budgets and
language.

Install it behind hooks that rewrite states (redaction). Where one behind it rewrites, nothing is kept, because the key
of the question is then not that of the answer. Within one `predict_batch` of a Router no entry made there is used: all
its start hooks run before its end hooks.
"""

from __future__ import annotations

import hashlib
import marshal
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

from undercurrent.predict import FailurePolicy, PredictContext

__all__ = ["CacheHook"]

# What the call adds to a result, and another call would add anew.
_OF_THE_CALL = ("abstention", "abstention_threshold", "low_confidence")


class CacheHook:
    """Keeps results by what they depend on; the entry used longest ago goes first when a limit is passed.

    `namespace` returns what else tells calls apart, such as the tenant. Entries are kept as bytes, so that nobody who
    changes a result changes them.
    """

    failure_policy: ClassVar[FailurePolicy] = "open"

    def __init__(
        self,
        *,
        entry_count_max: int = 4096,
        size_bytes_max: int = 64 << 20,
        ttl_s: float | None = None,
        namespace: Callable[[PredictContext], str] = lambda ctx: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entry_count_max = entry_count_max
        self.size_bytes_max = size_bytes_max
        self.ttl_s = ttl_s
        self.namespace = namespace
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._asked: dict[str, list[bytes]] = {}
        self.size_bytes = 0
        self.hit_count = 0
        self.miss_count = 0

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Answers the call where all of its states are known."""
        if ctx.is_skipped or not ctx.states or not ctx.questions:
            return
        keys = self._keys(ctx)
        entries = [self._get(key) for key in keys]
        with self._lock:
            self.hit_count += all(entry is not None for entry in entries)
            self.miss_count += any(entry is None for entry in entries)
        known = [pickle.loads(entry) for entry in entries if entry is not None]
        if len(known) == len(keys):
            ctx.skip(known)
        else:
            self._asked[ctx.run_id] = keys

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Keeps what a model answered."""
        asked = self._asked.pop(ctx.run_id, None)
        if asked is None or ctx.error is not None or ctx.is_skipped or ctx.results is None:
            return
        if len(ctx.results) != len(asked) or self._keys(ctx) != asked:
            return
        for key, result in zip(asked, ctx.results, strict=True):
            self._put(key, pickle.dumps(_plain(result)))

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()
            self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def _keys(self, ctx: PredictContext) -> list[bytes]:
        lang = (ctx.decision or {}).get("detection") if getattr(ctx.agent, "uses_lang", False) else None
        shared = (
            self.namespace(ctx),
            ctx.model,
            getattr(ctx.agent, "model_id", None),
            ctx.max_len,
            ctx.head_max_len,
            ctx.questions,
            (lang or {}).get("language"),
        )
        # marshal writes types and order: 1 is not True, and options in another order are another question. What it
        # does not know cannot be keyed, and is let pass by the policy.
        prefix = hashlib.sha256(marshal.dumps(shared, 0)).digest()
        return [hashlib.sha256(prefix + marshal.dumps(state, 0)).digest() for state in ctx.states]

    def _get(self, key: bytes) -> bytes | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if self.ttl_s is not None and self._clock() - entry[0] > self.ttl_s:
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def _put(self, key: bytes, result: bytes) -> None:
        with self._lock:
            if key in self._entries:
                self._drop(key)
            self._entries[key] = (self._clock(), result)
            self.size_bytes += len(result)
            while len(self._entries) > self.entry_count_max or self.size_bytes > self.size_bytes_max:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self.size_bytes -= len(self._entries.pop(key)[1])


def _plain(result: Any) -> Any:
    """Returns a result without what belongs to the call that made it."""
    plain = {key: value for key, value in result.items() if key != "routing"}
    plain["answers"] = {
        question_id: {key: value for key, value in answer.items() if key not in _OF_THE_CALL}
        for question_id, answer in result["answers"].items()
    }
    return plain
