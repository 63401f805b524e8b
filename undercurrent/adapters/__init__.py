"""The doors of 0.1.0 to the engines, which live in `undercurrent.engines` now; importing this warns once.

`undercurrent.adapters.hf` has `HFEngineAdapter`, `undercurrent.adapters.vllm` has `VLLMEngineAdapter`.
"""

import warnings

from undercurrent.engines.base import EngineAdapter
from undercurrent.errors import MissingDependencyError

__all__ = ["EngineAdapter", "MissingDependencyError"]

# Each process imports a package once, so this is said once; the submodules import this package first.
warnings.warn(
    "`undercurrent.adapters` is now `undercurrent.engines`: use `EngineAdapter` and `HFEngine` from there",
    DeprecationWarning,
    stacklevel=2,
)
