"""SQLite's part of core.moves: lock rows, write patches. In a transaction, which has the write lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from typing import Any, assert_never

from msgspec.structs import replace

from rowlock.core.codec import decode
from rowlock.core.flows import ReleaseHold
from rowlock.core.job import Status, own_line
from rowlock.core.lifecycle import MAX_HISTORY
from rowlock.core.moves import (
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
from rowlock.core.waits import WaitFacts, callback_name, read_terms, signal_of, step_name
from rowlock.stores.base import Changed, Moved, changed, moved
from rowlock.stores.sqlite.counts import add_moves
from rowlock.stores.sqlite.rows import STATUS, json_text, micros, sql

# The columns of Row. The archive has no status, no fingerprint, no lines and no waits.
_COLUMNS = {name: f"j.{name}" for name in Row._fields} | {
    "events": "j.version + coalesce(json_array_length(j.history), 0) + j.history_dropped",
    "payload": "iif(:payload, j.payload, NULL)",
    "signals": "coalesce(j.signals, 0)",
    "place": "j.n",
}
ROW = ", ".join(_COLUMNS.values())
_ARCHIVED = {
    "status": "'completed'", "fingerprint": "NULL", "line": "NULL", "line_seq": "NULL", "waits_for": "NULL",
    "signals": "0",
}  # fmt: skip
ARCHIVED_ROW = ", ".join((_COLUMNS | _ARCHIVED).values())


def statement(name: str) -> str:
    """Return the text of a statement that answers rows."""
    return sql(name).replace("{row}", ROW).replace("{archived_row}", ARCHIVED_ROW)


def move(conn: Connection, now: int, order: Order, ids: Sequence[str]) -> list[Changed]:
    answers = changed(apply(conn, now, order, lock(conn, order, ids)))
    return [answers.get(job_id) or Changed(job_id, False, None) for job_id in ids]


def move_due(conn: Connection, now: int, order: Due, limit: int) -> list[Moved]:
    most = max(limit, 0)  # to SQLite a negative LIMIT is none at all
    match order:
        case Expire():
            rows = _read(conn, order, "expire_due", limit=most, now=now)
        case Resume():
            rows = _read(conn, order, "resume_due", limit=most, now=now)
        case CancelTimeout():
            rows = _read(conn, order, "cancel_timeout_due", limit=most, now=now, grace=order.grace)
        case Rescue(workers=None):
            expired = now if order.before is None else min(now, micros(order.before))
            rows = _read(conn, order, "rescue_expired", limit=most, now=expired)
        case Rescue():
            rows = _read(conn, order, "rescue_workers", limit=most, workers=json_text(list(order.workers or ())))
        case _:
            assert_never(order)
    if isinstance(order, Rescue):
        tables = {topic: decode(table) for topic, table in conn.execute(sql("rescue_backoff"))}
        order = replace(order, tables=tables)
    return moved(apply(conn, now, order, rows))


def lock(conn: Connection, order: Order, ids: Sequence[str]) -> list[Row]:
    """Return jobs by id, in the order of ids. An id that was used twice stands in both tables: the live job comes
    last."""
    rows = _read(conn, order, "lock_jobs", ids=json_text(list(set(ids))))
    return sorted(rows, key=lambda row: (row.id, row.status is not Status.COMPLETED))


def lock_line(conn: Connection, line: str) -> list[Row]:
    found = conn.execute(statement("lock_line"), {"line": line, "payload": False}).fetchall()
    return [Row(job_id, topic, STATUS[status], *rest) for job_id, topic, status, *rest in found]


def lock_open(conn: Connection, line: str) -> list[Row]:
    """Return the job of this line whose payload a newer enqueue replaces, if there is one."""
    found = conn.execute(statement("debounce_lock"), {"line": line, "payload": False}).fetchall()
    return [Row(job_id, topic, STATUS[status], *rest) for job_id, topic, status, *rest in found]


def _read(conn: Connection, order: Order, name: str, **asked: Any) -> list[Row]:
    found = conn.execute(statement(name), asked | {"payload": order.reads_payload}).fetchall()
    return [Row(job_id, topic, STATUS[status], *rest) for job_id, topic, status, *rest in found]


def apply(conn: Connection, now: int, order: Order, rows: Sequence[Row], *, advances: bool = True) -> list[Decision]:
    """Decide about the rows, and write the decisions. `advances`: then advance the lines that they change."""
    from rowlock.stores.sqlite.lines import advance_lines  # it moves jobs, too

    if isinstance(order, WaitOrder):
        order = replace(order, facts=_wait_facts(conn, order, rows))
    if type(order) is Cancel and (templates := {row.template_id for row in rows if row.has_run}):
        found = conn.execute(sql("uncancelable"), (json_text(sorted(templates)),)).fetchall()
        order = replace(order, unsupported=frozenset(name for (name,) in found))
    if stepped := [row.id for row in rows if row.step is not None]:
        order = _with_steps(conn, now, order, stepped)
    if isinstance(order, Delete):
        order = replace(order, awaited=frozenset(row.id for row in rows if _is_awaited(conn, row)))
    if isinstance(order, Requeue) and (free := [row.id for row in rows if row.line is None]):
        rows = lined(rows, {job_id for (job_id,) in conn.execute(sql("flow_waited"), (json_text(free),)).fetchall()})
    if isinstance(order, ReleaseHold):
        found = conn.execute(sql("flow_held"), (json_text([row.id for row in rows]),)).fetchall()
        order = replace(order, held=frozenset(job_id for (job_id,) in found))
    known = holders(conn, [row.live_key for row in rows if row.has_live_key]) if order.takes_key else None
    decided = move_all(rows, order, now, known)
    written = patches(decided)
    write(conn, now, order, written)
    if advances and (changed_lines := lines(written)):
        advance_lines(conn, now, changed_lines)
    return decided


def _is_awaited(conn: Connection, row: Row) -> bool:
    """Return True if another job of its flow still waits for its end."""
    line = row.line or own_line(row.id)
    return conn.execute(sql("flow_awaited"), (line, row.id)).fetchone() is not None


def _with_steps(conn: Connection, now: int, order: Order, ids: Sequence[str]) -> Order:
    """Return the order with the facts that it needs about steps of these jobs."""
    asked = {"ids": json_text(ids), "now": now}
    if isinstance(order, CancelTimeout):
        found = conn.execute(sql("shielded"), asked).fetchall()
        return replace(order, shielded=frozenset(job_id for (job_id,) in found))
    if not isinstance(order, Update) or not order.reads_steps:
        return order
    steps: defaultdict[str, list[StepPlace]] = defaultdict(list)
    for job_id, *place in conn.execute(sql("step_places"), asked).fetchall():
        steps[job_id].append(StepPlace(*place))
    return replace(order, steps=dict(steps))


def _wait_facts(conn: Connection, order: WaitOrder, rows: Sequence[Row]) -> dict[str, WaitFacts]:
    """Return the facts that the order needs about the waits of these jobs."""
    # A cancel needs facts about waiting jobs only.
    asked = [row for row in rows if row.status is Status.WAITING or not isinstance(order, Cancel)]
    return {row.id: _facts_of(conn, order, row) for row in asked}


def _facts_of(conn: Connection, order: WaitOrder, row: Row) -> WaitFacts:
    signal = signal_of(row.waits_for)
    callback, n = order.callback or (None if signal is None else callback_name(signal), None)
    wait = None if row.waits_for is None else step_name(row.waits_for)
    values = {"id": row.id, "signal_id": order.signal_id, "callback": callback, "n": n, "wait": wait}
    unread, is_known, count, is_endless, deadline, undoes, terms = conn.execute(sql("wait_facts"), values).fetchone()
    return WaitFacts(
        unread=unread,
        is_known=bool(is_known),
        has_callback=count > 0,
        callback=None if is_endless else deadline,
        undoes=bool(undoes),
        timeout=None if terms is None else read_terms(decode(terms)).timeout,
    )


def holders(conn: Connection, keys: Iterable[Held]) -> dict[Held, str]:
    """Return the ids of the live jobs that have these keys, or that are the open jobs of these lines."""
    found: dict[Held, str] = {}
    for key in keys:
        if isinstance(key, str):
            for row in lock_open(conn, key):
                found[key] = row.id
        elif key is not None and key.key is not None:
            holder = conn.execute(sql("insert_same_key"), key).fetchone()
            if holder is not None:
                found[key] = holder[0]
    return found


def write(conn: Connection, now: int, order: Order, written: Sequence[tuple[Row, Patch]]) -> None:
    # Equal patches are written by one statement: 10,000 jobs of a fan-out get the same.
    alike: defaultdict[tuple[tuple[tuple[str, Any], ...], str | None], list[int]] = defaultdict(list)
    for row, patch in written:
        if patch.status is None:
            table = "_jobs_archive" if row.status is Status.COMPLETED else "_jobs"
            conn.execute(f"DELETE FROM {table} WHERE n = ?", (row.place,))  # noqa: S608 - one of our tables
            if row.key is not None:  # a job without a key may have the id of a pruned job that still counts
                conn.execute(sql("once_free"), (row.id,))
            if row.step is not None:
                drop_steps(conn, [row.id])
            drop_signals(conn, [row.id])
            conn.execute(sql("flow_drop_edges"), (row.id,))
        else:
            columns = patch.columns | {"line_seq": next_place(conn)} if patch.to_end else patch.columns
            alike[tuple(columns.items()), json_text(patch.entry) if patch.entry else None].append(row.place)
    conn.executemany(sql("flow_drop_children"), [(row.id,) for row, patch in written if patch.drops_children])
    conn.executemany(sql("flow_forgive"), [(row.id,) for row, patch in written if patch.forgives])
    failures = [patch.first_failure for _, patch in written if patch.first_failure is not None]
    conn.executemany(sql("first_failure"), failures)
    for (change, entry), places in alike.items():
        setting = [f"{name} = :{name}" for name, _ in change] + ([sql("history")] if entry else [])
        values = {"entry": entry, "most": MAX_HISTORY, "places": json_text(places), **dict(change)}
        where = "n IN (SELECT value FROM json_each(:places))"
        conn.execute(f"UPDATE _jobs SET {', '.join(setting)} WHERE {where}", values)  # noqa: S608 - names from core.moves
    for row, patch in written:
        if patch.dropped_steps:
            dropped = [(row.id, step.name, step.n) for step in patch.dropped_steps]
            conn.executemany(sql("drop_step"), dropped)
            conn.executemany(sql("drop_read_signals"), dropped)
        _write_waits(conn, now, order, row, patch)
    add_moves(conn, now, tally(written))
    if order.is_audited:
        _audit(conn, now, order, written)


def drop_steps(conn: Connection, ids: Sequence[str]) -> None:
    """Remove the stored steps of jobs that are gone."""
    conn.execute(sql("drop_all_steps"), (json_text(ids),))


def drop_signals(conn: Connection, ids: Sequence[str]) -> None:
    """Remove the signals of jobs that are gone."""
    conn.execute(sql("drop_all_signals"), (json_text(ids),))


def _write_waits(conn: Connection, now: int, order: Order, row: Row, patch: Patch) -> None:
    if (sent := patch.signal) is not None:
        signal = {"id": row.id, "seq": row.signals + 1, "name": sent.name, "signal_id": sent.id, "data": sent.data}
        conn.execute(sql("signal"), signal | {"now": now, "by": order.by})
    callback = order.callback if isinstance(order, WaitOrder) else None
    for name, deadline in patch.deadlines.items():
        n = callback[1] if callback is not None and callback[0] == name else None
        conn.execute(sql("wait_deadline"), {"id": row.id, "name": name, "n": n, "deadline": deadline})


def next_place(conn: Connection) -> int:
    """Return the next place in any line."""
    (place,) = conn.execute(sql("line_seq")).fetchone()
    return int(place)


def _audit(conn: Connection, now: int, order: Order, written: Sequence[tuple[Row, Patch]]) -> None:
    same = {"at": now, "by": order.by, "action": order.verb, "reason": order.reason, "bulk": order.bulk}
    lines = [{"job_id": row.id, "topic": row.topic, "data": json_text(patch.audit)} for row, patch in written]
    conn.executemany(sql("audit"), [same | line for line in lines])
