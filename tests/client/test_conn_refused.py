"""rowlock refuses a connection that can't carry a job: it gives the reason, writes nothing and leaves it usable."""

import shutil
import sqlite3
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from rowlock.core.job import Job
from rowlock.errors import ConnectionRefused, InvalidInput
from rowlock.stores.base import Home
from rowlock.stores.callers import caller_for
from rowlock.stores.sqlite.store import SqliteStore
from tests.client.conftest import postgres_at, with_orders
from tests.client.conn_kinds import KINDS, Django, Kind, Place, async_engine, insert, name_of, sync_engine
from tests.closing import connected, opening
from tests.databases import Databases, execute
from tests.stores.harness import job

pytestmark = pytest.mark.sampled(4)  # kinds of connections


class Oops(Exception):
    pass


async def refused(conn: Any, home: Home) -> ConnectionRefused:
    with pytest.raises(ConnectionRefused) as caught:
        await insert(caller_for(conn, home), [job(), job(key="k")], notify=True)
    assert str(caught.value) == f"conn ({caught.value.kind}): {caught.value.problem}"
    return caught.value


async def refused_code(conn: Any, place: Place) -> str:
    code = (await refused(conn, place.home)).code
    assert (await place.committed())[1] == []
    return code


# ── Every kind ──


async def test_another_database(kind: Kind) -> None:
    home = kind.place.home
    async with kind.transaction():
        error = await refused(kind.conn, Home(home.dialect, "elsewhere@1.2", home.schema))
        await kind.order(1)  # the caller's transaction is still usable
        await kind.insert(new := job())
        assert (await refused(kind.conn, Home(home.dialect, "elsewhere@1.2", home.schema))).code == error.code
    assert error.code == "another_database"
    assert "leads to another database" in str(error)
    assert await kind.place.committed() == ([1], [new.id])


async def test_another_dialect(kind: Kind) -> None:
    other = Home("sqlite", "x@1.2", None) if kind.place.dialect == "postgres" else Home("postgres", "x@1.2", "public")
    async with kind.transaction():
        error = await refused(kind.conn, other)
        await kind.order(1)
    assert error.code == "wrong_dialect"
    assert "PostgreSQL" in str(error)
    assert "SQLite" in str(error)
    assert await kind.place.committed() == ([1], [])


async def test_jobs_in_memory(kind: Kind) -> None:
    store = SqliteStore(None)
    await store.migrate()
    await store.open()
    try:
        error = await refused(kind.conn, await store.home())
    finally:
        await store.close()
    assert error.code == "in_memory"


# Django opens a closed connection again, and a closed session begins anew: neither is refused.
CLOSABLE = [param for param in KINDS if "ession" not in param[1].__name__ and not issubclass(param[1], Django)]


@pytest.mark.parametrize("kind", CLOSABLE, ids=name_of, indirect=True)
async def test_a_closed_connection(kind: Kind) -> None:
    closing_ = kind.conn._con.close() if hasattr(kind.conn, "_con") else kind.conn.close()
    if hasattr(closing_, "__await__"):
        await closing_
    assert await refused_code(kind.conn, kind.place) == "closed"


async def test_without_rowlocks_tables(kind: Kind) -> None:
    with closing(sqlite3.connect(kind.place.address)) if kind.place.dialect == "sqlite" else nullcontext() as other:
        if other is not None:
            other.execute("ALTER TABLE _jobs_meta RENAME TO gone")
            home = kind.place.home
        else:
            home = Home("postgres", kind.place.home.identity, "nowhere")
        try:
            async with kind.transaction():
                error = await refused(kind.conn, home)
                await kind.order(1)
        finally:
            if other is not None:
                other.execute("ALTER TABLE gone RENAME TO _jobs_meta")
    assert error.code == "no_tables"
    assert kind.place.dialect == "sqlite" or "the schema nowhere has no rowlock tables there" in str(error)
    assert (await kind.place.committed())[0] == [1]


