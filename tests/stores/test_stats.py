"""stats: how many jobs are in each status, and counters that outlive requeue, archive, prune and delete."""

import asyncio
from typing import Any

import pytest

from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released
from rowlock.core.moves import Delete, Requeue
from rowlock.stores import queries
from rowlock.stores.base import DAY, Retention
from rowlock.stores.queries import Stats, TopicStats
from tests.stores.conftest import shared_store
from tests.stores.harness import Harness, claim_by, job, settlement
from tests.stores.processes import real_job, stores

store = shared_store

ENDS = ("completed", "failed", "expired", "cancelled")


def ends(stats: Stats | TopicStats) -> tuple[int, ...]:
    return tuple(getattr(stats, name) for name in ENDS)


async def test_nothing(store: Harness) -> None:
    assert await store.store.stats() == Stats()
    assert await store.store.stats("mail") == Stats()


async def test_where_jobs_stand(paired_store: Harness) -> None:
    statuses = sorted(Status, key=lambda status: status is Status.PENDING)  # last: else another claim takes it
    for status in statuses:
        await paired_store.in_status(status)
    for status in statuses[1:]:
        await paired_store.in_status(status, "bills")
    await paired_store.add(delay=60)  # pending, but not ready
    stats = await paired_store.store.stats()
    live = {"pending": 3, "processing": 2, "waiting": 2, "blocked": 1, "cancel_requested": 2}
    assert {name: getattr(stats, name) for name in live} == live
    assert ends(stats) == (2, 2, 2, 2)
    assert stats.success_rate == 2 / 6
    assert stats.capped == ()
    assert sorted(stats.topics) == ["bills", "mail"]
    assert (await paired_store.store.stats("bills")).topics == {}


async def test_a_requeue_takes_it_back(paired_store: Harness) -> None:
    for status in (Status.FAILED, Status.EXPIRED, Status.CANCELLED, Status.FAILED):
        await paired_store.in_status(status)
    await paired_store.store.tidy("fold_counts", 2)
    await paired_store.store.move(list(await paired_store.rows()), Requeue(by="ann"))
    assert ends(await paired_store.store.stats()) == (0, 0, 0, 0)
    jobs = (await paired_store.claim()).jobs
    await paired_store.store.settle([settlement(one, Failed("no", final=True), ran=1.0) for one in jobs])
    stats = await paired_store.store.stats("mail")
    assert (ends(stats), stats.success_rate, stats.avg_execution_time) == ((0, 4, 0, 0), 0.0, None)


async def test_counters_outlive_prune_and_delete(paired_store: Harness) -> None:
    for outcome in (Completed(), Failed("no", final=True), GaveUp(), Completed()):
        await paired_store.settled(outcome)
    gone = [job_id for job_id, row in (await paired_store.rows()).items() if row.job.status is Status.FAILED]
    await paired_store.store.move(gone, Delete(by="ann"))
    await paired_store.advance(2 * DAY)
    await paired_store.store.prune(Retention(completed=DAY, cancelled=DAY, failed=DAY, expired=DAY))
    assert await paired_store.rows() == {}
    assert ends(await paired_store.store.stats()) == (2, 1, 0, 1)


async def test_the_average_is_of_runs_that_completed(store: Harness) -> None:
    took = [0.25, 1.0, 3.5]
    for seconds in took:
        claimed = await store.claimed()
        await store.advance(10)
        await store.store.settle([settlement(claimed, Completed(), ran=seconds)])
    failing = await store.claimed()
    await store.store.settle([settlement(failing, Failed("no", final=True), ran=9.0)])
    unknown = await store.claimed(start=False)  # its worker never set a start mark
    await store.store.settle([settlement(unknown, Completed())])
    stats = await store.store.stats()
    assert stats.completed == 4
    assert stats.avg_execution_time == pytest.approx(1000 * sum(took) / 3)
    assert stats.topics["mail"].avg_execution_time == stats.avg_execution_time


