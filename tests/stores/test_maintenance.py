"""promote, rescue, expire, cancel_timeout and prune at the bounds of times and limits, compared with the reference."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import CRASH_ERROR, CRASH_UNSEEN, Completed, GaveUp
from rowlock.core.moves import MAX_DETAIL, Cancel, CancelTimeout, Delete, Expire, Rescue
from rowlock.stores.base import DAY, Beat, Retention, Store
from tests.stores.conftest import paired_store, shared_store
from tests.stores.harness import LEASE, MINUTE, OUTCOMES, START, Harness, ids, job, settlement

store = paired_store
unpaired = shared_store  # for limits: the reference knows no limits

TICK = 0.000001
OVERDUE = LEASE + TICK
NAMED = f"{CRASH_ERROR}: worker w1"


async def rescue(store: Harness, *limit: int, **options: Any) -> list[str]:
    """Rescue, and return the ids of the rescued jobs."""
    return ids(await store.store.move_due(Rescue(**{"by": "m1", "backoff": [70.0, 80.0, 90.0]} | options), *limit))


async def test_promote_makes_due_jobs_ready(store: Harness) -> None:
    due, late = await store.add(delay=MINUTE), await store.add(delay=MINUTE + TICK)
    assert await store.store.promote() == 0
    await store.advance(MINUTE)
    assert await store.store.promote() == 1
    assert await store.store.promote() == 0
    assert [(await store.row(one)).ready for one in (due, late)] == [True, False]


# ── Limits ──


async def _five_claimed(store: Harness) -> None:
    for _ in range(5):
        await store.claimed()
        await store.advance(1)
    await store.advance(LEASE)


async def _five_asked(store: Harness) -> None:
    for status in [Status.CANCEL_REQUESTED] * 5 + [Status.PROCESSING]:
        await store.in_status(status)
    await store.advance(31)


async def _five_ended(store: Harness) -> None:
    runs = [await store.claimed() for _ in range(5)]
    await store.store.settle([settlement(one, Completed() if i < 3 else GaveUp()) for i, one in enumerate(runs)])
    await store.advance(8 * DAY)


async def _five_late(store: Harness) -> None:
    await store.insert(*[job(delay=1 + i, expires_at=START + timedelta(seconds=9)) for i in range(5)])
    await store.advance(MINUTE)


LIMITED: dict[str, tuple[Callable[[Harness], Awaitable[None]], Callable[[Store], Awaitable[Any]]]] = {
    "promote": (_five_late, lambda store: store.promote(limit=2)),
    "expire": (_five_late, lambda store: store.move_due(Expire(by="m1"), 2)),
    "rescue": (_five_claimed, lambda store: store.move_due(Rescue(by="m1", backoff=[1.0]), 2)),
    "cancel_timeout": (_five_asked, lambda store: store.move_due(CancelTimeout(by="m1"), 2)),
    "prune": (_five_ended, lambda store: store.prune(Retention(), limit=2)),
}


@pytest.mark.parametrize("verb", LIMITED)
async def test_a_pass_does_at_most_limit(unpaired: Harness, verb: str) -> None:
    prepare, call = LIMITED[verb]
    await prepare(unpaired)
    done = []
    while answer := await call(unpaired.store):
        done.append(answer if isinstance(answer, int) else len(answer))
    assert sum(done) == 5
    assert max(done) <= 2


async def test_rescue_takes_the_oldest_first(unpaired: Harness) -> None:
    await _five_claimed(unpaired)
    assert set(await rescue(unpaired, 2)) == set(sorted(await unpaired.rows())[:2])


# ── rescue ──


async def test_a_lease_is_over_only_after_its_last_moment(store: Harness) -> None:
    claimed = await store.claimed()
    await store.advance(LEASE)
    assert await rescue(store) == []
    await store.advance(TICK)
    assert await rescue(store) == [claimed.id]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("detail", [None, "SIGKILL"])
async def test_runs_of_every_kind_are_lost_again_and_again(store: Harness, named: bool, detail: str | None) -> None:
    """Each crash hits jobs that have started or not, with a cancel request or not, and with retries left or not."""
    for start in (True, False):
        for asked in (True, False):
            for retries in (0, 1, 4):
                one = await store.claimed(start=start, max_retries=retries)
                if asked:
                    await store.store.move([one.id], Cancel(by="ann", reason="stop"))
    only = ["w1"] if named else None
    for start in (True, True, False, True, True, True):
        await store.advance(OVERDUE)
        assert await rescue(store, workers=only, detail=detail)
        assert await rescue(store, workers=only, detail=detail) == []
        await store.advance(90.0)
        await store.store.promote()
        await store.claim(start=start, limit=20)


async def crash(store: Harness, topic: str, *, start: bool = True, wait: float = 0.0) -> Job:
    """Claim the only job of this topic, let its lease expire, rescue it, and return it as it is then."""
    await store.advance(wait)
    await store.store.promote()
    [claimed] = (await store.claim("w1", topic, start=start)).jobs
    await store.advance(OVERDUE)
    assert await rescue(store) == [claimed.id]
    return await store.job(claimed.id)


async def test_crashes_from_the_second_on_wait(store: Harness) -> None:
    job_id = await store.add(max_retries=4)
    waits: list[float] = []
    for _ in range(4):
        after = await crash(store, "mail", wait=waits[-1] if waits else 0.0)
        waits.append(max((after.run_at - store.now).total_seconds(), 0.0))
        assert (await store.row(job_id)).ready == (waits[-1] == 0.0)
    assert waits == [0.0, 80.0, 90.0, 90.0]
    last = await crash(store, "mail", wait=90.0)
    assert (last.status, last.retries, last.crashes) == (Status.EXPIRED, 4, 5)
    assert await store.story(job_id) == ["enqueued", *["claimed", "rescued"] * 5]


async def second_crash(store: Harness, topic: str) -> float:
    """Return the seconds that a new job of this topic must wait after its second crash."""
    job_id = await store.add(topic)
    await crash(store, topic)
    after = await crash(store, topic)
    assert (after.retries, after.status) == (2, Status.PENDING)
    await store.store.move([job_id], Delete(by="ann"))
    return (after.run_at - store.now).total_seconds()


async def test_a_topic_may_have_a_backoff_of_its_own(store: Harness) -> None:
    """The latest setting counts. None restores the default, and a topic that the call does not name stays as it is."""
    await store.store.set_backoff({"mail": [1.0, 2.5, 3.0], "bills": [1.5], "zoo": None})
    assert [await second_crash(store, topic) for topic in ("mail", "bills", "zoo", "other")] == [2.5, 1.5, 80.0, 80.0]
    await store.store.set_backoff({"mail": [1.0, 0.0], "bills": None})
    assert [await second_crash(store, topic) for topic in ("mail", "bills")] == [0.0, 80.0]
    await store.store.set_backoff({})
    assert await second_crash(store, "mail") == 0.0


async def test_a_backoff_is_no_pause_and_a_pause_is_no_backoff(store: Harness) -> None:
    verbs = store.store
    await verbs.set_backoff({"mail": [1.0]})
    assert await verbs.paused() == []
    assert not await verbs.steer_topic("mail", "resume", by="ann")
    await verbs.steer_topic("mail", "pause", by="ann")
    await verbs.set_backoff({"mail": [2.0], "bills": [3.0]})
    assert len(await verbs.paused()) == 1
    await store.add()
    assert (await store.claim()).jobs == []
    assert await verbs.steer_topic("mail", "resume", by="ann")
    await verbs.move(list(await store.rows()), Delete(by="ann"))
    assert [await second_crash(store, topic) for topic in ("mail", "bills")] == [2.0, 3.0]


async def test_a_backoff_that_is_not_new_is_not_written(real_store: Harness) -> None:
    tables = {"mail": [1.0, 2.0], "bills": None}
    await real_store.store.set_backoff(tables)
    await real_store.execute("CREATE TABLE written (topic text)")
    await watch_topics(real_store)
    await real_store.store.set_backoff(tables)
    assert await real_store.fetch("SELECT topic FROM written") == []
    await real_store.store.set_backoff({**tables, "mail": [1.0]})
    assert await real_store.fetch("SELECT topic FROM written") == [("mail",)]


async def watch_topics(store: Harness) -> None:
    if store.kind == "sqlite":
        for op in ("INSERT", "UPDATE"):
            noting = "BEGIN INSERT INTO written VALUES (NEW.topic); END"
            await store.execute(f"CREATE TRIGGER written_{op} AFTER {op} ON _jobs_topics {noting}")
    else:
        body = "BEGIN INSERT INTO written VALUES (NEW.topic); RETURN NULL; END"
        await store.execute(f"CREATE FUNCTION note_topic() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        await store.execute(
            "CREATE TRIGGER written AFTER INSERT OR UPDATE ON _jobs_topics FOR EACH ROW EXECUTE FUNCTION note_topic()"
        )


async def test_a_job_without_retries_that_never_started_is_not_lost(store: Harness) -> None:
    claimed = await store.claimed(start=False, max_retries=0)
    await store.advance(OVERDUE)
    await rescue(store)
    assert (await store.row(claimed.id)).ready


async def test_a_start_mark_by_heartbeat_is_charged(store: Harness) -> None:
    claimed = await store.claimed(start=False)
    await store.store.heartbeat([Beat(claimed.id, 1, started=True)], LEASE)
    await store.advance(OVERDUE)
    [rescued] = await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    assert rescued.charged


async def test_a_lease_that_ran_out_after_the_look_is_not_rescued(store: Harness) -> None:
    """The rescue may have waited for a lock, and the worker's heartbeat as well. The worker must not lose its job."""
    claimed = await store.claimed()
    looked = store.now
    await store.advance(OVERDUE)
    assert await rescue(store, before=looked) == []
    assert await rescue(store, before=store.now) == [claimed.id]


