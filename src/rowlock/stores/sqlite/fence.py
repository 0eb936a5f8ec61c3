"""The fence: the last statement before the COMMIT of a transaction that belongs to a run. Under the write lock, so
what it reads holds until then."""

from __future__ import annotations

from sqlite3 import Connection

from rowlock.core.lifecycle import APPLIED
from rowlock.errors import LeaseLost
from rowlock.stores.base import Beat, Guard, Hold
from rowlock.stores.sqlite.settle import look, settle
from rowlock.stores.sqlite.steps import checkpoint


def fence(conn: Connection, now: int, guard: Guard) -> None:
    """The run holds its lease, and what is asked for is done: a step's result is stored, the job is completed. Else
    LeaseLost."""
    held = True
    if guard.checkpoint is not None:
        held = checkpoint(conn, now, [guard.checkpoint]) != [Hold.LOST]
    if held and guard.completion is not None:
        held = settle(conn, now, [guard.completion]).verdicts == [APPLIED]
    elif held:
        held = look(conn, [Beat(guard.id, guard.version, worker=guard.worker)]) != [Hold.LOST]
    if not held:
        raise LeaseLost(guard.id, guard.version)
