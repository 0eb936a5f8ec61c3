"""Django's connection: `django.db.connection`, or one of `django.db.connections`. Nothing of Django is imported."""

from __future__ import annotations

from typing import TypeVar

from rowlock.stores.callers.base import Ring, SyncCaller
from rowlock.stores.callers.dialects import driver_neutral, refuse_dialect
from rowlock.stores.callers.refusals import autocommit, failed
from rowlock.stores.callers.sqlite import LOCK, carry_on, explained
from rowlock.stores.callers.work import Work
from rowlock.stores.driver_neutral import Query, drive

T = TypeVar("T")


class DjangoCaller(SyncCaller):
    def carry(self, work: Work[T]) -> T:
        refuse_dialect(self.kind, self.conn.vendor, self.home)
        if self.conn.needs_rollback:
            raise failed(self.kind, "Leave the atomic() block first")
        if not self.conn.in_atomic_block and self.conn.get_autocommit():
            using = "" if self.conn.alias == "default" else f"using={self.conn.alias!r}"
            raise autocommit(self.kind, f"Use `with transaction.atomic({using}):`")
        self.conn.ensure_connection()
        if carry := driver_neutral(self.home):
            answer: T = drive(carry(self.kind, self.home, self.conn.connection, work), self._run)
            return answer
        with explained(self.kind), self.conn.cursor() as cursor:
            cursor.execute(LOCK)  # in manual transaction management it is Django's cursor that begins
        with self.conn.wrap_database_errors:
            return carry_on(self.conn.connection, self.kind, self.home, work)

    def on_commit(self, ring: Ring) -> bool:
        if not self.conn.in_atomic_block:
            return False  # manual transaction management: Django doesn't know either
        savepoints = set(self.conn.savepoint_ids)
        if not any(hook[0] == savepoints and hook[1] == ring for hook in self.conn.run_on_commit):
            self.conn.on_commit(ring, robust=True)  # if it fails, workers will find the job when they look
        return True

    def _run(self, query: Query) -> str:
        with self.conn.cursor() as cursor:
            cursor.execute(query.percent, [query.parameter])
            answer: str = cursor.fetchone()[0]
            return answer
