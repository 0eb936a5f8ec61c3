"""Charts: each event counts once in its minute, hour and day, also after folds, crashes, prunes and upgrades."""

import asyncio
import random
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest

from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released, Snoozed
from rowlock.core.moves import Cancel, Delete, Expire, Requeue, Rescue
from rowlock.core.sketch import Sketch, bucket
from rowlock.stores.base import DAY, Retention, Store
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.rollups import COUNTED, KEPT
from rowlock.stores.series import Point, Series, window
from tests.stores.harness import LEASE, MINUTE, Harness, PostgresHarness, claim_by, job, settlement
from tests.stores.processes import deadlocks, real_job, stores, target_of
from tests.stores.test_kill import ROOT, killed, run_and_kill

HOUR = 3600.0


async def series(store: Harness, topic: str | None = None, range: str | None = "15m", **more: Any) -> Series:
    now = await store.store.now()
    given = {"since": None, "until": None, "step": None} | more
    return await store.store.series(topic, window(now, range, given["since"], given["until"], given["step"]))


def counts(point: Point) -> dict[str, int]:
    return {name: getattr(point, name) for name in COUNTED if getattr(point, name)}


def total(found: Series) -> dict[str, int]:
    sums = {name: sum(getattr(point, name) for point in found.points) for name in COUNTED}
    return {name: count for name, count in sums.items() if count}


async def points(store: Harness, topic: str | None = None, **more: Any) -> list[dict[str, int]]:
    """Return the counts above zero of each point that has any."""
    return [counts(point) for point in (await series(store, topic, **more)).points if counts(point)]


async def fold(store: Store) -> None:
    while await store.tidy("fold_counts", 10_000):
        pass


# ── Which events count, and when ──


async def a_busy_hour(store: Harness) -> None:
    """Let one event of each kind happen, each in its own minute."""
    await store.add("bills", delay=2 * HOUR)
    await store.advance(MINUTE)
    await store.settled(Completed())
    await store.advance(MINUTE)
    await store.settled(Failed("boom"))  # retried in 10 seconds
    await store.advance(MINUTE)
    await store.store.promote()
    [again] = (await store.claim()).jobs
    await store.store.settle([settlement(again, Failed("no", final=True), ran=0.0)])
    await store.advance(MINUTE)
    await store.claimed(topic="zoo")
    await store.advance(MINUTE)
    assert len(await store.store.move_due(Rescue(by="m1", backoff=[0.0]))) == 1
    await store.advance(MINUTE)
    await store.store.move([await store.add("bills")], Cancel(by="ann"))
    await store.advance(MINUTE)
    await store.add("bills", expires_at=store.now)
    assert len(await store.store.move_due(Expire(by="m1"))) == 1


BUSY = [
    {"enqueued": 1}, {"enqueued": 1, "completed": 1}, {"enqueued": 1, "retried": 1}, {"failed": 1}, {"enqueued": 1},
    {"retried": 1, "lost": 1}, {"enqueued": 1, "cancelled": 1}, {"enqueued": 1, "expired": 1},
]  # fmt: skip


async def test_what_happens_is_counted_in_its_minute_before_and_after_folding(store: Harness) -> None:
    await a_busy_hour(store)
    assert await points(store) == BUSY
    bills = await points(store, "bills")
    assert bills == [{"enqueued": 1}, {"enqueued": 1, "cancelled": 1}, {"enqueued": 1, "expired": 1}]
    before = await series(store)
    while await store.store.tidy("fold_counts", 1):
        assert await series(store) == before
        assert await points(store, "bills") == bills
    assert await store.fetch("SELECT * FROM _jobs_counts") == []
    assert await points(store, "none") == []


