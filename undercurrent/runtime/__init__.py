"""Many generations of one prompt with parts left out: run, asked once each, archived.

`InferenceScheduler` runs `CoalitionJob`s as an iterator gives them: `run` and `run_iter` with one call per job,
`run_batches` with a generator that takes several. Keys come from `build_coalition_key`; texts go to a `HotResultStore`
and, row by row, to a `RunArchive`, which counts a row when its commit returned, refuses a second writer, resumes, and
reads without writing. `ArchiveFollower` reads one while it grows. `PrefixCacheManager` keeps model states for prompts
that share a prefix.

`undercurrent.runtime.executors` runs generators in other processes and on other machines.

What others give is a protocol: `GenerateFn`, `BatchGenerator`, `Executor`, `RowSink`, `ManifestPayloadSource`,
`CoalitionProgress`, `ObservabilitySink`.
"""

from undercurrent.runtime.archive import (
    ARCHIVE_SCHEMA_VERSION,
    BASE_GENERATION_FILE,
    MANIFEST_SCHEMA_VERSION,
    RunArchive,
    check_manifest_schema_version,
    read_manifest_payload,
)
from undercurrent.runtime.archive_rows import CoalitionRecord, CoalitionRecordDraft
from undercurrent.runtime.dedup import CoalitionDedupRegistry, dedup_enabled
from undercurrent.runtime.domain import DedupConfig, DedupMode, GenerationConfig, GenerationRecord, ProbeValue
from undercurrent.runtime.errors import (
    ArchiveAccessError,
    ArchiveCorruptError,
    ArchiveError,
    ArchiveExistsError,
    ArchiveIncompleteError,
    ArchiveLockedError,
    ArchiveMismatchError,
    ArchiveNotFoundError,
    ArchiveStateError,
    ArchiveWriteError,
    GenerationTypeError,
    JobCancelledError,
    JobTimeoutError,
    ManifestVersionError,
)
from undercurrent.runtime.follow import ArchiveFollower, FollowState
from undercurrent.runtime.jobs import CoalitionJob, group_jobs_for_prefix_cache, prefix_order
from undercurrent.runtime.keys import build_coalition_key
from undercurrent.runtime.kv_cache import CroppableCache, PrefixCacheManager, build_snapshot_prefix_hash
from undercurrent.runtime.masking import PackedMask, pack_mask, unpack_mask
from undercurrent.runtime.metrics import PerfSummary, SchedulerMetrics
from undercurrent.runtime.progress import CoalitionProgress, NullCoalitionProgress
from undercurrent.runtime.protocols import (
    BatchGenerator,
    Executor,
    GenerateBatchFn,
    GenerateFn,
    ManifestPayloadSource,
    RowSink,
)
from undercurrent.runtime.retries import RetryPolicy
from undercurrent.runtime.scheduler import InferenceScheduler
from undercurrent.runtime.store import HotResultStore, StoredGeneration
from undercurrent.runtime.telemetry import (
    InMemoryObservabilitySink,
    NullObservabilitySink,
    ObservabilitySink,
    SpanRecord,
)

__all__ = [
    "ARCHIVE_SCHEMA_VERSION",
    "BASE_GENERATION_FILE",
    "MANIFEST_SCHEMA_VERSION",
    "ArchiveAccessError",
    "ArchiveCorruptError",
    "ArchiveError",
    "ArchiveExistsError",
    "ArchiveFollower",
    "ArchiveIncompleteError",
    "ArchiveLockedError",
    "ArchiveMismatchError",
    "ArchiveNotFoundError",
    "ArchiveStateError",
    "ArchiveWriteError",
    "BatchGenerator",
    "CoalitionDedupRegistry",
    "CoalitionJob",
    "CoalitionProgress",
    "CoalitionRecord",
    "CoalitionRecordDraft",
    "CroppableCache",
    "DedupConfig",
    "DedupMode",
    "Executor",
    "FollowState",
    "GenerateBatchFn",
    "GenerateFn",
    "GenerationConfig",
    "GenerationRecord",
    "GenerationTypeError",
    "HotResultStore",
    "InMemoryObservabilitySink",
    "InferenceScheduler",
    "JobCancelledError",
    "JobTimeoutError",
    "ManifestPayloadSource",
    "ManifestVersionError",
    "NullCoalitionProgress",
    "NullObservabilitySink",
    "ObservabilitySink",
    "PackedMask",
    "PerfSummary",
    "PrefixCacheManager",
    "ProbeValue",
    "RetryPolicy",
    "RowSink",
    "RunArchive",
    "SchedulerMetrics",
    "SpanRecord",
    "StoredGeneration",
    "build_coalition_key",
    "build_snapshot_prefix_hash",
    "check_manifest_schema_version",
    "dedup_enabled",
    "group_jobs_for_prefix_cache",
    "pack_mask",
    "prefix_order",
    "read_manifest_payload",
    "unpack_mask",
]
