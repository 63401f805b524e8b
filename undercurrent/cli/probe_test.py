"""`undercurrent probe test`: a saved probe against other labelled texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undercurrent.cli.models import MODEL_HELP
from undercurrent.cli.probe_capture import capture, open_engine
from undercurrent.cli.probe_picture import check_picture, draw
from undercurrent.cli.probe_report import report_lines
from undercurrent.cli.probe_texts import LabelledTexts, read_labelled
from undercurrent.cli.verbs import CLIError, json_option, print_json, say, verb

if TYPE_CHECKING:
    from undercurrent.core import SavedProbe
    from undercurrent.core.training import Evaluation

__all__ = ["command"]


@verb(
    "test",
    examples=[
        ("undercurrent probe test topic.safetensors other.jsonl --model ./my-model", "its figures on other texts"),
        ("undercurrent probe test topic.safetensors other.jsonl --model ./my-model --picture roc.svg --json", ""),
    ],
    exit_statuses={0: "measured", 1: "probe, texts or model do not do", 2: "the command line is wrong"},
)
@click.argument("probe", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("texts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", required=True, metavar="MODEL", help=f"What reads the texts: {MODEL_HELP}.")
@click.option("--threshold", type=float, help="Instead of the probe's own.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw a .png or .svg.")
@click.option("--batch-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Texts read at once.")
@click.option("--device", help="Where the model runs, as torch names it; where it was loaded otherwise.")
@json_option
def command(
    probe: Path,
    texts: Path,
    *,
    model: str,
    threshold: float | None,
    picture: Path | None,
    batch_size: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Measure a saved probe on labelled texts.

    TEXTS has the form that `probe train` reads. The label to look for is the probe's own; every other one counts as
    other. All texts are measured, so leave out those that the probe was trained on.
    """
    from undercurrent.core import load_probe

    check_picture(picture)
    saved = load_probe(probe)
    labelled = read_labelled(texts)
    positive = _positive(saved, labelled, probe)
    if saved.training.get("texts_sha256") == labelled.digest:
        say(f"{texts} is what the probe was trained on: most of these figures flatter it")
    engine = open_engine(model, device=device)
    if saved.model is not None and saved.model != engine.model_name:
        say(f"the probe was trained on {saved.model!r} and is tested on {engine.model_name!r}")
    width = engine.capabilities.hidden_size
    if width != saved.hidden_size:
        raise CLIError(f"the probe takes {saved.hidden_size} values per token, and this model has {width}")
    sequences = capture(
        engine,
        labelled.texts,
        layer=saved.layer,
        tensor_type=saved.tensor_type,
        position=str(saved.training.get("position", "last" if saved.aggregation is None else "all")),
        batch_size=batch_size,
    )
    found = _measure(saved, sequences, labelled, positive, threshold)
    if picture is not None:
        draw(found, picture, title=f"{probe.name} on {texts.name}")
    if as_json:
        print_json({"probe": str(probe), "texts": str(texts), "figures": found.to_dict()})
        return
    for line in report_lines(found, positive=positive):
        click.echo(line)


def _positive(saved: SavedProbe, labelled: LabelledTexts, path: Path) -> str:
    """The label that the probe scores."""
    if saved.output_count > 1 or saved.kind == "sae_feature":
        raise CLIError(f"{path} tells {len(saved.labels)} labels apart; `probe test` measures probes of two")
    positive = saved.labels[1]
    if positive not in labelled.labels:
        found = ", ".join(map(repr, sorted(set(labelled.labels))[:20]))
        raise CLIError(f"{path} looks for {positive!r}, which is no label of {labelled.path}; it has {found}")
    return positive


def _measure(
    saved: SavedProbe, sequences: list[Any], labelled: LabelledTexts, positive: str, threshold: float | None
) -> Evaluation:
    from undercurrent.core.aggregation import Cusum, KOfN
    from undercurrent.core.training import evaluate, last_values

    values = last_values(saved, sequences)
    form = saved.aggregation
    if isinstance(form, (KOfN, Cusum)):
        # Counts and sums are held against the aggregate's own limit, and are no chances.
        scores, own = values, float(form.k if isinstance(form, KOfN) else form.limit)
    else:
        scores, own = saved.scorer().link(values), 0.5 if saved.threshold is None else saved.threshold
    return evaluate(
        scores,
        [label == positive for label in labelled.labels],
        threshold=own if threshold is None else threshold,
        groups=labelled.groups if labelled.has_groups else None,
        is_probability=saved.is_probability and not isinstance(form, (KOfN, Cusum)),
    )
