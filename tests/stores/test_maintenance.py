"""promote, rescue, expire, cancel_timeout, prune: what each does to whole rows, at the edges of time and of limits."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import CRASH_ERROR, CRASH_UNSEEN, EXPIRED_ERROR, Completed, GaveUp
from rowlock.stores.base import DAY, Beat, Rescued, Retention
from rowlock.stores.reports import MAX_DETAIL
from tests.stores.conftest import shared_store
from tests.stores.harness import LEASE, MINUTE, OUTCOMES, START, Harness, job, settlement
from tests.stores.rows import Row, micros

store = shared_store

TICK = 0.000001
OVERDUE = LEASE + TICK
NAMED = f"{CRASH_ERROR}: worker w1"
ERROR = f"{NAMED}{CRASH_UNSEEN}"  # of a lease that ran out


# ── promote ──


async def test_promote_makes_due_jobs_ready(store: Harness) -> None:
    due, late = await store.add(delay=MINUTE), await store.add(delay=MINUTE + TICK)
    before = await store.rows()
    assert await store.store.promote() == 0
    await store.advance(MINUTE)
    assert await store.store.promote() == 1
    assert await store.store.promote() == 0
    assert await store.rows() == {due: structs.replace(before[due], ready=True), late: before[late]}


async def test_promote_does_at_most_limit(store: Harness) -> None:
    await store.insert(*[job(delay=1 + i) for i in range(5)])
    await store.advance(MINUTE)
    assert await store.store.promote(limit=2) == 2
    assert await store.store.promote(limit=2) == 2
    assert await store.store.promote(limit=2) == 1


# ── rescue ──


async def test_a_lease_is_over_only_after_its_last_moment(store: Harness) -> None:
    await store.claimed()
    before = await store.rows()
    await store.advance(LEASE)
    assert await store.store.rescue(by="m1", backoff=[1.0]) == []
    assert await store.rows() == before
    await store.advance(TICK)
    assert len(await store.store.rescue(by="m1", backoff=[1.0])) == 1


RESCUES: dict[str, tuple[dict[str, Any], bool, dict[str, Any]]] = {  # columns, ready, entry
    "not started": ({"status": Status.PENDING}, True, {}),
    "started": ({"status": Status.PENDING, "retries": 1, "last_error": ERROR}, True, {"error": ERROR}),
    "started, no retry left": (
        {"status": Status.EXPIRED, "last_error": ERROR, "finished_at": START + timedelta(seconds=OVERDUE)},
        False,
        {"error": ERROR},
    ),
    "cancel requested": (
        {"status": Status.CANCELLED, "finished_at": START + timedelta(seconds=OVERDUE)},
        False,
        {},
    ),
}


@pytest.mark.parametrize("case", RESCUES)
async def test_the_first_crash(store: Harness, case: str) -> None:
    columns, ready, more = RESCUES[case]
    started = case != "not started"
    claimed = await store.claimed(start=started, max_retries=0 if case == "started, no retry left" else 3)
    if case == "cancel requested":
        await store.store.cancel([claimed.id], by="ann", reason="stop")
    before = await store.row(claimed.id)
    now = await store.advance(OVERDUE)
    charged = case == "started"
    answer = Rescued(claimed.id, "mail", 1, columns["status"], charged)
    assert await store.store.rescue(by="m1", backoff=[70.0, 80.0]) == [answer]
    expected = structs.replace(
        before.job,
        **columns,
        locked_by=None,
        locked_until=None,
        crashes=1,
        updated=now,
        events_count=before.job.events_count + 1,
    )
    entry = {"at": micros(now), "event": "rescued", "status": columns["status"], "version": 1, "by": "m1"}
    run = {"worker": "w1", "claimed_at": micros(START), **({"started_at": micros(START)} if started else {})}
    assert await store.row(claimed.id) == Row(expected, ready, (*before.history, entry | run | more))
    assert (await store.events(claimed.id))[1].by == "w1"
    assert await store.store.rescue(by="m1", backoff=[70.0]) == []
    assert [a.action for a in await store.audit()] == (["cancel"] if case == "cancel requested" else [])


async def crash(store: Harness, backoff: list[float], *, start: bool = True) -> Job:
    """Claim the only job, let the lease run out, rescue; the job afterwards."""
    await store.store.promote()
    [claimed] = (await store.claim(start=start)).jobs
    await store.advance(OVERDUE)
    assert len(await store.store.rescue(by="m1", backoff=backoff)) == 1
    return await store.job(claimed.id)


async def test_crashes_from_the_second_on_wait(store: Harness) -> None:
    job_id = await store.add(max_retries=4)
    backoff = [70.0, 80.0, 90.0]
    first = await crash(store, backoff)
    assert (first.retries, first.crashes, first.run_at) == (1, 1, START)
    for retries, delay in ((2, 80.0), (3, 90.0), (4, 90.0)):
        after = await crash(store, backoff)
        assert (after.retries, after.crashes, after.status) == (retries, retries, Status.PENDING)
        assert after.run_at == store.now + timedelta(seconds=delay)
        row = await store.row(job_id)
        assert not row.ready
        assert row.history[-1]["delay"] == delay
        await store.advance(delay)
    last = await crash(store, backoff)
    assert (last.status, last.retries, last.crashes) == (Status.EXPIRED, 4, 5)
    assert "delay" not in (await store.row(job_id)).history[-1]
    claims = await store.story(job_id)
    assert claims == ["enqueued", *["claimed", "rescued"] * 5]


async def second_crash(store: Harness, topic: str) -> float:
    """Seconds that a new job of this topic has to wait after it."""
    [made] = await store.insert(job(topic=topic))
    for _ in range(2):
        assert len((await store.claim("w1", topic)).jobs) == 1
        await store.advance(OVERDUE)
        await store.store.rescue(by="m1", backoff=[70.0, 80.0])
    after = await store.job(made.id)
    assert (after.retries, after.status) == (2, Status.PENDING)
    await store.store.delete([made.id], by="ann")
    return (after.run_at - store.now).total_seconds()


async def test_a_topic_may_have_a_backoff_of_its_own(store: Harness) -> None:
    """Who says it last is right; None is the default again, and whoever is not named stays as it is."""
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
    assert not await verbs.resume("mail", by="ann")
    await verbs.pause("mail", by="ann")
    [pause] = await verbs.paused()
    await verbs.set_backoff({"mail": [2.0], "bills": [3.0]})
    assert await verbs.paused() == [pause]
    await store.add()
    assert (await store.claim()).jobs == []
    assert await verbs.resume("mail", by="ann")
    assert [entry.action for entry in await store.audit()] == ["pause", "resume"]
    await verbs.delete(list(await store.rows()), by="ann")
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


async def test_a_crash_before_the_start_counts_as_the_first_but_is_free(store: Harness) -> None:
    await store.add()
    free = await crash(store, [70.0], start=False)
    assert (free.retries, free.crashes, free.last_error) == (0, 1, None)
    charged = await crash(store, [70.0])
    assert (charged.retries, charged.crashes) == (1, 2)
    assert charged.run_at == store.now + timedelta(seconds=70)
    free = await crash_after(store, 70.0)
    assert (free.retries, free.crashes, free.last_error) == (1, 3, ERROR)


async def crash_after(store: Harness, seconds: float) -> Job:
    await store.advance(seconds)
    return await crash(store, [70.0], start=False)


async def test_a_backoff_of_zero_is_ready_at_once(store: Harness) -> None:
    job_id = await store.add()
    await crash(store, [0.0])
    after = await crash(store, [0.0])
    assert (await store.row(job_id)).ready
    assert after.run_at == store.now
    assert "delay" not in (await store.row(job_id)).history[-1]


async def test_a_job_without_retries_that_never_started_is_not_lost(store: Harness) -> None:
    claimed = await store.claimed(start=False, max_retries=0)
    await store.advance(OVERDUE)
    [rescued] = await store.store.rescue(by="m1", backoff=[1.0])
    assert (rescued.status, rescued.charged) == (Status.PENDING, False)
    assert (await store.row(claimed.id)).ready


async def test_a_start_mark_by_heartbeat_is_charged(store: Harness) -> None:
    claimed = await store.claimed(start=False)
    await store.store.heartbeat([Beat(claimed.id, 1, started=True)], LEASE)
    await store.advance(OVERDUE)
    [rescued] = await store.store.rescue(by="m1", backoff=[1.0])
    assert rescued.charged


async def test_a_lease_that_ran_out_after_the_look_is_not_rescued(store: Harness) -> None:
    """The rescue may have waited for a lock, as the heartbeat of the job's worker did."""
    claimed = await store.claimed()
    looked = store.now
    await store.advance(OVERDUE)
    assert await store.store.rescue(by="m1", backoff=[1.0], before=looked) == []
    assert (await store.job(claimed.id)).status is Status.PROCESSING
    [rescued] = await store.store.rescue(by="m1", backoff=[1.0], before=store.now)
    assert rescued.id == claimed.id


