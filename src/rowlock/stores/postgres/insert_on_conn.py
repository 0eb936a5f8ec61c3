"""enqueue on any driver's connection, in a transaction that is open. No driver, no await: see stores/driver_neutral.py.

Callers' transactions use it, and the store itself for jobs that stand in a line or count once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from rowlock.core.debounce import Slot
from rowlock.core.job import NewJob, Status
from rowlock.core.times import micros, moment
from rowlock.errors import OnceTaken, StoreBusy
from rowlock.stores.base import Enqueued
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres import windows
from rowlock.stores.postgres.statements import Statements, statements_on_conn
from rowlock.stores.windows import by_line, existing

ATTEMPTS = 8  # tries at a key that is taken and freed again
LARGEST = 16 << 20  # bytes of jobs in one statement; PostgreSQL takes a value of 1 GB at most


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
    if_live: str | None = None
    line: str | None = None
    flow_id: str | None = None
    blocked: bool = False
    share: str | None = None


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


_encode = msgspec.json.Encoder().encode
_fresh = msgspec.json.Decoder(_Fresh).decode
_existing = msgspec.json.Decoder(list[tuple[int, str, Status, int, int]]).decode
_ids = msgspec.json.Decoder(list[str]).decode
_holders = msgspec.json.Decoder(dict[str, str]).decode


def insert(schema: str, jobs: Sequence[NewJob], *, repeat: bool) -> Queries[list[Enqueued]]:
    """Insert jobs, and return the answers. Jobs in a line are blocked at first: `advance` (lines.py) unblocks the
    head."""
    texts = statements_on_conn(schema)
    if any([job.debounce or job.throttle for job in jobs]):  # noqa: C419 - a generator takes twice as long
        return (yield from _insert_in_windows(texts, jobs, repeat))
    return (yield from _insert_lined(texts, jobs, repeat))


def _insert_lined(texts: Statements, jobs: Sequence[NewJob], repeat: bool) -> Queries[list[Enqueued]]:
    answers = yield from _insert(texts, jobs, repeat)
    if lines := {job.line for job in jobs if job.line is not None and job.if_live is not None}:
        yield Query(texts.note_lines_on_conn, _text(sorted(lines)))
    yield from _count_once(texts, jobs, answers)
    return answers


def _insert_in_windows(texts: Statements, jobs: Sequence[NewJob], repeat: bool) -> Queries[list[Enqueued]]:
    """Insert jobs of which some are throttled or debounced. Every batch takes its locks in the same order: throttled
    keys, other keys, lines with debounce."""
    throttled = yield from windows.lock_throttles(texts, jobs)
    answers = yield from _standing(texts, jobs, throttled.held)
    rest = [n for n, job in enumerate(jobs) if n not in throttled.passed and job.debounce is None]
    new = yield from _insert_lined(texts, [jobs[n] for n in rest], repeat)
    answers |= dict(zip(rest, new, strict=True))
    yield from windows.write_throttles(texts, jobs, answers)
    # Throttled jobs behind the job of the same batch that was made: that job answers.
    answers |= {n: existing(answers[first]) for n, first in throttled.behind.items()}
    answers |= yield from _debounce(texts, jobs, repeat)
    return [answers[n] for n in range(len(jobs))]


def _standing(texts: Statements, jobs: Sequence[NewJob], held: dict[int, Slot]) -> Queries[dict[int, Enqueued]]:
    """Return the answers of throttled jobs, from the jobs that hold their throttles."""
    if not held:
        return {}
    asked = [_Asked(slot.job_id or "", n) for n, slot in held.items()]
    found = yield from _existing_jobs(texts, asked)
    return {n: found.get(n) or windows.gone(slot) for n, slot in held.items()}


def _debounce(texts: Statements, jobs: Sequence[NewJob], repeat: bool) -> Queries[dict[int, Enqueued]]:
    """Replace the payloads of jobs that wait in the lines, and insert jobs into lines in which no job waits."""
    todo = [n for n, job in enumerate(jobs) if job.debounce is not None]
    answers: dict[int, Enqueued] = {}
    if repeat and todo:  # a job that exists is not replaced by itself
        answers |= yield from _existing_jobs(texts, [_Asked(jobs[n].id, n) for n in todo])
    for _ in range(ATTEMPTS):
        groups = by_line(jobs, [n for n in todo if n not in answers])
        if not groups:
            return answers
        answers |= yield from windows.replace_waiting(texts, groups)
        fresh = [group for group in groups if group.numbers[0] not in answers]
        placed = [group.job for group in fresh]
        numbers = list(range(len(placed)))
        new: dict[int, Enqueued] = {}
        for part, parameter in _batches(placed, numbers):
            new |= yield from _insert_new(texts, placed, part, parameter, repeat)
        if new:
            yield Query(texts.note_lines_on_conn, _text(sorted(placed[n].line or "" for n in new)))
        taken = [n for n in numbers if n not in new]
        if taken:  # by the id; else another transaction has come first, and the next look finds its job
            new |= yield from _existing_jobs(texts, [_Asked(placed[n].id, n) for n in taken])
        for n, answer in new.items():
            answers |= fresh[n].answers(answer)
    raise StoreBusy(
        f"other enqueues with debounce came first {ATTEMPTS} times: roll back your transaction and try again"
    )


def _count_once(texts: Statements, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> Queries[None]:
    """Note the keys that count once. If one of them has had its job, take all jobs back and raise OnceTaken: the caller
    may go on with its transaction."""
    asked = [(job, answer) for job, answer in zip(jobs, answers, strict=True) if job.once is not None]
    if not asked:
        return
    new = {job.once: job.id for job, answer in asked if answer.id == job.id}
    yield Query(texts.once_on_conn, _text(new))
    held = _holders((yield Query(texts.once_held_on_conn, _text(list(new)))))
    for job, answer in asked:
        first = held.get(job.once or "", answer.id)
        if first != job.id:
            yield Query(texts.once_undo_on_conn, _text([one.id for one in answers if not one.existing]))
            raise OnceTaken(job.topic, job.key or "", first)


def _insert(texts: Statements, jobs: Sequence[NewJob], repeat: bool) -> Queries[list[Enqueued]]:
    answers: dict[int, Enqueued] = {}
    # In the order in which the statement sorts them, in case they need several statements.
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
        # The job that held the key ended between our INSERT and our look: the key is free again.
    raise StoreBusy(
        f"the key {jobs[todo[0]].key!r} was taken and freed {ATTEMPTS} times: roll back your transaction and try again"
    )


def _insert_new(
    texts: Statements, jobs: Sequence[NewJob], part: list[int], parameter: str, repeat: bool
) -> Queries[dict[int, Enqueued]]:
    """Insert a part of the jobs, and return the new ones, by number."""
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
            status = Status.BLOCKED if job.is_blocked else Status.PENDING
            new[n] = Enqueued(job.id, False, status, job.run_at or now + timedelta(seconds=job.delay), now)
    return new


def _answering(texts: Statements, jobs: Sequence[NewJob], taken: list[int]) -> Queries[dict[int, Enqueued]]:
    """Return the jobs that existed before, by number. A job whose key has come free meanwhile is left out."""
    return (yield from _existing_jobs(texts, [_asked(n, jobs[n]) for n in taken]))


def _existing_jobs(texts: Statements, asked: Sequence[_Asked]) -> Queries[dict[int, Enqueued]]:
    found = _existing((yield Query(texts.existing_on_conn, _text(asked))))
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
        n, job.id, job.topic, msgspec.Raw(job.payload.encode()), job.priority, job.delay, job.template_version,
        job.max_retries, job.timeout, _micros(job.run_at), _micros(job.expires_at), job.key, job.scope, job.scope_id,
        job.tags or None, job.trace, job.if_live, job.line, job.flow_id, job.is_blocked,
        job.share,
    )  # fmt: skip


def _joined(texts: list[bytes]) -> str:
    return f"[{b','.join(texts).decode()}]"


def _text(value: object) -> str:
    return _encode(value).decode()


def _micros(at: datetime | None) -> int | None:
    return None if at is None else micros(at)
