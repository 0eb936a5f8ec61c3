"""PostgreSQL's part of core.moves: lock rows, write patches. One transaction does both, so that the locks hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, assert_never

import asyncpg
import msgspec
from msgspec.structs import replace

from rowlock.core.codec import decode
from rowlock.core.flows import ReleaseHold
from rowlock.core.job import LiveKey, Status, own_line
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import (
    COUNTERS,
    Cancel,
    CancelTimeout,
    Decision,
    Delete,
    Due,
    Expire,
    Held,
    Order,
    Patch,
    Requeue,
    Rescue,
    Resume,
    Row,
    Update,
    WaitOrder,
    lined,
    lines,
    move_all,
    patches,
    tally,
)
from rowlock.core.steps import StepPlace
from rowlock.core.times import micros
from rowlock.core.waits import MAX_UNREAD, WaitFacts, read_terms
from rowlock.stores.base import Changed, Moved, changed, moved
from rowlock.stores.postgres.connections import Conflict
from rowlock.stores.postgres.rows import STATUS
from rowlock.stores.postgres.statements import Statements

# A requeue holds its job for so long while another transaction has its key. It is far below the second after which the
# server looks for a deadlock.
_HARDLY_WAIT = "SET LOCAL lock_timeout = '20ms'"
_encode = msgspec.json.Encoder().encode


async def move(connection: Any, sql: Statements, order: Order, ids: Sequence[str]) -> dict[str, Changed] | None:
    """Apply the order to each job that is in the right state, and return the answers, by id. Return None if another
    transaction holds the key of a job to be requeued: nothing was done, and the caller tries again later.

    Taking a key may mean waiting for another transaction. A requeue of several jobs leaves those that have a key
    unanswered: each needs a call of its own, unless all or none are to be moved. A requeue doesn't wait long while it
    holds its jobs. Else other transactions that wait for these jobs could block the transaction that has the key: a
    deadlock.
    """
    keyed: set[str] = set()
    waits = False
    try:
        async with connection.transaction(isolation="read_committed"):
            now, rows = await lock(connection, sql, order, ids)
            if isinstance(order, Requeue):
                sources = MOVES[order.verb].sources
                keyed = {row.id for row in rows if row.has_live_key and row.status in sources}
                if keyed and (len(ids) == 1 or order.is_whole):
                    waits = True
                    await connection.execute(_HARDLY_WAIT)
                    keyed = set()
            decided = await apply(connection, sql, order, now, [row for row in rows if row.id not in keyed])
    except asyncpg.LockNotAvailableError:
        if not waits:  # a lock_timeout of the user's own
            raise
        return None
    answers = {job_id: Changed(job_id, False, None) for job_id in ids if job_id not in keyed}
    return answers | changed(decided)


async def move_due(
    connection: Any, sql: Statements, order: Due, limit: int, after: datetime | None = None
) -> list[Moved]:
    """Apply the order to jobs that are due for it, and return them. `after`: for Resume, the run_at after which to
    begin."""
    async with connection.transaction(isolation="read_committed"):
        now, rows = _read(await _lock_due(connection, sql, order, limit, after))
        if rows and isinstance(order, Rescue):
            order = replace(order, tables=dict(await connection.fetch(sql.rescue_backoff)))
        return moved(await apply(connection, sql, order, now, rows))


async def _lock_due(connection: Any, sql: Statements, order: Due, limit: int, after: datetime | None) -> list[Any]:
    match order:
        case Expire():
            found = await connection.fetch(sql.expire_due, limit)
        case CancelTimeout():
            found = await connection.fetch(sql.cancel_timeout_due, limit, order.grace)
        case Rescue(workers=None):
            found = await connection.fetch(sql.rescue_expired, limit, order.before)
        case Rescue():
            found = await connection.fetch(sql.rescue_workers, limit, list(order.workers or ()))
        case Resume():
            found = await connection.fetch(sql.resume_due, limit, after)
        case _:
            assert_never(order)
    return list(found)


async def lock(connection: Any, sql: Statements, order: Order, ids: Sequence[str]) -> tuple[int, list[Row]]:
    """Lock jobs. Return the database's time, and the jobs in the order of ids. An id that was used twice stands in both
    tables: the live job comes last."""
    twice = order.verb == "delete"
    found = await connection.fetch(sql.lock_jobs, list(ids), order.reads_payload, twice)
    if missing := set(ids) - {row["id"] for row in found}:
        # A job that was completed while the statement waited for its lock is in the archive, by a fresh snapshot.
        found += await connection.fetch(sql.lock_jobs, list(missing), order.reads_payload, twice)
    now, rows = _read(found)
    rows.sort(key=lambda row: (row.id, row.status is not Status.COMPLETED))
    return now, rows


def _read(found: list[Any]) -> tuple[int, list[Row]]:
    return latest(found), [row_of(row, behind=2) for row in found]


def row_of(found: Any, *, behind: int) -> Row:
    """Return the job in a row. Its columns stand behind the first `behind` columns."""
    job_id, topic, status, *rest = found[behind:]
    return Row(job_id, topic, STATUS[status], *rest)


def latest(found: list[Any]) -> int:
    """Return the latest time. It is later than all locks, because the time is read after each lock."""
    return micros(max([row[0] for row in found])) if found else 0


async def apply(connection: Any, sql: Statements, order: Order, now: int, rows: Sequence[Row]) -> list[Decision]:
    """Decide about the rows, and write the decisions."""
    known = await holders(connection, sql, _keys(rows)) if order.takes_key else None
    if isinstance(order, Delete) and rows:
        own = [row.line or own_line(row.id) for row in rows]
        found = await connection.fetch(sql.flow_awaited, own, [row.id for row in rows])
        order = replace(order, awaited=frozenset(job_id for (job_id,) in found))
    if isinstance(order, Requeue) and (free := [row.id for row in rows if row.line is None]):
        rows = lined(rows, {job_id for (job_id,) in await connection.fetch(sql.flow_waited, free)})
    if isinstance(order, ReleaseHold):
        found = await connection.fetch(sql.flow_held, [row.id for row in rows])
        order = replace(order, held=frozenset(job_id for (job_id,) in found))
    if type(order) is Cancel and (templates := [row.template_id for row in rows if row.has_run]):
        found = await connection.fetch(sql.uncancelable, templates)
        order = replace(order, unsupported=frozenset(name for (name,) in found))
    if stepped := [row.id for row in rows if row.step is not None]:
        order = await _with_steps(connection, sql, order, stepped)
    if isinstance(order, WaitOrder):
        order = await _with_facts(connection, sql, order, rows)
    decided = move_all(rows, order, now, known)
    await _write(connection, sql, order, now, patches(decided))
    return decided


async def _with_steps(connection: Any, sql: Statements, order: Order, ids: Sequence[str]) -> Order:
    """Return the order with the facts that it needs about steps of these jobs, by a fresh snapshot. The rows are
    locked, so no run can mark a step from now on."""
    if isinstance(order, CancelTimeout):
        found = await connection.fetch(sql.shielded, ids)
        return replace(order, shielded=frozenset(str(job_id) for (job_id,) in found))
    if not isinstance(order, Update) or not order.reads_steps:
        return order
    steps: dict[str, list[StepPlace]] = {}
    for job_id, *place in await connection.fetch(sql.step_places, ids):
        steps.setdefault(str(job_id), []).append(StepPlace(*place))
    return replace(order, steps=steps)


async def _with_facts(connection: Any, sql: Statements, order: WaitOrder, rows: Sequence[Row]) -> Order:
    """Return the order with the facts that it needs about waits, by a fresh snapshot. A cancel asks about waiting jobs
    only."""
    ids = [row.id for row in rows if row.status is Status.WAITING or not isinstance(order, Cancel)]
    if not ids:
        return order
    name, number = order.callback or (None, None)
    found = await connection.fetch(sql.wait_facts, ids, name, number, order.signal_id, MAX_UNREAD)
    return replace(order, facts={str(job_id): _facts(*row) for job_id, *row in found})


def _facts(
    unread: int, is_known: bool, has_callback: bool, callback: int | None, undoes: bool, terms: str | None
) -> WaitFacts:
    timeout = None if terms is None else read_terms(decode(terms)).timeout
    return WaitFacts(unread, is_known, has_callback, callback, undoes, timeout)


def _keys(rows: Sequence[Row]) -> list[Held]:
    return list({row.live_key for row in rows if row.has_live_key})


async def holders(connection: Any, sql: Statements, keys: Sequence[Held]) -> dict[Held, str]:
    """Return the ids of the live jobs that have these keys, or that are the open jobs of these lines."""
    held: dict[Held, str] = {}
    if plain := [key for key in keys if isinstance(key, LiveKey)]:
        found = await connection.fetch(sql.existing, [None] * len(plain), *map(list, zip(*plain, strict=True)))
        held |= {plain[row["n"] - 1]: str(row["id"]) for row in found}
    if lines_of := [key for key in keys if isinstance(key, str)]:
        held |= {line: str(job_id) for line, job_id in await connection.fetch(sql.debounced, lines_of)}
    return held


async def _write(
    connection: Any, sql: Statements, order: Order, now: int, written: Sequence[tuple[Row, Patch]]
) -> None:
    if not written:
        return
    counts = [
        {"topic": topic} | {name: counted[name] for name in COUNTERS} for topic, counted in tally(written).items()
    ]
    failures = [patch.first_failure for _, patch in written if patch.first_failure is not None]
    audited = written if order.is_audited else []
    [(count,)] = await connection.fetch(
        sql.write_moves,
        _text(_alike(written)),
        _text(counts),
        [fingerprint for fingerprint, _ in failures],
        [at for _, at in failures],
        now,
        order.by,
        order.verb,
        order.reason,
        order.bulk,
        _text([{"job_id": row.id, "topic": row.topic, "data": patch.audit or None} for row, patch in audited]),
        lines(written),
    )
    dropped = [
        (row.id, [step.name for step in patch.dropped_steps], [step.n for step in patch.dropped_steps])
        for row, patch in written
        if patch.dropped_steps
    ]
    if dropped:
        await connection.executemany(sql.drop_steps, dropped)
    if dropping := [row.id for row, patch in written if patch.drops_children]:
        await connection.execute(sql.flow_drop_children, dropping)
    if forgiven := [row.id for row, patch in written if patch.forgives]:
        await connection.execute(sql.flow_forgive, forgiven)
    gone = [row for row, patch in written if patch.status is None]
    if gone:
        await connection.execute(sql.flow_drop_edges, [row.id for row in gone])
    if stepped := [(row.id,) for row in gone if row.step is not None]:
        await connection.executemany(sql.drop_all_steps, stepped)
    # The archive does not say whether a job had signals.
    if signalled := [row.id for row in gone if row.signals or row.status is Status.COMPLETED]:
        await connection.execute(sql.drop_signals, signalled)
    await _write_waits(connection, sql, order, now, written)
    if count != len(written):
        raise Conflict(f"{order.verb}: {len(written) - count} locked jobs are gone")


async def _write_waits(
    connection: Any, sql: Statements, order: Order, now: int, written: Sequence[tuple[Row, Patch]]
) -> None:
    signals = [
        (row.id, patch.columns["signals"], patch.signal.name, patch.signal.id, patch.signal.data, now, order.by)
        for row, patch in written
        if patch.signal is not None
    ]
    if signals:
        await connection.executemany(sql.add_signal, signals)
    _, number = (order.callback if isinstance(order, WaitOrder) else None) or (None, None)
    deadlines = [
        (row.id, list(patch.deadlines), list(patch.deadlines.values()), number)
        for row, patch in written
        if patch.deadlines
    ]
    if deadlines:
        await connection.executemany(sql.set_deadlines, deadlines)


def _alike(written: Sequence[tuple[Row, Patch]]) -> list[list[Any]]:
    """Return the rows, grouped by equal changes, in the form for write_moves.sql."""
    alike: defaultdict[tuple[bool, str | None, str | None], list[Row]] = defaultdict(list)
    for row, patch in written:
        change = None if patch.status is None else _text(_change(patch))
        entry = _text(patch.entry) if patch.entry else None
        alike[row.status is Status.COMPLETED, change, entry].append(row)
    return [
        [" ".join([row.id for row in same]), " ".join([row.place for row in same]), *what]
        for what, same in alike.items()
    ]


def _change(patch: Patch) -> dict[str, Any]:
    return patch.columns | {"to_end": True} if patch.to_end else patch.columns


def _text(value: Any) -> str:
    return _encode(value).decode()
