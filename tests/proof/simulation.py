"""Deterministic simulation: real workers and clients on a real database, in virtual time, with everything going wrong.

    python -m tests.proof.simulation SEED [--trace]     one run, and its timeline
    python -m tests.proof.simulation FIRST LAST         many

A seed decides everything: what is enqueued, what handlers do, which messages get lost, which process dies when, and
which one is faster. So a seed shows the same run each time, even in a year, as long as the code under test makes the
same calls.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.moves import Signal, SignalSent
from rowlock.core.times import NEVER
from rowlock.errors import StoreError
from tests.proof.checker import check
from tests.proof.history import History, Violation
from tests.proof.simulation_actors import Plan, disturb, is_waiting, operate, plan_of, produce, send_signals
from tests.proof.simulation_checks import check_simulation
from tests.proof.simulation_database import Tables, drive
from tests.proof.simulation_handlers import TOPICS
from tests.proof.simulation_loop import Stuck
from tests.proof.simulation_store import Call
from tests.proof.simulation_world import EPOCH, World, inhabited
from tests.proof.witness import Witness

DRAIN_WITHIN = 90.0  # seconds from calm to the end of the last job: leases, backoffs and frozen machines included
_LIVE = "SELECT count(*) FROM _jobs WHERE status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')"

_FOR_EVER = f"SELECT id FROM _jobs WHERE status = 'waiting' AND run_at >= {NEVER}"


class Outcome(Struct):
    """The result of one seed."""

    seed: int
    history: History
    violations: list[Violation]
    calls: list[Call]

    def fingerprint(self) -> str:
        """Return a hash that is the same for the same run in every process."""
        told = [
            (round(one.at, 9), one.who, one.verb, one.fate, repr(one.answer) if one.verb != "workers" else "")  # a pid
            for one in self.calls
        ]
        return sha256(repr(told).encode()).hexdigest()


def simulate(seed: int, **changes: Any) -> Outcome:
    """Run one seed. `changes`: fields of its Plan to replace."""
    plan = plan_of(seed, **changes)
    world = World(seed, plan.settings, replace(plan.weather, haunted=plan.haunted))
    complaints = _Complaints()
    log = logging.getLogger("rowlock")
    before = log.level, log.propagate
    log.addHandler(complaints)
    log.setLevel(logging.ERROR)
    log.propagate = False
    drained = False
    violations: list[Violation] = []
    try:
        with inhabited(world):
            try:
                drained = world.loop.run(_live(world, plan))
            except Stuck as stuck:
                violations.append(Violation("STUCK", None, str(stuck)))
            history = _history(world, plan, drained)
            violations += check(history)
            violations += check_simulation(world, history)
            violations += [Violation("BUG", None, text) for text in [*complaints.heard, *world.loop.problems]]
            world.close()
    finally:
        log.removeHandler(complaints)
        log.setLevel(before[0])  # not log.level: only setLevel clears the logger's cache of enabled levels
        log.propagate = before[1]
    return Outcome(seed, history, violations, world.network.trace)


class _Complaints(logging.Handler):
    """Collects logged exceptions: one that the product did not expect is always a bug, however the product handled
    it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self.heard.append(self.format(record))


