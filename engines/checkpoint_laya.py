"""A checkpoint of a local folder: a decision model in the layout of laya 0.4.15, that answers as that package does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from transformers import AutoTokenizer

from undercurrent.engines.checkpoint_calibration import Calibration, bucket_of, softened
from undercurrent.engines.checkpoint_laya_files import (
    Binning,
    LayaConfig,
    calibration_of,
    find_files,
    read_calibration,
    read_config,
    verify_digests,
)
from undercurrent.engines.checkpoint_laya_network import DecisionNetwork, load_network
from undercurrent.engines.checkpoint_texts import Tokens, cut_state, split_state, token_reader
from undercurrent.predict.checkpoint import CallOptions, EncodedState, Scores, StateWindow
from undercurrent.predict.errors import PredictValueError
from undercurrent.predict.questions import Question

__all__ = ["LayaCheckpoint", "open_folder"]

_TYPES = {"choice": 0, "score": 1, "noul": 2}
_OPTION_TOKENS_MAX = 48
# Tokens the instructions are promised when options fill the head, and the least that is kept of each.
_INSTRUCTIONS_WANTED, _INSTRUCTIONS_MIN, _OPTION_MIN = 16, 8, 4
_WINDOW_MIN, _WINDOW_SPARED = 64, 8


class _Head(msgspec.Struct, frozen=True):
    """The part of a sequence before the state: instructions, then a marker and its text for each option."""

    token_ids: Tokens
    markers: list[int]
    distinct_count: int
    """Options whose tokens no other option has."""
    option_tokens: int | None
    """What each option was cut to, where they filled the head."""


class _Row(msgspec.Struct, frozen=True):
    """One question about one state."""

    token_ids: Tokens
    head: _Head
    type_index: int


class _Batch(msgspec.Struct, frozen=True):
    token_ids: Tensor
    """`(rows, longest) int64`, padded on the right; a row is a question of a state."""
    mask: Tensor
    types: Tensor
    markers: Tensor
    marker_mask: Tensor
    layout: tuple[Tensor, Tensor] | None


class _Output(msgspec.Struct, frozen=True):
    logits: Tensor
    """`(rows, options) float32`, in the order options were shown."""
    actions: Tensor
    """`(rows, actions) float32`, probabilities."""


class LayaCheckpoint:
    """A decision model: one sequence per question, one marker per option, all scored in one pass.

    See `undercurrent.predict.Checkpoint`. Any number of threads may use it at once.
    """

    def __init__(
        self,
        network: DecisionNetwork,
        tokenizer: Any,
        config: LayaConfig,
        *,
        model_id: str,
        calibration: Calibration,
        binning: Mapping[str, Binning] | None = None,
        by_lang: Mapping[str, Calibration] | None = None,
    ) -> None:
        """Takes a loaded network in evaluation mode. `by_lang` replaces `calibration` for states of a language."""
        self.model_id = model_id
        self._network = network
        self._tokenizer = tokenizer
        self._tokens = token_reader(tokenizer)
        self._config = config
        self._calibration = calibration
        self._binning = dict(binning or {})
        self._by_lang = dict(by_lang or {})

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(self._network.type_emb.weight.device)

    @property
    def size_bytes(self) -> int:
        """Bytes of weights and buffers."""
        return sum(part.nbytes for part in (*self._network.parameters(), *self._network.buffers()))

    @property
    def model(self) -> Any:
        """The encoder, which `forward` runs; for probes that read along."""
        return self._network.encoder

    def sequences(self, encoded: EncodedState[list[_Row]]) -> list[Tokens]:
        """What the encoder reads of a state: a sequence per question."""
        return [row.token_ids for row in encoded.row]

    @property
    def uses_lang(self) -> bool:
        """Whether a language has temperatures of its own."""
        return bool(self._by_lang)

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Every option's marker must stand within `max_len`.

        Raises:
            PredictValueError: one does not.
        """
        max_len, head_max_len = self._budget(options)
        for question in questions:
            fitting = sum(marker < max_len for marker in self._head(question, head_max_len).markers)
            if fitting < len(question.keys):
                raise PredictValueError(
                    f"question {question.id!r}: {fitting} of its {len(question.keys)} options fit `max_len` {max_len},"
                    f" of which `head_max_len` gives the question {head_max_len}; ask for fewer or shorter options,"
                    " raise `max_len` or lower `head_max_len`"
                )

    def encode(self, state: object, questions: Sequence[Question], options: CallOptions) -> EncodedState[list[_Row]]:
        """One sequence per question: its head, then what fits of the state."""
        max_len, head_max_len = self._budget(options)
        state_tokens = self._state_tokens(state)
        rows, cut, collapsed, least = [], [], {}, len(state_tokens)
        for question in questions:
            head = self._head(question, head_max_len)
            kept = cut_state(state_tokens, max_len - len(head.token_ids) - 1, is_conversation=isinstance(state, list))
            token_ids = [*head.token_ids, *kept, self._tokenizer.sep_token_id][:max_len]
            rows.append(_Row(token_ids, head, _TYPES[question.type]))
            if len(kept) < len(state_tokens):
                cut.append(question.id)
            if head.distinct_count < len(head.markers):
                collapsed[question.id] = {
                    "total": len(head.markers),
                    "distinct": head.distinct_count,
                    "tokens_per_option": head.option_tokens,
                }
            least = min(least, len(kept))
        return EncodedState(
            rows,
            input_tokens=sum(len(row.token_ids) for row in rows),
            state_tokens=len(state_tokens),
            state_tokens_dropped=len(state_tokens) - least,
            truncated_questions=tuple(cut),
            usage={"options": collapsed} if collapsed else None,
        )

    def collate(self, encoded: Sequence[EncodedState[list[_Row]]]) -> _Batch:
        """All questions of all states as one padded batch."""
        rows = [row for state in encoded for row in state.row]
        longest = max(len(row.token_ids) for row in rows)
        widest = max(len(row.head.markers) for row in rows)
        token_ids = torch.full((len(rows), longest), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(rows), longest), dtype=torch.bool)
        markers = torch.zeros((len(rows), widest), dtype=torch.long)
        marker_mask = torch.zeros((len(rows), widest), dtype=torch.bool)
        positions, slots = torch.zeros_like(token_ids), torch.zeros_like(token_ids)
        is_parallel = self._config.option_layout == "parallel"
        for at, row in enumerate(rows):
            length, count = len(row.token_ids), len(row.head.markers)
            token_ids[at, :length] = torch.tensor(row.token_ids)
            mask[at, :length] = True
            markers[at, :count] = torch.tensor(row.head.markers)
            marker_mask[at, :count] = True
            if is_parallel:
                positions[at, :length], slots[at, :length] = map(torch.tensor, _parallel_layout(row.head, length))
        moved = [part.to(self.device) for part in (positions, slots)]
        return _Batch(
            token_ids.to(self.device),
            mask.to(self.device),
            torch.tensor([row.type_index for row in rows]).to(self.device),
            markers.to(self.device),
            marker_mask.to(self.device),
            (moved[0], moved[1]) if is_parallel else None,
        )

    @torch.inference_mode()
    def forward(self, batch: _Batch) -> _Output:
        """Runs the network once."""
        logits, actions = self._network(
            batch.token_ids, batch.mask, batch.types, batch.markers, batch.marker_mask, *(batch.layout or ())
        )
        return _Output(logits.cpu(), actions.cpu())

    def decode(
        self,
        output: _Output,
        encoded: Sequence[EncodedState[list[_Row]]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> list[list[Scores]]:
        """Softmax over the options, calibrated, in the caller's order; and how likely answering is the right action."""
        own = None if options.lang is None else self._by_lang.get(_primary(options.lang))
        logits, actions = iter(output.logits.tolist()), iter(output.actions[:, 0].tolist())
        return [[self._scores(next(logits), next(actions), question, own) for question in questions] for _ in encoded]

    def split(
        self,
        state: object,
        questions: Sequence[Question],
        options: CallOptions,
        *,
        window_tokens: int | None,
        stride_tokens: int | None,
    ) -> Sequence[StateWindow]:
        """Windows as that package cuts them: by default as long as the configuration's budgets leave.

        Raises:
            PredictValueError: no room, or a stride longer than the window.
        """
        max_len, head_max_len = self._budget(options)
        return split_state(
            self._state_tokens(state),
            self._tokenizer.decode,
            room=min(max_len - len(self._head(question, head_max_len).token_ids) - 1 for question in questions),
            default_window=max(_WINDOW_MIN, max_len - head_max_len - _WINDOW_SPARED),
            window_tokens=window_tokens,
            stride_tokens=stride_tokens,
        )

    def _scores(self, logits: Sequence[float], action: float, question: Question, own: Calibration | None) -> Scores:
        count = len(question.keys)
        temperature = (own or self._calibration).temperature(question.type, count)
        shown = softened(logits[:count], temperature)
        probabilities = list(shown)
        for slot, option in enumerate(question.option_order or ()):
            probabilities[option] = shown[slot]
        binning = None if own else self._binning.get(bucket_of(question.type, count))
        return Scores(
            probabilities,
            answer_confidence=None if binning is None else binning.value(max(probabilities)),
            answer={"action": {"act_probability": round(action, 4)}},
        )

    def _budget(self, options: CallOptions) -> tuple[int, int]:
        """Both budgets; as in that package, a call may go beyond the configuration's."""
        return options.max_len or self._config.max_len, options.head_max_len or self._config.head_max_len

    def _state_tokens(self, state: object) -> Tokens:
        text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
        return self._tokens(self._unmarked(text))

    def _unmarked(self, text: str) -> str:
        """A text without the marker, which would look like one option more."""
        return text.replace(self._tokenizer.mask_token, " ")

    def _head(self, question: Question, head_max_len: int) -> _Head:
        instructions = self._tokens(f"{question.type} question: {self._unmarked(question.instructions)}")
        order = question.option_order or range(len(question.keys))
        marked = [
            [
                self._tokenizer.mask_token_id,
                *self._tokens(f" {self._unmarked(question.texts[option])}")[:_OPTION_TOKENS_MAX],
            ]
            for option in order
        ]
        room, option_tokens = head_max_len - sum(map(len, marked)), None
        if room < _INSTRUCTIONS_WANTED:
            option_tokens = max(_OPTION_MIN, (head_max_len - _INSTRUCTIONS_WANTED) // len(marked))
            marked = [tokens[:option_tokens] for tokens in marked]
            room = head_max_len - sum(map(len, marked))
        token_ids = [self._tokenizer.cls_token_id, *instructions[: max(_INSTRUCTIONS_MIN, room)]]
        token_ids.append(self._tokenizer.sep_token_id)
        markers = []
        for tokens in marked:
            markers.append(len(token_ids))
            token_ids += tokens
        return _Head([*token_ids, self._tokenizer.sep_token_id], markers, len(set(map(tuple, marked))), option_tokens)


def open_folder(
    folder: Path,
    *,
    device: str | None = None,
    expected_sha256: Mapping[str, str] | None = None,
    calibration: Path | None = None,
    lang_temperatures: Mapping[str, Mapping[str, Any]] | None = None,
) -> LayaCheckpoint:
    """The checkpoint of a folder; nothing in it is written, and nothing is downloaded.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not what it should be, or `lang_temperatures` cannot be read.
    """
    if expected_sha256:
        verify_digests(folder, expected_sha256)
    find_files(folder)
    config = read_config(folder)
    used = calibration_of(config.temperature, config.temperature_by_options, where=f"the folder {str(folder)!r}")
    binning: Mapping[str, Binning] = {}
    if calibration is not None:
        fitted = read_calibration(calibration)
        used = calibration_of(fitted.temperature, fitted.temperature_by_options or {}, where=repr(str(calibration)))
        binning = fitted.binning_map or {}
    by_lang = {
        _primary(lang): _own_calibration(lang, given, config) for lang, given in (lang_temperatures or {}).items()
    }
    network = load_network(folder, head_layers=config.head_layers, action_count=len(config.act_costs) + 1)
    return LayaCheckpoint(
        network if device is None else network.to(device),
        _load_tokenizer(folder / "tokenizer"),
        config,
        model_id=str(folder),
        calibration=used,
        binning=binning,
        by_lang=by_lang,
    )


def _load_tokenizer(folder: Path) -> Any:
    tokenizers: Any = AutoTokenizer
    try:
        tokenizer = tokenizers.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # The tokenizers package raises Exception itself.
        raise PredictValueError(f"the tokenizer in {str(folder)!r} cannot be read: {error}") from error
    lacking = [name for name in ("cls_token", "sep_token", "mask_token") if getattr(tokenizer, name) is None]
    if lacking:
        raise PredictValueError(f"the tokenizer in {str(folder)!r} has no {' and no '.join(lacking)}")
    return tokenizer


def _own_calibration(lang: str, given: Mapping[str, Any], config: LayaConfig) -> Calibration:
    temperatures = given.get("temperature") or config.temperature
    if len(temperatures) != len(_TYPES):
        raise PredictValueError(
            f"`lang_temperatures[{lang!r}]` takes `temperature` as three numbers, for choice, score and noul, got"
            f" {temperatures!r}"
        )
    first, second, third = map(float, temperatures)
    by_options = given.get("temperature_by_options") or {}
    return calibration_of((first, second, third), by_options, where=f"`lang_temperatures[{lang!r}]`")


def _primary(lang: str) -> str:
    return lang.split("-")[0].lower()


def _parallel_layout(head: _Head, length: int) -> tuple[list[int], list[int]]:
    """Position and slot of each token of a sequence: options begin where the first does, the rest goes on behind the
    longest of them."""
    first = head.markers[0]
    ends = [*head.markers[1:], len(head.token_ids) - 1]
    positions, slots = list(range(first)), [0] * first
    for slot, (start, end) in enumerate(zip(head.markers, ends, strict=True), 1):
        positions += range(first, first + end - start)
        slots += [slot] * (end - start)
    behind = max(positions) + 1
    positions += range(behind, behind + length - len(positions))
    slots += [0] * (length - len(slots))
    return positions[:length], slots[:length]
