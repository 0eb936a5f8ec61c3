"""PostgreSQL goes away under load, and comes back. It is killed, stopped at once, stopped in good order, or brought
down by the death of one backend, once for longer than a lease. In between, single backends are terminated.

No worker dies here, so no run that had begun may be rescued: that would rob a live worker. There is always more work
than the workers can do, and the suite compares the rate of claims after each outage with the rate before it.
"""

import asyncio
import bisect
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import asyncpg

from rowlock.jobs import Jobs
from tests.faults.load import KINDS, Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import SLACK, Stage
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.lives import World
from tests.proof.recorder import now
from tests.runtime.system.fleet import WorkerProcess
from tests.servers import PostgresServer
from tests.waiting import until

WORKERS, PROCESSES = 3, 2
LEASE = 4.0
NAP = 0.3  # seconds: long enough that the workers' slots are the limit, not this machine
PILE = 1000  # at least so many jobs wait when the server goes away
TERMINATED = 3  # backends that are terminated before each restart
BEFORE, AFTER = 3.0, 4.0  # seconds of undisturbed work
WINDOW = 1.0  # seconds over which a rate is measured
RECOVERED = 0.9  # share of the rate before the outage
RECOVERY = 5.0  # seconds in which a quiet machine reaches that rate again
TRIES = 10.0  # per second: most tries of one loop of one worker, while the server is away

BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rowlock' AND backend_type = 'client backend'"


class Outage:
    """An outage. `gone`: when it began; `back`: when the server took connections again; both in microseconds."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.gone = self.back = 0


async def run(cell: Cell) -> Result:
    async with on_server(cell) as (stage, server), Jobs(stage.url) as jobs:
        stage.settings["lease"] = LEASE
        load = Load(stage, jobs, {**KINDS, "nap": {"seconds": NAP}})
        await stage.start_workers(WORKERS, "--lease", f"{LEASE}s", processes=PROCESSES)
        outages = [Outage(kind) for kind in chosen(stage, cell.scale.restarts)]
        async with load.going_on(rate=cell.scale.rate / 4, least=0):
            for outage in outages:
                await pile_up(stage, load)
                for _ in range(TERMINATED):
                    await terminate_one(stage)
                    await stage.pause(0.1, 0.5)
                await asyncio.sleep(BEFORE)
                await suffer(stage, server, outage)
                await asyncio.sleep(AFTER)
        result = await stage.finished(cell.result())
        world = World(stage.histories[-1])
        result.violations += robbed(world)
        times = [(outage, recovery(world, outage)) for outage in outages]
        for outage, seconds in times:
            if seconds > RECOVERY + SLACK:
                text = f"after a {outage.kind} the rate of claims was not back at 90 % within {seconds:.1f} s"
                result.violations.append(Violation("RECOVERY", None, text))
        most = max(map(tries, stage.fleet.workers))
        longest = max(outage.back - outage.gone for outage in outages) / 1e6
        if most > TRIES * longest:
            result.violations.append(Violation("BUSY", None, f"{most} tries to reach a server that was away"))
        result.figures |= {
            "tries to reach the server, of one loop in one outage (most)": most,
            "enqueues whose callers were told that the outcome is unknown": load.unknown,
            "s from accepting connections to 90 % of the rate (longest)": max(seconds for _, seconds in times),
        }
        return result


# ── Outages ──


def chosen(stage: Stage, count: int) -> list[str]:
    """Return kinds of outages in a random order, all equally often. At least one of them outlasts the leases."""
    kinds = ["long kill", "server kill", "immediate stop", "backend kill", "fast stop"]
    found = [kinds[n % len(kinds)] for n in range(count)]
    stage.chance.shuffle(found)
    return found


async def suffer(stage: Stage, server: PostgresServer, outage: Outage) -> None:
    stage.record.fault(outage.kind, server.pid or 0)
    outage.gone = now()
    if outage.kind == "backend kill":
        await kill_backend(stage)
    else:
        stop: dict[str, Callable[[], None]] = {"immediate stop": server.stop_at_once, "fast stop": server.stop}
        await asyncio.to_thread(stop.get(outage.kind, server.kill9))
        if outage.kind == "long kill":
            await stage.pause(1.5 * LEASE, 2.0 * LEASE)
        await asyncio.to_thread(server.start)
    await until(lambda: welcome(stage.direct), what="the server to take connections")
    outage.back = now()


async def kill_backend(stage: Stage) -> None:
    """Kill one backend, so that the server ends all others and recovers. Return when that has begun."""
    watch = await asyncpg.connect(stage.direct)
    pids = [row[0] for row in await watch.fetch(BACKENDS)]
    os.kill(stage.chance.choice(pids), signal.SIGKILL)
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        while True:
            await watch.execute("SELECT 1")
            await asyncio.sleep(0.01)
    watch.terminate()


async def welcome(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=10)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    await connection.close()
    return True


async def terminate_one(stage: Stage) -> None:
    pids = [pid for (pid,) in await stage.tables.fetch(BACKENDS)]
    pid = stage.chance.choice(pids)
    stage.record.fault("terminated backend", pid)
    await stage.tables.fetch(f"SELECT pg_terminate_backend({pid})")


async def pile_up(stage: Stage, load: Load) -> None:
    """Enqueue more jobs than the workers can do until the outage is over and the rate was measured."""
    [(waiting,)] = await stage.tables.fetch("SELECT count(*) FROM _jobs WHERE topic = 'nap' AND status = 'pending'")
    await load.pile("nap", max(0, PILE - waiting))


# ── The verdict ──


def robbed(world: World) -> Iterator[Violation]:
    """Yield the rescues of runs that had begun. If a claimed run never began, the reply to the claim was lost: that is
    allowed."""
    for life in world.lives:
        for step in life.steps:
            if step.move == "rescue" and step.version in life.runs:
                text = f"{step} took it from {step.before and step.before['locked_by']}, which was alive"
                yield Violation("ROBBED", life.id, text)


def tries(worker: WorkerProcess) -> int:
    """Return how often one loop of the worker has failed to reach the server, in its longest series."""
    return max((int(said) for said in re.findall(r"is back after (\d+) failed tries", worker.output)), default=0)


def recovery(world: World, outage: Outage) -> float:
    """Return the seconds from the server's return until the rate of claims was back."""
    gone, back = world.by_database(outage.gone), world.by_database(outage.back)
    assert gone is not None
    assert back is not None
    claims = sorted(claim.at for life in world.lives for claim in life.claims.values())

    def rate(since: float, seconds: float) -> float:
        return (bisect.bisect(claims, since + seconds * 1e6) - bisect.bisect(claims, since)) / seconds

    wanted = RECOVERED * rate(gone - BEFORE * 1e6, BEFORE)
    tenths = 0
    while rate(back + tenths * 1e5, WINDOW) < wanted and back + tenths * 1e5 < claims[-1]:
        tenths += 1
    return tenths / 10
