"""`undercurrent decide`: typed questions about texts."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.decide_input import STANDARD_INPUT, StateLines, read_questions, read_state
from undercurrent.cli.verbs import CLIError, UsageError, foreign_errors_told, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.cli.decide_views import Lines
    from undercurrent.predict import Router

__all__ = ["command"]

WINDOW = 64
_FOLDER = "folder"


@verb(
    "decide",
    examples=[
        ("undercurrent decide --questions q.yaml --state 'Where is my parcel?'", "one text, as a table"),
        ("undercurrent decide --questions q.yaml --state-file mail.json --json | jq .answers", "one document"),
        ("undercurrent decide --questions q.yaml --states tickets.jsonl --json > answers.jsonl", "many, one a line"),
        ("undercurrent decide --questions q.yaml --states - --model english --min-confidence 0.8", "from a pipe"),
    ],
    exit_statuses={
        0: "every state has its answers, also where they abstain",
        1: "a file, a question or the model does not do",
        2: "the command line is wrong",
        130: "interrupted; what was answered is written",
    },
)
@click.option(
    "--questions", metavar="FILE", help="Questions by id, as YAML or .json; lines of --states may bring theirs."
)
@click.option("--state", metavar="TEXT", help="The text to decide about.")
@click.option("--state-file", metavar="FILE", help="A text, or .json with a document or a list of turns; - is stdin.")
@click.option("--states", metavar="FILE", help="JSONL: a state a line, or an object with `state` and `id`; - is stdin.")
@click.option("--model", metavar="MODEL", help="english, multilingual, or a folder; by language where it is left out.")
@click.option("--min-confidence", type=click.FloatRange(0, 1), metavar="P", help="Abstain below this probability.")
@click.option("--window", type=click.IntRange(min=1), default=WINDOW, show_default=True, help="States held at once.")
@click.option("--batch-size", type=click.IntRange(min=1), help="States of one forward pass; the whole window without.")
@json_option
def command(
    questions: str | None,
    *,
    state: str | None,
    state_file: str | None,
    states: str | None,
    model: str | None,
    min_confidence: float | None,
    window: int,
    batch_size: int | None,
    as_json: bool,
) -> None:
    """Answer typed questions about texts.

    A question is a choice, a score or a noul (yes or no); its answer has a calibrated probability. Without --state,
    --state-file or --states the state is standard input. With --states, answers come as lines in the order of the file,
    written as they come; memory holds one window.
    """
    given = [value for value in (state, state_file, states) if value is not None]
    if len(given) > 1:
        raise UsageError("--state, --state-file and --states exclude each other")
    if questions is None and states is None:
        raise UsageError("no questions; give --questions FILE")
    if questions == STANDARD_INPUT and (not given or STANDARD_INPUT in (state_file, states)):
        raise UsageError("the questions and the states cannot both be standard input")
    asked = None if questions is None else read_questions(questions)
    threshold = {} if min_confidence is None else {"min_confidence": min_confidence}
    if states is not None:
        lines = StateLines(states, asked, {} if model is None else {"model": _name_of(model)})
        if states != STANDARD_INPUT:
            os.stat(states)  # Before the model, whose loading takes longest.
        _decide_lines(lines, _router(model), window, as_json=as_json, batch_size=batch_size, **threshold)
        return
    assert asked is not None
    one = state if state is not None else read_state(state_file or STANDARD_INPUT)
    arguments = threshold if model is None else {**threshold, "model": _name_of(model)}
    with _router(model) as router, foreign_errors_told("the checkpoint"):
        result = router.predict(one, asked, **arguments)
    if as_json:
        print_json(result)
    else:
        from undercurrent.cli.decide_views import show_result

        show_result(result)


def _name_of(model: str) -> str:
    return _FOLDER if _is_folder(model) else model


def _is_folder(model: str) -> bool:
    return os.sep in model or model in (".", "..")


def _router(model: str | None) -> Router:
    """A Router that tells when it loads.

    Raises:
        CLIError: the folder of `model` is not there.
        CheckpointNotFoundError: nobody knows `model`.
    """
    from undercurrent.predict import Router

    if model is not None and _is_folder(model):
        if not os.path.isdir(model):
            raise CLIError(
                f"{model}: no such folder", hint="--model takes a name, or a folder with a slash in its path"
            )
        return Router({_FOLDER: model})
    router = Router()
    if model is not None:
        router.resolve(model)
    return router


def _decide_lines(lines: StateLines, router: Router, window: int, *, as_json: bool, **arguments: Any) -> None:
    from undercurrent.cli.decide_views import Lines, StateProgress
    from undercurrent.predict import BatchFailure

    waiting: deque[Any] = deque()

    def requests() -> Iterator[dict[str, Any]]:
        for name, request in lines.requests():
            waiting.append(name)
            yield request

    written = 0
    with ExitStack() as stack:
        stack.enter_context(router)
        stack.enter_context(foreign_errors_told("the checkpoint"))
        output = Lines(as_json=as_json)
        progress = stack.enter_context(StateProgress(lines))
        try:
            for result in router.predict_stream(requests(), window, **arguments):
                output.write(waiting.popleft(), result)
                written += 1
                progress.advance(written)
        except BrokenPipeError:
            raise
        except Exception as error:
            failure = getattr(error, "batch", None)
            if isinstance(failure, BatchFailure):
                _write_rest(output, failure, list(waiting), first=written)
            say(f"{written} states were answered before this")
            raise
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()


def _write_rest(output: Lines, failure: Any, waiting: list[Any], *, first: int) -> None:
    """Writes what a window that failed had answered."""
    for index, result in sorted(failure.results.items()):
        output.write(waiting[index - first], result)
