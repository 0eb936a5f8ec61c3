"""One performance of a case: something goes wrong at a fail-point, the survivor cleans up, the checker judges the
history."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rowlock.errors import StoreError
from rowlock.stores import open_store
from tests.closing import opening
from tests.proof.checker import check
from tests.proof.crash_case import Actor, Case
from tests.proof.crash_child import Victims
from tests.proof.crash_stage import Facts, Stage
from tests.proof.fail_points import Point, Trap, hang_up, trapped
from tests.proof.lives import World
from tests.stores.test_kill import BACKENDS


@asynccontextmanager
async def opened_stage(url: str) -> AsyncIterator[Stage]:
    store = open_store(url)
    await store.open()
    stage = Stage(url, store)
    try:
        yield stage
    finally:
        await stage.tables.close()
        await store.close()


async def perform(stage: Stage, case: Case, facts: Facts, point: Point | None) -> int:
    """Perform the case in this process, and lose the reply at `point`. Return the number of calls that it took."""
    trap = Trap()
    with trapped(trap):
        async with opening(open_store(stage.url)) as store:
            actor = Actor(stage.url, store, trap, facts)
            act = await case.ready(actor)
            trap.set(point, hang_up)
            try:
                await act()
                calls = trap.calls
            except (StoreError, OSError):  # the application's own statement fails with an error of the driver
                await (case.recover(actor, act) if case.recover else act())
                calls = trap.calls
    return calls


async def judge(stage: Stage, case: Case, facts: Facts, least: int, most: int | None) -> None:
    await stage.drain()
    facts["business"], facts["starts"] = await stage.business(), await stage.starts()
    history = await stage.history()
    for operation in history.operations:
        if operation.verb in ("transaction", "complete") and operation.detail is not None:
            operation.detail["row_visible"] = operation.ids[0] in facts["business"]
    found = check(history)
    assert found == [], found
    happened = case.effect(history, facts)
    assert least <= happened
    assert most is None or happened <= most
    completions = sum(step.move == "complete" for life in World(history).lives for step in life.steps)
    assert await stage.completed() == completions
    await stage.clear()


async def swallow(stage: Stage, case: Case, point: Point) -> None:
    facts = await case.prepare(stage)
    await perform(stage, case, facts, point)
    if case.asks:
        told = "ok" if case.repeats else "unknown"
        stage.asked(case.asks, facts["ids"], told)
    await judge(stage, case, facts, 1 if case.repeats else 0, 1 if case.once else None)


async def kill(stage: Stage, case: Case, point: Point, calls: int, victims: Victims) -> None:
    facts = await case.prepare(stage)
    before = set(await stage.tables.fetch(BACKENDS)) if stage.tables.kind == "postgres" else set()
    await victims.perform(stage.url, case.name, facts, point)
    while before and len(await stage.tables.fetch(BACKENDS)) > len(before):
        pass  # wait for the server to finish the dead client's last statement; each query takes a round trip
    if case.asks:
        stage.asked(case.asks, facts["ids"], "unknown")
    happened = case.name in ("promote", "fold counts")  # if the actor died too early, the survivor has done it
    least = 1 if happened or point == (calls, True) else 0
    most = 0 if point == (1, False) and not happened else 1
    await judge(stage, case, facts, least, most if case.once else None)


def points(calls: int) -> list[Point]:
    return [Point(n, after) for n in range(1, calls + 1) for after in (False, True)]


async def count_calls(stage: Stage, case: Case) -> int:
    facts = await case.prepare(stage)
    calls = await perform(stage, case, facts, None)
    if case.asks:
        stage.asked(case.asks, facts["ids"], "ok")
    await judge(stage, case, facts, 1, 1 if case.once else None)
    return calls
