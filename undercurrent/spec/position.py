"""Positions: which tokens a point reads, as written in a spec and as an engine asks.

Every selector picks an arithmetic progression of absolute positions, so an engine never walks a prompt token by token:
`PositionSelector.matching_range` turns a block of consecutive positions into a `range` of row indices in constant time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from undercurrent.errors import PositionSyntaxError
from undercurrent.spec.words import PositionKind

__all__ = ["INDEX_MAX", "POSITION_PATTERN", "PositionSelector", "parse_position"]

INDEX_MAX = 10**18 - 1
"""The largest index and offset the grammar can write: eighteen digits stay within a signed 64-bit position."""

# ASCII digits only: `\d` would take digits of any script.
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_POINT = re.compile(r"(prompt|generated)\[(-?[0-9]{1,18})\]([+-][0-9]{1,18})?")
_CONTINUOUS = re.compile(r"generated\[(?:(\*)|([0-9]{1,18}):([0-9]{1,18})?)\]([+-][0-9]{1,18})?")

POSITION_PATTERN = (
    rf"^\s*(?:-0{{1,18}}|[0-9]{{1,18}}|{_POINT.pattern}|generated\[(?:\*|[0-9]{{1,18}}:(?:[0-9]{{1,18}})?)\])\s*$"
)
"""The positions that can match as one regular expression for the JSON Schema; see `BEYOND_JSON_SCHEMA` for the rest."""

_GRAMMAR = (
    "an absolute integer index such as 5, 'prompt[i]', 'prompt[-i]', 'generated[i]' or 'generated[-i]' (each of these"
    " four may end in an offset such as '+1' or '-2'), 'generated[*]', 'generated[start:]' or 'generated[start:stop]'"
)


@dataclass(frozen=True, slots=True)
class PositionSelector:
    """One parsed position; build it with `parse_position`."""

    kind: PositionKind
    index: int | None = None
    """The index of the point forms; negative counts from the end of the prompt or of the generation."""
    slice_start: int | None = None
    """First generated index of `generated[start:…]`."""
    slice_stop: int | None = None
    """Generated index behind the last; None means no end."""
    offset: int = 0
    """Added to a point form after it is resolved; it may cross the border between prompt and generation."""
    raw: int | str = field(default="", compare=False)
    """What stood in the spec."""

    @property
    def is_continuous(self) -> bool:
        """Whether the selector can match more than one position."""
        return self.kind is PositionKind.GENERATED_WILDCARD or self.kind is PositionKind.GENERATED_SLICE

    @property
    def needs_generation_length(self) -> bool:
        """Whether it can only be resolved once it is known how many tokens will be generated."""
        return self.kind is PositionKind.GENERATED_INDEX and self.index is not None and self.index < 0

    def resolve_absolute(self, prompt_len: int, num_generated_total: int | None = None) -> int | None:
        """The absolute position of a point form; None for a continuous form or an unknown generation length."""
        if self.index is None or self.is_continuous:
            return None
        if self.kind is PositionKind.ABSOLUTE:
            return self.index + self.offset
        if self.kind is PositionKind.PROMPT_INDEX:
            return self.index + self.offset + (prompt_len if self.index < 0 else 0)
        if self.index >= 0:
            return prompt_len + self.index + self.offset
        if num_generated_total is None:
            return None
        return prompt_len + num_generated_total + self.index + self.offset

    def matches(
        self,
        token_index: int,
        is_generated: bool,
        prompt_len: int,
        generated_index: int | None = None,
        num_generated_total: int | None = None,
    ) -> bool:
        """Whether the token at absolute index `token_index` is selected.

        `generated_index` is taken from `token_index` and `prompt_len` when it is left out.
        """
        if not self.is_continuous:
            return token_index >= 0 and self.resolve_absolute(prompt_len, num_generated_total) == token_index
        if not is_generated:
            return False
        if generated_index is None:
            generated_index = token_index - prompt_len
        start = self.slice_start or 0
        return generated_index >= start and (self.slice_stop is None or generated_index < self.slice_stop)

    def matching_range(
        self,
        first_position: int,
        row_count: int,
        *,
        prompt_len: int,
        stride: int = 1,
        count_max: int | None = None,
        num_generated_total: int | None = None,
    ) -> range:
        """The rows of a block that are selected, as a `range` of row indices; constant time.

        The block holds the absolute positions `first_position` to `first_position + row_count - 1`, one per row.
        `stride` counts from the selector's first position, and `count_max` bounds how many positions match in all,
        so the answer does not depend on how a prompt or a generation is cut into blocks.

        >>> parse_position("generated[2:]").matching_range(10, 8, prompt_len=10, stride=3)
        range(2, 8, 3)
        >>> parse_position("prompt[-1]").matching_range(0, 10, prompt_len=10)
        range(9, 10)
        """
        if not self.is_continuous:
            row = self.resolve_absolute(prompt_len, num_generated_total)
            if row is None or not 0 <= first_position <= row < first_position + row_count:
                return range(0)
            return range(row - first_position, row - first_position + 1)
        start = prompt_len + (self.slice_start or 0)
        stop = first_position + row_count
        if self.slice_stop is not None:
            stop = min(stop, prompt_len + self.slice_stop)
        if count_max is not None:
            stop = min(stop, start + count_max * stride)
        if start < first_position:
            start += -(-(first_position - start) // stride) * stride
        return range(start - first_position, max(stop, start) - first_position, stride)

    def to_raw(self) -> int | str:
        """The spelling for a spec file; parsing it gives an equal selector."""
        return self.raw if self.raw != "" else self._spell()

    def _spell(self) -> int | str:
        offset = f"{self.offset:+d}" if self.offset else ""
        if self.kind is PositionKind.ABSOLUTE:
            return (self.index or 0) + self.offset
        if self.kind is PositionKind.PROMPT_INDEX:
            return f"prompt[{self.index}]{offset}"
        if self.kind is PositionKind.GENERATED_INDEX:
            return f"generated[{self.index}]{offset}"
        if self.kind is PositionKind.GENERATED_WILDCARD:
            return "generated[*]"
        stop = "" if self.slice_stop is None else self.slice_stop
        return f"generated[{self.slice_start or 0}:{stop}]"


def parse_position(value: int | str) -> PositionSelector:
    """Reads a position as a spec writes it.

    >>> parse_position("prompt[-1]+1").resolve_absolute(prompt_len=10)
    10

    Raises:
        PositionSyntaxError: `value` is not in the grammar. Case counts, and there are no spaces inside.
    """
    if isinstance(value, bool):
        raise _refusal(value, "YAML reads unquoted yes, no, true and false as booleans, which are no positions")
    if isinstance(value, int):
        return PositionSelector(PositionKind.ABSOLUTE, index=int(value), raw=value)
    if not isinstance(value, str):
        raise _refusal(value, f"expected an int or a str, got {type(value).__name__}")
    text = value.strip()
    if _INTEGER.fullmatch(text):
        return PositionSelector(PositionKind.ABSOLUTE, index=int(text), raw=value)
    if match := _POINT.fullmatch(text):
        kind = PositionKind.PROMPT_INDEX if match[1] == "prompt" else PositionKind.GENERATED_INDEX
        return PositionSelector(kind, index=int(match[2]), offset=int(match[3] or 0), raw=value)
    if match := _CONTINUOUS.fullmatch(text):
        return _continuous(value, match)
    raise _refusal(value, f"expected {_GRAMMAR}")


def _continuous(value: str, match: re.Match[str]) -> PositionSelector:
    star, start_text, stop_text, offset_text = match.groups()
    if offset_text:
        raise _refusal(value, "an offset goes with one position; shift the start and stop of a slice instead")
    if star:
        return PositionSelector(PositionKind.GENERATED_WILDCARD, raw=value)
    start = int(start_text)
    stop = int(stop_text) if stop_text else None
    if stop is not None and stop <= start:
        raise _refusal(
            value,
            f"slice stop {stop} must be greater than start {start}, as in 'generated[{start}:{start + 1}]',"
            f" or 'generated[{start}:]' for no end",
        )
    return PositionSelector(PositionKind.GENERATED_SLICE, slice_start=start, slice_stop=stop, raw=value)


def _refusal(value: object, reason: str) -> PositionSyntaxError:
    return PositionSyntaxError(f"invalid position {value!r}: {reason}")
