"""The fence: the last statement before the COMMIT of a transaction that belongs to a run. It runs under the write lock,
so its reads stay true until the COMMIT."""

from __future__ import annotations

from sqlite3 import Connection

from rowlock.core.lifecycle import APPLIED
from rowlock.errors import LeaseLost
from rowlock.stores.base import Beat, Guard, Hold
from rowlock.stores.sqlite.settle import look, settle
from rowlock.stores.sqlite.steps import checkpoint


def fence(conn: Connection, now: int, guard: Guard) -> None:
    """Raise LeaseLost if the run has lost its lease. Else store the step's result and complete the job, as the guard
    says."""
    held = True
    if guard.checkpoint is not None:
        held = checkpoint(conn, now, [guard.checkpoint]) != [Hold.LOST]
    if held and guard.completion is not None:
        held = settle(conn, now, [guard.completion]).verdicts == [APPLIED]
    elif held:
        held = look(conn, [Beat(guard.id, guard.version, worker=guard.worker)]) != [Hold.LOST]
    if not held:
        raise LeaseLost(guard.id, guard.version)
