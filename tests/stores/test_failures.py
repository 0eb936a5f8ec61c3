"""Dead letters in groups: which jobs have a fingerprint and when, what groups tell, and how many jobs a query reads."""

from datetime import timedelta
from typing import Any

import pytest

from rowlock.core.fingerprint import WHOLE, fingerprint
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Failed, TimedOut
from rowlock.core.moves import Delete, Expire, Requeue, Rescue
from rowlock.errors import InvalidInput
from rowlock.stores import failures
from rowlock.stores.failures import Failure, FailureQuery, Failures
from rowlock.stores.migrations import Migration, load
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.queries import Filter
from tests.stores.harness import LEASE, START, Harness, PostgresHarness, SqliteHarness, ids, settlement

BOOM = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line {}, in send\n    go()\nValueError: {}'
OTHER = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 1, in send\n    go()\nKeyError: 1'


async def dead(store: Harness, error: str, topic: str = "mail") -> Job:
    return await store.settled(Failed(error, final=True), topic=topic)


async def known(store: Harness) -> dict[str, str | None]:
    return {str(job_id): found for job_id, found in await store.fetch("SELECT id, fingerprint FROM _jobs")}


async def look(store: Harness, **asked: Any) -> Failures:
    return await store.store.failures(FailureQuery(**asked))


async def one(store: Harness, **asked: Any) -> Failure:
    [found] = (await look(store, **asked)).items
    return found


# ── What sets a fingerprint, and what removes it ──


async def test_whoever_fails_for_good_has_a_fingerprint_at_once(store: Harness) -> None:
    final = await dead(store, BOOM.format(1, "a"))
    exhausted = await store.settled(TimedOut(5.0), max_retries=0)
    retried = await store.settled(Failed("boom"))
    assert exhausted.last_error is not None
    assert await known(store) == {
        final.id: fingerprint("mail", BOOM.format(2, "b")),
        exhausted.id: fingerprint("mail", exhausted.last_error),
        retried.id: None,
    }


async def test_a_batch_of_several_workers_has_its_fingerprints_too(store: Harness) -> None:
    runs = [await store.claimed("w1"), await store.claimed("w2", "bills")]
    await store.store.settle([settlement(run, Failed(OTHER, final=True)) for run in runs])
    assert await known(store) == {run.id: fingerprint(run.topic, OTHER) for run in runs}


async def test_what_sql_alone_has_ended_is_grouped_soon_after(store: Harness) -> None:
    crashed = await store.claimed(max_retries=0)
    late = await store.add("bills", expires_at=START + timedelta(seconds=1))
    await store.advance(LEASE + 1)
    assert len(await store.store.move_due(Rescue(by="m1", backoff=[1.0]))) == 1
    assert ids(await store.store.move_due(Expire(by="m1"))) == [late]
    assert await known(store) == {crashed.id: None, late: None}
    assert (await look(store)).ungrouped == 2
    before = await store.rows()

    assert await store.store.tidy("group_failures", 200) == 2

    assert await store.store.tidy("group_failures", 200) == 0
    jobs = await store.store.read([crashed.id, late], Job)
    assert await known(store) == {one.id: fingerprint(one.topic, one.last_error) for one in jobs.values()}
    assert await store.rows() == before  # setting fingerprints changes nothing else of the jobs
    found = await look(store)
    assert {group.type for group in found.items} == {"Task timed out (worker crashed?): worker", "Expired"}
    assert found.ungrouped == 0


async def test_only_dead_letters_are_grouped_the_newest_first_and_at_most_so_many(store: Harness) -> None:
    made = [await store.in_status(status, f"of_{status}") for status in Status]
    await store.advance(1)
    made.append(await dead(store, OTHER))
    await store.execute("UPDATE _jobs SET fingerprint = NULL")
    assert await store.store.tidy("group_failures", 1) == 1
    [newest] = [job_id for job_id, found in (await known(store)).items() if found]
    assert newest == made[-1].id
    assert await store.store.tidy("group_failures", 10) == 2
    ended = {job.id for job in made if job.status in (Status.FAILED, Status.EXPIRED)}
    assert {job_id for job_id, found in (await known(store)).items() if found} == ended


