"""How a generator is made in another process: an importable function with its arguments."""

from __future__ import annotations

import hashlib
import importlib
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from undercurrent.runtime.errors import RuntimeTypeError, RuntimeValueError
from undercurrent.runtime.executors.errors import ExecutorStartError
from undercurrent.runtime.protocols import BatchGenerator

__all__ = ["GeneratorFactory"]

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class GeneratorFactory(msgspec.Struct, frozen=True):
    """A call that makes a `BatchGenerator` with the model loaded."""

    target: str
    """`module:function`."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    @classmethod
    def of(
        cls,
        target: str | Callable[..., BatchGenerator],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> GeneratorFactory:
        """The factory named by `module:function`, or the function itself where another process can import it.

        Raises:
            RuntimeValueError: the text is not `module:function`.
            RuntimeTypeError: nobody else can import the function, or an argument cannot be pickled.
        """
        if not isinstance(target, str):
            target = _importable_name(target)
        if not _TARGET.fullmatch(target):
            raise RuntimeValueError(f"`factory` must be `module:function`, got {target!r}")
        try:
            pickle.dumps((tuple(args), dict(kwargs or {})))
        except Exception as error:
            raise RuntimeTypeError(
                f"the arguments of {target} cannot be sent to another process: {error}; give it names, paths and "
                "numbers, and load there"
            ) from error
        return cls(target, tuple(args), dict(kwargs or {}))

    def with_arguments(self, more: Mapping[str, object]) -> GeneratorFactory:
        """The same call with more keyword arguments."""
        return GeneratorFactory.of(self.target, self.args, {**self.kwargs, **more})

    @property
    def fingerprint(self) -> str:
        """12 hexadecimal digits that differ where the call differs."""
        spelled = pickle.dumps((self.target, self.args, sorted(self.kwargs.items())), protocol=5)
        return hashlib.sha256(spelled).hexdigest()[:12]

    def build(self) -> BatchGenerator:
        """Imports and calls it, in this process.

        Raises:
            ExecutorStartError: there is no such function, or it returns no generator.
            Exception: what the function raised.
        """
        module_name, _, path = self.target.partition(":")
        try:
            made: Any = importlib.import_module(module_name)
            for name in path.split("."):
                made = getattr(made, name)
        except (ImportError, AttributeError) as error:
            raise ExecutorStartError(
                f"no factory {self.target!r}: {error}; it must be importable where the generator runs"
            ) from error
        generator = made(*self.args, **self.kwargs)
        if not isinstance(generator, BatchGenerator):
            raise ExecutorStartError(
                f"{self.target} must return an object with `generate_batch`, got {type(generator).__qualname__}"
            )
        return generator


def _importable_name(function: Callable[..., object]) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        raise RuntimeTypeError(
            f"`factory` must be importable by another process, got {name or type(function).__qualname__!r} of "
            f"{module!r}; put it at the top of a module"
        )
    return f"{module}:{name}"
