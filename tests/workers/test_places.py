"""Every place a program may run in: each starts real workers, gets a whole result, and leaves no process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from places import PROGRAM, check_answer, no_process_left

from undercurrent.core import ProbeFactory
from undercurrent.core.examples import TrajectoryScoreProbe
from undercurrent.router import Router
from undercurrent.spec import ActivationRecord, load_spec

SPEC = load_spec(
    'extraction_points: [{name: monitor, layers: 4, tensor_type: mlp_out, position: "generated[*]", '
    "probe_type: mean, probe_kind: trajectory, execution_mode: async}]"
)
PROBES = {"mean": ProbeFactory(TrajectoryScoreProbe, {"threshold": 2.0})}


def record(request_id: str, position: int) -> ActivationRecord:
    return ActivationRecord(request_id, "monitor", 4, position, "mlp_out", [1.0, 1.0], True)


def run(*command: str, environment: dict[str, str], text: str | None = None, cwd: Path | None = None) -> str:
    answer = subprocess.run(
        [sys.executable, *command], input=text, env=environment, cwd=cwd, capture_output=True, text=True, timeout=50
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@contextmanager
def no_process_left_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_process_left() as environment:
        for name in environment.keys() - os.environ.keys():
            monkeypatch.setenv(name, environment[name])
        yield


def test_under_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_process_left_here(monkeypatch), Router(probe_registry=PROBES) as router:
        with router.request(SPEC) as request:
            for position in range(5):
                request.route(record(request.request_id, position))
        coverage = request.results["monitor"].metadata["coverage"]
    assert (coverage["seen"], coverage["complete"]) == (5, True)


def test_script_without_a_main_guard() -> None:
    with no_process_left() as environment:
        check_answer(run(str(PROGRAM), environment=environment))


def test_program_on_stdin() -> None:
    with no_process_left() as environment:
        check_answer(run("-", environment=environment, text=PROGRAM.read_text()))


def test_program_on_the_command_line() -> None:
    with no_process_left() as environment:
        check_answer(run("-c", PROGRAM.read_text(), environment=environment))


def test_module_in_a_folder_with_awkward_names(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, wïth spaces"
    folder.mkdir()
    (folder / "socket.py").write_text("raise SystemExit('a module of the working folder was imported')\n")
    (folder / "program.py").write_text(PROGRAM.read_text())
    with no_process_left() as environment:
        program = f"import runpy; runpy.run_path({str(folder / 'program.py')!r})"
        check_answer(run("-P", "-c", program, environment=environment, cwd=folder))
        check_answer(run("-I", str(folder / "program.py"), environment=environment, cwd=folder))


def test_exit_without_shutdown() -> None:
    with no_process_left(PLACE_SHUTDOWN="no") as environment:
        check_answer(run(str(PROGRAM), environment=environment))


def test_thread_of_a_program() -> None:
    program = (
        "import runpy, threading\n"
        f"thread = threading.Thread(target=runpy.run_path, args=({str(PROGRAM)!r},))\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    with no_process_left() as environment:
        check_answer(run("-c", program, environment=environment))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_daemonic_multiprocessing_process(method: str) -> None:
    program = (
        "import multiprocessing, runpy\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        f"    process = context.Process(target=runpy.run_path, args=({str(PROGRAM)!r},), daemon=True)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    raise SystemExit(process.exitcode)\n"
    )
    with no_process_left() as environment:
        check_answer(run("-c", program, environment=environment))


_SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    shell.run_cell(cell).raise_error()
"""


def test_notebook() -> None:
    """In a kernel where nbclient and ipykernel are installed, else in the shell that a kernel is made of."""
    cells = PROGRAM.read_text().split("\n\n\n")
    with no_process_left() as environment:
        try:
            import ipykernel  # noqa: F401
            import nbclient
            import nbformat
        except ImportError:
            pytest.importorskip("IPython", reason="a notebook needs ipykernel and nbclient, or at least IPython")
            check_answer(run("-c", _SHELL.format(cells=cells), environment=environment))
            return
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbclient.NotebookClient(notebook, timeout=50, kernel_name="python3").execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.outputs if output.get("name") == "stdout"]
    check_answer(outputs[-1]["text"])


def test_asyncio_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def generate(router: Router, count: int) -> dict[str, Any]:
        async with router.arequest(SPEC) as request:
            for position in range(count):
                request.route(record(request.request_id, position))
                await asyncio.sleep(0)
        coverage: dict[str, Any] = request.results["monitor"].metadata["coverage"]
        return coverage

    async def serve() -> list[dict[str, Any]]:
        router = Router(probe_registry=PROBES)
        try:
            return list(await asyncio.gather(*(generate(router, count) for count in range(1, 9))))
        finally:
            await asyncio.to_thread(router.shutdown)

    with no_process_left_here(monkeypatch):
        coverages = asyncio.run(serve())
    assert [coverage["seen"] for coverage in coverages] == list(range(1, 9))
    assert all(coverage["complete"] for coverage in coverages)


