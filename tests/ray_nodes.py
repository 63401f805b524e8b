"""Ray nodes in network namespaces of their own, joined by a pair of virtual Ethernet devices."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PORT = 6379
START_S = 60
_NAMES = ("head", "worker")


def require_namespaces() -> None:
    """Skips where this machine cannot make namespaces."""
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed")
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("this root may not make network namespaces")


class RayNodes:
    """Two namespaces, `head` and `worker`, and the processes started in them. Everything is ended by `close`."""

    def __init__(self) -> None:
        # Sockets of Ray lie below it: their paths may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="uc-ray-"))
        self.token = secrets.token_hex(32)
        self._tag = f"uc{os.getpid() % 100000}{secrets.token_hex(1)}"
        self._octet = os.getpid() % 250 + 1
        self.processes: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Makes the namespaces and joins them."""
        devices = [f"{self._tag}{name[0]}" for name in _NAMES]
        for name in _NAMES:
            _ip("netns", "add", self.namespace(name))
        _ip(
            "link",
            "add",
            devices[0],
            "netns",
            self.namespace("head"),
            "type",
            "veth",
            "peer",
            "name",
            devices[1],
            "netns",
            self.namespace("worker"),
        )
        for name, device in zip(_NAMES, devices, strict=True):
            inside = ("-n", self.namespace(name))
            _ip(*inside, "address", "add", f"{self.address(name)}/24", "dev", device)
            _ip(*inside, "link", "set", device, "up")
            _ip(*inside, "link", "set", "lo", "up")

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def address(self, name: str) -> str:
        return f"10.213.{self._octet}.{_NAMES.index(name) + 1}"

    @property
    def head_address(self) -> str:
        return f"{self.address('head')}:{PORT}"

    def environment(self, **changes: str) -> dict[str, str]:
        """What nodes and drivers get: the token, the tests' modules, short deadlines, and nothing sent outside."""
        clean = {key: text for key, text in os.environ.items() if not key.startswith(("RAY_", "PYTEST"))}
        return (
            clean
            | {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": self.token,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TMPDIR": str(self.folder),
                "RAY_health_check_initial_delay_ms": "1000",
                "RAY_health_check_period_ms": "500",
                "RAY_health_check_timeout_ms": "2000",
                "RAY_health_check_failure_threshold": "4",
                "PYTHONPATH": str(TESTS),
                "OMP_NUM_THREADS": "1",
            }
            | changes
        )

    def start(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a program in a namespace; its output goes to `<number>-<name>.log` of the folder."""
        log = self.folder / f"{len(self.processes)}-{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace(name), *command],
                env=self.environment() if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_node(self, name: str, *, cpus: int) -> subprocess.Popen[bytes]:
        """Starts a Ray node and waits until it runs."""
        role = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            *(role if name == "head" else [f"--address={self.head_address}"]),
            *(f"--node-ip-address={self.address(name)}", f"--num-cpus={cpus}", f"--object-store-memory={80 << 20}"),
        ]
        node = self.start(name, command)
        log = self.folder / f"{len(self.processes) - 1}-{name}.log"
        give_up_s = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None, self.logs()
            assert time.monotonic() < give_up_s, self.logs()
            time.sleep(0.05)
        return node

    def pids(self, name: str) -> set[int]:
        """The processes of a namespace."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace(name)], capture_output=True, text=True)
        return {int(pid) for pid in listed.stdout.split()}

    def kill_node(self, name: str) -> None:
        """Takes the node's cable and kills everything in it, as a machine that loses its power."""
        _ip("-n", self.namespace(name), "link", "set", f"{self._tag}{name[0]}", "down")
        self._kill(name)

    def logs(self) -> str:
        """What the programs said, for a failure's message."""
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """Ends every process of both namespaces and removes them."""
        for name in _NAMES:
            self._kill(name)
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
        for name in _NAMES:
            subprocess.run(["ip", "netns", "delete", self.namespace(name)], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self, name: str) -> None:
        give_up_s = time.monotonic() + 20
        while (pids := self.pids(name)) and time.monotonic() < give_up_s:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """Two joined namespaces; nothing of them is left behind."""
    require_namespaces()
    nodes = RayNodes()
    try:
        nodes.open()
        yield nodes
    finally:
        nodes.close()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)
