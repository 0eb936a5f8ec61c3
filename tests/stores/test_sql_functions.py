"""The SQL functions: any PostgreSQL client can take part, by the same rules as rowlock's Python client."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rowlock.core.codec import clean_text
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed, Failed, Outcome, Released, Settlement, decide
from rowlock.core.moves import Cancel, Delete, Requeue, Rescue
from rowlock.core.retry import DEFAULT_RETRY, Delays, RetryPolicy, backoff_table
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import opening
from tests.databases import Databases
from tests.stores.conftest import postgres_store
from tests.stores.harness import LEASE, NOBODY, START, PostgresHarness, claim_by
from tests.stores.sql_client import SqlClient, SqlRun
from tests.waiting import until

COUNTERS = "completed, failed, expired, cancelled, executions, execution_us, retried, lost, at, enqueued, waits, runs"


store = postgres_store


@asynccontextmanager
async def client_of(url: str, *, virtual: bool = True) -> AsyncIterator[SqlClient]:
    client = await SqlClient.connect(url, virtual=virtual)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def sql(store: PostgresHarness) -> AsyncIterator[SqlClient]:
    async with client_of(store.url) as client:
        yield client


@pytest.fixture
async def other(store: PostgresHarness) -> AsyncIterator[SqlClient]:
    async with client_of(store.url) as client:
        yield client


async def raw(store: PostgresHarness, job_id: str) -> dict[str, Any]:
    """Return the whole row, live or archived, without its id and without columns that maintenance fills later."""
    [(text,)] = await store.fetch(
        f"SELECT row_to_json(j)::text FROM _jobs j WHERE id = '{job_id}' UNION ALL "
        f"SELECT row_to_json(a)::text FROM _jobs_archive a WHERE id = '{job_id}'"
    )
    row: dict[str, Any] = json.loads(text)
    assert row.pop("id") == job_id
    row.pop("fingerprint", None)
    return row


async def counted(store: PostgresHarness) -> list[tuple[Any, ...]]:
    """Return the counters that are not folded yet, and delete them."""
    found = await store.fetch(f"SELECT topic, {COUNTERS} FROM _jobs_counts ORDER BY topic")
    await store.execute("DELETE FROM _jobs_counts")
    return found


# ── The same rows as the library writes ──


async def test_a_job_that_sql_enqueues_is_the_one_that_python_would(store: PostgresHarness, sql: SqlClient) -> None:
    later, end = START + timedelta(minutes=5), START + timedelta(hours=1)
    options: list[dict[str, Any]] = [
        {},
        {"payload": {"a": [1, -2.5e-7, None, "ü"], "b": {}}, "priority": -7, "max_retries": 0},
        {"delay": timedelta(seconds=90)},
        {"run_at": later, "expires_at": end, "timeout": timedelta(seconds=1.5)},
        {"run_at": START - timedelta(days=1), "key": "k", "scope": "user", "scope_id": "7", "trace": "00-ab"},
        {"tags": ["red", "two words"]},
        {"tags": []},
    ]
    for option in options:
        by_python = await store.add(**option)
        counters = await counted(store)
        key = {"key": f"{option['key']} again"} if "key" in option else {}
        by_sql = await sql.enqueue(**option | key)
        assert await counted(store) == counters
        expected = await raw(store, by_python)
        assert await raw(store, by_sql) == expected | key
        assert (await store.job(by_sql)).tags == tuple(option.get("tags", ()))


async def test_the_id_is_a_version_7_uuid_of_now(store: PostgresHarness, sql: SqlClient) -> None:
    ids = [UUID(await sql.enqueue()) for _ in range(50)]
    assert {job_id.version for job_id in ids} == {7}
    assert {job_id.int >> 80 for job_id in ids} == {int(START.timestamp() * 1000)}
    assert len(set(ids)) == 50
    assert await store.fetch("SELECT count(*) FROM _jobs WHERE stray") == [(0,)]


async def test_ids_grow_with_the_time(sql: SqlClient) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [at + timedelta(microseconds=n) for n in (0, 1, 999, 1000, 1001, 1999, 2000)]
    ids = [await sql.connection.fetchval("SELECT _jobs_new_id($1)", moment) for moment in moments]
    assert ids == sorted(ids)


OUTCOMES: dict[str, tuple[Outcome, RetryPolicy, Callable[[SqlClient, SqlRun], Awaitable[str]]]] = {
    "completed": (Completed({"n": 1}), DEFAULT_RETRY, lambda sql, run: sql.complete(run, '{"n":1}')),
    "completed without a result": (Completed(), DEFAULT_RETRY, lambda sql, run: sql.complete(run)),
    "failed": (Failed("boom"), DEFAULT_RETRY, lambda sql, run: sql.fail(run)),
    "failed, with a delay": (
        Failed("boom"), Delays((7.5,)), lambda sql, run: sql.fail(run, delay=timedelta(seconds=7.5)),
    ),
    "failed, again at once": (Failed("boom"), Delays((0.0,)), lambda sql, run: sql.fail(run, delay=timedelta(0))),
    "failed for good": (Failed("no", final=True), DEFAULT_RETRY, lambda sql, run: sql.fail(run, "no", final=True)),
    "failed at length": (
        Failed("ä€" * 1_000), DEFAULT_RETRY, lambda sql, run: sql.fail(run, "ä€" * 1_000),
    ),
    "released": (Released(), DEFAULT_RETRY, lambda sql, run: sql.release(run)),
}  # fmt: skip


async def test_a_run_ends_as_it_would_in_python(store: PostgresHarness, sql: SqlClient) -> None:
    """Row, history, archive and counters are identical. The clock stands still between the two runs."""
    for name, retries, cancelled in itertools.product(OUTCOMES, (0, 2, 3), (False, True)):
        await store.reset()
        await ends_as_in_python(store, sql, name, retries, cancelled)


async def ends_as_in_python(store: PostgresHarness, sql: SqlClient, name: str, retries: int, cancelled: bool) -> None:
    outcome, policy, by_sql = OUTCOMES[name]
    ids = [await store.add("python"), await sql.enqueue("sql")]
    await store.execute(f"UPDATE _jobs SET retries = {retries}")
    [job] = (await store.claim("w1", "python")).jobs
    [run] = await sql.claim("w1", "sql")
    if cancelled:
        await store.store.move(ids, Cancel(by="ann", reason="enough"))
        [job] = (await store.store.read([job.id], Job)).values()
    assert await raw(store, run.id) == await raw(store, job.id) | {"topic": "sql"}
    await counted(store)
    now = await store.advance(3)
    to = decide(job, outcome, now, retry=policy)
    await store.store.settle([Settlement(job.id, job.version, to, "w1")])
    [(_, *expected)] = await counted(store) or [("python",)]
    assert await by_sql(sql, run) == "applied"
    assert await raw(store, run.id) == await raw(store, job.id) | {"topic": "sql"}
    [(_, *found)] = await counted(store) or [("sql",)]
    assert found == expected
    assert await story(store, run.id) == await story(store, job.id)


async def story(store: PostgresHarness, job_id: str) -> list[tuple[Any, ...]]:
    return [(one.seq, one.at, one.event, one.status, one.by, one.data) for one in await store.events(job_id)]


async def test_a_rescue_is_the_one_that_python_would_make(store: PostgresHarness, sql: SqlClient) -> None:
    for started, retries, crashes in itertools.product((True, False), (0, 2, 3), (0, 1, 4)):
        await store.reset()
        await rescues_as_python(store, sql, started, retries, crashes)


async def rescues_as_python(store: PostgresHarness, sql: SqlClient, started: bool, retries: int, crashes: int) -> None:
    lost = [await store.claimed(topic="python", start=started), await store.claimed(topic="sql", start=started)]
    await store.execute(f"UPDATE _jobs SET retries = {retries}, crashes = {crashes}")
    await store.advance(LEASE + 1)
    await counted(store)
    await store.execute("UPDATE _jobs SET locked_until = locked_until + interval '1 hour' WHERE topic = 'sql'")
    assert len(await store.store.move_due(Rescue(by="m1", backoff=backoff_table(DEFAULT_RETRY)))) == 1
    await store.execute("UPDATE _jobs SET locked_until = locked_until - interval '1 hour' WHERE topic = 'sql'")
    [(_, *expected)] = await counted(store)
    assert await sql.rescue() == 1
    assert await raw(store, lost[1].id) == await raw(store, lost[0].id) | {"topic": "sql"}
    [(_, *found)] = await counted(store)
    assert found == expected
    assert await sql.rescue() == 0


# ── enqueue ──


async def test_a_live_job_with_the_same_key_answers(store: PostgresHarness, sql: SqlClient) -> None:
    first = await sql.enqueue(key="k")
    assert await sql.enqueue(key="k", payload={"other": 1}) == first
    assert await sql.enqueue("bills", key="k") != first
    [run] = await sql.claim()
    assert await sql.enqueue(key="k") == first
    await sql.complete(run)
    assert await sql.enqueue(key="k") != first
    by_python = await store.add(key="p")
    assert await sql.enqueue(key="p") == by_python


async def test_a_key_belongs_to_its_scope(store: PostgresHarness, sql: SqlClient) -> None:
    scopes: list[dict[str, str]] = [{}, {"scope": "a"}, {"scope_id": "a"}, {"scope": "a", "scope_id": "\u754c" * 512}]
    ids = [await sql.enqueue(key="k", **scope) for scope in scopes]
    assert len(set(ids)) == len(ids)
    assert [await sql.enqueue(key="k", **scope) for scope in scopes] == ids


async def test_the_same_id_makes_one_job(store: PostgresHarness, sql: SqlClient) -> None:
    mine = str(UUID(NOBODY))
    assert [await sql.enqueue(id=mine) for _ in range(2)] == [mine] * 2
    [run] = await sql.claim()
    assert await sql.complete(run) == "applied"
    assert await sql.enqueue(id=mine) == mine  # also once it is archived
    assert await store.fetch("SELECT count(*) FROM _jobs") == [(0,)]
    assert (await store.job(mine)).status is Status.COMPLETED


async def test_an_id_that_was_made_and_completed_behind_our_back(store: PostgresHarness, sql: SqlClient) -> None:
    """Another client makes and completes the job between the read and the insert of `enqueue_job`."""
    # A trigger imitates the race: before the new row is written, it puts the other client's job into the archive.
    await store.execute(
        "CREATE FUNCTION meanwhile() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO _jobs_archive (id, created, updated, run_at, finished_at, timeout, template_version, priority, "
        "version, retries, max_retries, crashes, history_dropped, topic, payload, locked_by) VALUES (NEW.id, "
        "NEW.created, NEW.created, NEW.created, NEW.created, 600, 0, 100, 1, 0, 3, 0, 0, NEW.topic, '{}', 'w9'); "
        "RETURN NEW; END $$"
    )
    await store.execute("CREATE TRIGGER meanwhile BEFORE INSERT ON _jobs FOR EACH ROW EXECUTE FUNCTION meanwhile()")
    assert await sql.enqueue(id=NOBODY) == NOBODY
    assert await store.fetch("SELECT count(*) FROM _jobs") == [(0,)]


async def test_a_key_is_waited_for_and_taken_when_it_comes_free(
    store: PostgresHarness, sql: SqlClient, other: SqlClient
) -> None:
    rolled_back = other.connection.transaction()
    await rolled_back.start()
    theirs = await other.enqueue(key="k")
    waiting = asyncio.create_task(sql.enqueue(key="k"))
    await until_blocked(store, sql)
    await rolled_back.rollback()
    assert await waiting != theirs


async def until_blocked(store: PostgresHarness, sql: SqlClient) -> None:
    pid = sql.connection.get_server_pid()
    await until(lambda: store.fetch(f"SELECT FROM unnest(pg_blocking_pids({pid}))"), "a lock that it waits for")


async def test_it_goes_with_the_caller_s_transaction(store: PostgresHarness, sql: SqlClient) -> None:
    transaction = sql.connection.transaction()
    await transaction.start()
    await sql.enqueue()
    await transaction.rollback()
    assert await store.rows() == {}


TOO_DEEP = '{"a":' * 65 + "1" + "}" * 65
NOT_A_JOB: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": ""}, "topic", "empty"),
    ({"topic": None}, "topic", "missing"),
    ({"topic": "no spaces"}, "topic", "bad_characters"),
    ({"topic": "x\n"}, "topic", "bad_characters"),
    ({"topic": "x" * 129}, "topic", "too_long"),
    ({"payload": "[]"}, "payload", "not_an_object"),
    ({"payload": "null"}, "payload", "not_an_object"),
    ({"payload": json.dumps({"a": "x" * (1 << 20)})}, "payload", "too_large"),
    ({"payload": r'{"a": "\u0000"}'}, "payload", "nul"),
    ({"payload": r'{"\u0000": 1}'}, "payload", "nul"),
    ({"payload": r'{"a": "\ud800"}'}, "payload", "lone_surrogate"),
    ({"payload": '{"a": [0, 9223372036854775808]}'}, "payload.a[1]", "integer_range"),
    ({"payload": '{"a": -9223372036854775809}'}, "payload.a", "integer_range"),
    ({"payload": '{"a": {"b": 1e309}}'}, "payload.a.b", "not_finite"),
    ({"payload": '{"a": 1e999999}'}, "payload", "not_finite"),
    ({"payload": TOO_DEEP}, "payload" + ".a" * 64, "too_deep"),
    ({"priority": -(2**31)}, "priority", "out_of_range"),
    ({"max_retries": -1}, "max_retries", "out_of_range"),
    ({"max_retries": 1_000_001}, "max_retries", "out_of_range"),
    ({"timeout": timedelta(0)}, "timeout", "out_of_range"),
    ({"timeout": timedelta(days=3661)}, "timeout", "out_of_range"),
    ({"delay": timedelta(seconds=-1)}, "delay", "out_of_range"),
    ({"delay": timedelta(seconds=1), "run_at": START}, "delay", "both_given"),
    ({"run_at": datetime(1899, 1, 1, tzinfo=UTC)}, "run_at", "time_range"),
    ({"expires_at": datetime.max.replace(tzinfo=UTC)}, "expires_at", "time_range"),
    ({"key": ""}, "key", "bad_length"),
    ({"key": "ü" * 513}, "key", "bad_length"),
    ({"scope": ""}, "scope", "bad_length"),
    ({"scope_id": "x" * 513}, "scope_id", "bad_length"),
    ({"trace": "x" * 513}, "trace", "bad_length"),
    ({"tags": ["ok", ""]}, "tags[1]", "bad_length"),
    ({"tags": ["ok", None]}, "tags[1]", "missing"),
    ({"tags": ["t"] * 33}, "tags", "too_many"),
]


async def test_what_is_refused_names_its_field(store: PostgresHarness, sql: SqlClient) -> None:
    for options, field, code in NOT_A_JOB:
        with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
            await sql.enqueue(**options)
        assert (refused.value.as_dict()["column_name"], refused.value.detail) == (field, code), options
        assert str(refused.value).startswith(f"{field}: "), options
    assert await store.rows() == {}


async def test_what_is_just_right_is_not_refused(store: PostgresHarness, sql: SqlClient) -> None:
    largest = json.dumps({"a": "x" * ((1 << 20) - 9)})
    assert len(largest) == 1 << 20
    for payload in (
        largest,
        '{"a": [9223372036854775807, -9223372036854775808, 1e308, 1e22, -0.0, 0e400]}',
        r'{"a": "\\u0000 \u00fc \ud83d\ude00"}',
        '{"a":' * 64 + "1" + "}" * 64,
        '{"deep in text": "' + "{" * 100 + "12345678901234567890" + '"}',
    ):
        job_id = await sql.enqueue(payload=payload, topic="t" * 128, key=None, tags=["t" * 128] * 32)
        assert (await store.job(job_id)).payload == json.loads(payload)


# ── claim ──


async def test_what_a_claim_answers(store: PostgresHarness, sql: SqlClient) -> None:
    job_id = await sql.enqueue(payload={"a": 1}, key="k", scope="user", scope_id="7", tags=["red"], trace="t")
    [row] = await sql.claim_rows("w1", lease=timedelta(minutes=1))
    assert dict(row) == {
        "id": UUID(job_id), "version": 1, "topic": "mail", "payload": '{"a": 1}', "priority": 100, "run_at": START,
        "key": "k", "scope": "user", "scope_id": "7", "tags": ["red"], "trace": "t", "retries": 0, "max_retries": 3,
        "timeout": timedelta(minutes=10), "last_error": None, "created": START,
        "locked_until": START + timedelta(minutes=1),
    }  # fmt: skip
    job = await store.job(job_id)
    assert (job.status, job.started_at, job.locked_by) == (Status.PROCESSING, START, "w1")


async def test_the_order_is_by_priority_across_topics_then_by_age(store: PostgresHarness, sql: SqlClient) -> None:
    low = await sql.enqueue("bills", priority=1)
    high = await sql.enqueue("mail", priority=3)
    middle = await sql.enqueue("bills", priority=2)
    await sql.enqueue("zoo", priority=9)
    older = await sql.enqueue("mail", priority=2, run_at=START - timedelta(seconds=1))
    runs = await sql.claim("w1", "mail", "bills", "mail", n=3)
    assert [run.id for run in runs] == [high, older, middle]
    assert [run.id for run in await sql.claim("w1", "mail", "bills")] == [low]
    assert await sql.claim("w1", "mail", "bills") == []
    assert await sql.claim("w1", "nobody_enqueues_this") == []


async def test_what_is_not_due_paused_expired_or_of_a_template_is_left_alone(
    store: PostgresHarness, sql: SqlClient
) -> None:
    await sql.enqueue(delay=timedelta(seconds=10))
    await sql.enqueue(expires_at=START)
    await sql.enqueue("paused")
    await store.add("versioned", template_version=1)
    await store.store.steer_topic("paused", "pause", by="ann", until=START + timedelta(seconds=20))
    everything = ("mail", "paused", "versioned")
    assert await sql.claim("w1", *everything) == []
    await store.advance(10)
    assert len(await sql.claim("w1", *everything)) == 1  # no worker's maintenance is needed
    await store.advance(10)
    assert len(await sql.claim("w1", *everything)) == 1


async def test_a_claim_is_refused_by_field(sql: SqlClient) -> None:
    for wishes, field in (
        ({"worker": ""}, "worker"),
        ({"worker": None}, "worker"),
        ({"n": 0}, "n"),
        ({"n": 1001}, "n"),
        ({"topics": None}, "topics"),
        ({"topics": ["a b"]}, "topics"),
        ({"topics": [None]}, "topics"),
        ({"lease": timedelta(0)}, "lease"),
        ({"lease": None}, "lease"),
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{field}: "):
            await sql.claim_rows(**{"worker": "w1"} | wishes)
    assert await sql.claim_rows("w1", topics=[]) == []


# ── Fenced: by id, version and worker ──

WRITES: dict[str, Callable[[SqlClient, SqlRun], Awaitable[str]]] = {
    "heartbeat": lambda sql, run: sql.heartbeat(run, timedelta(hours=1)),
    "complete": lambda sql, run: sql.complete(run, {"zombie": True}),
    "fail": lambda sql, run: sql.fail(run, "zombie"),
    "fail for good": lambda sql, run: sql.fail(run, "zombie", final=True),
    "release": lambda sql, run: sql.release(run),
}


async def test_a_run_that_is_over_can_write_nothing(store: PostgresHarness, sql: SqlClient) -> None:
    for write in WRITES:
        await store.reset()
        await writes_nothing(store, sql, write)


async def writes_nothing(store: PostgresHarness, sql: SqlClient, write: str) -> None:
    old = await sql.claimed()
    await store.advance(LEASE + 1)
    assert await sql.rescue() == 1
    pending = await raw(store, old.id)
    assert await WRITES[write](sql, old) == "lost"
    assert await raw(store, old.id) == pending
    [new] = await sql.claim("w2")
    for zombie in (old, new._replace(worker="w1"), new._replace(version=0), new._replace(id=NOBODY)):
        before = await raw(store, new.id)
        await counted(store)
        assert await WRITES[write](sql, zombie) == "lost", zombie
        assert await raw(store, new.id) == before
        assert await counted(store) == []
    assert await sql.complete(new) == "applied"
    assert await WRITES[write](sql, old) == "lost"


async def test_a_write_must_say_which_run_it_means(sql: SqlClient) -> None:
    run = await sql.claimed()
    for write, field in itertools.product(WRITES.values(), run._fields):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^{field}: must be given"):
            await write(sql, SqlRun(**run._asdict() | {field: None}))


REPEATED: dict[str, Callable[[SqlClient, SqlRun], Awaitable[str]]] = {
    "complete": lambda sql, run: sql.complete(run),
    "fail": lambda sql, run: sql.fail(run),
    "fail for good": lambda sql, run: sql.fail(run, final=True),
    "release": lambda sql, run: sql.release(run),
}


async def test_a_repeat_answers_already(store: PostgresHarness, sql: SqlClient) -> None:
    """The client repeats a call whose answer got lost after the COMMIT. The job may have moved on meanwhile."""
    for write, cancelled in itertools.product(REPEATED, (False, True)):
        await store.reset()
        await answers_already(store, sql, write, cancelled)


async def answers_already(store: PostgresHarness, sql: SqlClient, write: str, cancelled: bool) -> None:
    run = await sql.claimed()
    if cancelled:
        await store.store.move([run.id], Cancel(by="ann"))
    assert await REPEATED[write](sql, run) == "applied"
    before = await raw(store, run.id)
    await counted(store)
    assert await REPEATED[write](sql, run) == "already"
    assert await REPEATED[write](sql, run._replace(worker="w2")) == "lost"
    assert await raw(store, run.id) == before
    assert await counted(store) == []
    if write == "complete":
        return
    if before["status"] != "pending":
        await store.store.move([run.id], Requeue(by="ann"))
    await store.advance(3600)
    assert len(await sql.claim("w2")) == 1
    assert await REPEATED[write](sql, run) == "already"
    assert await sql.complete(run) == "lost"


async def test_heartbeat(store: PostgresHarness, sql: SqlClient) -> None:
    run = await sql.claimed()
    now = await store.advance(10)
    before = await raw(store, run.id)
    assert await sql.heartbeat(run, timedelta(minutes=2)) == "kept"
    assert (await store.job(run.id)).locked_until == now + timedelta(minutes=2)
    assert await sql.heartbeat(run, timedelta(seconds=1)) == "kept"  # never shorter
    after = await raw(store, run.id)
    assert {name for name in after if after[name] != before[name]} == {"locked_until"}
    await store.advance(1000)
    assert await sql.heartbeat(run) == "kept"  # the lease has expired, but no rescue has taken the job
    assert await sql.rescue() == 0
    await store.store.move([run.id], Cancel(by="ann"))
    assert await sql.heartbeat(run) == "cancel"
    with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^lease: "):
        await sql.heartbeat(run, timedelta(days=2))


async def test_a_result_that_can_t_be_kept_is_refused(store: PostgresHarness, sql: SqlClient) -> None:
    run = await sql.claimed()
    with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^result\[0\]: "):
        await sql.complete(run, "[9223372036854775808]")
    with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^error: must be given"):
        await sql.fail(run, None)
    with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^delay: "):
        await sql.fail(run, delay=timedelta(days=4000))
    assert await sql.complete(run, "[1]") == "applied"
    assert (await store.job(run.id)).result == [1]


async def test_a_long_error_is_cut_as_python_cuts_it(store: PostgresHarness, sql: SqlClient) -> None:
    for said in ("ä" * 3000, "€" * 3000, "x" * 4096, "x" * 4097, "x€ä😀" * 2000, ""):
        assert await sql.connection.fetchval("SELECT _jobs_clean($1, 4096)", said) == clean_text(said, 4096)
    run, long = await sql.claimed(), "ä€" * 250_000
    await store.execute("UPDATE _jobs SET max_retries = 0")
    assert await sql.fail(run, long) == "applied"
    assert (await store.job(run.id)).last_error == clean_text(f"Max retries exceeded: {clean_text(long)}")


async def test_a_server_that_has_just_come_up_rescues_nobody(store: PostgresHarness) -> None:
    """While the server was down, its clients could not renew their leases."""
    async with client_of(store.url, virtual=False) as real:
        run = await real.claimed()
        await store.execute("UPDATE _jobs SET locked_until = '2026-01-01'")
        assert await real.rescue(grace=timedelta(hours=23)) == 0
        assert await real.heartbeat(run) == "kept"
        await store.execute("UPDATE _jobs SET locked_until = '2026-01-01'")
        assert await real.rescue(grace=timedelta(0)) == 1


# ── At once ──


async def test_a_write_that_waited_for_another_s_commit_looks_again(
    store: PostgresHarness, sql: SqlClient, other: SqlClient
) -> None:
    """A heartbeat's commit makes a new version of the row. A write that waited for it must still find the row."""
    for write in REPEATED.values():
        run = await sql.claimed()
        transaction = other.connection.transaction()
        await transaction.start()
        assert await other.heartbeat(run, timedelta(hours=1)) == "kept"
        writing = asyncio.ensure_future(write(sql, run))
        await until_blocked(store, sql)
        await transaction.commit()
        assert await writing == "applied"
        await store.store.move([run.id], Delete(by="test"))


