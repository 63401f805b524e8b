"""docs/spec.md: its specs load, its refusals are what it says, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_tree import ROOT, code_blocks

from undercurrent.errors import SpecValidationError
from undercurrent.spec import json_schema, load_spec, parse_yaml
from undercurrent.spec.json_schema import BEYOND_JSON_SCHEMA
from undercurrent.spec.schema import DEPRECATED_KEYS, PointSchema

GUIDE = (ROOT / "docs" / "spec.md").read_text()


def test_every_spec_of_the_guide_loads() -> None:
    specs = [parse_yaml(text) for text in code_blocks(GUIDE, "yaml")]
    assert len(specs) >= 4
    used = {key for text in code_blocks(GUIDE, "yaml") for key in re.findall(r"^ +(?:- )?(\w+):", text, re.MULTILINE)}
    assert used >= {name for name in PointSchema.__struct_fields__ if name != "on_error"}


def test_refusals_are_what_the_guide_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = code_blocks(GUIDE, "yaml refused")
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(text)
    with pytest.raises(SpecValidationError) as refused:
        load_spec("spec.yaml")
    assert "\n".join(refused.value.issues) + "\n" in code_blocks(GUIDE, "text")


def test_guide_has_a_row_for_every_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE)
    assert set(rows) == {*PointSchema.__struct_fields__, "version", "extraction_points"}
    assert all(f"`{old}`" in GUIDE for old in DEPRECATED_KEYS)


def test_guide_lists_the_words_of_every_vocabulary() -> None:
    words = [word for definition in json_schema()["$defs"].values() for word in definition.get("enum", [])]
    assert not [word for word in words if f"`{word}`" not in GUIDE and f"{word}" not in GUIDE]


def test_guide_lists_the_rules_the_schema_cannot_say() -> None:
    table = GUIDE.partition("| rule | broken by |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| `(.+)` \|$", table, re.MULTILINE)
    assert rows == [(rule.says, rule.example) for rule in BEYOND_JSON_SCHEMA]


def test_null_is_as_good_as_nothing_where_the_guide_says_so() -> None:
    strict = {"version", "execution_mode", "probe_args", "workers", "on_error", "gpu"}
    point = {
        "name": "a",
        "layers": 1,
        "tensor_type": "kv",
        "position": 1,
        "probe_type": "p",
        "probe_kind": "trajectory",
    }
    optional = set(PointSchema.__struct_fields__) - set(point)
    for key in optional:
        try:
            load_spec({"extraction_points": [{**point, key: None}]})
        except SpecValidationError:
            assert key in strict
        else:
            assert key not in strict


def test_first_line_of_the_guide_is_one_an_editor_reads() -> None:
    assert code_blocks(GUIDE, "yaml")[0].startswith("# yaml-language-server: $schema=./undercurrent-spec.schema.json\n")
    assert "undercurrent schema > undercurrent-spec.schema.json" in code_blocks(GUIDE, "sh")[0]
