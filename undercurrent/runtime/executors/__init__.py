"""Where the generations of a run take place: processes of this machine, or actors of a Ray cluster.

Both take an importable factory and keep what it makes, a `BatchGenerator` with its model loaded. `LocalExecutor` needs
nothing else; `RayExecutor` needs the extra `ray`. Either is the `model` of `runtime.pipeline.explain`, with
`max_inflight=executor.capacity`.
"""

from undercurrent.runtime.executors.errors import (
    ExecutorError,
    ExecutorLostError,
    ExecutorStartError,
    ExecutorTimeoutError,
    ExecutorUnavailableError,
    RemoteGenerationError,
)
from undercurrent.runtime.executors.factory import GeneratorFactory
from undercurrent.runtime.executors.local_executor import LocalExecutor
from undercurrent.runtime.executors.ray_executor import RayExecutor

__all__ = [
    "ExecutorError",
    "ExecutorLostError",
    "ExecutorStartError",
    "ExecutorTimeoutError",
    "ExecutorUnavailableError",
    "GeneratorFactory",
    "LocalExecutor",
    "RayExecutor",
    "RemoteGenerationError",
]
