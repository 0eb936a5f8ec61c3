"""Faults that only PostgreSQL can have: connections, privileges, schemas, fork."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from rowlock import errors
from rowlock.core.job import Job, Status, new_job
from rowlock.core.lifecycle import Answer, Completed, Failed, Released
from rowlock.core.moves import Cancel, Delete, Requeue, Rescue, Update
from rowlock.stores import open_store
from rowlock.stores.base import Beat, Claim, Edit, Settled, Store
from rowlock.stores.postgres.connections import parse_target
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import connected, opening
from tests.proxy import Proxy
from tests.servers import PostgresServer
from tests.stores.flow_maker import made, node
from tests.stores.harness import claim_by, job, lanes, settlement
from tests.waiting import PATIENCE, until


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[PostgresStore]:
    async with opening(PostgresStore(migrated_url)) as store:
        yield store


@pytest.fixture
async def other(migrated_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Yield a connection beside those of the store."""
    async with connected(migrated_url) as connection:
        yield connection


@asynccontextmanager
async def migrated(url: str) -> AsyncIterator[Store]:
    await open_store(url).migrate()
    async with opening(open_store(url)) as store:
        yield store


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


# ── Reaching the server ──


async def test_nobody_there_is_said_with_the_host_and_without_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening, so no other process can take the port
        port = taken.getsockname()[1]
        store = open_store(f"postgresql://ann:s3cret@127.0.0.1:{port}/shop")
        with pytest.raises(errors.StoreUnavailable, match=f"127.0.0.1:{port}/shop") as refused:
            await store.open()
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(store)


async def test_a_server_that_never_answers_is_given_up_after_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = open_store(f"postgresql://ann:s3cret@127.0.0.1:{port}/shop?connect_timeout=0.2")
        with pytest.raises(errors.StoreUnavailable, match=r"within 0\.2 s"):
            await store.open()


async def test_a_database_that_does_not_exist(postgres: PostgresServer) -> None:
    with pytest.raises(errors.StoreUnavailable, match="create the database first"):
        await open_store(postgres.url("nowhere")).open()


async def test_a_wrong_password(postgres: PostgresServer) -> None:
    await postgres.execute("CREATE ROLE locked_out LOGIN PASSWORD 'other'")
    url = f"postgresql://locked_out:s3cret@{postgres.host}:{postgres.port}/postgres"
    with pytest.raises(errors.AccessDenied, match="locked_out") as refused:
        await open_store(url).open()
    assert "s3cret" not in str(refused.value)


async def test_the_server_goes_away_and_comes_back() -> None:
    with PostgresServer() as server:
        async with migrated(server.url()) as store:
            kept = job()
            await store.insert([kept])
            server.stop()
            with pytest.raises(errors.StoreUnavailable, match=str(server.port)):
                await store.insert([job()])
            server.restart()
            assert kept.id in await store.read([kept.id], Job)


async def test_a_connection_cut_in_the_middle_leaves_the_outcome_unknown(store: PostgresStore, other: Any) -> None:
    held = job()
    await store.insert([held])
    async with other.transaction():
        await other.execute("SELECT FROM public._jobs FOR UPDATE")
        cancel = asyncio.ensure_future(store.move([held.id], Cancel(by="ann")))
        pids = await until(lambda: other.fetch(WAITING))
        await other.execute("SELECT pg_terminate_backend($1)", pids[0]["pid"])
        with pytest.raises(errors.OutcomeUnknown):
            await cancel
    assert [change.done for change in await store.move([held.id], Cancel(by="ann"))] == [True]


