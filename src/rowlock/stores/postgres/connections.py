"""Connections to PostgreSQL: their target, their errors, and the rules for sharing them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from rowlock import errors
from rowlock.stores.after_fork import keep_for_ever
from rowlock.stores.migrations import DAMAGED
from rowlock.stores.postgres.clock import Clock
from rowlock.stores.postgres.keepalive import keep_alive

MIN_SERVER = 13
FAREWELL = 0.3  # seconds to end an idle connection politely: a server that is gone does not answer, and a stop waits

# Settings of our sessions; the URL may say otherwise. See docs/decisions/0001-postgres-driver.md for the figures.
PLANNER = {
    # Planning settle-and-claim takes 1.2 ms, so it is done once per connection …
    "plan_cache_mode": "force_generic_plan",
    # … but a plan made while the queue was empty would be a sequential scan, kept until the next ANALYZE however many
    # jobs have arrived: a claim of 20 then read 50,000 blocks instead of 165.
    "enable_seqscan": "off",
    # Compiling the plan at every call took 70 % of the throughput at batch 500.
    "jit": "off",
}
# The types of our statements' parameters and answers that the driver does not know by itself.
_TYPES = "SELECT " + ", ".join(
    f"NULL::{name}[]" for name in ("bigint", "bool", "float8", "int", "json", "timestamptz", "uuid")
)
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,53}\Z")  # leaves room for the channel's prefix in 63 bytes


class Target(Struct, frozen=True):
    """The place of the tables. `dsn` holds the password: it is handed to the driver and never printed."""

    dsn: str
    hosts: tuple[tuple[str, int], ...]  # if there are several, one is the primary, and the rest are its standbys
    schema: str
    label: str
    pool_size: int
    connect_timeout: float
    command_timeout: float
    tcp_timeout: float
    statement_cache_size: int
    prepared_statements: bool
    listen: bool
    settings: frozenset[str]  # names of the server settings in the URL

    def __repr__(self) -> str:
        return f"Target({self.label!r})"

    @property
    def quoted_schema(self) -> str:
        return f'"{self.schema}"'

    @property
    def channel(self) -> str:
        return f"rowlock_{self.schema}"

    @property
    def waiting_key(self) -> int:
        """Return the key of the advisory lock that idle workers share."""
        return _lock_key(f"rowlock waits on {self.channel}")

    @property
    def ringing_key(self) -> int:
        """Return the key of the advisory lock that a producer holds while it rings."""
        return _lock_key(f"rowlock rings on {self.channel}")

    @property
    def folding_key(self) -> int:
        """Return the key of the advisory lock that a process holds while it folds counts into rollups."""
        return _lock_key(f"rowlock folds on {self.channel}")


def _lock_key(name: str) -> int:
    """Return 64 bits that differ from the keys of an application's own locks. PostgreSQL keeps locks of different
    databases apart."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


def parse_target(url: str) -> Target:
    """Return the target of postgresql://user:password@host:port/database?schema=…&pool_size=…; the rest of the query is
    for the driver. Several hosts: host:port,host:port."""
    parts, named = urlsplit(""), []
    try:
        parts = urlsplit(url)
        named = [_host(one) for one in parts.netloc.rpartition("@")[2].split(",")]
        confused = "@" in parts.path or "@" in parts.query or parts.fragment
    except ValueError:  # its message may quote the password
        confused = True
    if confused:
        raise errors.InvalidInput(
            "url", "bad_url", "can't be read: write / # ? @ : in a user name or password as %2F %23 %3F %40 %3A"
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = query.pop("schema", "public")
    if not _SCHEMA.match(schema):
        raise errors.InvalidInput("url", "bad_schema", f"schema {schema!r} must be letters, digits and _, at most 54")
    pool_size = int(_number(query, "pool_size", 10, 1, 1000))
    connect_timeout = _number(query, "connect_timeout", 10, 0.1, 3600)
    command_timeout = _number(query, "command_timeout", 60, 0.1, 86_400)
    tcp_timeout = _number(query, "tcp_timeout", 10, 0, 3600)
    statement_cache_size = int(_number(query, "statement_cache_size", 100, 0, 10_000))
    prepared_statements = _switch(query, "prepared_statements", default=False)
    listen = _switch(query, "listen", default=True)
    if named == [("", None)]:
        named = _hosts_in(query)
    hosts = tuple((host or "localhost", port or 5432) for host, port in named) if len(named) > 1 else ()
    if hosts:
        query.setdefault("target_session_attrs", "read-write")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(query, quote_via=quote), ""))
    where = ",".join(f"{host or 'localhost'}:{port or query.get('port', 5432)}" for host, port in named)
    label = f"PostgreSQL at {where}/{unquote(parts.path.lstrip('/')) or query.get('database', '')}"
    return Target(
        dsn,
        hosts,
        schema,
        label,
        pool_size,
        connect_timeout,
        command_timeout,
        tcp_timeout,
        statement_cache_size,
        prepared_statements,
        listen,
        frozenset(query),
    )


