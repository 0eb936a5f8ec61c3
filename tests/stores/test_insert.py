"""insert: whole rows, keys, repeated ids, times."""

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, LiveKey, Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp
from rowlock.stores.base import Enqueued
from rowlock.stores.reading import Filter
from tests.stores.conftest import shared_store
from tests.stores.harness import MINUTE, START, Harness, job, settlement
from tests.stores.reference import Reference
from tests.stores.rows import Row

store = shared_store


async def test_a_plain_job(store: Harness) -> None:
    new = job("mail", {"to": "a@b.c"})
    assert await store.insert(new) == [Enqueued(new.id, False, Status.PENDING, START, START)]
    expected = Job(
        id=new.id,
        topic="mail",
        template_version=None,
        payload={"to": "a@b.c"},
        status=Status.PENDING,
        priority=100,
        run_at=START,
        expires_at=None,
        key=None,
        scope=None,
        scope_id=None,
        tags=(),
        trace=None,
        step=None,
        progress=0.0,
        stage=None,
        message=None,
        result=None,
        last_error=None,
        retries=0,
        max_retries=3,
        crashes=0,
        timeout=600.0,
        version=0,
        locked_by=None,
        locked_until=None,
        cancel_requested_at=None,
        cancel_reason=None,
        flow_id=None,
        schedule_id=None,
        fire_at=None,
        created=START,
        updated=START,
        claimed_at=None,
        started_at=None,
        finished_at=None,
        events_count=1,
    )
    assert await store.rows() == {new.id: Row(expected, ready=True)}
    assert await store.audit() == []
    [event] = await store.events(new.id)
    assert (event.seq, event.at, event.event, event.by, event.data) == (0, START, "enqueued", None, {})


async def test_every_field_comes_back(store: Harness) -> None:
    fields: dict[str, Any] = {
        "priority": -7,
        "run_at": START + timedelta(days=1, microseconds=1),
        "expires_at": START + timedelta(days=2, microseconds=999_999),
        "key": "order-456",
        "scope": "user",
        "scope_id": "ü-1",
        "template_version": 7,
        "max_retries": 0,
        "timeout": 1.5,
        "tags": ("red", "grün"),
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    new = job("pdf/embed:v1.x_y-z", {"a": [1, None]}, **fields)
    assert await store.insert(new) == [Enqueued(new.id, False, Status.PENDING, fields["run_at"], START)]
    row = await store.row(new.id)
    assert {name: getattr(row.job, name) for name in fields} == fields
    assert row.job.payload == {"a": [1, None]}
    assert not row.ready


async def test_times_are_utc_whatever_zone_they_came_in(store: Harness) -> None:
    there = datetime(2026, 1, 1, 15, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=3)))
    found = await store.job(await store.add(run_at=there))
    assert found.run_at == there
    assert found.run_at.tzinfo is UTC
    assert found.created.tzinfo is UTC


@pytest.mark.parametrize("seconds", [-MINUTE, 0.0, 0.000001, MINUTE])
async def test_ready_means_due_now(store: Harness, seconds: float) -> None:
    row = await store.row(await store.add(run_at=START + timedelta(seconds=seconds)))
    assert row.ready == (seconds <= 0)
    assert row.job.run_at == START + timedelta(seconds=seconds)


async def test_a_delay_counts_from_the_databases_clock(store: Harness) -> None:
    await store.advance(5)
    row = await store.row(await store.add(delay=1.25))
    assert row.job.run_at == START + timedelta(seconds=6.25)
    assert not row.ready
    assert (await store.row(await store.add(delay=0))).ready


async def test_nothing_at_all(store: Harness) -> None:
    assert await store.store.insert([]) == []
    assert await store.store.insert([], repeat=True) == []
    assert await store.rows() == {}


async def test_a_large_batch_answers_in_order(store: Harness) -> None:
    new = [job(f"t{i % 7}", {"i": i}, priority=i % 5) for i in range(5000)]
    assert [i.id for i in await store.insert(*new)] == [n.id for n in new]
    found = await store.store.get([n.id for n in new])
    assert [found[n.id].payload["i"] for n in new] == list(range(5000))
    assert len({found[n.id].created for n in new}) == 1


# ── Keys ──


async def test_a_live_key_answers_with_its_holder(store: Harness) -> None:
    first = await store.add(key="k", delay=MINUTE)
    await store.advance(1)
    before = await store.rows()
    again = await store.insert(job(key="k"), job("other", key="k"), job(key="K"))
    assert again[0] == Enqueued(first, True, Status.PENDING, START + timedelta(minutes=1), START)
    assert [i.existing for i in again[1:]] == [False, False]
    assert {k: v for k, v in (await store.rows()).items() if k == first} == before
    assert len(await store.rows()) == 3


def long(seed: int) -> str:
    """As many bytes as a text of ours may have, which no database can compress."""
    return "".join(map(chr, random.Random(seed).choices(range(0x10000, 0x2FFFF), k=512)))


SCOPES = [  # (scope, scope_id); each is another one
    (None, None), ("a", None), (None, "a"), ("a", "a"), ("aa", None), (None, "aa"), ("a", "b"), ("b", "a"), ("=", "#"),
    (long(1), long(2)), (long(2), long(1)), (long(1), None), (None, long(1)), ("x" * 199, None), ("x" * 200, None),
]  # fmt: skip


