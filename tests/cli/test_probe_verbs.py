"""`undercurrent probe train`, `test` and `show` over the tiny model, and what they refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from texts.make_labelled import build_rows

from undercurrent.cli.commands import undercurrent
from undercurrent.core import load_probe
from undercurrent.core.aggregation import Mean

# A process that imports torch takes its time on a busy machine.
pytestmark = pytest.mark.timeout(180)

TEXTS = Path(__file__).resolve().parent.parent / "texts" / "labelled.jsonl"
TRAIN = ("--model", "tiny", "--layer", "2")
COMMAND = Path(sys.executable).with_name("undercurrent")


def call(*arguments: str | Path) -> Result:
    """Runs `undercurrent probe …` in this process, where torch is loaded once."""
    return CliRunner().invoke(undercurrent, ["probe", *map(str, arguments)])


def write_texts(path: Path, count: int = 60, **fields: Any) -> Path:
    """Texts whose last byte tells the label, so that any model's last token does."""
    rows = [
        {"text": f"text {index:03d} {'ab'[index % 2]}", "label": "ab"[index % 2], **fields} for index in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """A probe that was trained by the verb, its texts, and what the verb said."""
    folder = tmp_path_factory.mktemp("trained")
    texts = write_texts(folder / "texts.jsonl", 100)
    return folder / "texts.safetensors", texts, call("train", texts, *TRAIN, "--penalty", "1")


def test_committed_texts_are_those_that_the_script_writes() -> None:
    assert [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()] == build_rows()


def test_committed_texts_hold_out_300_of_different_texts_in_many_groups() -> None:
    rows = build_rows()
    assert len({row["text"] for row in rows}) == len(rows) == 1200
    assert set(Counter(row["label"] for row in rows).values()) == {600}
    assert len({row["group"] for row in rows}) == 60


def test_training_saves_a_probe_and_a_picture_and_says_what_it_is_worth(trained: Any) -> None:
    path, _, answer = trained
    assert answer.exit_code == 0, answer.output
    for expected in (
        "40 held-out texts, 50.0% of them 'b'",
        "accuracy at 0.5   100.0% of 40",
        "area under ROC      1.0000",
    ):
        assert expected in answer.stdout
    assert "fewer than 300 held-out texts" in answer.stdout
    assert "calibration error" in answer.stdout
    assert "probe_kind: single_shot" in answer.stderr
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    saved = load_probe(path)
    assert (saved.kind, saved.layer, saved.tensor_type, saved.labels) == ("linear", 2, "residual_stream", ("a", "b"))
    assert saved.model == "LlamaForCausalLM"
    assert saved.training["texts"] == {"train": 40, "calibration": 20, "held_out": 40}
    assert saved.training["held_out"]["accuracy"]["rate"] == 1.0


def test_probe_that_was_trained_runs_at_the_point_that_was_suggested(trained: Any) -> None:
    from undercurrent.engines import HFEngine, build_tiny_model
    from undercurrent.router import Router
    from undercurrent.spec import load_spec

    path, _, answer = trained
    spec = load_spec("extraction_points:\n" + answer.stderr.partition("a point such as\n")[2])
    model, tokenizer = build_tiny_model()
    engine = HFEngine()
    engine.load_model(model, tokenizer=tokenizer)
    with Router() as router:
        for name, is_flagged in (("text 7 a", False), ("text 7 b", True)):
            engine.register_extraction("r", spec.extraction_points)
            [generation] = engine.generate_batch(["r"], [name], {"max_new_tokens": 1, "do_sample": False}, router)
            engine.unregister_extraction("r")
            assert generation.results[path.stem].verdict["flagged"] is is_flagged


@pytest.mark.parametrize(
    ("kind", "position", "aggregation"),
    [("mean_difference", "last", None), ("mlp", "mean", Mean()), ("linear", "all", Mean())],
)
def test_every_kind_and_position_is_trained(kind: str, position: str, aggregation: Any, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl")
    out = tmp_path / "out.safetensors"
    options = ("--kind", kind, "--position", position, "--out", out, "--picture", tmp_path / "p.svg", "--penalty", "1")
    answer = call("train", texts, *TRAIN, *options, "--hidden", "4", "--false-positive-rate", "0.1", "--json")
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    saved = load_probe(out)
    assert (report["kind"], saved.kind, saved.aggregation) == (kind, kind, aggregation)
    assert report["held_out"]["count"] == report["texts"]["held_out"] == 24
    assert report["threshold"] == saved.threshold == report["held_out"]["threshold"]
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


def test_equal_seeds_train_equal_probes(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl")
    for name in ("one", "two"):
        assert call("train", texts, *TRAIN, "--no-picture", "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "texts.jsonl", "two"]


def test_probe_is_measured_on_other_texts(trained: Any, tmp_path: Path) -> None:
    path, texts, _ = trained
    other = write_texts(tmp_path / "other.jsonl", 30)
    answer = call("test", path, other, "--model", "tiny", "--picture", tmp_path / "roc.pdf")
    assert answer.exit_code == 0, answer.output
    assert "30 held-out texts" in answer.stdout
    assert (tmp_path / "roc.pdf").read_bytes().startswith(b"%PDF")
    figures = json.loads(call("test", path, other, "--model", "tiny", "--threshold", "1.1", "--json").stdout)["figures"]
    assert (figures["accuracy"]["hits"], figures["threshold"]) == (15, 1.1)
    assert "is what the probe was trained on" in call("test", path, texts, "--model", "tiny").stderr


def test_show_tells_what_the_file_holds(trained: Any) -> None:
    path, _, _ = trained
    answer = call("show", path)
    assert answer.exit_code == 0, answer.output
    for expected in ("linear", "residual_stream", "LlamaForCausalLM", "a, b", "temperature", "tensor weight", "(64,)"):
        assert expected in answer.stdout
    report = json.loads(call("show", path, "--json").stdout)
    assert report["tensors"]["bias"] == {"dtype": "float32", "shape": []}
    assert report["training"]["position"] == "last"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "texts.jsonl:3: expected one JSON object, got '{'"),
        ("[1]", "texts.jsonl:3: expected a JSON object with 'text' and 'label', got list"),
        ('{"txt": "x", "label": "a"}', "texts.jsonl:3: 'text' is missing; did you mean 'txt'?"),
        ('{"text": "x"}', "texts.jsonl:3: 'label' is missing"),
        ('{"text": "  ", "label": "a"}', "texts.jsonl:3: 'text' must be a text that is not empty"),
        ('{"text": "x", "label": 1.5}', "texts.jsonl:3: 'label' must be a name, a number or a truth value, got 1.5"),
        ('{"text": "x", "label": "a", "group": []}', "texts.jsonl:3: 'group' must be a name"),
        ('{"text": "x", "label": ""}', "texts.jsonl:3: 'label' must not be empty"),
    ],
)
def test_line_that_is_no_labelled_text_is_named_with_file_and_line(line: str, message: str, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", 2)
    texts.write_text(texts.read_text() + line + "\n" + "{}\n" * 9)
    answer = call("train", texts, *TRAIN)
    assert answer.exit_code == 1
    assert message in answer.stderr
    assert "and 5 more lines" in answer.stderr
    assert list(tmp_path.iterdir()) == [texts]


@pytest.mark.parametrize(
    ("content", "options", "status", "message"),
    [
        ("", (), 1, "has no texts"),
        ('{"text": "x", "label": "a"}\n' * 4, (), 1, "every text is 'a'"),
        ("three", (), 2, "has 3 labels ('0', '1', '2'); say which to look for with --positive"),
        (None, ("--positive", "bb"), 2, "no text is labelled 'bb'; did you mean 'b'"),
        (None, ("--picture", "roc.bmp"), 2, "a picture ends in .png"),
        (None, ("--held-out", "0.85"), 2, "leave nothing to train on"),
        (None, ("--layer", "9"), 2, "--layer of residual_stream must be from 0 to 3 for this model, got 9"),
        (None, ("--kind", "liner"), 2, "did you mean 'linear'"),
        (None, ("--model", "package:gemma"), 2, "no packaged model 'gemma'"),
        ("grouped", (), 1, "at least 3 groups each, got [1, 1]"),
    ],
)
def test_command_that_cannot_work_says_why(
    content: str | None, options: tuple[str, ...], status: int, message: str, tmp_path: Path
) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", **({"group": "one"} if content == "grouped" else {}))
    if content == "three":
        texts.write_text("".join(json.dumps({"text": f"x{n}", "label": n % 3}) + "\n" for n in range(30)))
    elif content not in (None, "grouped"):
        texts.write_text(str(content))
    answer = call("train", texts, *TRAIN, *options)
    assert (answer.exit_code, message in answer.stderr) == (status, True), answer.stderr
    assert "Traceback" not in answer.output
    assert list(tmp_path.iterdir()) == [texts]


def test_three_labels_are_one_against_the_rest(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"x {'abc'[n % 3]}", "label": n % 3}) + "\n" for n in range(60)))
    texts.write_text("".join(json.dumps({"text": f"x{n} {'abc'[n % 3]}", "label": n % 3}) + "\n" for n in range(60)))
    answer = call("train", texts, *TRAIN, "--positive", "2", "--no-picture")
    assert answer.exit_code == 0, answer.output
    assert load_probe(texts.with_suffix(".safetensors")).labels == ("not 2", "2")