@contextmanager
def server(
    *command: str, environment: dict[str, str], says: str
) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Runs a server until it says where it listens; stops it with SIGTERM and expects a clean end."""
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            match = re.search(says, line)
            if match is not None:
                yield process, match
                break
        process.terminate()
        rest, _ = process.communicate(timeout=40)
        assert process.returncode == 0, "".join(lines) + rest
    finally:
        process.kill()
        process.stdout.close()


def ask(port: int, prompt: str) -> list[dict[str, Any]]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(json.dumps({"prompt": prompt}).encode() + b"\n")
        with connection.makefile() as lines:
            return [json.loads(line) for line in lines]


def test_asyncio_server_example() -> None:
    program = "import asyncio; from undercurrent.examples.asyncio_server import serve; asyncio.run(serve(port=0))"
    says = r"listening on 127\.0\.0\.1 (\d+)"
    with no_process_left() as environment, server("-c", program, environment=environment, says=says) as (_, match):
        port = int(match[1])
        *tokens, closing = ask(port, "the sea is calm")
        assert [token["token"] for token in tokens] == ["the", "sea", "is", "calm"]
        assert closing["verdict"]["count"] == 4
        assert closing["coverage"]["complete"] is True
        assert "error" in ask(port, 5)[0]  # type: ignore[arg-type]
        with socket.create_connection(("127.0.0.1", port)) as leaver:
            leaver.sendall(b'{"prompt": "one two three"}\n')
        assert ask(port, "still here")[-1]["coverage"]["seen"] == 2


def post(port: int, prompt: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=prompt.encode(), timeout=30) as answer:
        body: dict[str, Any] = json.loads(answer.read())
        return body


def test_gunicorn_example(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn", reason="the preload-and-fork server needs gunicorn")
    module = "undercurrent.examples.gunicorn_app"
    command = ("-m", "gunicorn", "--config", f"python:{module}", "--bind", "127.0.0.1:0", f"{module}:app")
    says = r"Listening at: http://127\.0\.0\.1:(\d+)"
    # Gunicorn keeps a control socket below HOME.
    with (
        no_process_left(HOME=str(tmp_path)) as environment,
        server(*command, environment=environment, says=says) as (process, match),
    ):
        port = int(match[1])
        answer = post(port, "the sea is calm")
        assert (answer["coverage"]["seen"], answer["coverage"]["complete"]) == (15, True)
        assert answer["pid"] != process.pid
        # Gunicorn kills a server process that hangs, and forks another. Both server processes have answered before the
        # server is stopped: in one that still starts, gunicorn would lose the signal and wait 30 s for it.
        os.kill(answer["pid"], signal.SIGKILL)
        pids: set[int] = set()
        deadline = time.monotonic() + 40
        while len(pids) < 2 and time.monotonic() < deadline:
            answer = post(port, "calm")
            assert (answer["coverage"]["seen"], answer["coverage"]["complete"]) == (4, True)
            pids.add(answer["pid"])
        assert len(pids) == 2


_FORK = """
import os, sys
sys.path.insert(0, {folder!r})
from test_places import PROBES, SPEC, record
from undercurrent.router import Router
from undercurrent.core import RequestContext

def seen(results):
    coverage = results["monitor"].metadata["coverage"]
    return [coverage["routed"], coverage["seen"], coverage["complete"], coverage["reasons"]]

router = Router(probe_registry=PROBES)
router.register_request("before", SPEC, RequestContext("before", {{}}, None))
router.route(record("before", 0))
if (child := os.fork()) == 0:
    for position in range(1, 4):
        router.route(record("before", position))
    print("child, registered before:", seen(router.end_request("before")), flush=True)
    with router.request(SPEC) as request:
        router.route(record(request.request_id, 0))
    print("child, registered after:", seen(request.results), flush=True)
    router.shutdown()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
router.route(record("before", 1))
print("parent:", seen(router.end_request("before")), flush=True)
router.shutdown()
"""


def test_router_made_before_a_fork_counts_what_nobody_sees_and_serves_new_requests() -> None:
    with no_process_left() as environment:
        answer = subprocess.run(
            [sys.executable, "-c", _FORK.format(folder=str(Path(__file__).parent))],
            env={**environment, "PYTHONPATH": str(Path(__file__).parent.parent)},
            capture_output=True,
            text=True,
            timeout=50,
        )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        "child, registered before: [3, 0, False, ['unseen']]",
        "child, registered after: [1, 1, True, []]",
        "parent: [2, 2, True, []]",
    ]
    assert answer.stderr.count("fork of the router's") == 1
