"""The folder of a decision model in the layout of laya 0.4.15: its files, checked before anything is made of them.

    rl_agent_config.json   lengths, heads, temperatures: `LayaConfig`
    model.safetensors      every parameter, by the names of `DecisionNetwork`
    encoder/config.json    the encoder, as transformers writes it
    tokenizer/             its tokenizer, as transformers writes it

A calibration file, which may lie anywhere, replaces the temperatures of the first.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from undercurrent.engines.checkpoint_calibration import Calibration
from undercurrent.predict.errors import PredictError, PredictValueError

__all__ = [
    "Binning",
    "CheckpointFileNotFoundError",
    "LayaCalibration",
    "LayaConfig",
    "calibration_of",
    "find_files",
    "read_calibration",
    "read_config",
    "verify_digests",
]

CONFIG_NAME = "rl_agent_config.json"
WEIGHTS_NAME = "model.safetensors"
_FILES = (CONFIG_NAME, WEIGHTS_NAME, "encoder/config.json", "tokenizer/tokenizer_config.json")
_TYPES = ("choice", "score", "noul")
# The reach of a temperature in that package. Published folders hold 0.1006 for `choice:11+`, which would make 0.99 of
# a probability of 0.24.
_TEMPERATURE_MIN, _TEMPERATURE_MAX = 0.5, 5.0

StructT = TypeVar("StructT", bound=msgspec.Struct)
_Temperatures = tuple[float, float, float]


class CheckpointFileNotFoundError(PredictError, FileNotFoundError):
    """A checkpoint's folder lacks a file."""


class LayaConfig(msgspec.Struct, frozen=True):
    """`rl_agent_config.json`; what training wrote there besides is passed over."""

    encoder: str
    """Where the encoder came from; only named in errors."""
    head_layers: Annotated[int, msgspec.Meta(ge=0)]
    max_len: Annotated[int, msgspec.Meta(ge=1)] = 512
    head_max_len: Annotated[int, msgspec.Meta(ge=1)] = 192
    act_costs: dict[str, Any] = {}
    """Actions besides answering; the network has one output more."""
    temperature: _Temperatures = (1.0, 1.0, 1.0)
    """Of choice, score and noul."""
    temperature_by_options: dict[str, float] = {}
    """By bucket, such as `choice:3-5`."""
    option_layout: Literal["sequential", "parallel"] = "sequential"
    """`parallel`: all options stand at one position and do not see each other, so that their order changes nothing."""


class Binning(msgspec.Struct, frozen=True):
    """What a bucket's confidences become: the value of the bin, of equal width, that they fall into."""

    bins: Annotated[int, msgspec.Meta(ge=1)]
    values: list[Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]]

    def __post_init__(self) -> None:
        if len(self.values) != self.bins:
            raise ValueError(f"`values` must hold one number per bin, {self.bins}, got {len(self.values)}")

    def value(self, confidence: float) -> float:
        """The recalibrated confidence."""
        return self.values[min(self.bins - 1, int(confidence * self.bins))]


class LayaCalibration(msgspec.Struct, frozen=True):
    """A calibration file of that package."""

    temperature: _Temperatures
    temperature_by_options: dict[str, float] | None = None
    binning_map: dict[str, Binning] | None = None


def find_files(folder: Path) -> None:
    """Says whether a folder has the files of a decision model.

    Raises:
        CheckpointFileNotFoundError: names what it lacks.
    """
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointFileNotFoundError(
            f"the folder {str(folder)!r} lacks {', '.join(map(repr, missing))} of the files of a decision model,"
            f" {', '.join(map(repr, _FILES))}; nothing is downloaded in their place"
        )


def verify_digests(folder: Path, expected: Mapping[str, str]) -> None:
    """Compares files with the SHA-256 digests they should have, before one of them is read.

    Args:
        expected: hex digest by path relative to `folder`.

    Raises:
        CheckpointFileNotFoundError: a file is missing.
        PredictValueError: a file is another, or a path leads out of the folder.
    """
    for name, digest in expected.items():
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise PredictValueError(f"`expected_sha256` takes paths within the checkpoint's folder, got {name!r}")
        file = folder / path
        if not file.is_file():
            raise CheckpointFileNotFoundError(
                f"`expected_sha256` names {name!r}, and there is no such file in {str(folder)!r}"
            )
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != digest.strip().lower():
            raise PredictValueError(
                f"{str(file)!r} must have the SHA-256 digest {digest!r}, got {found!r}: it is another file, or damaged;"
                " nothing was loaded"
            )


def read_config(folder: Path) -> LayaConfig:
    """Reads `rl_agent_config.json`.

    Raises:
        PredictValueError: it is no such file; the message names the path within.
    """
    return _read(folder / CONFIG_NAME, LayaConfig)


def read_calibration(path: Path) -> LayaCalibration:
    """Reads a calibration file, of either version.

    Raises:
        CheckpointFileNotFoundError: there is none.
        PredictValueError: it is no such file.
    """
    if not path.is_file():
        raise CheckpointFileNotFoundError(f"a calibration file was expected at {str(path)!r}, and there is none")
    return _read(path, LayaCalibration)


def calibration_of(temperatures: _Temperatures, by_options: Mapping[str, float], *, where: str) -> Calibration:
    """Temperatures as they are used: what is out of reach is brought to its nearest end, with a warning.

    Args:
        where: what the warning names.

    Raises:
        PredictValueError: a temperature is not finite.
    """
    given = {**dict(zip(_TYPES, temperatures, strict=True)), **by_options}
    unusable = next((name for name, value in given.items() if not math.isfinite(value)), None)
    if unusable is not None:
        raise PredictValueError(f"a finite temperature was expected for {unusable!r} of {where}")
    used = {name: min(_TEMPERATURE_MAX, max(_TEMPERATURE_MIN, value)) for name, value in given.items()}
    changed = [f"{name} {given[name]:g} -> {value:g}" for name, value in used.items() if value != given[name]]
    if changed:
        warnings.warn(
            f"{where} has temperatures outside {_TEMPERATURE_MIN:g} to {_TEMPERATURE_MAX:g}: {', '.join(changed)}; the"
            " confidences they give are not calibrated",
            RuntimeWarning,
            stacklevel=3,
        )
    return Calibration(used)


def _read(path: Path, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PredictValueError(f"{str(path)!r} cannot be read as {kind.__name__}: {error}") from error
