"""What stats tell of runs: how many were counted, retried or lost, and how long the oldest job waits."""

from datetime import timedelta

import pytest

from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released, Snoozed
from rowlock.core.moves import Cancel, Delete, Requeue, Rescue, Update
from rowlock.http import metrics
from rowlock.stores import queries
from rowlock.stores.base import DAY, Edit, Retention
from rowlock.stores.postgres import store as postgres
from rowlock.stores.queries import BOUND, Counts, Filter, make_stats
from rowlock.stores.sqlite import queries as sqlite
from tests.stores.conftest import shared_store
from tests.stores.exposition import counters_of
from tests.stores.harness import LEASE, START, Harness, ids, job, settlement
from tests.stores.test_bulk import started

store = shared_store


def runs(counts: Counts) -> tuple[int, int, int]:
    return counts.executions, counts.retried, counts.lost


# ── Runs ──


async def test_a_batch_of_everything_is_told_apart(paired_store: Harness) -> None:
    outcomes: list[Outcome] = [Failed("boom"), Completed(), Snoozed(5.0), Failed("boom"), Released(), GaveUp()]
    await paired_store.insert(*[job() for _ in outcomes], *[job("bills") for _ in outcomes])
    jobs = (await paired_store.claim("w1", "mail", limit=6)).jobs + (
        await paired_store.claim("w1", "bills", limit=3)
    ).jobs
    wishes = [settlement(one, outcome, ran=0.5) for one, outcome in zip(jobs, outcomes + outcomes, strict=False)]
    await paired_store.store.settle(wishes)
    stats = await paired_store.store.stats()
    assert (runs(stats), stats.completed, stats.cancelled) == ((2, 3, 0), 2, 1)
    assert {topic: runs(of) for topic, of in stats.topics.items()} == {"mail": (1, 2, 0), "bills": (1, 1, 0)}


async def test_a_run_that_is_rescued_is_lost_whatever_came_of_it(paired_store: Harness) -> None:
    await paired_store.claimed()  # is charged a retry
    await paired_store.claimed(max_retries=0)  # has no retry left
    await paired_store.claimed(start=False)  # its handler never began, so it is not charged
    await paired_store.in_status(Status.CANCEL_REQUESTED, "bills")
    await paired_store.claimed(topic="bills")
    await paired_store.advance(LEASE + 1)
    await paired_store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    stats = await paired_store.store.stats()
    assert (runs(stats), stats.expired, stats.cancelled) == ((0, 2, 5), 1, 1)
    assert {topic: runs(of) for topic, of in stats.topics.items()} == {"mail": (0, 1, 3), "bills": (0, 1, 2)}


async def test_a_rescue_that_finds_nothing_counts_nothing(paired_store: Harness) -> None:
    await paired_store.claimed()
    assert await paired_store.store.tidy("fold_counts", 10_000) == 1  # the note of the enqueue
    assert await paired_store.store.move_due(Rescue(by="m1", backoff=[1.0])) == []
    assert await paired_store.store.tidy("fold_counts", 10_000) == 0


# ── What they outlive ──


async def test_counters_of_runs_are_never_taken_back(paired_store: Harness) -> None:
    await paired_store.settled(Completed())
    retried = await paired_store.settled(Failed("boom"))
    await paired_store.claimed(topic="bills", max_retries=0)
    await paired_store.advance(LEASE + 1)
    await paired_store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    assert runs(await paired_store.store.stats()) == (1, 1, 1)
    await paired_store.store.move([retried.id], Cancel(by="ann"))
    dead = [job_id for job_id, row in (await paired_store.rows()).items() if row.job.status is not Status.COMPLETED]
    await paired_store.store.move(dead, Requeue(by="ann"))
    await paired_store.store.move(dead, Cancel(by="ann"))
    await paired_store.store.move(dead[:1], Delete(by="ann"))
    await paired_store.advance(2 * DAY)
    await paired_store.store.prune(Retention(completed=DAY, cancelled=DAY, failed=DAY, expired=DAY))
    assert await paired_store.rows() == {}
    assert runs(await paired_store.store.stats()) == (1, 1, 1)


# ── For alerts ──


async def counters(store: Harness, topic: str = "mail") -> dict[str, float]:
    """Return the counters of a topic, as another process reports them to Prometheus."""
    other = await store.another()
    found = counters_of(await metrics.render(other, await other.stats()))
    return {name: value for name, value in found.items() if value and f'topic="{topic}"' in name}


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.CANCELLED])
@pytest.mark.parametrize("many", [False, True])
async def test_a_requeue_is_counted_and_takes_no_end_back(store: Harness, status: Status, many: bool) -> None:
    dead = await store.in_status(status)
    ended, requeued = (f'rowlock_{name}_jobs_total{{topic="mail",status="{status}"}}' for name in ("ended", "requeued"))
    if many:
        await started(store, "requeue", Filter(ids=[dead.id]))
        await store.store.run_bulk()
    else:
        await store.store.move([dead.id], Requeue(by="ann"))
    for _ in range(2):
        assert await counters(store) == {ended: 1, requeued: 1}
        await store.store.tidy("fold_counts", 10_000)
    await store.store.move([dead.id], Cancel(by="ann"))
    await store.store.move([dead.id], Delete(by="ann"))
    found = await counters(store)
    assert (found[ended], found[requeued]) == (2 if status is Status.CANCELLED else 1, 1)