def parse_listener(listen_url: str, target: Target) -> Target:
    """Return where to LISTEN instead of the store's URL: around a pooler, in the same schema of the same database."""
    if listen_url.split("://", 1)[0] not in ("postgresql", "postgres"):
        raise errors.InvalidInput("listen_url", "bad_url", "must be postgresql://… like the URL")
    if not target.listen:
        raise errors.InvalidInput("listen_url", "not_listening", "is of no use with listen=off in the URL: remove one")
    try:
        listener = parse_target(listen_url)
    except errors.InvalidInput as error:
        raise errors.InvalidInput("listen_url", error.code, error.problem) from None
    return replace(listener, schema=target.schema)


def _host(text: str) -> tuple[str, int | None]:
    parts = urlsplit(f"//{text}")
    return unquote(parts.hostname or ""), parts.port


def _hosts_in(query: dict[str, str]) -> list[tuple[str, int | None]]:
    """Return the hosts of ?host=a,b&port=1,2, or of one port for all hosts."""
    hosts = query.get("host", "").split(",")
    ports = query.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts) or not all(port.isdigit() or not port for port in ports):
        raise errors.InvalidInput("url", "bad_port", "port must be one number, or one for every host")
    return [(host, int(port) if port else None) for host, port in zip(hosts, ports, strict=True)]


def _number(query: dict[str, str], name: str, default: float, low: float, high: float) -> float:
    text = query.pop(name, None)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise errors.InvalidInput("url", f"bad_{name}", f"{name} must be {low:g} to {high:g}, not {text!r}")
    return value


def _switch(query: dict[str, str], name: str, *, default: bool) -> bool:
    text = query.pop(name, "on" if default else "off")
    if text not in ("on", "off"):
        raise errors.InvalidInput("url", f"bad_{name}", f"{name} must be on or off, not {text!r}")
    return text == "on"


