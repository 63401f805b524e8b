"""What a model can give, read from its configuration alone: nothing is computed and no weights are loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from undercurrent.engines.base import EngineCapabilities, EngineLimitationError
from undercurrent.engines.hf_modules import find_modules
from undercurrent.errors import ProbedModelConfigError

__all__ = ["ModelFacts", "describe_loaded_model", "describe_model"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's structure. What the configuration does not say is None."""

    name: str
    model_class: str | None
    model_type: str | None
    layer_count: int | None
    hidden_size: int | None
    attention_head_count: int | None
    vocabulary_size: int | None
    parameter_count: int | None
    """Shared weights counted once."""
    capabilities: EngineCapabilities | None
    """None where the model could not be built; `note` says why."""
    note: str | None


def describe_model(
    name: str | os.PathLike[str], *, revision: str | None = None, allows_remote_code: bool = False
) -> ModelFacts:
    """The facts of a model by hub name or folder; fetches `config.json` and builds the modules on the meta device.

    Raises:
        ProbedModelConfigError: the configuration is of no known kind, or needs code that was not allowed.
        EngineLimitationError: the model is no decoder-only language model.
        OSError: there is no such model.
    """
    text = os.fspath(name)
    try:
        config: Any = AutoConfig.from_pretrained(text, revision=revision, trust_remote_code=allows_remote_code)
    except ValueError as error:
        raise ProbedModelConfigError(
            f"the configuration of {text!r} cannot be used: {_first_line(error)}; check the name, or allow the model's"
            " own code"
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise EngineLimitationError(
            f"{text!r} is an encoder-decoder model ({config.model_type}); engines read decoder-only models"
        )
    model, note = _build_without_weights(config, allows_remote_code)
    if model is None:
        return _facts(text, config, note=note)
    return _with_modules(text, config, model)


def describe_loaded_model(name: str, model: Any) -> ModelFacts:
    """The same facts of a model object.

    Raises:
        EngineLimitationError: the model is no decoder-only language model.
    """
    return _with_modules(name, model.config, model)


def _build_without_weights(config: Any, allows_remote_code: bool) -> tuple[Any, str | None]:
    logging: Any = transformers_logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    models: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            return models.from_config(config, trust_remote_code=allows_remote_code), None
    except Exception as error:
        # Model code of anyone, run on a device it may never have seen: whatever it raises, the numbers remain.
        return None, f"the model cannot be built without weights ({type(error).__name__}: {_first_line(error)})"
    finally:
        logging.set_verbosity(verbosity)


def _with_modules(name: str, config: Any, model: Any) -> ModelFacts:
    modules = find_modules(model)
    return _facts(
        name,
        config,
        model_class=type(model).__name__,
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        capabilities=modules.capabilities(),
    )


def _facts(
    name: str,
    config: Any,
    *,
    model_class: str | None = None,
    parameter_count: int | None = None,
    capabilities: EngineCapabilities | None = None,
    note: str | None = None,
) -> ModelFacts:
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    architectures = getattr(config, "architectures", None) or [None]
    return ModelFacts(
        name=name,
        model_class=model_class or architectures[0],
        model_type=getattr(config, "model_type", None),
        layer_count=capabilities.layer_count if capabilities else getattr(text_config, "num_hidden_layers", None),
        hidden_size=getattr(text_config, "hidden_size", None),
        attention_head_count=getattr(text_config, "num_attention_heads", None),
        vocabulary_size=getattr(text_config, "vocab_size", None),
        parameter_count=parameter_count,
        capabilities=capabilities,
        note=note,
    )


def _first_line(error: Exception) -> str:
    """What transformers says first; pages of advice follow."""
    return str(error).partition("\n")[0].rstrip(".")
