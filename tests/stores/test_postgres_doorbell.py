"""PostgreSQL's doorbell: clients ring only for waiting workers; a store notices and replaces a deaf listener."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from rowlock.errors import InvalidInput
from rowlock.stores import check_listener
from rowlock.stores.postgres.doorbell import Doorbell, Rhythm
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import connected, opening
from tests.databases import Databases
from tests.faults.wire import Wire
from tests.proxy import Proxy
from tests.servers import PostgresServer
from tests.stores.harness import job

CHANNEL = "rowlock_public"
QUICK = Rhythm(check=0.05, patience=0.5, linger=0.05, rarely=3600.0)


@pytest.fixture
def url(migrated_url: str) -> str:
    return migrated_url


@asynccontextmanager
async def opened(url: str, rhythm: Rhythm = QUICK, listen_url: str | None = None) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, listen_url)
    store._doorbell = Doorbell(store._connections, rhythm, store._doorbell._direct)
    async with opening(store):
        yield store


@asynccontextmanager
async def idle(store: PostgresStore) -> AsyncIterator["asyncio.Task[bool]"]:
    """Yield a wait of the store. Other clients know of it, and nothing has ended it yet."""
    while await store.wait_for_work(0.05) or not store._doorbell._locked:
        pass
    waiting = asyncio.create_task(store.wait_for_work(60.0))
    await asyncio.sleep(0)
    try:
        yield waiting
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


class Onlooker:
    """A separate connection that sees which stores wait, and hears every notification."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self._heard: list[str] = []

    async def waiters(self) -> set[int]:
        found = await self._connection.fetch(
            "SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND datname = current_database()"
        )
        return {row["pid"] for row in found}

    async def sees(self, wanted: Callable[[set[int]], bool]) -> set[int]:
        async with asyncio.timeout(20):
            while not wanted(waiters := await self.waiters()):
                pass  # each query is a round trip, so no sleep is needed
        return waiters

    async def listen(self) -> None:
        for channel in (CHANNEL, "onlooker"):
            await self._connection.add_listener(channel, lambda *heard: self._heard.append(str(heard[2])))

    async def heard(self) -> list[str]:
        """Return the rings so far. Notifications come in the order of commits, so earlier ones precede this NOTIFY."""
        await self._connection.execute("NOTIFY onlooker")
        async with asyncio.timeout(20):
            while "onlooker" not in self._heard:
                await self._connection.execute("")
        heard, self._heard = self._heard, []
        return heard[: heard.index("onlooker")]

    async def execute(self, statement: str, *values: Any) -> None:
        await self._connection.execute(statement, *values)


@pytest.fixture
async def onlooker(url: str) -> AsyncIterator[Onlooker]:
    async with connected(url) as connection:
        yield Onlooker(connection)


async def rung(waiting: "asyncio.Task[bool]") -> bool:
    async with asyncio.timeout(20):
        return await waiting


# ── When a client rings ──


async def test_nobody_is_notified_while_nobody_waits(url: str, onlooker: Onlooker) -> None:
    await onlooker.listen()
    async with opened(url) as busy, opened(url) as other:
        for _ in range(3):
            await busy.ring()
        assert await onlooker.heard() == []
        async with idle(other) as waiting:
            await busy.ring()
            assert await rung(waiting)
        assert await onlooker.heard() == [CHANNEL]


async def test_one_ring_is_for_all_who_wait(url: str) -> None:
    async with opened(url) as one, opened(url) as two, opened(url) as other, idle(one) as first, idle(two) as second:
        await other.ring()
        assert await rung(first)
        assert await rung(second)


async def test_who_is_busy_is_not_rung_for_and_looks_again_when_idle(url: str, onlooker: Onlooker) -> None:
    await onlooker.listen()
    async with opened(url) as store, opened(url) as other:
        async with idle(store) as waiting:
            assert len(await onlooker.waiters()) == 1
            await other.ring()
            assert await rung(waiting)
        await onlooker.sees(lambda waiters: not waiters)
        await onlooker.heard()
        await other.ring()
        assert await onlooker.heard() == []
        # No store has heard that ring. So the next wait ends once other clients can see it: the worker looks again.
        assert await rung(asyncio.create_task(store.wait_for_work(60.0)))


async def test_waits_that_follow_each_other_are_one(url: str, onlooker: Onlooker) -> None:
    async with opened(url, Rhythm(linger=60.0)) as store:
        async with idle(store):
            [pid] = await onlooker.waiters()
        for _ in range(5):
            assert not await store.wait_for_work(0.01)
            assert await onlooker.waiters() == {pid}


