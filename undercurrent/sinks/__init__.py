"""Sinks: where the signals and results of async probes go.

A router takes any object with `write_signal` and `write_result`. `FileLogSink` is a handle that travels to the workers,
which append to its file themselves; `WebhookLogSink` posts from a thread of the process that attached it. `LogSink` is
the base to build on, `redact_keys`, `drop_keys` and `chain` make the redactions it takes.
"""

from undercurrent.sinks.file_sink import FileLogSink
from undercurrent.sinks.jsonable import to_jsonable
from undercurrent.sinks.line_file import FileSinkError, FileSinkNotFoundError
from undercurrent.sinks.records import SCHEMA_VERSION, ResultRecord, SignalRecord
from undercurrent.sinks.redaction import DEFAULT_PROMPT_TEXT_KEYS, RedactFn, chain, drop_keys, redact_keys
from undercurrent.sinks.sink import LogSink, takes_record, wire_router
from undercurrent.sinks.webhook_outbox import WebhookCounts
from undercurrent.sinks.webhook_sink import WebhookLogSink

__all__ = [
    "DEFAULT_PROMPT_TEXT_KEYS",
    "SCHEMA_VERSION",
    "FileLogSink",
    "FileSinkError",
    "FileSinkNotFoundError",
    "LogSink",
    "RedactFn",
    "ResultRecord",
    "SignalRecord",
    "WebhookCounts",
    "WebhookLogSink",
    "chain",
    "drop_keys",
    "redact_keys",
    "takes_record",
    "to_jsonable",
    "wire_router",
]
