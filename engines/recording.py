"""`ActivationRecorder`: keeps what an engine captures, as `recording_format` describes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from undercurrent.core import ProbeResult, ProbeSignal, RequestContext
from undercurrent.core.whole_files import put_in_place, write_whole
from undercurrent.engines.base import RowRouter
from undercurrent.engines.recording_format import (
    FORMAT,
    MANIFEST_NAME,
    VERSION,
    Manifest,
    RecordedRequest,
    TensorName,
)
from undercurrent.engines.recording_shard import ShardBuilder, row_size_bytes
from undercurrent.errors import ProbingRuntimeError, ProbingValueError
from undercurrent.router import RowEntry
from undercurrent.spec import ExtractionPoint, ProbeSpec, TensorType, probe_spec_to_dict

__all__ = ["ActivationRecorder"]

_logger = logging.getLogger("undercurrent.engines")

_SHARD_BYTES_MAX = 64 << 20
_SHARD_RECORDS_MAX = 1 << 18


class ActivationRecorder:
    """Stands where an engine expects a router, and writes what is routed; with `router`, it passes everything on.

    Rows that several points of a request read are kept once. A full shard is written on the engine's thread. Methods
    may be called on any thread. `close` is idempotent; afterwards everything is passed on and nothing written.

    >>> import tempfile
    >>> from undercurrent.engines import SyntheticEngine
    >>> from undercurrent.spec import parse_yaml
    >>> spec = parse_yaml('''
    ... extraction_points:
    ...   - {name: p, layers: 1, tensor_type: mlp_out, position: "generated[*]", probe_type: any,
    ...      probe_kind: trajectory}
    ... ''')
    >>> engine = SyntheticEngine(layer_count=2, hidden_size=4)
    >>> with tempfile.TemporaryDirectory() as folder, ActivationRecorder(folder, spec, model_name="m") as recorder:
    ...     engine.register_extraction("r", list(spec))
    ...     text = engine.generate("r", "abc", {"max_new_tokens": 5}, recorder)
    ...     print(recorder.record_count)
    4
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        spec: ProbeSpec,
        *,
        model_name: str,
        router: RowRouter | None = None,
        keeps_prompts: bool = False,
        shard_bytes_max: int = _SHARD_BYTES_MAX,
    ) -> None:
        """Makes `folder`, which must not hold anything yet, and writes its manifest.

        Raises:
            ProbingValueError: the folder is not empty, or `shard_bytes_max` is below 1.
            OSError: it cannot be written.
        """
        if shard_bytes_max < 1:
            raise ProbingValueError(f"`shard_bytes_max` must be >= 1, got {shard_bytes_max!r}")
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise ProbingValueError(f"a recording needs a folder of its own, and {str(folder)!r} is not empty")
        keys = {(layer, TensorType(point.tensor_type).value) for point in spec for layer in point.layers}
        self._manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            model=model_name,
            started_at=time.time(),
            spec=probe_spec_to_dict(spec),
            tensors=tuple(TensorName(layer, word) for layer, word in sorted(keys)),
        )
        self._router = router
        self._keeps_prompts = keeps_prompts
        self._shard_bytes_max = shard_bytes_max
        self._current = threading.local()
        self._lock = threading.Lock()
        self._live: dict[str, RecordedRequest] = {}  # guarded by _lock, as all below
        self._step_count = 0
        self._shard = ShardBuilder()
        self._shard_count = 0
        self._record_count = 0
        self._is_closed = False
        self._error: OSError | None = None
        self._write_manifest(self._manifest)

    @property
    def record_count(self) -> int:
        """Records taken so far."""
        return self._record_count

    def register_request(
        self, request_id: str, extraction_points: Sequence[ExtractionPoint], ctx: RequestContext
    ) -> object:
        """Takes note of a request; raises what the router does."""
        answer = None
        if self._router is not None:
            answer = self._router.register_request(request_id, extraction_points, ctx)
        prompt = ctx.prompt_metadata.get("prompt")
        request = RecordedRequest(
            request_id,
            int(ctx.prompt_metadata.get("prompt_len", 0)),
            prompt if self._keeps_prompts and isinstance(prompt, str) else None,
        )
        with self._lock:
            if not self._is_closed:
                self._live[request_id] = request
                self._shard.add_event(request, is_end=False)
        return answer

    def step(self) -> AbstractContextManager[object]:
        """Begins a step; see `Router.step`."""
        with self._lock:
            self._step_count += 1
            # An engine's step is one thread's; other threads begin theirs meanwhile.
            self._current.step = self._step_count
        return nullcontext() if self._router is None else self._router.step()

    def route_rows(
        self, rows: Any, layer: int, tensor_type: TensorType | str, entries: list[RowEntry]
    ) -> list[ProbeSignal | None]:
        """Writes the rows of `entries`, each once, and passes the call on; see `Router.route_rows`.

        Where a shard cannot be written, recording ends, the log says why, and `close` raises it: the engine goes on.

        Raises:
            UnsupportedPayloadError: `rows` is no numpy array and no tensor of torch.
        """
        distinct: dict[tuple[str, int], tuple[int, bool]] = {}
        for index, entry in enumerate(entries):
            row = index if entry.row is None else entry.row
            distinct.setdefault((entry.request_id, entry.token_pos), (row, entry.is_generated))
        with self._lock:
            if not self._is_closed:
                try:
                    self._take(rows, layer, TensorType(tensor_type).value, distinct)
                except OSError as error:
                    self._error, self._is_closed = error, True
                    _logger.error("recording into %r ended: %s", str(self._folder), error)
        if self._router is None:
            return [None] * len(entries)
        return self._router.route_rows(rows, layer, tensor_type, entries)

    def end_request(self, request_id: str) -> dict[str, ProbeResult]:
        """Takes note of the end; what the router says of it, or nothing where there is none."""
        with self._lock:
            request = self._live.pop(request_id, None)
            if request is not None and not self._is_closed:
                self._shard.add_event(request, is_end=True)
        return {} if self._router is None else self._router.end_request(request_id)

    def close(self) -> None:
        """Writes what is left, and that the recording is complete. Idempotent.

        Raises:
            OSError: it cannot be written, or could not earlier.
        """
        with self._lock:
            if self._is_closed:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return
            self._is_closed = True
            self._write_shard()
            manifest = msgspec.structs.replace(
                self._manifest, is_complete=True, shard_count=self._shard_count, record_count=self._record_count
            )
            self._write_manifest(manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # ---- within, under the lock ------------------------------------------------------------------------------------

    def _take(self, rows: Any, layer: int, word: str, distinct: dict[tuple[str, int], tuple[int, bool]]) -> None:
        timestamp = time.time()
        items = [(*key, *value) for key, value in distinct.items()]
        row_size = row_size_bytes(rows)
        while items:
            room = max(0, self._shard_bytes_max - self._shard.size_bytes) // row_size
            room = min(room, _SHARD_RECORDS_MAX - self._shard.record_count)
            if room < 1 and self._shard.record_count:
                self._write_shard()
                continue
            # A row larger than a shard may be is a shard of its own.
            part, items = items[: max(room, 1)], items[max(room, 1) :]
            requests = [self._live.get(request_id) for request_id, *_ in part]
            if None in requests:
                raise ProbingRuntimeError("rows were routed for a request that was not registered at the recorder")
            self._shard.add_rows(
                rows,
                [row for *_, row, _ in part],
                requests=[request for request in requests if request is not None],
                layer=layer,
                tensor_type=word,
                step=getattr(self._current, "step", 0),
                positions=[position for _, position, *_ in part],
                is_generated=[is_generated for *_, is_generated in part],
                timestamp=timestamp,
            )
            self._record_count += len(part)

    def _write_shard(self) -> None:
        shard, self._shard = self._shard, ShardBuilder()
        if shard.is_empty:
            return
        path = self._folder / f"shard-{self._shard_count:06d}.safetensors"
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            shard.save(temporary)
            put_in_place(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._shard_count += 1

    def _write_manifest(self, manifest: Manifest) -> None:
        write_whole(self._folder / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
