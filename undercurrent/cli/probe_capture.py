"""From texts to activations: the model reads, one vector per token that the probe is to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from undercurrent.cli.models import missing_model_named, resolve_model
from undercurrent.cli.verbs import CLIError, UsageError, say, talk_console
from undercurrent.errors import did_you_mean, one_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["POSITIONS", "capture", "open_engine"]

POSITIONS = ("last", "mean", "all")
_BYTES_MAX = 8 << 30


def open_engine(model: str, *, device: str | None) -> Any:
    """A Hugging Face engine with the model that `--model` names.

    Raises:
        CLIError, UsageError, MissingDependencyError: there is none.
    """
    from undercurrent.engines import HFEngine

    choice = resolve_model(model, on_progress=say)
    engine = HFEngine()
    say(f"loading {choice.title}")
    with missing_model_named(model):
        engine.load_model(choice.model, device=device, shows_progress=False, **choice.options)
    return engine


def check_place(engine: Any, layer: int, tensor_type: str) -> None:
    """Refuses what the model does not give.

    Raises:
        UsageError: no such layer or tensor type.
    """
    able = engine.capabilities
    known = sorted(kind.value for kind in able.tensor_types)
    if tensor_type not in known:
        raise UsageError(
            f"this model gives {one_of(known)}, got --tensor-type {tensor_type}{did_you_mean(tensor_type, known)}"
        )
    lowest, highest = (able.final_norm_layer,) * 2 if tensor_type == "final_norm" else (0, able.layer_count - 1)
    if not lowest <= layer <= highest:
        raise UsageError(f"--layer of {tensor_type} must be from {lowest} to {highest} for this model, got {layer}")


def capture(
    engine: Any, texts: Sequence[str], *, layer: int, tensor_type: str, position: str, batch_size: int
) -> list[np.ndarray[Any, Any]]:
    """Reads every text once, as `(tokens, hidden)` float32 each.

    `last` keeps its last token, the others all but a begin token, which says nothing.

    Raises:
        CLIError: the activations would not fit into memory.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from undercurrent.spec import TensorType

    check_place(engine, layer, tensor_type)
    key = (layer, TensorType(tensor_type))
    token_ids = [engine.tokenizer(text)["input_ids"] for text in texts]
    kept = len(texts) if position == "last" else sum(map(len, token_ids))
    size = kept * engine.capabilities.hidden_size * 4
    if size > _BYTES_MAX:
        raise CLIError(
            f"{kept} activations take {size >> 20} MiB, more than {_BYTES_MAX >> 20}",
            hint="--position last, or fewer texts",
        )
    begin = engine.tokenizer.bos_token_id
    console = talk_console()
    columns = (TextColumn("reading texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    sequences = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(texts))
        for ids, read in zip(token_ids, engine.read_texts(token_ids, [key], batch_size=batch_size), strict=True):
            has_begin = begin is not None and ids[0] == begin and len(ids) > 1
            rows = read[key][-1:] if position == "last" else read[key][1 if has_begin else 0 :]
            sequences.append(rows.copy())  # else one row would keep its whole batch alive
            progress.advance(task)
    return sequences
