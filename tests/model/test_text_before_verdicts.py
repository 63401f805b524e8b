"""What a user of 0.1.0 was hurt by, where engine and front door meet: late text, changed text, wrong positions, rows
one by one, prompts in logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_points import PROBES, make_point
from router_points import REGISTRY, Gate

from undercurrent import ProbedModel
from undercurrent.engines import EngineLimitationError, SyntheticEngine
from undercurrent.router import Router
from undercurrent.sinks import FileLogSink
from undercurrent.spec import ExecutionMode, InterventionMode, InterventionPolicy, TensorType

ASYNC = {"execution_mode": ExecutionMode.ASYNC}


def test_an_async_probe_does_not_delay_the_text(engine: SyntheticEngine, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    point = make_point("watch", probe_type="gated", probe_args=gate.args, **ASYNC)
    with ProbedModel(backend=engine, spec=[point], probes=REGISTRY) as model:
        output = model.generate("abc", max_new_tokens=4)
        assert len(output.text) == 4
        # The probe stands in its first record and cannot go on: the text came all the same.
        assert not output.has_results
        assert repr(output).endswith("probe_results=pending)")
        gate.open()
        result = output.probe_results["watch"]
        assert output.has_results
    assert [position for position, _ in result.verdict[1:]] == [3, 4, 5]
    assert result.metadata["coverage"]["complete"]


def test_verdicts_that_miss_the_deadline_say_so(engine: SyntheticEngine, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    point = make_point("watch", probe_type="gated", probe_args=gate.args, **ASYNC)
    arguments = {"probes": REGISTRY, "router_kwargs": {"drain_timeout": 0.3}}
    with ProbedModel(backend=engine, spec=[point], **arguments) as model:
        output = model.generate("abc", max_new_tokens=4)
        coverage = output.probe_results["watch"].metadata["coverage"]
        gate.open()
    assert "drain_timeout" in coverage["reasons"]
    assert not coverage["complete"]


def test_a_prompt_of_a_list_does_not_wait_for_the_verdicts_of_another(engine: SyntheticEngine, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    point = make_point("watch", probe_type="gated", probe_args=gate.args, **ASYNC)
    with ProbedModel(backend=engine, spec=[point], probes=REGISTRY, batch_size=1) as model:
        outputs = model.generate(["abc", "de"], max_new_tokens=3)
        assert [output.has_results for output in outputs] == [False, False]
        gate.open()
        assert [len(output.probe_results["watch"].verdict) for output in outputs] == [3, 3]


def test_close_waits_for_the_verdicts_of_what_was_generated(engine: SyntheticEngine) -> None:
    point = make_point("watch", probe_type="collect", **ASYNC)
    with ProbedModel(backend=engine, spec=[point], probes=REGISTRY) as model:
        output = model.generate("abc", max_new_tokens=4)
    assert output.has_results
    assert output.probe_results["watch"].metadata["coverage"]["complete"]


def get_ctrl_c(model: ProbedModel, gate: Gate) -> None:
    with model:
        model.generate("abc", max_new_tokens=4)
        assert gate.is_entered()
        raise KeyboardInterrupt


@pytest.mark.parametrize("owns_router", [True, False])
def test_ctrl_c_waits_for_no_verdict_of_what_was_generated(
    owns_router: bool, engine: SyntheticEngine, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    args = {**gate.args, "hold_s": 600.0}
    point = make_point("watch", probe_type="gated", probe_args=args, probe_timeout_s=600.0, **ASYNC)
    router = Router(REGISTRY, drain_timeout=600.0)
    arguments = {"probes": REGISTRY, "router_kwargs": {"drain_timeout": 600.0}} if owns_router else {"router": router}
    with pytest.raises(KeyboardInterrupt):
        get_ctrl_c(ProbedModel(backend=engine, spec=[point], **arguments), gate)
    router.shutdown(wait=False)


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_a_probe_that_overwrites_what_it_is_given_changes_no_text(mode: ExecutionMode, tiny: dict[str, Any]) -> None:
    layers = (0, 1, 2, 3)
    kinds = [TensorType.RESIDUAL_STREAM, TensorType.ATTN_OUT, TensorType.MLP_OUT]
    points = [
        make_point(kind.value, layers=layers, tensor_type=kind, probe_type="scribble", execution_mode=mode)
        for kind in kinds
    ]
    with ProbedModel(**tiny) as plain, ProbedModel(**tiny, spec=points, probes=PROBES) as watched:
        assert watched.generate("some text").token_ids == plain.generate("some text").token_ids


@pytest.mark.parametrize(
    "way",
    [
        {"use_cache": False},
        {"prefill_chunk_size": 3},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda way: next(iter(way)),
)
def test_every_way_of_generating_gives_the_right_positions(way: dict[str, Any], tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        plain = model.generate("la la la la la", max_new_tokens=8)
        other = model.generate("la la la la la", max_new_tokens=8, **way)
    mine, reference = other.probe_results["point"].verdict, plain.probe_results["point"].verdict
    assert other.token_ids == plain.token_ids
    assert [row[:3] for row in mine] == [row[:3] for row in reference]
    assert all(a[3].allclose(b[3], atol=1e-4) for a, b in zip(mine, reference, strict=True))


@pytest.mark.parametrize("way", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}], ids=str)
def test_beams_and_several_sequences_are_refused_where_a_position_would_have_several(
    way: dict[str, Any], tiny: dict[str, Any]
) -> None:
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        with pytest.raises(EngineLimitationError, match="has several"):
            model.generate("some text", **way)
        assert model.generate("some text").probe_results["point"].verdict


def test_prompts_that_draft_share_no_batch(tiny: dict[str, Any]) -> None:
    with ProbedModel(**tiny, spec=[make_point()], probes=PROBES) as model:
        outputs = model.generate(["la la la", "lo lo"], max_new_tokens=4, prompt_lookup_num_tokens=2)
    assert [len(output.probe_results["point"].verdict) for output in outputs] == [3, 3]


class CountingRouter(Router):
    """Counts calls of `route_rows` and the rows in them."""

    def __init__(self, probes: Any) -> None:
        super().__init__(probes)
        self.calls: list[tuple[int, int]] = []

    def route_rows(self, rows: Any, layer: int, tensor_type: Any, entries: Any) -> Any:
        self.calls.append((layer, len(entries)))
        return super().route_rows(rows, layer, tensor_type, entries)


def test_the_rows_of_a_step_are_copied_and_routed_in_one_call_per_tensor(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[torch.device] = []
    to = torch.Tensor.to

    def count(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("copy"):
            copies.append(self.device)
        return to(self, *args, **kwargs)

    points = [make_point("a", layers=(1, 2)), make_point("b", layers=(2,))]
    with CountingRouter(PROBES) as router, ProbedModel(**tiny, spec=points, router=router) as model:
        monkeypatch.setattr(torch.Tensor, "to", count)
        model.generate(["some text", "another", "x"], max_new_tokens=3)
        monkeypatch.undo()
    # Two steps have generated rows: of three prompts, by two points at layer 2.
    assert router.calls == [(1, 3), (2, 6)] * 2
    assert len(copies) <= 4


def test_no_prompt_reaches_a_log(tiny: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "signals.ndjson"
    failing = make_point("bad", probe_type="failing", probe_args={"where": "on_activation"}, **ASYNC)
    with ProbedModel(
        **tiny,
        spec=[make_point("watch", probe_type="flagging", **ASYNC), failing],
        probes=REGISTRY,
        log_sink=FileLogSink(path),
    ) as model:
        output = model.generate("my secret prompt", max_new_tokens=4)
        assert output.probe_results["bad"].metadata["coverage"]["errors"]
    written = path.read_text()
    assert '"kind":"result"' in written.replace(" ", "")
    assert "secret" not in written


def test_a_bounded_point_stops_a_generation_from_a_process_of_its_own(engine: SyntheticEngine) -> None:
    policy = InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, timeout_ms=20_000)
    point = make_point("gate", probe_type="abort", probe_args={"count": 2}, intervention=policy)
    with ProbedModel(backend=engine, spec=[point], probes=PROBES) as model:
        output = model.generate("abc", max_new_tokens=9)
        assert (output.aborted, output.abort_point, len(output.text)) == (True, "gate", 3)
        assert output.probe_results["gate"].metadata["coverage"]["complete"]