async def test_a_clock_that_is_set_back_takes_no_time_back(store: Harness) -> None:
    claimed = await store.claimed()
    await store.advance(4)
    await store.store.settle([settlement(claimed, Completed(), ran=4.0)])
    other = await store.claimed()
    await store.advance(-60)
    await store.store.settle([settlement(other, Completed(), ran=1.0)])
    for _ in range(2):
        stats = await store.store.stats()
        assert (stats.executions, stats.execution_time) == (2, 4000.0)
        await store.store.tidy("fold_counts", 10_000)


async def test_the_sum_of_seconds_does_not_fall_by_rounding(store: Harness) -> None:
    """Runs of 0 µs leave the sum as it is. The average times their number may fall a little, by rounding."""
    last = 0.0
    for runs in range(1, 60):
        stats = make_stats(None, [], [("mail", (runs, 0, 0, 0, runs, 7, 0, 0, 0, 0, 0))])
        found = counters_of(await metrics.render(store.store, stats))
        last, before = found['rowlock_execution_seconds_sum{topic="mail"}'], last
        assert last >= before


# ── The oldest wait ──


async def test_the_oldest_ready_job_of_each_topic_and_of_all(paired_store: Harness) -> None:
    assert (await paired_store.store.stats()).oldest_wait is None
    await paired_store.add()
    await paired_store.advance(2.5)
    await paired_store.insert(job(), job("bills", priority=9), job("later", delay=5))
    await paired_store.advance(1)
    stats = await paired_store.store.stats()
    assert stats.oldest_wait == 3.5
    assert {topic: of.oldest_wait for topic, of in stats.topics.items()} == {"mail": 3.5, "bills": 1.0, "later": None}
    assert (await paired_store.store.stats("none")).oldest_wait is None
    await paired_store.advance(7)
    await paired_store.store.promote()
    await paired_store.store.move(
        [await paired_store.add("later")], Update(by="ann", edit=Edit(run_at=paired_store.now))
    )
    assert (await paired_store.store.stats("later")).oldest_wait == 3.0  # since the job was due


@pytest.mark.parametrize("of", [None, "mail"])
@pytest.mark.parametrize("bound", [BOUND, 2])
async def test_a_run_at_that_was_over_is_no_wait(
    store: Harness, monkeypatch: pytest.MonkeyPatch, bound: int, of: str | None
) -> None:
    """A job waits only from its enqueue on, even if its run_at is older: in one topic and in all topics together."""
    for module in (queries, postgres, sqlite):
        monkeypatch.setattr(module, "BOUND", bound, raising=False)
    long_ago = START - timedelta(days=9451)
    await store.insert(job(run_at=long_ago, priority=200), job("bills", run_at=long_ago))
    await store.advance(1)
    assert (await store.store.stats(of)).oldest_wait == 1.0
    await store.insert(job(run_at=long_ago + timedelta(1), priority=150), job(run_at=START - timedelta(seconds=5)))
    await store.advance(1)
    stats = await store.store.stats(of)
    assert stats.oldest_wait == 2.0
    assert {topic: of.oldest_wait for topic, of in stats.topics.items()} == ({} if of else {"mail": 2.0, "bills": 2.0})


async def test_what_is_no_longer_ready_does_not_wait(paired_store: Harness) -> None:
    await paired_store.add()
    await paired_store.advance(5)
    for outcome, wait in ((Released(), 5.0), (Failed("boom"), None)):  # only a failed job waits for its retry
        [claimed] = (await paired_store.claim()).jobs
        assert (await paired_store.store.stats()).oldest_wait is None
        await paired_store.store.settle([settlement(claimed, outcome, ran=0.0)])
        assert (await paired_store.store.stats()).oldest_wait == wait


async def test_a_clock_that_went_back_is_no_negative_wait(store: Harness) -> None:
    await store.add()
    await store.advance(-60)
    assert (await store.store.stats()).oldest_wait == 0.0
    assert len(ids((await store.claim()).jobs)) == 1


async def test_a_bounded_count_says_at_least(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        await store.add(priority=n)
        await store.advance(1)
    for module in (queries, postgres, sqlite):
        monkeypatch.setattr(module, "MAX_LIVE", 2, raising=False)
        monkeypatch.setattr(module, "BOUND", 3, raising=False)
    stats = await store.store.stats()
    assert stats.capped == ("pending",)
    assert stats.oldest_wait in (3.0, 4.0, 5.0)


async def test_a_topic_whose_only_job_is_deleted_before_it_ran_is_gone(paired_store: Harness) -> None:
    await paired_store.store.move([await paired_store.add()], Delete(by="ann"))
    for _ in range(2):
        assert (await paired_store.store.stats()).topics == {}
        await paired_store.store.tidy("fold_counts", 10_000)
