"""Sixteen workers drain topics with limits of 1, 3 and 10, and a rate. Some workers are killed or frozen, and the
server is restarted. No limit is exceeded at any moment (S12): a run of a dead or frozen worker counts until it is
rescued. Then a few workers drain more jobs undisturbed. They hardly poll, so a wake-up must tell them of each free
place: see limits_judge.py."""

import asyncio
import os
import signal
from contextlib import suppress

from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from tests.faults.limits_app import LIMITS
from tests.faults.limits_judge import idle
from tests.faults.places import on_server, staged
from tests.faults.results import Result
from tests.faults.stage import LEASE, PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.suites.kills import kill_busy
from tests.faults.suites.outages import Outage, suffer
from tests.proof.history import History, Violation
from tests.proof.history_app import new_ids
from tests.proof.witness import JOBS
from tests.servers import PostgresServer

APP = "tests.faults.limits_app:jobs"
PROCESSES = 4
TENANTS = ("a", "b", "c")
CALM_WORKERS = 2
CALM_POLL = 60  # seconds: so long that polling doesn't hide a forgotten wake-up


async def run(cell: Cell) -> Result:
    if cell.store == "postgres":
        async with on_server(cell, app=APP) as (stage, server):
            return await endure(cell, stage, server)
    async with staged(cell, app=APP) as stage:
        return await endure(cell, stage, None)


async def endure(cell: Cell, stage: Stage, server: PostgresServer | None) -> Result:
    scale = cell.scale
    async with Jobs(stage.url) as jobs:
        survivor = stage.launch()  # one worker must live long enough to take jobs back
        stage.workers.remove(survivor)
        await stage.start_workers(max(1, scale.limited_workers // PROCESSES), processes=PROCESSES)
        over = asyncio.Event()
        making = asyncio.create_task(enqueue(stage, jobs, scale.limited, over))
        kills = freezes = 0
        for n in range(scale.limit_faults):
            await stage.pause(0.2, 1.0)
            while (found := await stage.busy_process()) is None:
                await stage.pause(0.05, 0.1)
            if n % 3 == 1:
                await freeze(stage, found[1])
                freezes += 1
            else:
                await kill_busy(stage)
                kills += 1
            if server is not None and n == scale.limit_faults // 2:
                await suffer(stage, server, Outage("server kill"))
                stage.record.fault("server back", "")
        over.set()
        made = await making
        await stage.drained(3 * PATIENCE)
        stage.workers.append(survivor)
        await stage.stop_all()
        await stage.start_workers(CALM_WORKERS, "--poll", f"{CALM_POLL}s")
        made += await enqueue(stage, jobs, scale.limited // 4, over)
        await stage.drained(3 * PATIENCE)
        await stage.stop_all()
        result = await stage.judged(cell.result(limited=made, kills=kills, freezes=freezes))
    result.violations += not_limited(stage.histories[-1])
    result.violations += await asyncio.to_thread(idle, stage.histories[-1])
    return result


async def enqueue(stage: Stage, jobs: Jobs, count: int, over: asyncio.Event) -> int:
    """Enqueue at least `count` jobs, and go on until the faults are over. Return how many it enqueued."""
    chance = stage.chance
    made = 0
    while made < count or not over.is_set():
        made += 1
        await asyncio.sleep(0.01)  # so that workers always have jobs, and not too many
        job_id, topic = new_ids.one(), chance.choice(list(LIMITS))
        payload = {"tenant": chance.choice(TENANTS), "seconds": chance.choice([0.0, 0.01, 0.05])}
        while True:
            try:
                with stage.record.operation("enqueue", [job_id], topic=topic, key=None) as told:
                    told(await jobs.enqueue(topic, payload | {"bad": chance.random() < 0.05}, id=job_id))
                break
            except StoreError:
                await asyncio.sleep(0.1)
    return made


async def freeze(stage: Stage, pid: int) -> None:
    stage.record.fault("stop", pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        await stage.pause(1.2 * LEASE, 2 * LEASE)
        stage.record.fault("cont", pid)
        os.kill(pid, signal.SIGCONT)


def not_limited(history: History) -> list[Violation]:
    """Return the jobs without a share whose topic is limited by a field: with such jobs, the suite proves nothing."""
    inserted = [one.after for one in history.changes if one.table == JOBS and one.op == "insert" and one.after]
    return [
        Violation("S12", row["id"], "has no share")
        for row in inserted
        if row["topic"] in ("one", "three") and not row["share"]
    ]
