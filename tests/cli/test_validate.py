"""`undercurrent validate`, `schema` and `inspect-model`; the calls that 0.1.0 documents keep their meaning."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from command_lines import SPEC, call

from undercurrent.core import SavedProbe, save_probe

PROBES = """
from undercurrent import probe

@probe("loudness")
def loudness(record):
    return 0.0
"""
BAD = SPEC.replace("residual_stream", "residual_strem").replace("[2]", "true")


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; modules imported from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(name: str, text: str) -> str:
    """Writes a file into the current folder and returns its name."""
    Path(name).write_text(text)
    return name


# ---- validate -------------------------------------------------------------------------------------------------------


def test_sound_spec_is_ok() -> None:
    answer = call("validate", write("good.yaml", SPEC))
    assert (answer.exit_code, answer.stdout) == (0, "good.yaml: OK (1 extraction point)\n")


def test_every_problem_comes_with_file_and_line() -> None:
    answer = call("validate", write("bad.yaml", BAD))
    lines = answer.stdout.splitlines()
    assert answer.exit_code == 1
    assert lines[0] == "bad.yaml: ERROR 2 problems"
    assert lines[1].startswith("  - bad.yaml:4: extraction_points[0] 'guard'.layers: ")
    assert lines[2].startswith("  - bad.yaml:5: ")
    assert lines[2].endswith("did you mean 'residual_stream'?")


def test_one_bad_file_among_good_ones_fails_and_all_are_shown() -> None:
    write("good.yaml", SPEC)
    answer = call("validate", "good.yaml", write("bad.yaml", BAD), "missing.yaml", ".")
    assert answer.exit_code == 1
    heads = [line for line in answer.stdout.splitlines() if not line.startswith(" ")]
    assert heads == [
        "good.yaml: OK (1 extraction point)",
        "bad.yaml: ERROR 2 problems",
        "missing.yaml: ERROR 1 problem",
        ".: ERROR 1 problem",
    ]
    assert "missing.yaml: no such file" in answer.stdout


def test_standard_input_is_checked_with_its_lines() -> None:
    assert call("validate", "-", text=SPEC).stdout == "-: OK (1 extraction point)\n"
    assert "  - <stdin>:4: " in call("validate", "-", text=BAD).stdout


def test_standard_input_twice_is_a_usage_error() -> None:
    assert call("validate", "-", "-", text=SPEC).exit_code == 2


def test_text_that_is_not_utf8_is_a_problem_and_no_crash() -> None:
    Path("latin.yaml").write_bytes(b"# caf\xe9\n" + SPEC.encode())
    answer = call("validate", "latin.yaml")
    assert answer.exit_code == 1
    assert "latin.yaml:1: " in answer.stdout


def test_standard_input_that_is_not_utf8_is_a_problem() -> None:
    answer = call("validate", "-", text=b"\xff\xfe" + SPEC.encode())
    assert answer.exit_code == 1
    assert "<stdin>: expected UTF-8, got byte 0xff at 0" in answer.stdout


def test_json_has_the_keys_of_0_1_0() -> None:
    write("good.yaml", SPEC)
    answer = call("validate", "good.yaml", write("bad.yaml", BAD), "--json")
    good, bad = json.loads(answer.stdout)
    assert good == {"path": "good.yaml", "valid": True, "extraction_points": 1, "errors": [], "warnings": []}
    assert (bad["valid"], bad["extraction_points"], len(bad["errors"])) == (False, None, 2)
    assert call("validate", "good.yaml", "bad.yaml", "--format", "json").stdout == answer.stdout


def test_deprecated_key_is_a_warning_and_an_error_when_strict() -> None:
    old = write("old.yaml", SPEC.replace("layers:", "layer:"))
    answer = call("validate", old)
    assert answer.exit_code == 0
    assert "  warning: deprecated spec keys: extraction point 'guard' uses 'layer'" in answer.stdout
    strict = call("validate", old, "--strict", "--json")
    assert strict.exit_code == 1
    assert json.loads(strict.stdout)[0]["errors"]


def test_unknown_probe_is_a_problem_only_when_probes_are_checked() -> None:
    spec = write("spec.yaml", SPEC.replace("loudness", "nobody_has_this"))
    assert call("validate", spec).exit_code == 0
    answer = call("validate", spec, "--check-probes")
    assert answer.exit_code == 1
    assert "no probe is registered as 'nobody_has_this'" in answer.stdout


@pytest.mark.parametrize("name", ["probes_by_name", "./probes_by_file.py"])
def test_imported_module_registers_its_probes(name: str) -> None:
    unique = Path(name).stem
    write(f"{unique}.py", PROBES.replace('"loudness"', f'"{unique}"'))
    spec = write("spec.yaml", SPEC.replace("loudness", unique))
    answer = call("validate", spec, "--check-probes", "--import", name)
    assert answer.exit_code == 0, answer.output


def test_probe_of_another_kind_is_a_problem() -> None:
    write("kinds.py", PROBES.replace('"loudness"', '"kinds"'))
    spec = write("spec.yaml", SPEC.replace("loudness", "kinds").replace("single_shot", "trajectory"))
    answer = call("validate", spec, "--check-probes", "--import", "kinds")
    assert answer.exit_code == 1
    assert "write `probe_kind: single_shot`" in answer.stdout


def test_import_without_checking_probes_is_a_usage_error_as_in_0_1_0() -> None:
    answer = call("validate", write("good.yaml", SPEC), "--import", "json")
    assert answer.exit_code == 2
    assert "--check-probes" in answer.stderr


@pytest.mark.parametrize("imported", ["import no_such_module_here", "from json import no_such_module_here"])
def test_module_that_cannot_be_imported_is_a_usage_error(imported: str) -> None:
    name = write(f"imports_{len(imported)}.py", imported)
    for module in (name, "no_such_module_here"):
        answer = call("validate", write("good.yaml", SPEC), "--check-probes", "--import", module)
        assert answer.exit_code == 2
        assert "no_such_module_here" in answer.stderr


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import json\nnonsense\n", "it raised NameError: name 'nonsense' is not defined, at "),
        ("def broken(:\n", "it raised SyntaxError: "),
        ("from undercurrent import Probe\nclass P(Probe):\n    seen = []\n", "seen"),
    ],
)
def test_module_whose_code_fails_is_told_with_its_line_and_is_no_defect(code: str, said: str, folder: Path) -> None:
    name = f"fails_{len(code)}.py"
    answer = call("validate", write("good.yaml", SPEC), "--check-probes", "--import", write(name, code))
    assert answer.exit_code == 1
    assert answer.stderr.startswith(f"error: --import {name}: ")
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_layer_that_the_model_lacks_is_a_problem() -> None:
    spec = write("deep.yaml", SPEC.replace("[2]", "[2, 12]"))
    answer = call("validate", spec, "--model", "tiny")
    assert answer.exit_code == 1
    assert "point 'guard': `layers` of 'residual_stream' must be 0 to 3, got 12" in answer.stdout
    assert call("validate", write("good.yaml", SPEC), "--model", "tiny").exit_code == 0


@pytest.fixture(name="saved")
def _saved(folder: Path) -> str:
    """A linear probe of layer 2 and 64 values, in a file of the current folder."""
    save_probe("p.safetensors", SavedProbe("linear", {"weight": [0.1] * 64, "bias": 0.0}, 2, "residual_stream"))
    return SPEC.replace("loudness", "linear") + "    probe_args: {file: p.safetensors}\n"


def test_saved_probe_that_fits_its_point_is_ok(saved: str) -> None:
    answer = call("validate", "-", "--check-probes", "--model", "tiny", text=saved)
    assert answer.exit_code == 0, answer.stdout


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("p.safetensors", "q.safetensors", "q.safetensors"),
        ("[2]", "3", "go to a probe trained on layer 2 of 'residual_stream'; change the point"),
        ("residual_stream", "mlp_out", "layers [2] of 'mlp_out' go to a probe trained on"),
        ("linear", "mlp", "write `probe_type: linear`"),
        ("p.safetensors", "p.safetensors, threshold: high", "threshold"),
    ],
)
def test_saved_probe_that_does_not_fit_is_a_problem(saved: str, before: str, after: str, said: str) -> None:
    answer = call("validate", "-", "--check-probes", text=saved.replace(before, after))
    assert answer.exit_code == 1
    assert said in answer.stdout


def test_saved_probe_of_another_width_is_a_problem_of_the_model(saved: str) -> None:
    save_probe("p.safetensors", SavedProbe("linear", {"weight": [0.1] * 32, "bias": 0.0}, 2, "residual_stream"))
    answer = call("validate", "-", "--check-probes", "--model", "tiny", text=saved)
    assert answer.exit_code == 1
    assert "trained on 32 values a token, the model has 64" in answer.stdout


def test_no_spec_is_a_usage_error() -> None:
    answer = call("validate")
    assert answer.exit_code == 2
    assert "SPEC" in answer.stderr


# ---- schema ---------------------------------------------------------------------------------------------------------


def test_schema_is_json_schema_that_accepts_a_sound_spec() -> None:
    schema = json.loads(call("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(SPEC), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(BAD), schema)


def test_schema_goes_into_a_file_and_tells_the_modeline() -> None:
    answer = call("schema", "-o", "probe-spec.schema.json")
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert "# yaml-language-server: $schema=./probe-spec.schema.json" in answer.stderr
    assert Path("probe-spec.schema.json").read_text() == call("schema").stdout


def test_schema_into_a_missing_folder_fails_in_one_line() -> None:
    answer = call("schema", "-o", "nowhere/schema.json")
    assert answer.exit_code == 1
    assert answer.stderr == "error: 'nowhere/schema.json': No such file or directory\n"