async def test_rescue_of_dead_workers_does_not_wait_for_leases(store: Harness) -> None:
    mine, _, other = [(await store.claimed(w)).id for w in ("w1", "w2", "w3")]
    assert set(await rescue(store, workers=["w1", "w3", "w9"])) == {mine, other}
    await store.advance(OVERDUE)
    assert await rescue(store, workers=["w1"]) == []
    assert await rescue(store, workers=[]) == []
    assert len(await rescue(store)) == 1


async def test_only_what_a_named_worker_had_started_is_a_suspect(store: Harness) -> None:
    """A supervisor that names dead workers has marked what they had started. An expired lease does not tell that."""
    started, ahead = await store.claimed("dead"), await store.claimed("dead", start=False)
    asked = await store.claimed("dead")
    await store.store.move([asked.id], Cancel(by="ann"))
    await rescue(store, workers=["dead"])
    assert [(await store.job(one.id)).crashes for one in (started, ahead, asked)] == [1, 0, 1]
    await store.claim("late", start=False)
    await store.advance(OVERDUE)
    assert len(await rescue(store)) == 2
    assert [(await store.job(one.id)).crashes for one in (started, ahead)] == [2, 1]


@pytest.mark.parametrize("named", [True, False])
async def test_how_a_worker_died_stands_in_the_error(unpaired: Harness, named: bool) -> None:
    claimed, ahead = await unpaired.claimed("w1"), await unpaired.claimed("w1", start=False)
    await unpaired.advance(OVERDUE)
    await rescue(unpaired, workers=["w1"] if named else None, detail="SIGKILL\0, peak memory 2 GiB")
    error = f"{NAMED}, SIGKILL\N{REPLACEMENT CHARACTER}, peak memory 2 GiB{'' if named else CRASH_UNSEEN}"
    assert (await unpaired.job(claimed.id)).last_error == error
    assert (await unpaired.row(claimed.id)).history[-1]["error"] == error
    assert (await unpaired.job(ahead.id)).last_error is None


