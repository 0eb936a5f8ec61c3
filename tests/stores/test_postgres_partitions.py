"""Parts of the archive on PostgreSQL: made ahead and dropped whole. No job is lost, and no worker waits for it."""

import asyncio
import os
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from rowlock import errors
from rowlock.core.ids import IdMaker, first_id
from rowlock.core.job import Job, Status, new_job
from rowlock.core.lifecycle import Completed, Failed, Outcome
from rowlock.core.moves import Requeue, Signal, SignalSent
from rowlock.stores import reading
from rowlock.stores.base import DAY, Retention, Store
from rowlock.stores.postgres import partitions
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.queries import Filter, PartitionReport, TopicRetention
from tests.servers import PostgresServer
from tests.stores.harness import START, PostgresHarness, mark, opened, settlement
from tests.stores.rows import micros

TODAY = START.date()
WEEK = Retention()
NOTHING = PartitionReport()


@pytest.fixture
async def store(postgres_store: PostgresHarness) -> PostgresHarness:
    # The template has parts for its own days, which are not the days of the test's clock.
    for day in await days(postgres_store):
        await postgres_store.execute(
            f"DROP TABLE _jobs_archive_{day:%Y%m%d}, _jobs_steps_{day:%Y%m%d}, _jobs_signals_{day:%Y%m%d}"
        )
    return postgres_store


async def days(store: PostgresHarness, table: str = "_jobs_archive") -> list[date]:
    rows = await store.fetch(
        "SELECT c.relname FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid "
        f"WHERE i.inhparent = '{table}'::regclass ORDER BY 1"
    )
    names = [name.removeprefix(f"{table}_") for (name,) in rows]
    assert names.pop() == "rest"
    return [date.fromisoformat(name) for name in names]


def on(*offsets: int) -> tuple[date, ...]:
    return tuple(TODAY + timedelta(days=n) for n in offsets)


async def done(store: PostgresHarness, at: datetime, topic: str = "mail") -> str:
    """Insert a job whose id has this time, complete it now, and return the id."""
    job_id = IdMaker(lambda: micros(at) * 1000, lambda n: bytes(n)).one()
    await store.insert(new_job(job_id, topic))
    [claimed] = (await store.claim("w1", topic)).jobs
    await store.store.settle([settlement(claimed, Completed(), ran=0.0)])
    return job_id


async def keep(store: Store, retention: Retention, *, ahead: int = 3) -> PartitionReport:
    assert isinstance(store, PostgresStore)
    return await store.keep_partitions(retention, ahead=ahead)


async def where(store: PostgresHarness) -> dict[str, str]:
    rows = await store.fetch("SELECT id::text, tableoid::regclass::text FROM _jobs_archive")
    return {job_id: table.removeprefix("_jobs_archive_") for job_id, table in rows}


async def test_migrate_makes_the_first_days(postgres_url: str) -> None:
    harness = PostgresHarness(postgres_url, virtual=False)
    async with opened(harness, migrated=False):
        today = datetime.now(UTC).date()
        for table in ("_jobs_archive", "_jobs_steps", "_jobs_signals"):
            assert await days(harness, table) == [today + timedelta(days=n) for n in range(4)]
            for day in await days(harness, table):
                [(bound,)] = await harness.fetch(
                    f"SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = '{table}_{day:%Y%m%d}'::regclass"
                )
                begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
                assert bound == f"FOR VALUES FROM ('{first_id(begin)}') TO ('{first_id(begin, timedelta(days=1))}')"
        assert await keep(harness.store, WEEK) == NOTHING


async def test_days_are_made_ahead(store: PostgresHarness) -> None:
    assert await keep(store.store, WEEK, ahead=1) == PartitionReport(created=on(0, 1))
    assert await keep(store.store, WEEK, ahead=1) == NOTHING
    assert await keep(store.store, WEEK) == PartitionReport(created=on(2, 3))
    await store.advance(DAY)
    assert await keep(store.store, WEEK) == PartitionReport(created=on(4))
    assert tuple(await days(store)) == on(0, 1, 2, 3, 4)


async def test_a_job_goes_to_the_day_of_its_id(store: PostgresHarness) -> None:
    await keep(store.store, WEEK)
    midnight = datetime(2026, 1, 2, tzinfo=UTC)
    last = await done(store, midnight - timedelta(milliseconds=1))
    first = await done(store, midnight)
    early, late = await done(store, START - timedelta(days=30)), await done(store, START + timedelta(days=30))
    own = "fd0f8bf1-9a3c-4b9f-b9b5-6a6f36d34e1f"
    await store.insert(new_job(own, "mail"))
    [claimed] = (await store.claim()).jobs
    await store.store.settle([settlement(claimed, Completed(), ran=0.0)])
    assert await where(store) == {last: "20260101", first: "20260102", early: "rest", late: "rest", own: "rest"}
    assert [one.id for one in (await store.store.list(Filter())).items] == [own, late, first, last, early]


