"""The page on metrics lists what is exported: every name, type, unit, label, reason and bucket, and nothing else."""

from __future__ import annotations

import re

import pytest
import yaml
from source_tree import ROOT, code_blocks

from undercurrent.router.exported import METRICS, Metric
from undercurrent.router.totals import DROP_REASONS, LatencyHistogram

PAGE = (ROOT / "docs" / "metrics.md").read_text()
UNITS = {
    "seconds": "s",
    "bytes": "bytes",
    "ratio": "ratio",
}


def table_of(heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    lines = iter(PAGE.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            break
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


ROWS = {row[0].strip("`"): row for row in table_of("metric")}


def test_page_lists_every_metric_in_the_exporter_s_order() -> None:
    assert [f"undercurrent_{name}" for name in ROWS] == [metric.name for metric in METRICS]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_page_says_type_unit_and_labels_as_they_are(metric: Metric) -> None:
    _, kind, unit, labels, meaning, alert = ROWS[metric.name.removeprefix("undercurrent_")]
    assert kind == metric.type
    assert re.findall(r"`(\w+)`", labels) == list(metric.labels)
    expected = UNITS.get(metric.name.rsplit("_", 1)[-1])
    assert expected is None or unit == expected
    assert meaning
    assert alert


def test_page_explains_every_reason_of_a_drop() -> None:
    assert [row[0].strip("`") for row in table_of("reason")] == list(DROP_REASONS)


def test_page_says_where_the_buckets_lie() -> None:
    bounds = LatencyHistogram.bounds_s()
    assert "1, 2 and 5 of each decade from a microsecond to 100 s" in PAGE
    assert (bounds[0], bounds[1], bounds[2], bounds[-1]) == (1e-6, 2e-6, 5e-6, 100.0)


def test_alerts_are_yaml_and_name_only_what_is_exported() -> None:
    (block,) = code_blocks(PAGE, "yaml")
    rules = yaml.safe_load(block)["groups"][0]["rules"]
    known = {metric.name for metric in METRICS}
    assert rules
    for rule in rules:
        assert set(re.findall(r"undercurrent_\w+", rule["expr"])) <= known
