"""The values a run is made of: settings, generations, prompts and their players."""

from undercurrent.runtime.domain.absence import ABSENCE_POLICIES, render
from undercurrent.runtime.domain.config import DedupConfig, DedupMode, GenerationConfig
from undercurrent.runtime.domain.conversation import Conversation, Message, Part
from undercurrent.runtime.domain.generation import GenerationRecord, ProbeValue
from undercurrent.runtime.domain.players import PLAYER_KINDS, Player, PlayerSet, partition

__all__ = [
    "ABSENCE_POLICIES",
    "PLAYER_KINDS",
    "Conversation",
    "DedupConfig",
    "DedupMode",
    "GenerationConfig",
    "GenerationRecord",
    "Message",
    "Part",
    "Player",
    "PlayerSet",
    "ProbeValue",
    "partition",
    "render",
]