async def _live(world: World, plan: Plan) -> bool:
    """Run the trouble, then the calm. Return True if all jobs came to an end in time."""
    for _ in range(plan.workers):
        await world.boot()
    actors = [
        asyncio.create_task(produce(world, plan, "p1", plan.jobs // 2)),
        asyncio.create_task(produce(world, plan, "p2", plan.jobs - plan.jobs // 2)),
    ]
    if plan.operates:
        actors.append(asyncio.create_task(operate(world, plan)))
    actors.append(asyncio.create_task(disturb(world, plan)))
    if is_waiting(world):
        actors.append(asyncio.create_task(send_signals(world, plan)))
    await asyncio.sleep(plan.seconds)
    for actor in actors[2:]:
        actor.cancel()
    await asyncio.gather(*actors[2:], return_exceptions=True)
    await _calm(world)
    await asyncio.gather(*actors[:2])
    return await _drained(world)


async def _calm(world: World) -> None:
    world.network.weather.calm = True
    world.network.heal()
    for machine in world.machines.values():
        machine.line.cut_until = 0.0
    world.fault("calm", "all")
    await asyncio.sleep(world.network.weather.longest)  # until all requests under way have arrived
    for topic in TOPICS:
        with suppress(StoreError), world.operation("resume", "simulation", (), {"topic": topic}):
            world.database.steer_topic(topic, "resume", by="simulation")


async def _drained(world: World) -> bool:
    until = world.loop.time() + DRAIN_WITHIN
    while world.loop.time() < until:
        (live,) = world.database.conn.execute(_LIVE).fetchone()
        if not live:
            return True
        _release(world)
        await asyncio.sleep(0.5)
    return False


def _release(world: World) -> None:
    """Signal the jobs that wait for ever. All other waiting jobs have a time, and must then go on by themselves."""
    for (job_id,) in world.database.conn.execute(_FOR_EVER).fetchall():
        world.signals += 1
        detail = {"name": "go", "id": None, "data": f"s{world.signals}"}
        with world.operation("signal", "simulation", (job_id,), detail):
            sent = SignalSent("go", f'"s{world.signals}"')
            [changed] = world.database.move([job_id], Signal(by="simulation", sent=sent))
            assert changed.done


def _history(world: World, plan: Plan, drained: bool) -> History:
    settings = plan.settings
    jumped = any(fault.kind == "jump" for fault in world.faults)
    known = {
        "lease": settings.lease,
        "poll": settings.poll,
        "grace": settings.grace,
        "cancel_grace": settings.cancel_grace,
        "maintenance": settings.maintenance,
        "notice": settings.notice,
        "slots": settings.concurrency,
        "now": float(world.database_clock()),
    }
    if not jumped:
        known["monotonic_offset"] = 0.0
    history = History("sqlite", known, operations=world.operations, executions=world.executions(), faults=world.faults)
    history.step_runs = world.step_runs
    drive(Witness(Tables(world.database.conn)).collect(history))
    history.at_rest = drained
    return history


# ── By hand ──


def timeline(outcome: Outcome) -> Iterable[str]:
    """Return a line for each call, handler and fault, in the order in which they happened."""
    lines: list[tuple[float, str]] = []
    for call in outcome.calls:
        done = "never" if call.done_at is None else f"+{call.done_at - call.at:.3f}"
        args = ", ".join([*map(repr, call.args), *(f"{k}={v!r}" for k, v in call.kwargs.items())])
        lines.append((call.at, f"{call.who:10} {call.verb}({args:.400}) {call.fate}, {done}: {call.answer!r:.600}"))
    for run in outcome.history.executions:
        lines.append((_seconds(run.begun), f"{run.worker:10} RUNS {run.job_id} version {run.version}"))
        if run.ended is not None:
            end = f"{run.error or run.result}, told {run.told}"
            lines.append((_seconds(run.ended), f"{run.worker:10} ENDS {run.job_id} version {run.version}: {end}"))
    lines += [(_seconds(fault.at), f"{fault.target:10} FAULT {fault.kind}") for fault in outcome.history.faults]
    return (f"{at:10.4f} {text}" for at, text in sorted(lines, key=lambda line: line[0]))


def _seconds(micros: int) -> float:
    return (micros - EPOCH) / 1e6


class Tally(Struct):
    """The result of many seeds."""

    seeds: int = 0
    executions: int = 0
    calls: int = 0
    faults: int = 0
    violations: list[str] = []
    seconds: float = 0.0  # processor time

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.executions += len(outcome.history.executions)
        self.calls += len(outcome.calls)
        self.faults += len(outcome.history.faults)
        for one in outcome.violations:
            self.violations.append(f"seed {outcome.seed}: {one.invariant} {one.job_id or ''} {one.text}")
        if outcome.violations:
            self.violations.append(f"  to see it: python -m tests.proof.simulation {outcome.seed} --trace")

    def __str__(self) -> str:
        wrong = sum(not line.startswith(" ") for line in self.violations)
        return (
            f"simulation: {wrong} violations, {self.seeds:,} seeds, {self.executions:,} executions, "
            f"{self.calls:,} calls, {self.faults:,} faults, {self.seconds:.1f} s of a processor"
        )


def simulate_all(seeds: Iterable[int], **changes: Any) -> Tally:
    tally = Tally()
    began = time.process_time()
    for seed in seeds:
        tally.add(simulate(seed, **changes))
    tally.seconds = time.process_time() - began
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate seeds.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--trace", action="store_true", help="show everything that happens with the first")
    parser.add_argument("--haunted", action="store_true", help="inserts and claims may come late, too")
    args = parser.parse_args()
    if args.trace:
        print(*timeline(simulate(args.first, haunted=args.haunted)), sep="\n")
    last = args.first if args.last is None else args.last
    tally = simulate_all(range(args.first, last + 1), haunted=args.haunted)
    print(*tally.violations, tally, sep="\n")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
