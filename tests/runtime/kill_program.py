"""Kills writers of an archive at random points and checks what they leave: `kill_program.py KILLS SEED FOLDER`.

Forks a writer that runs the same jobs with resume, and tells its parent of each row through a sink and of each finished
job through the progress. It is killed at a random time, or kills itself at a random call of the runtime or step of
SQLite's machine; then the next one resumes, until one ends by itself. Prints one JSON object; a failed check raises and
prints the seed that replays it (what a clock decides is replayed in kind, not to the instruction). With `report_early`
behind the folder it plants an error that it must find.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime_jobs import MANIFEST, make_job, text_of, texts_by_key

from undercurrent.runtime import (
    CoalitionDedupRegistry,
    CoalitionRecord,
    HotResultStore,
    InferenceScheduler,
    RunArchive,
    archive_opening,
)
from undercurrent.runtime.archive_rows import Row
from undercurrent.runtime.row_writer import RowWriter

PLAYERS = 6
KILLS_MAX = 5
JOBS = [make_job(number % 2**PLAYERS, players=PLAYERS) for number in range(2**PLAYERS + 8)]
RUNTIME = str(Path(archive_opening.__file__).parent)


def value_of(text: str) -> float:
    """A number of a text: what an explanation would be made of."""
    return int(text, 16) / 16**12


def final_values(root: Path) -> list[float]:
    """One number per player: how much the texts with it differ from the texts without it."""
    with RunArchive.load(root) as archive:
        assert archive.is_complete
        texts = texts_by_key(list(archive.history_lazy()))
    worth = [value_of(texts[job.coalition_key]) for job in JOBS[: 2**PLAYERS]]
    return [
        sum(worth[mask | 1 << player] - worth[mask] for mask in range(2**PLAYERS) if not mask >> player & 1)
        for player in range(PLAYERS)
    ]


class Teller:
    """Writes what was reported to a pipe; what is in a pipe survives the writer."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def write_row(self, record: CoalitionRecord) -> None:
        os.write(self.pipe, f"row {record.record_id} {record.coalition_key} {record.generation_text}\n".encode())

    def on_coalitions_planned(self, total: int) -> None:
        """Tells nothing."""

    def on_coalition_finished(self, done: int, total: int) -> None:
        os.write(self.pipe, f"finished {done}\n".encode())


def run_jobs(root: Path, pipe: int) -> None:
    """One writer's life, if nobody ends it."""
    teller = Teller(pipe)
    keys = {job.snapshot: job.coalition_key for job in JOBS}

    async def generate(snapshot: object) -> str:
        os.write(pipe, f"asked {keys[snapshot]}\n".encode())
        await asyncio.sleep(0)
        return text_of(snapshot)

    with RunArchive.open(root, MANIFEST, on_exists="resume") as archive:
        if not archive.is_complete:
            archive.add_row_sink(teller)
            archive.write_base_generation("base")
        runner = InferenceScheduler(4, None, HotResultStore(), CoalitionDedupRegistry(), archive, progress=teller)
        asyncio.run(runner.run(JOBS, generate))
        archive.mark_complete()


def plant_death(kind: str, chance: random.Random) -> None:
    """Has this process kill itself at a random call of the runtime, or at a random step of SQLite's machine."""
    left = chance.randrange(1, 6000) if kind == "call" else chance.randrange(1, 1500)

    def count(*_: object) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(RUNTIME):
            count()

    if kind == "call":
        sys.setprofile(on_call)
        threading.setprofile(on_call)
    elif kind == "step":
        connect = archive_opening.connect

        def watched(path: Path, query: str) -> sqlite3.Connection:
            connection = connect(path, query)
            connection.set_progress_handler(count, 7)
            return connection

        archive_opening.connect = watched


def kill(handle: int) -> None:
    """Ends a writer, if it has not ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def live(root: Path, kind: str, chance: random.Random) -> tuple[bool, list[list[str]]]:
    """Forks a writer that dies as `kind` says; returns whether it ended by itself, and the words it told."""
    reading, writing = os.pipe()
    pause_s = chance.expovariate(1 / 0.015) if kind == "time" else 30.0
    seed = chance.randrange(2**32)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            plant_death(kind, random.Random(seed))
            run_jobs(root, writing)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    handle = os.pidfd_open(pid)  # a number may be somebody else's by the time the alarm goes off
    alarm = threading.Timer(pause_s, kill, (handle,))
    alarm.start()
    with open(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    alarm.cancel()
    alarm.join()
    os.close(handle)
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert is_killed or status == 0, f"a writer ended with status {status}"
    # The last line may be cut: what was not told was not reported.
    return not is_killed, [line.split() for line in told.decode().split("\n")[:-1]]


def check(root: Path, reported: dict[int, tuple[str, str]], finished: int) -> None:
    """Every row that was told of is there, as it was told; so is one for each job that was called finished."""
    with RunArchive.load(root) as archive:
        records = list(archive.history_lazy())
    assert [record.record_id for record in records] == list(range(1, len(records) + 1))
    for record_id, told in reported.items():
        record = records[record_id - 1]
        assert (record.coalition_key, record.generation_text) == told
    keys = set(texts_by_key(records))
    assert finished <= sum(job.coalition_key in keys for job in JOBS)


def try_once(root: Path, seed: int, undisturbed: list[float]) -> dict[str, int]:
    """Kills writers of one archive until one ends; checks what is there after each."""
    chance = random.Random(seed)
    kills = asked_count = 0
    reported: dict[int, tuple[str, str]] = {}
    is_done = False
    while not is_done:
        known = {key for key, _ in reported.values()}
        kind = chance.choice(("time", "call", "step")) if kills < KILLS_MAX else "none"
        is_done, told = live(root, kind, chance)
        kills += not is_done
        finished = 0
        for what, *words in told:
            if what == "row":
                reported[int(words[0])] = (words[1], words[2])
            elif what == "finished":
                finished = int(words[0])
            else:
                asked_count += 1
                assert words[0] not in known, "the model was asked again for a row that was reported"
        if reported or finished:
            check(root, reported, finished)
    assert final_values(root) == undisturbed
    return {"kills": kills, "asked": asked_count, "reported": len(reported)}


def report_early() -> None:
    """Plants the error this program must find: rows are told of before they are committed."""
    insert = RowWriter._insert

    def tell_and_insert(self: RowWriter, group: Sequence[Row], values: Mapping[int, str]) -> None:
        self._on_committed(group, values)
        insert(self, group, values)

    RowWriter._insert = tell_and_insert  # type: ignore[method-assign]


def main() -> None:
    kills, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    if sys.argv[4:] == ["report_early"]:
        report_early()
    run_jobs(folder / "undisturbed", os.open(os.devnull, os.O_WRONLY))
    undisturbed = final_values(folder / "undisturbed")
    totals = {"kills": 0, "asked": 0, "reported": 0}
    trial = 0
    while totals["kills"] < kills:
        root = folder / f"trial-{seed + trial}"
        try:
            outcome = try_once(root, seed + trial, undisturbed)
        except BaseException:
            print(f"replay: python {__file__} 1 {seed + trial} FOLDER", file=sys.stderr)
            raise
        for name, count in outcome.items():
            totals[name] += count
        shutil.rmtree(root)
        trial += 1
    print(json.dumps({**totals, "archives": trial}))


if __name__ == "__main__":
    main()
