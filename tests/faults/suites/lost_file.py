"""The SQLite file is moved away under load. In the first part it comes back every time, and the checker reads its
history. In the second part another file takes its place: a new one, or a backup.

In the second part, the history is split between files. So the suite judges this: an acknowledged enqueue is in a file
that was at the path during the call. No file was damaged. Workers find work in the new file by themselves, make no
file, and wait without a busy loop while there is no file.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct, field

from rowlock.errors import StoreError, StoreUnavailable
from rowlock.jobs import Jobs
from rowlock.stores import open_store
from tests.faults.load import Load
from tests.faults.results import Result
from tests.faults.stage import LEASE, PATIENCE, SLACK, Stage, prepared
from tests.faults.suites import Cell
from tests.faults.suites.disk import HOT, processes, used
from tests.proof.history import History, Operation, Violation
from tests.proof.history_app import new_ids
from tests.proof.recorder import now
from tests.waiting import until

WORKERS, PROCESSES = 2, 2
BEFORE, AFTER = 2.0, 2.0  # seconds of undisturbed work
KINDS = {"quick": {}, "nap": {"seconds": 0.05}, "threaded": {}, "parent": {}}
EVERY_JOB = "SELECT id FROM _jobs UNION SELECT id FROM _jobs_archive"
ALL = ("", "-wal", "-shm")


class Era(Struct):
    """A file that is kept under another name. It was at the path between `since` and `until`, in microseconds."""

    kept: Path
    since: int
    until: int = 1 << 62


class Seen(Struct):
    eras: list[Era] = field(default_factory=list)
    refused: int = 0
    heat: list[float] = field(default_factory=list)
    """Share of a core that each process needed while there was no file."""
    taken_up: list[float] = field(default_factory=list)
    """Seconds from a new file until a job of it was done."""
    violations: list[Violation] = field(default_factory=list)


async def run(cell: Cell) -> Result:
    seen = Seen()
    result = await come_back(cell, seen)
    await replace_all(cell, seen)
    result.violations += seen.violations
    result.violations += [
        Violation("BUSY", None, f"a worker took {heat:.0%} of a core") for heat in seen.heat if heat > HOT
    ]
    result.figures |= {
        "files that took its place": len(seen.eras) - 1,
        "enqueues that were refused": seen.refused,
        "% of a core while there was no file (hottest process)": round(100 * max(seen.heat), 1),
        "s from a new file to its first job done (longest)": round(max(seen.taken_up), 2),
    }
    return result


def place(folder: Path) -> Path:
    """Make a folder for the file alone. Return the file's path."""
    (folder / "here").mkdir(parents=True)
    return folder / "here" / "jobs.db"


# ── The file comes back ──


async def come_back(cell: Cell, seen: Seen) -> Result:
    folder = cell.folder / "away"
    path = place(folder)
    async with prepared(folder, f"sqlite:///{path}", cell.seed) as stage, Jobs(stage.url) as jobs:
        stage.settings["stop_slack"] = SLACK
        await stage.start_workers(WORKERS, processes=PROCESSES)
        at_work = processes(stage)
        async with Load(stage, jobs).going_on(rate=cell.scale.rate / 4, least=0):
            for n in range(cell.scale.losses):
                await asyncio.sleep(BEFORE)
                stage.record.fault("move", path.name)
                back = (move_all, move_alone, move_folder)[n % 3](path)
                try:
                    await refused(stage, jobs, path, seen)
                    await asyncio.sleep(2 * LEASE if n == 0 else stage.chance.uniform(0.0, LEASE))
                    nobody_made_one(path, seen)
                finally:
                    back()
        await stage.drained()
        assert processes(stage) == at_work, "a worker has ended"
        await stage.stop_all()
        return await stage.judged(cell.result())


def move_all(path: Path, names: tuple[str, ...] = ALL) -> Callable[[], None]:
    """Move the files away. Return a function that moves them back."""
    away = path.parent.with_name("moved")
    away.mkdir(exist_ok=True)
    for name in names:
        Path(f"{path}{name}").rename(away / f"{path.name}{name}")

    def back() -> None:
        for name in reversed(names):  # the database last: it needs its WAL
            (away / f"{path.name}{name}").rename(f"{path}{name}")

    return back


def move_alone(path: Path) -> Callable[[], None]:
    return move_all(path, ("",))


def move_folder(path: Path) -> Callable[[], None]:
    away = path.parent.with_name("moved folder")
    path.parent.rename(away)

    def back() -> None:
        away.rename(path.parent)

    return back