async def test_a_requeued_job_belongs_to_no_group_and_may_come_into_another(store: Harness) -> None:
    job = await dead(store, BOOM.format(1, "a"))
    await store.store.move([job.id], Requeue(by="ann"))
    assert await known(store) == {job.id: None}
    assert (await look(store)).items == []
    [again] = (await store.claim()).jobs
    await store.store.settle([settlement(again, Failed(OTHER, final=True))])
    assert await known(store) == {job.id: fingerprint("mail", OTHER)}


async def test_what_an_older_worker_has_left_behind_does_not_stay(store: Harness) -> None:
    """An older worker requeues without removing the fingerprint. The next end of the job replaces or removes it."""
    job = await dead(store, OTHER)
    await store.execute(
        "UPDATE _jobs SET status = 'pending', ready = true, finished_at = NULL, max_retries = 0 WHERE fingerprint > ''"
    )
    assert (await look(store)).items == []
    assert (await store.store.list(Filter(fingerprint=fingerprint("mail", OTHER)))).items == []
    await store.claim()
    await store.advance(LEASE + 1)
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    assert await known(store) == {job.id: None}


async def test_a_job_that_died_again_meanwhile_keeps_its_new_fingerprint(store: Harness) -> None:
    """The job was requeued and failed with another error, after the store read the old error and before it wrote."""
    if not isinstance(store, PostgresHarness):
        pytest.skip("SQLite looks and writes under one lock")
    job = await dead(store, OTHER)
    await store.execute("UPDATE _jobs SET fingerprint = NULL")
    sql = store.store._sql  # type: ignore[attr-defined]
    connection = await store.connection()
    seen = await connection.fetch(sql.ungrouped, 10)
    for again in (BOOM.format(1, "a"), None):
        await store.advance(1)
        await store.store.move([job.id], Requeue(by="ann"))
        [run] = (await store.claim()).jobs
        await store.store.settle([settlement(run, Failed(again or OTHER, final=True))])
        if again is None:
            await store.execute("UPDATE _jobs SET fingerprint = NULL")  # as an older worker leaves it
        before = await known(store)
        await connection.execute(sql.group_failures, [seen[0][0]], [seen[0][2]], ["0" * 16])
        assert await known(store) == before


async def test_a_long_error_is_cut_alike_here_and_there(store: Harness) -> None:
    """The fingerprint is the same, whether the worker sets it or later the store from its SQL."""
    texts = [
        f"{BOOM.format(1, 'x' * WHOLE)}",
        f"{'ä' * (WHOLE + 1)}\n{OTHER}",
        "z" * WHOLE,
        "z" * (WHOLE + 1),
        BOOM.format(1, "é\n" * WHOLE),
    ]
    for text in texts:
        await dead(store, text)
    at_once = await known(store)
    assert None not in at_once.values()
    await store.execute("UPDATE _jobs SET fingerprint = NULL")
    assert await store.store.tidy("group_failures", 200) == len(texts)
    assert await known(store) == at_once


# ── Groups ──


async def test_a_group_tells_how_many_since_when_and_what(store: Harness) -> None:
    await dead(store, BOOM.format(1, "first"))
    await store.advance(2 * 3600)
    await dead(store, OTHER)
    await store.advance(90 * 60)
    newest = await dead(store, "Max retries exceeded: " + BOOM.format(7, "the newest\nof them"))
    await dead(store, OTHER, "bills")
    found = await look(store)
    assert [(group.topic, group.count) for group in found.items] == [("mail", 2), ("bills", 1), ("mail", 1)]
    assert (found.next, found.capped, found.ungrouped) == (None, False, 0)
    assert found.items[0] == Failure(
        fingerprint=fingerprint("mail", BOOM.format(1, "first")),
        topic="mail",
        type="ValueError",
        frame="tasks.py:send",
        title="ValueError: the newest",
        count=2,
        first=START,
        last=newest.finished_at or START,
        trend=(*[0] * 20, 1, 0, 0, 1),
        sample=newest.id,
    )
    by_day = await look(store, trend="day")
    assert by_day.items[0].trend == (*[0] * 29, 2)


