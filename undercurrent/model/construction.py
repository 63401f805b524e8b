"""What `ProbedModel` checks and builds before it can generate; what can fail early fails before weights are loaded."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from undercurrent.engines.base import EngineAdapter, EngineCapabilities, EngineLimitationError
from undercurrent.errors import (
    MissingDependencyError,
    ProbedModelConfigError,
    ProbingTypeError,
    ProbingValueError,
    RouterError,
    did_you_mean,
    one_of,
)
from undercurrent.router import Router
from undercurrent.spec import ExtractionPoint, ProbeSpec, TensorType, load_spec
from undercurrent.spec.load import SpecSource

__all__ = [
    "SpecInput",
    "check_backend",
    "check_concurrency",
    "check_points",
    "load_engine",
    "make_router",
    "read_spec",
    "refuse_problems",
]

SpecInput = SpecSource | Sequence[ExtractionPoint] | None
"""Whatever says what is read; None reads nothing."""

_BACKENDS = ("hf", "vllm")
_HF_TENSOR_TYPES = frozenset(TensorType) - {TensorType.KV}


def read_spec(spec: SpecInput) -> ProbeSpec:
    """The spec in `spec`.

    Raises:
        SpecValidationError: it has problems; all of them are listed.
        ProbedModelConfigError: two points of a list share a name.
        ProbingTypeError: it is none of the accepted kinds, or something in a list is no extraction point.
    """
    if spec is None:
        return ProbeSpec("1", ())
    if not isinstance(spec, list | tuple):
        return load_spec(spec)  # type: ignore[arg-type] # load_spec explains what else it is given
    strangers = [point for point in spec if not isinstance(point, ExtractionPoint)]
    if strangers:
        raise ProbingTypeError(f"a list as `spec` must hold `ExtractionPoint`s only, got {strangers[0]!r}")
    names = [point.name for point in spec]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ProbedModelConfigError(
            f"extraction points need names of their own, as results are keyed by name; used twice: {', '.join(twice)}"
        )
    return ProbeSpec("1", tuple(spec))


def make_router(
    router: Router | None, *, probes: Any, router_kwargs: Mapping[str, Any] | None, metrics_sink: Any
) -> Router:
    """The router that was passed, or one of our own.

    Raises:
        ProbingValueError: a router and what would configure one, or two metrics sinks.
    """
    if router is not None:
        if probes is not None or router_kwargs is not None:
            raise ProbingValueError(
                "`router` cannot be combined with `probes` or `router_kwargs`; configure the router that you pass, or"
                " leave `router` out"
            )
        if metrics_sink is not None:
            router.attach_metrics_sink(metrics_sink)
        return router
    arguments = dict(router_kwargs or {})
    if metrics_sink is not None:
        if arguments.get("metrics_sink") is not None:
            raise ProbingValueError("`metrics_sink` was given twice, the second time in `router_kwargs`; give it once")
        arguments["metrics_sink"] = metrics_sink
    return Router(probes, **arguments)


def check_concurrency(max_concurrency: int | None, backend: str | EngineAdapter) -> int:
    """How many generate calls one list may run side by side.

    Raises:
        ProbingValueError: it is no integer >= 1.
        ProbedModelConfigError: more than 1 on Hugging Face.
    """
    if max_concurrency is None:
        return 1 if isinstance(backend, str) else int(getattr(backend, "max_concurrency", 1))
    if not isinstance(max_concurrency, int) or isinstance(max_concurrency, bool) or max_concurrency < 1:
        raise ProbingValueError(f"`max_concurrency` must be an integer >= 1, got {max_concurrency!r}")
    if max_concurrency > 1 and (backend == "hf" or getattr(backend, "reads_transformers_arguments", False)):
        raise ProbedModelConfigError(
            f"`max_concurrency` must be 1 with backend 'hf', got {max_concurrency}: a list runs as one batch after the"
            " other there; its size is `batch_size`"
        )
    return max_concurrency


def check_points(spec: ProbeSpec, router: Router, *, model: Any, backend: str | EngineAdapter, loading: Any) -> bool:
    """Checks what can be known before the model is loaded, starts the workers that the spec needs, and says whether it
    needs any.

    Raises:
        ProbedModelConfigError: a probe type is unknown or of another kind, or a tensor type or layer does not exist.
        ProbeTransferError: an async probe cannot travel to a worker.
    """
    try:
        needs_workers = router.check(spec)
    except RouterError as error:
        raise ProbedModelConfigError(str(error)) from error
    layer_count = _count_layers(model, loading) if backend == "hf" else None
    if layer_count is not None:
        refuse_problems(spec, EngineCapabilities(layer_count, 0, _HF_TENSOR_TYPES))
    if needs_workers:
        has_tensors = backend == "hf" or getattr(backend, "reads_transformers_arguments", False)
        router.prewarm(spec, loads_torch=has_tensors)
    return needs_workers


def load_engine(
    backend: str | EngineAdapter, spec: ProbeSpec, *, model: Any, device: str | None, loading: Mapping[str, Any]
) -> EngineAdapter:
    """An engine with a model that gives what `spec` reads.

    Raises:
        ProbedModelConfigError: it does not.
        MissingDependencyError: what the backend needs is not there.
    """
    options = dict(loading) if device is None else {"device": device, **loading}
    if isinstance(backend, EngineAdapter):
        engine = backend
    else:
        from undercurrent.engines import HFEngine

        engine = HFEngine()
    if model is not None:
        engine.load_model(model, **options)
    elif options:
        raise ProbingTypeError(f"without a `model` nothing is loaded, so {', '.join(map(repr, options))} has no use")
    try:
        capabilities = engine.capabilities
    except EngineLimitationError:
        # An adapter written for 0.1.0 checks points when they are registered.
        return engine
    refuse_problems(spec, capabilities)
    if getattr(engine, "reads_transformers_arguments", False) and getattr(engine, "tokenizer", None) is None:
        raise ProbedModelConfigError("a model object needs its `tokenizer`; pass `tokenizer=`")
    return engine


def check_backend(backend: str | EngineAdapter, *, model: Any, device: str | None) -> None:
    """Refuses what is no backend, or one that this release does not have.

    Raises:
        ProbingTypeError: neither a name nor an engine, or a model object for vLLM.
        ProbingValueError: an unknown name, or no model for a known one.
        ProbedModelConfigError: vLLM on a device that is not CUDA's.
        MissingDependencyError: vLLM.
    """
    if isinstance(backend, EngineAdapter):
        return
    if not isinstance(backend, str):
        raise ProbingTypeError(
            f"`backend` must be {one_of(_BACKENDS)} or an `EngineAdapter` instance, got {type(backend).__name__}"
        )
    if backend not in _BACKENDS:
        raise ProbingValueError(
            f"`backend` must be {one_of(_BACKENDS)}, got {backend!r}{did_you_mean(backend, _BACKENDS)}"
        )
    if model is None:
        raise ProbingValueError("`model` must be a name, a folder or a model object; None needs a loaded engine")
    if backend == "hf":
        return
    if device is not None and device.partition(":")[0] != "cuda":
        raise ProbedModelConfigError(f"backend 'vllm' runs on CUDA devices, got `device` {device!r}; leave it out")
    if not isinstance(model, str | os.PathLike):
        raise ProbingTypeError(
            f"backend 'vllm' takes a model's name or folder, got a {type(model).__name__}; use backend 'hf' for objects"
        )
    raise MissingDependencyError(
        "this release of undercurrent has no vLLM engine; use backend='hf', or pass an `EngineAdapter` of your own",
        name="vllm",
    )


def _count_layers(model: Any, loading: Mapping[str, Any]) -> int | None:
    """Decoder layers as the configuration of a model that is still to be loaded tells; None where it does not."""
    if not isinstance(model, str | os.PathLike):
        return None
    # Asked of the package first, which names a missing torch in our words.
    importlib.import_module("undercurrent.engines").HFEngine  # noqa: B018
    from undercurrent.engines.hf_loading import read_layer_count

    return read_layer_count(os.fspath(model), loading)


def refuse_problems(spec: ProbeSpec, capabilities: EngineCapabilities) -> None:
    """Refuses a spec that reads what an engine does not give.

    Raises:
        ProbedModelConfigError: with every problem of every point.
    """
    problems = [problem for point in spec for problem in capabilities.find_problems(point)]
    if problems:
        raise ProbedModelConfigError("; ".join(problems))
