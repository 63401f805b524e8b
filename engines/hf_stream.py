"""A generation as an iterator: text pieces while the model runs on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undercurrent.engines.base import Generation, TextListener
from undercurrent.engines.generation_thread import GenerationThread
from undercurrent.errors import ProbingRuntimeError

__all__ = ["StreamPiece", "TokenStream"]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """What one step of a generation added."""

    text: str
    """Complete characters only; "" while one is unfinished."""
    token_ids: tuple[int, ...]
    """One token, or several where drafts were accepted; empty for the rest of a text at its end."""


class TokenStream(GenerationThread[StreamPiece, Generation]):
    """Iterates over the pieces of one generation; closing or dropping it ends the generation after the current step.

    Each piece comes after the step that chose it was routed. `generation` is there once the iterator is exhausted. Use
    it as a context manager, or close it; the thread `undercurrent-generate-<request id>` ends with it.
    """

    def __init__(
        self,
        request_id: str,
        *,
        generate: Callable[[TextListener], Generation],
        cancel: Callable[[str], object],
    ) -> None:
        """`generate` runs on the stream's thread; `cancel` ends the request from another one."""

        def run(put: Callable[[StreamPiece], None]) -> Generation:
            return generate(lambda _request_id, text, token_ids: put(StreamPiece(text, token_ids)))

        super().__init__(
            f"undercurrent-generate-{request_id}",
            generate=run,
            cancel=lambda: cancel(request_id),
            error_of=lambda generation: generation.error,
        )

    @property
    def generation(self) -> Generation:
        """The whole generation.

        Raises:
            ProbingRuntimeError: the iterator is not exhausted yet.
        """
        if self.result is None:
            raise ProbingRuntimeError("the stream has not ended; iterate over it to the end, or close it")
        return self.result
