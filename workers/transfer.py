"""How a probe definition gets into a worker process: by reference where the worker finds the same class, else by value.

Runs in the engine's process (`pack_point`) and in the worker (`unpack_point`). By value means `cloudpickle`, over a
private socket between two processes of one owner; the daemon does not use this module.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from undercurrent.core import Probe, ProbeFactory
from undercurrent.errors import ProbeTransferError, UndercurrentError
from undercurrent.spec import ExtractionPoint

_pickle_lock = threading.Lock()  # cloudpickle's register of by-value modules is one per process


class ProbeMismatchError(UndercurrentError, ImportError):
    """The worker imported another file than the one the engine's class came from."""


class PackedPoint(msgspec.Struct, frozen=True):
    """A probe definition ready to travel."""

    data: bytes
    digest: bytes
    """Equal for equal definitions; names the point in the worker."""
    worker_key: bytes
    """Equal for equal (probe class, arguments, point name): such bindings may share a worker's interpreter."""


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    module: str
    origin: str
    """File of the class's module, or "" where the class travels by value."""
    bare_point: bytes
    """The point without its `probe_args`: it loads even where the probe's module does not."""
    body: bytes


def pack_point(factory: ProbeFactory, point: ExtractionPoint) -> PackedPoint:
    """Returns the definition of `point`'s probe as bytes.

    Raises:
        ProbeTransferError: an attribute or argument cannot be pickled; the message names it and the way out.
    """
    probe_cls = factory.probe_cls
    origin = _origin_for_worker(probe_cls)
    try:
        with _pickle_lock, _pickled_by_value(probe_cls, is_by_value=origin == ""):
            body = cloudpickle.dumps((factory, point))
            identity = cloudpickle.dumps((probe_cls, sorted(_arguments(factory, point).items()), point.name))
    except Exception as error:
        raise ProbeTransferError(_explain(factory, point, error)) from error
    bare_point = pickle.dumps(dataclasses.replace(point, probe_args={}))
    envelope = _Envelope(probe_cls.__module__, origin, bare_point, body)
    data = msgspec.msgpack.encode(envelope)
    return PackedPoint(data, hashlib.sha256(data).digest(), hashlib.sha256(identity).digest())


def unpack_bare_point(data: bytes) -> ExtractionPoint:
    """Returns the point of `pack_point`'s bytes without its arguments; needs no user code."""
    point: ExtractionPoint = pickle.loads(msgspec.msgpack.decode(data, type=_Envelope).bare_point)
    return point


def unpack_point(data: bytes) -> tuple[ProbeFactory, ExtractionPoint]:
    """Returns what `pack_point` packed; called in the worker.

    Raises:
        ProbeMismatchError: the module is another file here than in the engine's process.
        Exception: whatever importing the probe's module raises.
    """
    envelope = msgspec.msgpack.decode(data, type=_Envelope)
    if envelope.origin:
        module = importlib.import_module(envelope.module)
        found = getattr(module, "__file__", None) or ""
        if not _is_same_file(found, envelope.origin):
            raise ProbeMismatchError(
                f"module `{envelope.module}` was expected from {envelope.origin!r}, the worker imported {found!r}; "
                "put the right folder first on `sys.path` before the router starts"
            )
    factory, point = pickle.loads(envelope.body)
    return factory, point


def _arguments(factory: ProbeFactory, point: ExtractionPoint) -> dict[str, Any]:
    return {**factory.probe_kwargs, **point.probe_args}


def _origin_for_worker(probe_cls: Any) -> str:
    """Returns the file a worker will import a class or function from, or "" where it must travel by value."""
    name = probe_cls.__module__
    module = sys.modules.get(name)
    if name == "__main__" or module is None or "<locals>" in probe_cls.__qualname__:
        return ""
    found: Any = module
    for part in probe_cls.__qualname__.split("."):
        found = getattr(found, part, None)
    origin = getattr(module, "__file__", None)
    if found is not probe_cls or not origin:
        return ""
    spec = _find_spec(name)
    return origin if spec is not None and spec.origin and _is_same_file(spec.origin, origin) else ""


def is_found_by_worker(named: Any) -> bool:
    """Whether a worker finds the same class or function under its name, in the same file."""
    return _origin_for_worker(named) != ""


def _find_spec(name: str) -> ModuleSpec | None:
    """Finds `name` as a fresh process would: by the finders, not by `sys.modules`."""
    path: Any = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find_with_finders(".".join(parts[:depth]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if depth < len(parts) and path is None:
            return None
    return spec


def _find_with_finders(name: str, path: Any) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec: ModuleSpec | None = find_spec(name, path) if find_spec else None
        except Exception:  # a broken finder of another package must not stop a registration
            continue
        if spec is not None:
            return spec
    return None


def _is_same_file(left: str, right: str) -> bool:
    try:
        return Path(left).resolve() == Path(right).resolve()
    except OSError:
        return False


class _pickled_by_value:  # noqa: N801 - reads as a clause of a `with` statement
    """Makes cloudpickle send `probe_cls`'s module by value while the block runs."""

    def __init__(self, probe_cls: type[Probe], *, is_by_value: bool) -> None:
        module = sys.modules.get(probe_cls.__module__)
        needs = is_by_value and probe_cls.__module__ != "__main__" and module is not None
        registered = cloudpickle.list_registry_pickle_by_value()
        self._module = module if needs and probe_cls.__module__ not in registered else None

    def __enter__(self) -> None:
        if self._module is not None:
            cloudpickle.register_pickle_by_value(self._module)

    def __exit__(self, *_: object) -> None:
        if self._module is not None:
            cloudpickle.unregister_pickle_by_value(self._module)


def _explain(factory: ProbeFactory, point: ExtractionPoint, error: Exception) -> str:
    probe_cls = factory.probe_cls
    culprit = next(_culprits(factory, point), f"class `{probe_cls.__qualname__}`")
    return (
        f"the probe of point {point.name!r} must be able to travel to a worker process, but {culprit} cannot be "
        f"pickled ({type(error).__name__}: {error}); create it in `__init__` or `on_start`, which run in the worker, "
        'or debug with `Router(worker_mode="thread")`'
    )


def _culprits(factory: ProbeFactory, point: ExtractionPoint) -> Iterator[str]:
    for name, value in _arguments(factory, point).items():
        if not _can_pickle(value):
            yield f"argument `{name}` ({type(value).__name__})"
    for name, value in vars(factory.probe_cls).items():
        if not name.startswith("__") and not callable(value) and not _can_pickle(value):
            yield f"class attribute `{factory.probe_cls.__qualname__}.{name}` ({type(value).__name__})"
    for name, function in vars(factory.probe_cls).items():
        for variable, value in _captured(function).items():
            if not _can_pickle(value):
                yield f"variable `{variable}` ({type(value).__name__}), used by `{name}`,"


def _captured(function: Any) -> Mapping[str, Any]:
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    closure = function.__closure__ or ()
    cells = {}
    for name, cell in zip(code.co_freevars, closure, strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # a cell that is not filled yet, such as `__class__` of a class under construction
            continue
    names = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    return {**names, **cells}


def _can_pickle(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
