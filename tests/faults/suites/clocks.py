"""The wall clocks of workers and producers are wrong by an hour, run too fast, stand still, or are set back and forth
while they work. No time that counts may change, because every such time comes from the database."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

from rowlock.jobs import Jobs
from tests.faults.clocks import HOUR, Clock, compiled, why_not
from tests.faults.load import Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import LEASE, ROOT, SLACK, Stage
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.lives import Step, World

WORKERS, PRODUCERS = 3, 2
SECONDS = 8.0  # seconds of every run
PAUSE = 0.06  # seconds between enqueues of a producer
TICK = 0.05
STAMPS = ("created", "updated", "claimed_at", "started_at", "finished_at", "cancel_requested_at")
Way = Callable[[Stage, Clock, int], Awaitable[None]]
FAR = SLACK * 1e6  # microseconds: a busy machine may cause a smaller difference


async def run(cell: Cell) -> Result:
    if said := why_not():
        result = cell.result()
        result.not_run = said
        return result
    async with on_server(cell, app="tests.faults.clocks_app:jobs") as (stage, _server), Jobs(stage.url) as jobs:
        stage.settings["stop_slack"] = SLACK
        library = compiled(stage.folder)
        clocks = [Clock(library, stage.folder / f"clock-{n}") for n in range(WORKERS + PRODUCERS)]
        await clocks[0].prove()
        load = Load(stage, jobs)
        ways = [shifted, drifting, stepping, everything]
        for n in range(cell.scale.clocks):
            async with load.going_on(rate=10, least=0):
                await with_wrong_clocks(stage, clocks, ways[n % len(ways)])
            await stage.drained()
            await stage.stop_all()
        result = await stage.judged(cell.result(runs=cell.scale.clocks))
        world = World(stage.histories[-1])
        result.violations += await asyncio.to_thread(lambda: [*by_another_clock(world), *wrong_delays(world)])
        result.figures |= lateness(world)
        return result


async def with_wrong_clocks(stage: Stage, clocks: list[Clock], way: Way) -> None:
    """Run workers and producers that have had these clocks since their start."""
    moving = [asyncio.ensure_future(way(stage, clock, n)) for n, clock in enumerate(clocks)]
    try:
        await asyncio.sleep(0)  # now each clock is wrong
        workers = [stage.launch(processes=1, app=None, **clock.env) for clock in clocks[:WORKERS]]
        for worker in workers:
            await stage.fleet.working(worker)
        async with producing(stage, clocks[WORKERS:]):
            await asyncio.sleep(SECONDS)
        for task in moving:
            assert not task.done() or task.exception() is None
    finally:
        for task in moving:
            task.cancel()
        await asyncio.gather(*moving, return_exceptions=True)


@asynccontextmanager
async def producing(stage: Stage, clocks: list[Clock]) -> AsyncIterator[None]:
    words = ("-m", "tests.faults.producer", stage.url, str(stage.folder / "record"))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    producers = [
        await asyncio.create_subprocess_exec(
            sys.executable, *words, str(stage.chance.randrange(1 << 30)), str(PAUSE), env={**env, **clock.env}, stdin=-1
        )
        for clock in clocks
    ]
    try:
        yield
    finally:
        codes = []
        for producer in producers:
            await producer.communicate(b"")  # closes its stdin, so that it ends
            codes.append(producer.returncode)
    assert not any(codes), f"producers ended with {codes}"


# ── Ways in which a clock is wrong ──


async def shifted(stage: Stage, clock: Clock, n: int) -> None:
    """Set every other clock an hour ahead, and the rest an hour behind."""
    put(stage, clock, (HOUR, -HOUR)[n % 2])


async def drifting(stage: Stage, clock: Clock, n: int) -> None:
    """Let the clock run too fast (2 or 1.5 times), stand still, or run at half speed."""
    put(stage, clock, 0.0)
    while True:
        await asyncio.sleep(TICK)
        clock.wrong += TICK * (1.0, -1.0, 0.5, -0.5)[n % 4]


async def stepping(stage: Stage, clock: Clock, n: int) -> None:
    """Set the clock back and forth all the time."""
    while True:
        put(stage, clock, stage.chance.choice((0.0, HOUR, -HOUR, 30.0, -30.0)))
        await stage.pause(0.2, 1.0)


async def everything(stage: Stage, clock: Clock, n: int) -> None:
    while True:
        put(stage, clock, stage.chance.uniform(-HOUR, HOUR))
        fast = stage.chance.uniform(-1.0, 1.0)
        for _ in range(stage.chance.randrange(5, 40)):
            await asyncio.sleep(TICK)
            clock.wrong += TICK * fast


def put(stage: Stage, clock: Clock, wrong: float) -> None:
    if abs(clock.wrong - wrong) > 1.0:
        stage.record.fault("clock step", clock.name)
    clock.wrong = wrong


# ── The verdict ──


def by_another_clock(world: World) -> Iterator[Violation]:
    """If a step writes its time, that is the time of the database. Leases and delays count from it."""
    for life in world.lives:
        for step in life.steps:
            for problem in wrong_times(step):
                yield Violation("CLOCK", life.id, f"{step} at {step.at}: {problem}")


def wrong_times(step: Step) -> Iterator[str]:
    before, after = step.before or {}, step.after
    if after is None:
        return
    for name in STAMPS:
        if after[name] is not None and after[name] != before.get(name) and abs(after[name] - step.at) > FAR:
            yield f"{name} is {after[name]}"
    for entry in step.entries:
        if abs(entry["at"] - step.at) > FAR:
            yield f"it is on record for {entry['at']}"
    if step.move in ("claim", "heartbeat") and abs(after["locked_until"] - step.at - LEASE * 1e6) > FAR:
        yield f"the lease lasts until {after['locked_until']}"
    if step.move in ("fail", "snooze") and after["status"] == "pending":
        due = step.at + float(step.said("delay") or 0.0) * 1e6
        if after["topic"] == "until":
            due = max(step.at, after["created"] + after["payload"]["seconds"] * 1e6)
        if abs(after["run_at"] - due) > FAR:
            yield f"it is due at {after['run_at']}, not at {due:.0f}"


def wrong_delays(world: World) -> Iterator[Violation]:
    """A job with a `delay` is due that many seconds after its enqueue."""
    for operation in world.history.operations:
        delay = (operation.detail or {}).get("delay")
        if delay is None or operation.outcome != "ok":
            continue
        for job_id in operation.ids:
            for life in world.by_id.get(job_id, ()):
                row = life.steps[0].after
                if row is not None and abs(row["run_at"] - life.steps[0].at - delay * 1e6) > FAR:
                    yield Violation("CLOCK", job_id, f"was to run after {delay} s, and is due at {row['run_at']}")


def lateness(world: World) -> dict[str, float]:
    late = [
        (step.after["claimed_at"] - step.before["run_at"]) / 1e6
        for life in world.lives
        for step in life.claims.values()
        if step.before is not None and step.after is not None
    ]
    rescued = sum(step.move == "rescue" for life in world.lives for step in life.steps)
    return {"s from due to claimed (longest)": round(max(late, default=0.0), 2), "leases lost": rescued}
