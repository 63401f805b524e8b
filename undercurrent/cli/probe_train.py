"""`undercurrent probe train`: from labelled texts to a saved probe with its held-out figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.models import MODEL_HELP
from undercurrent.cli.probe_capture import POSITIONS, capture, open_engine
from undercurrent.cli.probe_picture import check_picture, draw
from undercurrent.cli.probe_report import report_lines
from undercurrent.cli.probe_texts import LabelledTexts, read_labelled
from undercurrent.cli.verbs import NearestChoice, UsageError, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.core import SavedProbe
    from undercurrent.core.training import Evaluation, Split

__all__ = ["command"]

KINDS = ("linear", "mean_difference", "mlp")
TENSOR_TYPES = ("residual_stream", "attn_out", "mlp_out", "final_norm")


@verb(
    "train",
    examples=[
        ("undercurrent probe train texts.jsonl --model ./my-model --layer 12", "a linear probe, texts.safetensors"),
        ("undercurrent probe train texts.jsonl --model tiny --layer 2 --kind mlp --position mean", "a small network"),
        ("undercurrent probe train texts.jsonl --model tiny --layer 2 --false-positive-rate 0.01", "for a gate"),
    ],
    exit_statuses={0: "trained and saved", 1: "texts, model or data do not do", 2: "the command line is wrong"},
)
@click.argument("texts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", required=True, metavar="MODEL", help=f"What reads the texts: {MODEL_HELP}.")
@click.option("--layer", type=click.IntRange(min=0), required=True, help="The layer to read, from 0.")
@click.option("--tensor-type", type=NearestChoice(TENSOR_TYPES), default=TENSOR_TYPES[0], show_default=True)
@click.option("--kind", type=NearestChoice(KINDS), default=KINDS[0], show_default=True)
@click.option(
    "--position",
    type=NearestChoice(POSITIONS),
    default=POSITIONS[0],
    show_default=True,
    help="Which tokens speak for a text: its last, the mean of all, or all of them, each by itself.",
)
@click.option("--positive", metavar="LABEL", help="The label to look for; the second in the alphabet if there are two.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to save; TEXTS with .safetensors.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="A .png or .svg; beside the probe.")
@click.option("--no-picture", is_flag=True, help="Draw nothing.")
@click.option("--penalty", type=click.FloatRange(min=0, min_open=True), default=100.0, show_default=True)
@click.option("--hidden", "hidden_sizes", type=click.IntRange(1, 65536), multiple=True, help="Width of an mlp's layer.")
@click.option("--calibration", type=NearestChoice(["temperature", "isotonic", "none"]), default="temperature")
@click.option(
    "--false-positive-rate",
    "false_positive_rate",
    type=click.FloatRange(0, 1),
    help="Choose the threshold that flags so many of the others; 0.5 is taken otherwise.",
)
@click.option(
    "--held-out", type=click.FloatRange(0.05, 0.9), default=0.4, show_default=True, help="Share to report on."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the split, and of an mlp's first weights.")
@click.option("--batch-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Texts read at once.")
@click.option("--device", help="Where the model runs, as torch names it; where it was loaded otherwise.")
@json_option
def command(texts: Path, *, model: str, device: str | None, no_picture: bool, as_json: bool, **options: Any) -> None:
    """Train a probe on labelled texts and measure it on some it has not seen.

    TEXTS has one JSON object a line: {"text": "…", "label": "…", "group": "…"}. Texts of one group, say of one template
    or one author, stay on one side of the split. A part is held out for the figures, and a fifth for calibration and
    threshold. The model reads each text once; nothing is generated.
    """
    out = options["out"] or texts.with_suffix(".safetensors")
    picture = None if no_picture else options["picture"] or out.with_suffix(".png")
    check_picture(picture)
    labelled = read_labelled(texts)
    names = labelled.choose_positive(options["positive"])
    split = _split(labelled, options["held_out"], options["seed"])
    engine = open_engine(model, device=device)
    sequences = capture(
        engine,
        labelled.texts,
        layer=options["layer"],
        tensor_type=options["tensor_type"],
        position=options["position"],
        batch_size=options["batch_size"],
    )
    probe, evaluation = _train(sequences, labelled, split, names, engine.model_name, options)
    from undercurrent.core import save_probe

    save_probe(out, probe)
    if picture is not None:
        draw(evaluation, picture, title=f"{out.name}: {probe.kind} on {probe.tensor_type} {probe.layer}")
    if as_json:
        print_json(_report(out, picture, probe, split, evaluation))
        return
    for line in report_lines(evaluation, positive=names[1]):
        click.echo(line)
    say(f"wrote {out}" + (f" and {picture}" if picture else ""))
    say(f"run it with a point such as\n{_example_point(out, probe, options['position'])}")


def _split(labelled: LabelledTexts, held_out: float, seed: int) -> Split:
    from undercurrent.core.training import split_by_group

    calibration = 0.2
    if held_out + calibration >= 1:
        raise UsageError(f"--held-out {held_out} and a fifth for calibration leave nothing to train on")
    return split_by_group(labelled.labels, labelled.groups, held_out=held_out, calibration=calibration, seed=seed)


def _train(
    sequences: list[Any],
    labelled: LabelledTexts,
    split: Split,
    names: tuple[str, str],
    model_name: str,
    options: dict[str, Any],
) -> tuple[SavedProbe, Evaluation]:
    import numpy as np

    from undercurrent.core.training import calibrate, evaluate, fit_probe, last_values, threshold_at_false_positive_rate

    truth = np.array([label == names[1] for label in labelled.labels], dtype=np.int64)
    groups = np.array(labelled.groups)
    rows, owners = _training_rows(sequences, split.train, options["position"])
    facts = {
        "texts_sha256": labelled.digest,
        "texts": {name: len(getattr(split, name)) for name in ("train", "calibration", "held_out")},
        "groups": len(set(labelled.groups)),
        "position": options["position"],
        "seed": options["seed"],
    }
    probe = fit_probe(
        rows,
        truth[owners],
        layer=options["layer"],
        tensor_type=options["tensor_type"],
        kind=options["kind"],
        label_names=names,
        model=model_name,
        penalty=options["penalty"],
        hidden_sizes=options["hidden_sizes"] or (64,),
        aggregation=None if options["position"] == "last" else "mean",
        training=facts,
        seed=options["seed"],
    )

    def margins(part: Any) -> Any:
        return last_values(probe, [sequences[index] for index in part])

    apart = margins(split.calibration)
    if options["kind"] != "mean_difference":
        probe = calibrate(probe, apart, truth[split.calibration], method=options["calibration"])
    threshold = 0.5
    if options["false_positive_rate"] is not None:
        scores = probe.scorer().link(apart)
        threshold = threshold_at_false_positive_rate(scores, truth[split.calibration], options["false_positive_rate"])
    evaluation = evaluate(
        probe.scorer().link(margins(split.held_out)),
        truth[split.held_out],
        threshold=threshold,
        groups=groups[split.held_out] if labelled.has_groups else None,
        is_probability=probe.is_probability,
        seed=options["seed"],
    )
    training = {**probe.training, "held_out": _headline(evaluation)}
    return replace(probe, threshold=threshold, training=training), evaluation


def _training_rows(sequences: list[Any], part: Any, position: str) -> tuple[Any, Any]:
    """Rows `(n, hidden)` and the text each belongs to."""
    import numpy as np

    chosen = [sequences[index] for index in part]
    if position == "mean":
        return np.stack([rows.mean(axis=0) for rows in chosen]), part
    return np.concatenate(chosen), np.repeat(part, [len(rows) for rows in chosen])


def _headline(found: Evaluation) -> dict[str, Any]:
    kept = ("count", "group_count", "base_rate", "accuracy", "auc", "auc_of_groups", "calibration_error")
    everything = found.to_dict()
    return {name: everything[name] for name in kept}


def _report(out: Path, picture: Path | None, probe: SavedProbe, split: Split, found: Evaluation) -> dict[str, Any]:
    return {
        "probe": str(out),
        "picture": None if picture is None else str(picture),
        "kind": probe.kind,
        "layer": probe.layer,
        "tensor_type": probe.tensor_type,
        "model": probe.model,
        "labels": list(probe.labels),
        "threshold": probe.threshold,
        "texts": {name: len(getattr(split, name)) for name in ("train", "calibration", "held_out")},
        "held_out": found.to_dict(),
    }


def _example_point(out: Path, probe: SavedProbe, position: str) -> str:
    where, kind = ("prompt[-1]", "single_shot") if position == "last" else ("generated[*]", "trajectory")
    return (
        f"  - name: {out.stem}\n    layers: {probe.layer}\n    tensor_type: {probe.tensor_type}\n"
        f'    position: "{where}"\n    probe_type: {probe.kind}\n    probe_kind: {kind}\n'
        f"    probe_args: {{file: {out}}}"
    )
