"""Statements for PostgreSQL on a caller's connection. No driver, no await: see stores/driver_neutral.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from rowlock.core.job import NewJob
from rowlock.errors import ConnectionRefused
from rowlock.stores.base import Enqueued, Home
from rowlock.stores.callers.refusals import another_database, causes, failed, read_only
from rowlock.stores.callers.work import ChangeSchedules, Fence, Insert, InsertFlow, Work
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres import insert_on_conn, schedules
from rowlock.stores.postgres.fence import fence
from rowlock.stores.postgres.flows import insert_flow
from rowlock.stores.postgres.statements import statements_on_conn

T = TypeVar("T")
# The homes that a driver's connection was found to lead to. A connection can't change its database.
_known: WeakKeyDictionary[object, set[Home]] = WeakKeyDictionary()


class _Probe(Struct, frozen=True):
    database: str
    role: str
    read_only: bool
    tables: bool
    allowed: bool | None


_probe = msgspec.json.Decoder(_Probe).decode


def carry(kind: str, home: Home, raw: object, work: Work[T]) -> Queries[T]:
    """Do the work, and return its answer. `raw`: the driver's connection, which is asked only once which database it
    leads to."""
    try:
        if home not in _known.get(raw, ()):
            yield from _introduce(kind, home)
            _known.setdefault(raw, set()).add(home)
        answer: T = yield from _do(home, work)
        return answer
    except Exception as error:
        if refusal := explain(kind, error):
            raise refusal from error
        raise


def _do(home: Home, work: Work[T]) -> Queries[Any]:
    assert home.schema is not None  # noqa: S101 - narrows the type
    if isinstance(work, Insert):
        return insert(home, work.jobs, repeat=work.repeat, notify=work.notify)
    if isinstance(work, InsertFlow):
        return _ringing(home, insert_flow(home.schema, work.flow, repeat=work.repeat), work.notify)
    if isinstance(work, ChangeSchedules):
        return schedules.change(home.schema, work.which, work.decide)
    assert isinstance(work, Fence)  # noqa: S101 - narrows the type
    return fence(home.schema, work.guard)


def insert(home: Home, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> Queries[list[Enqueued]]:
    assert home.schema is not None  # noqa: S101 - narrows the type
    return (yield from _ringing(home, insert_on_conn.insert(home.schema, jobs, repeat=repeat), notify))


def _ringing(home: Home, inserting: Queries[list[Enqueued]], notify: bool) -> Queries[list[Enqueued]]:
    answers = yield from inserting
    if notify and not all(answer.existing for answer in answers):
        texts = statements_on_conn(home.schema or "")
        yield Query(texts.notify_on_conn, f"rowlock_{home.schema}")
    return answers


def _introduce(kind: str, home: Home) -> Queries[None]:
    """Check that it is our database, and that we may write. No statement here can abort the caller's transaction."""
    assert home.schema is not None  # noqa: S101 - narrows the type
    texts = statements_on_conn(home.schema)
    probe = _probe((yield Query(texts.probe_on_conn, home.schema)))
    where = f"database {probe.database}, schema {home.schema}"
    if not probe.tables:
        problem = f"the schema {home.schema} has no rowlock tables there (in the database {probe.database})"
        raise ConnectionRefused(
            kind, "no_tables", f"{problem}: pass a connection to the jobs' database, or run `rowlock migrate` on it"
        )
    if not probe.allowed:
        need = "USAGE on the schema, SELECT on _jobs_meta, SELECT and INSERT on _jobs"
        raise ConnectionRefused(kind, "no_permission", f"its role {probe.role} needs {need} ({where})")
    if (yield Query(texts.identity, "identity")) != home.identity:
        raise another_database(kind, where)
    if probe.read_only:
        raise read_only(kind)


def explain(kind: str, error: Exception) -> ConnectionRefused | None:
    """Return a ConnectionRefused for errors that mean "not on this connection", by the server's code, which every
    driver hands on in its own way. None: another error."""
    for cause in causes(error):
        code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if code == "25P02":
            return failed(kind)
        if code == "25006":
            return read_only(kind)
        if code == "42501":
            need = "SELECT, INSERT, UPDATE and DELETE on all of rowlock's tables"
            return ConnectionRefused(kind, "no_permission", f"its role needs {need} for this. PostgreSQL said: {cause}")
    return None
