"""insert: whole rows, keys, repeated ids, times."""

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, LiveKey, Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp
from rowlock.core.moves import Cancel
from rowlock.stores.base import Enqueued
from rowlock.stores.queries import Filter
from tests.stores.conftest import paired_store, shared_store
from tests.stores.harness import MINUTE, START, Harness, job

store = paired_store
unpaired = shared_store  # for large batches


async def test_a_plain_job(store: Harness) -> None:
    """Every field that the caller left out has its default."""
    new = job("mail", {"to": "a@b.c"})
    assert await store.insert(new) == [Enqueued(new.id, False, Status.PENDING, START, START)]
    found = await store.job(new.id)
    assert (found.priority, found.max_retries, found.timeout, found.run_at) == (100, 3, 600.0, START)


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
    found = await store.job(await store.add("pdf/embed:v1.x_y-z", {"a": [1, None]}, **fields))
    assert {name: getattr(found, name) for name in fields} == fields


async def test_times_are_utc_whatever_zone_they_came_in(store: Harness) -> None:
    there = datetime(2026, 1, 1, 15, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=3)))
    found = await store.job(await store.add(run_at=there))
    assert found.run_at == there
    assert found.run_at.tzinfo is UTC
    assert found.created.tzinfo is UTC


@pytest.mark.parametrize("seconds", [-MINUTE, 0.0, 0.000001, MINUTE])
async def test_ready_means_due_now_by_the_databases_clock(store: Harness, seconds: float) -> None:
    await store.advance(5)
    assert (await store.row(await store.add(run_at=store.now + timedelta(seconds=seconds)))).ready == (seconds <= 0)
    assert (await store.row(await store.add(delay=max(seconds, 0.0)))).ready == (seconds <= 0)


async def test_nothing_at_all(store: Harness) -> None:
    assert await store.store.insert([]) == []
    assert await store.store.insert([], repeat=True) == []
    assert await store.rows() == {}


async def test_a_large_batch_answers_in_order(unpaired: Harness) -> None:
    new = [job(f"t{i % 7}", {"i": i}, priority=i % 5) for i in range(5000)]
    assert [i.id for i in await unpaired.insert(*new)] == [n.id for n in new]
    found = await unpaired.store.read([n.id for n in new], Job)
    assert [found[n.id].payload["i"] for n in new] == list(range(5000))
    assert len({found[n.id].created for n in new}) == 1


# ── Keys ──


async def test_a_live_key_answers_with_its_holder(store: Harness) -> None:
    first = await store.add(key="k", delay=MINUTE)
    await store.advance(1)
    again = await store.insert(job(key="k"), job("other", key="k"), job(key="K"))
    assert again[0] == Enqueued(first, True, Status.PENDING, START + timedelta(minutes=1), START)
    assert [i.existing for i in again[1:]] == [False, False]


def long(seed: int) -> str:
    """Return a text of the greatest allowed length in bytes, which a database can hardly compress."""
    return "".join(map(chr, random.Random(seed).choices(range(0x10000, 0x2FFFF), k=512)))


SCOPES = [  # (scope, scope_id): all of them differ
    (None, None), ("a", None), (None, "a"), ("a", "a"), ("aa", None), (None, "aa"), ("a", "b"), ("b", "a"), ("=", "#"),
    (long(1), long(2)), (long(2), long(1)), (long(1), None), (None, long(1)), ("x" * 199, None), ("x" * 200, None),
]  # fmt: skip


async def test_a_key_belongs_to_its_scope(store: Harness) -> None:
    """One tenant's key does not block another tenant's, however long the names are."""
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
    await store.change(f"UPDATE {table} SET key = 'k' WHERE id = '{held.id}'")
    live = status in (Status.PENDING, Status.BLOCKED, Status.PROCESSING, Status.WAITING, Status.CANCEL_REQUESTED)
    [answer] = await store.insert(job(key="k"))
    assert answer.existing == live
    assert (answer.id == held.id) == live
    assert answer.status is (status if live else Status.PENDING)


async def test_the_first_of_a_batch_wins_its_key_whatever_its_id(store: Harness) -> None:
    new = [job(key="b"), job(key="a"), job(key="b"), job(), job(key="a"), job(key="b")]
    answers = await store.insert(*reversed(new))
    assert [i.existing for i in answers] == [False, False, False, True, True, True]


async def test_a_key_is_free_again_after_the_end(store: Harness) -> None:
    for outcome in (Completed(), Failed("x", final=True), GaveUp()):
        done = await store.settled(outcome, key="k")
        assert not done.is_live
    assert await store.add(key="k")
    assert len(await store.rows()) == 4


# ── The same id again ──


@pytest.mark.parametrize("repeat", [False, True])
async def test_the_same_id_is_one_job(store: Harness, repeat: bool) -> None:
    new, twin = job("mail", {"n": 1}), job()
    await store.store.insert([new, twin, new, twin], repeat=repeat)
    await store.advance(3)
    changed = structs.replace(new, payload='{"n":2}', priority=5)
    assert [one.existing for one in await store.store.insert([changed, twin], repeat=repeat)] == [True, True]


@pytest.mark.parametrize("status", Status)
async def test_a_repeat_finds_the_job_in_any_status(store: Harness, status: Status) -> None:
    """Completed jobs are in the archive. Only an insert with `repeat` looks there."""
    there = await store.in_status(status)
    for repeat in (True,) if status is Status.COMPLETED else (False, True):
        answers = await store.store.insert([job(id=there.id), job(key=f"k{repeat}")], repeat=repeat)
        assert [answer.status for answer in answers] == [status, Status.PENDING]


async def test_the_id_counts_before_the_key(store: Harness) -> None:
    """A repeated insert gets its own job, also if another job has taken the key since."""
    new = job(key="k")
    await store.insert(new)
    await store.store.move([new.id], Cancel(by="ann"))
    rival = await store.add(key="k")
    for repeat in (False, True):
        [answer] = await store.store.insert([new], repeat=repeat)
        assert (answer.id, answer.existing, answer.status) == (new.id, True, Status.CANCELLED)
    assert set(await store.rows()) == {new.id, rival}


async def test_a_mixed_batch_twice(store: Harness) -> None:
    taken, twin = job(key="taken"), job(key="twin")
    batch = [job(), job(key="taken"), twin, taken, job(key="twin"), twin, job("other", key="taken"), job(delay=9)]
    for jobs in ([taken], batch, batch):
        await store.store.insert(jobs)
