"""SQLAlchemy and Django tell us of the commit: the doorbell rings once, after it, and never for what was rolled back."""

from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tests.client.conn_kinds import Django, Kind, Place, Sqlalchemy, engine_url
from tests.stores.harness import job


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


@pytest.fixture
def hooked(kind: Kind) -> Kind:
    if not isinstance(kind, Sqlalchemy | Django):
        pytest.skip("nobody tells us")
    return kind


async def test_others_say_so(kind: Kind) -> None:
    if isinstance(kind, Sqlalchemy | Django):
        pytest.skip("these have hooks")
    bell = Doorbell()
    async with kind.transaction():
        assert not await enqueue(kind, bell)
    assert bell.rings == 0


async def test_once_after_the_commit(hooked: Kind) -> None:
    seen = []
    bell = Doorbell()

    def ring() -> None:
        bell.ring()
        seen.append(bell.rings)

    async with hooked.transaction():
        assert await enqueue(hooked, bell)
        assert await enqueue(hooked, bell)
        assert hooked.caller().on_commit(ring)
        assert bell.rings == 0
    assert bell.rings == 2  # one for each function, however often it was given
    async with hooked.transaction():
        await hooked.order(1)
    assert bell.rings == 2  # that transaction only


async def test_the_job_is_there_when_it_rings(hooked: Kind) -> None:
    if hooked.place.dialect == "postgres":
        import psycopg

        def count() -> int:
            with psycopg.connect(hooked.place.address) as conn:
                row = conn.execute("SELECT count(*) FROM _jobs").fetchone()
                assert row
                return int(row[0])
    else:
        import sqlite3
        from contextlib import closing

        def count() -> int:
            with closing(sqlite3.connect(hooked.place.address)) as conn:
                return int(conn.execute("SELECT count(*) FROM _jobs").fetchone()[0])

    seen: list[int] = []
    async with hooked.transaction():
        await hooked.insert(job())
        hooked.caller().on_commit(lambda: seen.append(count()))
    assert seen == [1]


async def test_never_after_a_rollback(hooked: Kind) -> None:
    bell = Doorbell()
    with suppress(Oops):
        async with hooked.transaction():
            await enqueue(hooked, bell)
            raise Oops
    async with hooked.transaction():
        await hooked.order(1)
    assert bell.rings == 0
    async with hooked.transaction():
        await enqueue(hooked, bell)
    assert bell.rings == 1


async def test_savepoints_only_count_at_the_outermost_commit(hooked: Kind) -> None:
    bell = Doorbell()
    async with hooked.transaction():
        await hooked.order(1)
        async with hooked.savepoint():
            await hooked.order(2)
            async with hooked.savepoint():
                await enqueue(hooked, bell)
            assert bell.rings == 0
        assert bell.rings == 0
    assert bell.rings == 1


async def test_a_savepoint_that_was_rolled_back(hooked: Kind) -> None:
    bell, other = Doorbell(), Doorbell()
    async with hooked.transaction():
        await hooked.order(1)
        await enqueue(hooked, other)
        with suppress(Oops):
            async with hooked.savepoint():
                async with hooked.savepoint():  # released into one that is rolled back
                    await enqueue(hooked, bell)
                await enqueue(hooked, other)
                raise Oops
    assert (bell.rings, other.rings) == (0, 1)


async def test_a_doorbell_that_fails_does_not_fail_the_commit(hooked: Kind, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise Oops

    async with hooked.transaction():
        await hooked.insert(new := job())
        hooked.caller().on_commit(broken)
    assert await hooked.place.committed() == ([], [new.id])
    assert "Oops" in caplog.text


async def test_a_session_inside_of_somebody_elses_transaction(postgres_place: Place) -> None:
    """As test suites do it: what the session commits is a savepoint."""
    from rowlock.stores.callers import SyncCaller, caller_for

    bell = Doorbell()
    engine = sqlalchemy.create_engine(engine_url(postgres_place, "psycopg"))
    for commit in (False, True):
        with engine.connect() as conn, conn.begin() as outer:
            with Session(conn, join_transaction_mode="create_savepoint") as session:
                caller = caller_for(session, postgres_place.home)
                assert isinstance(caller, SyncCaller)
                caller.insert([job()], repeat=False, notify=False)
                caller.on_commit(bell.ring)
                session.commit()
                assert bell.rings == 0
            outer.commit() if commit else outer.rollback()
        assert bell.rings == int(commit)
    engine.dispose()
    assert len((await postgres_place.committed())[1]) == 1


async def test_commit_as_you_go(postgres_place: Place) -> None:
    from rowlock.stores.callers import SyncCaller, caller_for

    bell = Doorbell()
    engine = sqlalchemy.create_engine(engine_url(postgres_place, "psycopg"))
    with engine.connect() as conn:
        caller: Any = caller_for(conn, postgres_place.home)
        assert isinstance(caller, SyncCaller)
        for _ in range(3):
            caller.insert([job()], repeat=False, notify=False)
            caller.on_commit(bell.ring)
            conn.commit()
        caller.insert([job()], repeat=False, notify=False)
        caller.on_commit(bell.ring)
        conn.rollback()
        conn.execute(sqlalchemy.text("SELECT 1"))
        conn.commit()
        assert "_commit_impl" not in vars(conn)  # nothing of ours stays behind
    engine.dispose()
    assert bell.rings == 3
    assert len((await postgres_place.committed())[1]) == 3


async def test_two_phases_are_left_to_polling(postgres_place: Place) -> None:
    from rowlock.stores.callers import SyncCaller, caller_for

    engine = sqlalchemy.create_engine(engine_url(postgres_place, "psycopg2"))
    with engine.connect() as conn, conn.begin_twophase() as transaction:
        caller = caller_for(conn, postgres_place.home)
        assert isinstance(caller, SyncCaller)
        caller.insert([job()], repeat=False, notify=False)
        assert not caller.on_commit(lambda: None)
        transaction.rollback()
    engine.dispose()
    assert await postgres_place.committed() == ([], [])