async def test_of_two_that_complete_the_same_run_at_once_one_does(
    store: PostgresHarness, sql: SqlClient, other: SqlClient
) -> None:
    run = await sql.claimed()
    await counted(store)
    transaction = other.connection.transaction()
    await transaction.start()
    assert await other.complete(run, {"by": "other"}) == "applied"
    writing = asyncio.create_task(sql.complete(run, {"by": "sql"}))
    await until_blocked(store, sql)
    await transaction.commit()
    assert await writing == "already"
    assert (await store.job(run.id)).result == {"by": "other"}
    [(_, *figures)] = await counted(store)
    assert figures[0] == 1


async def test_many_claimers_never_get_the_same_job(store: PostgresHarness, sql: SqlClient) -> None:
    topics = ("mail", "bills")
    made = [await sql.enqueue(topic) for _ in range(60) for topic in topics]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(store.url)) for _ in range(6)]

        async def work(name: str, client: SqlClient) -> list[str]:
            mine: list[str] = []
            while len(await store.fetch("SELECT 1 FROM _jobs WHERE ready LIMIT 1")):
                for run in await client.claim(name, *topics, n=3):
                    assert await client.complete(run) == "applied"
                    mine.append(run.id)
            return mine

        done = await asyncio.gather(*(work(f"w{n}", client) for n, client in enumerate(clients)))
    assert sorted(job_id for mine in done for job_id in mine) == sorted(made)
    assert sum(figures[1] for figures in await counted(store)) == len(made)