async def test_an_application_has_its_own_advisory_locks(url: str, onlooker: Onlooker) -> None:
    async with opened(url) as store, idle(store):
        for key in (0, 1, 42, 2**31):
            await onlooker.execute("SELECT pg_advisory_lock($1)", key)
        assert len(await onlooker.waiters()) == 1


async def test_of_many_that_enqueue_at_once_one_rings_and_whoever_hears_it_looks_twice(
    url: str, onlooker: Onlooker
) -> None:
    await onlooker.listen()
    patient = Rhythm(echo=3600.0)  # no insert counts as too long
    async with opened(url) as store, opened(url, patient) as one, opened(url) as another:
        async with idle(store) as waiting:
            key = one._target.ringing_key
            await onlooker.execute("SELECT pg_advisory_lock($1)", key)  # another client is ringing, for a long time
            await one.insert([job()])
            assert not one.owes_ring
            await one.ring()
            assert await onlooker.heard() == []
            await onlooker.execute("SELECT pg_advisory_unlock($1)", key)
            await another.insert([job()])
            assert await rung(waiting)
            assert await onlooker.heard() == [CHANNEL]
        assert await rung(asyncio.create_task(store.wait_for_work(60.0)))  # it looks twice, without a second ring


async def test_an_insert_that_leaves_the_ring_to_another_and_takes_too_long_owes_one(
    url: str, onlooker: Onlooker
) -> None:
    async with opened(url) as store, opened(url, Rhythm(echo=0.0)) as slow, idle(store):
        await onlooker.execute("SELECT pg_advisory_lock($1)", slow._target.ringing_key)
        await slow.insert([job()])
        assert slow.owes_ring


# ── Listeners that have gone deaf ──


async def test_a_listener_that_was_terminated_is_replaced(url: str, onlooker: Onlooker) -> None:
    async with opened(url) as store, opened(url) as other:
        async with idle(store) as waiting:
            [old] = await onlooker.waiters()
            await onlooker.execute("SELECT pg_terminate_backend($1)", old)
            assert await rung(waiting)  # the store may have missed rings
            assert old not in await onlooker.sees(lambda waiters: waiters not in ({old}, set()))
        async with idle(store) as waiting:
            await other.ring()
            assert await rung(waiting)


async def test_a_socket_that_is_half_open_is_replaced(url: str, postgres: PostgresServer, onlooker: Onlooker) -> None:
    async with Proxy(postgres.host, postgres.port) as proxy, opened(url) as other:
        through = url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")
        async with opened(through) as store:
            async with idle(store) as waiting:
                proxy.freeze_newest()  # the LISTEN connection was the last one
                assert await rung(waiting)
            async with idle(store) as waiting:
                await other.ring()
                assert await rung(waiting)