async def test_behind_a_pooler_types_are_asked_for_in_one_transaction(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver asks for types with three statements. A pooler could send them to three servers. Then one server
    would compile the question for a second, and another would keep a setting that is not meant for it."""
    driver: Any = asyncpg.Connection
    real = driver._introspect_types
    together: list[bool] = []

    async def introspect(self: Any, typeoids: Any, timeout: Any) -> Any:
        together.append(self.is_in_transaction())
        return await real(self, typeoids, timeout)

    monkeypatch.setattr(driver, "_introspect_types", introspect)
    async with opening(open_store(f"{migrated_url}?statement_cache_size=0")) as store:
        await store.insert([job(), job(key="a"), job(priority=7)])
        claimed = (await store.claim(claim_by("w1"))).jobs
        await store.heartbeat([Beat(one.id, one.version, started=True) for one in claimed], 30.0)
        await store.settle([settlement(one, Completed(b"1")) for one in claimed])
        await store.move_due(Rescue(by="w1", backoff=[1.0]), 10)
    assert together == [True]


# ── Addresses ──


def test_the_url_names_the_schema_and_keeps_the_rest_for_the_driver() -> None:
    target = parse_target("postgres://ann:p%40ss@db.example:6543/shop?schema=work&pool_size=3&sslmode=require")
    assert (target.schema, target.pool_size, target.channel) == ("work", 3, "rowlock_work")
    assert target.label == "PostgreSQL at db.example:6543/shop"
    assert target.dsn == "postgresql://ann:p%40ss@db.example:6543/shop?sslmode=require"
    assert "p%40ss" not in repr(target)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("schema=a%22b", "bad_schema"),
        ("schema=", "bad_schema"),
        (f"schema={'x' * 55}", "bad_schema"),
        ("pool_size=0", "bad_pool_size"),
        ("pool_size=many", "bad_pool_size"),
        ("connect_timeout=-1", "bad_connect_timeout"),
        ("listen=maybe", "bad_listen"),
    ],
)
def test_bad_options_are_named(query: str, code: str) -> None:
    with pytest.raises(errors.InvalidInput) as bad:
        parse_target(f"postgresql://localhost/shop?{query}")
    assert (bad.value.field, bad.value.code) == ("url", code)


def test_a_bad_port_is_a_bad_url() -> None:
    with pytest.raises(errors.InvalidInput, match="url"):
        parse_target("postgresql://localhost:ninety/shop")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:secret@one:6543,two,[::1]:7/shop",
        "postgresql://ann:secret@/shop?host=one,two,::1&port=6543,5432,7",
    ],
)
def test_several_hosts_want_the_one_that_can_be_written_to(url: str) -> None:
    target = parse_target(url)
    assert target.hosts == (("one", 6543), ("two", 5432), ("::1", 7))
    assert "target_session_attrs=read-write" in target.dsn
    assert "secret" not in target.label
    assert target.label.startswith("PostgreSQL at one:6543,two:5432")


def test_one_host_is_taken_as_it_is() -> None:
    for url in ("postgresql://one/shop", "postgresql:///shop?host=one", "postgresql:///shop"):
        assert parse_target(url).hosts == ()
        assert "target_session_attrs" not in parse_target(url).dsn


def test_every_host_has_its_port() -> None:
    with pytest.raises(errors.InvalidInput, match="port"):
        parse_target("postgresql:///shop?host=one,two&port=1,2,3")


async def test_hosts_that_are_gone_silent_or_standbys_are_passed_over(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """A call waits for the silent host only once, also if the first call gave up early."""
    database = postgres_url.rsplit("/", 1)[1]
    await postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")

    silent = socket.create_server(("127.0.0.1", 0))  # no process accepts the connections
    port = silent.getsockname()[1]
    login, _, place = postgres_url.removeprefix("postgresql://").rpartition("@")
    server, _, _ = place.partition("/")
    url = f"postgresql://{login}@127.0.0.1:1,127.0.0.1:{port},{server}/{database}?connect_timeout=30"
    store = open_store(url)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await store.open()
    with pytest.raises(errors.StoreUnavailable, match=f"{server}: None of the hosts match"):
        await open_store(url.replace("connect_timeout=30", "connect_timeout=1.5")).open()
    await postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = off")
    async with asyncio.timeout(25):  # less than the 30 s of connect_timeout
        with pytest.raises(errors.NotMigrated):
            await store.open()
    silent.close()


# ── Schemas and privileges ──


async def test_schemas_of_ones_choice_are_apart(postgres_url: str) -> None:
    async with migrated(f"{postgres_url}?schema=Team_One") as one, migrated(f"{postgres_url}?schema=two") as two:
        mine = job()
        await one.insert([mine])
        assert await two.read([mine.id], Job) == {}
        assert (await two.claim(claim_by())).jobs == []
        assert [claimed.id for claimed in (await one.claim(claim_by())).jobs] == [mine.id]


async def test_the_printed_sql_does_what_migrate_does(postgres_url: str) -> None:
    by_hand = open_store(f"{postgres_url}?schema=by_hand")
    connection = await asyncpg.connect(postgres_url)
    await connection.execute((await by_hand.pending_migrations()).script)
    assert (await by_hand.pending_migrations()).migrations == []
    await open_store(f"{postgres_url}?schema=by_us").migrate()
    dumped = """
        SELECT c.relname, c.relkind, pg_get_indexdef(c.oid), pg_get_viewdef(c.oid),
               array(SELECT ROW(attname, format_type(atttypid, atttypmod), attnotnull)::text FROM pg_attribute
                     WHERE attrelid = c.oid AND attnum > 0 ORDER BY attnum)
        FROM pg_class c WHERE relnamespace = $1::regnamespace AND relkind <> 'S' ORDER BY relname"""
    shapes = [
        [str(tuple(row)).replace(schema, "SCHEMA") for row in await connection.fetch(dumped, schema)]
        for schema in ("by_hand", "by_us")
    ]
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) > 10
    await connection.close()


async def test_missing_privileges_say_what_to_grant(postgres: PostgresServer, postgres_url: str) -> None:
    await open_store(f"{postgres_url}?schema=guarded").migrate()
    await postgres.execute("CREATE ROLE onlooker LOGIN PASSWORD 'look'")
    database = postgres_url.rsplit("/", 1)[1]
    await postgres.execute(
        "GRANT USAGE ON SCHEMA guarded TO onlooker",
        "GRANT SELECT ON guarded._jobs_migrations TO onlooker",
        dbname=database,
    )
    url = f"postgresql://onlooker:look@{postgres.host}:{postgres.port}/{database}"
    async with opening(open_store(f"{url}?schema=guarded")) as onlooker:
        with pytest.raises(errors.AccessDenied, match="grant it to this role"):
            await onlooker.insert([job()])
    with pytest.raises(errors.AccessDenied, match="CREATE on the schema"):
        await open_store(f"{url}?schema=not_mine").migrate()


async def test_a_read_only_server_is_said_to_be_one(migrated_url: str) -> None:
    async with opening(open_store(f"{migrated_url}?default_transaction_read_only=on")) as standby:
        with pytest.raises(errors.StoreReadOnly, match="read-only"):
            await standby.insert([job()])
    assert issubclass(errors.StoreReadOnly, errors.StoreUnavailable)  # so clients wait and try again


async def test_connections_to_a_server_that_became_read_only_are_given_up(store: PostgresStore, other: Any) -> None:
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rowlock' AND datname = current_database()"
    await asyncio.gather(*(store.insert([job()]) for _ in range(5)))  # opens several connections
    before = {pid for (pid,) in await other.fetch(query)}
    assert len(before) > 1
    async with store._connections.acquire() as mine:  # as if the server of this connection were demoted
        await mine.execute("SET default_transaction_read_only = on")
    with pytest.raises(errors.StoreReadOnly):
        await store.insert([job()])
    await store.insert([job()])

    async def are_gone() -> bool:
        return not before & {pid for (pid,) in await other.fetch(query)}

    await until(are_gone)


async def test_tables_dropped_under_our_feet(postgres_url: str) -> None:
    async with migrated(f"{postgres_url}?schema=gone") as store, connected(postgres_url) as connection:
        await connection.execute("DROP SCHEMA gone CASCADE")
        with pytest.raises(errors.NotMigrated, match="rowlock migrate"):
            await store.insert([job()])


@pytest.mark.parametrize("silent", [False, True], ids=["a lock", "a silent server"])
async def test_closing_ends_what_unblocks_jobs_but_does_not_wait_for_a_server_that_says_nothing(
    migrated_url: str, other: Any, silent: bool
) -> None:
    async with Proxy.before(migrated_url) as proxy:
        store = PostgresStore(f"{proxy.through(migrated_url)}?command_timeout=3600")
        await store.open()
        async with other.transaction():
            await other.execute("LOCK TABLE _jobs_ends IN ACCESS EXCLUSIVE MODE")
            store._advance_behind()
            unblocking = store._advancing
            assert unblocking is not None
            await until(lambda: other.fetchval(WAITING))
            if silent:
                proxy.freeze_newest()
            await asyncio.wait_for(store.close(), PATIENCE)
            assert unblocking.done() is not silent
            assert store._advancing is None
        unblocking.cancel()
        await asyncio.wait([unblocking])


async def test_nobody_waits_for_the_end_of_a_long_chain(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowlock.stores.postgres.store.ADVANCING", 0.0)
    names = [f"n{n}" for n in range(30)]
    before = [[], *([name] for name in names)]
    chain = await made(store, {name: node(*after) for name, after in zip(names, before, strict=False)})
    assert (await store.move([chain["n0"]], Cancel(by="ann")))[0].done
    assert store._advancing is not None

    async def are_cancelled() -> bool:
        return set((await chain.statuses()).values()) == {Status.CANCELLED}

    await until(are_cancelled)


# ── When a store may be used ──


async def test_an_unopened_and_a_closed_store_say_so(migrated_url: str) -> None:
    store = open_store(migrated_url)
    with pytest.raises(errors.StoreClosed):
        await store.insert([job()])
    await store.open()
    waiting = asyncio.ensure_future(store.wait_for_work(60.0))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    with pytest.raises(errors.StoreClosed):
        await store.claim(claim_by())
    with pytest.raises(errors.StoreClosed):
        await waiting


async def test_a_store_from_before_a_fork_is_refused_in_the_child_and_lives_on_in_the_parent(
    store: PostgresStore,
) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # the child must not use the parent's pytest and event loop: it reports and exits
        try:
            store.insert([new_job("0193fb1e-0000-7000-8000-000000000001", "mail")]).send(None)
            answer = "went through"
        except errors.ForkedStore as refused:
            answer = str(refused)
        except BaseException as other:
            answer = repr(other)
        os.write(writing, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 - the child has no loop to wait for
    assert "Open a new store in the child" in os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    assert (await store.insert([job()]))[0].existing is False


async def test_a_claim_of_many_continues_behind_the_last_one_but_sees_what_came_before_it_soon(
    store: PostgresStore, migrated_url: str
) -> None:
    """A claim scans a deep backlog from the last claimed job on, but still finds a job with a higher priority."""
    await store.insert([job() for _ in range(150)])
    many = Claim("w1", lanes("mail"), 50, 30.0)
    assert len((await store.claim(many)).jobs) == 50
    urgent = job(priority=200)
    async with opening(PostgresStore(migrated_url)) as other:
        await other.insert([urgent])
    seen: list[str] = []
    while urgent.id not in seen:
        claimed = await store.claim(many)
        seen += [claimed_job.id for claimed_job in claimed.jobs]
        assert claimed.jobs or claimed.contended  # a short answer from behind the bound asks for another claim
    assert len(seen) == len(set(seen))


# ── A row that changes while a statement waits for its lock: newer than the snapshot, but still to be written ──


@pytest.mark.parametrize("verb", ["complete", "retry", "cancel", "requeue", "update", "delete", "settle in a batch"])
async def test_a_write_that_waited_for_a_lock_is_not_lost(store: PostgresStore, other: Any, verb: str) -> None:
    await store.insert([job(), job()])
    run, neighbour = (await store.claim(claim_by())).jobs
    if verb == "requeue":
        await store.settle([settlement(run, Failed("never", final=True))])
    if verb in ("update", "delete"):
        await store.settle([settlement(run, Released())])
    wanted: dict[str, Callable[[], Awaitable[object]]] = {
        "complete": lambda: store.settle([settlement(run, Completed())]),
        "retry": lambda: store.settle([settlement(run, Failed("boom"))]),
        "settle in a batch": lambda: store.settle(
            [settlement(run, Completed()), settlement(neighbour, Completed())], claim_by()
        ),
        "cancel": lambda: store.move([run.id], Cancel(by="ann")),
        "requeue": lambda: store.move([run.id], Requeue(by="ann")),
        "update": lambda: store.move([run.id], Update(by="ann", edit=Edit(priority=7))),
        "delete": lambda: store.move([run.id], Delete(by="ann")),
    }
    async with other.transaction():
        await other.execute("UPDATE _jobs SET progress = 50 WHERE id = $1", run.id)
        asked = asyncio.ensure_future(wanted[verb]())
        await until(lambda: other.fetch(WAITING))
    answer = await asked
    after = (await store.read([run.id], Job)).get(run.id)
    if isinstance(answer, Settled):
        assert {verdict.answer for verdict in answer.verdicts} == {Answer.APPLIED}
        assert after is not None
        assert after.status is (Status.PENDING if verb == "retry" else Status.COMPLETED)
    else:
        assert isinstance(answer, list)
        assert [change.done for change in answer] == [True]
        assert (after is None) == (verb == "delete")


async def test_a_batch_whose_job_was_archived_before_under_the_same_id_still_settles(store: PostgresStore) -> None:
    first = job()
    for _ in range(2):  # without repeat=True the store does not look into the archive
        await store.insert([first])
        [run] = (await store.claim(claim_by())).jobs
        [verdict] = (await store.settle([settlement(run, Completed())])).verdicts
        assert verdict.answer is Answer.APPLIED
    assert (await store.read([first.id], Job))[first.id].status is Status.COMPLETED
