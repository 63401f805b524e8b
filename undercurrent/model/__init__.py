"""The front door: a model, a spec and probes as one object.

`ProbedModel` loads a model, starts the workers and generates: `generate` for texts, `stream` for tokens and signals as
they come. A `GenerationOutput` holds the text at once and waits for verdicts when they are read. `record_prompts` keeps
what a model computes, with no probe running, for a replay.
"""

from undercurrent.errors import ProbedModelConfigError
from undercurrent.model.output import GenerationOutput, SignalEvent, TokenEvent
from undercurrent.model.probed_model import ProbedModel
from undercurrent.model.recording import record_prompts
from undercurrent.model.settings import DEFAULT_MAX_NEW_TOKENS
from undercurrent.model.streaming import GenerationStream

__all__ = [
    "DEFAULT_MAX_NEW_TOKENS",
    "DEFAULT_VLLM_MAX_CONCURRENCY",
    "GenerationOutput",
    "GenerationStream",
    "ProbedModel",
    "ProbedModelConfigError",
    "SignalEvent",
    "TokenEvent",
    "record_prompts",
]

DEFAULT_VLLM_MAX_CONCURRENCY = 64
"""Prompts of a list that a vLLM backend runs at once; kept for callers, as this release has no vLLM engine."""
