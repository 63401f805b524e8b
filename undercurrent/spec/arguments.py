"""`FrozenArgs`: the read-only mapping that holds a point's `probe_args`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["FrozenArgs"]


class FrozenArgs(Mapping[str, Any]):
    """A read-only, picklable mapping; equal to a plain dict of the same items.

    The mapping is copied one level deep. Values that can change are copied for each probe instance by
    `ProbeFactory.spawn`, not here.
    """

    __slots__ = ("_items",)

    _items: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        self._items = MappingProxyType(dict(data or {}))

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return dict(self._items) == dict(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FrozenArgs({dict(self._items)!r})"

    def __reduce__(self) -> tuple[type[FrozenArgs], tuple[dict[str, Any]]]:
        # A mapping proxy has no pickle of its own.
        return FrozenArgs, (dict(self._items),)
