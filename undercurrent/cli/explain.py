"""`undercurrent explain`: which parts of a prompt made the probe fire."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.explain_options import estimator_options, output_options
from undercurrent.cli.models import MODEL_HELP, missing_model_named, resolve_model
from undercurrent.cli.prompts import read_conversation
from undercurrent.cli.specs import import_modules, require_spec
from undercurrent.cli.verbs import NearestChoice, UsageError, say, verb

if TYPE_CHECKING:
    from undercurrent.engines.coalitions import HFCoalitions
    from undercurrent.runtime.pipeline import RunSettings
    from undercurrent.spec import ProbeSpec

__all__ = ["command"]

_FIRED = ":fired"
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
@click.option("--device", metavar="DEVICE", help="Where the model runs, as in cuda:0.")
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

    from undercurrent.cli.explain_views import Progress, show
    from undercurrent.runtime.pipeline import explain, plan_run

    conversation = read_conversation(prompt, prompt_file)
    import_modules(imports)
    points = None if spec is None else require_spec(spec)
    settings = _settings(points, value, options)
    with ExitStack() as stack:
        coalitions = stack.enter_context(_load(stack, model, device, points, settings))
        manifest = plan_run(conversation, coalitions, settings, tokenize=coalitions.tokenize)
        folder = run_folder or _RUNS_FOLDER / manifest.run_id
        progress = stack.enter_context(Progress(settings.estimator, len(manifest.player_set), hides=as_json))
        explanation = asyncio.run(
            explain(
                conversation,
                coalitions,
                settings,
                archive=folder,
                on_exists=on_exists,  # type: ignore[arg-type]
                tokenize=coalitions.tokenize,
                batch_size=batch_size,
                progress=progress,
            )
        )
    show(explanation, html=html, as_json=as_json)
    if not as_json:
        say(f"the run is in {folder}; score it again with: undercurrent reanalyze {folder}")


def _settings(points: ProbeSpec | None, value: str | None, options: dict[str, Any]) -> RunSettings:
    from undercurrent.runtime.domain import GenerationConfig
    from undercurrent.runtime.pipeline import ANSWER_VALUE, EstimatorSettings, RunSettings

    names = [] if points is None else list(points.names)
    if value is None and len(names) > 1:
        raise UsageError(f"the spec has several points; choose one with --value: {', '.join(names)}")
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


def _load(
    stack: ExitStack, model: str, device: str | None, points: ProbeSpec | None, settings: RunSettings
) -> HFCoalitions:
    """The model with the spec's probes attached; what it needs is closed by `stack`."""
    from undercurrent.engines import HFEngine
    from undercurrent.engines.coalitions import HFCoalitions
    from undercurrent.router import Router

    choice = resolve_model(model, on_progress=say)
    say(f"loading {choice.title}")
    engine = HFEngine()
    with missing_model_named(model):
        engine.load_model(choice.model, device=device, shows_progress=False, **choice.options)
    if points is None:
        return HFCoalitions(engine, settings.generation)
    # A verdict must rest on every record, so the model waits for a slow probe instead of leaving records out.
    router = stack.enter_context(Router(default_overflow_policy="block"))
    router.prewarm(points)
    fired = settings.value.removesuffix(_FIRED) if settings.value.endswith(_FIRED) else None
    return HFCoalitions(
        engine,
        settings.generation,
        points=list(points),
        router=router,
        stops_when_fired=[fired] if fired in points.names else [],
    )
