"""Maps the top-level rooms onto import names and builds the one C extension.

Everything declarative is in pyproject.toml. Only what must look at the tree stands here: the list of packages (each
folder with an `__init__.py`, so that a new one cannot be forgotten) and the C sources.
"""

import os
import sys
from glob import glob

from setuptools import Extension, setup

# Import name -> folder. The committed links undercurrent/{ipc,workers,engines,benchmarks} show static tools the same
# picture; the walk below does not follow them, so no file is listed twice.
ROOMS = {
    "undercurrent": "undercurrent",
    "undercurrent.ipc": "ipc",
    "undercurrent.workers": "workers",
    "undercurrent.engines": "engines",
    "undercurrent.benchmarks": "benchmarks",
}


def find_packages() -> list[str]:
    """Returns the import names of the rooms and of every folder below them that has an `__init__.py`."""
    packages = set(ROOMS)
    for room_name, room in ROOMS.items():
        for folder, _, files in os.walk(room, followlinks=False):
            if "__init__.py" in files:
                tail = os.path.relpath(folder, room)
                packages.add(room_name if tail == "." else f"{room_name}.{tail.replace(os.sep, '.')}")
    return sorted(packages)


def ring_extension() -> Extension:
    """Describes `undercurrent.ipc._ring`, built against the limited API of Python 3.11."""
    return Extension(
        "undercurrent.ipc._ring",
        sources=sorted(glob("ipc/csrc/*.c")),
        depends=sorted(glob("ipc/csrc/*.h")),
        include_dirs=["ipc/csrc"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-fvisibility=hidden"],
        py_limited_api=True,
        # memfd and futex are Linux's; elsewhere the package installs without the ring and says so at use.
        optional=not sys.platform.startswith("linux"),
    )


setup(
    package_dir=ROOMS,
    packages=find_packages(),
    ext_modules=[ring_extension()] if glob("ipc/csrc/*.c") else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
