"""`undercurrent validate`: the checker of specs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from undercurrent.cli.models import MODEL_HELP
from undercurrent.cli.saved_probes import probe_problems
from undercurrent.cli.specs import STANDARD_INPUT, import_modules, read_spec
from undercurrent.cli.verbs import IMPORT_HINT, CLIError, NearestChoice, UsageError, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.engines import EngineCapabilities

__all__ = ["SpecVerdict", "command"]


@dataclass(slots=True)
class SpecVerdict:
    """What is to be said about one spec."""

    path: str
    valid: bool
    extraction_points: int | None = None
    errors: list[str] = field(default_factory=list)
    """Each with file, line and path where the spec has them."""
    warnings: list[str] = field(default_factory=list)


@verb(
    "validate",
    examples=[
        ("undercurrent validate probes.yaml", "every problem, with its line"),
        ("undercurrent validate specs/*.yaml --json", "for CI; the exit status says the same"),
        ("generate-spec | undercurrent validate -", "standard input"),
        ("undercurrent validate probes.yaml --check-probes --import my_probes.py", "do the probes exist?"),
        ("undercurrent validate probes.yaml --model google/gemma-3-270m", "do the layers exist?"),
    ],
    exit_statuses={0: "every spec is valid", 1: "at least one is not", 2: "the command line is wrong"},
)
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option("--strict", is_flag=True, help="Count deprecated keys as errors.")
@click.option(
    "--check-probes",
    is_flag=True,
    help="Check that each probe_type is registered, by --import or by an installed package, and fits its point.",
)
@click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Import this module, or .py file, so that its probes are registered; needs --check-probes. Repeatable.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help=f"Check layers and tensor types against a model, without loading its weights: {MODEL_HELP}.",
)
@click.option("--format", "form", type=NearestChoice(["text", "json"]), default="text", help="As --json; of 0.1.0.")
@json_option
def command(
    specs: tuple[str, ...],
    *,
    strict: bool,
    check_probes: bool,
    imports: tuple[str, ...],
    model: str | None,
    form: str,
    as_json: bool,
) -> None:
    """Check spec files and list every problem.

    All problems of all files are shown at once, each with file, line, path, what was expected and the nearest name.
    SPEC is a file, or `-` for standard input. Nothing else in Undercurrent judges a spec: what passes here with
    --check-probes is accepted by the router, and with --model by the engine.
    """
    if imports and not check_probes:
        raise UsageError("--import goes with --check-probes; add it, or drop --import")
    if specs.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input can be read once; give '-' once")
    import_modules(imports)
    capabilities = None if model is None else _capabilities(model)
    verdicts = [_judge(path, strict=strict, check_probes=check_probes, capabilities=capabilities) for path in specs]
    if as_json or form == "json":
        print_json([asdict(verdict) for verdict in verdicts])
    else:
        for verdict in verdicts:
            _print(verdict)
        if (
            check_probes
            and not imports
            and any("no probe is registered" in text for v in verdicts for text in v.errors)
        ):
            say(f"hint: {IMPORT_HINT}")
    if not all(verdict.valid for verdict in verdicts):
        raise click.exceptions.Exit(1)


def _judge(path: str, *, strict: bool, check_probes: bool, capabilities: EngineCapabilities | None) -> SpecVerdict:
    read = read_spec(path)
    verdict = SpecVerdict(path, valid=False, errors=list(read.problems))
    (verdict.errors if strict else verdict.warnings).extend(read.deprecations)
    if read.spec is not None:
        verdict.extraction_points = len(read.spec)
        if check_probes:
            found = probe_problems(read.spec, capabilities)
            verdict.errors += [
                f"{place}: {text}" for place, texts in zip(read.places, found, strict=True) for text in texts
            ]
        if capabilities is not None:
            for place, point in zip(read.places, read.spec, strict=True):
                verdict.errors += [f"{place}: {text}" for text in capabilities.find_problems(point)]
    verdict.valid = not verdict.errors
    return verdict


def _capabilities(model: str) -> EngineCapabilities:
    from undercurrent.cli.inspect_model import model_facts

    facts = model_facts(model)
    if facts.capabilities is None:
        raise CLIError(f"{model!r} cannot be checked against: {facts.note}")
    return facts.capabilities


def _print(verdict: SpecVerdict) -> None:
    if verdict.valid:
        count = verdict.extraction_points
        click.echo(f"{verdict.path}: OK ({count} extraction point{'' if count == 1 else 's'})")
    else:
        count = len(verdict.errors)
        click.echo(f"{verdict.path}: ERROR {count} problem{'' if count == 1 else 's'}")
    for error in verdict.errors:
        click.echo(f"  - {error}")
    for warning in verdict.warnings:
        click.echo(f"  warning: {warning}")
