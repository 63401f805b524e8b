"""Streaming stores are ordered by no release store: an sfence must stand behind them, before the record is published.

No stress test notices its absence (1.8 million checked messages did not), so the machine code is read instead.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from undercurrent.ipc.ring import extension

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="streaming stores are used on x86-64 only"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed"),
]


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly."""

    address: int
    text: str


def functions() -> dict[str, list[Instruction]]:
    """The extension's instructions by function."""
    path = Path(str(extension.__file__))
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for block in re.split(r"\n\n", text):
        head = re.match(r"[0-9a-f]+ <([^>]+)>:\n", block)
        if head:
            lines = re.findall(r"^ *([0-9a-f]+):\t(.+)$", block, re.MULTILINE)
            found[head[1]] = [Instruction(int(address, 16), text.strip()) for address, text in lines]
    return found


def unfenced_exit(code: list[Instruction]) -> Instruction | None:
    """Where some path from a streaming store leaves the function without an sfence; None when none does.

    The compiler lays blocks out as it likes, so jumps are followed.
    """
    place = {instruction.address: index for index, instruction in enumerate(code)}
    waiting = [index for index, instruction in enumerate(code) if "movnt" in instruction.text]
    seen: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index in seen or code[index].text.startswith("sfence"):
            continue
        seen.add(index)
        text = code[index].text
        if text.startswith("call") and "__stack_chk_fail" in text:
            continue  # does not return
        jump = re.match(r"(j\w+) +([0-9a-f]+) ", text)
        leaves = text.startswith(("ret", "jmp")) if jump is None else int(jump[2], 16) not in place
        if leaves or index + 1 == len(code):
            return code[index]
        if jump:
            waiting.append(place[int(jump[2], 16)])
        if jump is None or jump[1] != "jmp":
            waiting.append(index + 1)
    return None


def test_every_path_from_a_streaming_store_to_a_return_passes_a_fence() -> None:
    streaming = {
        name: code for name, code in functions().items() if any("movnt" in instruction.text for instruction in code)
    }
    assert streaming, "no streaming store in the build: was it made with -DUC_NO_STREAMING?"
    assert {name: exit_at for name, code in streaming.items() if (exit_at := unfenced_exit(code))} == {}


def test_path_around_the_fence_is_found() -> None:
    code = ["vmovntdq %ymm0,(%rdi)", "je     4 <f+0x4>", "sfence", "ret", "ret"]
    around = [Instruction(address, text) for address, text in enumerate(code)]
    assert unfenced_exit(around) == around[4]
    assert unfenced_exit([around[0], *around[2:]]) is None


def test_function_with_streaming_stores_publishes_nothing() -> None:
    code = functions()
    texts = [[instruction.text for instruction in lines] for lines in code.values()]
    streaming = [lines for lines in texts if any("movnt" in line for line in lines)]
    for lines in streaming:
        # An exchange of a register with itself is how two bytes of padding look.
        swaps = [line for line in lines if "xchg" in line.split()[0] and line.split()[1:] != ["%ax,%ax"]]
        assert swaps == []
