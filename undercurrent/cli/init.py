"""`undercurrent init`: a spec and its probes to begin with."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from undercurrent.cli.verbs import CLIError, json_option, print_json, verb

__all__ = ["command"]

SPEC_FILE = "probes.yaml"
PROBES_FILE = "my_probes.py"

SPEC = """\
# yaml-language-server: $schema=./probe-spec.schema.json
# What to read from the model, and which probe judges it. The line above makes editors complete this file once you run
#   undercurrent schema -o probe-spec.schema.json
# Check it:  undercurrent validate probes.yaml --check-probes --import my_probes.py --model tiny
# Run it:    undercurrent run probes.yaml --import my_probes.py --model tiny --prompt "The river"
version: "1"
extraction_points:
  # An inline probe runs between two tokens, so it can stop the generation. This one reads the last token of the prompt.
  - name: gate
    layers: 2
    tensor_type: residual_stream # or attn_out, mlp_out, final_norm; `undercurrent inspect-model MODEL` lists them
    position: "prompt[-1]" # or an index, generated[3], generated[*], generated[2:8]
    probe_type: loudness # the name it is registered under in my_probes.py
    probe_kind: single_shot
    execution_mode: inline
    probe_args: # given to the probe
      threshold: 100000.0

  # An async probe runs in a process of its own and never delays a token. This one watches every generated token.
  - name: drift
    layers: 3
    tensor_type: residual_stream
    position: "generated[*]"
    # stride: 4        # every fourth token only
    probe_type: drift
    probe_kind: trajectory
    execution_mode: async
    queue_depth: 64 # records that may wait; more are dropped, oldest first, and counted in the result
    probe_args:
      alarm: 0.9
"""

PROBES = '''\
"""Probes of probes.yaml. They read activations: arrays of as many numbers as the model is wide."""

import numpy as np

from undercurrent import Probe, ProbeAction, ProbeResult, ProbeSignal, probe, register_probe


def as_vector(tensor):
    """An activation as float32: torch's bfloat16 is unknown to numpy."""
    return np.asarray(tensor.float() if hasattr(tensor, "float") else tensor, dtype=np.float32)


@probe("loudness")
def loudness(record):
    """A score from one activation; from `threshold` on, the generation is stopped."""
    return float(np.linalg.norm(as_vector(record.tensor)))


@register_probe("drift")
class Drift(Probe):
    """How far each activation has turned from the first one, 0 to 2; flags those beyond `alarm`."""

    probe_kind = "trajectory"

    def __init__(self, alarm=0.9):
        self.alarm = alarm

    def on_start(self, request_ctx):
        self.first = None
        self.max_score = 0.0

    def on_activation(self, record):
        here = as_vector(record.tensor)
        here = here / (np.linalg.norm(here) + 1e-9)
        if self.first is None:
            self.first = here
        turned = float(1.0 - here @ self.first)
        self.max_score = max(self.max_score, turned)
        action = ProbeAction.FLAG if turned > self.alarm else ProbeAction.CONTINUE
        return ProbeSignal(action, {"score": turned})

    def on_end(self, request_ctx):
        return ProbeResult(self.request_id, self.extraction_point_name, {"max_score": self.max_score})
'''


@verb(
    "init",
    examples=[
        ("undercurrent init", "into this folder"),
        ("undercurrent init watch", "into a folder, made if need be"),
        (
            "undercurrent run probes.yaml --import my_probes.py --model tiny --prompt 'The river'",
            "then this runs, without a download",
        ),
    ],
    exit_statuses={0: "both files were written", 1: "a file is in the way; nothing was written"},
)
@click.argument("folder", required=False, default=Path("."), type=click.Path(file_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@json_option
def command(folder: Path, *, dry_run: bool, as_json: bool) -> None:
    """Write an example spec and its probes.

    probes.yaml has comments on every key and my_probes.py has two probes, one inline and one async. Files that exist
    are never overwritten. FOLDER is this folder if it is not given.
    """
    files = {folder / SPEC_FILE: SPEC, folder / PROBES_FILE: PROBES}
    taken = [str(path) for path in files if path.exists()]
    if taken:
        raise CLIError(
            f"{' and '.join(taken)} would be overwritten; nothing was written",
            hint="move it away, or give another folder: undercurrent init FOLDER",
        )
    if not dry_run:
        _write(files)
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in files], "written": not dry_run})
        return
    for path in files:
        click.echo(f"{'would write' if dry_run else 'wrote'} {path}")
    place = "" if folder == Path(".") else f"cd {folder} && "
    click.echo(f"next: {place}undercurrent run {SPEC_FILE} --import {PROBES_FILE} --model tiny --prompt 'The river'")


def _write(files: dict[Path, str]) -> None:
    """Writes all files or none; one that appeared meanwhile is not overwritten."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
