"""What can be done in a caller's transaction, for both kinds of database. The kind that isn't used is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued, Guard, Home
from rowlock.stores.steps import Steps

if TYPE_CHECKING:
    from sqlite3 import Connection

T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    def on_postgres(self, home: Home) -> Steps[T_co]:
        """What to ask."""
        ...

    def on_sqlite(self, conn: Connection) -> T_co:
        """Under the write lock, on a connection without factories of the caller's."""
        ...


class Insert(Struct, frozen=True):
    jobs: Sequence[NewJob]
    repeat: bool
    notify: bool

    def on_postgres(self, home: Home) -> Steps[list[Enqueued]]:
        from rowlock.stores.callers import postgres

        return postgres.insert(home, self.jobs, repeat=self.repeat, notify=self.notify)

    def on_sqlite(self, conn: Connection) -> list[Enqueued]:
        from rowlock.stores.sqlite.database import microseconds
        from rowlock.stores.sqlite.insert import insert

        return insert(conn, microseconds(), self.jobs, repeat=self.repeat)


class Fence(Struct, frozen=True):
    guard: Guard

    def on_postgres(self, home: Home) -> Steps[None]:
        from rowlock.stores.postgres.fence import fence

        assert home.schema is not None  # noqa: S101 - narrows the type
        return fence(home.schema, self.guard)

    def on_sqlite(self, conn: Connection) -> None:
        from rowlock.stores.sqlite.database import microseconds
        from rowlock.stores.sqlite.fence import fence

        fence(conn, microseconds(), self.guard)
