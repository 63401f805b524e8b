"""Where models live: an engine runs a model and feeds what it computes to a router.

`HFEngine` reads Hugging Face transformers, `SyntheticEngine` needs no model. An engine's contract is `EngineAdapter`;
what a loaded model can give is its `EngineCapabilities`, what it cannot is an `EngineLimitationError` at registration.
`BatchCapture` turns positions into rows for engines of your own. `find_packaged_model` and `build_tiny_model` give
models without a download. The names that need torch load it on first use; importing this package does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from undercurrent.engines.base import (
    BatchEngine,
    CaptureAuditError,
    EngineAdapter,
    EngineCapabilities,
    EngineLimitationError,
    FinishReason,
    Generation,
)
from undercurrent.engines.capture import BatchCapture, CapturedRows, SequenceShape
from undercurrent.engines.packaged import find_packaged_model
from undercurrent.engines.recording import ActivationRecorder
from undercurrent.engines.recording_reader import Recording, RecordingError
from undercurrent.engines.replaying import ReplayedRequest, replay
from undercurrent.engines.synthetic import SyntheticEngine
from undercurrent.errors import MissingDependencyError

if TYPE_CHECKING:
    from undercurrent.engines.hf import HFEngine
    from undercurrent.engines.hf_inspection import ModelFacts, describe_loaded_model, describe_model
    from undercurrent.engines.hf_stream import StreamPiece, TokenStream
    from undercurrent.engines.tiny import build_tiny_model

__all__ = [
    "ActivationRecorder",
    "BatchCapture",
    "BatchEngine",
    "CaptureAuditError",
    "CapturedRows",
    "EngineAdapter",
    "EngineCapabilities",
    "EngineLimitationError",
    "FinishReason",
    "Generation",
    "HFEngine",
    "ModelFacts",
    "Recording",
    "RecordingError",
    "ReplayedRequest",
    "SequenceShape",
    "StreamPiece",
    "SyntheticEngine",
    "TokenStream",
    "build_tiny_model",
    "describe_loaded_model",
    "describe_model",
    "find_packaged_model",
    "replay",
]

_NEEDS_TORCH = {
    "HFEngine": "undercurrent.engines.hf",
    "ModelFacts": "undercurrent.engines.hf_inspection",
    "StreamPiece": "undercurrent.engines.hf_stream",
    "TokenStream": "undercurrent.engines.hf_stream",
    "build_tiny_model": "undercurrent.engines.tiny",
    "describe_loaded_model": "undercurrent.engines.hf_inspection",
    "describe_model": "undercurrent.engines.hf_inspection",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_NEEDS_TORCH[name])
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "transformers", "tokenizers"):
            raise
        raise MissingDependencyError(
            f"{name!r} needs {error.name}, which is not installed; run: pip install 'undercurrent[hf]'", name=error.name
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
