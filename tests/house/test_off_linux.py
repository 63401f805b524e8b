"""What works where Linux's calls are missing: every import, inline points, and a sentence about the rest.

The calls are taken away from the standard library's modules in a fresh interpreter, once everything else is imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from source_tree import package_names

NEEDS_AN_EXTRA = "undercurrent.predict.serve"
PROGRAM = """
import asyncio, concurrent.futures, ctypes, fcntl, importlib, mmap, multiprocessing, os, select, signal, socket
import subprocess, sys, sysconfig, tempfile, uuid, zoneinfo
import click, cloudpickle, msgspec, numpy, orjson, posix_ipc, psutil, rich, urllib3, yaml

sysconfig.get_config_vars()
GONE = {
    os: ("memfd_create", "MFD_", "pidfd_open", "P_PIDFD", "eventfd", "EFD_", "sched_", "SCHED_", "posix_fallocate"),
    select: ("epoll", "EPOLL"),
    signal: ("pidfd_send_signal",),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL", "F_OFD", "F_SETPIPE", "F_GETPIPE"),
    mmap: ("MADV_DONT", "MADV_HUGE", "MADV_REMOVE", "MAP_POPULATE"),
    socket: ("SO_PEERCRED", "SO_PASSCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "MSG_CMSG_CLOEXEC"),
}
for module, prefixes in GONE.items():
    for name in [name for name in vars(module) if name.startswith(prefixes)]:
        delattr(module, name)
sys.platform = "darwin"
sys.modules["undercurrent.ipc._ring"] = None

for name in sys.argv[1:]:
    importlib.import_module(name)
from undercurrent import ActivationRecord, ProbeFactory, RequestContext, Router, load_spec
from undercurrent.core.examples import TrajectoryScoreProbe

point = {"layers": 4, "tensor_type": "mlp_out", "position": "generated[*]", "probe_type": "mean"}
point["probe_kind"] = "trajectory"
modes = [{**point, "name": mode, "execution_mode": mode} for mode in ("inline", "async")]
spec = load_spec({"extraction_points": modes})
for mode in ("process", "thread"):
    with Router({"mean": ProbeFactory(TrajectoryScoreProbe)}, worker_mode=mode) as router:
        with router.request([spec.get("inline")], request_id="r") as request:
            print(request.route(ActivationRecord("r", "inline", 4, 1, "mlp_out", [0.9, 1.0], True)).action.value)
        try:
            router.register_request("q", spec.extraction_points, RequestContext("q", {}, None))
        except OSError as error:
            print(f"{type(error).__name__}: {error}")
"""


def test_import_and_inline_points_work_off_linux_and_an_async_point_says_what_is_missing(tmp_path: Path) -> None:
    packages = sorted(package_names() - {NEEDS_AN_EXTRA})
    command = [sys.executable, "-P", "-c", PROGRAM, *packages]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert answer.returncode == 0, answer.stderr
    said = "RingUnavailableError: shared memory for rings needs Linux's memfd_create; darwin has none"
    assert answer.stdout.splitlines() == ["abort", said] * 2
