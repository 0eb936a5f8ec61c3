"""Flows: every child runs after its parents and once, joins fire once, and no job stays blocked, whatever happens."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rowlock.core.flows import ReleaseHold
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed, Outcome
from rowlock.core.moves import Cancel, Requeue
from rowlock.stores import reading
from rowlock.stores.base import Store
from tests.databases import KINDS, Databases
from tests.proof.flow_world import FlowWorld
from tests.stores.flow_maker import Made, claim, end, made, make, node, tick
from tests.stores.harness import Harness, harness_at, settlement
from tests.stores.processes import deadlocks, real_job

FULL = os.environ.get("ROWLOCK_PROOF") == "full"
SEEDS = {"sqlite": 1000 if FULL else 12, "postgres": 300 if FULL else 3}
PARTS = 10 if FULL else 1  # parts of the test that may run side by side
STEPS = 80
LARGEST = 50 if FULL else 12

pytestmark = pytest.mark.timeout(7200)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
async def test_flows_do_what_the_oracle_says(kind: str, part: int, databases: Databases, tmp_path: Path) -> None:
    began, count = time.monotonic(), Counter[str]()
    seeds = range(part, SEEDS[kind], PARTS)
    async with harness_at(kind, databases, tmp_path, virtual=True, check=False) as harness:
        for seed in seeds:
            world = FlowWorld(harness, seed, largest=LARGEST)
            try:
                await world.play(STEPS)
            except BaseException as error:
                error.add_note(f"seed {seed} on {kind}")
                raise
            count.update(flows=len(world.flows), jobs=len(world.jobs), starts=world.count["starts"])
    told = ", ".join(f"{number} {what}" for what, number in count.items())
    print(f"flows: 0 violations, {len(seeds)} seeds, {told}, {time.monotonic() - began:.1f} s")


# ── At the same moment, on two connections, by the real clock ──


class Racers(NamedTuple):
    """Two stores, as two processes would have them, and the harness that looks into the tables."""

    harness: Harness
    left: Store
    right: Store


async def _at_rest(racers: Racers) -> None:
    """Wait until no note is left. A store that has started a job unblocks the others in the background: the left store
    may find the last notes locked by the right one, whose own tick waits for them."""
    await tick(racers.left)
    await tick(racers.right)


async def _settled(store: Store, job: Job, outcome: Outcome) -> None:
    await store.settle([settlement(job, outcome, ran=0.0)])


async def _two_parents(racers: Racers, n: int) -> None:
    """Both parents end, well or badly. Their child starts once, or is cancelled once."""
    policy = ("cancel", "run")[n % 2]
    flow = await made(racers.left, {"a": node(), "b": node(), "c": node("a", "b", if_failed=policy), "d": node("c")})
    a, b = await flow.runs("a", "b")
    bad = n % 3 == 2
    await asyncio.gather(
        _settled(racers.left, a, Failed("no", final=True) if bad else Completed()),
        _settled(racers.right, b, Completed()),
    )
    await _at_rest(racers)
    expected = "cancelled" if bad and policy == "cancel" else "pending"
    assert (await flow.statuses())["c"] == expected
    events = [one.event for one in await reading.events(racers.left, flow["c"])]
    assert events == ["enqueued", "cancelled" if expected == "cancelled" else "unblocked"]
    if expected == "pending":
        await flow.run("c")
        await flow.run("d")
    assert "blocked" not in (await flow.statuses()).values()


async def _an_end_and_a_flow(racers: Racers, n: int) -> None:
    """A job ends while a flow that waits for it is made."""
    run = await _claimed(racers)
    flow = make({"a": node(run.id), "b": node("a")})
    await asyncio.gather(_settled(racers.left, run, Completed()), racers.right.insert_flow(flow))
    await _at_rest(racers)
    known = Made(racers.left, flow)
    await known.run("a")
    await known.run("b")


async def _an_end_and_a_cancel(racers: Racers, n: int) -> None:
    """The child is cancelled while its last parent ends. It ends as cancelled, and the jobs that wait for it are
    told."""
    flow = await made(racers.left, {"a": node(), "b": node("a"), "c": node("b"), "d": node("b", if_failed="run")})
    [a] = await flow.runs("a")
    await asyncio.gather(_settled(racers.left, a, Completed()), racers.right.move([flow["b"]], Cancel(by="ann")))
    await _at_rest(racers)
    assert await flow.statuses() == {"a": "completed", "b": "cancelled", "c": "cancelled", "d": "pending"}
    await flow.run("d")


async def _an_end_and_a_requeue(racers: Racers, n: int) -> None:
    """A parent completes or fails while the other parent, which had failed, is requeued."""
    flow = await made(racers.left, {"a": node(), "b": node(), "c": node("a", "b"), "d": node("c")})
    a, b = await flow.runs("a", "b")
    await end(racers.left, a, Failed("no", final=True))
    bad = n % 2 == 1
    await asyncio.gather(
        racers.left.move([flow["a"]], Requeue(by="ann")),
        _settled(racers.right, b, Failed("no", final=True) if bad else Completed()),
    )
    await _at_rest(racers)
    expected = "cancelled" if bad else "blocked"
    assert await flow.statuses() == {
        "a": "pending",
        "b": "failed" if bad else "completed",
        "c": expected,
        "d": expected,
    }
    await flow.run("a")
    assert (await flow.statuses())["c"] == ("cancelled" if bad else "pending")
    for run in await claim(racers.left):
        await end(racers.left, run)
    for run in await claim(racers.left):
        await end(racers.left, run)


async def _two_releases(racers: Racers, n: int) -> None:
    """Two operators release one job at once. One is told that it is released, the other one the same, or that nothing
    holds it any more."""
    flow = await made(racers.left, {"a": node(), "b": node("a", if_failed="hold"), "c": node("b")})
    await flow.run("a", Failed("no", final=True))
    order = ReleaseHold(by="ann")
    await asyncio.gather(*(store.move([flow["b"]], order) for store in (racers.left, racers.right)))
    await _at_rest(racers)
    await flow.run("b")
    await flow.run("c")
    events = [one.event for one in await reading.events(racers.left, flow["b"])]
    assert events.count("unblocked") == 1


async def _claimed(racers: Racers) -> Job:
    job = real_job()
    await racers.left.insert([job])
    [run] = await claim(racers.left)
    assert run.id == job.id
    return run


RACES: dict[str, Callable[[Racers, int], Awaitable[None]]] = {
    "two parents": _two_parents,
    "an end and a flow": _an_end_and_a_flow,
    "an end and a cancel": _an_end_and_a_cancel,
    "an end and a requeue": _an_end_and_a_requeue,
    "two releases": _two_releases,
}
ROUNDS = {"two parents": 10_000 if FULL else 60}
FEWER = 1000 if FULL else 15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("race", RACES)
async def test_two_at_once(kind: str, race: str, databases: Databases, tmp_path: Path) -> None:
    began, rounds = time.monotonic(), ROUNDS.get(race, FEWER)
    async with harness_at(kind, databases, tmp_path, virtual=False) as harness:
        racers = Racers(harness, harness.store, await harness.another())
        before = await deadlocks(harness)
        for n in range(rounds):
            try:
                await RACES[race](racers, n)
            except BaseException as error:
                error.add_note(f"round {n}")
                raise
        assert await deadlocks(harness) == before
    print(f"flow races: 0 violations, {rounds} rounds, {time.monotonic() - began:.1f} s")