async def test_rescue_of_dead_workers_does_not_wait_for_leases(store: Harness) -> None:
    mine, theirs, other = [await store.claimed(w) for w in ("w1", "w2", "w3")]
    rescued = await store.store.rescue(by="boss", backoff=[1.0], workers=["w1", "w3", "w9"])
    assert {r.id for r in rescued} == {mine.id, other.id}
    assert (await store.job(theirs.id)).status is Status.PROCESSING
    await store.advance(OVERDUE)
    assert await store.store.rescue(by="boss", backoff=[1.0], workers=["w1"]) == []
    assert await store.store.rescue(by="boss", backoff=[1.0], workers=[]) == []
    assert len(await store.store.rescue(by="boss", backoff=[1.0])) == 1


async def test_only_what_a_named_worker_had_started_is_a_suspect(store: Harness) -> None:
    """Who names the dead has marked what they had started; nobody knows that of a lease that just ran out."""
    started, ahead = await store.claimed("dead"), await store.claimed("dead", start=False)
    asked = await store.claimed("dead")
    await store.store.cancel([asked.id], by="ann")
    await store.store.rescue(by="boss", backoff=[1.0], workers=["dead"])
    assert [(await store.job(one.id)).crashes for one in (started, ahead, asked)] == [1, 0, 1]
    await store.claim("late", start=False)
    await store.advance(OVERDUE)
    assert len(await store.store.rescue(by="boss", backoff=[1.0])) == 2
    assert [(await store.job(one.id)).crashes for one in (started, ahead)] == [2, 1]


