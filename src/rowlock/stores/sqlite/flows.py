"""Flows: the questions of `advance` (stores/flows.py), and the verbs about flows. All of it runs under the write
lock."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any, assert_never

from msgspec.structs import replace

from rowlock.core.codec import decode
from rowlock.core.flows import Edge, Ended, FlowRow, NewChildren, NewFlow
from rowlock.core.job import LIVE, own_line
from rowlock.core.moves import Row
from rowlock.stores.base import Beat, Enqueued, Hold
from rowlock.stores.flows import (
    Advanced,
    Apply,
    Ask,
    CountEdges,
    FindEdges,
    FindWatched,
    FlowGraph,
    LockJobs,
    ReadEdges,
    ReadPairs,
    ReadParents,
    ReadPayloads,
    ReadStarted,
    StoredEdges,
    WriteEdges,
    advancing,
    child_edges,
    edge_data,
    edge_of,
    ended_lines,
    refuse_missing,
    refuse_taken,
)
from rowlock.stores.sqlite import moves
from rowlock.stores.sqlite.rows import STATUS, json_text, moment, sql

_ALL = 1_000_000_000
_HOUR = 3_600_000_000


def advance(conn: Connection, now: int, lines: Sequence[str]) -> Advanced:
    steps = advancing(lines, _ALL)
    try:
        ask = next(steps)
        while True:
            ask = steps.send(_answer(conn, now, ask))
    except StopIteration as end:
        advanced: Advanced = end.value
        return advanced


def _answer(conn: Connection, now: int, ask: Ask) -> Any:
    match ask:
        case ReadStarted(lines):
            return [pair for line in lines for pair in conn.execute(sql("flow_started"), (line,)).fetchall()]
        case ReadParents(lines, ids):
            asked = {"lines": json_text(lines), "ids": json_text(ids)}
            return {job_id: Ended(*rest) for job_id, *rest in conn.execute(sql("flow_parents"), asked).fetchall()}
        case FindEdges(lines, parents, limit):
            found = conn.execute(sql("flow_children"), (json_text(lines),)).fetchall()
            # Not in SQL, where a join of the parents takes 18 ms for 500 of them.
            edges = [(edge_of(row), bool(row[-1])) for row in found if row[1] in parents]
            new = [(edge, alone) for edge, alone in edges if not parents[edge.parent].is_known(edge.ended)]
            return sorted(new, key=lambda one: (one[0].child, one[0].parent))[:limit]
        case LockJobs(ids):
            return moment(now), _rows(conn, ids)
        case ReadPayloads(ids):
            return dict(conn.execute(sql("flow_payloads"), (json_text(ids),)).fetchall())
        case ReadEdges(children):
            return _edges(conn, children)
        case ReadPairs(pairs):
            return [edge_of(row) for row in conn.execute(sql("flow_edges_between"), (json_text(pairs),)).fetchall()]
        case CountEdges(children):
            counted = conn.execute(sql("flow_count_edges"), {"ids": json_text(children)})
            return {(child, call): (total, waits) for child, call, total, waits in counted.fetchall()}
        case FindWatched(lines):
            return {line for (line,) in conn.execute(sql("flow_watched"), (json_text(lines),)).fetchall()}
        case WriteEdges(edges):
            changes = [(e.fills, e.ended, e.verdict, e.result, e.error, e.child, e.parent) for e in edges]
            conn.executemany(sql("flow_write_edge"), changes)
            return None
        case Apply(order, rows):
            return moves.apply(conn, now, order, rows, advances=False)
        case _:
            assert_never(ask)


def _rows(conn: Connection, ids: Sequence[str]) -> list[Row]:
    asked = {"ids": json_text(ids), "payload": False}
    found = conn.execute(moves.statement("lock_jobs"), asked).fetchall()
    return [Row(job_id, topic, STATUS[status], *rest) for job_id, topic, status, *rest in found]


def _edges(conn: Connection, children: Sequence[str]) -> list[Edge]:
    return [edge_of(row) for row in conn.execute(sql("flow_edges"), {"ids": json_text(children)}).fetchall()]


def edges_of(conn: Connection, children: Sequence[str]) -> dict[str, StoredEdges]:
    found: dict[str, StoredEdges] = {}
    for edge in _edges(conn, list(set(children))):
        found.setdefault(edge.child, StoredEdges([])).items.append(edge)
    return found


def insert_flow(conn: Connection, now: int, flow: NewFlow, *, repeat: bool = False) -> list[Enqueued]:
    from rowlock.stores.sqlite.insert import insert  # it advances lines, too
    from rowlock.stores.sqlite.lines import advance_lines

    conn.execute("SAVEPOINT rowlock_flow")  # a caller may go on with its transaction after an error
    try:
        lines, ended = _watch_outside(conn, flow)
        answers = insert(conn, now, flow.jobs, repeat=repeat)
        if refuse_taken(flow.jobs, answers):
            return answers
        nodes = json_text([[job.id, name] for job, name in zip(flow.jobs, flow.nodes, strict=True)])
        row = {"id": flow.id, "name": flow.name, "by": flow.by, "jobs": len(flow.jobs), "nodes": nodes}
        conn.execute(sql("flow_insert"), row | {"now": now, "more": 0})
        edges = [edge_data(replace(one, line=lines.get(one.parent, one.line))) for one in flow.edges]
        conn.executemany(sql("flow_insert_edge"), edges)
        started = advance_lines(conn, now, ended)
    except BaseException:
        conn.execute("ROLLBACK TO rowlock_flow")
        raise
    finally:
        conn.execute("RELEASE rowlock_flow")
    return [replace(one, status=STATUS["pending"]) if one.id in started else one for one in answers]


def _watch_outside(conn: Connection, flow: NewFlow) -> tuple[dict[str, str], list[str]]:
    """Mark existing parents, so that their ends are noted. Return their lines by id, and the lines of those that have
    ended."""
    found = conn.execute(sql("flow_outside"), {"ids": json_text(flow.outside)}).fetchall() if flow.outside else []
    refuse_missing(flow, [job_id for job_id, _, _ in found])
    lines = {job_id: line or own_line(job_id) for job_id, _, line in found}
    conn.executemany(sql("flow_watch"), [(lines[job_id], job_id) for job_id, _, line in found if line is None])
    return lines, [lines[job_id] for job_id, status, _ in found if STATUS[status] not in LIVE]


def start_children(conn: Connection, now: int, children: NewChildren) -> tuple[Hold, list[Enqueued]]:
    from rowlock.stores.sqlite.insert import insert
    from rowlock.stores.sqlite.lines import advance_lines
    from rowlock.stores.sqlite.settle import look

    [hold] = look(conn, [Beat(children.id, children.version, worker=children.worker)])
    if hold is not Hold.KEPT:
        return hold, []
    owned = {"id": children.id, "flow_id": children.flow_id, "line": own_line(children.id)}
    (line,) = conn.execute(sql("flow_own"), owned).fetchone()
    answers = insert(conn, now, children.jobs, repeat=True)
    refuse_taken(children.jobs, answers)
    new = sum(not answer.existing for answer in answers)
    row = {"id": children.flow_id, "name": children.name, "by": children.by, "jobs": new + 1, "nodes": "[]"}
    conn.execute(sql("flow_insert"), row | {"now": now, "more": new})
    conn.executemany(sql("flow_insert_edge"), [edge_data(one) for one in child_edges(children, line)])
    advance_lines(conn, now, ended_lines(children, answers))
    return hold, answers


def flows(
    conn: Connection, ids: Sequence[str] | None, before: str | None, limit: int, name: str | None
) -> list[FlowRow]:
    asked = {"ids": None if ids is None else json_text(ids), "before": before, "limit": limit, "name": name}
    return [_flow(conn, row) for row in conn.execute(sql("flows"), asked).fetchall()]


def _flow(conn: Connection, row: tuple[Any, ...]) -> FlowRow:
    flow_id, name, by, jobs, created = row
    counts: dict[str, int] = {}
    untaken = held = 0
    for status, count, not_taken, holds in conn.execute(sql("flow_counts"), {"id": flow_id}).fetchall():
        counts[status] = count
        untaken += not_taken or 0
        held += holds or 0
    return FlowRow(
        id=flow_id,
        name=name,
        by=by,
        jobs=jobs,
        created=moment(created),
        counts=counts,
        untaken=untaken,
        held=held,
        moving=conn.execute(sql("flow_moving"), {"id": flow_id}).fetchone()[0] if held else 0,
    )


def graph(conn: Connection, flow_id: str) -> FlowGraph | None:
    found = flows(conn, [flow_id], None, 1, None)
    if not found:
        return None
    [(nodes,)] = conn.execute(sql("flow_nodes"), (flow_id,)).fetchall()
    edges = [edge_of(row) for row in conn.execute(sql("flow_edges_of_flow"), (flow_id,)).fetchall()]
    jobs = {job_id: STATUS[status] for job_id, status in conn.execute(sql("flow_jobs"), {"id": flow_id}).fetchall()}
    return FlowGraph(found[0], [(job_id, name) for job_id, name in decode(nodes)], edges, jobs)


def drop_flow(conn: Connection, flow_id: str) -> None:
    if conn.execute(sql("drop_flow"), {"id": flow_id}).rowcount:
        conn.execute(sql("drop_flow_edges"), (flow_id,))


def prune_flows(conn: Connection, now: int, limit: int) -> int:
    due = conn.execute(sql("prune_flows_due"), (now - _HOUR, limit)).fetchall()
    for (flow_id,) in due:
        drop_flow(conn, flow_id)
        conn.execute(sql("flow_looked"), {"id": flow_id, "now": now})
    return len(due)
