"""What crosses between an engine and its workers: tensors in slots, and values in messages.

`describe` says what a ring reads a tensor from, `rebuild` gives it back as it was; `encode_value` and `decode_value` do
the same for verdicts, metadata and contexts. Nothing that is read is trusted.
"""

from undercurrent.workers.kinds import OPAQUE_KIND_MIN
from undercurrent.workers.payloads import describe, encode_opaque
from undercurrent.workers.rebuilding import (
    HEADER_DTYPE,
    load_libraries,
    load_libraries_of,
    rebuild,
    rebuild_form,
    rebuild_form_view,
    rebuild_view,
    stack,
)
from undercurrent.workers.references import MalformedValueError
from undercurrent.workers.value_reader import decode_value
from undercurrent.workers.value_writer import encode_value

__all__ = [
    "HEADER_DTYPE",
    "OPAQUE_KIND_MIN",
    "MalformedValueError",
    "decode_value",
    "describe",
    "encode_opaque",
    "encode_value",
    "load_libraries",
    "load_libraries_of",
    "rebuild",
    "rebuild_form",
    "rebuild_form_view",
    "rebuild_view",
    "stack",
]
