"""Crash points of limits: a claim and the starts that it counts are one transaction. So are a limit and its entry in
the audit."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from msgspec import to_builtins

from rowlock.client.definitions import Definitions
from rowlock.client.limits import Limits
from rowlock.core.limits import LIMITED, PUT, Concurrency, Limited, Rate
from rowlock.stores.records import Write
from tests.proof.crash_case import Act, Actor, case, find_lost_claims, steps
from tests.proof.crash_stage import ACTOR, TOPIC, Facts, Stage, claim_by
from tests.proof.history import History
from tests.proof.lives import World
from tests.proof.witness import AUDIT, RECORDS

_CODE = Limited((Concurrency(5), Rate(50, per=3600.0)))
_PUT = Concurrency(2, by="scope_id")


async def _limited(stage: Stage) -> Facts:
    await stage.store.write_records([Write(LIMITED, TOPIC, to_builtins(_CODE))])
    return {"id": await stage.add(max_retries=3, scope_id="a")}


async def _claiming(actor: Actor) -> Act:
    return lambda: actor.store.claim(claim_by(ACTOR))


def _claims(history: History, facts: Facts) -> int:
    """Return how often the actor claimed the job. Every claim of any worker counts as a start; nothing else does."""
    claims = [step for life in World(history).lives for step in life.steps if step.move == "claim"]
    assert facts["starts"] == len(claims)
    return steps("claim")(history, facts)


def _limits(actor: Actor) -> Limits:
    async def store() -> Any:
        return actor.store

    async def handle() -> Any:
        return SimpleNamespace(store=actor.store)

    stores: Any = SimpleNamespace(handle=handle)
    return Limits(stores, lambda by: by or ACTOR, Definitions(store, {}), lambda handle: None)


def _doing(verb: Callable[[Limits], Awaitable[Any]]) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        limits = _limits(actor)
        return lambda: verb(limits)

    return ready


async def _there(stage: Stage) -> Facts:
    facts = await _limited(stage)
    await _limits(Actor(stage.url, stage.store, None, facts)).put(TOPIC, _PUT, by="ann")  # type: ignore[arg-type]
    return facts


def _records(action: str, op: str) -> Callable[[History, Facts], int]:
    def count(history: History, facts: Facts) -> int:
        """Return how often the limit was put or cleared. Each time there is an entry in the audit."""
        of_puts = {(c.tx, c.op) for c in history.changes if c.table == RECORDS and _row(c)["kind"] == PUT}
        entries = {c.tx for c in history.changes if c.table == AUDIT and _row(c)["action"] == f"limit.{action}"}
        done = {tx for tx, one in of_puts if one == op}
        assert done <= entries
        return len(done)

    return count


def _row(change: Any) -> Any:
    return change.after or change.before


case("claim of a topic with limits", _limited, _claiming, _claims, recover=find_lost_claims, repeats=False)
case("put a limit", _limited, _doing(lambda limits: limits.put(TOPIC, _PUT)), _records("put", "insert"))
case("clear a limit", _there, _doing(lambda limits: limits.clear(TOPIC)), _records("clear", "delete"))
