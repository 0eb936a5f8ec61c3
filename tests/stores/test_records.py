"""Records and the audit: no client undoes what another has written, and every change names its author."""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

from rowlock.core.moves import Cancel, Requeue
from rowlock.stores.queries import Filter
from rowlock.stores.records import AuditFilter, Entry, Write
from tests.stores.conftest import shared_store
from tests.stores.harness import NOBODY, START, Harness
from tests.stores.test_bulk import started

store = shared_store

ANN = Entry("ann", "change", reason="because", data={"what": ["a", 1]})


async def test_what_was_written_is_read(store: Harness) -> None:
    later = START + timedelta(hours=1)
    assert await store.store.write_records([Write("token", "b", {"n": 1}, expires_at=later), Write("token", "a", {})])
    assert await store.store.write_records([Write("other", "a", {"x": "ä😀"})])
    a, b = await store.store.records("token")
    assert (a.id, a.data, a.revision, a.expires_at, a.created, a.updated) == ("a", {}, 1, None, START, START)
    assert (b.id, b.data, b.expires_at) == ("b", {"n": 1}, later)
    assert [one.id for one in await store.store.records("token", ["b", "c"])] == ["b"]
    assert await store.store.records("token", []) == []
    assert await store.store.write_records([Write("token", "a", None)])
    assert [one.id for one in await store.store.records("token")] == ["b"]


async def test_pages_of_records(store: Harness) -> None:
    ids = sorted(["a", "b", "B", "1", "zz"])
    assert await store.store.write_records([Write("token", one, {}) for one in ids])
    whole = [one.id for one in await store.store.records("token")]
    assert sorted(whole) == ids
    for limit in (1, 2, 5):
        seen: list[str] = []
        while found := await store.store.records("token", after=seen[-1] if seen else None, limit=limit):
            assert len(found) <= limit
            seen += [one.id for one in found]
        assert seen == whole


async def test_a_revision_that_is_old_is_refused_and_nothing_is_written(store: Harness) -> None:
    assert await store.store.write_records([Write("s", "a", {"n": 1}, revision=0)])
    assert await store.store.write_records([Write("s", "a", {"n": 2}, revision=1)])
    for stale in (
        Write("s", "a", {"n": 3}, revision=1),
        Write("s", "a", {}, revision=0),
        Write("s", "a", None, revision=1),
    ):
        assert not await store.store.write_records([Write("s", "b", {}), stale], ANN)
    assert not await store.store.write_records([Write("s", "z", None)], ANN)
    assert not await store.store.write_records([Write("s", "z", {}, revision=4)], ANN)
    [a] = await store.store.records("s")
    assert (a.data, a.revision) == ({"n": 2}, 2)
    assert await store.store.audit() == []


async def test_what_has_expired_is_not_there(store: Harness) -> None:
    soon = START + timedelta(seconds=5)
    await store.store.write_records([Write("s", name, {"n": 1}, expires_at=soon) for name in "abc"])
    await store.advance(6)
    assert await store.store.records("s") == []
    assert not await store.store.write_records([Write("s", "a", {}, revision=1)])
    assert not await store.store.write_records([Write("s", "a", None)])
    assert await store.store.write_records([Write("s", "a", {"n": 2}, revision=0)])
    assert [one.data for one in await store.store.records("s")] == [{"n": 2}]
    assert await store.store.tidy("sweep_records", 1) == 1
    assert await store.store.tidy("sweep_records", 10) == 1
    assert await store.store.tidy("sweep_records", 10) == 0


async def test_of_many_that_write_at_once_one_wins(store: Harness) -> None:
    wins = await asyncio.gather(
        *(store.store.write_records([Write("s", "a", {"n": n}, revision=0)]) for n in range(20))
    )
    assert wins.count(True) == 1
    taken = await asyncio.gather(*(store.store.write_records([Write("s", "a", None)], ANN) for _ in range(20)))
    assert taken.count(True) == 1
    assert len(await store.store.audit()) == 1


async def test_the_audit_tells_who_and_why_the_newest_first(store: Harness) -> None:
    await store.store.steer_topic("mail", "pause", by="bob", reason="full")
    await store.store.write_records([Write("s", "a", {})], ANN)
    new, old = await store.store.audit()
    assert (new.by, new.action, new.reason, new.data, new.at) == ("ann", "change", "because", {"what": ["a", 1]}, START)
    assert (old.by, old.action, old.topic, old.reason) == ("bob", "pause", "mail", "full")
    assert await store.store.audit(before=new.id, limit=5) == [old]
    assert await store.store.audit(limit=1) == [new]


async def test_the_audit_is_filtered(store: Harness) -> None:
    """By all given filters. The audit of a job includes what bulk actions did to it."""
    mail, bills = await store.add("mail"), await store.add("bills")
    await store.store.move([mail], Cancel(by="ann"))
    await store.advance(60)
    later = store.now
    bulk = await started(store, "cancel", Filter(ids=[bills]))
    await store.store.run_bulk()
    await store.store.move([mail], Requeue(by="bob"))
    every = [*await store.store.audit(), *await store.store.audit(AuditFilter(bulk=bulk.id))]
    assert sorted(one.action for one in every) == ["bulk_start", "cancel", "cancel", "requeue"]
    choices: dict[str, list[Any]] = {
        "job_id": [None, mail, bills, NOBODY],
        "by": [None, "ann", "bob", "eve"],
        "action": [None, "cancel", "requeue"],
        "since": [None, later],
        "bulk": [None, bulk.id],
    }
    for values in itertools.product(*choices.values()):
        asked = AuditFilter(**dict(zip(choices, values, strict=True)))
        expected = [
            one
            for one in every
            if (asked.job_id is not None or one.bulk == asked.bulk)
            and (asked.bulk is None or one.bulk == asked.bulk)
            and (asked.job_id is None or one.job_id == asked.job_id)
            and (asked.by is None or one.by == asked.by)
            and (asked.action is None or one.action == asked.action)
            and (asked.since is None or one.at >= asked.since)
        ]
        assert await store.store.audit(asked) == sorted(expected, key=lambda one: one.id, reverse=True)
        assert await store.store.audit(asked, limit=1) == sorted(expected, key=lambda one: one.id, reverse=True)[:1]
