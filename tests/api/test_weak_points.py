"""What hurt users of 0.1.0, done right. `undercurrent/README.md` lists these tests among those of the other rooms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from router_points import REGISTRY, Collect, Gate, context, fresh_id, make_point, make_record, register_gated
from source_tree import ROOT

from undercurrent import (
    ActivationRecord,
    FileLogSink,
    ProbeFactory,
    ProbeSignal,
    Router,
    SpecValidationError,
    load_spec,
)


class Hoarder(Collect):
    """Changes what it was given; its verdict is what it has been given."""

    def __init__(self, *, seen: list[int]) -> None:
        super().__init__()
        self.given = seen

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        self.given.append(record.token_pos)
        return None

    def on_end(self, request_ctx: Any) -> Any:
        return list(self.given)


class Scoring(Collect):
    """Says numbers of every kind a probe may compute."""

    def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
        scores = {"float32": np.float32(0.5), "int64": np.int64(3), "zero_d": np.array(0.25), "nan": float("nan")}
        return ProbeSignal(metadata={**scores, "infinite": np.float64("inf")}, confidence=np.float32(0.75))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["inline", "async"])
def test_request_whose_on_end_raises_is_over_and_its_id_is_free(mode: str) -> None:
    request = fresh_id()
    bad = make_point("bad", mode, probe_type="failing", probe_args={"where": "on_end"})
    with Router(REGISTRY) as router:
        for _ in range(2):
            router.register_request(request, [bad, make_point("good", mode)], context(request))
            results = router.end_request(request)
            assert results["good"].metadata["coverage"]["complete"]
            assert results["bad"].metadata["coverage"]["reasons"] == ["probe_error"]


@pytest.mark.parametrize("mode", ["inline", "async"])
def test_what_a_probe_does_to_its_arguments_reaches_no_other_request(mode: str) -> None:
    shared: list[int] = []
    with Router({"hoarder": ProbeFactory(Hoarder, {"seen": shared})}, worker_pool_size=1) as router:
        for _ in range(2):
            request = fresh_id()
            router.register_request(request, [make_point("guard", mode, probe_type="hoarder")], context(request))
            router.route(make_record(request, position=7))
            assert router.end_request(request)["guard"].verdict == [7]
    assert shared == []


def test_waiting_row_does_not_keep_the_block_it_was_cut_from(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Router(REGISTRY) as router:
        request = register_gated(router, gate, queue_depth=64)
        block = np.ones((512, 64), dtype=np.float32)
        gone = weakref.ref(block)
        for position in range(1, 33):
            router.route(make_record(request, "watch", block[position], position=position))
        del block
        assert gone() is None
        gate.open()
        assert router.end_request(request)["watch"].metadata["coverage"]["seen"] == 33


def test_hundreds_of_live_bindings_take_no_thread_each() -> None:
    requests = [fresh_id() for _ in range(300)]
    point = make_point("monitor", "async", queue_depth=4)
    with Router(REGISTRY, worker_pool_size=1) as router:
        router.register_request(requests[0], [point], context(requests[0]), wait_s=30)
        before = threading.active_count()
        for request in requests[1:]:
            router.register_request(request, [point], context(request))
        assert threading.active_count() <= before
        for request in requests:
            router.route(make_record(request, "monitor"))
        assert all(router.end_request(request)["monitor"].metadata["coverage"]["complete"] for request in requests)


def test_numbers_of_every_kind_are_numbers_in_the_log_and_what_is_none_says_so(tmp_path: Path) -> None:
    path = tmp_path / "observations.ndjson"
    request = fresh_id()
    with Router({"scoring": ProbeFactory(Scoring)}) as router:
        router.attach_log_sink(FileLogSink(path))
        router.register_request(
            request, [make_point("monitor", "async", probe_type="scoring")], context(request, model="tiny")
        )
        router.route(make_record(request, "monitor", position=12))
        router.end_request(request)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    signal, result = (json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines())
    assert {key: signal[key] for key in ("schema_version", "sequence", "layer", "position", "model")} == {
        "schema_version": 2,
        "sequence": 0,
        "layer": 4,
        "position": 12,
        "model": "tiny",
    }
    assert signal["payload"]["confidence"] == 0.75
    assert signal["payload"]["metadata"] == {
        "float32": 0.5,
        "int64": 3,
        "zero_d": 0.25,
        "nan": {"__summary__": "float", "value": "nan"},
        "infinite": {"__summary__": "float", "value": "inf"},
    }
    assert result["coverage"]["complete"]


POINT = """
extraction_points:
  - name: guard
    layers: 4
    tensor_type: mlp_out
    position: "generated[*]"
    probe_type: running_mean
    probe_kind: trajectory
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("layers: 4", "layers: true", "`layers` must be an int >= 0"),
        ("layers: 4", 'layers: "6"', "got '6'"),
        ("layers: 4", "layers: 6.0", "got 6.0"),
        ('"generated[*]"', "true", "`position` must be an int"),
        ('"generated[*]"', "-3", "never matches"),
        ('"generated[*]"', '"generated[*]+1"', "an offset goes with one position"),
        ("extraction_points", 'version: "99"\nextraction_points', "`version` must be '1'"),
        ("layers: 4", "layers: 4\n    layers: 8", "duplicate key 'layers'"),
        ("probe_type", "until: fixed_count\n    probe_type", "needs its value"),
        ("probe_type", "until: stop_token\n    probe_type", "needs its value"),
    ],
)
def test_spec_that_would_not_mean_what_it_says_is_refused(old: str, new: str, problem: str) -> None:
    load_spec(POINT)
    load_spec("version: 1" + POINT)
    with pytest.raises(SpecValidationError, match="line") as refused:
        load_spec(POINT.replace(old, new))
    assert problem in str(refused.value)


def test_installing_it_touches_no_other_package_and_importing_it_no_environment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [group for group in project.get("entry-points", {}) if not group.startswith("undercurrent.")]
    source = "import os; before = dict(os.environ); import undercurrent.engines, undercurrent.router; "
    command = [sys.executable, "-P", "-c", source + "assert dict(os.environ) == before"]
    assert subprocess.run(command, env={**os.environ}, timeout=50, check=False).returncode == 0
