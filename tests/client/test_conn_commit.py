"""The job commits and rolls back with the application's own data, on every kind of connection."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock.core.job import Job, NewJob, Status
from rowlock.core.lifecycle import Completed
from tests.client.conn_kinds import Kind
from tests.stores.harness import claim_by, job, settlement

pytestmark = pytest.mark.sampled(4)  # kinds of connections


class Oops(Exception):
    pass


async def found(kind: Kind, new: NewJob) -> Job:
    return (await kind.place.store.read([new.id], Job))[new.id]


async def test_commit_shows_the_job_and_the_data(kind: Kind) -> None:
    new = job(payload={"order": 1})
    async with kind.transaction():
        await kind.order(1)
        [answer] = await kind.insert(new)
        assert await kind.place.committed() == ([], [])  # not committed yet
    assert await kind.place.committed() == ([1], [new.id])
    stored = await found(kind, new)
    assert (answer.id, answer.existing, answer.status) == (new.id, False, Status.PENDING)
    assert (answer.run_at, answer.created) == (stored.run_at, stored.created)
    [claimed] = (await kind.place.store.claim(claim_by())).jobs
    assert claimed.id == new.id
    assert claimed.payload == {"order": 1}


async def test_rollback_takes_the_job_and_the_data(kind: Kind) -> None:
    with suppress(Oops):
        async with kind.transaction():
            await kind.order(1)
            await kind.insert(job())
            raise Oops
    assert await kind.place.committed() == ([], [])


async def test_rollback_takes_the_job_that_was_the_first_statement(kind: Kind) -> None:
    with suppress(Oops):
        async with kind.transaction():
            await kind.insert(job(), job(key="k"))
            await kind.order(1)
            raise Oops
    assert await kind.place.committed() == ([], [])
    async with kind.transaction():  # rowlock knows the connection by now, and it works as before
        await kind.insert(new := job(key="k"))
    assert await kind.place.committed() == ([], [new.id])


async def test_a_savepoint_takes_the_job_with_it(kind: Kind) -> None:
    kept = job()
    async with kind.transaction():
        await kind.order(1)
        with suppress(Oops):
            async with kind.savepoint():
                await kind.order(2)
                await kind.insert(job())
                raise Oops
        async with kind.savepoint():
            await kind.order(3)
            await kind.insert(kept)
    assert await kind.place.committed() == ([1, 3], [kept.id])


async def test_everything_about_a_job_arrives(kind: Kind) -> None:
    run_at = datetime(2099, 5, 4, 3, 2, 1, 987654, tzinfo=UTC)
    new = job(
        "reports/daily",
        {"text": "100 % «ünïcode» 'quoted' $1 :name ?", "float": 1e22, "zero": -0.0, "nested": {"list": [None, True]}},
        priority=7,
        run_at=run_at,
        expires_at=run_at + timedelta(days=1),
        key="k%s$1",
        scope="user",
        scope_id="u-1",
        template_version=3,
        max_retries=5,
        timeout=1.5,
        tags=["a", "ü"],
        trace="00-ab",
    )
    later = job(delay=3600.5)
    async with kind.transaction():
        answers = await kind.insert(new, later)
    stored = await found(kind, new)
    for field in ("topic", "priority", "run_at", "expires_at", "key", "scope", "scope_id", "template_version"):
        assert getattr(stored, field) == getattr(new, field), field
    for field in ("max_retries", "timeout", "tags", "trace"):
        assert getattr(stored, field) == getattr(new, field), field
    assert repr(stored.payload) == repr(
        {"text": "100 % «ünïcode» 'quoted' $1 :name ?", "float": 1e22, "zero": -0.0, "nested": {"list": [None, True]}}
    )
    delayed = await found(kind, later)
    assert delayed.run_at - delayed.created == timedelta(seconds=3600.5)
    assert [(answer.run_at, answer.created) for answer in answers] == [
        (stored.run_at, stored.created),
        (delayed.run_at, delayed.created),
    ]
    assert (await kind.place.store.claim(claim_by("w", "reports/daily", "mail"))).jobs == []  # neither job is due


async def test_many_jobs_at_once(kind: Kind) -> None:
    jobs = [job(f"t{n % 3}", {"n": n}, key=None if n % 2 else f"k{n}") for n in range(200)]
    async with kind.transaction():
        answers = await kind.insert(*jobs)
        assert await kind.insert() == []
    assert [(answer.id, answer.existing) for answer in answers] == [(new.id, False) for new in jobs]
    assert len({answer.created for answer in answers}) == 1
    _, ids = await kind.place.committed()
    assert sorted(ids) == sorted(new.id for new in jobs)


async def test_a_live_key_answers(kind: Kind) -> None:
    [before] = await kind.place.store.insert([job(key="k", delay=60.0)])
    first, second, other = job(key="x"), job(key="x"), job(key="k")
    async with kind.transaction():
        answers = await kind.insert(first, other, second)
        again = await kind.insert(job(key="x"), job(key="k"), job("else", key="k"))
    assert [(answer.id, answer.existing) for answer in answers] == [
        (first.id, False),
        (before.id, True),
        (first.id, True),
    ]
    assert [(answer.id, answer.existing) for answer in again][:2] == [(first.id, True), (before.id, True)]
    assert not again[2].existing
    assert (answers[1].status, answers[1].run_at, answers[1].created) == (before.status, before.run_at, before.created)


async def test_a_key_belongs_to_its_scope(kind: Kind) -> None:
    both: dict[str, Any] = {"scope": "a", "scope_id": "a"}
    scopes: list[dict[str, Any]] = [{"scope": "a"}, {}, {"scope_id": "b"}, {"scope_id": "a"}, both]
    [before] = await kind.place.store.insert([job(key="k", scope_id="b")])
    new = [job(key="k", **scope) for scope in scopes]
    async with kind.transaction():
        answers = await kind.insert(*new)
        again = await kind.insert(*(job(key="k", **scope) for scope in reversed(scopes)))
    ids = [before.id if scope == {"scope_id": "b"} else one.id for scope, one in zip(scopes, new, strict=True)]
    assert [answer.id for answer in answers] == ids
    assert [(answer.id, answer.existing) for answer in again] == [(one, True) for one in reversed(ids)]


async def test_a_key_that_is_free_again(kind: Kind) -> None:
    await kind.place.store.insert([old := job(key="k")])
    [claimed] = (await kind.place.store.claim(claim_by())).jobs
    async with kind.transaction():
        [answer] = await kind.insert(job(key="k"))
        assert (answer.id, answer.existing, answer.status) == (old.id, True, Status.PROCESSING)
    await kind.place.store.settle([settlement(claimed, Completed())])
    async with kind.transaction():
        [answer] = await kind.insert(new := job(key="k"))
    assert (answer.id, answer.existing) == (new.id, False)


async def test_the_same_id_makes_one_job(kind: Kind) -> None:
    new = job(payload={"first": True})
    async with kind.transaction():
        answers = await kind.insert(new, new, repeat=True)
        answers += await kind.insert(new, repeat=True)
        answers += await kind.insert(new)
    assert [(answer.id, answer.existing) for answer in answers] == [
        (new.id, False), (new.id, True), (new.id, True), (new.id, True),
    ]  # fmt: skip
    assert await kind.place.committed() == ([], [new.id])


async def test_the_same_id_after_it_was_completed(kind: Kind) -> None:
    new, fresh = job(), job()
    await kind.place.store.insert([new])
    [claimed] = (await kind.place.store.claim(claim_by())).jobs
    await kind.place.store.settle([settlement(claimed, Completed())])
    async with kind.transaction():
        answers = await kind.insert(new, fresh, repeat=True)
    assert [(answer.id, answer.existing, answer.status) for answer in answers] == [
        (new.id, True, Status.COMPLETED),
        (fresh.id, False, Status.PENDING),
    ]
    assert await kind.place.committed() == ([], [fresh.id])


async def test_one_connection_for_many_transactions(kind: Kind) -> None:
    kept = []
    for n in range(8):  # drivers begin to prepare a statement after fewer uses
        new = job(key=f"k{n}")
        try:
            async with kind.transaction():
                await kind.order(n)
                await kind.insert(new, notify=True)
                if n % 2:
                    raise Oops
        except Oops:
            continue
        kept.append(new.id)
    assert await kind.place.committed() == ([0, 2, 4, 6], kept)