class _Pooled(asyncpg.Connection):
    """A connection without the driver's cache of statements, for a pooler that may give every call to another server.
    There the driver asks for a statement's types before every call: a round trip, and the server parses the statement
    twice. The types of our own statements don't change, so they are asked for once per connection.

    `lasting`: statements that the server may keep, under a name, with their plans.
    """

    ours: frozenset[str] = frozenset()
    lasting: frozenset[str] = frozenset()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._known: dict[str, Any] = {}

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        if query not in self.ours:
            return await super().fetch(query, *args, **options)
        return await (await self._prepared(query)).fetch(*args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        if query not in self.ours:
            return await super().fetchrow(query, *args, **options)
        return await (await self._prepared(query)).fetchrow(*args, **options)

    async def _prepared(self, query: str) -> Any:
        known = self._known.get(query)
        if known is None:
            # The name is a digest of the text: another process or release that uses it means the same statement.
            name = f"rowlock_{hashlib.sha256(query.encode()).hexdigest()[:40]}" if query in self.lasting else None
            known = self._known[query] = await self.prepare(query, name=name)
        return known


class Connections:
    """A few connections, opened as they are needed. Errors are translated into rowlock's errors.

    The driver has a pool, but a statement through it takes 15 % longer than on a bare connection: it guards against
    session state, which none of our statements leaves behind.

    `ours`: the texts of statements that come again and again; `lasting`: those of them whose plan is the same however
    many jobs there are.
    """

    def __init__(
        self, target: Target, ours: frozenset[str] = frozenset(), lasting: frozenset[str] = frozenset()
    ) -> None:
        self.target = target
        self.clock = Clock(target.command_timeout)
        self._ours = ours
        self._lasting = lasting if target.prepared_statements else frozenset()
        self._opened = False
        self._pid = os.getpid()
        self._idle: list[Any] = []  # the last used is taken first: it has its plans; the rest may go cold
        self._slots = asyncio.Semaphore(target.pool_size)
        self._host = 0  # the index of the host that the next connection tries first
        self._session = self._options(
            target.statement_cache_size, {k: v for k, v in PLANNER.items() if k not in target.settings}
        )

    async def connect(self) -> Any:
        """Return a connection outside the pool, without settings: PgBouncer allows it, too."""
        with self._connecting():
            return await self._dial({**self._options(0, {}), "command_timeout": None})

    async def connect_plain(self, connection_class: Any) -> Any:
        """Return a connection outside the pool with the server's settings, for the application's statements."""
        options = self._options(self._session["statement_cache_size"], {})  # 0 behind a PgBouncer
        options |= {"command_timeout": None, "connection_class": connection_class}
        with self._connecting():
            return await self._dial(options)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        """Lend a connection outside the pool, whose statements may take as long as they need."""
        connection = await self.connect()
        try:
            with self._running():
                yield connection
        finally:
            await connection.close(timeout=5)

    async def open(self) -> None:
        self._pid = os.getpid()
        with self._connecting():
            try:
                connection = await self._join()
            except asyncpg.ProtocolViolationError as error:
                if "startup parameter" not in str(error):
                    raise
                # PgBouncer takes no settings for a session. Without them, plans must not outlive their call.
                self._session = self._options(0, {})
                connection = await self._join()
        self._idle.append(connection)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        if self.forked:
            keep_for_ever(self._idle)
            self._idle = []
        idle, self._idle = self._idle, []
        # An error means that the connection is gone already, as wanted.
        await asyncio.gather(*(connection.close(timeout=FAREWELL) for connection in idle), return_exceptions=True)

    @property
    def opened(self) -> bool:
        return self._opened

    @property
    def forked(self) -> bool:
        """Return True in a child of the process that opened the connections."""
        return os.getpid() != self._pid

    def check(self) -> None:
        if self.forked:
            keep_for_ever(self._idle)
            raise errors.ForkedStore(
                f"{self.target.label} was opened before fork(): its connections belong to the parent process. "
                "Open a new store in the child"
            )
        if not self._opened:
            raise errors.StoreClosed(f"{self.target.label} is not open: call open() first, or it has been closed")

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        """Lend a connection for one verb. It is untyped, because the driver's records and parameters are."""
        self.check()
        async with self._slots:
            connection = await self._take()
            sound = False
            try:
                with self._running():
                    yield connection
                sound = True
            except CONFLICTS:
                sound = True  # the server rolled back; the connection is as good as new
                raise
            except errors.StoreUnavailable:
                self._hang_up()
                raise
            finally:
                # Any other error, above all a cancelled caller, may leave a statement running: close the connection.
                if sound and self._opened and not connection.is_closed() and not connection.is_in_transaction():
                    self._idle.append(connection)
                else:
                    if connection.is_closed():
                        self._hang_up()
                    connection.terminate()

    def _hang_up(self) -> None:
        """Close all idle connections: they lead to the same server, which is gone, silent or read-only."""
        while self._idle:
            self._idle.pop().terminate()

    async def _take(self) -> Any:
        self.check()  # again: it may have been closed while we waited for a slot
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        with self._connecting():
            return await self._join()

    async def _join(self) -> Any:
        """Return a new connection for the pool."""
        pooled = self._session["statement_cache_size"] == 0
        connection = await self._dial({**self._session, "connection_class": _Pooled} if pooled else self._session)
        try:
            if pooled:
                connection.ours, connection.lasting = self._ours, self._lasting
                await self._ask_for_types(connection)
            self.clock.set(await connection.fetchval("SELECT clock_timestamp()"))
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _ask_for_types(self, connection: Any) -> None:
        """Let the driver ask the server for types like uuid[], as it does once on every connection. It switches JIT off
        for this query and on again, because compiling it takes more than a second. Behind a pooler, only a transaction
        keeps these three statements on one server."""
        async with connection.transaction():
            await connection.fetch(_TYPES)

    async def _dial(self, options: dict[str, Any]) -> Any:
        connection = await self._reach(options)
        # The driver offers neither the options nor the socket: this is its own name for the transport.
        transport = getattr(connection, "_transport", None)
        keep_alive(transport and transport.get_extra_info("socket"), self.target.tcp_timeout)
        return connection

    async def _reach(self, options: dict[str, Any]) -> Any:
        """Connect to the host, of several, that can be written to. The last good host is tried first. A silent host is
        not tried first again, even if the caller gave up before the timeout."""
        hosts = self.target.hosts
        if not hosts:
            return await asyncpg.connect(self.target.dsn, **options)
        said = []
        first = self._host
        for at in ((first + n) % len(hosts) for n in range(len(hosts))):
            self._host = (at + 1) % len(hosts)
            host, port = hosts[at]
            try:
                connection = await asyncpg.connect(self.target.dsn, host=host, port=port, **options)
            except _TRY_NEXT as error:
                said.append(f"{host}:{port}: {_what(error)}")
            else:
                self._host = at
                return connection
        raise ConnectionError("; ".join(said))

    def _options(self, statement_cache_size: int, settings: dict[str, str]) -> dict[str, Any]:
        return {
            "timeout": self.target.connect_timeout,
            "command_timeout": self.target.command_timeout,
            "statement_cache_size": statement_cache_size,
            "server_settings": {"application_name": "rowlock", **settings},
        }

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        label = self.target.label
        try:
            yield
        except TimeoutError as error:
            seconds = self.target.connect_timeout
            raise errors.StoreUnavailable(f"{label}: no connection within {seconds:g} s") from error
        except (
            asyncpg.InvalidPasswordError,
            asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.InsufficientPrivilegeError,
        ) as error:
            raise errors.AccessDenied(f"{label} refused the login: {error}") from error
        except asyncpg.InvalidCatalogNameError as error:
            raise errors.NoSuchDatabase(f"{label}: {error}; create the database first") from error
        except (asyncpg.ClientConfigurationError, asyncpg.SyntaxOrAccessError, asyncpg.DataError) as error:
            raise errors.StoreError(f"{label}: {error}; check what follows the ? in the URL") from error
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise errors.StoreUnavailable(f"{label} can't be reached: {_what(error)}") from error

    @contextmanager
    def _running(self) -> Iterator[None]:
        label, schema = self.target.label, self.target.schema
        try:
            yield
        except asyncpg.InvalidSchemaNameError as error:
            raise errors.NotMigrated(f"{label}, schema {schema}: {error}: run `rowlock migrate`") from error
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.UndefinedColumnError) as error:
            if "_job" not in str(error) and error.context is not None:  # the error of a trigger that the user has made
                raise errors.StoreError(f"{label}: {error}") from error
            raise errors.SchemaDamaged(f"{label}, schema {schema}: {error}. {DAMAGED}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise errors.AccessDenied(f"{label}, schema {schema}: {error}: grant it to this role") from error
        except asyncpg.ReadOnlySQLTransactionError as error:
            raise errors.StoreReadOnly(f"{label} is read-only (a standby?): {error}") from error
        except (asyncpg.DiskFullError, asyncpg.OutOfMemoryError) as error:
            raise errors.StoreFull(f"{label}: {error}") from error
        except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError) as error:
            # The server's own statement_timeout or lock_timeout: it rolled back.
            raise errors.StoreBusy(f"{label}: {error}") from error
        except (asyncpg.PostgresSystemError, asyncpg.InternalServerError, asyncpg.InsufficientResourcesError) as error:
            raise errors.StoreUnavailable(f"{label} is in trouble: {error}") from error
        except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as error:
            raise errors.StoreError(
                f"{label}: {error}. Does it lead to a pooler? Its prepared statements need PgBouncer 1.21 with "
                "max_prepared_statements above 0; else write statement_cache_size=0, without prepared_statements=on"
            ) from error
        except TimeoutError as error:
            seconds = self.target.command_timeout
            raise errors.OutcomeUnknown(f"{label}: no answer within {seconds:g} s") from error
        except (
            OSError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,  # the driver lost track: seen when the server was killed between two messages
            asyncpg.PostgresConnectionError,
            asyncpg.OperatorInterventionError,
        ) as error:
            raise errors.OutcomeUnknown(f"{label} hung up: {_what(error)}") from error
        except asyncpg.UniqueViolationError as error:
            if not str(error.constraint_name).startswith("_jobs"):  # an index or trigger of the user's own
                raise errors.StoreError(f"{label}: {error}") from error
            raise  # another transaction was faster: the verb runs again
        except CONFLICTS:
            raise
        except asyncpg.CheckViolationError as error:
            if error.constraint_name is not None:
                raise errors.StoreError(f"{label}: {error}") from error
            # The archive got a new partition while a row was on its way to the DEFAULT one.
            raise Conflict(str(error)) from error
        except asyncpg.PostgresError as error:
            raise errors.StoreError(f"{label}: {error}") from error


class Conflict(Exception):
    """Raised inside a transaction to roll it back and run it again."""


# The transaction was rolled back as a whole, through no fault of its own: run it again.
CONFLICTS = (Conflict, asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)


# This host does not answer, is not ready, or is a standby.
_TRY_NEXT = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)


def _what(error: Exception) -> str:
    return str(error) or type(error).__name__
