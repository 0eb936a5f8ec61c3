"""Simulated fleets: no invariant is ever broken, and every way of breaking the product is noticed.

A seed that fails says how to see it again. Its trace shows every call, handler and fault in virtual time.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from rowlock.client.enqueue import safe_insert
from rowlock.core.job import Job, Lane, Status, new_job
from rowlock.core.moves import Signal, SignalSent
from rowlock.errors import OutcomeUnknown
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Claim, Store
from rowlock.stores.group import Group
from tests.proof.simulation import simulate, simulate_all
from tests.proof.simulation_handlers import WAITING
from tests.proof.simulation_loop import Stuck, VirtualLoop
from tests.proof.simulation_sabotage import SABOTAGES, WAIT_SABOTAGES, Break
from tests.proof.simulation_store import Line, Weather
from tests.proof.simulation_world import Machine, World, inhabited

SLOTS = 2
CHUNK = 50  # seeds of one test, so that several processes share them
SEEDS = 100
ALL_SEEDS = 20_000
NOTICED_WITHIN = 200  # seeds

# Each seed has found a bug once. A busy store was taken for the answer to an unknown insert. A run was started after
# its lease had run out. A wedged run was not told that another worker had taken its job. A run was cancelled before its
# blocked worker had heard of its claim. The seeds are useful as long as the simulation draws its random numbers in the
# same order.
REGRESSIONS = (281, 731, 753, 1602, 3748, 10291, 10625, 11857, 13792, 15755, 1470413957)


def check(seeds: Iterable[int]) -> None:
    tally = simulate_all(seeds)
    print(tally)
    assert not tally.violations, "\n".join(tally.violations)
    assert tally.executions > tally.seeds


@pytest.mark.parametrize("first", range(1, SEEDS, CHUNK))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    check(range(first, first + CHUNK))


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(SEEDS + 1, ALL_SEEDS, 1000))
def test_thousands_of_seeds_break_no_invariant(first: int) -> None:
    check(range(first, first + 1000))


def test_seeds_that_have_found_something_stay_quiet() -> None:
    check(REGRESSIONS)


def test_a_seed_shows_the_same_run_each_time_and_in_every_process() -> None:
    shown = [simulate(seed).fingerprint() for seed in (7, 8, 9)]
    assert [simulate(seed).fingerprint() for seed in (7, 8, 9)] == shown
    assert len(set(shown)) == 3
    elsewhere = "from tests.proof.simulation import simulate; print(*(simulate(n).fingerprint() for n in (7, 8, 9)))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[2])}
    told = subprocess.run(
        [sys.executable, "-c", elsewhere], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == shown


@pytest.mark.parametrize(("break_it", "climate", "seed"), SABOTAGES, ids=[one.__name__ for one, _, _ in SABOTAGES])
def test_sabotage_is_noticed(
    break_it: Break, climate: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert any(simulate(one, **climate).violations for one in (seed, *range(1, NOTICED_WITHIN)))


@pytest.mark.parametrize(
    ("break_it", "climate", "seed"), WAIT_SABOTAGES, ids=[one.__name__ for one, _, _ in WAIT_SABOTAGES]
)
def test_sabotage_of_waits_is_noticed(
    break_it: Break, climate: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    seeds = (seed, *range(WAITING, WAITING * 50, WAITING))
    assert any(simulate(one, **climate).violations for one in seeds)


# ── Waits of several days ──

SLOW = {"lease": 600.0, "poll": 60.0, "maintenance": 120.0, "notice": 60.0}  # otherwise simulated days take minutes
DAY = 86_400.0


def _three_days(world: World) -> str:
    """Enqueue a job that waits for three days at most, and return its id."""
    job = new_job(world.ids.one(), "mails", {"steps": [f"wait {(3 * DAY - 0.3) / 8}"]})
    world.database.insert([job])
    return job.id


async def _deploy(world: World, old: Machine) -> Machine:
    """Stop the old worker, and return the new one."""
    await world.stop(old)
    return await world.boot()


async def _waits(world: World, job_id: str) -> None:
    while world.database.read([job_id], Job)[job_id].status is not Status.WAITING:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(1.0)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_a_signal_after_two_days_and_a_deploy_is_answered_at_once() -> None:
    async def story(world: World) -> None:
        machine = await world.boot()
        job_id = _three_days(world)
        await _waits(world, job_id)
        await asyncio.sleep(DAY)
        assert world.database.read([job_id], Job)[job_id].status is Status.WAITING
        await _deploy(world, machine)
        await asyncio.sleep(DAY)
        line = Line(world.network, "client")
        [changed] = await line.move([job_id], Signal(by="ann", sent=SignalSent("go", '"yes"', "s1")))
        assert changed.done
        await line.ring()
        await asyncio.sleep(2 * SLOW["poll"])
        assert world.wait_values == [(job_id, "go", "yes")]

    in_a_world(story, **SLOW)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_a_wait_times_out_after_three_days_and_not_before() -> None:
    """Deploys and replays of the handler don't move the deadline."""

    async def story(world: World) -> None:
        machine = await world.boot()
        job_id = _three_days(world)
        await _waits(world, job_id)
        for _ in range(2):
            await asyncio.sleep(DAY)
            machine = await _deploy(world, machine)
        await asyncio.sleep(DAY - 2 * SLOW["poll"])
        assert world.wait_values == []
        await asyncio.sleep(SLOW["lease"])
        assert world.wait_values == [(job_id, "go", "nothing")]
        assert len(world.runs) == 2

    in_a_world(story, **SLOW)


