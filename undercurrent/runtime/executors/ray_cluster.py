"""The connection of one executor to a Ray cluster, and what of Ray's interface it uses."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any

from undercurrent.errors import MissingDependencyError
from undercurrent.runtime.executors.errors import ExecutorUnavailableError

__all__ = ["RayCluster"]

_KNOCK_S = 5.0


class RayCluster:
    """Connects once; disconnects only what it connected."""

    def __init__(self, address: str, namespace: str, runtime_env: Mapping[str, object] | None) -> None:
        self._address = address
        self._namespace = namespace
        self._runtime_env = dict(runtime_env or {})
        self._ray: Any = None
        self._is_owner = False

    @property
    def errors(self) -> Any:
        """The module `ray.exceptions`."""
        return self._ray.exceptions

    async def connect(self, timeout_s: float) -> None:
        """Imports Ray and joins the cluster as a driver, unless this process is one.

        Raises:
            MissingDependencyError: Ray is not installed.
            ExecutorUnavailableError: nobody answers, or the token is refused.
        """
        self._ray = _import_ray()
        if self._ray.is_initialized():
            return
        if not self._address.startswith("ray://") and self._address not in ("auto", "local"):
            await _knock(self._address)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._init)
        except TimeoutError as error:
            raise ExecutorUnavailableError(
                f"the Ray cluster at {self._address!r} did not take this driver within {timeout_s:g} s"
            ) from error
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise self._refusal(error) from error
        self._is_owner = True

    def make_actor(self, kind: type, options: Mapping[str, Any], *args: object) -> Any:
        """Asks for an actor and returns at once; a name that is taken gives the actor that has it."""
        return self._ray.remote(kind).options(namespace=self._namespace, **options).remote(*args)

    def cancel(self, asked: Any) -> None:
        """Asks the actor to end a call."""
        self._ray.cancel(asked)

    def kill(self, actor: Any) -> None:
        """Ends an actor for good, whatever it does."""
        try:
            self._ray.kill(actor, no_restart=True)
        except (self._ray.exceptions.RayError, ValueError):
            logging.getLogger(__name__).debug("an actor was gone before it was killed", exc_info=True)

    def resources(self) -> dict[str, float]:
        """CPUs and GPUs of all nodes."""
        found: dict[str, float] = self._ray.cluster_resources()
        return {name: found.get(name, 0.0) for name in ("CPU", "GPU")}

    async def disconnect(self) -> None:
        """Leaves the cluster if `connect` joined it; idempotent."""
        if self._is_owner:
            self._is_owner = False
            await asyncio.to_thread(self._ray.shutdown)

    def _refusal(self, error: BaseException) -> ExecutorUnavailableError:
        """What a failed connection means, and what to do about it."""
        first_line = str(error).strip().partition("\n")[0]
        cause: BaseException | None = error
        while cause is not None:
            # Ray raises another error with the text of this one.
            if isinstance(cause, self._ray.exceptions.AuthenticationError) or "AuthenticationError" in str(cause):
                return ExecutorUnavailableError(
                    f"the Ray cluster at {self._address!r} refuses this driver: its token is missing or another one; "
                    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as on the cluster's nodes"
                )
            cause = cause.__cause__ or cause.__context__
        hint = "; start one with `ray start --head`, or use a local executor" if self._address == "auto" else ""
        return ExecutorUnavailableError(f"no Ray cluster at {self._address!r}: {first_line}{hint}")

    def _init(self) -> None:
        self._ray.init(
            address=self._address,
            namespace=self._namespace,
            runtime_env=self._runtime_env or None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError(
            "a Ray executor needs the package `ray`, which is not installed; pip install 'undercurrent[ray]', or use a "
            "local executor"
        ) from error
    return ray


async def _knock(address: str) -> None:
    """Fails at once where nobody listens: Ray itself tries for a minute."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        raise ExecutorUnavailableError(
            f"a Ray address must be `host:port`, `ray://host:port` or `auto`, got {address!r}"
        )
    try:
        await asyncio.to_thread(lambda: socket.create_connection((host, int(port)), _KNOCK_S).close())
    except OSError as error:
        raise ExecutorUnavailableError(f"no Ray cluster at {address!r}: {error}; is its head running?") from error
