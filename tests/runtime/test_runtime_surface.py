"""The names of the runtime's page, its small values, its store, its sinks, and what importing it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_jobs import make_job

from undercurrent import runtime
from undercurrent.errors import UndercurrentError
from undercurrent.runtime import (
    CoalitionProgress,
    Executor,
    HotResultStore,
    InMemoryObservabilitySink,
    NullCoalitionProgress,
    NullObservabilitySink,
    ObservabilitySink,
    PerfSummary,
    SchedulerMetrics,
    SpanRecord,
    errors,
)

PAGE = """InferenceScheduler SchedulerMetrics CoalitionJob build_coalition_key CoalitionDedupRegistry dedup_enabled
HotResultStore RunArchive ArchiveExistsError ArchiveNotFoundError ArchiveCorruptError ManifestVersionError
ARCHIVE_SCHEMA_VERSION MANIFEST_SCHEMA_VERSION read_manifest_payload check_manifest_schema_version PrefixCacheManager
CroppableCache build_snapshot_prefix_hash group_jobs_for_prefix_cache ObservabilitySink NullObservabilitySink
InMemoryObservabilitySink SpanRecord CoalitionProgress NullCoalitionProgress PerfSummary BASE_GENERATION_FILE
CoalitionRecord CoalitionRecordDraft"""
BY_MODULE = {
    "archive": "ARCHIVE_SCHEMA_VERSION MANIFEST_SCHEMA_VERSION read_manifest_payload check_manifest_schema_version "
    "ManifestPayloadSource BASE_GENERATION_FILE RunArchive CoalitionRecord CoalitionRecordDraft",
    "kv_cache": "CroppableCache PrefixCacheManager build_snapshot_prefix_hash",
    "scheduler": "GenerateFn InferenceScheduler",
    "store": "StoredGeneration HotResultStore",
}


@pytest.mark.parametrize("name", PAGE.split())
def test_the_page_s_names_are_there(name: str) -> None:
    assert name in runtime.__all__
    assert getattr(runtime, name) is not None


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in BY_MODULE for name in BY_MODULE[module].split()]
)
def test_names_are_where_users_of_the_published_package_import_them(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"undercurrent.runtime.{module}"), name)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_one_of_ours_and_a_builtin(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, UndercurrentError)
    assert name == "ArchiveError" or any(base.__module__ == "builtins" for base in kind.__mro__[1:-3])


def test_importing_the_runtime_loads_no_array_or_model_library() -> None:
    question = (
        "import sys, undercurrent.runtime; print({'numpy', 'torch', 'shapiq', 'undercurrent.core'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", question], capture_output=True, text=True, timeout=30)
    assert answer.stdout.strip() == "set()", answer.stderr


def test_metrics_leave_the_key_value_counters_to_the_pipeline() -> None:
    metrics = SchedulerMetrics(requested=3, executed=1, deduplicated=1, cache_hits=1)
    assert (metrics.kv_cache_hits, metrics.kv_cache_reused_tokens) == (0, 0)
    with pytest.raises(AttributeError):
        metrics.requested = 4  # type: ignore[misc]


def test_a_job_carries_what_the_page_says_and_is_frozen() -> None:
    job = make_job(5, prefix_hash="h")
    assert (job.snapshot_id, job.snapshot, job.absence_policy, job.model_id) == (
        "snapshot-1",
        "prompt 5",
        "delete",
        "model-1",
    )
    assert (job.mask.words, job.mask.n_bits, job.prefix_hash) == (b"\x05", 8, "h")
    with pytest.raises(AttributeError):
        job.prefix_hash = "i"  # type: ignore[misc]


def test_spans_are_recorded_in_the_order_in_which_they_end_also_when_they_raise() -> None:
    sink = InMemoryObservabilitySink()

    def fail() -> None:
        with sink.span("inner"):
            raise KeyError

    with sink.span("outer"), pytest.raises(KeyError):
        fail()
    assert [span.name for span in sink.spans] == ["inner", "outer"]
    assert 0 <= sink.spans[0].duration_ms <= sink.spans[1].duration_ms
    assert isinstance(sink.spans[0], SpanRecord)


def test_the_null_sinks_do_nothing_and_are_what_the_protocols_ask_for() -> None:
    sink, progress = NullObservabilitySink(), NullCoalitionProgress()
    assert isinstance(sink, ObservabilitySink)
    assert isinstance(InMemoryObservabilitySink(), ObservabilitySink)
    assert isinstance(progress, CoalitionProgress)
    with sink.span("anything"):
        progress.on_coalitions_planned(3)
        progress.on_coalition_finished(1, 3)


def test_a_perf_summary_says_where_the_time_went() -> None:
    assert PerfSummary(total_ms=3.0, generation_ms=2.0, scoring_ms=0.5, aggregation_ms=0.5).total_ms == 3.0


def test_an_executor_is_a_batch_generator_with_a_life() -> None:
    class Local:
        capacity = 2

        async def start(self) -> None: ...
        async def aclose(self) -> None: ...
        async def generate_batch(self, jobs: object) -> list[str]:
            return []

    assert isinstance(Local(), Executor)
    assert not isinstance(object(), Executor)


def test_the_store_forgets_the_least_recently_used() -> None:
    store = HotResultStore(maxsize=2)
    store.put("a", "1", (-0.5,))
    store.put("b", "2")
    assert store.get("a") == "1"
    store.put("c", "3")
    assert (store.get("b"), store.get("a"), store.get("c")) == (None, "1", "3")
    assert (len(store), "a" in store, "b" in store) == (2, True, False)
    assert (store.logprobs("a"), store.logprobs("c"), store.logprobs("b")) == ((-0.5,), None, None)


def test_looking_at_logprobs_is_no_use() -> None:
    store = HotResultStore(maxsize=2)
    store.put("a", "1")
    store.put("b", "2")
    store.logprobs("a")
    store.entry("a")
    store.put("c", "3")
    assert store.get("a") is None


def test_an_empty_text_is_a_hit_and_sizes_have_their_meanings() -> None:
    store = HotResultStore(maxsize=None)
    for number in range(500):
        store.put(str(number), "")
    assert (len(store), store.get("0")) == (500, "")
    nothing = HotResultStore(maxsize=0)
    nothing.put("a", "1")
    assert (len(nothing), nothing.get("a")) == (0, None)
    assert HotResultStore().maxsize == 128
    with pytest.raises(ValueError, match="`maxsize` must be >= 0"):
        HotResultStore(maxsize=-1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))), st.integers(0, 4))
def test_the_store_agrees_with_a_list_of_uses(steps: list[tuple[bool, int]], maxsize: int) -> None:
    store = HotResultStore(maxsize=maxsize)
    uses: list[str] = []
    for is_put, number in steps:
        key = str(number)
        if is_put:
            store.put(key, key)
        else:
            assert store.get(key) == (key if key in uses else None)
        if is_put or key in uses:
            uses = [*(use for use in uses if use != key), key][-maxsize:] if maxsize else []
    assert len(store) == len(uses)


def test_the_runtime_does_not_know_the_pipeline_that_stands_on_it() -> None:
    folder = Path(runtime.__file__).parent
    modules = [*folder.glob("*.py"), *(folder / "domain").glob("*.py")]
    assert len(modules) > 20
    assert [module.name for module in modules if "runtime.pipeline" in module.read_text()] == []
