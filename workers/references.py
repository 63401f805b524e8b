"""Classes that cross a process border by name: enums, dataclasses, Structs, named tuples.

A class travels as `(module, qualified name)` where the reader finds the same class under that name. Nothing of the
class is called when a dataclass is rebuilt: like pickle, the fields are set on a bare instance.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import importlib
import sys
from typing import Any

import msgspec

from undercurrent.errors import UndercurrentError

__all__ = ["MalformedValueError", "find_class", "is_rebuilt_by_fields", "reference_to"]

_QUALNAME_PARTS_MAX = 16


class MalformedValueError(UndercurrentError, ValueError):
    """Bytes that should hold a value hold something else, or name a class that cannot be found here."""


def reference_to(cls: type) -> tuple[str, str] | None:
    """Returns the name under which another process finds `cls`, None where there is none.

    `__main__` is another module in every process, and `<locals>` cannot be looked up.
    """
    module, qualname = cls.__module__, cls.__qualname__
    if module == "__main__" or "<locals>" in qualname:
        return None
    return (module, qualname) if _look_up(sys.modules.get(module), qualname) is cls else None


def find_class(module: str, qualname: str, *, is_import_allowed: bool) -> type:
    """Returns the class that `reference_to` named.

    Without `is_import_allowed` only modules that this process has imported already are looked at, so that bytes from
    another process cannot make this one run a module.

    Raises:
        MalformedValueError: there is no such class.
    """
    found: Any = sys.modules.get(module)
    if found is None:
        if not is_import_allowed:
            raise MalformedValueError(
                f"class `{module}.{qualname}` is needed to rebuild a value, but `{module}` is not imported here and "
                "must not be imported because of a value; import it in this process first"
            )
        try:
            found = importlib.import_module(module)
        except Exception as error:
            raise MalformedValueError(f"module `{module}` of a value cannot be imported here: {error}") from error
    found = _look_up(found, qualname)
    if not isinstance(found, type):
        raise MalformedValueError(f"a value is of class `{module}.{qualname}`, which does not exist in this process")
    return found


def _look_up(holder: Any, qualname: str) -> Any:
    """Finds a class without `getattr`: modules and classes may run code, or import modules, for a name they lack."""
    for part in qualname.split(".", _QUALNAME_PARTS_MAX):
        holder = getattr(holder, "__dict__", {}).get(part)
    return holder


def is_rebuilt_by_fields(cls: type) -> bool:
    """Whether the fields of `cls`, a dataclass, are all there is to its instances.

    A base such as `dict` or `Exception` holds a state of its own, and a class that defines how it is pickled means it.
    """
    if not dataclasses.is_dataclass(cls):
        return False
    if cls.__reduce__ is not object.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__:
        return False
    return not any(
        (base is not object and base.__module__ == builtins.__name__) or issubclass(base, (msgspec.Struct, enum.Enum))
        for base in cls.__mro__
    )
