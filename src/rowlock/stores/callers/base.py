"""What all callers share. What is to be asked is decided without input and output, by generators that yield a Query and
are sent its answer; so sync and async drivers have the same logic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from rowlock.core.job import NewJob
from rowlock.errors import ConnectionRefused
from rowlock.stores.base import Enqueued, Home

T = TypeVar("T")
Ring = Callable[[], None]

NAMES = {"sqlite": "SQLite", "sqlite3": "SQLite", "postgres": "PostgreSQL", "postgresql": "PostgreSQL"}


class SyncCaller(ABC):
    """A connection that the application uses without await. `kind` names it in messages."""

    def __init__(self, conn: Any, kind: str, home: Home) -> None:
        self.conn = conn
        self.kind = kind
        self.home = home

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        """As Store.insert, in the caller's transaction. `notify`: wake the workers at its commit (PostgreSQL; a commit
        to SQLite wakes them anyway). The driver's own errors pass through: they belong to the caller's transaction."""

    def on_commit(self, ring: Ring) -> bool:
        """Call `ring` once, after the caller's transaction has been committed. False: nobody would tell us."""
        return False


class AsyncCaller(ABC):
    """A connection that the application uses with await."""

    def __init__(self, conn: Any, kind: str, home: Home) -> None:
        self.conn = conn
        self.kind = kind
        self.home = home

    @abstractmethod
    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        """See SyncCaller."""

    def on_commit(self, ring: Ring) -> bool:
        """See SyncCaller."""
        return False


class Query(Struct, frozen=True):
    """A statement with one parameter, written $1, that answers one text."""

    text: str
    parameter: str

    @property
    def percent(self) -> str:
        """The same for drivers that write it %s."""
        return self.text.replace("%", "%%").replace("$1", "%s")


Steps = Generator[Query, str, T]


def drive(steps: Steps[T], run: Callable[[Query], str]) -> T:
    """Errors are thrown into the steps, which know what they mean."""
    try:
        query = next(steps)
        while True:
            try:
                answer = run(query)
            except Exception as error:
                query = steps.throw(error)
            else:
                query = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T], run: Callable[[Query], Awaitable[str]]) -> T:
    try:
        query = next(steps)
        while True:
            try:
                answer = await run(query)
            except Exception as error:
                query = steps.throw(error)
            else:
                query = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


def refuse_dialect(kind: str, dialect: str, home: Home) -> None:
    if NAMES.get(dialect) != NAMES[home.dialect]:
        raise ConnectionRefused(
            kind,
            "wrong_dialect",
            f"it leads to {NAMES.get(dialect, dialect)}, but the jobs are kept in {NAMES[home.dialect]}. "
            "Pass a connection to that database, or leave out conn=",
        )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps: SQLAlchemy keeps the driver's own as .orig, Django as __cause__."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        orig = getattr(current, "orig", None)
        current = orig if isinstance(orig, BaseException) else current.__cause__


def closed(kind: str) -> ConnectionRefused:
    return ConnectionRefused(kind, "closed", "it is closed (or was given back to its pool): pass an open one")


def autocommit(kind: str, way_out: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind,
        "autocommit",
        "it is not in a transaction, and commits every statement by itself: the job would stay although your data is "
        f"rolled back. {way_out}, or leave out conn=",
    )


def failed(kind: str, way_out: str = "Roll it back first") -> ConnectionRefused:
    return ConnectionRefused(kind, "failed_transaction", f"its transaction has failed, nothing can be added. {way_out}")


def read_only(kind: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind, "read_only", "its transaction is read-only (or it leads to a standby): pass one that may write"
    )


def another_database(kind: str, where: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind,
        "another_database",
        f"this connection leads to another database ({where}) than the one where the jobs are kept; a copy is another "
        "one too. Pass a connection to the jobs' database, or leave out conn=",
    )
