"""`undercurrent record`: keeps what a model computes, for probes that are still to be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.generation_options import as_settings, generation_options, prompt_options
from undercurrent.cli.models import MODEL_HELP, missing_model_named, resolve_model
from undercurrent.cli.prompts import read_prompts
from undercurrent.cli.specs import require_spec
from undercurrent.cli.verbs import CLIError, counted, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.cli.models import ModelChoice
    from undercurrent.engines import HFEngine

__all__ = ["command"]


@verb(
    "record",
    examples=[
        ("undercurrent record probes.yaml --model tiny --prompt 'The river' --out traffic", "a first one"),
        ("undercurrent record probes.yaml --model ./m --prompts-file p.jsonl --out traffic", "many prompts"),
        ("undercurrent replay traffic new-probes.yaml --import my_probes.py", "and what a new probe says of them"),
    ],
    exit_statuses={
        0: "every prompt was recorded",
        1: "the spec, the model or the disk failed; shards that are there are whole",
        2: "the command line is wrong",
        130: "interrupted; shards that are there are whole",
    },
)
@click.argument("spec", metavar="SPEC")
@click.option("--model", required=True, metavar="MODEL", help=f"What generates: {MODEL_HELP}.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make; it must hold nothing yet.")
@prompt_options
@generation_options
@click.option("--device", metavar="DEVICE", help="Where the model runs, as in cuda:0.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts at a time.")
@click.option("--shard-mib", type=click.IntRange(min=1), default=64, show_default=True, help="Largest size of a file.")
@click.option("--keep-prompts", is_flag=True, help="Keep the prompts' text too; without it only their length is kept.")
@json_option
def command(
    spec: str,
    *,
    model: str,
    out: Path,
    prompts: tuple[str, ...],
    prompts_file: str | None,
    device: str | None,
    batch_size: int,
    shard_mib: int,
    keep_prompts: bool,
    as_json: bool,
    **generation: Any,
) -> None:
    """Keep what a model computes, to replay it through other probes.

    What the points of SPEC read is written to safetensors files in the folder of --out, to the bit; their probes do not
    run and need not exist. SPEC is a file, or `-` for standard input.
    """
    texts = read_prompts(prompts, prompts_file)
    points = require_spec(spec)
    settings = as_settings(generation)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CLIError(f"{str(out)!r} is there and not empty", hint="give --out a folder that is still to be made")
    from undercurrent.engines import ActivationRecorder
    from undercurrent.model import record_prompts

    choice = resolve_model(model, on_progress=say)
    engine = _load(choice, name=model, device=device)
    with ActivationRecorder(
        out, points, model_name=engine.model_name, keeps_prompts=keep_prompts, shard_bytes_max=shard_mib << 20
    ) as recorder:
        arguments = {**choice.generation, **settings}
        outputs = record_prompts(engine, points, recorder, texts, batch_size=batch_size, **arguments)
        for count, _output in enumerate(outputs, start=1):
            if count % batch_size == 0 or count == len(texts):
                say(f"{count} of {len(texts)} prompts, {recorder.record_count} records")
    _report(out, len(texts), as_json=as_json)


def _load(choice: ModelChoice, *, name: str, device: str | None) -> HFEngine:
    from undercurrent.engines import HFEngine

    say(f"loading {choice.title}")
    engine = HFEngine()
    with missing_model_named(name):
        engine.load_model(choice.model, device=device, shows_progress=False, **choice.options)
    return engine


def _report(out: Path, request_count: int, *, as_json: bool) -> None:
    from undercurrent.engines import Recording

    manifest = Recording(out).manifest
    size = sum(path.stat().st_size for path in out.iterdir())
    if as_json:
        print_json(
            {
                "folder": str(out),
                "model": manifest.model,
                "requests": request_count,
                "records": manifest.record_count,
                "shards": manifest.shard_count,
                "size_bytes": size,
            }
        )
        return
    click.echo(
        f"{out}: {counted(request_count, 'request')}, {counted(manifest.record_count, 'record')}, {size / 2**20:.1f}"
        f" MiB in {counted(manifest.shard_count, 'shard')}"
    )
