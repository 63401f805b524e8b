"""Loads models and tokenizers of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

__all__ = ["load_by_name", "read_layer_count", "without_progress_bars"]

_CONFIG_OPTIONS = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


def load_by_name(name: Any, tokenizer: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """A model in evaluation mode, and its tokenizer unless one is given.

    Raises:
        OSError: there is no such model.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(name, **options)
    model.eval()
    return model, AutoTokenizer.from_pretrained(name) if tokenizer is None else tokenizer


def read_layer_count(name: str, options: Mapping[str, Any]) -> int | None:
    """Decoder layers by the model's configuration, without its weights; None where that cannot be read or is silent."""
    known = {key: value for key, value in options.items() if key in _CONFIG_OPTIONS}
    try:
        config: Any = AutoConfig.from_pretrained(name, **known)
    except (OSError, ValueError):
        # Whatever is wrong, loading the model says it better.
        return None
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    return count if isinstance(count, int) else None


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keeps transformers from drawing on the terminal; a setting of the whole process, put back at the end."""
    logging: Any = transformers_logging
    was_enabled = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()