async def test_a_long_story_of_a_death_is_cut(unpaired: Harness) -> None:
    claimed = await unpaired.claimed("w1")
    await rescue(unpaired, workers=["w1"], detail=f"begin {'ä' * 100_000} end")
    error = (await unpaired.job(claimed.id)).last_error
    assert error is not None
    assert error.startswith(f"{NAMED}, begin ")
    assert error.endswith(" end")
    assert len(error.encode()) <= len(NAMED) + 2 + MAX_DETAIL


async def test_settled_jobs_are_not_rescued(store: Harness) -> None:
    for outcome in OUTCOMES.values():
        await store.settled(outcome, topic=type(outcome).__name__)
    await store.advance(1000)
    assert await rescue(store) == []


# ── expire ──


async def test_expire(store: Harness) -> None:
    at = START + timedelta(seconds=10)
    due, future = await store.add(expires_at=at), await store.add(expires_at=at, delay=MINUTE, key="k")
    await store.claimed(topic="started", expires_at=at)
    await store.add(expires_at=at + timedelta(seconds=TICK))
    await store.add()
    await store.advance(10 - TICK)
    assert await store.store.move_due(Expire(by="m1")) == []
    await store.advance(TICK)
    assert sorted(ids(await store.store.move_due(Expire(by="m1")))) == sorted([due, future])
    assert await store.add(key="k")


