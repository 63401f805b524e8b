"""The values a run is made of: settings and generations."""

from undercurrent.runtime.domain.config import DedupConfig, DedupMode, GenerationConfig
from undercurrent.runtime.domain.generation import GenerationRecord, ProbeValue

__all__ = ["DedupConfig", "DedupMode", "GenerationConfig", "GenerationRecord", "ProbeValue"]
