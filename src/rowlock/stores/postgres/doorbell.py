"""The doorbell: LISTEN on a connection of its own. It only wakes workers early; without it, they find every job by
polling.

A NOTIFY takes a lock of the whole server when it commits, so a producer sends it (rings) only if a worker is idle. An
idle worker holds an advisory lock, shared, on its LISTEN connection. A producer rings only if it can't get that lock
exclusively (sql/ring.sql). A worker that has just taken the lock looks for work once more, because no producer rang for
jobs that were enqueued before.

Only one of several concurrent producers rings. The others fail to get a second advisory lock, which is held until the
ring is sent, and skip it. Their jobs may be committed after the ring was heard. So a worker that hears a ring looks
again a moment later, and an insert that took longer than that rings after its commit (store.py).

A connection may stop listening without an error: its socket's other end is gone, or a pooler has given us another
server connection. So a waiting worker checks now and then whether it still listens.

With a `listen_url`, the LISTEN connection goes around such a pooler. Each time it connects, it checks that it leads to
the same tables: elsewhere no producer would ring.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import asyncpg
from msgspec import Struct

from rowlock.errors import InvalidInput, StoreUnavailable
from rowlock.stores.after_fork import keep_for_ever
from rowlock.stores.postgres.connections import Connections

log = logging.getLogger("rowlock")

_LONGEST_PAUSE = 30.0  # seconds between tries to connect


class Rhythm(Struct, frozen=True):
    """All in seconds."""

    check: float = 10.0  # between two checks whether we still listen
    patience: float = 5.0  # for an answer; a socket that is half open gives none
    echo: float = 0.05  # after a ring, a worker looks for work again
    linger: float = 1.0  # after a wait, the worker counts as idle for so long
    rarely: float = 300.0  # between tries where LISTEN doesn't work


USUAL = Rhythm()


class Direct:
    """Connections around a pooler. `statement` reads the identity of their tables; `identity` is that of the store's
    tables."""

    def __init__(self, connections: Connections, statement: str, identity: Callable[[], Awaitable[str]]) -> None:
        self.connections = connections
        self._statement = statement
        self._identity = identity

    async def check(self, connection: Any) -> None:
        """Raise InvalidInput if the connection does not lead to the store's tables."""
        try:
            found = await connection.fetchval(self._statement, "identity")
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            found = None
        if found != await self._identity():
            target = self.connections.target
            raise InvalidInput(
                "listen_url",
                "another_database",
                f"{target.label}, schema {target.schema}, is not the database that the URL leads to: "
                "no worker would be woken. Name the server that is behind the pooler, and the same database",
            )


