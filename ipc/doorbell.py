"""The worker's end of a lane: it sleeps here until a ring is ready or mail has come."""

from __future__ import annotations

from undercurrent.ipc.forks import watch_forks
from undercurrent.ipc.memory import map_lane
from undercurrent.ipc.ring import ConsumerRing, extension

__all__ = ["ConsumerLane"]


class ConsumerLane(extension.ConsumerLaneCore):
    """A lane as the worker sees it. Owner: the worker's loop, which closes it. One thread, but for `wake`.

    `wait`, `never_nap`, `take_ready`, `mark_ready`, `mail`, `wake` and `producer_gone` come from the extension.
    """

    def __new__(cls, control_fd: int, payload_fd: int) -> ConsumerLane:
        """Maps and checks the lane; the fds stay the caller's.

        Raises:
            RingCorruptError: seals, sizes or header are not those of a lane of this format.
        """
        extension.monotonic_ns()  # where the extension is missing, this says so before anything is mapped
        control, payload = map_lane(control_fd, payload_fd)
        lane = super().__new__(cls, control, payload)
        watch_forks(lane)
        return lane

    def attach_ring(self, ring_index: int, *, queue_depth: int, policy: int, generation: int) -> ConsumerRing:
        """Attaches behind the last record that a predecessor took, and marks the ring ready.

        Raises:
            RingCorruptError: the ring's block says something else than the arguments.
            RingError: the lane is closed.
        """
        return ConsumerRing(self, ring_index, queue_depth, policy, generation)

    def close(self) -> None:
        """Lets go of the memory; views that still live keep it mapped. Idempotent."""
        self._close()

    def __enter__(self) -> ConsumerLane:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        self._forget()
