"""A binding's last word: its result in its ring's answer cell, taken out by whoever waits for it.

No thread but the worker's and the waiter's has a part in it. Where that cannot be, the result comes as `Finished` on
the lane's socket: a result longer than a cell, sink objects in the engine's process, a worker that died, a guard.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from undercurrent.core import Coverage, ProbeResult
from undercurrent.ipc.layout import CORRUPT, OK, SEQUENCE_END, TIMEOUT
from undercurrent.workers.value_codes import PLAIN_TYPES, are_plain

if TYPE_CHECKING:
    from undercurrent.workers.binding import AsyncBinding
    from undercurrent.workers.lane import Lane

__all__ = ["BY_FRAME", "PLAIN", "VALUE", "LastWords", "encode_plain", "encode_value_word"]

_logger = logging.getLogger("undercurrent.workers")

PLAIN: Final = 1
"""Verdict and metadata are plain values: what `encode_plain` wrote."""
VALUE: Final = 2
"""Anything else, as `encode_value` writes it, and the meter's words: what `encode_value_word` wrote."""
BY_FRAME: Final = 3
"""The answer is empty: the result comes as `Finished`."""
_LATE_S: Final = 0.05
_COVERAGE_KEYS: Final = Coverage().to_dict().keys()

_encode = msgspec.msgpack.Encoder().encode
_decode_plain = msgspec.msgpack.Decoder(tuple[Any, dict[str, Any], list[int]]).decode
_decode_value = msgspec.msgpack.Decoder(tuple[bytes, list[int]]).decode


def encode_plain(result: ProbeResult, measured: bytes) -> bytes | None:
    """Returns an answer of kind `PLAIN`, or None where the result is more than plain values."""
    verdict, metadata = result.verdict, result.metadata
    if type(verdict) not in PLAIN_TYPES or result.signal_history:
        return None
    if not are_plain(item for item in metadata.items() if item[0] != "coverage"):
        return None
    try:
        return _encode((verdict, metadata, _words(measured)))
    except (OverflowError, UnicodeEncodeError):  # an integer of over 64 bits, half a surrogate pair
        return None


def encode_value_word(result: bytes, measured: bytes) -> bytes:
    """Returns an answer of kind `VALUE`: an encoded result, and what `PointMeter.take` returned."""
    return _encode((result, _words(measured)))


def _words(measured: bytes) -> list[int]:
    # Most of the meter's words are 0, which msgpack writes in one byte and not in eight.
    return array("Q", measured).tolist()


class LastWords:
    """Takes results out of answer cells. Thread-safe; nothing is taken twice, as `finish` knows a binding once."""

    def __init__(
        self,
        finish: Callable[[Lane, int, bytes | ProbeResult, Sequence[int]], None],
        is_relaying: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
        after: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """`finish(lane, binding_id, result, measured)` is called on the thread that found the answer.

        `post` runs a function on the supervisor's thread, and `after` does so in so many seconds, asked on that thread.
        """
        self._finish = finish
        self._is_relaying = is_relaying
        self._post = post
        self._after = after

    def ask(self, binding: AsyncBinding, drain_until: float | None) -> bool:
        """Ends the ring of a binding and asks for its last word; False where it must be asked for on the socket."""
        if self._is_relaying():
            return False
        interrupts = binding.ring.answer_interrupts
        if not binding.ring.end(math.inf if drain_until is None else drain_until):
            return False
        binding.last_word_interrupts = interrupts
        return True

    def wait(self, binding: AsyncBinding, deadline: float) -> None:
        """Waits for the last word, which then is the binding's result, or until it must come on another way."""
        interrupts = binding.last_word_interrupts
        if interrupts is None:
            return
        status, kind, data = binding.ring.await_answer(SEQUENCE_END, deadline, interrupts)
        if status == TIMEOUT:
            self._post(lambda: self._look_later(binding))
        else:
            self._take(binding, status, kind, data)

    def look(self, binding: AsyncBinding) -> None:
        """Takes the last word if it is there, and waits for none: the worker is gone, or somebody has given up."""
        if binding.last_word_interrupts is not None:
            self._take(binding, *binding.ring.await_answer(SEQUENCE_END, 0.0, binding.last_word_interrupts))

    def _look_later(self, binding: AsyncBinding) -> None:
        """Nobody waits any more, and a ring that is over must not stay: looked at until the last word came."""
        self.look(binding)
        if not binding.is_finished:
            self._after(_LATE_S, lambda: self._look_later(binding))

    def _take(self, binding: AsyncBinding, status: int, kind: int, data: bytes) -> None:
        if status == OK:
            binding.last_word_interrupts = None
        try:
            if status == OK and kind == PLAIN:
                verdict, metadata, words = _decode_plain(data)
                if metadata["coverage"].keys() != _COVERAGE_KEYS:
                    raise ValueError("no coverage")
                plan = binding.plan
                result = ProbeResult(plan.request_id, plan.point.name, verdict, [], metadata)
                self._finish(binding.lane, binding.binding_id, result, words)
            elif status == OK and kind == VALUE:
                self._finish(binding.lane, binding.binding_id, *_decode_value(data))
            elif status == CORRUPT or (status == OK and kind != BY_FRAME):
                self._end_liar(binding)
        except (msgspec.MsgspecError, LookupError, AttributeError, ValueError):
            self._end_liar(binding)

    def _end_liar(self, binding: AsyncBinding) -> None:
        lane = binding.lane
        _logger.error("worker %s writes nonsense and is ended", lane.name)
        if hasattr(lane.process, "kill"):
            lane.process.kill()
