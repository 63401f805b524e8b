"""Who may start processes, make memory, touch the extension, read argv or the environment.

These are rules about calls, which no import contract sees.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from source_tree import module_name, product_files


@dataclass(frozen=True)
class Rule:
    """Names that modules may not use, unless they are the ones allowed to. All four fields are shell patterns."""

    names: tuple[str, ...]
    allowed_modules: tuple[str, ...] = ()
    applies_to: tuple[str, ...] = ("undercurrent*",)
    except_names: tuple[str, ...] = ()


def errors_only(package: str) -> Rule:
    """Returns the rule of a system that meets the others through protocols: of our packages it knows `errors`."""
    known = ("undercurrent.errors", "undercurrent.errors.*", package, f"{package}.*")
    return Rule(("undercurrent", "undercurrent.*"), applies_to=(package, f"{package}.*"), except_names=known)


RULES = {
    # An executor's process holds a model, so the nursery, which forks in a millisecond and never has torch, cannot make
    # it; and runtime stands beside workers, not on them.
    "three modules start processes": Rule(
        (
            *("subprocess", "subprocess.*", "multiprocessing", "multiprocessing.*", "asyncio.create_subprocess_*"),
            *("os.fork", "os.forkpty", "os.exec*", "os.spawn*", "os.posix_spawn*", "os.system", "os.popen", "pty.fork"),
            "concurrent.futures.ProcessPoolExecutor",
        ),
        ("undercurrent.workers.supervisor", "undercurrent.workers.nursery*", "undercurrent.runtime.executors.process"),
    ),
    "only ipc.memory and ipc.page make memory": Rule(
        (
            *("mmap", "mmap.*", "posix_ipc", "posix_ipc.*", "multiprocessing.shared_memory*"),
            *("os.memfd_create", "os.posix_fallocate", "os.ftruncate"),
        ),
        ("undercurrent.ipc.memory", "undercurrent.ipc.page"),
    ),
    "only ipc.ring and ipc.doorbell touch the extension": Rule(
        ("undercurrent.ipc._ring", "undercurrent.ipc._ring.*"),
        ("undercurrent.ipc.ring", "undercurrent.ipc.doorbell"),
    ),
    # The nursery overwrites argv: what it imports for users shall not see how it was started.
    "only cli reads argv": Rule(
        ("sys.argv", "argparse", "argparse.*"),
        ("undercurrent.cli*", "undercurrent.__main__", "undercurrent.workers.nursery_main"),
    ),
    "the environment is read at the edges": Rule(
        ("os.environ", "os.environ.*", "os.environb*", "os.getenv*"),
        (
            "undercurrent.cli*",
            "undercurrent.workers*",
            "undercurrent.sinks.state_folder",
            "undercurrent.engines.cache_folder",
        ),
    ),
    "predict knows errors only": errors_only("undercurrent.predict"),
    "runtime knows errors only": errors_only("undercurrent.runtime"),
}
# Programs that stand on the product and are no part of it.
PROGRAMS = ("undercurrent.benchmarks*", "undercurrent.examples*")


def used_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields each dotted name a module imports or uses through an import, with its line."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                origins[alias.asname or top] = alias.name if alias.asname else top
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            first, _, rest = name.partition(".")
            if first in origins:
                yield f"{origins[first]}.{rest}", node.lineno


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Tells whether one of the shell patterns fits."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def violations(rule: Rule, module: str, source: str) -> list[str]:
    """Returns what a module uses against a rule."""
    if matches(module, (*rule.allowed_modules, *PROGRAMS)) or not matches(module, rule.applies_to):
        return []
    return [
        f"{module}:{line} uses {name}"
        for name, line in used_names(ast.parse(source))
        if matches(name, rule.names) and not matches(name, rule.except_names)
    ]


@pytest.mark.parametrize("rule", RULES)
def test_product_code_keeps_the_rule(rule: str) -> None:
    files = [(module_name(path), path.read_text()) for path in product_files()]
    found = [violation for module, source in files for violation in violations(RULES[rule], module, source)]
    assert not found, "\n".join(found)


PLANTS = [
    ("three modules start processes", "undercurrent.router", "import os\nos.fork()"),
    ("three modules start processes", "undercurrent.sinks", "from subprocess import Popen"),
    ("only ipc.memory and ipc.page make memory", "undercurrent.workers", "import os as o\no.memfd_create('x')"),
    ("only ipc.ring and ipc.doorbell touch the extension", "undercurrent.router", "from undercurrent.ipc import _ring"),
    ("only cli reads argv", "undercurrent.workers.loop", "from sys import argv"),
    ("the environment is read at the edges", "undercurrent.core", "import os\nos.environ.get('X')"),
    ("the environment is read at the edges", "undercurrent.sinks.webhook_sink", "import os\nos.getenv('X')"),
    ("predict knows errors only", "undercurrent.predict", "from undercurrent.core import Probe"),
    ("runtime knows errors only", "undercurrent.runtime.archive", "import undercurrent.predict"),
]


@pytest.mark.parametrize(("rule", "module", "source"), PLANTS)
def test_rule_sees_a_planted_violation(rule: str, module: str, source: str) -> None:
    assert violations(RULES[rule], module, source)


def test_rule_lets_the_allowed_module_through() -> None:
    rule = RULES["three modules start processes"]
    assert not violations(rule, "undercurrent.workers.nursery", "import os\nos.fork()")
    assert not violations(RULES["predict knows errors only"], "undercurrent.predict", "import undercurrent.errors")
