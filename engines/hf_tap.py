"""Forward hooks that exist only while a generate call needs them, shared by calls that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from torch import nn
from torch.utils.hooks import RemovableHandle

from undercurrent.engines.capture import TensorKey
from undercurrent.engines.hf_modules import ModelModules

__all__ = ["ModelTap", "TapListener"]

_MODEL = "model"


class TapListener(Protocol):
    """What a generate call wants to be told while its thread runs the model."""

    keys: tuple[TensorKey, ...]
    """The tensors it reads; empty asks for no hook at all."""

    def begin_forward(self, kwargs: dict[str, Any]) -> None:
        """The model's forward begins, with these arguments."""

    def capture(self, key: TensorKey, output: Any) -> None:
        """The module of `key` gave `output`, a live tensor of the model."""


class ModelTap:
    """Installs hooks by need and hands each call to the listener of the thread that runs the model.

    A module has one hook however many calls read it; the last one to detach removes it, so an idle tap costs nothing.
    """

    def __init__(self, model: nn.Module, modules: ModelModules) -> None:
        self._model = model
        self._modules = modules
        self._current = threading.local()
        self._lock = threading.Lock()
        self._hooks: dict[object, tuple[RemovableHandle, int]] = {}  # guarded by _lock; handle and users

    @property
    def hook_count(self) -> int:
        """How many hooks are installed now."""
        with self._lock:
            return len(self._hooks)

    @contextmanager
    def attached(self, listener: TapListener) -> Iterator[Callable[[], None]]:
        """Attaches `listener` to the calling thread; the value detaches it before the block ends."""
        if not listener.keys:
            yield _detach_nothing
            return
        outer = getattr(self._current, "listener", None)
        is_attached = True

        def detach() -> None:
            nonlocal is_attached
            if is_attached:
                is_attached = False
                self._current.listener = outer
                self._release((_MODEL, *listener.keys))

        self._install(listener.keys)
        self._current.listener = listener
        try:
            yield detach
        finally:
            detach()

    def _install(self, keys: tuple[TensorKey, ...]) -> None:
        with self._lock:
            self._hold(_MODEL, partial(self._model.register_forward_pre_hook, self._on_model, with_kwargs=True))
            for key in keys:
                self._hold(key, partial(self._modules.find(key).register_forward_hook, self._module_hook(key)))

    def _hold(self, name: object, register: Callable[[], RemovableHandle]) -> None:
        handle, users = self._hooks.get(name) or (register(), 0)
        self._hooks[name] = (handle, users + 1)

    def _release(self, names: tuple[object, ...]) -> None:
        with self._lock:
            for name in names:
                handle, users = self._hooks.pop(name)
                if users > 1:
                    self._hooks[name] = (handle, users - 1)
                else:
                    handle.remove()

    def _on_model(self, _module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        listener: TapListener | None = getattr(self._current, "listener", None)
        if listener is not None:
            listener.begin_forward(kwargs)

    def _module_hook(self, key: TensorKey) -> Callable[[nn.Module, Any, Any], None]:
        current = self._current

        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            listener: TapListener | None = getattr(current, "listener", None)
            if listener is not None:
                listener.capture(key, output)

        return hook


def _detach_nothing() -> None:
    pass
