"""`HFEngineAdapter`: the Hugging Face engine under its name, arguments and errors of 0.1.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from undercurrent.core import ProbeSignal
from undercurrent.engines import EngineLimitationError, Generation, HFEngine
from undercurrent.engines.base import Prompt, RowRouter
from undercurrent.errors import ProbingRuntimeError
from undercurrent.spec import ExtractionPoint

__all__ = ["HFAdapterLimitationError", "HFEngineAdapter"]

HFAdapterLimitationError = EngineLimitationError

_Part = TypeVar("_Part")


class HFEngineAdapter(HFEngine):
    """`HFEngine` for code written for 0.1.0.

    Registering, generating and unregistering are what they were, with right positions: a way of generating that 0.1.0
    read wrongly is read rightly or refused with `HFAdapterLimitationError`. `generate` may run on several threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last_stop: tuple[str, str | None, ProbeSignal] | None = None

    def load_model(self, model_name_or_path: Any, **options: Any) -> None:
        """Loads a model by name or folder, or takes a model object with its `tokenizer=`, onto `device=` ("cpu").

        Raises:
            HFAdapterLimitationError: a model object without a tokenizer, or a model without decoder layers.
            OSError: transformers finds no such model.
        """
        if not isinstance(model_name_or_path, str) and options.get("tokenizer") is None:
            raise HFAdapterLimitationError(
                f"a {type(model_name_or_path).__name__} needs `tokenizer=`; pass it, or a model's name"
            )
        super().load_model(model_name_or_path, **{"device": "cpu", **options})

    def register_extraction(self, request_id: str, extraction_points: Sequence[ExtractionPoint]) -> None:
        """Says what to capture for a request.

        Raises:
            HFAdapterLimitationError: a point cannot be honoured, or the id is taken.
        """
        try:
            super().register_extraction(request_id, extraction_points)
        except ProbingRuntimeError as error:
            raise HFAdapterLimitationError(str(error)) from error

    def generate(self, request_id: str, prompt: Prompt, generation_kwargs: Mapping[str, Any], router: RowRouter) -> str:
        """Generates for a registered request, ends it at the router, and returns its text without the prompt."""
        try:
            return super().generate(request_id, prompt, generation_kwargs, router)
        finally:
            # As in 0.1.0, where an id could be registered again after it was generated.
            self.unregister_extraction(request_id)

    def generate_batch(self, *args: Any, **kwargs: Any) -> list[Generation]:
        """As `HFEngine.generate_batch`; remembers what stopped the last request, for `last_stop`."""
        generations = super().generate_batch(*args, **kwargs)
        for generation in generations:
            signal = generation.abort_signal
            self._last_stop = None if signal is None else (generation.request_id, generation.abort_point, signal)
        return generations

    def last_stop(self, request_id: str) -> tuple[str | None, ProbeSignal] | None:
        """Point and signal that stopped `request_id`, if it was the last one generated and a probe stopped it."""
        if self._last_stop is None or self._last_stop[0] != request_id:
            return None
        return self._last_stop[1:]

    def close(self) -> None:
        """Does nothing: hooks exist only while a request is generated."""

    @staticmethod
    def _loaded(part: _Part | None) -> _Part:
        if part is None:
            raise HFAdapterLimitationError("no model is loaded; call `load_model` first")
        return part
