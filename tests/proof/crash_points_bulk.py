"""Cases of bulk actions: make, start, run, stop and prune them."""

from collections.abc import Callable

from msgspec import UNSET

from rowlock.client.bulk import new_bulk, run_all
from rowlock.core.lifecycle import Failed
from rowlock.stores.bulk import NewBulk
from rowlock.stores.queries import Filter
from tests.proof.crash_case import Act, Actor, case, changes, simply, steps
from tests.proof.crash_stage import ACTOR, TOPIC, Facts, Stage, new_ids
from tests.proof.history import History
from tests.proof.witness import AUDIT, BULK

_WANTED = Filter(topics=[TOPIC])


def _new(bulk_id: str) -> NewBulk:
    return new_bulk(
        bulk_id, "requeue", _WANTED, everything=False, priority=UNSET, run_at=UNSET, delay=UNSET, by=ACTOR, reason=None
    )


async def _dead_letter(stage: Stage) -> Facts:
    return {"id": (await stage.settled(Failed("boom", final=True))).id, "bulk": new_ids.one()}


async def _preview(stage: Stage) -> Facts:
    facts = await _dead_letter(stage)
    await stage.store.create_bulk(_new(facts["bulk"]), _WANTED)
    return facts


async def _started(stage: Stage) -> Facts:
    facts = await _preview(stage)
    await stage.store.steer_bulk(facts["bulk"], "start", by=ACTOR)
    return facts


async def _old(stage: Stage) -> Facts:
    bulk_id = new_ids.one()
    await stage.store.create_bulk(_new(bulk_id), _WANTED)
    past = "created - 7200000000" if stage.tables.kind == "sqlite" else "created - interval '2 hours'"
    await stage.tables.execute(f"UPDATE _jobs_bulk SET created = {past}")
    return {"id": "", "bulk": bulk_id}


def _entries(action: str) -> Callable[[History, Facts], int]:
    def count(history: History, facts: Facts) -> int:
        entries = [change.after for change in history.changes if change.table == AUDIT and change.after]
        return sum((entry["action"], entry["by"]) == (action, ACTOR) for entry in entries)

    return count


async def _creating(actor: Actor) -> Act:
    return lambda: actor.store.create_bulk(_new(actor.facts["bulk"]), _WANTED)


async def _starting(actor: Actor) -> Act:
    return lambda: actor.store.steer_bulk(actor.facts["bulk"], "start", by=ACTOR)


async def _stopping(actor: Actor) -> Act:
    return lambda: actor.store.steer_bulk(actor.facts["bulk"], "stop", by=ACTOR)


async def _look_again(actor: Actor, act: Act) -> None:
    """Try again, as every process does that runs a bulk action. The server may still hold the row for a client that is
    gone."""
    await run_all(actor.store, actor.facts["bulk"])


case("create_bulk", _dead_letter, _creating, changes(BULK, "insert"))
case("start_bulk", _preview, _starting, _entries("bulk_start"))
case("run_bulk", _started, simply(lambda store, _: store.run_bulk()), steps("requeue"), recover=_look_again)
case("stop_bulk", _started, _stopping, _entries("bulk_stop"))
case("prune_bulks", _old, simply(lambda store, _: store.tidy("prune_bulks", 10_000)), changes(BULK, "delete"))
