"""torch takes seconds to import: where records will be tensors, a worker has it before it takes the lowest priority."""

from __future__ import annotations

import pytest
import worker_probes as probes
from worker_rig import finish, plan

from undercurrent.workers import Supervisor


@pytest.mark.parametrize("loads_torch", [True, False])
def test_prewarm_has_torch_imported_where_it_is_told(processes: Supervisor, loads_torch: bool) -> None:
    processes.prewarm([plan(probes.TorchWitness)], loads_torch=loads_torch)
    assert finish(processes.open_binding(plan(probes.TorchWitness))).verdict == (loads_torch, 19)
