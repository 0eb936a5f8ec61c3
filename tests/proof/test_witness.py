"""On both stores, the witness sees every committed change whole, once, and with its transaction."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from rowlock.client.verify import verify
from rowlock.core.lifecycle import MAX_HISTORY, Completed, Failed, Released
from rowlock.core.moves import Cancel, Delete, Requeue
from rowlock.stores.base import Retention
from rowlock.stores.postgres.store import PostgresStore
from tests.databases import KINDS, Databases
from tests.proof.checker import check
from tests.proof.history import History, RowChange
from tests.proof.lives import World
from tests.proof.witness import ARCHIVE, AUDIT, JOBS, Witness
from tests.stores.harness import Harness, claim_by, harness_at, job, settlement


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness_at(request.param, databases, tmp_path, virtual=False, check=False) as harness:
        yield harness


@pytest.fixture
async def witness(store: Harness) -> Witness:
    return await Witness(store).install()


def brief(changes: list[RowChange]) -> list[tuple[str, str]]:
    return sorted((change.table, change.op) for change in changes)


async def test_a_completion_is_one_transaction_on_two_tables(store: Harness, witness: Witness) -> None:
    await store.settled(Completed({"n": [1, None, "x"]}))
    changes = await witness.changes()
    assert [change.op for change in changes[:2]] == ["insert", "update"]
    assert brief(changes[2:]) == [(JOBS, "delete"), (ARCHIVE, "insert")]
    assert len({change.tx for change in changes}) == 3
    [archived] = (change.after for change in changes if change.table == ARCHIVE)
    assert archived is not None
    assert archived["result"] == {"n": [1, None, "x"]}
    assert archived == (await witness.rows(ARCHIVE))[archived["id"]]


async def test_a_move_and_its_history_are_one_step(store: Harness, witness: Witness) -> None:
    claimed = await store.claimed()
    await store.store.settle([settlement(claimed, Failed("boom"), ran=0.0)])
    history = await witness.collect(History(store.kind))
    [life] = World(history).lives
    assert [step.move for step in life.steps] == ["enqueue", "claim", "fail"]
    assert life.last.said("event") == "retried"
    assert check(history) == []


async def test_a_settle_and_the_next_claim_of_the_same_job_are_two_steps_of_one_transaction(
    store: Harness, witness: Witness
) -> None:
    first = await store.claimed()
    second = await store.claimed()
    wishes = [settlement(one, Released()) for one in (first, second)]
    await store.store.settle(wishes[:1], claim_by())
    await store.store.settle(wishes[1:])
    await store.claim()
    history = await witness.collect(History(store.kind))
    assert check(history) == []
    assert max(row["version"] for row in history.jobs.values()) == 2


async def test_what_was_rolled_back_was_never_there(store: Harness, witness: Witness) -> None:
    taken = job(id=await store.add())
    before = await witness.changes()
    [answer] = await store.store.insert([taken])
    assert answer.existing
    assert await witness.changes() == before


async def test_an_operator_s_deed_and_its_audit_are_one_transaction(store: Harness, witness: Witness) -> None:
    ids = [await store.add(), await store.add()]
    await store.store.move(ids, Cancel(by="ann", reason="enough"))
    await store.store.move(ids, Delete(by="ann"))
    await store.store.steer_topic("mail", "pause", by="ann")
    await store.store.steer_topic("mail", "resume", by="ann")
    history = await witness.collect(History(store.kind))
    assert sum(change.table == AUDIT for change in history.changes) == 6
    assert check(history) == []


async def test_partitions_that_are_made_later_are_watched_too(store: Harness, witness: Witness) -> None:
    if store.kind == "sqlite":
        pytest.skip("its archive has no parts")
    assert isinstance(store.store, PostgresStore)
    await store.store.keep_partitions(Retention(), ahead=6)
    day = (await store.store.now() + timedelta(days=5)).timestamp()
    later = f"{int(day * 1000):012x}"
    job_id = await store.add(id=f"{later[:8]}-{later[8:]}-7000-8000-000000000001")
    [claimed] = (await store.claim()).jobs
    await store.store.settle([settlement(claimed, Completed(None), ran=0.0)])
    assert (ARCHIVE, "insert") in brief(await witness.changes())
    [(part,)] = await store.fetch(f"SELECT tableoid::regclass::text FROM _jobs_archive WHERE id = '{job_id}'")
    assert part not in ("_jobs_archive", "_jobs_archive_rest")


async def test_the_events_of_a_long_life_are_those_that_were_witnessed(store: Harness, witness: Witness) -> None:
    job_id = await store.add()
    for _ in range(MAX_HISTORY // 3 + 5):
        [claimed] = (await store.claim()).jobs
        await store.store.settle([settlement(claimed, Failed("never", final=True), ran=0.0)])
        await store.store.move([job_id], Requeue(by="ann"))
        await store.store.move([job_id], Cancel(by="ann"))
        await store.store.move([job_id], Requeue(by="ann"))
    history = await witness.collect(History(store.kind))
    assert history.jobs[job_id]["history_dropped"] > 0
    assert check(history) == []
    assert (await verify(store.store, limit=10, seconds=60.0)).findings == []