def test_one_text_in_two_lines_does_not_lie_on_both_sides(tmp_path: Path) -> None:
    from undercurrent.cli.probe_texts import read_labelled

    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "x", "label": true}\n\n{"text": "y", "label": false}\n{"text": "x", "label": true}\n')
    found = read_labelled(texts)
    assert found.groups[0] == found.groups[2] != found.groups[1]
    assert (found.labels, found.has_groups, found.choose_positive(None)) == (
        ["true", "false", "true"],
        False,
        ("false", "true"),
    )


def test_probe_for_other_labels_or_of_another_file_is_refused(trained: Any, tmp_path: Path) -> None:
    path, _, _ = trained
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "x", "label": "c"}\n{"text": "y", "label": "d"}\n')
    answer = call("test", path, other, "--model", "tiny")
    assert (answer.exit_code, "looks for 'b', which is no label" in answer.stderr) == (1, True)
    assert "no probe file at" in call("show", tmp_path / "none.safetensors").stderr
    assert "Pickles (.pkl, .pt, .joblib) are never loaded" in call("show", other).stderr


def test_help_and_completion_of_the_group_load_neither_numpy_nor_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from undercurrent.cli import main; status = main(['probe', 'train', '--help']); "
        "assert not {'numpy', 'torch', 'rich', 'sklearn'} & set(sys.modules); sys.exit(status)"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.index("Examples:") < answer.stdout.index("Usage:") < answer.stdout.index("Options:")


def test_ctrl_c_while_reading_leaves_no_file_and_no_traceback(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", 3000)
    command = [str(COMMAND), "probe", "train", str(texts), *TRAIN, "--batch-size", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}) as process:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if line.startswith("loading"):
                break
        process.send_signal(signal.SIGINT)
        seen += process.stderr.read()
    assert process.returncode == 130, seen
    assert "interrupted" in seen
    assert "Traceback" not in seen
    assert list(tmp_path.iterdir()) == [texts]
