"""The disk of the database runs full under load, stays full for longer than a lease, and is freed. Clients that write
get an error that says so. Workers wait without a busy loop, also those that are started meanwhile. Nothing that was
acknowledged is lost, and everything goes on by itself."""

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct, field

from rowlock.errors import OutcomeUnknown, StoreError, StoreFull
from rowlock.jobs import Jobs
from tests.faults.apart import on_small_disk
from tests.faults.load import Load
from tests.faults.results import Result
from tests.faults.stage import LEASE, PATIENCE, SLACK, Stage, prepared
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.history_app import new_ids
from tests.proof.lives import World
from tests.proof.recorder import now
from tests.servers import PostgresServer
from tests.waiting import until

SIZE = "160m"
WORKERS, PROCESSES = 2, 2
BEFORE, FULL, AFTER = 4.0, 4 * LEASE, 4.0  # seconds
HOT = 0.5  # of a core: a process that needs more while it can't write is in a busy loop
TICKS = os.sysconf("SC_CLK_TCK")


class Seen(Struct):
    """What was measured while the disk was full."""

    refused: Counter[str] = field(default_factory=Counter)
    """Enqueues that were refused while the disk was full, by their error."""
    accepted: int = 0
    """Enqueues that the full disk still had room for."""
    heat: list[float] = field(default_factory=list)
    """Share of a core that each process needed meanwhile."""
    freed: list[int] = field(default_factory=list)


async def run(cell: Cell) -> Result:
    return await on_small_disk(cell, __name__, SIZE)


async def run_on(cell: Cell, disk: Path) -> Result:
    seen = Seen()
    async with on_disk(cell, disk) as stage, Jobs(stage.url) as jobs:
        stage.settings["stop_slack"] = SLACK
        load = Load(stage, jobs)
        await stage.start_workers(WORKERS, processes=PROCESSES)
        at_work = processes(stage)
        async with load.going_on(rate=cell.scale.rate / 4, least=0):
            for _ in range(cell.scale.fills):
                await asyncio.sleep(BEFORE)
                await fill(stage, jobs, disk, seen)
                await asyncio.sleep(AFTER)
        await stage.drained()
        assert processes(stage) >= at_work, "a worker has ended"
        await stage.stop_all()
        result = await stage.judged(cell.result(fills=cell.scale.fills))
        world = World(stage.histories[-1])
        result.violations += judge(seen)
        result.figures |= {f"enqueues told {name}": count for name, count in seen.refused.items()}
        result.figures |= {
            "enqueues that found room yet": seen.accepted,
            "% of a core while full (hottest process)": round(100 * max(seen.heat), 1),
            "s from free to a completion (longest)": round(max(restarts(world, seen.freed)), 2),
            "leases lost": sum(step.move == "rescue" for life in world.lives for step in life.steps),
        }
        return result


@asynccontextmanager
async def on_disk(cell: Cell, disk: Path) -> AsyncIterator[Stage]:
    """Yield a stage on the disk. SQLite has its whole file there. PostgreSQL has only the tables there, so that the
    server itself stays alive."""
    if cell.store == "sqlite":
        async with prepared(cell.folder, f"sqlite:///{disk}/jobs.db", cell.seed) as stage:
            try:
                yield stage
            finally:
                shutil.copy(disk / "jobs.db", cell.folder / "jobs.db")  # a copy to look at: the disk goes away
        return
    with PostgresServer(durable=True) as server:
        space = disk / "space"
        space.mkdir()
        os.chown(space, server.folder.stat().st_uid, -1)
        await server.execute(f"CREATE TABLESPACE small LOCATION '{space}'", "CREATE DATABASE small TABLESPACE small")
        async with prepared(cell.folder, server.url("small"), cell.seed) as stage:
            yield stage


async def fill(stage: Stage, jobs: Jobs, disk: Path, seen: Seen) -> None:
    stage.record.fault("fill", disk.name)
    ballast = disk / "ballast"
    over = asyncio.Event()
    filling = asyncio.create_task(keep_full(ballast, over))
    try:
        await until(lambda: refused(stage, jobs, seen), what="an enqueue to be refused", patience=PATIENCE)
        before = {pid: used(pid) for pid in processes(stage)}
        began = time.monotonic()
        late = stage.launch()
        while time.monotonic() - began < FULL:
            await refused(stage, jobs, seen)
            await asyncio.sleep(0.2)
        assert late.process.poll() is None, f"a worker that was started while it was full has ended: {late.output}"
        took = time.monotonic() - began
        seen.heat += [(used(pid) - was) / took for pid, was in before.items()]
    finally:
        over.set()
        await filling
        stage.record.fault("free", disk.name)
        seen.freed.append(now())
        ballast.unlink()
    await stage.fleet.working(late)


async def keep_full(ballast: Path, over: asyncio.Event) -> None:
    """Fill the disk, also with space that is freed meanwhile, until `over` is set."""
    while not over.is_set():
        await asyncio.to_thread(stuff, ballast)
        await asyncio.sleep(0.05)


def stuff(ballast: Path) -> None:
    """Append to the file until the disk is full."""
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):  # full
                while file.write(bytes(size)) == size:
                    pass


async def refused(stage: Stage, jobs: Jobs, seen: Seen) -> bool:
    """Enqueue a job. Return True if it is refused. Some enqueues still succeed, because tables have free space."""
    job_id = new_ids.one()
    try:
        with stage.record.operation("enqueue", [job_id], topic="quick", key=None) as told:
            told(await jobs.enqueue("quick", id=job_id))
    except StoreError as error:
        seen.refused[type(error).__name__] += 1
        return True
    seen.accepted += bool(seen.refused)
    return False


def judge(seen: Seen) -> list[Violation]:
    found = []
    if not seen.refused[StoreFull.__name__]:
        found.append(Violation("DISK", None, f"nobody was told that it is full, but {dict(seen.refused)}"))
    if odd := seen.refused.keys() - {StoreFull.__name__, OutcomeUnknown.__name__}:
        found.append(Violation("DISK", None, f"enqueues were told {', '.join(odd)}"))
    found += [Violation("DISK", None, f"a worker took {heat:.0%} of a core") for heat in seen.heat if heat > HOT]
    return found


def processes(stage: Stage) -> set[int]:
    return {pid for worker in stage.workers for pid in (worker.pid, *worker.children())}


def used(pid: int) -> float:
    """Return the seconds of CPU that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def restarts(world: World, freed: list[int]) -> list[float]:
    """Return the seconds from each of these moments to the first completion after it."""
    ends = sorted(step.at for life in world.lives for step in life.steps if step.move == "complete")
    found = []
    for moment in freed:
        at = world.by_database(moment)
        assert at is not None
        found.append(next((end - at for end in ends if end > at), float("inf")) / 1e6)
    return found
