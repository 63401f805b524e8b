"""Extraction points: one entry of a spec, its policies, and the spec that holds them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from undercurrent.errors import ProbingKeyError, ProbingValueError, did_you_mean
from undercurrent.spec.arguments import FrozenArgs
from undercurrent.spec.position import PositionSelector
from undercurrent.spec.words import (
    ExecutionMode,
    InterventionMode,
    OnError,
    OverflowPolicy,
    ProbeKind,
    SampleBy,
    TensorType,
    TimeoutAction,
    UntilKind,
)

__all__ = ["ExtractionPoint", "InterventionPolicy", "ProbeSpec", "Sample", "Until"]

_CRC_COUNT = 1 << 32


@dataclass(frozen=True, slots=True)
class InterventionPolicy:
    """How an inline point waits for its probe."""

    mode: InterventionMode = InterventionMode.REJECT
    timeout_ms: int | None = None
    """The bound of `block_until_signal`, >= 1."""
    on_timeout: TimeoutAction = TimeoutAction.CONTINUE

    def __post_init__(self) -> None:
        _read_words(self, mode=InterventionMode, on_timeout=TimeoutAction)
        if self.mode == InterventionMode.BLOCK_UNTIL_SIGNAL and (
            type(self.timeout_ms) is not int or self.timeout_ms < 1
        ):
            raise ProbingValueError(
                f"`timeout_ms` must be an int >= 1 with mode 'block_until_signal', got {self.timeout_ms!r}; pass e.g."
                " InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=50)"
            )


@dataclass(frozen=True, slots=True)
class Until:
    """What ends the capture of a continuous position, with its value.

    `fixed_count` ends it after `value` records of one layer, counted after `stride`. `stop_token` ends it behind the
    first generated token equal to `value`, a token id or the text of one token; that token's own record is captured.
    """

    kind: UntilKind = UntilKind.GENERATION_END
    value: int | str | None = None

    def __post_init__(self) -> None:
        _read_words(self, kind=UntilKind)


@dataclass(frozen=True, slots=True)
class Sample:
    """Which part of the traffic a point reads.

    The choice depends on the request id (and position) alone, so that every process and every restart chooses alike.
    """

    rate: float
    """Share that is kept, above 0 and up to 1."""
    by: SampleBy = SampleBy.REQUEST
    """`request` keeps or skips whole requests, `record` single positions."""

    def __post_init__(self) -> None:
        _read_words(self, by=SampleBy)

    def keeps_request(self, request_id: str) -> bool:
        """Whether any record of this request is read."""
        return self.by != SampleBy.REQUEST or self._keeps(request_id)

    def keeps_record(self, request_id: str, token_pos: int) -> bool:
        """Whether the record at `token_pos` is read, given that its request is."""
        return self.by != SampleBy.RECORD or self._keeps(f"{request_id}\0{token_pos}")

    def _keeps(self, key: str) -> bool:
        return zlib.crc32(key.encode("utf-8", "surrogatepass")) < self.rate * _CRC_COUNT


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ExtractionPoint:
    """What is read, where, and by which probe.

    Building one by hand refuses nothing, as it always has; `find_point_problems` says what is wrong with it, and the
    router asks that at registration. Words become members of their enum, a list of layers becomes a tuple, and
    `probe_args` are frozen. Points compare by all fields and hash by all but `probe_args`.

    >>> from undercurrent.spec import parse_position
    >>> point = ExtractionPoint(
    ...     name="guard", layers=(4,), tensor_type=TensorType.MLP_OUT, position=parse_position("generated[*]"),
    ...     stride=2, until=None, probe_type="running_mean", probe_kind=ProbeKind.TRAJECTORY,
    ...     execution_mode=ExecutionMode.INLINE, queue_depth=None)
    >>> [generated for generated in range(5) if point.matches(10 + generated, True, prompt_len=10)]
    [0, 2, 4]
    """

    name: str
    layers: tuple[int, ...]
    tensor_type: TensorType
    position: PositionSelector
    stride: int | None
    """Reads every n-th position of a continuous selector, counted from its start."""
    until: UntilKind | Until | None
    probe_type: str
    """The name the probe is registered under."""
    probe_kind: ProbeKind
    execution_mode: ExecutionMode
    queue_depth: int | None
    """How many records may wait in the ring of an async binding; None takes the router's default."""
    intervention: InterventionPolicy | None = None
    probe_args: Mapping[str, Any] = field(default_factory=FrozenArgs, hash=False)
    """Arguments of the probe's constructor; they win over the factory's."""
    overflow_policy: OverflowPolicy | None = None
    """What a full ring does; None takes the router's default."""
    block_timeout_s: float | None = None
    """How long `block` waits for room before the record is dropped and counted; None waits while the worker lives."""
    probe_timeout_s: float | None = None
    """How long one call of an async probe may take before its worker is ended; None takes the router's default."""
    workers: int = 1
    """Over how many processes the bindings of this point are spread."""
    batch: int | None = None
    """How many records one `on_activations` call gets at most; None takes as many as a worker holds."""
    on_error: OnError = OnError.RAISE
    """What an inline point does when its probe raises."""
    threads: int | None = None
    """BLAS, OpenMP and torch threads of the worker; None means one."""
    gpu: bool = False
    """Whether the worker sees the engine's GPUs."""
    sample: Sample | None = None

    def __post_init__(self) -> None:
        _read_words(
            self,
            tensor_type=TensorType,
            probe_kind=ProbeKind,
            execution_mode=ExecutionMode,
            until=UntilKind,
            overflow_policy=OverflowPolicy,
            on_error=OnError,
        )
        if type(self.layers) is not tuple and isinstance(self.layers, Iterable):
            object.__setattr__(self, "layers", tuple(self.layers))
        if type(self.probe_args) is not FrozenArgs and isinstance(self.probe_args, Mapping):
            object.__setattr__(self, "probe_args", FrozenArgs(self.probe_args))

    @property
    def until_rule(self) -> Until:
        """`until` in its full form, whichever form it was given in."""
        if isinstance(self.until, Until):
            return self.until
        return Until(UntilKind.GENERATION_END if self.until is None else self.until)

    def matches(
        self,
        token_index: int,
        is_generated: bool,
        prompt_len: int,
        generated_index: int | None = None,
        num_generated_total: int | None = None,
    ) -> bool:
        """Whether the token at absolute index `token_index` is read, by position and stride."""
        if not self.position.matches(token_index, is_generated, prompt_len, generated_index, num_generated_total):
            return False
        if self.stride is None or not self.position.is_continuous:
            return True
        if generated_index is None:
            generated_index = token_index - prompt_len
        return (generated_index - (self.position.slice_start or 0)) % self.stride == 0

    def matching_range(
        self,
        first_position: int,
        row_count: int,
        *,
        prompt_len: int,
        num_generated_total: int | None = None,
        stop_token_index: int | None = None,
    ) -> range:
        """The rows to read of a block of consecutive positions, by position, stride and `until`; constant time.

        Row 0 is the absolute position `first_position`. `stop_token_index` is the generated index of the first
        stop token of `until`, once the engine has seen it.

        >>> from undercurrent.spec import parse_yaml
        >>> point = parse_yaml('''
        ... extraction_points:
        ...   - {name: a, layers: 4, tensor_type: mlp_out, position: "generated[*]", stride: 2,
        ...      until: {fixed_count: 3}, probe_type: p, probe_kind: trajectory}
        ... ''').get("a")
        >>> list(point.matching_range(0, 20, prompt_len=10))
        [10, 12, 14]
        """
        count_max = None
        if isinstance(self.until, Until) and self.position.is_continuous:
            if self.until.kind is UntilKind.FIXED_COUNT and isinstance(self.until.value, int):
                count_max = self.until.value
            if self.until.kind is UntilKind.STOP_TOKEN and stop_token_index is not None:
                row_count = max(0, min(row_count, prompt_len + stop_token_index + 1 - first_position))
        return self.position.matching_range(
            first_position,
            row_count,
            prompt_len=prompt_len,
            stride=self.stride or 1,
            count_max=count_max,
            num_generated_total=num_generated_total,
        )


def _read_words(value: object, **enums: type[Enum]) -> None:
    """Turns fields of a frozen value that hold a known word into the member of that word."""
    for name, enum in enums.items():
        word = getattr(value, name)
        if type(word) is str and word in enum._value2member_map_:
            object.__setattr__(value, name, enum(word))


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A parsed spec: its version and its points, in the order of the file."""

    version: str
    extraction_points: tuple[ExtractionPoint, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points, in order."""
        return tuple(point.name for point in self.extraction_points)

    def get(self, name: str) -> ExtractionPoint:
        """The point called `name`.

        Raises:
            ProbingKeyError: no point has that name.
        """
        for point in self.extraction_points:
            if point.name == name:
                return point
        suggestion = did_you_mean(name, self.names) or ";"
        known = ", ".join(map(repr, self.names)) or "none"
        raise ProbingKeyError(f"no extraction point is named {name!r}{suggestion} points of this spec: {known}")

    def __iter__(self) -> Iterator[ExtractionPoint]:
        return iter(self.extraction_points)

    def __len__(self) -> int:
        return len(self.extraction_points)
