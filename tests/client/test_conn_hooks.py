"""SQLAlchemy and Django tell rowlock of the commit. The doorbell rings once, after the commit, and never after a
rollback."""

from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from rowlock.stores.callers import SyncCaller, caller_for
from tests.client.conn_kinds import HOOKED, UNHOOKED, Kind, Place, name_of, sync_engine
from tests.stores.harness import job

pytestmark = pytest.mark.sampled(4)  # kinds of connections


class Oops(Exception):
    pass


class Doorbell:
    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1


async def enqueue(kind: Kind, bell: Doorbell) -> bool:
    await kind.insert(job())
    return kind.caller().on_commit(bell.ring)


hooked = pytest.mark.parametrize("kind", HOOKED, ids=name_of, indirect=True)


@pytest.mark.parametrize("kind", UNHOOKED, ids=name_of, indirect=True)
async def test_others_say_so(kind: Kind) -> None:
    bell = Doorbell()
    async with kind.transaction():
        assert not await enqueue(kind, bell)
    assert bell.rings == 0


@hooked
async def test_once_after_the_commit(kind: Kind) -> None:
    seen = []
    bell = Doorbell()

    def ring() -> None:
        bell.ring()
        seen.append(bell.rings)

    async with kind.transaction():
        assert await enqueue(kind, bell)
        assert await enqueue(kind, bell)
        assert kind.caller().on_commit(ring)
        assert bell.rings == 0
    assert bell.rings == 2  # one ring per function, however often it was given
    async with kind.transaction():
        await kind.order(1)
    assert bell.rings == 2  # the functions are called for their transaction only


@hooked
async def test_the_job_is_there_when_it_rings(kind: Kind) -> None:
    if kind.place.dialect == "postgres":
        import psycopg

        def count() -> int:
            with psycopg.connect(kind.place.address) as conn:
                row = conn.execute("SELECT count(*) FROM _jobs").fetchone()
                assert row
                return int(row[0])
    else:
        import sqlite3
        from contextlib import closing

        def count() -> int:
            with closing(sqlite3.connect(kind.place.address)) as conn:
                return int(conn.execute("SELECT count(*) FROM _jobs").fetchone()[0])

    seen: list[int] = []
    async with kind.transaction():
        await kind.insert(job())
        kind.caller().on_commit(lambda: seen.append(count()))
    assert seen == [1]


@hooked
async def test_never_after_a_rollback(kind: Kind) -> None:
    bell = Doorbell()
    with suppress(Oops):
        async with kind.transaction():
            await enqueue(kind, bell)
            raise Oops
    async with kind.transaction():
        await kind.order(1)
    assert bell.rings == 0
    async with kind.transaction():
        await enqueue(kind, bell)
    assert bell.rings == 1


@hooked
async def test_savepoints_only_count_at_the_outermost_commit(kind: Kind) -> None:
    bell = Doorbell()
    async with kind.transaction():
        await kind.order(1)
        async with kind.savepoint():
            await kind.order(2)
            async with kind.savepoint():
                await enqueue(kind, bell)
            assert bell.rings == 0
        assert bell.rings == 0
    assert bell.rings == 1


@hooked
async def test_a_savepoint_that_was_rolled_back(kind: Kind) -> None:
    bell, other = Doorbell(), Doorbell()
    async with kind.transaction():
        await kind.order(1)
        await enqueue(kind, other)
        with suppress(Oops):
            async with kind.savepoint():
                async with kind.savepoint():  # released into an outer savepoint that is rolled back
                    await enqueue(kind, bell)
                await enqueue(kind, other)
                raise Oops
    assert (bell.rings, other.rings) == (0, 1)


@hooked
async def test_a_doorbell_that_fails_does_not_fail_the_commit(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise Oops

    async with kind.transaction():
        await kind.insert(new := job())
        kind.caller().on_commit(broken)
    assert await kind.place.committed() == ([], [new.id])
    assert "Oops" in caplog.text


def sync_caller(conn: Any, place: Place) -> SyncCaller:
    caller = caller_for(conn, place.home)
    assert isinstance(caller, SyncCaller)
    return caller


async def test_a_session_inside_of_somebody_elses_transaction(postgres_place: Place) -> None:
    """Test suites do this: the commit of the session only releases a savepoint."""
    bell = Doorbell()
    for commit in (False, True):
        with sync_engine(postgres_place, "psycopg") as engine, engine.connect() as conn, conn.begin() as outer:
            with Session(conn, join_transaction_mode="create_savepoint") as session:
                caller = sync_caller(session, postgres_place)
                caller.insert([job()], repeat=False, notify=False)
                caller.on_commit(bell.ring)
                session.commit()
                assert bell.rings == 0
            outer.commit() if commit else outer.rollback()
        assert bell.rings == int(commit)
    assert len((await postgres_place.committed())[1]) == 1


async def test_commit_as_you_go(postgres_place: Place) -> None:
    bell = Doorbell()
    with sync_engine(postgres_place, "psycopg") as engine, engine.connect() as conn:
        caller = sync_caller(conn, postgres_place)
        for _ in range(3):
            caller.insert([job()], repeat=False, notify=False)
            caller.on_commit(bell.ring)
            conn.commit()
        caller.insert([job()], repeat=False, notify=False)
        caller.on_commit(bell.ring)
        conn.rollback()
        conn.execute(sqlalchemy.text("SELECT 1"))
        conn.commit()
        assert "_commit_impl" not in vars(conn)  # rowlock's hook is removed
    assert bell.rings == 3
    assert len((await postgres_place.committed())[1]) == 3


async def test_two_phases_are_left_to_polling(postgres_place: Place) -> None:
    with (
        sync_engine(postgres_place, "psycopg2") as engine,
        engine.connect() as conn,
        conn.begin_twophase() as transaction,
    ):
        caller = sync_caller(conn, postgres_place)
        caller.insert([job()], repeat=False, notify=False)
        assert not caller.on_commit(lambda: None)
        transaction.rollback()
    assert await postgres_place.committed() == ([], [])
