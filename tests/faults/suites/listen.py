"""Listeners are lost: their backends are terminated, or their connections become half open, so that no notification
arrives. All are lost at once, so no worker hears any. Meanwhile polling finds the jobs. The listeners heal by
themselves."""

import asyncio
import statistics
from contextlib import AsyncExitStack

from rowlock.jobs import Jobs
from rowlock.stores.postgres.doorbell import USUAL
from tests.faults.load import Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, SLACK, Stage
from tests.faults.suites import Cell
from tests.faults.wire import Wire
from tests.proof.history import Violation
from tests.proof.lives import Life, World
from tests.proof.recorder import now
from tests.waiting import until

WORKERS = 2
POLL = 6.0  # seconds: a worker that doesn't hear is late
LATE = SLACK / 2  # seconds that this machine may be late; with more, polling would look like healing
HEARD = 2.0  # seconds within which a worker that listens claims a job, at the median
CALM = 3.0  # seconds between losses, in which notifications are heard

# A LISTEN connection is known by its last statement: see doorbell.py.
LISTENERS = """SELECT pid FROM pg_stat_activity WHERE application_name = 'rowlock'
    AND query ~ '^LISTEN|rowlock[.]listener|pg_advisory_(un)?lock_shared'"""


class Loss:
    """A loss of all listeners. `began` and `healed` are microseconds."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.began = self.healed = 0

    @property
    def seconds(self) -> float:
        return (self.healed - self.began) / 1e6

    @property
    def allowed(self) -> float:
        """Return the seconds that healing may take: one check, and the patience with a connection that doesn't
        answer."""
        return USUAL.check + LATE + (USUAL.patience if self.kind == "half-open listener" else 0.0)


async def run(cell: Cell) -> Result:
    async with on_server(cell) as (stage, server), Jobs(stage.url) as jobs, AsyncExitStack() as stack:
        stage.settings["poll"] = POLL
        wires = [await stack.enter_async_context(Wire(server.host, server.port)) for _ in range(WORKERS)]
        launched = [stage.launch("--poll", f"{POLL}s", ROWLOCK_URL=wire.through(server.url())) for wire in wires]
        for worker in launched:
            await stage.fleet.working(worker)
        load = Load(stage, jobs, {"quick": {}})
        rounds = -(-cell.scale.deaf // WORKERS)
        losses = [Loss("half-open listener" if n % 5 in (1, 3) else "terminated listener") for n in range(rounds)]
        gone: set[int] = set()
        await all_listen(stage, gone)
        async with load.going_on(rate=4.0, least=0, callers=1, meddle=False):
            for loss in losses:
                await asyncio.sleep(CALM)
                await lose(stage, wires, loss, gone)
            await asyncio.sleep(CALM)
        result = await stage.finished(cell.result())
        judge(result, stage, losses)
        return result


async def lose(stage: Stage, wires: list[Wire], loss: Loss, gone: set[int]) -> None:
    """Break all listeners, and wait until all workers listen again."""
    for pid in (there := await listeners(stage, gone)):
        stage.record.fault(loss.kind, pid)
    loss.began = now()
    gone |= there
    frozen = [link for wire in wires for link in wire.links if link.listens and not link.frozen]
    if loss.kind == "half-open listener":
        for link in frozen:
            link.frozen = True
    else:
        await stage.tables.fetch(f"SELECT pg_terminate_backend(pid) FROM unnest(ARRAY{sorted(there)}) pid")
    await all_listen(stage, gone)
    loss.healed = now()
    if loss.kind == "half-open listener":
        for link in frozen:
            link.lose_server()


async def listeners(stage: Stage, gone: set[int]) -> set[int]:
    return {pid for (pid,) in await stage.tables.fetch(LISTENERS)} - gone


async def all_listen(stage: Stage, gone: set[int]) -> None:
    async def there() -> bool:
        return len(await listeners(stage, gone)) >= WORKERS

    await until(there, what="listeners", patience=PATIENCE)


# ── The verdict ──


def judge(result: Result, stage: Stage, losses: list[Loss]) -> None:
    world = World(stage.histories[-1])
    waits = [(life.steps[0].at, wait(life), life.id) for life in world.lives]
    for _, seconds, job_id in waits:
        if seconds > POLL + LATE:
            result.violations.append(Violation("L3", job_id, f"waited for {seconds:.1f} s, the poll is {POLL:g} s"))
    ends = [*(loss.began for loss in losses[1:]), now()]
    deaf: list[float] = []
    heard: list[float] = []
    for loss, end in zip(losses, ends, strict=True):
        if loss.seconds > loss.allowed:
            text = f"a {loss.kind} was back after {loss.seconds:.1f} s, {loss.allowed:g} s are allowed"
            result.violations.append(Violation("L4", None, text))
        began, healed, over = (world.by_database(at) or 0 for at in (loss.began, loss.healed, end))
        deaf += [seconds for at, seconds, _ in waits if began <= at < healed]
        after = [seconds for at, seconds, _ in waits if healed <= at < min(over, healed + CALM * 1e6)]
        if not after or statistics.median(after) > HEARD:
            text = f"after a {loss.kind} had healed, jobs waited for {statistics.median(after or [0]):.1f} s"
            result.violations.append(Violation("L4", None, text))
        heard += after
    result.figures |= {
        "s to listen again after a terminated backend (longest)": longest(losses, "terminated listener"),
        "s after a half-open connection (longest)": longest(losses, "half-open listener"),
        "s until a job was claimed while nobody listened (longest)": max(deaf, default=0.0),
        "s once they listened again (median)": statistics.median(heard),
    }


def wait(life: Life) -> float:
    return (life.claims[1].at - life.steps[0].at) / 1e6


def longest(losses: list[Loss], kind: str) -> float:
    return max((loss.seconds for loss in losses if loss.kind == kind), default=0.0)
