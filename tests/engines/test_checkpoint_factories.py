"""The checkpoints a `Router` knows by name, and what is said where their packages are missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from undercurrent.engines.checkpoint import ENGLISH_PACKAGE, MULTILINGUAL_PACKAGE
from undercurrent.errors import MissingDependencyError
from undercurrent.predict import Router
from undercurrent.predict.catalog import known_names


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Makes a package look as if it were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))


def test_a_router_knows_both_and_reads_unknown_languages_with_the_second() -> None:
    assert known_names() == ("english", "multilingual")
    router = Router()
    assert router.route("where is my parcel, it should have come on Monday").model == "english"
    assert router.route("0172 / 44").model == "multilingual"
    assert router.resolve("ml") == "multilingual"
    assert router.loaded == []


@pytest.mark.parametrize(
    ("name", "package"), [("english", ENGLISH_PACKAGE), ("multilingual", MULTILINGUAL_PACKAGE), ("ml", "gguf")]
)
def test_a_missing_package_is_named_with_the_command(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, package)
    with pytest.raises(MissingDependencyError, match=rf"{package}.*pip install 'undercurrent\[decide\]'") as raised:
        Router().predict("hello", {"q": {"type": "noul", "instructions": "a greeting"}}, model=name)
    assert isinstance(raised.value, ImportError)
    assert raised.value.name == package


def test_a_folder_needs_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "transformers")
    with pytest.raises(MissingDependencyError, match=r"needs transformers.*pip install 'undercurrent\[hf\]'"):
        Router({"own": str(tmp_path)}).load("own")


def test_options_of_a_factory_come_from_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    from undercurrent.engines import checkpoint

    asked: list[dict[str, Any]] = []

    def load(source: str, /, **options: Any) -> Any:
        asked.append(options)
        raise MissingDependencyError(f"{source} is not here", name=source)

    monkeypatch.setattr(checkpoint, "load_multilingual", load)
    with pytest.raises(MissingDependencyError):
        Router(agent_options={"permutations": 4}).load("ml")
    assert asked == [{"permutations": 4}]
