"""A small engine process for the nursery's tests: starts a nursery and workers, prints who they are, and waits.

ENGINE_SECRET below must never be seen in a worker: the engine's `__main__` is neither imported nor run again there.
"""

import json
import os
import sys
import time
from pathlib import Path

from undercurrent.workers.nursery import Nursery, SpawnOrder

ENGINE_SECRET = "only in the engine"
print("engine runs", file=sys.stderr)

sys.path.insert(0, str(Path(__file__).parent))
nursery = Nursery.start(environment=os.environ, sys_path=sys.path, cwd=os.getcwd(), deadline=time.monotonic() + 30)
read_end, write_end = os.pipe()
engine_pidfd = os.pidfd_open(os.getpid())
workers = [
    nursery.spawn(
        SpawnOrder(worker_name=f"worker-{number}", entry=f"nursery_entries:{entry}"),
        [write_end, engine_pidfd, sys.stdout.fileno()],
        time.monotonic() + 30,
    )
    for number, entry in enumerate(sys.argv[1:])
]
for _ in workers:
    os.read(read_end, 4)
print(json.dumps({"nursery": nursery.pid, "workers": [worker.pid for worker in workers]}), flush=True)
while True:
    time.sleep(1.0)
