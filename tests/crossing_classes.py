"""Classes that values of the tests are made of; importable by name, as a user's module is."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec


class Colour(enum.Enum):
    """Members are told apart by name: two have values that compare equal."""

    RED = 1
    ONE = True  # an alias of RED
    BLUE = "blue"


class Word(str, enum.Enum):  # noqa: UP042 - as the published enums are
    """A member that is also text."""

    STOP = "stop"


class Number(enum.IntEnum):
    """A member that is also a number."""

    SEVEN = 7


class Access(enum.Flag):
    """Members that combine."""

    READ = enum.auto()
    WRITE = enum.auto()


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


@dataclass
class Verdict:
    """A plain dataclass with a default that is made anew each time."""

    label: str
    scores: list[Any] = field(default_factory=list)
    born: ClassVar[int] = 0

    def __post_init__(self) -> None:
        type(self).born += 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen dataclass with slots, one of them without a value at first; can be a key."""

    key: Any
    later: Any = field(init=False, compare=False, repr=False)


@dataclass
class DictVerdict(dict):  # type: ignore[type-arg]
    """A dataclass whose items are no fields."""

    label: str = ""


class Structure(msgspec.Struct, frozen=True, tag=True):
    """A msgspec Struct."""

    name: str
    parts: tuple[Any, ...] = ()


class Plain:
    """A class without a form of its own: it crosses by pickle or not at all."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.content == self.content

    __hash__ = None  # type: ignore[assignment]
