"""`route_rows`: all rows of one layer and step in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from router_points import REGISTRY, Collect, context, fresh_id, make_point, positions

from undercurrent.core import ProbeAction, ProbeSignal
from undercurrent.router import Router, RouterError, RowEntry, RowsError
from undercurrent.spec import ActivationRecord, TensorType


def test_every_row_reaches_its_request_and_point(router: Router) -> None:
    request_ids = [fresh_id() for _ in range(4)]
    for request_id in request_ids:
        router.register_request(request_id, [make_point("watch", "async"), make_point()], context(request_id))
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)

    for name in ("watch", "guard"):
        entries = [RowEntry(request_id, name, 10 + index, True) for index, request_id in enumerate(request_ids)]
        assert router.route_rows(rows, 4, "mlp_out", entries) == [None] * 4
    verdicts = [router.end_request(request_id) for request_id in request_ids]

    for index, results in enumerate(verdicts):
        for name in ("watch", "guard"):
            assert results[name].verdict[1:] == [(10 + index, rows[index].tolist())]
            assert results[name].metadata["coverage"]["complete"]


def test_one_row_may_go_to_several_points(router: Router) -> None:
    request_id = fresh_id()
    names = ["one", "two"]
    router.register_request(request_id, [make_point(name, "async") for name in names], context(request_id))
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])

    router.route_rows(rows, 4, TensorType.MLP_OUT, [RowEntry(request_id, name, 10, True, row=1) for name in names])
    results = router.end_request(request_id)

    assert [results[name].verdict[1:] for name in names] == [[(10, [3.0, 4.0])]] * 2


def test_inline_signals_come_back_by_entry(router: Router) -> None:
    request_ids = [fresh_id(), fresh_id()]
    for request_id in request_ids:
        router.register_request(request_id, [make_point(probe_type="running_mean")], context(request_id))
    rows = np.array([[0.1, 0.1], [0.9, 0.9]])

    quiet, loud = router.route_rows(rows, 4, "mlp_out", [(request_id, "guard", 10, True) for request_id in request_ids])

    assert quiet is None
    assert loud is not None
    assert loud.action is ProbeAction.ABORT


@pytest.mark.parametrize("kind", ["numpy", "torch", "lists"])
def test_inline_probe_cannot_reach_the_engines_rows(router: Router, kind: str) -> None:
    kept: list[Any] = []

    class Writing(Collect):
        def on_activation(self, record: ActivationRecord) -> ProbeSignal | None:
            kept.append(record.tensor)
            record.tensor[0] = -1.0
            return None

    rows: Any = [[1.0, 2.0], [3.0, 4.0]]
    if kind == "numpy":
        rows = np.array(rows)
    if kind == "torch":
        rows = pytest.importorskip("torch").tensor(rows)
    with Router({"writing": Writing}) as local:
        local.register_request("req", [make_point(probe_type="writing")], context("req"))
        local.route_rows(rows, 4, "mlp_out", [RowEntry("req", "guard", 10, True, row) for row in (0, 1)])

    assert [float(row[0]) for row in rows] == [1.0, 3.0]
    assert [float(row[0]) for row in kept] == [-1.0, -1.0]


def test_failing_entry_harms_no_other(router: Router) -> None:
    failing, healthy, ended = fresh_id(), fresh_id(), fresh_id()
    bad = make_point(probe_type="failing", probe_args={"where": "on_activation"})
    router.register_request(failing, [bad], context(failing))
    router.register_request(healthy, [make_point(probe_type="flagging")], context(healthy))
    entries = [
        RowEntry(failing, "guard", 11, True),
        RowEntry(ended, "guard", 11, True),
        RowEntry(healthy, "guard", 11, True),
    ]

    with pytest.raises(RowsError, match="2 of 3 rows failed, the first with ValueError: in on_activation") as caught:
        router.route_rows(np.zeros((3, 2)), 4, "mlp_out", entries)

    assert sorted(caught.value.errors) == [0, 1]
    assert isinstance(caught.value.errors[1], RouterError)
    assert caught.value.signals[:2] == [None, None]
    assert caught.value.signals[2] is not None
    assert caught.value.signals[2].action is ProbeAction.FLAG
    assert positions(router.end_request(healthy)["guard"]) == [11]


def test_torch_rows_of_any_dtype_cross(router: Router) -> None:
    torch = pytest.importorskip("torch")
    request_id = fresh_id()
    router.register_request(request_id, [make_point("watch", "async")], context(request_id))
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)

    router.route_rows(rows, 4, "mlp_out", [RowEntry(request_id, "watch", 10, True, row) for row in (0, 1)])
    verdict = router.end_request(request_id)["watch"].verdict

    assert [[float(value) for value in values] for _, values in verdict[1:]] == [[1.0, 2.0], [3.0, 4.0]]


def test_rows_after_shutdown_are_refused() -> None:
    router = Router(REGISTRY)
    router.shutdown()

    with pytest.raises(RowsError, match="shut down"):
        router.route_rows(np.zeros((1, 2)), 4, "mlp_out", [RowEntry("req", "guard", 10, True)])
    assert router.route_rows(np.zeros((0, 2)), 4, "mlp_out", []) == []