async def test_a_group_keeps_the_time_of_its_first_failure_after_a_requeue(store: Harness) -> None:
    oldest = await dead(store, OTHER)
    await store.advance(3600)
    newer = await dead(store, OTHER)
    # The newer job first: a job that is requeued later may be older.
    for job in (newer, oldest):
        assert (await one(store)).first == START
        assert [done.done for done in await store.store.move([job.id], Requeue(by="ann"))] == [True]
    assert (await look(store)).items == []
    await store.store.move([newer.id, oldest.id], Delete(by="ann"))
    await store.advance(3600)
    await dead(store, OTHER, "bills")  # another group
    again = await dead(store, OTHER)
    firsts = {group.topic: group.first for group in (await look(store)).items}
    assert firsts == {"mail": START, "bills": START + timedelta(hours=2)}
    found = await one(store, fingerprint=fingerprint("mail", OTHER))
    assert (found.first, found.last, found.count) == (START, again.finished_at, 1)


async def test_what_is_older_than_the_trend_counts_but_has_no_part_in_it(store: Harness) -> None:
    await dead(store, OTHER)
    await store.advance(24 * 3600)
    group = await one(store)
    assert (group.count, sum(group.trend), len(group.trend)) == (1, 0, 24)
    assert (await one(store, trend="day")).trend == (*[0] * 28, 1, 0)


async def test_groups_of_some_topics_of_a_time_or_one_alone(store: Harness) -> None:
    await dead(store, OTHER, "mail")
    middle = await store.advance(60)
    await dead(store, OTHER, "bills")
    assert [group.topic for group in (await look(store, topics=["bills", "none"])).items] == ["bills"]
    assert (await look(store, topics=["none"])).items == []
    assert [group.topic for group in (await look(store, since=middle)).items] == ["bills"]
    assert [group.topic for group in (await look(store, since=middle + timedelta(seconds=1))).items] == []
    wanted = fingerprint("mail", OTHER)
    assert (await one(store, fingerprint=wanted)).topic == "mail"
    assert (await look(store, fingerprint=wanted, topics=["bills"])).items == []
    assert (await look(store, fingerprint=wanted, since=middle)).items == []
    assert (await look(store, fingerprint="0" * 16)).items == []


async def test_the_largest_groups_come_first_and_the_rest_is_said_to_be_there(store: Harness) -> None:
    for n in range(4):
        for _ in range(n + 1):
            await dead(store, OTHER, f"t{n}")
    found = await look(store, limit=2)
    assert ([group.count for group in found.items], found.next is None) == ([4, 3], False)
    assert (await look(store, limit=4)).next is None


