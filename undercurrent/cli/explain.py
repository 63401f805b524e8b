"""`undercurrent explain`: which parts of a prompt made the probe fire."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.explain_options import estimator_options, output_options
from undercurrent.cli.models import MODEL_HELP
from undercurrent.cli.prompts import read_conversation
from undercurrent.cli.specs import import_modules, require_spec
from undercurrent.cli.verbs import NearestChoice, UsageError, say, verb

if TYPE_CHECKING:
    from undercurrent.runtime.domain import Conversation
    from undercurrent.runtime.domain.players import Tokenize
    from undercurrent.runtime.executors import LocalExecutor, RayExecutor
    from undercurrent.runtime.pipeline import CoalitionModel, Explanation, RunSettings
    from undercurrent.spec import ProbeSpec

__all__ = ["command"]

_RUNS_FOLDER = Path("runs")


@verb(
    "explain",
    examples=[
        (
            "undercurrent explain --model ./m --spec probes.yaml --value monitor --prompt-file chat.json",
            "which sentences raise the probe",
        ),
        (
            "undercurrent explain --model ./m --spec probes.yaml --value monitor:fired --prompt-file chat.json",
            "what made it fire",
        ),
        (
            "undercurrent explain --model tiny --players words --prompt 'The river bends' --max-new-tokens 4",
            "which words make the answer likely, without a probe",
        ),
        (
            "undercurrent explain --model ./m --prompt-file chat.json --html why.html --budget 200",
            "a page to send, from 200 generations",
        ),
        (
            "undercurrent explain --model ./m --prompt-file chat.json --executor local:4",
            "four processes, each with the model",
        ),
    ],
    exit_statuses={
        0: "every part has its value",
        1: "the prompt, the spec, the model or the run folder does not do",
        2: "the command line is wrong",
        130: "interrupted; the same command goes on where it stopped",
    },
)
@click.option("--model", required=True, metavar="MODEL", help=f"What generates: {MODEL_HELP}.")
@click.option("--prompt", metavar="TEXT", help="The prompt.")
@click.option("--prompt-file", metavar="FILE", help="A text, or .json with `messages` whose parts may be documents.")
@click.option("--spec", metavar="SPEC", help="Points whose probes are attached.")
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Module or .py file with probes; repeatable."
)
@click.option(
    "--value",
    metavar="VALUE",
    help="What is explained: a point of the spec (what its verdict says), POINT:fired, answer_log_likelihood, "
    "similarity or exact_match.  [default: the spec's only point, else answer_log_likelihood]",
)
@click.option(
    "--players",
    default="sentences",
    show_default=True,
    metavar="KIND",
    help="The parts: tokens, words, sentences, paragraphs, messages, documents or tool_results.",
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Only parts of messages of this role; repeatable.")
@click.option(
    "--absence",
    default="delete",
    show_default=True,
    type=NearestChoice(["delete", "mask", "neutral"]),
    help="How a part is left out: removed, a placeholder, or filled with blanks.",
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens per answer.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help="Above 0 samples; 0 is greedy.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End answers before this string; repeatable.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts side by side.")
@click.option("--device", metavar="DEVICE", help="Where the model runs, as in cuda:0; local:N takes several, in turn.")
@click.option(
    "--executor",
    metavar="EXECUTOR",
    help="local:N (N processes, each with the model), ray or ray:ADDRESS (actors on a Ray cluster).  [default: here]",
)
@click.option("--actors", type=click.IntRange(min=1), default=2, show_default=True, help="Actors on a Ray cluster.")
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where generations are kept, to be resumed and reanalyzed.  [default: runs/<id of the run>]",
)
@click.option(
    "--on-exists",
    default="resume",
    show_default=True,
    type=NearestChoice(["resume", "overwrite", "error"]),
    help="What to do with a run folder that holds a run.",
)
@estimator_options
@output_options
def command(
    *,
    model: str,
    prompt: str | None,
    prompt_file: str | None,
    spec: str | None,
    imports: tuple[str, ...],
    value: str | None,
    device: str | None,
    executor: str | None,
    actors: int,
    batch_size: int,
    run_folder: Path | None,
    on_exists: str,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say which parts of a prompt made the probe fire.

    The model answers the prompt again and again, each time with other parts left out, and each part gets the share of
    the value it is due (its Shapley value). Every generation is kept in the run folder: the same command resumes after
    an interruption and asks only for what is missing; `undercurrent reanalyze` scores a finished run again without the
    model. With POINT:fired an answer ends as soon as the probe has fired.
    """
    import asyncio

    from undercurrent.cli.explain_views import show
    from undercurrent.runtime.domain import Conversation

    conversation = Conversation.of(read_conversation(prompt, prompt_file))
    import_modules(imports)
    points = None if spec is None else require_spec(spec)
    run = _Run(
        conversation,
        _settings(points, value, options),
        folder=run_folder,
        on_exists=on_exists,
        batch_size=batch_size,
        is_quiet=as_json,
    )
    more: dict[str, Any] = {"points": points, "imports": imports, "device": device}
    if executor is None:
        from undercurrent.cli.explain_model import load_coalitions

        with load_coalitions(model, run.settings, **more) as coalitions:
            explanation = asyncio.run(run.explain(coalitions, coalitions.tokenize))
    else:
        from undercurrent.cli.explain_executor import make_executor

        where = make_executor(executor, model, run.settings, actors=actors, **more)
        explanation = asyncio.run(_explain_elsewhere(run, where))
    show(explanation, html=html, as_json=as_json)
    if not as_json:
        say(f"the run is in {run.folder}; score it again with: undercurrent reanalyze {run.folder}")