@pytest.mark.parametrize("named", [True, False])
async def test_how_a_worker_died_stands_in_the_error(store: Harness, named: bool) -> None:
    claimed, ahead = await store.claimed("w1"), await store.claimed("w1", start=False)
    await store.advance(OVERDUE)
    only = ["w1"] if named else None
    await store.store.rescue(by="boss", backoff=[1.0], workers=only, detail="SIGKILL\0, peak memory 2 GiB")
    error = f"{NAMED}, SIGKILL\N{REPLACEMENT CHARACTER}, peak memory 2 GiB{'' if named else CRASH_UNSEEN}"
    assert (await store.job(claimed.id)).last_error == error
    assert (await store.row(claimed.id)).history[-1]["error"] == error
    assert (await store.job(ahead.id)).last_error is None


async def test_a_long_story_of_a_death_is_cut(store: Harness) -> None:
    claimed = await store.claimed("w1")
    await store.store.rescue(by="boss", backoff=[1.0], workers=["w1"], detail=f"begin {'ä' * 100_000} end")
    error = (await store.job(claimed.id)).last_error
    assert error is not None
    assert error.startswith(f"{NAMED}, begin ")
    assert error.endswith(" end")
    assert len(error.encode()) <= len(NAMED) + 2 + MAX_DETAIL


async def test_rescue_does_at_most_limit_and_the_oldest_first(store: Harness) -> None:
    jobs = []
    for _ in range(5):
        jobs.append((await store.claimed()).id)
        await store.advance(1)
    await store.advance(LEASE)
    first = await store.store.rescue(by="m1", backoff=[1.0], limit=2)
    assert {r.id for r in first} == set(jobs[:2])
    assert len(await store.store.rescue(by="m1", backoff=[1.0], limit=9)) == 3


async def test_settled_jobs_are_not_rescued(store: Harness) -> None:
    for outcome in OUTCOMES.values():
        await store.settled(outcome, topic=type(outcome).__name__)
    await store.advance(1000)
    assert await store.store.rescue(by="m1", backoff=[1.0]) == []


# ── expire ──


async def test_expire(store: Harness) -> None:
    due = await store.add(expires_at=START + timedelta(seconds=10))
    future = await store.add(expires_at=START + timedelta(seconds=10), delay=MINUTE, key="k")
    later = await store.add(expires_at=START + timedelta(seconds=10 + TICK))
    never = await store.add()
    before = await store.rows()
    await store.advance(10 - TICK)
    assert await store.store.expire(by="m1") == []
    now = await store.advance(TICK)
    assert sorted(await store.store.expire(by="m1")) == sorted([due, future])
    after = await store.rows()
    entry = {"at": micros(now), "event": "expired", "status": "expired", "version": 0, "by": "m1"}
    for job_id in (due, future):
        expected = structs.replace(
            before[job_id].job,
            status=Status.EXPIRED,
            finished_at=now,
            updated=now,
            last_error=EXPIRED_ERROR,
            events_count=2,
        )
        assert after[job_id] == Row(expected, False, (entry,))
    assert {j: after[j] for j in (later, never)} == {j: before[j] for j in (later, never)}
    assert await store.story(due) == ["enqueued", "expired"]
    assert await store.add(key="k")