def delete(path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        Path(f"{path}{name}").unlink()


def nobody_made_one(path: Path, seen: Seen) -> None:
    if path.exists():
        seen.violations.append(Violation("FILE", None, "somebody made a file in place of the lost one"))


async def refused(stage: Stage, jobs: Jobs, path: Path, seen: Seen) -> None:
    """A client gets an error that names the lost file. If the file was lost just before a commit, the outcome is
    unknown."""
    job_id = new_ids.one()
    try:
        with stage.record.operation("enqueue", [job_id], topic="quick", key=None) as told:
            told(await jobs.enqueue("quick", id=job_id))
    except StoreUnavailable as error:
        seen.refused += 1
        if str(path) not in str(error):
            seen.violations.append(Violation("FILE", None, f"a client was told only: {error}"))
    else:
        seen.violations.append(Violation("FILE", None, "an enqueue was acknowledged while there was no file"))


# ── Another file takes its place ──


async def replace_all(cell: Cell, seen: Seen) -> None:
    folder = cell.folder / "replaced"
    path = place(folder)
    async with prepared(folder, f"sqlite:///{path}", cell.seed) as stage, Jobs(stage.url) as jobs:
        seen.eras.append(Era(path, 0))
        await stage.start_workers(WORKERS, processes=PROCESSES)
        at_work = processes(stage)
        async with Load(stage, jobs, KINDS).going_on(rate=cell.scale.rate / 4, least=0, meddle=False):
            for n in range(cell.scale.losses):
                await asyncio.sleep(BEFORE)
                await (deleted, deleted_alone, replaced, restored)[n % 4](stage, jobs, path, seen)
                await taken_up(jobs, seen)
                await asyncio.sleep(AFTER)
        await stage.drained()
        assert processes(stage) == at_work, "a worker has ended"
        await stage.stop_all()
        history = stage.record.load(History("sqlite", {}))
    seen.violations += judge(history, seen.eras)


async def deleted(stage: Stage, jobs: Jobs, path: Path, seen: Seen) -> None:
    """Delete the file for longer than a lease. Then a new client makes a new file."""
    stage.record.fault("deletion", path.name)
    keep(path, seen)
    delete(path, ALL)
    seen.eras[-1].until = now()
    await refused(stage, jobs, path, seen)
    await wait_without_heat(stage, seen)
    nobody_made_one(path, seen)
    seen.eras.append(Era(path, now()))
    await open_store(stage.url).migrate()


async def deleted_alone(stage: Stage, jobs: Jobs, path: Path, seen: Seen) -> None:
    """Delete only the database file. Workers still have its WAL and shared memory open. A new client makes a new
    file."""
    stage.record.fault("deletion", path.name)
    keep(path, seen)
    delete(path, ("",))
    seen.eras[-1].until = now()
    seen.eras.append(Era(path, now()))
    await open_store(stage.url).migrate()


async def replaced(stage: Stage, jobs: Jobs, path: Path, seen: Seen) -> None:
    """Replace the file by `mv other.db jobs.db`, which leaves the WAL of the old file."""
    other = path.with_name("other.db")
    await open_store(f"sqlite:///{other}").migrate()
    rename(stage, other, path, seen)


async def restored(stage: Stage, jobs: Jobs, path: Path, seen: Seen) -> None:
    """Replace the file by a backup, which is a little older."""
    backup = path.with_name("backup.db")
    with closing(sqlite3.connect(path, timeout=30.0)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    await asyncio.sleep(BEFORE)
    rename(stage, backup, path, seen)


def rename(stage: Stage, other: Path, path: Path, seen: Seen) -> None:
    stage.record.fault("replacement", path.name)
    keep(path, seen)
    since = now()
    other.rename(path)
    seen.eras[-1].until = now()
    seen.eras.append(Era(path, since))


def keep(path: Path, seen: Seen) -> None:
    """Give the file a second name before it is deleted or replaced, so that the judge can read it later."""
    kept = path.with_name(f"kept-{len(seen.eras)}.db")
    os.link(path, kept)
    os.link(f"{path}-wal", f"{kept}-wal")
    seen.eras[-1].kept = kept


async def wait_without_heat(stage: Stage, seen: Seen) -> None:
    before = {pid: used(pid) for pid in processes(stage)}
    began = time.monotonic()
    await asyncio.sleep(2 * LEASE)
    took = time.monotonic() - began
    seen.heat += [(used(pid) - was) / took for pid, was in before.items()]


async def taken_up(jobs: Jobs, seen: Seen) -> None:
    """Wait until a job has completed that was enqueued into the new file."""
    began = time.monotonic()

    async def done() -> bool:
        with suppress(StoreError, LookupError):
            new = await jobs.enqueue("quick")
            return (await jobs.wait(new.id, timeout=PATIENCE)).status == "completed"
        return False

    await until(done, what="a job in the new file to be done", patience=PATIENCE)
    seen.taken_up.append(time.monotonic() - began)


# ── The verdict ──


def judge(history: History, eras: list[Era]) -> list[Violation]:
    found = []
    inside: list[set[str]] = []
    for n, era in enumerate(eras):
        with closing(sqlite3.connect(era.kept)) as conn:
            inside.append({job_id for (job_id,) in conn.execute(EVERY_JOB)})
            [(said,)] = conn.execute("PRAGMA integrity_check").fetchall()
        if said != "ok":
            found.append(Violation("FILE", None, f"file {n} is damaged: {said}"))
    for operation in history.operations:
        if operation.verb == "enqueue" and operation.outcome == "ok":
            at_path = [n for n, era in enumerate(eras) if era.since <= operation.ended and operation.begun <= era.until]
            found += [
                Violation("S1", job_id, f"acknowledged, but in none of the files {at_path} that were at the path")
                for job_id in acknowledged(operation)
                if not any(job_id in inside[n] for n in at_path)
            ]
    return found


def acknowledged(operation: Operation) -> list[str]:
    answer = operation.answer or {}
    return [str(one["id"]) for one in answer.get("jobs", [answer])]