# ── No connection at all ──


@pytest.mark.parametrize("what", [None, "postgresql://localhost/app", object(), 5, sqlite3])
def test_no_connection(what: object) -> None:
    with pytest.raises(InvalidInput, match="psycopg Connection and AsyncConnection") as caught:
        caller_for(what, Home("sqlite", "x@1.2", None))
    assert (caught.value.field, caught.value.code) == ("conn", "not_a_connection")


def test_almost_a_connection() -> None:
    home = Home("sqlite", "x@1.2", None)
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(InvalidInput, match=r"with engine.begin\(\) as conn"):
        caller_for(engine, home)
    with pytest.raises(InvalidInput, match=r"with Session.begin\(\) as session"):
        caller_for(sessionmaker(engine), home)
    with closing(sqlite3.connect(":memory:")) as conn, pytest.raises(InvalidInput, match="pass its connection"):
        caller_for(conn.cursor(), home)


# ── PostgreSQL ──


async def test_psycopg_that_commits_by_itself(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address, autocommit=True) as conn:
        error = await refused(conn, postgres_place.home)
        assert error.code == "autocommit"
        assert "with conn.transaction()" in str(error)
        with conn.transaction():
            await insert(caller_for(conn, postgres_place.home), [new := job()])
    assert await postgres_place.committed() == ([], [new.id])


async def test_async_psycopg_that_commits_by_itself(postgres_place: Place) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_place.address, autocommit=True) as conn:
        assert await refused_code(conn, postgres_place) == "autocommit"
        async with conn.transaction():
            await insert(caller_for(conn, postgres_place.home), [new := job()])
    assert await postgres_place.committed() == ([], [new.id])


async def test_psycopg2_that_commits_by_itself(postgres_place: Place) -> None:
    with closing(psycopg2.connect(postgres_place.address)) as conn:
        conn.autocommit = True
        assert await refused_code(conn, postgres_place) == "autocommit"