# ── The doorbell ──


@pytest.fixture
async def idle(databases: Databases) -> AsyncIterator[tuple[SqlClient, PostgresStore]]:
    """Yield a client, and a worker's store that waits for work: clients ring for it."""
    async with databases.fresh() as url, opening(PostgresStore(url)) as waiting:
        await silence_after_start(waiting)
        async with client_of(url, virtual=False) as client:
            yield client, waiting


async def silence_after_start(waiting: PostgresStore) -> None:
    while not await waiting.wait_for_work(1.0):  # its own start rings once
        pass
    await silence(waiting)


async def silence(waiting: PostgresStore) -> None:
    while await waiting.wait_for_work(0.1):  # a ring has an echo
        pass


async def test_who_waits_is_woken_by_the_commit(idle: tuple[SqlClient, PostgresStore]) -> None:
    sql, waiting = idle
    async with sql.connection.transaction():
        await sql.enqueue()
        assert not await waiting.wait_for_work(0.05)
    assert await waiting.wait_for_work(30.0)
    await silence(waiting)
    await sql.enqueue(notify=False)
    assert not await waiting.wait_for_work(0.1)


async def test_whatever_is_ready_again_rings_too(idle: tuple[SqlClient, PostgresStore]) -> None:
    sql, waiting = idle
    for again in (lambda run: sql.fail(run, delay=timedelta(0)), sql.release, lambda run: expired(sql)):
        await sql.enqueue(notify=False)
        [run] = await sql.claim()
        await again(run)
        assert await waiting.wait_for_work(30.0)
        await silence(waiting)
        await sql.connection.execute("DELETE FROM _jobs")


