"""Lines: jobs with one key and if_live = "queue" or "replace". And keys that count once."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from rowlock.client.verify import verify
from rowlock.core.job import Job, NewJob, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, GaveUp, Outcome, Released
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue
from rowlock.core.templates import line_of
from rowlock.errors import OnceTaken
from rowlock.stores import reading
from rowlock.stores.base import Retention, Store
from tests.stores.harness import Harness, PostgresHarness, claim_by, ids, settlement
from tests.stores.processes import deadlocks, real_job, stores

LIVE = "'pending', 'processing', 'waiting', 'cancel_requested'"


def lined(key: str = "k", if_live: str = "queue", **fields: Any) -> NewJob:
    new = real_job(key=key, **fields)
    return replace(new, if_live=if_live, line=line_of(new.topic, new.scope, new.scope_id, key))


def once(key: str = "k", **fields: Any) -> NewJob:
    new = real_job(key=key, **fields)
    return replace(new, once=line_of(new.topic, new.scope, new.scope_id, key))


async def claim(store: Store, limit: int = 10) -> list[Job]:
    """Return all jobs that can be claimed. A claim that has unblocked jobs is `contended`: claim once more."""
    jobs: list[Job] = []
    while True:
        claimed = await store.claim(claim_by("w", limit=limit))
        jobs += claimed.jobs
        if not claimed.contended:
            return jobs


async def end(store: Store, job: Job, outcome: Outcome | None = None) -> None:
    [verdict] = (await store.settle([settlement(job, outcome or Completed())])).verdicts
    assert verdict.answer is Answer.APPLIED


async def statuses(store: Store, jobs: Sequence[NewJob]) -> list[Status]:
    found = await store.read([job.id for job in jobs], Status)
    return [found[job.id] for job in jobs]


# ── queue ──


async def test_a_line_runs_one_job_at_a_time_in_the_order_of_inserts(real_store: Harness) -> None:
    """Priority never reorders a line."""
    store = real_store.store
    first = [lined(priority=n) for n in range(3)]
    answers = await store.insert(first)
    assert [answer.status for answer in answers] == [Status.PENDING, Status.BLOCKED, Status.BLOCKED]
    last = lined(priority=900)
    assert (await store.insert([last]))[0].status is Status.BLOCKED
    ran = []
    while jobs := await claim(store):
        [job] = jobs
        ran.append(job.id)
        assert await claim(store) == []
        await end(store, job)
    assert ran == [job.id for job in (*first, last)]


@pytest.mark.parametrize("outcome", [Failed("x"), Released("shutdown")])
async def test_the_head_keeps_its_place(real_store: Harness, outcome: Outcome) -> None:
    store = real_store.store
    jobs = [lined(), lined()]
    await store.insert(jobs)
    [head] = await claim(store)
    await end(store, head, outcome)
    assert await statuses(store, jobs) == [Status.PENDING, Status.BLOCKED]


@pytest.mark.parametrize("outcome", [Completed(), Failed("x", final=True), GaveUp("no")])
async def test_every_end_of_the_head_unblocks_the_next(real_store: Harness, outcome: Outcome) -> None:
    store = real_store.store
    jobs = [lined(), lined()]
    await store.insert(jobs)
    [head] = await claim(store)
    await end(store, head, outcome)
    assert ids(await claim(store)) == [jobs[1].id]


async def test_operators_and_maintenance_unblock_the_next(real_store: Harness) -> None:
    store = real_store.store
    past = await store.now()
    jobs = [lined(), lined(), lined(expires_at=past), lined(), lined()]
    await store.insert(jobs)
    await store.move([jobs[0].id], Cancel(by="ann"))
    await claim_nothing_but(store, jobs[1])
    await store.move([jobs[1].id], Cancel(by="ann"))
    await store.move_due(CancelTimeout(by="m", grace=0.0))
    await claim(store)
    assert [one.id for one in await store.move_due(Expire(by="m"))] == [jobs[2].id]
    [head] = await claim(store)
    assert head.id == jobs[3].id
    await store.move_due(Rescue(by="m", backoff=[1.0], workers=["w"]))
    assert await statuses(store, jobs[3:]) == [Status.PENDING, Status.BLOCKED]
    await store.move([jobs[3].id], Delete(by="ann"))
    await claim_nothing_but(store, jobs[4])


async def claim_nothing_but(store: Store, job: NewJob) -> None:
    assert ids(await claim(store)) == [job.id]


async def test_a_requeued_job_goes_to_the_end(real_store: Harness) -> None:
    store = real_store.store
    jobs = [lined() for _ in range(3)]
    await store.insert(jobs)
    [head] = await claim(store)
    await end(store, head, Failed("x", final=True))
    [changed] = await store.move([head.id], Requeue(by="ann"))
    assert changed.done
    ran = []
    while found := await claim(store):
        ran += ids(found)
        await end(store, found[0])
    assert ran == [jobs[1].id, jobs[2].id, jobs[0].id]


async def test_lines_of_other_scopes_don_t_wait(real_store: Harness) -> None:
    await real_store.store.insert([lined(scope_id="a"), lined(scope_id="b"), lined(key="other"), lined(topic="bills")])
    assert len(await claim(real_store.store)) == 3


async def test_a_delayed_head_holds_its_line(real_store: Harness) -> None:
    store = real_store.store
    jobs = [lined(delay=3600.0), lined()]
    await store.insert(jobs)
    assert await claim(store) == []
    assert await statuses(store, jobs) == [Status.PENDING, Status.BLOCKED]


# ── replace ──


async def test_a_newer_job_replaces_those_that_have_not_started(real_store: Harness) -> None:
    store = real_store.store
    jobs = [lined(if_live="replace") for _ in range(3)]
    for job in jobs:
        await store.insert([job])
    assert await statuses(store, jobs) == [Status.CANCELLED, Status.CANCELLED, Status.PENDING]
    assert (await real_store.job(jobs[0].id)).cancel_reason == f"replaced by {jobs[1].id}"
    assert [event.event for event in await reading.events(store, jobs[0].id)] == ["enqueued", "unblocked", "cancelled"]


async def test_a_running_job_is_asked_to_cancel_and_the_newest_follows_it(real_store: Harness) -> None:
    store = real_store.store
    jobs = [lined(if_live="replace") for _ in range(3)]
    await store.insert(jobs[:1])
    [head] = await claim(store)
    await store.insert(jobs[1:2])
    await store.insert(jobs[2:])
    assert await claim(store) == []
    assert await statuses(store, jobs) == [Status.CANCEL_REQUESTED, Status.CANCELLED, Status.BLOCKED]
    await end(store, replace(head, status=Status.CANCEL_REQUESTED), GaveUp())
    assert ids(await claim(store)) == [jobs[2].id]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
async def test_the_newest_is_never_replaced(real_store: Harness, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """This holds for any number of jobs, also if they need several transactions."""
    monkeypatch.setattr("rowlock.stores.postgres.lines.BATCH", 3)
    jobs = [lined(if_live="replace") for _ in range(count)]
    await real_store.store.insert(jobs)
    assert ids(await claim(real_store.store)) == [jobs[-1].id]
    assert await statuses(real_store.store, jobs[:-1]) == [Status.CANCELLED] * (count - 1)


async def older_than_the_head(harness: Harness, *jobs: NewJob) -> None:
    """Insert jobs with places before the head: as if their transaction had begun before the insert of the head."""
    await harness.execute(f"UPDATE _jobs SET line_seq = line_seq + 1000000 WHERE status IN ({LIVE})")
    for job in jobs:
        await harness.store.insert([job])
    await claim(harness.store)


@pytest.mark.parametrize("runs", [False, True])
async def test_an_older_job_that_comes_late_is_replaced_by_the_head(real_store: Harness, runs: bool) -> None:
    store = real_store.store
    head, *late = [lined(if_live=if_live) for if_live in ("replace", "replace", "queue", "queue")]
    await store.insert([head])
    if runs:
        await claim(store)
    await older_than_the_head(real_store, *late)
    assert await statuses(store, [head, *late]) == [Status.PROCESSING, *[Status.CANCELLED] * 3]
    assert {(await real_store.job(job.id)).cancel_reason for job in late} == {f"replaced by {head.id}"}


async def test_an_older_job_that_comes_late_never_replaces_the_head(real_store: Harness) -> None:
    """The late job replaces only the jobs before it in the line. A newer job replaces all of them, also the head."""
    store = real_store.store
    head, first, last, newer = [lined(if_live=if_live) for if_live in ("queue", "queue", "replace", "replace")]
    await store.insert([head])
    await claim(store)
    await older_than_the_head(real_store, first, last)
    assert await statuses(store, [head, first, last]) == [Status.PROCESSING, Status.CANCELLED, Status.BLOCKED]
    assert (await real_store.job(first.id)).cancel_reason == f"replaced by {last.id}"
    await real_store.execute(f"UPDATE _jobs SET line_seq = 0 WHERE status IN ({LIVE})")
    await store.insert([newer])
    found = await statuses(store, [head, last, newer])
    assert found == [Status.CANCEL_REQUESTED, Status.CANCELLED, Status.BLOCKED]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
async def test_all_that_come_late_are_replaced(
    real_store: Harness, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """This holds for any number of jobs, also if they need several transactions. The jobs behind the head stay."""
    monkeypatch.setattr("rowlock.stores.postgres.lines.BATCH", 3)
    head, behind, *late = [lined(if_live="replace"), lined(), *(lined() for _ in range(count))]
    await real_store.store.insert([head, behind])
    await real_store.execute("UPDATE _jobs SET line_seq = line_seq + 1000000")
    await real_store.store.insert(late)
    await claim(real_store.store)
    found = await statuses(real_store.store, [head, behind, *late])
    assert found == [Status.PROCESSING, Status.BLOCKED, *[Status.CANCELLED] * count]


# ── once ──


async def test_a_key_that_counts_once(real_store: Harness) -> None:
    store = real_store.store
    first = once()
    await store.insert([first])
    [job] = await claim(store)
    await end(store, job)
    other = once("other")
    with pytest.raises(OnceTaken) as raised:
        await store.insert([other, once()])
    assert raised.value.first == first.id
    assert other.id not in await real_store.rows()
    assert (await store.insert([first], repeat=True))[0].existing
    await store.insert([other, once(scope_id="elsewhere")])
    await store.move([first.id], Delete(by="ann"))
    await store.insert([once()])


async def test_another_job_with_a_pruned_jobs_id_does_not_free_the_key(real_store: Harness) -> None:
    store = real_store.store
    first = once()
    await store.insert([first])
    await store.move([first.id], Cancel(by="ann"))
    assert await store.prune(Retention(cancelled=0.0)) == 1
    await store.insert([replace(real_job(), id=first.id)], repeat=True)
    await store.move([first.id], Delete(by="ann"))
    with pytest.raises(OnceTaken):
        await store.insert([once()])


async def test_a_key_that_counts_once_under_a_race(real_store: Harness) -> None:
    everyone = await stores(real_store, 6)
    for n in range(10):
        tries = await asyncio.gather(
            *(store.insert([once(f"k{n}"), once(f"l{n}")]) for store in everyone), return_exceptions=True
        )
        assert sum(not isinstance(answer, OnceTaken) for answer in tries) == 1
    assert len(await real_store.rows()) == 20


# ── Races ──


@pytest.mark.parametrize("if_live", ["queue", "replace"])
async def test_one_head_per_line_under_a_race(real_store: Harness, if_live: str) -> None:
    """Six clients enqueue into the same lines, and end the jobs that they claim. In the end no job is blocked."""
    everyone = await stores(real_store, 6)
    made: dict[str, list[str]] = {f"k{n}": [] for n in range(4)}
    order: dict[str, list[str]] = {key: [] for key in made}

    async def work(store: Store, name: str, dice: random.Random) -> None:
        for _ in range(12):
            batch = [lined(dice.choice(list(made)), if_live) for _ in range(dice.choice([1, 1, 4]))]
            for new, answer in zip(batch, await store.insert(batch), strict=True):
                assert not answer.existing
                made[str(new.key)].append(new.id)
            await drain(store, name, dice)
            await one_head_per_line(real_store)

    async def drain(store: Store, name: str, dice: random.Random) -> None:
        for job in (await store.claim(claim_by(name, limit=2))).jobs:
            order[str(job.key)].append(job.id)
            outcomes: list[Outcome] = [Completed(), Failed("x", final=True)]
            outcome = dice.choice(outcomes)
            wish = settlement(job, outcome)
            [verdict] = (await store.settle([wish])).verdicts
            if verdict.answer is Answer.CHANGED:
                await store.settle([settlement(replace(job, status=Status.CANCEL_REQUESTED), outcome)])

    await asyncio.gather(*(work(store, f"w{n}", random.Random(n)) for n, store in enumerate(everyone)))
    dice = random.Random(99)
    while (found := await real_store.fetch(f"SELECT count(*) FROM _jobs WHERE status IN ({LIVE}, 'blocked')")) != [
        (0,)
    ]:
        before = found
        await drain(everyone[0], "w", dice)
        await everyone[0].claim(claim_by("w", limit=0))
        assert before != [(0,)]
    assert await deadlocks(real_store) == 0
    if if_live == "queue":
        by_place = await real_store.fetch("SELECT id FROM _jobs_all WHERE if_live = 'queue'")
        assert {str(job_id) for (job_id,) in by_place} == {job_id for jobs in made.values() for job_id in jobs}
        assert {key: set(jobs) for key, jobs in order.items()} == {key: set(jobs) for key, jobs in made.items()}


async def one_head_per_line(harness: Harness) -> None:
    twice = await harness.fetch(
        f"SELECT line FROM _jobs WHERE line IS NOT NULL AND status IN ({LIVE}) GROUP BY line HAVING count(*) > 1"
    )
    assert twice == []


async def test_an_open_transaction_never_stalls_a_worker(real_store: Harness) -> None:
    """A caller enqueues into the line in an open transaction. The head ends meanwhile, and the worker goes on."""
    if not isinstance(real_store, PostgresHarness):
        pytest.skip("its open transaction holds the write lock")
    import asyncpg

    from rowlock.stores.driver_neutral import drive_async
    from rowlock.stores.postgres.insert_on_conn import insert

    store = real_store.store
    jobs = [lined(), lined(), lined()]
    await store.insert(jobs[:1])
    [head] = await claim(store)
    connection = await asyncpg.connect(real_store.url)
    try:
        async with connection.transaction():
            queries = insert("public", jobs[1:2], repeat=False)
            await drive_async(queries, lambda query: connection.fetchval(query.text, query.parameter))
            await store.insert(jobs[2:])
            async with asyncio.timeout(60):
                await end(store, head)
                [following] = await claim(store)
            assert following.id == jobs[2].id
    finally:
        await connection.close()
    assert await claim(store) == []
    await end(store, following)
    assert ids(await claim(store)) == [jobs[1].id]


async def test_a_transaction_that_commits_late_never_replaces_a_newer_job(real_store: Harness) -> None:
    if not isinstance(real_store, PostgresHarness):
        pytest.skip("its open transaction holds the write lock")
    import asyncpg

    from rowlock.stores.driver_neutral import drive_async
    from rowlock.stores.postgres.insert_on_conn import insert

    store = real_store.store
    older, newer = [lined(if_live="replace") for _ in range(2)]
    connection = await asyncpg.connect(real_store.url)
    try:
        async with connection.transaction():
            queries = insert("public", [older], repeat=False)
            await drive_async(queries, lambda query: connection.fetchval(query.text, query.parameter))
            await store.insert([newer])
            [head] = await claim(store)
    finally:
        await connection.close()
    assert await claim(store) == []
    assert await statuses(store, [older, newer]) == [Status.CANCELLED, Status.PROCESSING]
    await end(store, head)
    assert await claim(store) == []


@pytest.mark.parametrize("if_live", ["queue", "replace"])
async def test_verify_finds_nothing_wrong_with_a_line(real_store: Harness, if_live: str) -> None:
    store = real_store.store
    await store.insert([lined(if_live=if_live)])
    [head] = await claim(store)
    await store.insert([lined(if_live=if_live), lined(if_live=if_live), real_job(key="k")])
    assert (await verify(store, limit=100, seconds=60.0)).findings == []
    await end(store, (await store.read([head.id], Job))[head.id])
    await claim(store)
    assert (await verify(store, limit=100, seconds=60.0)).findings == []
