"""The primary is lost under load, a synchronous standby is promoted, and the old primary comes back as its standby.

Workers and clients know both addresses, and must find the new primary by themselves. The old primary is lost in one of
four ways. It is killed. It is stopped in good order. It is frozen: it accepts connections and never answers. Or it
stays, and is read-only. Nothing that was acknowledged is lost.
"""

import asyncio
from collections.abc import Callable

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.replication import Pair, Server, missing, paired
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, SLACK, Stage, prepared
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.recorder import now

WORKERS = 3
CONNECT, COMMAND = 2.0, 4.0  # seconds until a worker or client gives up on a server that doesn't answer
AT_ONCE = 5.0  # seconds in which workers find the new primary
WAYS: dict[str, Callable[[Server], None]] = {
    "primary kill": Server.kill9,
    "primary freeze": Server.freeze,
    "primary stop": Server.stop,
    "primary demotion": Server.demote,
}
CLAIMED = """SELECT DISTINCT after ->> 'locked_by' FROM witness.log
    WHERE tbl = '_jobs' AND op = 'update' AND at > '{since}' AND after ->> 'status' = 'processing'"""


async def run(cell: Cell) -> Result:
    if why := missing():
        return Result(cell.suite, cell.store, cell.seed, not_run=why)
    with paired() as pair:
        async with prepared(cell.folder, pair.url, cell.seed, through=impatient) as stage, Jobs(stage.url) as jobs:
            load = Load(stage, jobs)
            await stage.start_workers(WORKERS)
            ways = [list(WAYS)[n % len(WAYS)] for n in range(cell.scale.failovers)]
            stage.chance.shuffle(ways)
            times: dict[str, float] = {}
            old = pair.standby
            async with load.going_on(rate=cell.scale.rate / 2, least=cell.scale.failovers * 200):
                for n, way in enumerate(ways):
                    if n:
                        await pair.renew(old)
                    await pair.primary.wait_for_standby(synchronous=True)
                    await stage.pause(1.0, 3.0)
                    old, seconds = await suffer(stage, pair, way)
                    times[way] = max(times.get(way, 0.0), seconds)
            result = await stage.finished(cell.result())
            result.figures["enqueues whose callers were told that the outcome is unknown"] = load.unknown
            for way, seconds in times.items():
                result.figures[f"s from promotion until all workers claim, {way}"] = seconds
                bound = AT_ONCE + SLACK + (CONNECT + COMMAND if way == "primary freeze" else 0.0)
                if seconds > bound:
                    text = f"after a {way} a worker claimed nothing for {seconds:.1f} s; {bound:g} s are allowed"
                    result.violations.append(Violation("RECOVERY", None, text))
            return result


def impatient(url: str) -> str:
    return f"{url}&connect_timeout={CONNECT:g}&command_timeout={COMMAND:g}"


async def suffer(stage: Stage, pair: Pair, way: str) -> tuple[Server, float]:
    """Fail over. Return the old primary, and the seconds from the promotion until every worker has claimed a job."""
    stage.record.fault(way, pair.primary.port)
    old = await pair.fail_over(WAYS[way])
    promoted = now()
    since = await clock(pair.primary)
    pids = {pid for worker in stage.workers for pid in worker.children()}

    async def all_at_work() -> bool:
        rows = await pair.primary.fetch(CLAIMED.format(since=since))
        return pids <= {int(name.split("-")[-2]) for (name,) in rows}

    await stage.fleet.until(all_at_work, what="every worker to claim from the new primary", patience=PATIENCE)
    took = (now() - promoted) / 1e6
    await asyncio.to_thread(old.kill9)
    return old, took


async def clock(server: Server) -> str:
    [(at,)] = await server.fetch("SELECT clock_timestamp()::text")
    return str(at)
