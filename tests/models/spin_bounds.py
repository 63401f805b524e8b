"""What spin runs: bounded configurations of exchange_ring.pml, and the planted bugs with what must find each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planted:
    name: str  # -DBUG_<name>
    defines: str  # the configuration that finds it
    finds: str  # what spin must say


_TORN = "d0[hand["
_LOST_WAKE_UP = "invalid end state"

SHORT = tuple(
    f"POL={policy} {bounds}"
    for policy in (0, 1, 2)
    for bounds in (
        "M=5 K=1",
        "M=5 K=2",
        "M=4 K=2 KC=1",
        "M=4 K=1 KP=1",
        "M=3 K=1 KC=1 KP=1",
        "M=3 K=2 KC=1 KP=1",
        "M=4 K=1 EARLY=1 KC=1",
        "M=4 K=1 STEP=2 MAIL=1",
        "M=4 K=1 COPY=1 KC=1",
        "M=3 K=1 D=1 KC=1 KP=1",
    )
)
LONG = tuple(
    f"POL={policy} {bounds}"
    for policy in (0, 1, 2)
    for bounds in (
        "M=6 K=2",
        "M=5 K=2 D=3 KC=1",
        "M=4 K=1 KC=2 KP=1",
        "M=4 K=2 KC=2 KP=1",
        "M=4 K=1 STEP=2 MAIL=1 KC=1 KP=1",
        "M=4 K=1 COPY=1 KC=2 KP=1",
        "M=4 K=1 D=1 KC=2 KP=1",
    )
)
PLANTED = (
    Planted("TAKE_UNCHECKED", "POL=0 M=4", "assertion violated"),
    Planted("SWAP_UNCHECKED", "POL=0 M=4", "assertion violated"),
    Planted("PUBLISH_BEFORE_DATA", "POL=0 M=4", _TORN),
    Planted("HELD_SLOT_GIVEN_BACK", "POL=0 M=5", _TORN),
    Planted("OLD_HAND_DEALT_AGAIN", "POL=0 M=5 KC=1", _TORN),
    Planted("COPY_KEPT_UNCHECKED", "POL=0 M=5 COPY=1", "assertion violated"),
    Planted("EVICTED_NOT_SET", "POL=0 M=4", "x_dropped==g_dropped"),
    Planted("TAKE_FORGETS_EVICTED", "POL=0 M=4", "x_dropped==g_dropped"),
    Planted("RETRY_KEEPS_EVICTED", "POL=0 M=4", "x_dropped==g_dropped"),
    Planted("PROGRESS_BEFORE_SWAP", "POL=0 M=4", "g_published"),
    Planted("PROGRESS_IN_TWO_STORES", "POL=0 M=4", "x_dropped==g_dropped"),
    Planted("LOST_NOT_ACCOUNTED", "POL=0 M=4 KC=1", "g_in_hand"),
    Planted("TRUST_IN_TAIL", "POL=0 M=4 KP=1", _LOST_WAKE_UP),
    Planted("END_AFTER_LOOK", "POL=0 M=4", "consumer_done"),
    Planted("CLOSE_WITHOUT_RINGING", "POL=0 M=4", _LOST_WAKE_UP),
    Planted("PARK_WITHOUT_RECHECK", "POL=0 M=4", _LOST_WAKE_UP),
    Planted("TICK_SEEN_AFTER_DRAIN", "POL=0 M=4", _LOST_WAKE_UP),
    Planted("SLEEP_LOOKED_AT_BEFORE_TICK", "POL=2 M=4 D=1", _LOST_WAKE_UP),
    Planted("EARLY_STOP_WITHOUT_MARK", "POL=2 M=4 EARLY=1", _LOST_WAKE_UP),
    Planted("BORN_WITHOUT_LOOK", "POL=0 M=4 KC=1", _LOST_WAKE_UP),
    Planted("ROOM_WITHOUT_RECHECK", "POL=2 M=4", _LOST_WAKE_UP),
    Planted("WAIT_WITHOUT_RINGING", "POL=2 M=4 STEP=3", _LOST_WAKE_UP),
)
