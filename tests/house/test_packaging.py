"""Wheel, sdist and editable install, each in an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from interpreters import find_interpreter
from source_tree import copy_tree, package_names

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

RING_ROUND_TRIP = """
import pkgutil, sys, undercurrent
from undercurrent.ipc import ConsumerLane, MemoryBudget, ProducerLane, layout

producer = ProducerLane(MemoryBudget(1 << 26))
ring = producer.open_ring(queue_depth=4, policy=0, generation=1)
consumer = ConsumerLane(producer.control_fd, producer.payload_fd)
reader = consumer.attach_ring(ring.ring_index, queue_depth=4, policy=0, generation=1)
assert ring.publish(b"activation", 0, 7, 11, 0, 0.5) == layout.OK
batch = reader.take(4)
assert bytes(batch.copy(0)) == b"activation", bytes(batch.copy(0))
reader.finish(batch)
assert ring.statistics().balanced
consumer.close()
producer.close()
print("ring ok", undercurrent.__file__)
"""

IMPORT_PACKAGES = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print("imported", len(sys.argv) - 1)
"""
NEEDS_AN_EXTRA = "undercurrent.predict.serve"
IMPORT_REFUSED = """
import importlib, sys
try:
    importlib.import_module(sys.argv[1])
except ImportError as error:
    print(error)
"""


def run(*command: object, cwd: Path) -> str:
    """Runs a command to its end and returns its output; a failure shows all of it."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def make_venv(folder: Path, interpreter: Path | str = sys.executable) -> Path:
    """Makes an environment without the system's packages and returns its interpreter."""
    run(interpreter, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree, so that building leaves nothing in the real one."""
    return copy_tree(tmp_path_factory.mktemp("source") / "undercurrent")


@pytest.fixture(scope="module")
def archives(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from the unpacked sdist."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", target, source, cwd=target)
    (sdist,) = target.glob("*.tar.gz")
    (wheel,) = target.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def wheel_python(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that holds the wheel, its base dependencies and pytest."""
    python = make_venv(tmp_path_factory.mktemp("wheel") / "venv")
    run(python, "-m", "pip", "install", "-q", archives[1], "pytest", "pytest-timeout", cwd=python.parent)
    return python


def test_wheel_is_one_file_for_every_python_from_3_11(archives: tuple[Path, Path]) -> None:
    assert archives[1].name.split("-")[2:4] == ["cp311", "abi3"]


def test_wheel_holds_every_package_once_and_nothing_generic(archives: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(archives[1]).namelist()
    assert len(names) == len(set(names))
    assert {name.split("/")[0].split("-")[0] for name in names} == {"undercurrent"}
    packages = {name.removesuffix("/__init__.py").replace("/", ".") for name in names if name.endswith("/__init__.py")}
    assert packages == package_names()
    assert {"undercurrent/py.typed", "undercurrent/ipc/_ring.abi3.so", "undercurrent/ipc/_ring.pyi"} <= set(names)


def test_sdist_holds_sources_and_tests_and_no_build_output(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as sdist:
        members = {member.name.split("/", 1)[-1] for member in sdist.getmembers()}
    assert {"LICENSE", "README.md", "Makefile", "ipc/csrc/ring.c", "ipc/csrc/ring.h", "tests/conftest.py"} <= members
    assert not [name for name in members if name.endswith((".so", ".o", ".pyc"))]


def test_wheel_imports_every_package_and_runs_the_ring(wheel_python: Path, tmp_path: Path) -> None:
    packages = sorted(package_names() - {NEEDS_AN_EXTRA})
    assert f"imported {len(packages)}" in run(wheel_python, "-c", IMPORT_PACKAGES, *packages, cwd=tmp_path)
    assert "site-packages" in run(wheel_python, "-c", RING_ROUND_TRIP, cwd=tmp_path)


def test_package_that_needs_an_extra_names_it(wheel_python: Path, tmp_path: Path) -> None:
    assert "pip install 'undercurrent[serve]'" in run(wheel_python, "-c", IMPORT_REFUSED, NEEDS_AN_EXTRA, cwd=tmp_path)


def test_wheel_brings_the_command(wheel_python: Path, tmp_path: Path) -> None:
    assert "0.2.0" in run(wheel_python.parent / "undercurrent", "--version", cwd=tmp_path)


def test_pytest_in_the_root_uses_the_installed_wheel(wheel_python: Path, source: Path) -> None:
    output = run(wheel_python, "-m", "pytest", "-q", "tests/house/test_import_origin.py", cwd=source)
    assert "passed" in output


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_same_wheel_runs_on_later_python(version: str, archives: tuple[Path, Path], tmp_path: Path) -> None:
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"Python {version} is not installed")
    python = make_venv(tmp_path / "venv", interpreter)
    run(python, "-m", "pip", "install", "-q", archives[1], cwd=tmp_path)
    assert "ring ok" in run(python, "-c", RING_ROUND_TRIP, cwd=tmp_path)


@pytest.fixture(name="python")
def _python(tmp_path: Path) -> Path:
    """The interpreter of a fresh environment that has our dependencies and not our package."""
    python = make_venv(tmp_path / "venv")
    # They come from the environment that runs the tests, as a plain path: its own editable install stays out.
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_install_from_the_checkout_runs_the_ring_without_it(python: Path, tmp_path: Path) -> None:
    checkout = copy_tree(tmp_path / "checkout")
    run(python, "-m", "pip", "install", "-q", "--no-deps", ".", cwd=checkout)
    shutil.rmtree(checkout)
    assert str(tmp_path / "venv") in run(python, "-c", RING_ROUND_TRIP, cwd=tmp_path)


def test_editable_install_shows_edits_at_once(source: Path, python: Path, tmp_path: Path) -> None:
    run(python, "-m", "pip", "install", "-q", "--no-deps", "-e", source, cwd=tmp_path)
    assert str(source) in run(python, "-c", RING_ROUND_TRIP, cwd=tmp_path)
    (source / "workers" / "edited.py").write_text("ANSWER = 42\n")
    try:
        question = "import undercurrent.workers.edited as edited; print(edited.ANSWER)"
        assert run(python, "-c", question, cwd=tmp_path).strip() == "42"
    finally:
        (source / "workers" / "edited.py").unlink()
