"""The actors of a simulated run: producers, an operator, signals, and chaos. The seed decides all that they do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from rowlock.client.enqueue import safe_insert
from rowlock.core.job import new_job
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    Delete,
    Edit,
    Order,
    ReportCallback,
    Requeue,
    Signal,
    SignalSent,
    Update,
    Wake,
)
from rowlock.errors import OutcomeUnknown, StoreError
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Changed, Store
from rowlock.stores.group import Group
from tests.proof.simulation_handlers import STEPPED, TOPICS, WAITING, stepped, steps, waiting
from tests.proof.simulation_store import Line, Weather
from tests.proof.simulation_world import World

FAULTS = ("kill", "kill_supervised", "freeze", "outage", "cut", "term", "jump")
LEASE = 3.0


class Plan(Struct):
    """The plan of a run, which its seed decides. Not every run has every kind of fault: a fault alone reaches
    further."""

    settings: WorkerSettings
    weather: Weather
    workers: int
    jobs: int
    tempo: float  # seconds that a handler takes, roughly
    seconds: float  # until calm
    faults: tuple[str, ...]
    operates: bool
    only: str | None = None  # the one kind of run that all handlers do
    haunted: bool = False  # inserts and claims may be ghosts, too: see GHOSTS


def plan_of(seed: int, **changes: Any) -> Plan:
    """Return the plan of a seed. `changes` replace what the seed decides."""
    chance = Random(f"{seed} plan")
    rate = chance.choice((0.0, 0.01, 0.04))
    some: dict[str, Any] = {
        kind: rate * chance.random() for kind in ("refused", "unsent", "unheard", "busy") if chance.random() < 0.6
    }
    late: dict[str, Any] = {kind: rate / 2 for kind in ("late", "ghost") if chance.random() < 0.3}
    poll = chance.choice((0.5, 1.0, 2.0, 2.0))
    plan = Plan(
        settings=WorkerSettings(
            concurrency=chance.choice((1, 2, 4)),
            lease=LEASE,
            poll=poll,
            grace=2.0,
            cancel_grace=1.5,
            notice=0.5,
            maintenance=chance.choice((1.5, 2.5)),
            listen=chance.random() < 0.7,
        ),
        weather=Weather(**some, **late, latency=chance.choice((0.005, 0.05, 0.2)), lateness=1.2 * LEASE),
        workers=chance.choice((2, 2, 2, 3)),
        jobs=chance.randint(5, 15),
        tempo=chance.choice((0.01, 0.3, 0.8)),
        seconds=chance.choice((4.0, 6.0, 10.0)),
        faults=tuple(kind for kind in FAULTS if chance.random() < 0.35),
        operates=chance.random() < 0.6,
    )
    return replace(plan, **changes)


# ── Producers ──


async def produce(world: World, plan: Plan, client: str, jobs: int) -> None:
    chance = world.chance(client)
    group = Group(safe_insert(cast(Store, Line(world.network, client))))
    for _ in range(jobs):
        await asyncio.sleep(chance.expovariate(jobs / (0.7 * plan.seconds)))
        with suppress(StoreError):
            await world.enqueue(group, client, _a_job(world, plan, chance))


def _a_job(world: World, plan: Plan, chance: Random) -> Any:
    now = datetime.fromtimestamp(world.database_clock() / 1e6, UTC)
    some: dict[str, Any] = {}
    if chance.random() < 0.25:
        some["key"], some["scope"] = f"k{chance.randrange(3)}", chance.choice([None, None, "a"])
    if chance.random() < 0.25:
        some["delay"] = chance.uniform(0, 4)
    if chance.random() < 0.08:
        some["expires_at"] = now + timedelta(seconds=chance.uniform(1, 10))
    return new_job(
        world.ids.one(),
        chance.choice(TOPICS),
        {"steps": _planned(world, steps(chance, plan.tempo, plan.only)), "talks": chance.random() < 0.3},
        priority=chance.choice((0, 0, 5)),
        max_retries=chance.choice((0, 1, 3)),
        timeout=chance.choice((2.0, 5.0)),
        **some,
    )


def _planned(world: World, runs: list[str]) -> list[str]:
    """Return the runs of a job. In every fifth seed, jobs take durable steps; in every seventh, they wait."""
    if is_waiting(world):
        return [waiting(runs[0])]
    return list(map(stepped, runs)) if world.seed % STEPPED == STEPPED - 1 else runs


# ── The operator ──


async def operate(world: World, plan: Plan) -> None:
    chance = world.chance("operator")
    line = Line(world.network, "operator")
    while True:
        await asyncio.sleep(chance.expovariate(12 / plan.seconds))
        verb = chance.choices(("cancel", "requeue", "update", "delete", "pause", "resume"), (12, 3, 3, 1, 1, 2))[0]
        with suppress(StoreError):
            if verb in ("pause", "resume"):
                await _steer_topic(world, line, verb, chance.choice(TOPICS))
            else:
                await _steer_jobs(world, line, verb, chance)


async def _steer_topic(world: World, line: Line, verb: str, topic: str) -> None:
    with world.operation(verb, "operator", (), {"topic": topic}):
        await line.steer_topic(topic, verb, by="operator")


async def _steer_jobs(world: World, line: Line, verb: str, chance: Random) -> None:
    known = [one.ids[0] for one in world.operations if one.verb == "enqueue" and one.outcome == "ok"]
    if not known:
        return
    ids = sorted({chance.choice(known) for _ in range(chance.choice((1, 1, 3)))})
    order: Order
    match verb:
        case "cancel":
            order = Cancel(by="operator")
        case "requeue":
            order = Requeue(by="operator")
        case "update":
            order = Update(by="operator", edit=Edit(priority=chance.randrange(9), delay=chance.uniform(0, 2)))
        case _:
            order = Delete(by="operator")
    with world.operation(verb, "operator", ids) as say:
        changed: list[Changed] = await line.move(ids, order)
        say({one.id: {"done": one.done, "status": one.status} for one in changed})


# ── Signals, and outside systems ──


def is_waiting(world: World) -> bool:
    return world.seed % WAITING == 0


class _Refused(StoreError):
    """The job takes no such signal."""


async def send_signals(world: World, plan: Plan) -> None:
    """Act as three actors. Clients signal jobs, and repeat each signal until there is an answer. An outside system
    answers callbacks, sometimes twice at once. An operator wakes jobs."""
    chance = world.chance("signals")
    while True:
        await asyncio.sleep(chance.expovariate(30 / plan.seconds))
        known = [one.ids[0] for one in world.operations if one.verb == "enqueue" and one.outcome == "ok"]
        if not known:
            continue
        task: Any
        if chance.random() < 0.1:
            task = _order(world, chance.choice(known), Wake(by="operator"))
        elif world.calls_made and chance.random() < 0.4:
            task = _answer(world, chance, chance.choice(world.calls_made))
        else:
            world.signals += 1
            sent = SignalSent("go", f'"s{world.signals}"', f"s{world.signals}")
            task = insist(world, chance.choice(known), sent)
        world.loop.create_task(task)


async def insist(world: World, job_id: str, sent: SignalSent, number: int | None = None) -> None:
    """Send a signal until there is an answer."""
    line, unknown = Line(world.network, "signaller"), False
    detail = {"name": sent.name, "id": sent.id, "data": sent.data.strip('"')}
    for _ in range(20):
        with suppress(StoreError):
            try:
                with world.operation("signal", "signaller", (job_id,), detail) as say:
                    [changed] = await line.move([job_id], Signal(by="signaller", sent=sent, number=number))
                    known = changed.why == "known" and unknown
                    if known and number is not None:  # it is not known by which of the two answers
                        raise OutcomeUnknown("a callback is answered once")
                    if not changed.done and not known:
                        raise _Refused(str(changed))
                    say({"known": known})
                await line.ring()
                return
            except OutcomeUnknown:
                unknown = True
            except _Refused:
                return
        await asyncio.sleep(0.3)


async def _answer(world: World, chance: Random, call: tuple[str, str, int]) -> None:
    job_id, signal, n = call
    match chance.choice(("answer", "answer", "report", "stopped")):
        case "report":
            await _order(world, job_id, ReportCallback(by="outside", signal=signal, number=n, timeout=1.0, percent=7.0))
        case "stopped":
            await _order(world, job_id, AcknowledgeCallback(by="outside", signal=signal, number=n))
        case _:
            both = []
            for _ in range(chance.choice((1, 2))):
                world.signals += 1
                both.append(
                    insist(world, job_id, SignalSent(signal, f'"s{world.signals}"', f"@callback:{signal}#{n}"), n)
                )
            await asyncio.gather(*both)


async def _order(world: World, job_id: str, order: Order) -> None:
    with suppress(StoreError), world.operation(order.verb, "operator", (job_id,)):
        await Line(world.network, "operator").move([job_id], order)


# ── Chaos ──


async def disturb(world: World, plan: Plan) -> None:
    chance = world.chance("chaos")
    if not plan.faults:
        return
    while True:
        await asyncio.sleep(chance.expovariate(len(plan.faults) / 4))
        await _FAULTS[chance.choice(plan.faults)](world, chance)


async def _kill(world: World, chance: Random) -> None:
    """Kill a worker without a supervisor that notices it: its leases must run out."""
    alive = world.alive()
    if alive:
        dead = chance.choice(alive)
        world.fault("kill", dead.name)
        dead.kill()
        _boot_later(world, chance)


async def _kill_supervised(world: World, chance: Random) -> None:
    alive = world.alive()
    if alive:
        dead = chance.choice(alive)
        world.fault("kill", dead.name)
        dead.kill()
        await asyncio.sleep(0.1)
        await world.take_back(dead)
        _boot_later(world, chance)


async def _freeze(world: World, chance: Random) -> None:
    alive = world.alive()
    if alive:
        frozen = chance.choice(alive)
        world.fault("stop", frozen.name)
        seconds = LEASE * chance.uniform(0.3, 3)
        frozen.freeze(seconds)
        world.loop.call_later(seconds, world.fault, "cont", frozen.name)


async def _outage(world: World, chance: Random) -> None:
    world.network.go_down(LEASE * chance.choice((0.1, 0.5, 1.5)) * chance.uniform(0.5, 1.5))
    world.fault("outage", "database")


async def _cut(world: World, chance: Random) -> None:
    alive = world.alive()
    if alive:
        lonely = chance.choice(alive)
        lonely.line.cut_until = world.loop.time() + LEASE * chance.uniform(0.2, 2)
        world.fault("cut", lonely.name)


async def _term(world: World, chance: Random) -> None:
    alive = world.alive()
    if alive:
        world.loop.create_task(world.stop(chance.choice(alive)))
        _boot_later(world, chance)


async def _jump(world: World, chance: Random) -> None:
    """The database's clock jumps ahead, beyond every lease."""
    world.clock_ahead += LEASE * chance.uniform(0.5, 3)
    world.fault("jump", "database")


def _boot_later(world: World, chance: Random) -> None:
    async def boot() -> None:
        await asyncio.sleep(2 * chance.random())
        await world.boot()

    world.loop.create_task(boot())


_FAULTS: dict[str, Callable[[World, Random], Awaitable[None]]] = {
    "kill": _kill,
    "kill_supervised": _kill_supervised,
    "freeze": _freeze,
    "outage": _outage,
    "cut": _cut,
    "term": _term,
    "jump": _jump,
}
