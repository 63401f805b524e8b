"""`HFEngine`: Hugging Face transformers as an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

from undercurrent.engines.base import (
    BatchEngine,
    EngineCapabilities,
    EngineLimitationError,
    Generation,
    Prompt,
    RegisteredPoints,
    RowRouter,
    TextListener,
)
from undercurrent.engines.capture import SequenceShape, TensorKey
from undercurrent.engines.hf_call import GenerationCall, seeded
from undercurrent.engines.hf_loading import load_by_name, without_progress_bars
from undercurrent.engines.hf_modules import ModelModules, find_modules
from undercurrent.engines.hf_reading import FloatArray, read_texts
from undercurrent.engines.hf_session import GenerationSession
from undercurrent.engines.hf_stream import TokenStream
from undercurrent.engines.hf_tap import ModelTap
from undercurrent.engines.hf_text import TextPieces
from undercurrent.engines.prompt_state import PromptState
from undercurrent.engines.routing import opened_requests, with_results
from undercurrent.errors import ProbingRuntimeError, ProbingTypeError
from undercurrent.spec import ExtractionPoint

__all__ = ["HFEngine"]

_Part = TypeVar("_Part")


class HFEngine(BatchEngine):
    """Reads any decoder-only causal language model of transformers.

    Several threads may generate at once, each call with a batch of its own. A record's tensor is a CPU copy in the
    dtype of the model. `residual_stream` is a layer's output, before the final norm; `attn_out` and `mlp_out` are what
    attention and feed-forward give, before any norm behind them and before they are added to the stream; `final_norm`
    (layer number = number of layers) is what goes into the language model head. The last token of a generation has no
    record: it is never fed back.
    """

    reads_transformers_arguments = True

    def __init__(self) -> None:
        self._model: Any = None
        self._tokenizer: Any = None
        self._modules: ModelModules | None = None
        self._tap: ModelTap | None = None
        self._name = ""
        self._points = RegisteredPoints()
        self._running: dict[str, tuple[GenerationSession, int]] = {}  # single dictionary operations only

    def load_model(
        self,
        model_name_or_path: Any,
        *,
        tokenizer: Any = None,
        device: str | None = None,
        thread_count: int | None = None,
        shows_progress: bool = True,
        **options: Any,
    ) -> None:
        """Loads a model by name or folder, or takes a model object, which needs its `tokenizer` for text prompts.

        `thread_count` sets torch's threads for the whole process; one fewer than the CPUs leaves room for workers.
        `shows_progress=False` keeps transformers' bars and warnings off the terminal. `options` go to
        `from_pretrained`. Without `device`, a model stays where it is, or where `options` put it.

        Raises:
            EngineLimitationError: no decoder layers can be found.
            OSError: transformers finds no such model.
        """
        if thread_count is not None:
            torch.set_num_threads(thread_count)
        if isinstance(model_name_or_path, str) or hasattr(model_name_or_path, "__fspath__"):
            with nullcontext() if shows_progress else without_progress_bars():
                model, tokenizer = load_by_name(model_name_or_path, tokenizer, options)
        elif options:
            raise ProbingTypeError(f"a model object takes no loading options, got {', '.join(map(repr, options))}")
        else:
            model = model_name_or_path
        modules = find_modules(model)
        self._model, self._tokenizer, self._modules = model if device is None else model.to(device), tokenizer, modules
        self._tap = ModelTap(model, modules)
        # A folder's name, not its path: records of this model leave the machine.
        path = str(getattr(model.config, "name_or_path", "") or type(model).__name__)
        self._name = os.path.basename(path.rstrip(os.sep)) if os.path.isdir(path) else path

    @property
    def capabilities(self) -> EngineCapabilities:
        """What the loaded model gives."""
        return self._loaded(self._modules).capabilities()

    @property
    def num_layers(self) -> int:
        """Decoder layers of the loaded model."""
        return len(self._loaded(self._modules).layers)

    @property
    def model(self) -> Any:
        """The transformers model, borrowed."""
        return self._loaded(self._model)

    @property
    def model_name(self) -> str:
        """What probes are told in `prompt_metadata["model"]`: the name on the hub, or a folder's last part."""
        return self._name

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, borrowed; None where a model object came without one."""
        return self._tokenizer

    @property
    def hook_count(self) -> int:
        """Hooks installed on the model now; 0 while no generate call reads it."""
        return self._loaded(self._tap).hook_count

    def register_extraction(self, request_id: str, extraction_points: Sequence[ExtractionPoint]) -> None:
        """Says what to capture for a request; see `EngineAdapter.register_extraction`."""
        self._points.add(request_id, extraction_points, self.capabilities)

    def unregister_extraction(self, request_id: str) -> None:
        """Forgets a request."""
        self._points.remove(request_id)

    def cancel(self, request_id: str) -> bool:
        """Ends a running request after its current step, from any thread; False where it does not run."""
        running = self._running.get(request_id)
        if running is not None:
            session, sequence = running
            session.cancel(sequence)
        return running is not None

    def generate(self, request_id: str, prompt: Prompt, generation_kwargs: Mapping[str, Any], router: RowRouter) -> str:
        """Generates for one registered request and returns its text; see `generate_batch`.

        Raises:
            Exception: what an inline probe raised.
        """
        generation = self.generate_batch([request_id], [prompt], generation_kwargs, router)[0]
        if generation.error is not None:
            raise generation.error
        return generation.text

    def stream(
        self, request_id: str, prompt: Prompt, generation_kwargs: Mapping[str, Any], router: RowRouter
    ) -> TokenStream:
        """Generates on a thread and gives the text as it comes; closing the stream ends the generation."""
        self._points.get(request_id)

        def generate(on_text: TextListener) -> Generation:
            return self.generate_batch([request_id], [prompt], generation_kwargs, router, on_text=on_text)[0]

        return TokenStream(request_id, generate=generate, cancel=self.cancel)

    def generate_batch(
        self,
        request_ids: Sequence[str],
        prompts: Sequence[Prompt],
        generation_kwargs: Mapping[str, Any],
        router: RowRouter,
        *,
        on_text: TextListener | None = None,
        opens_requests: bool = True,
        ends_requests: bool = True,
        state: PromptState | None = None,
    ) -> list[Generation]:
        """Generates for several registered requests in one batch, padded on the left; see `BatchEngine`.

        `generation_kwargs` are those of transformers' `generate`, and `seed`: what is drawn then depends on it and the
        batch alone, and the caller's generators do not move.

        `state` covers the first tokens of the one prompt, which are then not computed again, and afterwards all tokens
        but the last one generated. It may not cover a position that a point reads.

        Raises:
            EngineLimitationError: a way of generating under which positions would be wrong, or an empty prompt.
            ProbingRuntimeError: an unregistered id, or no model.
        """
        if len(request_ids) != len(prompts):
            raise ProbingTypeError(f"expected one prompt per request, got {len(prompts)} for {len(request_ids)}")
        if not prompts:
            return []
        tap = self._loaded(self._tap)
        arguments = dict(generation_kwargs)
        seed = arguments.pop("seed", None)
        listener = None if on_text is None else _TextTeller(request_ids, self._tokenizer, on_text)
        token_ids = [self.encode(prompt) for prompt in prompts]
        call = GenerationCall(
            self._model,
            self._tokenizer,
            sequences=self._shapes(request_ids, token_ids),
            token_ids=token_ids,
            generation_kwargs=arguments,
            router=router,
            token_id_of=self._token_id_of,
            on_tokens=listener,
            state=state,
        )
        opened = (
            opened_requests(router, call.sequences, prompts, model_name=self._name) if opens_requests else nullcontext()
        )
        try:
            with opened, seeded(seed, self._model.device):
                self._running.update({rid: (call.session, index) for index, rid in enumerate(request_ids)})
                generations = call.run(tap)
                if listener is not None:
                    listener.finish()
        finally:
            for request_id in request_ids:
                if self._running.get(request_id, (None, 0))[0] is call.session:
                    del self._running[request_id]
        return with_results(generations, router) if ends_requests else generations

    def read_texts(
        self, texts: Sequence[Prompt], keys: Sequence[TensorKey], *, batch_size: int = 16
    ) -> Iterator[dict[TensorKey, FloatArray]]:
        """Reads texts without generating; yields for each an array `(tokens, hidden) float32` per (layer, tensor type).

        For training a probe on what it will see: the values are those that a record of the same position holds, up to
        the rounding of another batch shape.
        """
        token_ids = [self.encode(text) for text in texts]
        return read_texts(self._model, self._loaded(self._modules), token_ids, keys, batch_size=batch_size)

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a text as the tokenizer gives them, or token ids as they are; see `BatchEngine.encode`."""
        if not isinstance(prompt, str):
            token_ids = [int(token) for token in prompt]
        elif self._tokenizer is None:
            raise EngineLimitationError("the model was loaded without a tokenizer; pass one, or a prompt of token ids")
        else:
            token_ids = self._tokenizer(prompt)["input_ids"]
        if not token_ids:
            raise EngineLimitationError("the prompt has no tokens; this model needs at least one")
        return token_ids

    def _shapes(self, request_ids: Sequence[str], token_ids: Sequence[Sequence[int]]) -> list[SequenceShape]:
        columns = max(map(len, token_ids))
        return [
            SequenceShape(request_id, len(ids), columns - len(ids), self._points.get(request_id))
            for request_id, ids in zip(request_ids, token_ids, strict=True)
        ]

    def _token_id_of(self, text: str) -> int | None:
        if self._tokenizer is None:
            return None
        token_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(token_ids) != 1:
            # Special tokens such as an end mark are single tokens by name only.
            token_id = self._tokenizer.get_vocab().get(text)
            return None if token_id is None else int(token_id)
        return int(token_ids[0])

    @staticmethod
    def _loaded(part: _Part | None) -> _Part:
        if part is None:
            raise ProbingRuntimeError("no model is loaded; call `load_model` first")
        return part


class _TextTeller:
    """Tells a listener the text of each request of a batch as it comes."""

    def __init__(self, request_ids: Sequence[str], tokenizer: Any, on_text: TextListener) -> None:
        self._request_ids = request_ids
        self._on_text = on_text
        self._pieces = [TextPieces(tokenizer) for _ in request_ids]

    def __call__(self, sequence: int, token_ids: list[int]) -> None:
        self._on_text(self._request_ids[sequence], self._pieces[sequence].push(token_ids), tuple(token_ids))

    def finish(self) -> None:
        """Tells what is left of texts that end within a character."""
        for request_id, pieces in zip(self._request_ids, self._pieces, strict=True):
            rest = pieces.finish()
            if rest:
                self._on_text(request_id, rest, ())
