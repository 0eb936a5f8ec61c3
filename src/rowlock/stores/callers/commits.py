"""Rings after the commit of a SQLAlchemy Connection.

SQLAlchemy's event "commit" comes before the COMMIT, when a woken worker would find nothing. The Session's
"after_commit" also comes for savepoints, and for sessions inside of an outer transaction. So this module watches the
commit of this one Connection, for this one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, NestedTransaction, RootTransaction

from rowlock.stores.callers.base import Ring

log = logging.getLogger("rowlock")


def ring_after_commit(conn: Connection, ring: Ring) -> bool:
    """Call `ring` once, after the outermost commit; not if the transaction, or the current savepoint, is rolled back.
    Return False if the commit can't be watched."""
    root = conn.get_transaction()
    if not isinstance(root, RootTransaction) or hasattr(root, "xid") or not hasattr(conn, "_commit_impl"):
        return False  # no transaction, two phases, or an unknown SQLAlchemy: polling finds the job
    watch = getattr(conn._commit_impl, "__self__", None)
    if isinstance(watch, _Watch) and watch.root is not root:
        watch.end()
    if not isinstance(watch, _Watch) or watch.root is not root:
        watch = _Watch(conn, root)
    watch.add(ring, conn.get_nested_transaction())
    return True


class _Watch:
    def __init__(self, conn: Any, root: RootTransaction) -> None:
        self.root = root
        self._conn = conn
        self._rings: list[tuple[Ring, NestedTransaction | None]] = []
        self._commit_impl: Callable[[], None] = conn._commit_impl
        self._events: dict[str, Callable[..., None]] = {
            "rollback_savepoint": self._savepoint_rolled_back,
            "release_savepoint": self._savepoint_released,
        }
        conn._commit_impl = self._commit  # on this object only
        for name, function in self._events.items():
            event.listen(conn, name, function)

    def add(self, ring: Ring, savepoint: NestedTransaction | None) -> None:
        if (ring, savepoint) not in self._rings:
            self._rings.append((ring, savepoint))

    def end(self) -> None:
        if self._conn.__dict__.get("_commit_impl") == self._commit:
            del self._conn._commit_impl
        for name, function in self._events.items():
            event.remove(self._conn, name, function)
        self._events = {}
        self._rings = []

    def _commit(self) -> None:
        self._commit_impl()
        ours = self._conn.get_transaction() is self.root  # another transaction means that ours was rolled back
        rings = list(dict.fromkeys(ring for ring, _ in self._rings)) if ours else []
        self.end()
        for ring in rings:
            try:
                ring()
            except Exception:
                log.exception("the doorbell failed after a commit; workers will find the job when they look")

    def _savepoint_rolled_back(self, conn: Connection, name: str, context: None) -> None:
        gone = conn.get_nested_transaction()
        self._rings = [(ring, savepoint) for ring, savepoint in self._rings if savepoint is None or savepoint != gone]

    def _savepoint_released(self, conn: Connection, name: str, context: None) -> None:
        released = conn.get_nested_transaction()
        outer: Any = getattr(released, "_previous_nested", None)
        self._rings = [(ring, outer if savepoint == released else savepoint) for ring, savepoint in self._rings]