# ── Bugs that seeds have found, each alone ──


def in_a_world(story: Callable[[World], Awaitable[None]], **settings: Any) -> World:
    world = World(0, WorkerSettings(**{"lease": 3.0, "maintenance": 1.0, **settings}), Weather(latency=0.1))
    with inhabited(world):
        world.loop.run(_told(story, world))
        world.close()
    return world


async def _told(story: Callable[[World], Awaitable[None]], world: World) -> None:
    await story(world)


@pytest.mark.parametrize("second", ["busy", "refused", "unsent", "unheard"])
def test_an_insert_whose_reply_is_lost_is_asked_about_until_there_is_an_answer(second: str) -> None:
    async def story(world: World) -> None:
        line = Line(world.network, "client")
        line.script = ["unheard", second, second]
        made = await Group(safe_insert(cast(Store, line))).call(new_job(world.ids.one(), "mails"))
        assert not made.existing
        assert world.database.conn.execute("SELECT id FROM _jobs").fetchall() == [(made.id,)]

    in_a_world(story)


def test_an_insert_that_can_not_be_asked_about_stays_unknown() -> None:
    async def story(world: World) -> None:
        line = Line(world.network, "client")
        line.script = ["unheard", *["busy"] * 100]
        with pytest.raises(OutcomeUnknown):
            await Group(safe_insert(cast(Store, line))).call(new_job(world.ids.one(), "mails"))

    in_a_world(story)


