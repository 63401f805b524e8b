"""`VLLMEngineAdapter`: the name of 0.1.0, kept so that its absence is an error with a way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from undercurrent.engines.base import EngineAdapter, EngineLimitationError, RowRouter
from undercurrent.errors import MissingDependencyError
from undercurrent.spec import ExtractionPoint

__all__ = ["VLLMAdapterLimitationError", "VLLMEngineAdapter"]

VLLMAdapterLimitationError = EngineLimitationError


class VLLMEngineAdapter(EngineAdapter):
    """Refuses to load: this release has no vLLM engine, whether vllm is installed or not."""

    def load_model(self, model_name_or_path: Any, **options: Any) -> None:
        """Raises:
        MissingDependencyError: always.
        """
        _refuse()

    def register_extraction(self, request_id: str, extraction_points: Sequence[ExtractionPoint]) -> None:
        """Raises:
        MissingDependencyError: always.
        """
        _refuse()

    def generate(self, request_id: str, prompt: Any, generation_kwargs: Mapping[str, Any], router: RowRouter) -> str:
        """Raises:
        MissingDependencyError: always.
        """
        _refuse()

    def unregister_extraction(self, request_id: str) -> None:
        """Forgets nothing, as nothing was registered."""

    def shutdown(self, timeout: float = 30.0) -> None:
        """Ends nothing, as nothing was started."""


def _refuse() -> NoReturn:
    raise MissingDependencyError(
        "this release of undercurrent has no vLLM engine; use `undercurrent.engines.HFEngine`, or write an"
        " `EngineAdapter` that feeds `Router.route_rows`",
        name="vllm",
    )