async def test_psycopg_in_a_failed_transaction(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address) as conn:
        with suppress(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1/0")
        assert await refused_code(conn, postgres_place) == "failed_transaction"
        conn.rollback()
        await insert(caller_for(conn, postgres_place.home), [new := job()])
    assert await postgres_place.committed() == ([], [new.id])


async def test_psycopg_read_only(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address) as conn:
        conn.read_only = True
        assert await refused_code(conn, postgres_place) == "read_only"
        conn.execute("SELECT 1")  # the transaction is not aborted
        conn.rollback()
        conn.read_only = False
        await insert(caller_for(conn, postgres_place.home), [job()])
        conn.rollback()
        conn.read_only = True  # also when rowlock knows the connection already
        assert await refused_code(conn, postgres_place) == "read_only"


async def test_asyncpg(postgres_place: Place) -> None:
    async with connected(postgres_place.address) as conn:
        error = await refused(conn, postgres_place.home)
        assert error.code == "autocommit"
        assert "async with conn.transaction()" in str(error)
        async with conn.transaction(readonly=True):
            assert await refused_code(conn, postgres_place) == "read_only"
            await conn.execute("SELECT 1")
        transaction = conn.transaction()
        await transaction.start()
        with suppress(asyncpg.DivisionByZeroError):
            await conn.execute("SELECT 1/0")
        assert await refused_code(conn, postgres_place) == "failed_transaction"
        await transaction.rollback()


async def test_an_asyncpg_connection_given_back_to_its_pool(postgres_place: Place) -> None:
    async with asyncpg.create_pool(postgres_place.address, min_size=1) as pool:
        async with pool.acquire() as conn:
            pass
        assert await refused_code(conn, postgres_place) == "closed"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_sqlalchemy_that_commits_by_itself(postgres_place: Place, driver: str) -> None:
    with sync_engine(postgres_place, driver) as engine:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            assert await refused_code(conn, postgres_place) == "autocommit"
        with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session, session.begin():
            assert await refused_code(session, postgres_place) == "autocommit"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_async_sqlalchemy_that_commits_by_itself(postgres_place: Place, driver: str) -> None:
    async with async_engine(postgres_place, driver) as engine:
        async with engine.connect() as conn:
            await conn.execution_options(isolation_level="AUTOCOMMIT")
            assert await refused_code(conn, postgres_place) == "autocommit"
        async with AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            assert await refused_code(session, postgres_place) == "autocommit"


async def test_sqlalchemy_in_a_failed_transaction(postgres_place: Place) -> None:
    with sync_engine(postgres_place, "psycopg") as engine, engine.connect() as conn:
        with suppress(sqlalchemy.exc.DataError):
            conn.execute(sqlalchemy.text("SELECT 1/0"))
        assert await refused_code(conn, postgres_place) == "failed_transaction"


async def test_async_sqlalchemy_in_a_failed_transaction(postgres_place: Place) -> None:
    async with async_engine(postgres_place, "asyncpg") as engine, AsyncSession(engine) as session:
        with suppress(sqlalchemy.exc.DBAPIError):
            await session.execute(sqlalchemy.text("SELECT 1/0"))
        assert await refused_code(session, postgres_place) == "failed_transaction"


async def test_sqlalchemy_read_only(postgres_place: Place) -> None:
    options = {"postgresql_readonly": True}
    with sync_engine(postgres_place, "psycopg", execution_options=options) as engine, engine.connect() as conn:
        assert await refused_code(conn, postgres_place) == "read_only"


async def test_a_session_that_waits_for_its_rollback(postgres_place: Place) -> None:
    class Base(sqlalchemy.orm.DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        n: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)

    with sync_engine(postgres_place, "psycopg") as engine, Session(engine) as session:
        session.add(Order(n=1))
        session.commit()
        session.expunge_all()
        session.add(Order(n=1))
        with suppress(sqlalchemy.exc.IntegrityError):
            session.flush()
        assert await refused_code(session, postgres_place) == "failed_transaction"
        session.rollback()


async def test_a_session_without_a_database(postgres_place: Place) -> None:
    with Session() as session:
        error = await refused(session, postgres_place.home)
    assert error.code == "no_transaction"
    assert "bind" in str(error)


async def test_a_block_that_is_over(postgres_place: Place) -> None:
    with sync_engine(postgres_place, "psycopg") as engine:
        with engine.begin() as conn:
            conn.commit()
            assert await refused_code(conn, postgres_place) == "no_transaction"
        with Session(engine) as session, session.begin():
            session.commit()
            assert await refused_code(session, postgres_place) == "no_transaction"


async def test_the_identity_is_the_same_for_everybody(postgres_place: Place, sqlite_place: Place) -> None:
    for place in (postgres_place, sqlite_place):
        assert (await place.store.home()).identity == place.home.identity
    async with postgres_at(postgres_place.address) as other:
        assert other.home == postgres_place.home
    async with opening(SqliteStore(sqlite_place.address)) as again:
        assert await again.home() == sqlite_place.home


async def test_a_copy_of_the_database_is_another_one(postgres_place: Place, databases: Databases) -> None:
    async with databases.fresh(with_orders) as url, postgres_at(url) as copy:
        assert copy.home.identity.partition("@")[0] == postgres_place.home.identity.partition("@")[0]
        with psycopg.connect(url) as conn:
            error = await refused(conn, postgres_place.home)
            assert error.code == "another_database"
            assert url.rpartition("/")[2] in str(error)  # the error names the database
        assert await copy.committed() == ([], [])


async def test_two_schemas_in_one_database(databases: Databases) -> None:
    from rowlock.stores.postgres.store import PostgresStore

    async with databases.fresh(with_orders) as url:
        await PostgresStore(f"{url}?schema=Jobs_2").migrate()
        async with postgres_at(url) as first, postgres_at(url, schema="Jobs_2") as second:
            with psycopg.connect(url) as conn:
                for place in (first, second, first):
                    await insert(caller_for(conn, place.home), [job(key="k")], notify=True)
                assert (await refused(conn, Home("postgres", first.home.identity, "Jobs_2"))).code == "another_database"
            assert len((await first.committed())[1]) == 1
            [(count,)] = await second.store._fetch('SELECT count(*) FROM "Jobs_2"._jobs')  # type: ignore[attr-defined]
            assert count == 1


@pytest.mark.parametrize(
    "grants",
    [
        [],
        ["USAGE ON SCHEMA hidden"],
        ["USAGE ON SCHEMA hidden", "SELECT ON hidden._jobs_meta"],
        ["SELECT ON hidden._jobs_meta", "SELECT, INSERT ON hidden._jobs"],
    ],
)
async def test_without_privileges(databases: Databases, grants: list[str]) -> None:
    from rowlock.stores.postgres.store import PostgresStore

    async with databases.fresh(with_orders) as url:
        await PostgresStore(f"{url}?schema=hidden").migrate()
        await execute(url, "DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk", "GRANT ALL ON orders TO clerk")
        await execute(url, *(f"GRANT {grant} TO clerk" for grant in grants))
        async with postgres_at(url, schema="hidden") as place:
            with psycopg.connect(url) as conn:
                conn.execute("SET ROLE clerk")
                error = await refused(conn, place.home)
                conn.execute("INSERT INTO orders VALUES (1)")  # the transaction is not aborted
            assert error.code == "no_permission"
            assert "clerk" in str(error)
        await execute(url, "DROP OWNED BY clerk", "DROP ROLE clerk")


async def test_with_just_enough_privileges(databases: Databases) -> None:
    from rowlock.stores.postgres.store import PostgresStore

    async with databases.fresh(with_orders) as url:
        await PostgresStore(f"{url}?schema=hidden").migrate()
        await execute(url, "DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk", "GRANT USAGE ON SCHEMA hidden TO clerk")
        await execute(
            url,
            "GRANT SELECT ON ALL TABLES IN SCHEMA hidden TO clerk",
            "GRANT INSERT, DELETE ON hidden._jobs TO clerk",
        )
        async with postgres_at(url, schema="hidden") as place:
            with psycopg.connect(url) as conn:
                conn.execute("SET ROLE clerk")
                caller = caller_for(conn, place.home)
                await insert(caller, [new := job(key="k"), job(key="k")], repeat=True, notify=True)
            assert [*await place.store.read([new.id], Job)] == [new.id]
        await execute(url, "DROP OWNED BY clerk", "DROP ROLE clerk")


# ── SQLite ──


def sqlite_lock_is_free(place: Place) -> bool:
    with closing(sqlite3.connect(place.address, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        other.execute("ROLLBACK")
        return True


async def test_sqlite_that_commits_by_itself(sqlite_place: Place) -> None:
    with closing(sqlite3.connect(sqlite_place.address, isolation_level=None)) as conn:
        error = await refused(conn, sqlite_place.home)
        assert error.code == "autocommit"
        assert "BEGIN" in str(error)
        assert sqlite_lock_is_free(sqlite_place)
        conn.execute("BEGIN")
        await insert(caller_for(conn, sqlite_place.home), [job()])
        conn.execute("ROLLBACK")
    assert await sqlite_place.committed() == ([], [])


@pytest.mark.skipif(not hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"), reason="Python 3.12")
async def test_sqlite_with_autocommit(sqlite_place: Place) -> None:
    options: dict[str, Any] = {"autocommit": True}
    with closing(sqlite3.connect(sqlite_place.address, **options)) as conn:
        assert await refused_code(conn, sqlite_place) == "autocommit"


async def test_sqlalchemy_on_sqlite_that_commits_by_itself(sqlite_place: Place) -> None:
    with sync_engine(sqlite_place, "pysqlite", isolation_level="AUTOCOMMIT") as engine, engine.begin() as conn:
        assert await refused_code(conn, sqlite_place) == "autocommit"
    async with (
        async_engine(sqlite_place, "aiosqlite", isolation_level="AUTOCOMMIT") as aio,
        AsyncSession(aio) as session,
    ):
        assert await refused_code(session, sqlite_place) == "autocommit"


async def test_aiosqlite_before_it_is_opened(sqlite_place: Place) -> None:
    conn = aiosqlite.connect(sqlite_place.address)
    assert await refused_code(conn, sqlite_place) == "closed"


async def test_a_copy_of_the_file_is_another_database(sqlite_place: Place, tmp_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_place.address)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = shutil.copy(sqlite_place.address, tmp_path / "copy.db")
    with closing(sqlite3.connect(copy)) as conn:
        error = await refused(conn, sqlite_place.home)
        assert not conn.in_transaction  # no lock is left behind
    assert error.code == "another_database"
    assert "copy.db" in str(error)


async def test_a_link_to_the_file_is_the_same_database(sqlite_place: Place, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(sqlite_place.address)
    with closing(sqlite3.connect(link)) as conn, conn:
        await insert(caller_for(conn, sqlite_place.home), [new := job()])
    assert await sqlite_place.committed() == ([], [new.id])


async def test_sqlite_in_memory(sqlite_place: Place) -> None:
    with closing(sqlite3.connect(":memory:")) as conn:
        assert (await refused(conn, sqlite_place.home)).code == "no_tables"


async def test_sqlite_read_only(sqlite_place: Place) -> None:
    with closing(sqlite3.connect(f"file:{sqlite_place.address}?mode=ro", uri=True)) as conn:
        assert await refused_code(conn, sqlite_place) == "read_only"
    with closing(sqlite3.connect(sqlite_place.address)) as conn:
        conn.execute("PRAGMA query_only = on")
        assert await refused_code(conn, sqlite_place) == "read_only"
    with sync_engine(sqlite_place, "pysqlite") as engine, engine.begin() as conn_:
        conn_.exec_driver_sql("PRAGMA query_only = on")
        assert await refused_code(conn_, sqlite_place) == "read_only"


# ── Django ──


django_only = pytest.mark.parametrize("kind", [("postgres", Django), ("sqlite", Django)], ids=name_of, indirect=True)


@django_only
async def test_django_outside_of_atomic(kind: Kind) -> None:
    error = await refused(kind.conn, kind.place.home)
    assert error.code == "autocommit"
    assert "with transaction.atomic():" in str(error)
    assert await kind.place.committed() == ([], [])


@django_only
async def test_django_in_a_broken_block(kind: Kind) -> None:
    async with kind.transaction():
        kind.conn.set_rollback(True)
        assert await refused_code(kind.conn, kind.place) == "failed_transaction"


@pytest.mark.parametrize("kind", [("postgres", Django)], ids=name_of, indirect=True)
async def test_django_whose_statement_failed(kind: Kind) -> None:
    """Django doesn't know yet that the transaction is lost: the error was caught without a savepoint."""
    import django.db

    with suppress(Oops):
        async with kind.transaction():
            with suppress(django.db.DataError):
                await kind.execute("SELECT 1/0")
            assert await refused_code(kind.conn, kind.place) == "failed_transaction"
            raise Oops


@django_only
async def test_django_with_transactions_by_hand(kind: Kind) -> None:
    kind.conn.set_autocommit(False)
    try:
        await kind.insert(job())
        kind.conn.rollback()
        assert await kind.place.committed() == ([], [])
        await kind.insert(new := job())
        assert not kind.caller().on_commit(lambda: None)
        kind.conn.commit()
    finally:
        kind.conn.set_autocommit(True)
    assert await kind.place.committed() == ([], [new.id])
