"""What a run is asked to do, and how its manifest says it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from undercurrent.runtime.domain import Conversation, DedupConfig, GenerationConfig, PlayerSet
from undercurrent.runtime.pipeline.estimators import EstimatorSettings
from undercurrent.runtime.protocols import BatchGenerator

__all__ = ["CoalitionModel", "PrefixReusing", "RunManifest", "RunSettings"]


class CoalitionModel(BatchGenerator, Protocol):
    """A model that generates for coalitions: a job's snapshot is a `Conversation`, an answer a `GenerationRecord`."""

    @property
    def model_id(self) -> str:
        """Part of every key: what changes the weights, the template or the probes changes it."""


@runtime_checkable
class PrefixReusing(Protocol):
    """A model that counts what it did not have to compute again."""

    @property
    def kv_cache_hits(self) -> int:
        """Prompts of which a prefix was there, since it was loaded."""

    @property
    def kv_cache_reused_tokens(self) -> int:
        """Their tokens."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which parts of the prompt are left out, how, and how their values are found."""

    players: str = "sentences"
    """One of `PLAYER_KINDS`."""
    roles: tuple[str, ...] = ()
    """Messages of other roles are always present; empty for all."""
    players_max: int = 24
    absence_policy: str = "delete"
    """One of `ABSENCE_POLICIES`."""
    value: str = "similarity"
    """`similarity`, `exact_match`, `answer_log_likelihood`, or the name of a probe's point."""
    estimator: EstimatorSettings = EstimatorSettings()
    generation: GenerationConfig = GenerationConfig()
    dedup: DedupConfig = DedupConfig()


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` says: enough to score the run again without the model."""

    run_id: str
    snapshot_id: str
    model_id: str
    estimand: str
    estimator: str
    value_fn: str
    absence_policy: str
    players: str
    player_ids: tuple[str, ...]
    player_set: PlayerSet
    conversation: Conversation
    config: RunSettings
    normalizer: str = "identity"
    backend_kind: str = "undercurrent"

    @classmethod
    def of(cls, settings: RunSettings, conversation: Conversation, players: PlayerSet, model_id: str) -> RunManifest:
        """The manifest of a run; equal runs have equal ones, and equal `run_id`s."""
        snapshot_id = conversation.snapshot_id
        seed = hashlib.sha256(msgspec.json.encode([settings, model_id, players.player_ids])).hexdigest()
        return cls(
            run_id=f"{snapshot_id[:16]}-{seed[:12]}",
            snapshot_id=snapshot_id,
            model_id=model_id,
            estimand={"banzhaf": "banzhaf", "loo": "leave_one_out"}.get(settings.estimator.name, "shapley"),
            estimator=settings.estimator.name,
            value_fn=settings.value,
            absence_policy=settings.absence_policy,
            players=players.kind,
            player_ids=players.player_ids,
            player_set=players,
            conversation=conversation,
            config=settings,
        )

    def to_dict(self) -> Mapping[str, object]:
        """The JSON object; see `ManifestPayloadSource`."""
        payload: Mapping[str, object] = msgspec.to_builtins(self)
        return payload
