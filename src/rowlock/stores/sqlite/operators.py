"""What operators do: cancel, requeue, update, delete, pause, resume. Each also writes the audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from sqlite3 import Connection
from typing import Any, NamedTuple

from msgspec import UNSET, Struct

from rowlock.core.codec import decode
from rowlock.core.job import Status
from rowlock.core.lifecycle import MOVES
from rowlock.stores.base import Changed, Edit
from rowlock.stores.sqlite.counts import count
from rowlock.stores.sqlite.rollups import note_returned
from rowlock.stores.sqlite.rows import STATUS, append_history, entry, json_text, micros, span, sql


class Order(Struct, frozen=True):
    """Who wants what, when, and why."""

    action: str
    now: int
    by: str
    reason: str | None
    bulk: str | None = None

    def entry(self, event: str, status: Status, version: int, **rest: Any) -> dict[str, Any]:
        return entry(self.now, event, status, version, by=self.by, reason=self.reason, **rest)


class _Row(NamedTuple):
    id: str
    n: int
    topic: str
    status: str
    version: int
    scope: str | None
    scope_id: str | None
    key: str | None
    ready: int
    priority: int
    run_at: int
    tags: str | None


_Done = tuple[Changed, dict[str, Any]]  # the answer, and data for the audit


def _operate(conn: Connection, order: Order, ids: Sequence[str], act: Callable[[_Row], _Done]) -> list[Changed]:
    """Do one thing to each job that is in the right state. In the order of ids: of two rivals the older wins."""
    found = conn.execute(sql("jobs"), {"ids": json_text(list(set(ids)))}).fetchall()
    answers = {}
    for row in map(_Row._make, sorted(found)):
        if STATUS[row.status] not in MOVES[order.action].sources:
            answers[row.id] = Changed(row.id, False, STATUS[row.status])
            continue
        answer, data = act(row)
        answers[row.id] = answer
        if answer.done:
            _audit(conn, order, data, job_id=row.id, topic=row.topic)
    return [answers.get(job_id) or Changed(job_id, False, None) for job_id in ids]


def _audit(conn: Connection, order: Order, data: dict[str, Any], *, job_id: str | None, topic: str) -> None:
    where = {"job_id": job_id, "topic": topic, "bulk": order.bulk}
    what = {"at": order.now, "by": order.by, "action": order.action, "reason": order.reason, "data": json_text(data)}
    conn.execute(sql("audit"), what | where)


def cancel(conn: Connection, order: Order, ids: Sequence[str]) -> list[Changed]:
    def act(row: _Row) -> _Done:
        running = row.status == "processing"
        status = Status.CANCEL_REQUESTED if running else Status.CANCELLED
        now = order.now
        change = {"n": row.n, "now": now, "status": status, "reason": order.reason}
        conn.execute(sql("cancel"), change | {"finished_at": None if running else now})
        append_history(conn, [(row.n, order.entry(status, status, row.version))])
        count(conn, now, [(row.topic, status, None)])
        return Changed(row.id, True, status), {}

    return _operate(conn, order, ids, act)


def requeue(
    conn: Connection,
    order: Order,
    ids: Sequence[str],
    edit: Edit,
    version: int | None = None,
    *,
    undo: bool = False,
) -> list[Changed]:
    """`undo`: of a cancel. Their time, retries and expiry stay what they were."""
    wanted = _wanted(edit, order.now)

    def act(row: _Row) -> _Done:
        if version is not None and row.version != version:
            return Changed(row.id, False, STATUS[row.status]), {}
        holder = conn.execute(sql("insert_same_key"), (row.topic, row.scope, row.scope_id, row.key)).fetchone()
        if holder is not None:
            return Changed(row.id, False, STATUS[row.status], holder[0]), {}
        before = _before(conn, row, wanted)
        run_at = wanted.get("run_at", row.run_at if undo else order.now)
        change = {"payload": None} | before | wanted | {"run_at": run_at, "ready": run_at <= order.now}
        conn.execute(sql("requeue_first_failure"), {"n": row.n})
        conn.execute(sql("requeue"), change | {"n": row.n, "now": order.now, "undo": undo})
        more = {"changed": sorted(wanted)} if wanted else {}
        append_history(conn, [(row.n, order.entry("requeued", Status.PENDING, row.version, **more))])
        count(conn, order.now, [(row.topic, STATUS[row.status], None)], -1)
        return Changed(row.id, True, Status.PENDING), _compared(before, wanted) if wanted else {}

    return _operate(conn, order, ids, act)


def update(conn: Connection, order: Order, ids: Sequence[str], edit: Edit) -> list[Changed]:
    wanted = _wanted(edit, order.now)

    def act(row: _Row) -> _Done:
        before = _before(conn, row, wanted)
        ready = wanted["run_at"] <= order.now if "run_at" in wanted else row.ready
        change = {"payload": None} | before | wanted | {"n": row.n, "now": order.now, "ready": ready}
        conn.execute(sql("update"), change)
        append_history(conn, [(row.n, order.entry("updated", Status.PENDING, row.version, changed=sorted(wanted)))])
        return Changed(row.id, True, Status.PENDING), _compared(before, wanted)

    return _operate(conn, order, ids, act)


def _before(conn: Connection, row: _Row, wanted: dict[str, Any]) -> dict[str, Any]:
    """The columns that an edit may change; the payload, which may be large, only if it does."""
    before = {"priority": row.priority, "run_at": row.run_at, "tags": row.tags}
    if "payload" in wanted:
        (before["payload"],) = conn.execute(sql("update_payload"), (row.n,)).fetchone()
    return before


def _wanted(edit: Edit, now: int) -> dict[str, Any]:
    """The columns to change, as SQLite keeps them."""
    wanted: dict[str, Any] = {}
    if edit.priority is not UNSET:
        wanted["priority"] = edit.priority
    if edit.run_at is not UNSET:
        wanted["run_at"] = micros(edit.run_at)
    if edit.delay is not UNSET:
        wanted["run_at"] = now + span(edit.delay)
    if edit.payload is not UNSET:
        wanted["payload"] = edit.payload
    if edit.tags is not UNSET:
        wanted["tags"] = json_text(edit.tags) if edit.tags else None
    return wanted


def _compared(before: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """For the audit."""
    changed = sorted(wanted)
    return {"before": _plain(before, changed), "after": _plain(wanted, changed)}


def _plain(columns: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """As it stands in the audit's JSON."""
    plain = {name: columns[name] for name in names}
    if "payload" in plain:
        plain["payload"] = decode(plain["payload"])
    if "tags" in plain:
        plain["tags"] = decode(plain["tags"] or "[]")
    return plain


def delete(conn: Connection, order: Order, ids: Sequence[str]) -> list[Changed]:
    def act(row: _Row) -> _Done:
        conn.execute(sql("delete_archived" if row.status == "completed" else "delete"), (row.n,))
        if row.status == "pending":
            note_returned(conn, order.now, row.topic, deleted=1)
        return Changed(row.id, True, STATUS[row.status]), {"status": row.status}

    return _operate(conn, order, ids, act)


def pause(conn: Connection, order: Order, topic: str, until: datetime | None) -> None:
    end = None if until is None else micros(until)
    conn.execute(sql("pause"), {"topic": topic, "now": order.now, "until": end, "reason": order.reason, "by": order.by})
    _audit(conn, order, {} if end is None else {"until": end}, job_id=None, topic=topic)


def resume(conn: Connection, order: Order, topic: str) -> bool:
    if conn.execute(sql("resume"), {"topic": topic, "now": order.now}).rowcount == 0:
        return False
    _audit(conn, order, {}, job_id=None, topic=topic)
    return True
