"""A run over two Ray nodes in network namespaces, with a token: a node dies, a driver dies, no value changes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ray_nodes import RayNodes, ray_nodes

from undercurrent.runtime import RunArchive

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("shapiq", reason="shapiq is not installed")

PROGRAM = Path(__file__).with_name("explain_program.py")
TROUBLES = Path(__file__).with_name("trouble_program.py")
COALITIONS = 64
STEP_S = 90


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as nodes:
        nodes.start_node("head", cpus=3)
        yield nodes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    values: dict[str, object] = asyncio.run(program().explain_locally(tmp_path_factory.mktemp("local")))
    return values


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("explain_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drive(nodes: RayNodes, root: Path, **order: object) -> subprocess.Popen[bytes]:
    """Starts a driver on the head."""
    root.parent.mkdir(exist_ok=True)
    options = {
        "address": nodes.head_address,
        "kwargs": {"folder": str(root.parent), "pause_s": 0.1},
        "start_timeout_s": STEP_S,
        **order,
    }
    return nodes.start("head", [sys.executable, "-P", str(PROGRAM), json.dumps(options), str(root)])


def answer(nodes: RayNodes, driver: subprocess.Popen[bytes]) -> dict[str, object]:
    """What a driver printed last."""
    assert driver.wait(STEP_S) == 0, nodes.logs()
    found: dict[str, object] = json.loads(said(nodes, driver)[-1])
    return found


def said(nodes: RayNodes, driver: subprocess.Popen[bytes]) -> list[str]:
    """The lines of a driver on the head."""
    return (nodes.folder / f"{nodes.processes.index(driver)}-head.log").read_text().splitlines()


def until(nodes: RayNodes, condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + STEP_S
    while not condition():
        assert time.monotonic() < give_up_s, nodes.logs()
        time.sleep(0.05)


def answerers(folder: Path) -> list[int]:
    """The process of each answer so far."""
    marks = folder / "answers"
    return [int(pid) for pid in marks.read_text().split()] if marks.exists() else []


def coalitions(root: Path) -> int:
    """Generations in the archive."""
    with RunArchive.load(root) as archive:
        return len({record.coalition_key for record in archive.history_lazy()})


def recorded(root: Path) -> int:
    """Rows committed so far, beside the living writer."""
    try:
        connection = sqlite3.connect(f"file:{root / 'archive.sqlite'}?mode=ro", uri=True, timeout=10)
        try:
            return int(connection.execute("SELECT count(*) FROM coalition_records").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.OperationalError:
        return 0


def test_a_driver_that_is_killed_is_followed_by_one_that_finds_the_actors_and_resumes(
    nodes: RayNodes, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    root = tmp_path / "run"
    first = drive(nodes, root, actors=2, name="kept")
    until(nodes, lambda: recorded(root) >= 10)
    os.killpg(first.pid, signal.SIGKILL)
    assert first.wait(20) != 0
    known = set(answerers(tmp_path))
    assert len(known) == 2
    done = coalitions(root)
    assert 10 <= done < COALITIONS

    found = answer(nodes, drive(nodes, root, actors=2, name="kept"))
    assert found["values"] == undisturbed["values"]
    assert found["base"] == undisturbed["base"]
    assert found["executed"] == COALITIONS - done
    assert set(answerers(tmp_path)) == known, "the second driver should find the first one's actors"
    assert coalitions(root) == COALITIONS


def test_a_node_that_dies_in_mid_run_changes_no_value(
    nodes: RayNodes, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    nodes.start_node("worker", cpus=3)
    root = tmp_path / "run"
    # More actors than the head alone has room for, so that both nodes work and one of the lost ones cannot come back.
    driver = drive(nodes, root, actors=4)
    until(nodes, lambda: bool(set(answerers(tmp_path)) & nodes.pids("worker")) and recorded(root) >= 8)
    on_worker = set(answerers(tmp_path)) & nodes.pids("worker")
    assert set(answerers(tmp_path)) - on_worker, "both nodes should work"
    nodes.kill_node("worker")
    assert recorded(root) < COALITIONS

    found = answer(nodes, driver)
    assert found["values"] == undisturbed["values"]
    assert found["base"] == undisturbed["base"]
    assert found["executed"] == undisturbed["executed"] == COALITIONS
    assert coalitions(root) == COALITIONS
    assert not nodes.pids("worker")


def test_drivers_without_the_token_are_refused_in_one_sentence(nodes: RayNodes, tmp_path: Path) -> None:
    options = json.dumps({"address": nodes.head_address, "actors": 1, "kwargs": {"folder": str(tmp_path)}})
    command = [sys.executable, "-P", str(PROGRAM), options, str(tmp_path / "run")]
    changes = ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"})
    for driver in [nodes.start("head", command, nodes.environment(**change)) for change in changes]:
        assert driver.wait(STEP_S) == 1
        assert "refuses this driver: its token is missing or another one" in said(nodes, driver)[-1]
    assert not (tmp_path / "run").exists()


def test_trouble_stays_where_it_is(nodes: RayNodes, tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(TROUBLES), nodes.head_address, str(tmp_path)]
    driver = nodes.start("head", command)
    assert driver.wait(STEP_S) == 0, nodes.logs()
    assert said(nodes, driver)[-1] == "every trouble stayed where it was"
