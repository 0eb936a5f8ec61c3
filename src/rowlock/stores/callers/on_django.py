"""Django's connection: `django.db.connection`, or one of `django.db.connections`. Nothing of Django is imported."""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued
from rowlock.stores.callers import postgres
from rowlock.stores.callers.base import Query, Ring, SyncCaller, autocommit, drive, failed, refuse_dialect
from rowlock.stores.callers.sqlite import LOCK, explained, insert_on


class DjangoCaller(SyncCaller):
    def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        refuse_dialect(self.kind, self.conn.vendor, self.home)
        if self.conn.needs_rollback:
            raise failed(self.kind, "Leave the atomic() block first")
        if not self.conn.in_atomic_block and self.conn.get_autocommit():
            using = "" if self.conn.alias == "default" else f"using={self.conn.alias!r}"
            raise autocommit(self.kind, f"Use `with transaction.atomic({using}):`")
        if not jobs:
            return []
        self.conn.ensure_connection()
        if self.home.dialect == "postgres":
            raw = self.conn.connection
            steps = postgres.insert(self.kind, self.home, raw, jobs, repeat=repeat, notify=notify)
            return drive(steps, self._run)
        with explained(self.kind), self.conn.cursor() as cursor:
            cursor.execute(LOCK)  # in manual transaction management it is Django's cursor that begins
        with self.conn.wrap_database_errors:
            return insert_on(self.conn.connection, self.kind, self.home, jobs, repeat=repeat)

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
