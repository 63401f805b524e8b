"""The control page: one writer, readers of any process, nothing left behind."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator

import pytest

from undercurrent.errors import RingCorruptError, RingError, RingUnavailableError
from undercurrent.ipc import ControlPage, PageReader
from undercurrent.ipc.page import PageRow

ROW_BYTES = 256


@pytest.fixture
def instance() -> str:
    """A name that no other test run uses."""
    return f"test-{os.getpid()}"


@pytest.fixture
def page(instance: str) -> Iterator[ControlPage]:
    """A small page."""
    with ControlPage(instance, lanes=2, workers=2, bindings=3) as page:
        yield page


def shm_path(instance: str) -> str:
    """Where the kernel shows the page."""
    return f"/dev/shm/undercurrent-{instance}"


def test_row_is_read_as_it_was_written(page: ControlPage) -> None:
    page.write_row("bindings", 2, id=7, pid=11, since=1.5, name="req-1/monitor", detail="d", counters=[1, 2, 2**64 - 1])
    with PageReader(page.instance) as reader:
        counters = (1, 2, 2**64 - 1, *(0,) * 9)
        assert reader.rows("bindings") == [PageRow(2, 7, 11, 1.5, counters, "req-1/monitor", "d")]
        assert reader.rows("lanes") == []
        page.clear_row("bindings", 2)
        assert reader.rows("bindings") == []


def test_long_names_are_cut_at_a_character(page: ControlPage) -> None:
    page.write_row("lanes", 0, id=1, name="é" * 40, detail="x" * 100)
    with PageReader(page.instance) as reader:
        (row,) = reader.rows("lanes")
    assert (row.name, row.detail) == ("é" * 24, "x" * 72)


def test_row_outside_of_the_table_is_refused(page: ControlPage) -> None:
    for index in (-1, 3):
        with pytest.raises(IndexError, match="3 bindings"):
            page.write_row("bindings", index, id=1, name="x")


def test_page_is_private_and_gone_when_closed(instance: str) -> None:
    with ControlPage(instance):
        assert os.stat(shm_path(instance)).st_mode & 0o777 == 0o600
    assert not os.path.exists(shm_path(instance))
    with pytest.raises(RingUnavailableError):
        PageReader(instance)


def test_second_page_of_a_living_instance_is_refused(page: ControlPage) -> None:
    with pytest.raises(RingError, match=f"taken by process {os.getpid()}"):
        ControlPage(page.instance)
    assert os.path.exists(shm_path(page.instance))


@pytest.mark.parametrize("name", ["", "a/b", "a" * 64, "sp ace"])
def test_instance_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="`instance`"):
        ControlPage(name)


def leave_a_page_behind(instance: str) -> None:
    """Runs a process that makes a page and is killed."""
    code = (
        "import os, signal, sys\nfrom undercurrent.ipc import ControlPage\n"
        "page = ControlPage(sys.argv[1], bindings=4)\npage.write_row('bindings', 0, id=1, name='left')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    finished = subprocess.run([sys.executable, "-c", code, instance], check=False)
    assert finished.returncode == -signal.SIGKILL


def test_page_of_a_dead_process_is_stale_readable_and_removed(instance: str) -> None:
    leave_a_page_behind(instance)
    (found,) = [page for page in ControlPage.list_instances() if page.instance == instance]
    assert found.is_stale
    with PageReader(instance) as reader:
        assert [row.name for row in reader.rows("bindings")] == ["left"]
    assert instance in ControlPage.remove_stale()
    assert not os.path.exists(shm_path(instance))


def test_stale_page_of_the_same_name_is_replaced(instance: str) -> None:
    leave_a_page_behind(instance)
    with ControlPage(instance, bindings=2) as page, PageReader(page.instance) as reader:
        assert not reader.describe().is_stale
        assert reader.rows("bindings") == []


def test_living_page_is_listed_and_never_removed(page: ControlPage) -> None:
    (found,) = [entry for entry in ControlPage.list_instances() if entry.instance == page.instance]
    assert (found.pid, found.is_stale) == (os.getpid(), False)
    assert page.instance not in ControlPage.remove_stale()


def test_page_of_another_format_is_refused_and_passed_over(instance: str) -> None:
    with open(shm_path(instance), "wb") as file:
        file.write(bytes(5000))
    try:
        with pytest.raises(RingCorruptError, match="no header of this format"):
            PageReader(instance)
        assert instance not in [page.instance for page in ControlPage.list_instances()]
    finally:
        os.unlink(shm_path(instance))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_page_of_another_user_is_passed_over(page: ControlPage) -> None:
    os.seteuid(65534)
    try:
        assert page.instance not in [found.instance for found in ControlPage.list_instances()]
        with pytest.raises(RingUnavailableError, match="another user"):
            PageReader(page.instance)
        with pytest.raises(RingError, match="another user"):
            ControlPage(page.instance)
    finally:
        os.seteuid(0)


def test_row_left_half_written_is_omitted(page: ControlPage) -> None:
    page.write_row("bindings", 1, id=1, name="whole")
    with open(shm_path(page.instance), "r+b") as file, PageReader(page.instance) as reader:
        offset = 256 + 4 * ROW_BYTES + ROW_BYTES
        file.seek(offset + 100)
        file.write(b"torn")
        file.flush()
        assert reader.rows("bindings") == []


def test_reader_in_any_language_needs_the_offsets_only(page: ControlPage) -> None:
    page.write_row("workers", 1, id=9, pid=5, name="w", counters=[3])
    with open(shm_path(page.instance), "rb") as file:
        raw = file.read()
    offset = struct.unpack_from("<I", raw, 40)[0] + ROW_BYTES
    version, crc, state = struct.unpack_from("<III", raw, offset)
    assert (version % 2, state) == (0, 1)
    assert crc == zlib.crc32(raw[offset + 8 : offset + ROW_BYTES])
    assert struct.unpack_from("<Qq", raw, offset + 16) == (9, 5)
    assert struct.unpack_from("<Q", raw, offset + 40) == (3,)


def test_reader_beside_a_busy_writer_sees_whole_rows(page: ControlPage) -> None:
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            page.write_row("lanes", 0, id=n, name=str(n), counters=[n] * 12)

    writer = threading.Thread(target=write, name="test-writer")
    page.write_row("lanes", 0, id=0, name="0", counters=[0] * 12)
    writer.start()
    try:
        with PageReader(page.instance) as reader:
            for _ in range(2000):
                for row in reader.rows("lanes"):
                    assert row.counters == (row.id,) * 12
                    assert row.name == str(row.id)
    finally:
        stop.set()
        writer.join()


def test_forked_child_neither_writes_nor_removes_the_page(page: ControlPage) -> None:
    page.write_row("lanes", 0, id=1, name="parent")
    pid = os.fork()
    if pid == 0:
        page.write_row("lanes", 0, id=2, name="child")
        page.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with PageReader(page.instance) as reader:
        assert [row.name for row in reader.rows("lanes")] == ["parent"]