async def test_what_the_rest_holds_of_a_day_moves_in(store: PostgresHarness) -> None:
    jobs = [await done(store, START), await done(store, START + timedelta(days=2))]
    elsewhere = await done(store, START - timedelta(days=2))
    before = await store.rows()
    assert await keep(store.store, WEEK) == PartitionReport(created=on(0, 1, 2, 3))
    assert await where(store) == {jobs[0]: "20260101", jobs[1]: "20260103", elsewhere: "rest"}
    assert await store.rows() == before


async def test_too_much_to_move_is_left_for_later(store: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        await done(store, START + timedelta(seconds=n))
    monkeypatch.setattr(partitions, "MAX_MOVED", 2)
    assert await keep(store.store, WEEK) == PartitionReport(created=on(1, 2, 3))
    assert set((await where(store)).values()) == {"rest"}
    monkeypatch.setattr(partitions, "MAX_REST", 0)
    await store.advance(DAY)
    assert await keep(store.store, WEEK) == NOTHING
    monkeypatch.undo()
    assert await keep(store.store, WEEK) == PartitionReport(created=on(4))


async def test_a_day_is_dropped_when_all_of_it_is_over(store: PostgresHarness) -> None:
    await keep(store.store, WEEK)
    old = await done(store, START)
    await store.advance(DAY)
    young = await done(store, START + timedelta(days=1))
    before = await store.store.stats()
    assert await keep(store.store, WEEK, ahead=0) == NOTHING
    await store.advance(7 * DAY - 1e-6)  # the first day ended half a day before it finished its last job
    assert (await keep(store.store, WEEK, ahead=0)).dropped == on(0)
    assert set(await store.store.read([old, young], Job)) == {young}
    await store.advance(2 * DAY)
    assert (await keep(store.store, WEEK, ahead=0)).dropped == on(1, 2)
    assert (await store.store.stats()).completed == before.completed == 2
    again = await done(store, START)  # its day has no part any more
    assert (await where(store))[again] == "rest"


async def test_a_job_that_finished_late_keeps_its_day(store: PostgresHarness) -> None:
    await keep(store.store, WEEK, ahead=0)
    await store.advance(20 * DAY)
    late = await done(store, START, "zoo")
    await done(store, START - timedelta(milliseconds=1), "mail")
    await store.advance(7 * DAY - 1)
    assert on(0)[0] not in (await keep(store.store, WEEK, ahead=0)).dropped
    assert late in await store.store.read([late], Job)
    await store.advance(1)
    assert on(0)[0] in (await keep(store.store, WEEK, ahead=0)).dropped


@pytest.mark.parametrize(
    ("retention", "after"),
    [
        (Retention(completed=None), None),
        (Retention(topics={"audit": TopicRetention(completed=None)}), None),
        (Retention(topics={"audit": TopicRetention(completed=30 * DAY)}), 31),
        (Retention(completed=0.0), 2),
    ],
)
async def test_the_longest_retention_decides(store: PostgresHarness, retention: Retention, after: int | None) -> None:
    await keep(store.store, retention, ahead=0)
    await done(store, START)
    if after is not None:
        await store.advance((after - 1) * DAY)
        assert (await keep(store.store, retention, ahead=0)).dropped == ()
        await store.advance(DAY)
        assert on(0)[0] in (await keep(store.store, retention, ahead=0)).dropped
    else:
        await store.advance(5000 * DAY)
        assert (await keep(store.store, retention, ahead=0)).dropped == ()


# ── Steps ──


async def stepped(store: PostgresHarness, at: datetime, outcome: Outcome, steps: int = 1) -> str:
    """Insert a job whose id has this time, with steps, end it now, and return the id."""
    job_id = IdMaker(lambda: micros(at) * 1000, os.urandom).one()
    await store.insert(new_job(job_id, "mail"))
    [run] = (await store.claim("w1", "mail")).jobs
    marks = [mark(run, "a", "succeeded", n=n + 1, position=n + 1, result=str(n)) for n in range(steps)]
    await store.store.checkpoint(marks)
    await store.store.settle([settlement(run, outcome, ran=0.0)])
    return job_id


async def parts_of_steps(store: PostgresHarness) -> dict[str, str]:
    rows = await store.fetch("SELECT DISTINCT job_id::text, tableoid::regclass::text FROM _jobs_steps")
    return {job_id: table.removeprefix("_jobs_steps_") for job_id, table in rows}


async def test_steps_go_with_their_day_and_those_of_dead_letters_stay(store: PostgresHarness) -> None:
    await keep(store.store, WEEK)
    assert tuple(await days(store, "_jobs_steps")) == on(0, 1, 2, 3)
    old = await stepped(store, START, Completed())
    dead = await stepped(store, START, Failed("no", final=True), steps=3)
    assert await parts_of_steps(store) == {old: "20260101", dead: "20260101"}
    before = await reading.steps(store.store, dead)
    await store.advance(9 * DAY)
    assert on(0)[0] in (await keep(store.store, WEEK, ahead=0)).dropped
    assert on(0)[0] not in await days(store, "_jobs_steps")
    assert await parts_of_steps(store) == {dead: "rest"}
    assert await reading.steps(store.store, dead) == before
    [answer] = await store.store.move([dead], Requeue(by="ann", from_step="a#2"))
    assert (answer.done, len(await reading.steps(store.store, dead))) == (True, 1)


async def test_signals_go_with_their_day_and_those_of_dead_letters_stay(store: PostgresHarness) -> None:
    """This includes signals of jobs without steps: the archive does not record that such jobs had signals."""
    await keep(store.store, WEEK)
    assert tuple(await days(store, "_jobs_signals")) == on(0, 1, 2, 3)
    dead = ""
    for outcome in (Completed(), Failed("no", final=True)):
        dead = IdMaker(lambda: micros(START) * 1000, os.urandom).one()
        await store.insert(new_job(dead, "mail"))
        await store.store.move([dead], Signal(by="ann", sent=SignalSent("go", "1")))
        [run] = (await store.claim("w1", "mail")).jobs
        await store.store.settle([settlement(run, outcome, ran=0.0)])
    where = "SELECT job_id::text, tableoid::regclass::text FROM _jobs_signals"
    assert [table for _, table in await store.fetch(where)] == ["_jobs_signals_20260101"] * 2
    await store.advance(9 * DAY)
    assert on(0)[0] in (await keep(store.store, WEEK, ahead=0)).dropped
    assert on(0)[0] not in await days(store, "_jobs_signals")
    assert await store.fetch(where) == [(dead, "_jobs_signals_rest")]


async def test_steps_of_a_day_without_a_part_go_as_well(store: PostgresHarness) -> None:
    """Jobs from before the table of steps have such steps."""
    await keep(store.store, WEEK, ahead=0)
    await store.execute("DROP TABLE _jobs_steps_20260101")
    old = await stepped(store, START, Completed())
    dead = await stepped(store, START, Failed("no", final=True))
    assert await parts_of_steps(store) == {old: "rest", dead: "rest"}
    await store.advance(9 * DAY)
    assert (await keep(store.store, WEEK, ahead=0)).dropped == on(0)
    assert await parts_of_steps(store) == {dead: "rest"}


async def test_a_day_whose_jobs_are_in_the_rest_of_the_archive_keeps_its_steps(store: PostgresHarness) -> None:
    await keep(store.store, WEEK, ahead=0)
    await store.execute("DROP TABLE _jobs_archive_20260101")
    old = await stepped(store, START, Completed())
    await store.advance(9 * DAY)
    await keep(store.store, WEEK, ahead=0)
    assert await parts_of_steps(store) == {old: "20260101"}
    await store.store.prune(WEEK)
    assert await parts_of_steps(store) == {}
    await keep(store.store, WEEK, ahead=0)
    assert on(0)[0] not in await days(store, "_jobs_steps")


@pytest.mark.parametrize("part", ["20260101", "rest"])
async def test_too_many_steps_to_move_keep_the_day(
    store: PostgresHarness, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    await keep(store.store, WEEK, ahead=0)
    if part == "rest":
        await store.execute("DROP TABLE _jobs_steps_20260101")
    outcome = Completed() if part == "rest" else Failed("no", final=True)
    job_id = await stepped(store, START, outcome, steps=3)
    await store.advance(9 * DAY)
    monkeypatch.setattr(partitions, "MAX_MOVED", 2)
    assert on(0)[0] not in (await keep(store.store, WEEK, ahead=0)).dropped
    assert await parts_of_steps(store) == {job_id: part}
    monkeypatch.undo()
    assert on(0)[0] in (await keep(store.store, WEEK, ahead=0)).dropped


async def test_what_the_rest_holds_of_a_day_of_steps_moves_in(store: PostgresHarness) -> None:
    old = await stepped(store, START, Completed())
    assert await parts_of_steps(store) == {old: "rest"}
    await keep(store.store, WEEK)
    assert await parts_of_steps(store) == {old: "20260101"}


# ── Other processes use the archive ──


async def test_many_at_once_do_it_once(store: PostgresHarness) -> None:
    others = [await store.another() for _ in range(6)]
    for _ in range(5):
        await asyncio.gather(*(keep(other, WEEK) for other in others))
    assert tuple(await days(store)) == on(0, 1, 2, 3)
    await store.advance(20 * DAY)
    reports: list[PartitionReport] = []
    for _ in range(5):
        reports += await asyncio.gather(*(keep(other, WEEK, ahead=0) for other in others))
    assert sorted(day for report in reports for day in report.dropped) == list(on(0, 1, 2, 3))
    assert [day for report in reports for day in report.created] == list(on(20))


@pytest.mark.parametrize("what", ["make", "drop"])
async def test_nobody_waits_long_for_a_lock_that_others_hold(store: PostgresHarness, what: str) -> None:
    """A long report holds a lock on the archive. Workers must not queue up behind our waiting lock until it ends."""
    await keep(store.store, WEEK, ahead=0)
    job_id = await done(store, START)
    await store.advance(20 * DAY if what == "drop" else DAY)
    report: Any = await asyncpg.connect(store.url)
    transaction = report.transaction()
    await transaction.start()
    await report.execute("LOCK TABLE _jobs_archive, _jobs_archive_rest IN ACCESS SHARE MODE")
    slowest = 0.0
    keeping = asyncio.create_task(keep(store.store, WEEK, ahead=0))
    while not keeping.done():
        began = time.monotonic()
        await store.store.read([job_id], Job)
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.01)
    assert await keeping == NOTHING
    assert slowest < 2.0
    await transaction.rollback()
    await report.close()
    assert await keep(store.store, WEEK, ahead=0) != NOTHING


async def test_workers_complete_while_days_come_and_go(store: PostgresHarness) -> None:
    """No completion is lost or refused, whichever part the job belongs to at the moment."""
    maker = IdMaker(lambda: micros(store.now) * 1000, lambda n: bytes(n))
    other = await store.another()
    finished: list[str] = []
    for _ in range(6):
        new = [new_job(one, "mail") for one in maker.many(60)]
        await store.insert(*new)
        working = True

        async def go_on() -> None:
            while working:  # noqa: B023 - ends in this round
                await keep(other, WEEK, ahead=2)

        keeping = asyncio.create_task(go_on())
        while jobs := (await store.claim(limit=6)).jobs:
            settled = await store.store.settle([settlement(one, Completed(), ran=0.0) for one in jobs])
            assert {verdict.answer for verdict in settled.verdicts} == {"applied"}
        working = False
        await keeping
        finished += [one.id for one in new]
        await store.advance(DAY)
    kept = await store.store.read(finished, Job)
    assert len(kept) == len(finished)
    assert {one.status for one in kept.values()} == {Status.COMPLETED}
    assert (await store.store.stats()).completed == len(finished)


async def test_prune_keeps_the_partitions_now_and_then(store: PostgresHarness) -> None:
    await store.store.prune(WEEK)
    assert await keep(store.store, WEEK) == NOTHING
    await store.advance(DAY)
    await store.store.prune(WEEK)
    assert await keep(store.store, WEEK) != NOTHING  # `prune` skipped them: its last look was too recent


async def test_a_role_that_may_not_make_tables_is_told_so(
    postgres: PostgresServer, store: PostgresHarness, caplog: pytest.LogCaptureFixture
) -> None:
    database = store.url.rsplit("/", 1)[1]
    await postgres.execute("DROP ROLE IF EXISTS hand", "CREATE ROLE hand LOGIN PASSWORD 'work'")
    await postgres.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO hand", dbname=database
    )
    hand = type(store.store)(f"postgresql://hand:work@{postgres.host}:{postgres.port}/{database}")  # type: ignore[call-arg]
    await hand.open()
    with pytest.raises(errors.AccessDenied, match="permission denied"):
        await keep(hand, WEEK)
    for _ in range(2):
        assert await hand.prune(WEEK) == 0
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the archive's daily parts can't be kept"
    ]
    await hand.close()
    await postgres.execute("DROP OWNED BY hand", dbname=database)
    await postgres.execute("DROP ROLE hand")