async def expired(sql: SqlClient) -> None:
    await sql.connection.execute("UPDATE _jobs SET locked_until = locked_until - interval '1 hour'")
    assert await sql.rescue() == 1


async def test_in_a_schema_of_one_s_own_that_is_not_searched(postgres_url: str) -> None:
    waiting = PostgresStore(f"{postgres_url}?schema=Own_jobs")
    await waiting.migrate()
    await waiting.open()
    connection = await asyncpg.connect(postgres_url)
    await silence_after_start(waiting)
    job_id = await connection.fetchval("""SELECT "Own_jobs".enqueue_job('mail', key => 'k')""")
    assert await waiting.wait_for_work(30.0)
    claim = """SELECT id, version FROM "Own_jobs".claim_job_batch('w1', '{mail}')"""
    for end, answer in (
        ("release_job($1, $2, 'w1')", "applied"),
        ("fail_job($1, $2, 'w1', 'no', '0')", "applied"),
        ("heartbeat_job($1, $2, 'w1')", "kept"),
    ):
        [run] = await connection.fetch(claim)
        assert run["id"] == job_id
        assert await connection.fetchval(f'SELECT "Own_jobs".{end}', *run) == answer
    assert await connection.fetchval("""SELECT "Own_jobs".rescue_jobs(grace => '0')""") == 0
    for answer in ("applied", "already"):
        assert await connection.fetchval("""SELECT "Own_jobs".complete_job($1, 3, 'w1')""", job_id) == answer
    await connection.close()
    await waiting.close()