class _Run:
    """What is explained, and where it is kept."""

    def __init__(
        self,
        conversation: Conversation,
        settings: RunSettings,
        *,
        folder: Path | None,
        on_exists: str,
        batch_size: int,
        is_quiet: bool,
    ) -> None:
        self.conversation = conversation
        self.settings = settings
        self.folder = folder
        """Its archive; None until the run has its id, where nobody named a folder."""
        self._on_exists = on_exists
        self._batch_size = batch_size
        self._is_quiet = is_quiet

    async def explain(self, model: CoalitionModel, tokenize: Tokenize | None, *, max_inflight: int = 1) -> Explanation:
        """Runs it with a model that has loaded its weights."""
        from undercurrent.cli.explain_views import Progress
        from undercurrent.runtime.pipeline import explain, plan_run

        manifest = plan_run(self.conversation, model, self.settings, tokenize=tokenize)
        self.folder = self.folder or _RUNS_FOLDER / manifest.run_id
        with Progress(self.settings.estimator, len(manifest.player_set), hides=self._is_quiet) as progress:
            return await explain(
                self.conversation,
                model,
                self.settings,
                archive=self.folder,
                on_exists=self._on_exists,  # type: ignore[arg-type]
                tokenize=tokenize,
                batch_size=self._batch_size,
                max_inflight=max_inflight,
                progress=progress,
            )


async def _explain_elsewhere(run: _Run, executor: LocalExecutor | RayExecutor) -> Explanation:
    say(f"starting the model {executor.capacity} times")
    async with executor:
        tokenize = None
        if run.settings.players == "tokens":
            texts = [part.text for message in run.conversation.messages for part in message.parts]
            tokenize = dict(zip(texts, await executor.tokenize(texts), strict=True)).__getitem__
        return await run.explain(executor, tokenize, max_inflight=executor.capacity)


def _settings(points: ProbeSpec | None, value: str | None, options: dict[str, Any]) -> RunSettings:
    from undercurrent.errors import did_you_mean
    from undercurrent.runtime.domain import GenerationConfig
    from undercurrent.runtime.pipeline import ANSWER_VALUE, FIRED_SUFFIX, VALUE_NAMES, EstimatorSettings, RunSettings

    names = [] if points is None else list(points.names)
    if value is None and len(names) > 1:
        raise UsageError(f"the spec has several points; choose one with --value: {', '.join(names)}")
    known = [*names, *(f"{name}{FIRED_SUFFIX}" for name in names), *VALUE_NAMES]
    if value is not None and value not in known:
        raise UsageError(f"no value {value!r}{did_you_mean(value, known) or ';'} known: {', '.join(known)}")
    return RunSettings(
        players=options["players"],
        roles=options["roles"],
        absence_policy=options["absence"],
        value=value or (names[0] if names else ANSWER_VALUE),
        estimator=EstimatorSettings(
            name=options["estimator"],
            budget=options["budget"],
            interactions=options["interactions"],
            seed=options["seed"],
        ),
        generation=GenerationConfig(
            max_new_tokens=options["max_new_tokens"],
            temperature=options["temperature"],
            top_k=1 if options["temperature"] == 0 else 50,
            seed=options["seed"] if options["temperature"] > 0 else None,
            stop=options["stop"],
        ),
    )