async def test_what_came_and_went_tells_how_many_are_not_done(store: Harness) -> None:
    """The difference tells it after any random operations of workers and operators."""
    chance = random.Random(11)
    everything: list[str] = []
    sums: dict[str, int] = {}
    for _ in range(60):
        await store.advance(chance.uniform(0, MINUTE))
        some = chance.sample(everything, min(2, len(everything)))
        match chance.randrange(7):
            case 0 | 1:
                everything.append(await store.add(expires_at=store.now + timedelta(seconds=chance.uniform(30, HOUR))))
            case 2:
                for held in (await store.claim(limit=2)).jobs:
                    outcomes: list[Outcome] = [Completed(), Failed("no", final=True), Failed("boom"), Released()]
                    await store.store.settle([settlement(held, chance.choice(outcomes), ran=0.0)])
            case 3:
                await store.store.move(some, Cancel(by="ann"))
            case 4:
                await store.store.move(some, Requeue(by="ann"))
            case 5:
                await store.store.move(some, Delete(by="ann"))
            case _:
                await store.store.promote()
                await store.store.move_due(Expire(by="m1"))
                await store.store.tidy("fold_counts", chance.randrange(1, 20))
        sums = dict.fromkeys(COUNTED, 0) | total(await series(store, None, "6h"))
        came, ended = sums["enqueued"] + sums["requeued"], ("completed", "failed", "expired", "cancelled", "deleted")
        [(left,)] = await store.fetch("SELECT count(*) FROM _jobs WHERE status IN ('pending', 'processing')")
        assert came - sum(sums[name] for name in ended) == left
    assert sums["requeued"]
    assert sums["deleted"]


async def test_minutes_hours_and_days_tell_the_same(store: Harness) -> None:
    """The range covers at least two midnights."""
    chance = random.Random(3)
    for _ in range(30):
        await store.advance(chance.uniform(0, 4 * HOUR))
        outcomes: list[Outcome] = [Completed(), Failed("no", final=True)]
        await store.settled(chance.choice(outcomes), topic=chance.choice(["a", "b"]))
        if chance.random() < 0.3:
            await store.store.tidy("fold_counts", chance.randrange(1, 5))
    for topic in (None, "a", "b"):
        for _ in range(2):
            found = [
                total(await series(store, topic, "7d", step=86_400)),
                total(await series(store, topic, "7d", step=3600)),
                total(await series(store, topic, None, since=store.now - timedelta(hours=70), step=300)),
            ]
            assert found[0] == found[1]
            assert found[2]["enqueued"] <= found[0]["enqueued"]
            await fold(store.store)
    assert total(await series(store, None, "7d"))["enqueued"] == 30


async def test_a_minute_an_hour_and_a_day_begin_with_their_first_microsecond(store: Harness) -> None:
    midnight = datetime(2026, 3, 29, tzinfo=store.now.tzinfo)  # clocks go forward in Europe that night, not in UTC
    for microseconds in (-1, 0, 1, 59_999_999, 60_000_000, 3_600_000_000 - 1, 3_600_000_000, 86_400_000_000 - 1):
        store.now = midnight
        await store.advance(microseconds / 1e6)
        await store.add()
    await store.advance(10)
    for _ in range(2):
        days = await series(store, None, "7d", step=86_400)
        assert [point.enqueued for point in days.points][-3:] == [1, 7, 0]
        hours = await series(store, None, None, since=midnight, until=midnight + timedelta(hours=2))
        per_minute = {point.at - midnight: point.enqueued for point in hours.points if point.enqueued}
        assert per_minute == {
            timedelta(0): 3, timedelta(minutes=1): 1, timedelta(minutes=59): 1, timedelta(hours=1): 1
        }  # fmt: skip
        await fold(store.store)


