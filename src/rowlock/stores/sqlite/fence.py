"""The fence: the last statement before the COMMIT of a transaction that belongs to a run. Under the write lock, so
what it reads holds until then."""

from __future__ import annotations

from sqlite3 import Connection

from rowlock.core.lifecycle import APPLIED
from rowlock.errors import LeaseLost
from rowlock.stores.base import Beat, Guard, Hold
from rowlock.stores.sqlite.settle import look, settle


def fence(conn: Connection, now: int, guard: Guard) -> None:
    """The run holds its lease, and is completed if that is asked for; else LeaseLost."""
    if guard.completion is None:
        held = look(conn, [Beat(guard.id, guard.version, worker=guard.worker)]) != [Hold.LOST]
    else:
        held = settle(conn, now, [guard.completion]).verdicts == [APPLIED]
    if not held:
        raise LeaseLost(guard.id, guard.version)