async def test_a_started_job_does_not_expire(store: Harness) -> None:
    claimed = await store.claimed(expires_at=START + timedelta(seconds=1))
    await store.advance(2)
    assert await store.store.expire(by="m1") == []
    assert (await store.job(claimed.id)).status is Status.PROCESSING


async def test_expire_does_at_most_limit(store: Harness) -> None:
    await store.insert(*[job(expires_at=START) for _ in range(5)])
    assert [len(await store.store.expire(by="m1", limit=3)) for _ in range(3)] == [3, 2, 0]


# ── cancel_timeout ──


async def test_cancel_timeout(store: Harness) -> None:
    claimed = await store.claimed()
    await store.advance(1)
    await store.store.cancel([claimed.id], by="ann", reason="stop")
    before = await store.row(claimed.id)
    await store.store.heartbeat([Beat(claimed.id, 1)], LEASE)
    await store.advance(30)
    assert await store.store.cancel_timeout(by="m1") == []
    now = await store.advance(TICK)
    assert await store.store.cancel_timeout(by="m1", grace=31) == []
    assert await store.store.cancel_timeout(by="m1") == [claimed.id]
    entry = {
        "at": micros(now),
        "event": "cancel_timed_out",
        "status": "cancelled",
        "version": 1,
        "by": "m1",
        "worker": "w1",
        "claimed_at": micros(START),
        "started_at": micros(START),
    }
    expected = structs.replace(
        before.job,
        status=Status.CANCELLED,
        finished_at=now,
        updated=now,
        locked_by=None,
        locked_until=None,
        events_count=4,
    )
    assert await store.row(claimed.id) == Row(expected, False, (*before.history, entry))
    assert await store.story(claimed.id) == ["enqueued", "claimed", "cancel_requested", "cancel_timed_out"]
    assert await store.store.cancel_timeout(by="m1", grace=0) == []


async def test_cancel_timeout_does_at_most_limit(store: Harness) -> None:
    for _ in range(3):
        await store.in_status(Status.CANCEL_REQUESTED)
    await store.in_status(Status.PROCESSING)
    await store.advance(31)
    assert [len(await store.store.cancel_timeout(by="m1", limit=2)) for _ in range(3)] == [2, 1, 0]


# ── prune ──


async def finished_of_each(store: Harness) -> dict[Status, str]:
    jobs = {status: (await store.in_status(status, topic=status.value)).id for status in Status}
    await store.execute("UPDATE _jobs SET expires_at = NULL")
    return jobs


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED, Status.FAILED, Status.EXPIRED])
async def test_prune_by_status(store: Harness, status: Status) -> None:
    jobs = await finished_of_each(store)
    never: dict[str, Any] = dict.fromkeys(("completed", "cancelled", "failed", "expired"))
    retention = Retention(**(never | {status.value: 2 * DAY}))
    await store.advance(2 * DAY - TICK)
    assert await store.store.prune(retention) == 0
    await store.advance(TICK)
    assert await store.store.prune(Retention(**never)) == 0
    assert await store.store.prune(retention) == 1
    assert set(await store.rows()) == set(jobs.values()) - {jobs[status]}
    assert await store.store.prune(retention) == 0
    assert await store.store.get([jobs[status]]) == {}
    assert await store.store.events(jobs[status]) == []


async def test_completed_jobs_are_kept_a_day_at_least(store: Harness) -> None:
    await store.settled(Completed())
    await store.advance(DAY - TICK)
    assert await store.store.prune(Retention(completed=0)) == 0
    await store.advance(TICK)
    assert await store.store.prune(Retention(completed=0)) == 1


async def test_the_default_keeps_dead_letters_and_drops_the_rest_after_a_week(store: Harness) -> None:
    jobs = await finished_of_each(store)
    await store.advance(7 * DAY)
    assert await store.store.prune(Retention()) == 2
    assert set(await store.rows()) == set(jobs.values()) - {jobs[Status.COMPLETED], jobs[Status.CANCELLED]}
    await store.advance(1000 * DAY)
    assert await store.store.prune(Retention()) == 0


async def test_prune_does_at_most_limit(store: Harness) -> None:
    await store.insert(*[job() for _ in range(6)])
    claimed = (await store.claim()).jobs
    await store.store.settle([settlement(j, Completed() if i < 3 else GaveUp()) for i, j in enumerate(claimed)])
    await store.advance(8 * DAY)
    done = []
    while pruned := await store.store.prune(Retention(), limit=2):
        assert pruned <= 2
        done.append(pruned)
    assert sum(done) == 6
    assert await store.rows() == {}
