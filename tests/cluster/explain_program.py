"""A driver: explains one prompt over a Ray cluster, in a run folder that resumes. Prints what came of it as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from undercurrent.runtime.executors import LocalExecutor, RayExecutor
from undercurrent.runtime.pipeline import EstimatorSettings, RunSettings, explain

PROMPT = [{"role": "user", "content": [{"type": "document", "text": f"part {number}. "} for number in range(6)]}]
SETTINGS = RunSettings(players="documents", value="score", estimator=EstimatorSettings(name="exact"))
FACTORY = "executor_generators:ScoringModel"


async def explain_locally(marks: Path) -> dict[str, object]:
    """The undisturbed run, in one process of this machine."""
    async with LocalExecutor(FACTORY, kwargs={"folder": str(marks)}, processes=1) as executor:
        return await _explain(executor, None)


async def explain_on_cluster(order: dict[str, object], root: Path) -> dict[str, object]:
    """The run of an order, `RayExecutor`'s keyword arguments."""
    async with RayExecutor(FACTORY, **order) as executor:  # type: ignore[arg-type]
        found = await _explain(executor, root)
        return {**found, "restarts": executor.restarts}


async def _explain(executor: LocalExecutor | RayExecutor, root: Path | None) -> dict[str, object]:
    found = await explain(
        PROMPT, executor, SETTINGS, archive=root, on_exists="resume", batch_size=4, max_inflight=executor.capacity
    )
    values = [value.hex() for value in found.attribution.values]
    return {"values": values, "base": found.base_text, "executed": found.metrics.executed}


if __name__ == "__main__":
    order, root = sys.argv[1:]
    print(json.dumps(asyncio.run(explain_on_cluster(json.loads(order), Path(root)))))