async def test_connections_that_are_half_open_do_not_hold_up_the_end(url: str, postgres: PostgresServer) -> None:
    async with Proxy(postgres.host, postgres.port) as proxy:
        store = PostgresStore(url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/"))
        await store.open()
        proxy.freeze_newest()
        async with asyncio.timeout(20):  # not for as long as TCP waits
            await store.close()


async def test_a_server_that_was_away(caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer() as server:
        await PostgresStore(server.url()).migrate()
        async with opened(server.url()) as store, opened(server.url()) as other:
            async with idle(store) as waiting:
                server.stop()
                await asyncio.sleep(0.1)  # some tries fail
                server.start()
                assert await rung(waiting)
            async with idle(store) as waiting:
                await other.ring()
                assert await rung(waiting)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


class Pooler:
    """Imitates a pooler in transaction mode: each message goes to the other one of two server connections."""

    def __init__(self, *servers: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._servers = servers
        self._messages = 0
        self.clients = 0
        self.fair = True  # False: all messages go to the same connection

    async def connect(self) -> "Pooler":
        self.clients += 1
        return self

    async def execute(self, text: str) -> str:
        self._messages += self.fair
        return await self._servers[self._messages % 2].execute(text)

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        await self._servers[self._messages % 2].add_listener(channel, callback)

    def add_termination_listener(self, callback: Callable[..., None]) -> None:
        pass

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        pass


@pytest.fixture
async def pooler(url: str) -> AsyncIterator[Pooler]:
    servers = [await asyncpg.connect(url) for _ in range(2)]
    yield Pooler(*servers)
    for server in servers:
        server.terminate()


async def test_behind_a_pooler_it_polls_and_says_so_once(
    url: str, pooler: Pooler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(url) as store:
        monkeypatch.setattr(store._connections, "connect", pooler.connect)
        while not caplog.records:
            assert not await store.wait_for_work(0.01)
        for _ in range(20):
            assert not await store.wait_for_work(0.01)
        assert pooler.clients == 2
    [said] = caplog.records
    assert "pooler" in said.getMessage()


async def test_behind_a_pooler_it_tries_again_now_and_then(
    url: str, pooler: Pooler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(url, Rhythm(check=0.01, linger=0.01, rarely=0.05)) as store:
        monkeypatch.setattr(store._connections, "connect", pooler.connect)
        while pooler.clients < 6:  # by now all server connections listen, for clients that are gone
            assert not await store.wait_for_work(0.01)
        assert len(caplog.records) == 1
        pooler.fair = False
        assert await rung(asyncio.create_task(store.wait_for_work(60.0)))


# ── A separate URL for LISTEN ──


async def test_listen_url_is_where_it_listens(url: str, postgres: PostgresServer) -> None:
    async with (
        Wire(postgres.host, postgres.port) as around,
        Wire(postgres.host, postgres.port) as pooled,
        opened(pooled.through(url), listen_url=around.through(url)) as store,
        opened(url) as other,
    ):
        for _ in range(2):
            async with idle(store) as waiting:
                assert [link.listens for link in around.links] == [True]
                assert [link.listens for link in pooled.links] == [False]
                await other.insert([job()])
                assert await rung(waiting)
            around.links[0].reset()  # the next round shows that the store reconnects


async def test_without_that_way_it_polls_and_says_so_without_the_password(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening, so no other process can take the port
        nowhere = f"postgresql://ann:s3cret@127.0.0.1:{taken.getsockname()[1]}/shop"
        async with opened(url, listen_url=nowhere) as store:
            await check_listener(store)  # a server that is away is no configuration error
            while not caplog.records:
                assert not await store.wait_for_work(0.01)
            for _ in range(20):
                assert not await store.wait_for_work(0.01)
            await store.insert([job()])
    [said] = caplog.records
    assert "polling until there is one" in said.getMessage()
    assert "s3cret" not in said.getMessage() + repr(store)


@pytest.mark.parametrize("tables", [True, False])
async def test_a_way_that_leads_elsewhere_is_refused(
    url: str, databases: Databases, postgres: PostgresServer, caplog: pytest.LogCaptureFixture, tables: bool
) -> None:
    """Another database is refused, also if it has all the tables. A running store does not listen there, either."""
    async with databases.fresh() as copy:
        elsewhere = copy if tables else postgres.url()
        async with opened(url, listen_url=elsewhere) as store:
            with pytest.raises(InvalidInput) as refused:
                await check_listener(store)
            while not caplog.records:
                assert not await store.wait_for_work(0.01)
            for _ in range(20):
                assert not await store.wait_for_work(0.01)
    [said] = caplog.records
    for text in (str(refused.value), said.getMessage()):
        assert elsewhere.rsplit("/", 1)[1] in text
        assert "not the database that the URL leads to" in text
        assert str(urlsplit(url).password) not in text
    assert (refused.value.field, refused.value.code) == ("listen_url", "another_database")


@pytest.mark.parametrize(
    ("query", "listen_url", "code"),
    [
        ("", "sqlite:///jobs.db", "bad_url"),
        ("", "postgresql://ann:s3/cret@db/shop", "bad_url"),
        ("", "postgresql://ann:s3cret@db/shop?connect_timeout=no", "bad_connect_timeout"),
        ("?listen=off", "postgresql://ann:s3cret@db/shop", "not_listening"),
    ],
)
def test_a_listen_url_that_cannot_be_used_says_so(query: str, listen_url: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        PostgresStore(f"postgresql://db/shop{query}", listen_url)
    assert (refused.value.field, refused.value.code) == ("listen_url", code)
    assert "cret" not in str(refused.value)


# ── Without a doorbell ──


async def test_without_listen_a_wait_is_a_sleep(url: str, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch) -> None:
    await onlooker.listen()
    async with opened(f"{url}?listen=off") as store:
        monkeypatch.setattr(store._connections, "connect", None)  # fails if the store opens a connection to listen
        waiting = asyncio.create_task(store.wait_for_work(0.05))
        await asyncio.sleep(0)
        await store.ring()
        assert not await waiting
        assert await onlooker.waiters() == set()
        assert await onlooker.heard() == []


async def test_closing_lets_go_at_once_and_twice_does_no_harm(url: str, onlooker: Onlooker) -> None:
    async with opened(url) as store, idle(store):
        assert len(await onlooker.waiters()) == 1
        await store.close()
        await onlooker.sees(lambda waiters: not waiters)


async def test_a_child_may_close_what_it_inherited(url: str, onlooker: Onlooker) -> None:
    async with opened(url) as store, idle(store):
        child = os.fork()
        if not child:  # the child must not use the parent's pytest and event loop
            signal.alarm(20)
            try:
                asyncio.run(store.close())
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - the child has no loop to wait for
        assert len(await onlooker.waiters()) == 1
