"""The fence: the last statement before the COMMIT of a transaction that belongs to a run. On any driver."""

from __future__ import annotations

import msgspec

from rowlock.core.steps import marks_by_run
from rowlock.errors import LeaseLost
from rowlock.stores.base import Guard
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres.rows import settle_arrays
from rowlock.stores.postgres.statements import statements_on_conn
from rowlock.stores.postgres.steps import checkpoint, read_marked


def fence(schema: str, guard: Guard) -> Queries[None]:
    """Let the run hold its lease until the end of the transaction, or raise LeaseLost.

    A statement of its own locks the row, also before a checkpoint or a completion. A settle that had to wait for the
    lock would miss changes that were committed meanwhile, even a heartbeat.
    """
    asked = {"id": guard.id, "version": guard.version, "worker": guard.worker}
    if (yield Query(_hold(schema), _text(asked))) != "held":
        raise LeaseLost(guard.id, guard.version)
    if guard.checkpoint is not None:
        marked = yield checkpoint(statements_on_conn(schema), marks_by_run([guard.checkpoint]))
        if not all(row.written for row in read_marked(marked).values()):
            raise LeaseLost(guard.id, guard.version)
    if guard.completion is not None:
        settled = yield Query(statements_on_conn(schema).settle_on_conn, _text(settle_arrays([guard.completion])))
        if settled != "applied":
            raise LeaseLost(guard.id, guard.version)


def _hold(schema: str) -> str:
    return statements_on_conn(schema).fence


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
