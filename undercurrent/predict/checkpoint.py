"""What a model must offer to answer questions: the `Checkpoint` protocol, and the values that cross it.

A checkpoint is a loaded model. An `Agent` calls it in one order, which `undercurrent.predict.order` states:

    check(questions, options)                    once per call, before anything runs
    for each chunk of states:
        encode(state, questions, options)        once per state
        collate(encoded)                         once per chunk
        forward(batch)                           once per chunk
    decode(output, encoded, questions, options)  once per chunk, after the last forward pass

so a class with these methods, and the attributes below, is a checkpoint; nothing needs to be inherited. Several threads
may be between `check` and `decode` of one checkpoint at once: what a checkpoint cannot do twice at once, it locks
itself.

A *factory* makes one. It is what an entry point of the group `undercurrent.checkpoints` names:

    [project.entry-points."undercurrent.checkpoints"]
    english = "undercurrent.engines.checkpoint:load_english"

    def load_english(source: str, **options: object) -> Checkpoint: ...

`source` is the name it was asked for by ("english"), or the path for the entry point `directory`, which loads local
folders. Entry points are looked up at the first load, so that importing this package loads no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from undercurrent.predict.questions import Question

__all__ = ["CallOptions", "Checkpoint", "CheckpointFactory", "EncodedState", "LongCheckpoint", "Scores", "StateWindow"]

RowT = TypeVar("RowT")
"""What a checkpoint makes of one state and all its questions: token ids, markers."""
BatchT = TypeVar("BatchT")
"""What it makes of several of them: padded tensors."""
OutputT = TypeVar("OutputT")
"""What a forward pass gives. Outputs of all chunks of a call are kept until its last pass: keep them small (scores of
options, not logits of a vocabulary), and on the CPU."""


class CallOptions(msgspec.Struct, frozen=True, gc=False):
    """What one call asks of a checkpoint besides its questions."""

    max_len: int | None = None
    """Tokens of one sequence, question and state together; None: the checkpoint's own."""
    head_max_len: int | None = None
    """Tokens the question and its options may take of `max_len`; None: the checkpoint's own."""
    lang: str | None = None
    """The language of the states, where calibration goes by it (`uses_lang`)."""


class EncodedState(msgspec.Struct, Generic[RowT], frozen=True):
    """One state, encoded against every question of the call."""

    row: RowT
    input_tokens: int
    """Tokens the model reads for this state, over all questions, padding left out."""
    state_tokens: int = 0
    """Tokens of the state before anything was cut."""
    state_tokens_dropped: int = 0
    """Tokens of the state that the worst-off question does not see."""
    truncated_questions: tuple[str | int, ...] = ()
    """Ids of the questions that see a cut state."""
    usage: Mapping[str, Any] | None = None
    """More entries for `result["usage"]`, which win over those above."""


class Scores(msgspec.Struct, frozen=True):
    """What a checkpoint thinks of the options of one question for one state."""

    probabilities: Sequence[float]
    """One per option, in the order of `Question.keys` whatever `option_order` was shown, calibrated, summing to 1."""
    answer_confidence: float | None = None
    """A calibrated probability that the answer is right; None: the largest of `probabilities`."""
    answer: Mapping[str, Any] | None = None
    """More entries of the answer, such as `action`; they win over those made from the probabilities."""


@runtime_checkable
class Checkpoint(Protocol[RowT, BatchT, OutputT]):
    """A loaded model that scores the options of questions about states."""

    @property
    def model_id(self) -> str:
        """How results and contexts call it."""
        ...

    @property
    def device(self) -> str:
        """Where the weights are, as torch writes it ("cpu", "cuda:0")."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes its weights and buffers hold while it is resident; a Router evicts by the sum."""
        ...

    @property
    def uses_lang(self) -> bool:
        """Whether `CallOptions.lang` changes answers, so that a Router keeps languages in passes of their own."""
        ...

    def check(self, questions: Sequence[Question], options: CallOptions) -> None:
        """Says whether every option of every question fits the token budget.

        Raises:
            PredictValueError: names the question, how many options fit, and both budgets.
        """
        ...

    def encode(self, state: object, questions: Sequence[Question], options: CallOptions) -> EncodedState[RowT]:
        """Tokenizes one state (str, dict, or list of turns) against all questions. A list loses its oldest turns."""
        ...

    def collate(self, encoded: Sequence[EncodedState[RowT]]) -> BatchT:
        """Joins the states of one chunk into one batch."""
        ...

    def forward(self, batch: BatchT) -> OutputT:
        """Runs the model once."""
        ...

    def decode(
        self,
        output: OutputT,
        encoded: Sequence[EncodedState[RowT]],
        questions: Sequence[Question],
        options: CallOptions,
    ) -> Sequence[Sequence[Scores]]:
        """Scores, per state of the chunk and per question, in the order of both."""
        ...


class StateWindow(msgspec.Struct, frozen=True, gc=False):
    """A part of a long state, as `LongCheckpoint.split` cuts it."""

    text: str
    token_start: int
    token_end: int


@runtime_checkable
class LongCheckpoint(Protocol):
    """What a checkpoint offers besides, where `predict_long` shall read states longer than its sequence."""

    def split(
        self,
        state: object,
        questions: Sequence[Question],
        options: CallOptions,
        *,
        window_tokens: int | None,
        stride_tokens: int | None,
    ) -> Sequence[StateWindow]:
        """Cuts a state into windows that overlap, each of which fits beside every question.

        One window means that the state is read whole. The default window is the room the questions leave, the default
        stride half the window.

        Raises:
            PredictValueError: the stride is longer than the window, so that tokens between two would be read by none,
            or
                the questions leave no room.
        """
        ...


class CheckpointFactory(Protocol):
    """Makes a checkpoint; an entry point of the group `undercurrent.checkpoints` names one."""

    def __call__(self, source: str, /, **options: Any) -> Checkpoint[Any, Any, Any]:
        """Loads the weights. Called without any lock of a Router's table; takes as long as it takes.

        Raises:
            MissingDependencyError: the message names the command that installs what is missing.
            FileNotFoundError: a file of the checkpoint is missing.
            ValueError: a file is not the one it should be.
        """
        ...
