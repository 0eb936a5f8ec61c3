"""A crash-point case: what must be there before, the verb itself, and how its effect is counted."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from msgspec import Struct

from rowlock.core.moves import Cancel
from rowlock.runtime.claim_settle import ClaimSettle
from rowlock.stores.base import Store
from tests.proof.crash_stage import ACTOR, Facts, Stage
from tests.proof.fail_points import Trap
from tests.proof.history import History
from tests.proof.lives import World

Act = Callable[[], Awaitable[Any]]


class Actor(Struct):
    """The process that performs the verb."""

    url: str
    store: Store
    trap: Trap
    facts: Facts


class Case(Struct):
    """A verb to interrupt. `effect` counts how often the verb took effect. `repeats`: a process that gets no answer
    repeats the verb, so in the end it has taken effect. `once`: a needless repeat has no second effect. `asks`: the
    verb that the client's record names, if the case makes jobs. The facts then have the ids of these jobs."""

    name: str
    prepare: Callable[[Stage], Awaitable[Facts]]
    ready: Callable[[Actor], Awaitable[Act]]
    effect: Callable[[History, Facts], int]
    recover: Callable[[Actor, Act], Awaitable[Any]] | None = None
    repeats: bool = True
    once: bool = True
    asks: str | None = None


CASES: dict[str, Case] = {}


def case(name: str, prepare: Any, ready: Any, effect: Any, **more: Any) -> None:
    CASES[name] = Case(name, prepare, ready, effect, **more)


def steps(move: str) -> Callable[[History, Facts], int]:
    """Return a function that counts this move of the job. If the record names who made the move, only the actor's
    count."""

    def count(history: History, facts: Facts) -> int:
        own = [step for life in World(history).by_id.get(facts["id"], ()) for step in life.steps if step.move == move]
        return sum(facts.get("version") in (None, step.version) and _by(step) in (None, ACTOR) for step in own)

    return count


def _by(step: Any) -> str | None:
    by = step.said("by")
    if step.move == "claim":
        by = step.after["locked_by"]
    return None if by is None else str(by)


def changes(table: str, op: str | None = None) -> Callable[[History, Facts], int]:
    return lambda history, facts: sum(c.table == table and op in (None, c.op) for c in history.changes)


def simply(verb: Callable[[Store, str], Awaitable[Any]]) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        return lambda: verb(actor.store, actor.facts["id"])

    return ready


# ── Preparations that several cases share ──


async def due(stage: Stage) -> Facts:
    return {"id": await stage.add(max_retries=3)}


async def failing_run(stage: Stage) -> Facts:
    job = await stage.claimed(fails=True)
    return {"id": job.id, "version": job.version}


async def cancelled_run(stage: Stage) -> Facts:
    facts = await failing_run(stage)
    await stage.store.move([facts["id"]], Cancel(by="ann"))
    return facts


# ── After a lost answer ──


async def find_lost_claims(actor: Actor, act: Act | None = None) -> None:
    """Find lost claims as a worker does. It knows the run in the facts, if there is one."""
    known = {(actor.facts["id"], actor.facts.get("version")): SimpleNamespace(interruption=None)}
    slots = SimpleNamespace(name=ACTOR, runs=known)
    await ClaimSettle._find_lost_claims(cast(ClaimSettle, SimpleNamespace(_store=actor.store, _slots=slots)))