async def test_nothing_is_sent_when_nobody_waits(store: PostgresHarness, sql: SqlClient) -> None:
    heard: list[str] = []
    listener = await asyncpg.connect(store.url)
    await listener.add_listener("rowlock_public", lambda *said: heard.append(str(said)))
    await sql.enqueue()
    await listener.execute("NOTIFY rowlock_public, 'the end'")
    while not heard:
        await listener.execute("SELECT 1")
    assert len(heard) == 1
    assert "the end" in heard[0]
    assert await store.fetch("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    await listener.close()


# ── Together with the library ──


async def test_jobs_of_either_are_run_by_the_other(store: PostgresHarness, sql: SqlClient) -> None:
    by_sql, by_python = await sql.enqueue(), await store.add("bills")
    [job] = (await store.store.claim(claim_by("python"))).jobs
    [run] = await sql.claim("sql", "bills")
    assert (job.id, run.id) == (by_sql, by_python)
    await store.store.settle([python_settlement(job, Completed("p"))])
    assert await sql.complete(run, '"s"') == "applied"
    assert [(await store.job(one)).result for one in (by_sql, by_python)] == ["p", "s"]
    for job_id, worker in ((by_sql, "python"), (by_python, "sql")):
        told = [(one.event, one.by) for one in await store.events(job_id)]
        assert told == [("enqueued", None), ("claimed", worker), ("completed", worker)]
    stats = await store.store.stats()
    assert (stats.completed, stats.topics["mail"].completed, stats.topics["bills"].completed) == (2, 1, 1)


def python_settlement(job: Job, outcome: Outcome) -> Settlement:
    return Settlement(job.id, job.version, decide(job, outcome, START), job.locked_by)