class Doorbell:
    def __init__(self, connections: Connections, rhythm: Rhythm = USUAL, direct: Direct | None = None) -> None:
        self._connections = connections
        self._direct = direct
        self.rhythm = rhythm
        self._rang = asyncio.Event()
        self._stir = asyncio.Event()  # the listening task has something to look at
        self._waiting = 0
        self._left = 0.0  # when the last wait ended
        self._locked = False  # producers know that we are idle
        self._echo: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def wait(self, timeout: float) -> bool:
        """Return True if it rang. A missing LISTEN connection is no error: the caller polls anyway."""
        if self._keeper is None and self._connections.target.listen:
            self._keeper = asyncio.create_task(self._keep())  # connecting may take longer than this wait
        self._waiting += 1
        self._stir.set()
        try:
            async with asyncio.timeout(timeout):
                await self._rang.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._left = _now()
        self._rang.clear()
        self._connections.check()  # closed while we waited
        return True

    async def check(self) -> None:
        """Raise InvalidInput if `listen_url` leads to another database, StoreUnavailable if its server is silent."""
        if self._direct is None:
            return
        try:
            async with asyncio.timeout(self.rhythm.patience), self._direct.connections.alone() as connection:
                await self._direct.check(connection)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self._line.target.label} gave no answer") from error

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None and self._connections.forked:
            keep_for_ever(keeper)
        elif keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if self._echo is not None:
            self._echo.cancel()
        self._rang.set()  # last: the waiting tasks must find the store closed

    async def _keep(self) -> None:
        """Listen while a worker waits, and connect again after a failure, until cancelled."""
        failures = deaf = 0
        while True:
            while not self._waiting:
                await self._stirred(None)
            since = _now()
            trouble = await self._listen()
            lasted = _now() - since
            failures = 1 if lasted >= self.rhythm.check else failures + 1
            deaf = 0 if lasted >= self.rhythm.rarely else deaf
            deaf += isinstance(trouble, _Deaf)
            self._tell(trouble, failures, deaf)
            hopeless = deaf >= 2 or isinstance(trouble, InvalidInput)
            await asyncio.sleep(self.rhythm.rarely if hopeless else _pause(failures))

    def _tell(self, trouble: Exception, failures: int, deaf: int) -> None:
        """Log a trouble once, not at each try."""
        label = self._line.target.label
        if isinstance(trouble, _Deaf):
            if deaf == 2:
                log.warning(
                    "%s: LISTEN doesn't work, polling only: is it a pooler in transaction mode? Set listen_url", label
                )
        elif failures == 1:
            what = str(trouble) or type(trouble).__name__
            log.warning("%s: no LISTEN connection, polling until there is one: %s", label, what)

    @property
    def _line(self) -> Connections:
        return self._connections if self._direct is None else self._direct.connections

    async def _listen(self) -> Exception:
        """Listen until it fails, and return the error. It never raises, because its task must go on."""
        connection: Any = None
        try:
            connection = await self._line.connect()
            connection.add_termination_listener(lambda _connection: self._stir.set())
            session = _Session(connection, self._connections.target.channel, self._connections.target.waiting_key)
            async with asyncio.timeout(self.rhythm.patience):
                if self._direct is not None:
                    await self._direct.check(connection)
                await session.listen(self._ring)
            await self._attend(session)
        except Exception as error:
            return error
        finally:
            self._locked = False
            if connection is not None:
                connection.terminate()

    def _ring(self) -> None:
        self._rang.set()
        if self._echo is not None:
            self._echo.cancel()
        self._echo = asyncio.get_running_loop().call_later(self.rhythm.echo, self._rang.set)

    async def _attend(self, session: _Session) -> NoReturn:
        """Hold the lock while a worker waits."""
        checked = _now()
        while not session.lost:
            idle = self._waiting > 0 or _now() - self._left < self.rhythm.linger
            async with asyncio.timeout(self.rhythm.patience):
                if (idle and not self._locked) or _now() - checked >= self.rhythm.check:
                    await session.check()
                    checked = _now()
                if idle and not self._locked:
                    await session.lock()
                    self._rang.set()
                elif self._locked and not idle:
                    await session.unlock()
            self._locked = idle
            await self._stirred(min(self.rhythm.linger, self.rhythm.check) if idle else None)
        raise ConnectionError("the connection was closed")

    async def _stirred(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._stir.wait()
        except TimeoutError:
            return
        self._stir.clear()


class _Deaf(Exception):
    """The server answers, but this session does not listen."""


class _Session:
    """The statements on the LISTEN connection. Each is one message, so that a pooler can't split it."""

    def __init__(self, connection: Any, channel: str, key: int) -> None:
        self._connection = connection
        self._channel = channel
        self._key = key
        # A pooler's connection may still listen for an earlier client, so the channel alone proves nothing.
        self._mark = secrets.token_hex(8)

    @property
    def lost(self) -> bool:
        return bool(self._connection.is_closed())

    async def listen(self, ring: Callable[[], None]) -> None:
        await self._connection.add_listener(self._channel, lambda *_: ring())
        await self._connection.execute(
            f"LISTEN \"{self._channel}\"; SELECT set_config('rowlock.listener', '{self._mark}', false)"
        )

    async def check(self) -> None:
        ours = await self._connection.execute(
            f"SELECT WHERE current_setting('rowlock.listener', true) = '{self._mark}' "
            f"AND '{self._channel}' IN (SELECT pg_listening_channels())"
        )
        if ours != "SELECT 1":
            raise _Deaf

    async def lock(self) -> None:
        await self._connection.execute(f"SELECT pg_advisory_lock_shared({self._key})")

    async def unlock(self) -> None:
        await self._connection.execute(f"SELECT pg_advisory_unlock_shared({self._key})")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _pause(failures: int) -> float:
    """Return the seconds until the next try: 0 after the first failure, then more and more, and a random part."""
    if failures < 2:
        return 0.0
    return min(2.0 ** min(failures - 2, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
