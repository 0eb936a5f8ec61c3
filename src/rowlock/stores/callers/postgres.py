"""Statements for PostgreSQL on a caller's connection. No driver, no await: see stores/driver_neutral.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from rowlock.core.job import NewJob, Status
from rowlock.core.times import micros, moment
from rowlock.errors import ConnectionRefused, StoreBusy
from rowlock.stores.base import Enqueued, Home
from rowlock.stores.callers.refusals import another_database, causes, failed, read_only
from rowlock.stores.callers.work import Fence, Insert, Work
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres.fence import fence
from rowlock.stores.postgres.statements import Statements, statements_on_conn

T = TypeVar("T")
ATTEMPTS = 8  # at a key that comes and goes
LARGEST = 16 << 20  # bytes of jobs in one statement; PostgreSQL takes a value of 1 GB at most

# Which homes a driver's connection has been found to lead to. It can't change its database.
_known: WeakKeyDictionary[object, set[Home]] = WeakKeyDictionary()


class _Row(Struct, frozen=True, omit_defaults=True):
    """A job as insert_on_conn.sql reads it; what is left out is NULL."""

    n: int
    id: str
    topic: str
    payload: msgspec.Raw
    priority: int
    delay: float
    template_version: int
    max_retries: int
    timeout: float
    run_at: int | None = None
    expires_at: int | None = None
    key: str | None = None
    scope: str | None = None
    scope_id: str | None = None
    tags: tuple[str, ...] | None = None
    trace: str | None = None


class _Asked(Struct, frozen=True, omit_defaults=True):
    id: str
    n: int = -1
    topic: str | None = None
    scope: str | None = None
    scope_id: str | None = None
    key: str | None = None


class _Fresh(Struct, frozen=True):
    now: int
    ids: list[str] | None  # None: all of them


class _Probe(Struct, frozen=True):
    database: str
    role: str
    read_only: bool
    tables: bool
    allowed: bool | None


_encode = msgspec.json.Encoder().encode
_fresh = msgspec.json.Decoder(_Fresh).decode
_probe = msgspec.json.Decoder(_Probe).decode
_existing = msgspec.json.Decoder(list[tuple[int, str, Status, int, int]]).decode
_ids = msgspec.json.Decoder(list[str]).decode


def carry(kind: str, home: Home, raw: object, work: Work[T]) -> Queries[T]:
    """`raw`: the driver's connection, which is asked only once where it leads."""
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
    assert isinstance(work, Fence)  # noqa: S101 - narrows the type
    return fence(home.schema, work.guard)


def insert(home: Home, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> Queries[list[Enqueued]]:
    assert home.schema is not None  # noqa: S101 - narrows the type
    texts = statements_on_conn(home.schema)
    answers = yield from _insert(texts, jobs, repeat)
    if notify and not all(answer.existing for answer in answers):
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


def _insert(texts: Statements, jobs: Sequence[NewJob], repeat: bool) -> Queries[list[Enqueued]]:
    answers: dict[int, Enqueued] = {}
    # In the order in which the statement sorts them, should they need more than one.
    todo = sorted(range(len(jobs)), key=lambda n: _order(n, jobs[n]))
    for _ in range(ATTEMPTS):
        taken: list[int] = []
        for part, parameter in _batches(jobs, todo):
            new = yield from _insert_new(texts, jobs, part, parameter, repeat)
            answers |= new
            taken += [n for n in part if n not in new]
        if taken:
            answers |= yield from _answering(texts, jobs, taken)
        todo = [n for n in taken if n not in answers]
        if not todo:
            return [answers[n] for n in range(len(jobs))]
        # Whoever held the key ended between our INSERT and our look: it is free again.
    raise StoreBusy(
        f"the key {jobs[todo[0]].key!r} was taken and freed {ATTEMPTS} times: roll back your transaction and try again"
    )


def _insert_new(
    texts: Statements, jobs: Sequence[NewJob], part: list[int], parameter: str, repeat: bool
) -> Queries[dict[int, Enqueued]]:
    """Those that are new."""
    answer = _fresh((yield Query(texts.insert_on_conn, parameter)))
    fresh = {jobs[n].id for n in part} if answer.ids is None else set(answer.ids)
    if repeat and fresh:
        fresh -= set(_ids((yield Query(texts.insert_undo_on_conn, _text([_Asked(job_id) for job_id in fresh])))))
    now = moment(answer.now)
    new = {}
    for n in part:
        job = jobs[n]
        if job.id in fresh:
            fresh.remove(job.id)  # the same id again in this batch is answered by the first
            new[n] = Enqueued(job.id, False, Status.PENDING, job.run_at or now + timedelta(seconds=job.delay), now)
    return new


def _answering(texts: Statements, jobs: Sequence[NewJob], taken: list[int]) -> Queries[dict[int, Enqueued]]:
    """The jobs that were there before; those whose key has come free meanwhile are missing."""
    asked = _text([_asked(n, jobs[n]) for n in taken])
    found = _existing((yield Query(texts.existing_on_conn, asked)))
    return {
        n: Enqueued(job_id, True, status, moment(run_at), moment(created))
        for n, job_id, status, run_at, created in found
    }


def _asked(n: int, job: NewJob) -> _Asked:
    return _Asked(job.id, n, job.topic, job.scope, job.scope_id, job.key)


def _order(n: int, job: NewJob) -> tuple[str, str, str, str, int]:
    return job.topic, job.key or "", job.scope or "", job.scope_id or "", n


def _batches(jobs: Sequence[NewJob], numbers: list[int]) -> Iterator[tuple[list[int], str]]:
    part: list[int] = []
    texts: list[bytes] = []
    size = 0
    for n in numbers:
        text = _encode(_row(n, jobs[n]))
        if part and size + len(text) > LARGEST:
            yield part, _joined(texts)
            part, texts, size = [], [], 0
        part.append(n)
        texts.append(text)
        size += len(text)
    if part:
        yield part, _joined(texts)


def _row(n: int, job: NewJob) -> _Row:
    return _Row(
        n, job.id, job.topic, msgspec.Raw(job.payload.encode()), job.priority, job.delay, job.template_version or 0,
        job.max_retries, job.timeout, _micros(job.run_at), _micros(job.expires_at), job.key, job.scope, job.scope_id,
        job.tags or None, job.trace,
    )  # fmt: skip


def _joined(texts: list[bytes]) -> str:
    return f"[{b','.join(texts).decode()}]"


def _text(value: object) -> str:
    return _encode(value).decode()


def _micros(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


def explain(kind: str, error: Exception) -> ConnectionRefused | None:
    """Errors that say: not on this connection. By the server's code, which every driver hands on in its own way."""
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