async def test_a_key_belongs_to_its_scope(store: Harness) -> None:
    """One tenant's job is not in the way of another's, however long the names are."""
    key = long(3)
    new = [job(key=key, scope=scope, scope_id=scope_id) for scope, scope_id in SCOPES]
    assert [answer.existing for answer in await store.insert(*new)] == [False] * len(SCOPES)
    again = [job(key=key, scope=scope, scope_id=scope_id) for scope, scope_id in SCOPES]
    assert [(told.id, told.existing) for told in await store.insert(*again)] == [(one.id, True) for one in new]
    keys = [LiveKey("mail", scope, scope_id, key) for scope, scope_id in SCOPES]
    assert sorted(await store.store.holders(keys)) == sorted(one.id for one in new)
    assert await store.store.holders([LiveKey("mail", "b", "b", key), LiveKey("else", None, None, key)]) == []
    for (scope, scope_id), one in zip(SCOPES, new, strict=True):
        page = await store.store.list(Filter(keys=[key], topics=["mail"], scope=scope, scope_id=scope_id), limit=50)
        assert {found.id for found in page.items} == {
            other.id
            for other in new
            if (scope is None or other.scope == scope) and (scope_id is None or other.scope_id == scope_id)
        }
        assert one.id in {found.id for found in page.items}


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.EXPIRED])
async def test_which_statuses_hold_a_key(store: Harness, status: Status) -> None:
    held = await store.in_status(status)
    table = "_jobs_archive" if status is Status.COMPLETED else "_jobs"
    await store.execute(f"UPDATE {table} SET key = 'k' WHERE id = '{held.id}'")
    live = status in (Status.PENDING, Status.BLOCKED, Status.PROCESSING, Status.WAITING, Status.CANCEL_REQUESTED)
    [answer] = await store.insert(job(key="k"))
    assert answer.existing == live
    assert (answer.id == held.id) == live
    assert answer.status is (status if live else Status.PENDING)


async def test_a_key_twice_in_one_batch(store: Harness) -> None:
    new = [job(key="b"), job(key="a"), job(key="b"), job(), job(key="a"), job(key="b")]
    answers = await store.insert(*new)
    assert [i.existing for i in answers] == [False, False, True, False, True, True]
    assert [i.id for i in answers] == [new[0].id, new[1].id, new[0].id, new[3].id, new[1].id, new[0].id]
    assert set(await store.rows()) == {new[0].id, new[1].id, new[3].id}


async def test_the_first_of_a_batch_wins_its_key_whatever_its_id(store: Harness) -> None:
    older, newer = job(key="k"), job(key="k")
    answers = await store.insert(newer, older)
    assert [(i.id, i.existing) for i in answers] == [(newer.id, False), (newer.id, True)]


async def test_a_key_is_free_again_after_the_end(store: Harness) -> None:
    for outcome in (Completed(), Failed("x", final=True), GaveUp()):
        done = await store.settled(outcome, key="k")
        assert not done.is_live
    assert await store.add(key="k")
    assert len(await store.rows()) == 4


# ── The same id again ──


async def test_the_same_id_is_one_job(store: Harness) -> None:
    new = job("mail", {"n": 1})
    await store.insert(new)
    await store.advance(3)
    before = await store.rows()
    changed = structs.replace(new, payload='{"n":2}', priority=5)
    for repeat in (False, True):
        [answer] = await store.store.insert([changed], repeat=repeat)
        assert answer == Enqueued(new.id, True, Status.PENDING, START, START)
    assert await store.rows() == before


async def test_the_same_id_twice_in_one_batch(store: Harness) -> None:
    one, two = job(), job()
    for repeat in (False, True):
        answers = await store.store.insert([one, two, one, two], repeat=repeat)
        assert [i.id for i in answers] == [one.id, two.id, one.id, two.id]
        assert [i.existing for i in answers] == [repeat, repeat, True, True]
    assert len(await store.rows()) == 2


async def test_a_repeat_after_completion_finds_the_archive(store: Harness) -> None:
    new, fresh = job(key="k"), job(key="k2")
    await store.insert(new)
    [claimed] = (await store.claim()).jobs
    await store.store.settle([settlement(claimed, Completed(1))])
    before = await store.rows()
    answers = await store.store.insert([new, fresh], repeat=True)
    assert answers[0] == Enqueued(new.id, True, Status.COMPLETED, START, START)
    assert not answers[1].existing
    after = await store.rows()
    assert after.pop(fresh.id).ready
    assert after == before


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.COMPLETED])
async def test_a_repeat_finds_the_job_in_any_status(store: Harness, status: Status) -> None:
    there = await store.in_status(status)
    before = await store.rows()
    for repeat in (False, True):
        [answer] = await store.store.insert([job(id=there.id)], repeat=repeat)
        assert answer == Enqueued(there.id, True, status, there.run_at, there.created)
    assert await store.rows() == before


async def test_the_id_counts_before_the_key(store: Harness) -> None:
    """A repeated insert is told of its own job, also when another one has taken the key since."""
    new = job(key="k")
    await store.insert(new)
    await store.store.cancel([new.id], by="ann")
    rival = await store.add(key="k")
    for repeat in (False, True):
        [answer] = await store.store.insert([new], repeat=repeat)
        assert (answer.id, answer.existing, answer.status) == (new.id, True, Status.CANCELLED)
    assert set(await store.rows()) == {new.id, rival}


async def test_a_mixed_batch_is_what_the_reference_says(store: Harness) -> None:
    reference = Reference(START)
    taken, twin = job(key="taken"), job(key="twin")
    batch = [job(), job(key="taken"), twin, taken, job(key="twin"), twin, job("other", key="taken"), job(delay=9)]
    for jobs in ([taken], batch, batch):
        assert await store.store.insert(jobs) == reference.insert(jobs)
    assert await store.rows() == reference.rows
