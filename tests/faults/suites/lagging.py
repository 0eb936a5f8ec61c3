"""Failover to a standby that lags. What the primary has acknowledged last is lost, and nothing else may be lost. The
old primary's log says which transactions had reached the standby. Its tables say what the other transactions did.

Lost claims make versions come again. Jobs that were claimed in these moments are pending on the new primary. A worker
that claims them there gets the same version. The worker that held them before is frozen meanwhile. When it wakes,
everything that its runs write must be refused, although their version is right.
"""

import os
import signal
from contextlib import suppress

from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from tests.faults.load import KINDS, Load
from tests.faults.lost import Lost, judge, lost_with
from tests.faults.replication import Pair, Server, missing, paired
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage, prepared
from tests.faults.suites import Cell
from tests.proof.history_app import new_ids
from tests.proof.recorder import now

WORKERS = 3
APP = "tests.faults.lasting_app:jobs"
MARKED = "CREATE TABLE marked (mark text PRIMARY KEY, job_id text NOT NULL, version integer NOT NULL)"
LASTING = ("lasting", "telling", "keeping")
JOBS = 9  # long jobs in each round: fewer than there are slots
SECONDS = 3.0  # that each long job takes
DELAY = 4.0  # seconds until they are due, so that they reach the standby before it is cut off
Held = dict[str, tuple[int, int]]  # by id: version and pid


async def run(cell: Cell) -> Result:
    if why := missing():
        return Result(cell.suite, cell.store, cell.seed, not_run=why)
    with paired() as pair:
        async with prepared(cell.folder, pair.url, cell.seed, app=APP) as stage, Jobs(stage.url) as jobs:
            await stage.tables.execute(MARKED)
            load = Load(stage, jobs, {topic: payload for topic, payload in KINDS.items() if topic != "owning"})
            await stage.start_workers(WORKERS)
            losses: list[Lost] = []
            async with load.going_on(rate=cell.scale.rate / 2, least=0):
                for n in range(cell.scale.lagging):
                    dead, lost = await lose(stage, pair, jobs)
                    losses.append(lost)
                    if n + 1 < cell.scale.lagging:
                        await pair.renew(dead)
            await stage.drained()
            await stage.stop_all()
            result = await judge(stage, losses, cell.result())
            result.figures["enqueues whose callers were told that the outcome is unknown"] = load.unknown
            return result


async def lose(stage: Stage, pair: Pair, jobs: Jobs) -> tuple[Server, Lost]:
    """Lose the primary. Return the dead server, and what was lost with it."""
    await pair.primary.wait_for_standby(synchronous=False)
    await stage.pause(1.0, 2.0)
    begin = await pair.primary.position()
    ids = await enqueue_lasting(stage, jobs)
    await pair.primary.replayed(await pair.primary.position())
    stage.record.fault("cut", pair.standby.port)
    await pair.primary.cut_off()
    held = await all_held(stage, pair, ids)
    sleeper, theirs = most_of(held)
    stage.record.fault("stop", sleeper)
    os.kill(sleeper, signal.SIGSTOP)
    await stage.pause(0.0, 0.5)
    stage.record.fault("primary kill", pair.primary.port)
    gone = now()
    dead = await pair.fail_over()
    promoted = now()
    await unpause(stage, jobs)
    await claimed_by_others(stage, pair, sleeper, theirs)
    stage.record.fault("cont", sleeper)
    os.kill(sleeper, signal.SIGCONT)
    return dead, await lost_with(dead, pair.primary, begin, gone, promoted)


async def enqueue_lasting(stage: Stage, jobs: Jobs) -> list[str]:
    ids = [new_ids.one() for _ in range(JOBS)]
    options = {"payload": {"seconds": SECONDS}, "delay": DELAY, "priority": 0}
    drafts = [{"topic": LASTING[n % len(LASTING)], "id": job_id, **options} for n, job_id in enumerate(ids)]
    with stage.record.operation("enqueue", ids, batch=True) as told:
        told(await jobs.enqueue_many(drafts))
    return ids


async def all_held(stage: Stage, pair: Pair, ids: list[str]) -> Held:
    """Wait until all these jobs run. Return the version and the pid of each."""
    query = f"SELECT id, version, locked_by FROM _jobs WHERE status = 'processing' AND id IN ({listed(ids)})"

    async def found() -> Held | None:
        rows = await pair.primary.fetch(query)
        held = {str(job_id): (version, int(name.split("-")[-2])) for job_id, version, name in rows}
        return held if len(held) == len(ids) else None

    answer: Held = await stage.fleet.until(found, what="all that lasts to be claimed", patience=PATIENCE)
    return answer


def most_of(held: Held) -> tuple[int, dict[str, int]]:
    """Return the process that holds most of the jobs, and the versions of its jobs by id."""
    pids = [pid for _, pid in held.values()]
    sleeper = max(sorted(set(pids)), key=pids.count)
    return sleeper, {job_id: version for job_id, (version, pid) in held.items() if pid == sleeper}


async def claimed_by_others(stage: Stage, pair: Pair, sleeper: int, theirs: dict[str, int]) -> None:
    """Wait until other workers have claimed the same versions of all these jobs again. Return earlier if one of the new
    runs may end soon."""
    query = f"SELECT id, version, locked_by, clock_timestamp() - claimed_at FROM _jobs WHERE id IN ({listed(theirs)})"

    async def found() -> bool:
        rows = await pair.primary.fetch(query)
        again = {
            str(job_id): age.total_seconds()
            for job_id, version, name, age in rows
            if name is not None and version == theirs[str(job_id)] and int(name.split("-")[-2]) != sleeper
        }
        return len(again) == len(theirs) or max(again.values(), default=0.0) > SECONDS / 3

    await stage.fleet.until(found, what="what was lost to be claimed again", patience=PATIENCE)


async def unpause(stage: Stage, jobs: Jobs) -> None:
    """Resume the topic: its pause may have reached the standby, and the end of the pause not."""
    while True:
        with suppress(StoreError), stage.record.operation("resume", []):
            await jobs.topics.resume("nap", by="ann")
            return


def listed(ids: dict[str, int] | list[str]) -> str:
    return ", ".join(f"'{one}'" for one in ids)
