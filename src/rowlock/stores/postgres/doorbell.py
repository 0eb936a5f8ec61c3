"""LISTEN on a connection of its own: a hint that there may be work. Polling is the truth.

A NOTIFY takes a lock that is global to the server when it commits, so a ring is sent only if someone is idle. Who waits
holds an advisory lock, shared, on its LISTEN connection; who rings notifies only if it can't have that lock for itself
(sql/ring.sql). Whenever the lock is taken, whoever waits looks for work once more: what was enqueued before the lock
rang for nobody.

Of many that enqueue at once one rings: who can't have a second lock, which is held until the ring is sent, leaves it to
its holder. What such a one enqueues may be committed after the ring has been heard. So whoever hears a ring looks again
a moment later; and an insert that has taken longer than that rings after its commit (store.py).

A connection may also be deaf without knowing: a socket whose other end is gone, or a pooler that has passed us on to
another server connection. So a waiter asks now and then whether it still listens.

Behind such a pooler the LISTEN connection goes another way, if there is a `listen_url`. Whenever it connects, it looks
whether that leads to the same tables: elsewhere nobody would ring.
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
from rowlock.stores.inherited import keep_for_ever
from rowlock.stores.postgres.connections import Connections

log = logging.getLogger("rowlock")

_LONGEST_PAUSE = 30.0  # seconds between tries to connect


class Rhythm(Struct, frozen=True):
    """Seconds."""

    check: float = 10.0  # between two looks whether we still listen
    patience: float = 5.0  # for an answer; a socket that is half open gives none
    echo: float = 0.05  # after a ring, whoever has heard it looks again
    linger: float = 1.0  # so long after a wait we count as idle, and are rung for
    rarely: float = 300.0  # between tries where LISTEN doesn't work


USUAL = Rhythm()


class Direct:
    """The way around a pooler. `statement` reads the identity of the tables, `identity` knows that of the store's."""

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
                "nobody would be woken. Name the server that is behind the pooler, and the same database",
            )


class Doorbell:
    def __init__(self, connections: Connections, rhythm: Rhythm = USUAL, direct: Direct | None = None) -> None:
        self._connections = connections
        self._direct = direct
        self.rhythm = rhythm
        self._rang = asyncio.Event()
        self._stir = asyncio.Event()  # the keeper has something to look at
        self._waiting = 0
        self._left = 0.0  # when the last wait ended
        self._locked = False  # others know that we are idle
        self._echo: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def wait(self, timeout: float) -> bool:
        """True if it rang. A listener that can't be had is no error: the caller polls anyway."""
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
        """Raise InvalidInput if `listen_url` leads elsewhere. A server that is silent is not waited for long."""
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
        self._rang.set()  # last: whoever waits finds the store closed

    async def _keep(self) -> None:
        """Listen while someone waits, and heal what breaks, until cancelled."""
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
        """Once, not at each try."""
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
        """Until that fails. Answers why, whatever it is: if the keeper ended, nobody would ever listen again."""
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
        """Hold the lock while someone waits."""
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
    """The server answers, but we don't listen there."""


class _Session:
    """What we say on the LISTEN connection: text only, each in one message, so that a pooler can't tear it apart."""

    def __init__(self, connection: Any, channel: str, key: int) -> None:
        self._connection = connection
        self._channel = channel
        self._key = key
        # A pooler leaves LISTENs of earlier clients behind on its connections: the channel alone proves nothing.
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
    """At once after the first loss; then later and later, and not all workers at the same moment."""
    if failures < 2:
        return 0.0
    return min(2.0 ** min(failures - 2, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
