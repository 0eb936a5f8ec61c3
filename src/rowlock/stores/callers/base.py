"""The verbs that every kind of caller's connection has. Each kind only implements `carry`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued, Guard, Home
from rowlock.stores.callers.work import Fence, Insert, Work

T = TypeVar("T")
Ring = Callable[[], None]


class Caller:
    """`kind` names the connection in messages."""

    def __init__(self, conn: Any, kind: str, home: Home) -> None:
        self.conn = conn
        self.kind = kind
        self.home = home

    def on_commit(self, ring: Ring) -> bool:
        """Call `ring` once, after the caller's transaction has been committed. Return False if this kind of connection
        can't tell when that is."""
        return False


class SyncCaller(Caller, ABC):
    """A connection that the application uses without await."""

    @property
    def never_waits(self) -> bool:
        """Return True if async code may use it, too, because it has all locks that it needs."""
        return False

    @abstractmethod
    def carry(self, work: Work[T]) -> T:
        """Do the work in the caller's transaction, or raise ConnectionRefused. The driver's own errors pass through:
        they belong to the caller's transaction."""

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        """Insert jobs as Store.insert does, in the caller's transaction. `notify`: wake the workers at its commit
        (PostgreSQL; a commit to SQLite wakes them anyway)."""
        return self.carry(Insert(jobs, repeat, notify)) if jobs else []

    def fence(self, guard: Guard) -> None:
        """Hold the run until the caller's transaction ends, or raise LeaseLost: then roll back. `guard.completion` is
        carried out as well. Call it last, right before the commit: from here on a heartbeat can't be written."""
        self.carry(Fence(guard))


class AsyncCaller(Caller, ABC):
    """A connection that the application uses with await. For the verbs, see SyncCaller."""

    @abstractmethod
    async def carry(self, work: Work[T]) -> T: ...

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        return await self.carry(Insert(jobs, repeat, notify)) if jobs else []

    async def fence(self, guard: Guard) -> None:
        await self.carry(Fence(guard))
