"""Loads models and tokenizers of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

__all__ = ["load_by_name", "without_progress_bars"]


def load_by_name(name: Any, tokenizer: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """A model in evaluation mode, and its tokenizer unless one is given.

    Raises:
        OSError: there is no such model.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(name, **options)
    model.eval()
    return model, AutoTokenizer.from_pretrained(name) if tokenizer is None else tokenizer


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