async def test_the_database_s_time_zone_has_no_part_in_it(store: Harness) -> None:
    if isinstance(store, PostgresHarness):
        await store.execute("ALTER DATABASE " + store.url.rsplit("/", 1)[1] + " SET timezone = 'Asia/Kathmandu'")
        await store.store.close()
        store.store = store.new_store()
        await store.store.open()
    await store.add()
    await fold(store.store)
    found = await store.fetch("SELECT span, at FROM _jobs_rollups WHERE topic = '' ORDER BY span")
    begins = [at.timestamp() if isinstance(at, datetime) else at / 1e6 for _, at in found]
    assert begins == [store.now.timestamp() // span * span for span, _ in found]
    assert [span for span, _ in found] == list(KEPT)


# ── Which events do not count ──


async def test_what_was_there_before_is_not_enqueued_again(store: Harness) -> None:
    first, keyed = job(), job(key="k")
    await store.insert(first, keyed, job(key="k"), keyed)
    await store.insert(job(key="k"), job())
    await store.store.insert([first, keyed, job()], repeat=True)
    [claimed, *_] = (await store.claim(limit=1)).jobs
    await store.store.settle([settlement(claimed, Completed(), ran=0.0)])
    again = job(id=claimed.id)
    assert [one.existing for one in await store.store.insert([again, job()], repeat=True)] == [True, False]
    rows = len(await store.rows())
    for _ in range(2):
        assert total(await series(store)) == {"enqueued": rows, "completed": 1}
        await fold(store.store)


@pytest.mark.parametrize("outcome", [Snoozed(90.0), Released()])
async def test_what_neither_ended_nor_failed_is_no_run(store: Harness, outcome: Outcome) -> None:
    await store.settled(outcome)
    found = await series(store)
    assert total(found) == {"enqueued": 1}
    assert {point.run.p50 for point in found.points} == {None}


async def test_a_requeue_takes_nothing_back(store: Harness) -> None:
    """The totals say how jobs have ended. A chart says which events happened."""
    failed = await store.settled(Failed("no", final=True))
    await store.advance(MINUTE)
    [answer] = await store.store.move([failed.id], Requeue(by="ann"))
    assert answer.done
    for _ in range(2):
        assert await points(store) == [{"enqueued": 1, "failed": 1}, {"requeued": 1}]
        assert (await store.store.stats()).failed == 0
        await fold(store.store)


async def test_what_is_refused_is_not_counted(store: Harness) -> None:
    claimed = await store.claimed()
    done = settlement(claimed, Completed(), ran=0.0)
    await store.store.settle([done, done])
    await store.store.settle([done, settlement(claimed, Failed("late", final=True), ran=0.0)])
    assert total(await series(store)) == {"enqueued": 1, "completed": 1}


# ── How long jobs wait and run ──


async def test_waits_and_runs_of_what_completed_and_failed(store: Harness) -> None:
    """`ran` may be longer than the time from claim to end. Then the run counts from its claim."""
    lives: list[tuple[float, float, Outcome]] = [
        (1.0, 5.0, Completed()), (2.0, 6.0, Failed("boom")), (3.0, 7.0, Failed("no", final=True)), (9.0, 9.0, GaveUp()),
    ]  # fmt: skip
    for waited, ran, outcome in lives:
        topic = f"late{waited:g}"
        await store.add(topic, delay=10)
        await store.advance(10 + waited)
        await store.store.promote()
        [claimed] = (await store.claim("w1", topic)).jobs
        await store.advance(ran)
        await store.store.settle([settlement(claimed, outcome, ran=1000.0)])
    unknown = await store.claimed(start=False)
    await store.store.settle([settlement(unknown, Completed())])
    for _ in range(2):
        [measured] = [point for point in (await series(store, None, "6h", step=86_400)).points if point.completed]
        assert [measured.wait.p50, measured.wait.p99] == pytest.approx([2.0, 3.0], rel=0.05)
        assert [measured.run.p50, measured.run.p95] == pytest.approx([6.0, 7.0], rel=0.05)
        await fold(store.store)


async def test_percentiles_of_many_batches_and_topics(store: Harness) -> None:
    chance = random.Random(11)
    ran = [chance.lognormvariate(0, 1.5) for _ in range(120)]
    await store.insert(*[job(chance.choice(["mail", "bills"])) for _ in ran])
    await store.advance(max(ran))
    left = list(ran)
    while jobs := (await store.claim("w1", "mail", "bills", limit=17)).jobs:
        await store.advance(max(ran))
        await store.store.settle([settlement(one, Completed(), ran=left.pop()) for one in jobs])
        if chance.random() < 0.4:
            await store.store.tidy("fold_counts", 2)
    ordered = sorted(ran)
    exact = [ordered[59], ordered[113], ordered[118]]
    for _ in range(2):
        day = next(point for point in (await series(store, None, "7d", step=86_400)).points if point.completed)
        assert day.completed == 120
        assert [day.run.p50, day.run.p95, day.run.p99] == pytest.approx(exact, rel=0.05)
        await fold(store.store)


async def test_both_stores_mean_the_same_buckets(real_postgres_store: PostgresHarness) -> None:
    """PostgreSQL computes the bucket in SQL. It must agree with the Python code."""
    seconds = [0.0, -1.0, 1e-7, 3e-6, 0.00123, 0.5, 1.05, 7.7, 86_400.0, 4e8, 1e12]
    noted = ", ".join(f"({one})" for one in seconds)
    expression = Statements('"public"').fold_counts.split("timed.runs) AS seconds")[0].rsplit("minute, ", 1)[1]
    found = await real_postgres_store.fetch(
        f"SELECT {expression.split(' AS bucket')[0]} FROM (VALUES {noted}) v (seconds)"
    )
    assert [row[0] for row in found] == [bucket(one) for one in seconds]


# ── What rollups outlive ──


async def test_charts_outlive_prune_delete_and_restart(store: Harness) -> None:
    await a_busy_hour(store)
    await store.advance(HOUR)
    before = await series(store, None, "24h")
    found = await store.rows()
    await store.store.move([one for one, row in found.items() if row.job.status is Status.PENDING], Cancel(by="ann"))
    changed = await series(store, None, "24h")
    await store.store.move(list(found)[:2], Delete(by="ann"))
    await fold(store.store)
    await store.advance(DAY + 2 * HOUR)
    await store.store.prune(Retention(completed=DAY, cancelled=DAY, failed=DAY, expired=DAY))
    assert await store.rows() == {}
    await store.store.close()
    store.store = store.new_store()
    await store.store.open()
    assert total(await series(store, None, "7d")) == total(changed)
    assert total(changed) == total(before) | {"cancelled": total(changed)["cancelled"]}


async def test_rollups_are_kept_as_long_as_their_span_is(store: Harness) -> None:
    born = store.now.replace(hour=0)
    await store.add()
    await fold(store.store)
    kept = []
    for span, seconds in KEPT.items():
        store.now = max(store.now, born)
        await store.advance(seconds + (born - store.now).total_seconds() + (43_200 if span < DAY else 0))
        assert await store.store.tidy("sweep_rollups", 10_000) == 0
        await store.advance(1)
        assert await store.store.tidy("sweep_rollups", 1) == 1
        assert await store.store.tidy("sweep_rollups", 10_000) == 1  # one rollup for the topic, one for all topics
        kept.append(sorted(row[0] for row in await store.fetch("SELECT DISTINCT span FROM _jobs_rollups")))
    assert kept == [[3600, 86_400], [86_400], []]


# ── Notes of roles that may only enqueue ──


async def test_a_note_that_anybody_can_make_says_nothing_that_can_not_be(real_postgres_store: PostgresHarness) -> None:
    notes = [
        "now(), ARRAY['mail', 'mail', 'bills'], 1", "now(), ARRAY['mail'], -1",
        "now(), ARRAY['mail'], 1000000", "now(), ARRAY['mail'], 0", "now(), ARRAY['mail'], NULL",
        "now(), ARRAY['', repeat('x', 129), NULL], 1",
        "'2001-01-01', ARRAY['early'], 1", "'infinity', ARRAY['late'], 1", "NULL, ARRAY['never'], 1",
    ]  # fmt: skip
    for note in notes:
        await real_postgres_store.fetch(f"SELECT _jobs_note_enqueued({note})")
    found = await real_postgres_store.fetch(
        "SELECT topic, enqueued, at BETWEEN now() - interval '10 minutes' AND now() + interval '2 minutes'"
        " FROM _jobs_counts ORDER BY topic, enqueued"
    )
    assert found == [
        ("bills", 1, True), ("early", 1, True), ("late", 1, True), ("mail", -1, True), ("mail", 2, True),
        ("never", 1, True),
    ]  # fmt: skip


# ── Older releases ──


async def test_what_an_older_release_counts_is_in_the_charts_as_far_as_it_knows(
    real_postgres_store: PostgresHarness,
) -> None:
    await real_postgres_store.execute("INSERT INTO _jobs_counts (topic, completed, executions) VALUES ('mail', 3, 3)")
    await fold(real_postgres_store.store)
    assert total(await series(real_postgres_store)) == {"completed": 3}
    assert (await real_postgres_store.store.stats()).completed == 3


OLD_FOLD = """
WITH taken AS MATERIALIZED (SELECT ctid AS tid FROM _jobs_counts LIMIT 100 FOR UPDATE SKIP LOCKED),
folded AS (DELETE FROM _jobs_counts WHERE ctid = ANY (ARRAY(SELECT tid FROM taken)) RETURNING topic, completed)
SELECT count(*)::int FROM folded
"""


async def test_an_older_release_folds_nothing_that_would_be_missing_in_the_charts(
    real_postgres_store: PostgresHarness,
) -> None:
    await real_postgres_store.settled(Completed())
    assert isinstance(real_postgres_store.store, PostgresStore)
    assert [row[0] for row in await real_postgres_store.store._fetch(OLD_FOLD)] == [0]
    # A release that knows rollups, but does not count requeues.
    await real_postgres_store.execute(
        "BEGIN; SET LOCAL application_name = 'rowlock'; SET LOCAL rowlock.folds = 'rollups'; "
        "DELETE FROM _jobs_counts; COMMIT"
    )
    assert await real_postgres_store.store.tidy("fold_counts", 10_000) == 2
    assert total(await series(real_postgres_store)) == {"enqueued": 1, "completed": 1}


# ── Many clients at once ──


async def test_many_fold_while_others_work_and_nothing_is_lost_or_counted_twice(real_store: Harness) -> None:
    each, workers = 60, 3
    others = await stores(real_store, workers + 3)
    working = True

    async def work(store: Store, name: str) -> None:
        for n in range(each):
            await store.insert([real_job(f"t{n % 3}"), real_job("mail")])
            jobs = (await store.claim(claim_by(name, "mail", f"t{n % 3}", limit=5))).jobs
            await store.settle([settlement(one, Completed(), ran=0.01) for one in jobs])

    async def keep_folding(store: Store) -> None:
        while working:
            await store.tidy("fold_counts", 7)

    folding = [asyncio.create_task(keep_folding(one)) for one in others[workers:]]
    await asyncio.gather(*(work(one, f"w{n}") for n, one in enumerate(others[:workers])))
    working = False
    await asyncio.gather(*folding)
    await check_against_rows(real_store)
    assert await deadlocks(real_store) == 0


async def test_who_finds_another_one_folding_does_not_wait(real_postgres_store: PostgresHarness) -> None:
    assert isinstance(real_postgres_store.store, PostgresStore)
    await real_postgres_store.settled(Completed())
    key = real_postgres_store.store._target.folding_key
    await real_postgres_store.execute(f"BEGIN; SELECT pg_advisory_xact_lock({key}); LOCK TABLE _jobs_totals")
    assert await real_postgres_store.store.tidy("fold_counts", 10_000) == 0
    await real_postgres_store.execute("COMMIT")
    assert await real_postgres_store.store.tidy("fold_counts", 10_000) == 2


@pytest.mark.timeout(300)
async def test_those_who_fold_are_killed_while_others_work(real_store: Harness) -> None:
    target = target_of(real_store)
    command = [sys.executable, "-m", "tests.stores.processes", "everything", target, "w1"]
    working = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while working.returncode is None:
        await asyncio.to_thread(run_and_kill, "fold", target, "m1", random.randrange(1, 20))
    assert working.returncode == 0
    await killed(real_store, "fold", "m1", 5)
    await check_against_rows(real_store)
    assert total(await series(real_store, None, "6h", step=60)) == {"enqueued": 300, "completed": 300}


async def check_against_rows(store: Harness) -> None:
    """No job was deleted. So charts, totals and rows must agree for every topic, before and after folding."""
    rows = list((await store.rows()).values())
    for _ in range(2):
        for topic in (None, *{row.job.topic for row in rows}):
            mine = [row.job for row in rows if topic in (None, row.job.topic)]
            done = [one for one in mine if one.status is Status.COMPLETED]
            for long, step in (("6h", 60), ("7d", 3600), ("7d", 86_400)):
                found = await series(store, topic, long, step=step)
                sums = total(found)
                assert sums.get("enqueued", 0) == len(mine)
                assert sums.get("completed", 0) == len(done) == (await store.store.stats(topic)).completed
        await fold(store.store)
    packed = await store.fetch("SELECT span, runs FROM _jobs_rollups WHERE topic = '' AND runs IS NOT NULL")
    measured = [row for row in rows if row.job.status is Status.COMPLETED and row.job.started_at is not None]
    for span in KEPT:
        assert sum(len(Sketch.unpack(runs)) for of, runs in packed if of == span) == len(measured)


assert LEASE < MINUTE  # `a_busy_hour` lets a lease expire within a minute