async def test_pages_of_groups(store: Harness) -> None:
    """Groups of the same size come in the order of their last end, then of their fingerprints."""
    for n in range(6):
        for topic in (f"a{n}", f"b{n}"):
            for _ in range(n // 2):
                await dead(store, OTHER, topic)
        await store.advance(n % 2)
    whole = (await look(store)).items
    assert len(whole) == 8
    for limit in (1, 3, 8):
        seen, cursor = list[Failure](), None
        while True:
            found = await look(store, limit=limit, cursor=cursor)
            seen, cursor = seen + found.items, found.next
            if cursor is None:
                break
        assert seen == whole
    for wrong in ("", "1 2", "1 2 x", f"x 2 {'0' * 16}", f"1 {'9' * 17} {'0' * 16}", 7):
        with pytest.raises(InvalidInput) as refused:
            await look(store, cursor=wrong)
        assert (refused.value.field, refused.value.code) == ("cursor", "bad_cursor")


async def test_only_the_newest_are_looked_at_and_it_says_so(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        await dead(store, OTHER, f"t{n}")
        await store.advance(1)
    monkeypatch.setattr(failures, "MOST_LOOKED_AT", 2)
    found = await look(store)
    assert (sorted(group.topic for group in found.items), found.capped) == (["t2", "t3", "t4"], True)
    await store.store.move([group.sample for group in found.items], Delete(by="ann"))
    assert (await look(store)).capped is False


async def test_who_asks_for_some_topics_is_told_of_no_others(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer dead letters of other topics do not hide theirs, and no number tells how many others there are."""
    await dead(store, OTHER, "bills")
    await dead(store, OTHER, "ungrouped")
    await store.execute("UPDATE _jobs SET fingerprint = NULL WHERE topic = 'ungrouped'")
    for _ in range(4):
        await store.advance(1)
        await dead(store, OTHER, "mail")
    monkeypatch.setattr(failures, "MOST_LOOKED_AT", 2)
    bills = await look(store, topics=["bills"])
    assert ([group.topic for group in bills.items], bills.capped, bills.ungrouped) == (["bills"], False, 0)
    both = await look(store, topics=["ungrouped", "mail"])
    assert ([group.topic for group in both.items], both.capped, both.ungrouped) == (["mail"], True, 1)
    foreign = await look(store, fingerprint=fingerprint("mail", OTHER), topics=["bills"])
    assert (foreign.items, foreign.capped) == ([], False)


async def test_a_group_is_listed_and_requeued_by_its_fingerprint(store: Harness) -> None:
    alike = [(await dead(store, BOOM.format(n, n))).id for n in range(3)]
    await dead(store, OTHER)
    expired = await store.in_status(Status.EXPIRED)
    await store.store.tidy("group_failures", 200)
    wanted = fingerprint("mail", BOOM.format(0, 0))
    page = await store.store.list(Filter(fingerprint=wanted))
    assert ([job.id for job in page.items], page.total, page.partial) == (sorted(alike, reverse=True), 3, False)
    first = await store.store.list(Filter(fingerprint=wanted), limit=2)
    rest = await store.store.list(Filter(fingerprint=wanted), limit=2, cursor=first.next)
    assert [job.id for job in (*first.items, *rest.items)] == sorted(alike, reverse=True)
    for more, count in (
        ({"topics": ["bills"]}, 0), ({"ids": alike[:2]}, 2), ({"statuses": ["expired"]}, 0),
        ({"error": "valueerror"}, 3), ({"statuses": ["pending", "failed"]}, 3), ({"finished_until": START}, 0),
        ({"statuses": ["completed"]}, 0),
    ):  # fmt: skip
        found = await store.store.list(Filter(fingerprint=wanted, **more))
        assert (found.total, len(found.items)) == (count, count), more
    assert expired.last_error is not None
    of_expired = Filter(fingerprint=fingerprint("mail", expired.last_error), statuses=["expired"])
    assert [job.id for job in (await store.store.list(of_expired)).items] == [expired.id]
    await store.store.move([job.id for job in page.items], Requeue(by="ann"))
    assert (await store.store.list(Filter(fingerprint=wanted))).total == 0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"fingerprint": "x"}, "fingerprint"), ({"fingerprint": "A" * 16}, "fingerprint"), ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"), ({"limit": True}, "limit"), ({"trend": "week"}, "trend"),
        ({"topics": "mail"}, "topics"), ({"topics": [""]}, "topic"), ({"since": START.replace(tzinfo=None)}, "since"),
        ({"topics": [f"t{n}" for n in range(101)]}, "topics"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        FailureQuery(**asked)
    assert error.value.field == field


def test_a_list_is_not_asked_for_what_is_no_fingerprint() -> None:
    with pytest.raises(InvalidInput, match="fingerprint"):
        Filter(fingerprint="' OR 1=1 --")


# ── How many jobs a query reads ──

CROWD = """
    INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload,
                       finished_at, fingerprint)
    SELECT gen_random_uuid(), 'mail', (ARRAY['failed', 'cancelled'])[1 + n % 2], false, 500, now(), now(), now(), 3,
           600, '{}', now(), CASE WHEN n % 4 = 0 THEN lpad(to_hex(n % 40), 16, '0') END
    FROM generate_series(1, 20000) n"""


async def test_postgres_goes_along_its_indexes_whatever_it_knows_of_the_table(postgres_url: str) -> None:
    store = PostgresStore(f"{postgres_url}?pool_size=1&plan_cache_mode=force_generic_plan")
    await store.migrate()
    await store.open()
    asked = {"ungrouped": "(5)", "failures": "(9, now(), NULL, 5, 60, 5, NULL, NULL, NULL, NULL)"}
    asked |= {
        "failures_of_one": "(9, now(), NULL, 5, 60, 5, 'x', NULL, NULL, NULL)",
        "group_failures": "(NULL, NULL, NULL)",
    }
    indexes = {"ungrouped": "_jobs_ungrouped", "failures": "_jobs_failures", "failures_of_one": "_jobs_fingerprint"}
    try:
        async with store._connections.acquire() as connection:
            await connection.execute("ANALYZE")  # the tables are empty: the planner will think so from now on
            await connection.execute(CROWD)
            for name, values in asked.items():
                await connection.execute(f"PREPARE asked AS {getattr(store._sql, name)}")
                lines = [row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE asked{values}")]
                await connection.execute("DEALLOCATE asked")
                assert any(f"using {indexes.get(name, '_jobs_pkey')}" in line for line in lines), lines
                assert not [line for line in lines if "Seq Scan on _jobs" in line], lines
        found = await store.failures(FailureQuery(limit=3))
        assert ([group.count for group in found.items], found.ungrouped) == ([500] * 3, 5000)
        assert await store.tidy("group_failures", 7) == 7
        assert (await store.failures(FailureQuery())).ungrouped == 4993
    finally:
        await store.close()


# ── From the release before ──


async def upgrade(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters from before the migration are grouped like later ones."""
    known_: tuple[Migration, ...] = load(f"rowlock.stores.{harness.kind}")
    [failures] = [migration for migration in known_ if migration.name == "failures"]
    before = tuple(migration for migration in known_ if migration.number < failures.number)
    with monkeypatch.context() as old:
        old.setattr(f"rowlock.stores.{harness.kind}.migrate.known", lambda: before)
        await harness.open()
        ready = "false" if harness.kind == "postgres" else "0"
        at = "now()" if harness.kind == "postgres" else "0"
        for n in range(3):
            await harness.execute(
                "INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, "
                f"timeout, payload, finished_at, last_error) SELECT '0193fb1e-0000-7000-8000-00000000000{n}', 'mail', "
                f"'failed', {ready}, 100, {at}, {at}, {at}, 3, 600, '{{}}', {at}, '{OTHER}'"
            )
        await harness.close()
    await harness.open()  # which migrates
    try:
        assert (await harness.store.failures(FailureQuery())).ungrouped == 3
        while await harness.store.tidy("group_failures", 2):
            pass
        assert (await one(harness)).count == 3
    finally:
        await harness.close()


async def test_old_dead_letters_are_grouped_on_sqlite(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await upgrade(SqliteHarness(tmp_path / "jobs.db", virtual=False), monkeypatch)


async def test_old_dead_letters_are_grouped_on_postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await upgrade(PostgresHarness(postgres_url, virtual=False), monkeypatch)