async def test_numbers_are_capped_and_say_so(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.insert(*[job() for _ in range(3)], *[job("bills", delay=5) for _ in range(2)], job("zoo", delay=9))
    exact = await store.store.stats()
    assert (exact.pending, exact.capped) == (6, ())
    for module in (queries, *_store_modules()):
        monkeypatch.setattr(module, "MAX_LIVE", 2, raising=False)
        monkeypatch.setattr(module, "BOUND", 3, raising=False)
        monkeypatch.setattr(module, "MAX_TOPICS", 2, raising=False)
    stats = await store.store.stats()
    assert (stats.pending, stats.capped, stats.processing) == (2, ("pending",), 0)
    assert (list(stats.topics), stats.topics_capped) == (["bills", "mail"], True)
    one = await store.store.stats("mail")
    assert (one.pending, one.capped) == (2, ("pending",))


def _store_modules() -> list[Any]:
    from rowlock.stores.postgres import store as postgres
    from rowlock.stores.sqlite import queries as sqlite

    return [postgres, sqlite]


async def test_more_topics_than_are_told_are_still_in_the_sum(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (queries, *_store_modules()):
        monkeypatch.setattr(module, "MAX_TOPICS", 2, raising=False)
    for n in range(5):
        await store.settled(Completed(), topic=f"t{n}")
        await store.store.tidy("fold_counts", 10_000)
    stats = await store.store.stats()
    assert (stats.completed, list(stats.topics), stats.topics_capped) == (5, ["t0", "t1"], True)
    assert all(of.completed == 1 for of in stats.topics.values())


async def test_folding_is_bounded_and_changes_nothing(store: Harness) -> None:
    for n in range(5):
        await store.settled(Completed(), topic=f"t{n % 2}")
    before = await store.store.stats()
    folded = [await store.store.tidy("fold_counts", 2) for _ in range(6)]
    assert folded == [2, 2, 2, 2, 2, 0]  # each job has a note of its enqueue and one of its end
    assert await store.store.stats() == before


async def test_counting_from_everywhere_at_once(real_store: Harness) -> None:
    """Workers settle, operators requeue, and several clients fold. At every moment, each end is counted once."""
    each, workers = 40, 4
    others = await stores(real_store, workers + 2)
    await real_store.insert(*[real_job(topic) for _ in range(each) for topic in ("mail", "bills")])
    working = True

    async def work(store: Any, name: str) -> None:
        while jobs := (await store.claim(claim_by(name, "mail", "bills", limit=7))).jobs:
            outcomes: list[Outcome] = [Completed(), Failed("no", final=True), Released()]
            moves = [settlement(one, outcomes[n % 3 if one.version < 3 else 0], ran=0.0) for n, one in enumerate(jobs)]
            await store.settle(moves)
            await store.move([one.id for one in jobs[1::6]], Requeue(by=name))

    async def fold(store: Any) -> None:
        while working:
            await store.tidy("fold_counts", 3)
            seen = await store.stats()
            assert sum(ends(seen)) + seen.pending + seen.processing == 2 * each
            assert sum(sum(ends(of)) for of in seen.topics.values()) == sum(ends(seen))

    folding = [asyncio.create_task(fold(one)) for one in others[workers:]]
    await asyncio.gather(*(work(one, f"w{n}") for n, one in enumerate(others[:workers])))
    working = False
    await asyncio.gather(*folding)
    stats = await real_store.store.stats()
    found = await real_store.fetch("SELECT topic, count(*) FROM _jobs_archive GROUP BY topic")
    dead = await real_store.fetch("SELECT topic, count(*) FROM _jobs WHERE status = 'failed' GROUP BY topic")
    assert {topic: of.completed for topic, of in stats.topics.items()} == dict(found)
    assert {topic: of.failed for topic, of in stats.topics.items() if of.failed} == dict(dead)
    assert stats.completed + stats.failed == 2 * each
