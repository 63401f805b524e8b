"""Checkpoints over tiny models with random weights, and what every checkpoint is asked."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from laya_folders import make_tokenizer, write_folder

from undercurrent.predict import CallOptions, Question, Scores
from undercurrent.predict.questions import parse_questions

QUESTIONS = {
    "topic": {
        "type": "choice",
        "instructions": "what is it about",
        "criteria": {"delivery": "a parcel is late", "billing": "a card was paid twice", "other": None},
    },
    "anger": {"type": "score", "instructions": "how angry", "criteria": ["calm", "not calm", "angry"]},
    "late": {"type": "noul", "instructions": "the parcel is late"},
}
STATES = (
    "where is my parcel , it is late",
    "my card was paid twice",
    {"text": "broken order"},
    [{"role": "user", "content": "hello"}, {"role": "user", "content": "my bill is wrong"}],
)


def make_encoder(**options: Any) -> Any:
    """An `EncoderCheckpoint` over a BERT of two layers."""
    from undercurrent.engines.checkpoint_encoder import EncoderCheckpoint

    return EncoderCheckpoint(_bert(), make_tokenizer(), model_id="tiny-encoder", **options)


def make_causal(**options: Any) -> Any:
    """A `CausalCheckpoint` over a llama of four layers that reads bytes."""
    from undercurrent.engines.checkpoint_causal import CausalCheckpoint

    model, tokenizer = _llama()
    return CausalCheckpoint(model, tokenizer, model_id="tiny-causal", **options)


def make_laya(folder: Path, **config: Any) -> Any:
    """A `LayaCheckpoint` of a folder that is written for it."""
    from undercurrent.engines.checkpoint import load_directory

    return load_directory(write_folder(folder, **config))


def scores_of(checkpoint: Any, states: Any, questions: Any, options: CallOptions | None = None) -> list[list[Scores]]:
    """What a checkpoint says of states in one pass."""
    parsed: tuple[Question, ...] = parse_questions(questions)
    asked = options or CallOptions()
    checkpoint.check(parsed, asked)
    encoded = [checkpoint.encode(state, parsed, asked) for state in states]
    output = checkpoint.forward(checkpoint.collate(encoded))
    found: list[list[Scores]] = [list(row) for row in checkpoint.decode(output, encoded, parsed, asked)]
    return found


@cache
def _bert() -> Any:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(make_tokenizer()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=512,
    )
    models: Any = BertModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model


@cache
def _llama() -> Any:
    from undercurrent.engines import build_tiny_model

    return build_tiny_model()