# ── cancel_timeout ──


async def test_cancel_timeout(store: Harness) -> None:
    claimed = await store.claimed()
    await store.advance(1)
    await store.store.move([claimed.id], Cancel(by="ann", reason="stop"))
    await store.store.heartbeat([Beat(claimed.id, 1)], LEASE)
    await store.advance(30)
    assert await store.store.move_due(CancelTimeout(by="m1", grace=30.0)) == []
    await store.advance(TICK)
    assert await store.store.move_due(CancelTimeout(by="m1", grace=31.0)) == []
    assert ids(await store.store.move_due(CancelTimeout(by="m1", grace=30.0))) == [claimed.id]
    assert await store.store.move_due(CancelTimeout(by="m1", grace=0.0)) == []


# ── prune ──


@pytest.mark.parametrize(("seconds", "kept"), [(None, None), (0.0, DAY), (2 * DAY, 2 * DAY)])
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED, Status.FAILED, Status.EXPIRED])
async def test_prune_by_status(store: Harness, status: Status, seconds: float | None, kept: float | None) -> None:
    """The store keeps completed jobs for a day at least."""
    job_id = {one: (await store.in_status(one, topic=one)).id for one in Status}[status]
    never: dict[str, Any] = dict.fromkeys(("completed", "cancelled", "failed", "expired"))
    retention = Retention(**(never | {status.value: seconds}))
    if kept is not None and status is Status.COMPLETED:
        await store.advance(kept - TICK)
        assert await store.store.prune(retention) == 0
        await store.advance(TICK)
    elif seconds:
        await store.advance(seconds - TICK)
        assert await store.store.prune(retention) == 0
        await store.advance(TICK)
    else:
        await store.advance(1000 * DAY)
    assert await store.store.prune(retention) == (seconds is not None)
    assert (job_id in await store.rows()) == (seconds is None)


async def test_the_default_keeps_dead_letters_and_drops_the_rest_after_a_week(store: Harness) -> None:
    jobs = {status: (await store.in_status(status, topic=status)).id for status in Status}
    await store.advance(7 * DAY)
    assert await store.store.prune(Retention()) == 2
    assert set(await store.rows()) == set(jobs.values()) - {jobs[Status.COMPLETED], jobs[Status.CANCELLED]}
    await store.advance(1000 * DAY)
    assert await store.store.prune(Retention()) == 0
