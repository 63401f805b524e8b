"""`undercurrent probe show`: what a saved probe says about itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.verbs import json_option, print_json, verb

if TYPE_CHECKING:
    from undercurrent.core import SavedProbe

__all__ = ["command"]

_LABELS_SHOWN_MAX = 8


@verb(
    "show",
    examples=[
        ("undercurrent probe show topic.safetensors", "layer, model, labels, threshold, training"),
        ("undercurrent probe show topic.safetensors --json", "for programs"),
    ],
    exit_statuses={0: "shown", 1: "no saved probe"},
)
@click.argument("probe", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def command(probe: Path, *, as_json: bool) -> None:
    """Show what a saved probe was trained on and how it judges.

    The file is checked as it is before use: sizes, dtypes, every field of its header. It is never unpickled.
    """
    from undercurrent.core import load_probe

    report = _report(load_probe(probe))
    if as_json:
        print_json({"probe": str(probe), **report})
        return
    rows = _rows(report)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:{width}}  {value}")


def _report(saved: SavedProbe) -> dict[str, Any]:
    import msgspec

    return {
        "kind": saved.kind,
        "layer": saved.layer,
        "tensor_type": saved.tensor_type,
        "model": saved.model,
        "hidden_size": saved.hidden_size,
        "labels": list(saved.labels),
        "threshold": saved.threshold,
        "calibration": msgspec.to_builtins(saved.calibration),
        "aggregation": msgspec.to_builtins(saved.aggregation),
        "settings": dict(saved.settings),
        "training": dict(saved.training),
        "tensors": {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in saved.weights.items()},
    }


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in report.items():
        if name == "tensors":
            rows += [(f"tensor {key}", f"{part['dtype']} {tuple(part['shape'])}") for key, part in value.items()]
        elif name == "training":
            rows += [row for key, part in value.items() for row in _training_rows(f"training: {key}", part)]
        elif value not in (None, {}, []):
            rows.append((name, _spell(value)))
    return rows


def _training_rows(name: str, value: Any) -> list[tuple[str, str]]:
    """One row, or where a value holds mappings, as the held-out figures do, one per entry of it."""
    if isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
        return [(f"{name}.{key}", _spell(part)) for key, part in value.items()]
    return [(name, _spell(value))]


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_spell(part)}" for key, part in value.items())
    if isinstance(value, list):
        shown = ", ".join(map(_spell, value[:_LABELS_SHOWN_MAX]))
        return f"{shown} … ({len(value)})" if len(value) > _LABELS_SHOWN_MAX else shown
    return f"{value:.4g}" if isinstance(value, float) else str(value)
