"""`undercurrent version`."""

from __future__ import annotations

from typing import Any

import click

from undercurrent.cli.verbs import json_option, print_json, verb

__all__ = ["command", "version_facts"]

_BASE = ("click", "cloudpickle", "msgspec", "numpy", "orjson", "posix_ipc", "psutil", "PyYAML", "rich", "urllib3")
_OPTIONAL = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "vllm")


@verb(
    "version",
    examples=[
        ("undercurrent version", "for people"),
        ("undercurrent version --json", "for a bug report"),
        ("undercurrent --version", "one line"),
    ],
)
@json_option
def command(*, as_json: bool) -> None:
    """Print the versions of Undercurrent and of what it stands on.

    Reads the metadata of installed packages and imports none of them.
    """
    facts = version_facts()
    if as_json:
        print_json(facts)
        return
    click.echo(f"undercurrent {facts['undercurrent']}")
    click.echo(f"python {facts['python']['version']} ({facts['python']['implementation']})")
    click.echo(f"platform {facts['platform']['system']} {facts['platform']['release']} {facts['platform']['machine']}")
    click.echo(f"ring extension {facts['build']['extension'] or 'not built'}")
    for name, version in facts["packages"].items():
        click.echo(f"{name} {version or '-'}")


def version_facts() -> dict[str, Any]:
    """Versions, build and platform; a package that is not installed has the version None."""
    import importlib.util
    import platform
    import sys
    from pathlib import Path

    from undercurrent import __version__

    spec = importlib.util.find_spec("undercurrent.ipc._ring")
    return {
        "undercurrent": __version__,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "platform": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
        },
        "build": {
            "folder": str(Path(__file__).resolve().parents[1]),
            "extension": None if spec is None or spec.origin is None else Path(spec.origin).name,
        },
        "packages": {name: _installed(name) for name in (*_BASE, *_OPTIONAL)},
    }


def _installed(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
