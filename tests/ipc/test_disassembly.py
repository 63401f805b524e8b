"""Streaming stores are ordered by no release store: an sfence must stand behind them, before the record is published.

No stress test notices its absence (1.8 million checked messages did not), so the machine code is read instead.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from undercurrent.ipc.ring import extension

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="streaming stores are used on x86-64 only"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed"),
]


def functions() -> dict[str, list[str]]:
    """The extension's instructions by function, streaming stores and fences included."""
    path = Path(str(extension.__file__))
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for block in re.split(r"\n\n", text):
        head = re.match(r"[0-9a-f]+ <([^>]+)>:\n", block)
        if head:
            found[head[1]] = [line.split("\t", 1)[1].strip() for line in block.splitlines()[1:] if "\t" in line]
    return found


def test_every_path_from_a_streaming_store_to_a_return_passes_a_fence() -> None:
    streaming = {name: code for name, code in functions().items() if any("movnt" in line for line in code)}
    assert streaming, "no streaming store in the build: was it made with -DUC_NO_STREAMING?"
    for name, code in streaming.items():
        last = max(i for i, line in enumerate(code) if "movnt" in line)
        unfenced = False
        for line in code:
            if "movnt" in line:
                unfenced = True
            elif line.startswith("sfence"):
                unfenced = False
            elif re.match(r"(ret|jmp .*<(?!" + re.escape(name) + r"))", line):
                assert not unfenced, f"{name}: {line} is reached behind a streaming store without sfence"
        assert any(line.startswith("sfence") for line in code[last:]), f"{name}: no sfence behind the last one"


def test_function_with_streaming_stores_publishes_nothing() -> None:
    code = functions()
    streaming = [lines for lines in code.values() if any("movnt" in line for line in lines)]
    for lines in streaming:
        assert not any("cmpxchg" in line or "xchg" in line.split()[0] for line in lines if "movnt" not in line)
