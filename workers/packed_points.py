"""Which probe definitions the engine's process has packed, and the number each is known by in the workers."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict

from undercurrent.core import ProbeFactory
from undercurrent.spec import ExtractionPoint
from undercurrent.workers.plans import BindingPlan
from undercurrent.workers.transfer import PackedPoint, pack_point

PACKED_POINTS_MAX = 4096


class PackedPoints:
    """Packs each pair of factory and point once. Thread-safe."""

    def __init__(self, *, is_thread: bool) -> None:
        """With `is_thread` nothing is pickled: the worker's thread finds the objects in `definitions`."""
        self.definitions: dict[int, tuple[ProbeFactory, ExtractionPoint]] = {}
        self._is_thread = is_thread
        self._lock = threading.Lock()
        # The objects are kept beside their ids, so that an id names no other object while its entry lives.
        self._entries: OrderedDict[tuple[int, int], tuple[ProbeFactory, ExtractionPoint, PackedPoint, int]] = (
            OrderedDict()
        )
        self._ids: dict[bytes, int] = {}
        self._numbers = itertools.count(1)

    def pack(self, plan: BindingPlan) -> tuple[PackedPoint, int]:
        """Returns the packed definition and its number.

        Raises:
            ProbeTransferError: the probe cannot travel.
        """
        identity = (id(plan.factory), id(plan.point))
        with self._lock:
            known = self._entries.get(identity)
            if known is not None:
                self._entries.move_to_end(identity)
                return known[2], known[3]
        packed = self._pack_for_thread(plan) if self._is_thread else pack_point(plan.factory, plan.point)
        with self._lock:
            point_id = self._ids.get(packed.digest) or next(self._numbers)
            self._ids[packed.digest] = point_id
            self._entries[identity] = (plan.factory, plan.point, packed, point_id)
            if self._is_thread:
                self.definitions[point_id] = (plan.factory, plan.point)
            if len(self._entries) > PACKED_POINTS_MAX:
                self._forget_oldest()
        return packed, point_id

    def _pack_for_thread(self, plan: BindingPlan) -> PackedPoint:
        name = f"{plan.factory.probe_cls!r}/{plan.point.name}"
        return PackedPoint(b"", f"{name}/{id(plan.factory)}/{id(plan.point)}".encode(), name.encode())

    def _forget_oldest(self) -> None:
        _, (_, _, packed, point_id) = self._entries.popitem(last=False)
        self._ids.pop(packed.digest, None)  # packed again it gets a new number, and is loaded again
        self.definitions.pop(point_id, None)
