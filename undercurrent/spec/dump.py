"""Specs back to plain dicts and YAML, with canonical keys and without what is the default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from undercurrent.errors import ProbingTypeError
from undercurrent.spec.point import ExtractionPoint, InterventionPolicy, ProbeSpec, Sample, Until
from undercurrent.spec.words import InterventionMode, OnError, UntilKind

__all__ = ["extraction_point_to_dict", "probe_spec_to_dict", "to_yaml"]

_FOLDED = re.compile("[\x85\u2028\u2029\ufeff]")


def extraction_point_to_dict(point: ExtractionPoint) -> dict[str, Any]:
    """The keys and values a spec file would hold for `point`; a single layer is an int, defaults are left out."""
    layers = list(point.layers)
    entry: dict[str, Any] = {
        "name": point.name,
        "layers": layers[0] if len(layers) == 1 else layers,
        "tensor_type": _word(point.tensor_type),
        "position": point.position.to_raw(),
        "probe_type": point.probe_type,
        "probe_kind": _word(point.probe_kind),
        "execution_mode": _word(point.execution_mode),
    }
    optional: dict[str, tuple[Any, Any]] = {
        "stride": (point.stride, None),
        "until": (_until(point.until), None),
        "queue_depth": (point.queue_depth, None),
        "intervention": (_intervention(point.intervention), None),
        "probe_args": (_plain(point.probe_args), {}),
        "overflow_policy": (_word(point.overflow_policy), None),
        "block_timeout_s": (point.block_timeout_s, None),
        "probe_timeout_s": (point.probe_timeout_s, None),
        "workers": (point.workers, 1),
        "batch": (point.batch, None),
        "on_error": (_word(point.on_error), OnError.RAISE.value),
        "threads": (point.threads, None),
        "gpu": (point.gpu, False),
        "sample": (_sample(point.sample), None),
    }
    for key, (value, default) in optional.items():
        if type(value) is not type(default) or value != default:
            entry[key] = value
    return entry


def probe_spec_to_dict(spec: ProbeSpec) -> dict[str, Any]:
    """The document of a spec file; `parse_dict` makes an equal spec of it."""
    points = [extraction_point_to_dict(point) for point in spec.extraction_points]
    return {"version": spec.version, "extraction_points": points}


def to_yaml(spec: ProbeSpec) -> str:
    """The spec as YAML; `parse_yaml` makes an equal spec of it, save that tuples in `probe_args` become lists.

    Raises:
        ProbingTypeError: `probe_args` hold a value YAML has no form for.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    # YAML folds these as it folds newlines, unless they are escaped, which it does between double quotes only.
    Dumper.add_representer(
        str,
        lambda dumper, value: dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style='"' if _FOLDED.search(value) else None
        ),
    )
    try:
        text: str = yaml.dump(probe_spec_to_dict(spec), Dumper=Dumper, sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise ProbingTypeError(
            f"`probe_args` must hold plain values to be written as YAML, got {type(error.args[-1]).__name__}"
        ) from None
    return text


def _word(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _until(until: UntilKind | Until | None) -> Any:
    if until is None or not isinstance(until, Until):
        return _word(until)
    return _word(until.kind) if until.kind is UntilKind.GENERATION_END else {_word(until.kind): until.value}


def _intervention(policy: InterventionPolicy | None) -> Any:
    if not isinstance(policy, InterventionPolicy):
        return policy
    entry: dict[str, Any] = {"mode": _word(policy.mode)}
    if policy.timeout_ms is not None:
        entry["timeout_ms"] = policy.timeout_ms
    # Written with the mode it belongs to, and where it says something the mode would refuse.
    if policy.mode == InterventionMode.BLOCK_UNTIL_SIGNAL or _word(policy.on_timeout) != "continue":
        entry["on_timeout"] = _word(policy.on_timeout)
    return entry


def _sample(sample: Sample | None) -> Any:
    return {"rate": sample.rate, "by": _word(sample.by)} if isinstance(sample, Sample) else sample


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return _word(value)