def test_a_worker_that_was_stopped_while_its_claim_was_answered_does_not_start_what_it_has_lost() -> None:
    async def story(world: World) -> None:
        sleeper, other = await world.boot(), await world.boot()
        other.line.cut_until = world.loop.time() + 2.0
        world.database.insert([new_job(world.ids.one(), "mails", {"steps": ["work 0.1"]})])
        while not world.database.held_by([sleeper.name]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        sleeper.freeze(12.0)
        await asyncio.sleep(20.0)
        assert [(run.worker, run.version) for run in world.runs] == [(other.name, 2)]

    in_a_world(story)


def test_a_handler_that_blocks_its_thread_for_longer_than_a_lease_keeps_its_job() -> None:
    async def story(world: World) -> None:
        for _ in range(2):
            await world.boot()
        world.database.insert([new_job(world.ids.one(), "mails", {"steps": ["block 1.2"]}, timeout=60.0)])
        await asyncio.sleep(20.0)
        assert [run.version for run in world.runs] == [1]
        assert world.database.stats().topics["mails"].completed == 1

    in_a_world(story)


def test_a_claim_that_a_blocked_thread_has_not_heard_of_is_renewed() -> None:
    async def story(world: World) -> None:
        sleeper = await world.boot()
        job_id = await _unheard(world, sleeper)
        sleeper.main.hold(12.0)  # its heartbeat thread goes on
        await world.boot()
        await asyncio.sleep(20.0)
        assert [(run.worker, run.version) for run in world.runs if run.job_id == job_id] == [(sleeper.name, 1)]

    in_a_world(story)


async def _unheard(world: World, machine: Machine) -> str:
    """Return the id of a job that the machine has claimed and does not know of yet: the reply is under way."""
    assert machine.worker is not None
    while True:
        for beat in world.database.held_by([machine.name]):
            if (beat.id, beat.version) not in machine.worker.slots.runs:
                return str(beat.id)
        if not world.database.stats().topics.get("mails") or not world.database.stats().topics["mails"].pending:
            world.database.insert([new_job(world.ids.one(), "mails", {"steps": ["work 0.1"]})])
        await asyncio.sleep(0.001)


def test_a_claim_that_nobody_has_asked_for_any_more_is_given_back() -> None:
    """The server carried out the claim after the worker had given it up. The worker must not renew that lease for
    ever."""

    async def story(world: World) -> None:
        machine = await world.boot()
        [made] = world.database.insert([new_job(world.ids.one(), "mails", {"steps": ["work 0.1"]})])
        world.database.claim(Claim(machine.name, (Lane("mails"),), 1, world.settings.lease))
        await asyncio.sleep(5 * world.settings.lease)
        assert [(run.worker, run.version) for run in world.runs] == [(machine.name, 2)]
        assert world.database.read([made.id], Job)[made.id].crashes == 0

    in_a_world(story)


def test_no_more_jobs_than_slots_are_marked_and_have_not_begun() -> None:
    """This holds at every moment for jobs on their last try. If their worker dies, the marked ones become dead
    letters."""

    async def story(world: World) -> None:
        machine = await world.boot()
        job = {"steps": ["work 0.001"]}
        world.database.insert([new_job(world.ids.one(), "mails", job, max_retries=0) for _ in range(300)])
        most_held = 0
        while len(world.runs) < 300:
            await asyncio.sleep(0.001)
            held = world.database.held_by([machine.name])
            most_held = max(most_held, len(held))
            assert len({beat.id for beat in held if beat.started} - {run.job_id for run in world.runs}) <= SLOTS
        assert most_held > 10 * SLOTS

    in_a_world(story, concurrency=SLOTS)


def test_a_run_is_on_the_board_until_it_is_settled() -> None:
    """Until then, something that its handler left behind may kill the process."""

    async def story(world: World) -> None:
        machine = await world.boot()
        assert machine.worker is not None
        [made] = world.database.insert([new_job(world.ids.one(), "mails", {"steps": ["work 0.1"]})])
        while not (world.runs and world.runs[0].ended):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        assert machine.worker.slots.running_board.running() == [(made.id, 1)]
        await asyncio.sleep(5.0)
        assert world.database.stats().topics["mails"].completed == 1
        assert machine.worker.slots.running_board.running() == []

    in_a_world(story)


# ── The loop itself ──


def test_the_loop_notices_when_nothing_can_happen_any_more() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    loop = VirtualLoop(0.0)
    with pytest.raises(Stuck, match="ever happen again"):
        loop.run(wait_for_ever())
    loop.end([])


def test_the_loop_notices_who_spins() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - that is the point
            await asyncio.sleep(0)

    loop = VirtualLoop(0.0)
    with pytest.raises(Stuck, match="without time passing"):
        loop.run(spin())
    loop.end([])
