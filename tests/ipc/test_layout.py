"""The format stands in three places: C, Python and the README. They agree."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from undercurrent.ipc import layout
from undercurrent.ipc.ring import extension

IPC = Path(__file__).resolve().parents[2] / "ipc"
STRUCTS = ("uc_control_header_t", "uc_doorbell_t", "uc_ring_block_t", "uc_answer_cell_t", "uc_slot_header_t")


def test_python_and_c_cut_memory_alike() -> None:
    for index in range(layout.CLASS_COUNT):
        facts = (layout.class_bytes(index), layout.class_run_blocks(index), layout.class_hand_count(index))
        assert extension.class_facts(index) == facts
    with pytest.raises(IndexError):
        extension.class_facts(layout.CLASS_COUNT)


def test_header_format_and_fields_are_the_same_bytes() -> None:
    assert struct.calcsize(layout.HEADER_FORMAT) == layout.HEADER_BYTES
    dtype = np.dtype(layout.HEADER_FIELDS)
    assert dtype.itemsize == layout.HEADER_BYTES
    values = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15.5, 16, b"t" * 16)
    record = np.frombuffer(struct.pack(layout.HEADER_FORMAT, *values), dtype)[0]
    assert [record[name] for name in ("seq", "generation", "length", "kind")] == [1, 2, 3, 4]
    assert record["shape"].tolist() == [8, 9, 10, 11]
    assert [record[name] for name in ("token_pos", "layer", "flags", "timestamp")] == [12, 13, 14, 15.5]
    assert (record["monotonic_ns"], record["trace"].tobytes()) == (16, b"t" * 16)


def test_numbers_of_the_format_are_those_of_the_header() -> None:
    text = (IPC / "csrc" / "layout.h").read_text()
    for name, value in (
        ("UC_UNIT_BYTES", layout.UNIT_BYTES),
        ("UC_SLOT_HEADER_BYTES", layout.HEADER_BYTES),
        ("UC_NDIM_MAX", layout.NDIM_MAX),
        ("UC_HAND_COUNT", layout.HAND_COUNT),
        ("UC_CLASS_COUNT", layout.CLASS_COUNT),
        ("UC_RING_CAPACITY_MAX", layout.RING_CAPACITY_MAX),
        ("UC_ANSWER_BYTES_MAX", layout.ANSWER_BYTES_MAX),
    ):
        assert re.search(rf"#define {name} +{value}u\b", text), name
    for number, words in layout.STATUS_NAMES.items():
        assert re.search(rf"UC_{words.upper().replace(' ', '_')} = {number},", text), words


def offsets_in_c(struct_name: str) -> dict[str, int]:
    """Field offsets as the comments of layout.h say them; the compiler's own asserts hold the comments' anchors."""
    text = (IPC / "csrc" / "layout.h").read_text()
    end = text.index(f"}} {struct_name};")
    body = text[text.rindex("typedef struct {", 0, end) : end]
    found = re.findall(r"^\s+(?:_Atomic )?\w+ (\w+)(?:\[\w+\])?;\s*/\*\s*(\d+)\b", body, re.MULTILINE)
    return {name: int(offset) for name, offset in found}


def offsets_in_readme(struct_name: str) -> dict[str, int]:
    """Field offsets as the README's tables say them."""
    text = (IPC / "README.md").read_text()
    begin = text.index(f"`{struct_name}`")
    table = text[begin:].split("\n\n")[1]
    return {name: int(offset) for offset, name in re.findall(r"^\| (\d+) \| `(\w+)", table, re.MULTILINE)}


@pytest.mark.parametrize("struct_name", STRUCTS)
def test_readme_gives_the_offsets_of_the_header(struct_name: str) -> None:
    expected = offsets_in_c(struct_name)
    assert len(expected) > 4
    assert offsets_in_readme(struct_name) == expected
