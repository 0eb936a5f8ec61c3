"""The last statements of a fenced transaction, on any driver: a check that it is still the same transaction, then the
fence."""

from __future__ import annotations

from rowlock.errors import ConnectionRefused
from rowlock.stores.base import Guard
from rowlock.stores.callers.postgres import explain
from rowlock.stores.callers.refusals import failed
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres.fence import fence

# This setting ends with the transaction: a COMMIT or ROLLBACK inside the block is noticed, even if a BEGIN follows.
MARK = "SET LOCAL rowlock.transaction = 'open'"
_MARKED = "SELECT coalesce(current_setting('rowlock.transaction', true), $1::text)"


def last_statements(kind: str, schema: str, guard: Guard) -> Queries[None]:
    try:
        if (yield Query(_MARKED, "")) != "open":
            raise ConnectionRefused(
                kind,
                "no_transaction",
                "its transaction was ended inside the block: what was committed there was not fenced, and what came "
                "after it is rolled back. Leave COMMIT to the block; to roll back, leave the block with an exception",
            )
        yield from fence(schema, guard)
    except Exception as error:
        refusal = explain(kind, error)
        if refusal is None:
            raise
        if refusal.code == "failed_transaction":
            refusal = failed(kind, "Let the error that did it leave the block, or use a savepoint for what may fail")
        raise refusal from error
