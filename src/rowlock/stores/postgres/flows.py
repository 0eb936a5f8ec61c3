"""Flows: the questions of `advance` (stores/flows.py), and the verbs about flows. A flow is enqueued on any driver's
connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from rowlock.core.codec import decode
from rowlock.core.flows import Edge, Ended, FlowRow, NewChildren, NewFlow
from rowlock.core.job import LIVE, Status
from rowlock.core.times import moment
from rowlock.stores.base import Enqueued, Hold
from rowlock.stores.driver_neutral import Queries, Query, drive_async
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
from rowlock.stores.postgres import insert_on_conn, moves
from rowlock.stores.postgres.rows import STATUS
from rowlock.stores.postgres.statements import Statements, statements_on_conn

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


async def advance(connection: Any, sql: Statements, lines: Sequence[str]) -> Advanced:
    """Advance these lines in a transaction. Its advisory locks keep other calls away from them."""
    now = 0

    async def answer(ask: Ask) -> Any:
        nonlocal now
        match ask:
            case ReadStarted(noted):
                return [tuple(row) for row in await connection.fetch(sql.flow_started, noted)]
            case ReadParents(noted, ids):
                return {row[0]: Ended(*row[1:]) for row in await connection.fetch(sql.flow_parents, noted, ids)}
            case FindEdges(noted, parents, limit):
                ends = list(parents), [parent.end for parent in parents.values()]
                return [
                    (edge_of(row), row[-1]) for row in await connection.fetch(sql.flow_children, noted, *ends, limit)
                ]
            case LockJobs(ids):
                found = await connection.fetch(sql.lock_jobs, ids, False, False)
                if missing := set(ids) - {row["id"] for row in found}:
                    # Completed while the statement waited for the lock: in the archive, by a fresh snapshot.
                    found += await connection.fetch(sql.lock_jobs, sorted(missing), False, False)
                now = moves.latest(found)
                return moment(now), [moves.row_of(row, behind=2) for row in found]
            case ReadPayloads(ids):
                return dict(await connection.fetch(sql.flow_payloads, ids))
            case ReadEdges(children):
                return [edge_of(row) for row in await connection.fetch(sql.flow_edges, children)]
            case ReadPairs(pairs):
                both = [child for child, _ in pairs], [parent for _, parent in pairs]
                return [edge_of(row) for row in await connection.fetch(sql.flow_edges_between, *both)]
            case CountEdges(children):
                counted = await connection.fetch(sql.flow_count_edges, children)
                return {(child, call): (total, waits) for child, call, total, waits in counted}
            case FindWatched(own):
                return {row[0] for row in await connection.fetch(sql.flow_watched, own)}
            case WriteEdges(edges):
                await connection.execute(sql.flow_write_edges, _text(_alike(edges)))
                return None
            case Apply(order, rows):
                return await moves.apply(connection, sql, order, now, rows)
            case _:
                assert_never(ask)

    return await drive_async(advancing(lines), answer)


def _alike(edges: Sequence[Edge]) -> list[list[Any]]:
    """Return the changes of edges. A change that many edges have in common comes once, with the ids of children and
    parents, as two texts: 1,000 edges of a fan-out have the same change."""
    alike: defaultdict[tuple[Any, ...], list[Edge]] = defaultdict(list)
    for edge in edges:
        alike[edge.fills, edge.ended, edge.verdict, edge.result, edge.error].append(edge)
    return [
        [" ".join([edge.child for edge in same]), " ".join([edge.parent for edge in same]), *change]
        for change, same in alike.items()
    ]


def insert_flow(schema: str, flow: NewFlow, *, repeat: bool = False) -> Queries[list[Enqueued]]:
    texts = statements_on_conn(schema)
    lines: dict[str, str] = {}
    ended: list[str] = []
    if flow.outside:
        found = _decode((yield Query(texts.flow_outside_on_conn, _text(flow.outside))))
        if missing := sorted(set(flow.outside) - {job_id for job_id, _, _ in found}):
            # Completed while the statement waited for the lock: in the archive, by a fresh snapshot.
            found += _decode((yield Query(texts.flow_outside_on_conn, _text(missing))))
        refuse_missing(flow, [job_id for job_id, _, _ in found])
        lines = {job_id: line for job_id, _, line in found}
        ended = [line for _, status, line in found if STATUS[status] not in LIVE]
    answers = yield from insert_on_conn.insert(schema, flow.jobs, repeat=repeat)
    try:
        if refuse_taken(flow.jobs, answers):
            return answers
    except Exception:  # the caller may go on with its transaction
        yield Query(texts.once_undo_on_conn, _text([one.id for one in answers if not one.existing]))
        raise
    nodes = [[job.id, name] for job, name in zip(flow.jobs, flow.nodes, strict=True)]
    row = {"id": flow.id, "name": flow.name, "by": flow.by, "jobs": len(flow.jobs), "nodes": nodes, "more": 0}
    edges = [edge_data(replace(one, line=lines.get(one.parent, one.line))) for one in flow.edges]
    yield Query(texts.flow_insert_on_conn, _text({"flow": row, "edges": edges, "lines": ended}))
    return answers


async def start_children(
    connection: Any, sql: Statements, schema: str, children: NewChildren
) -> tuple[Hold, list[Enqueued]]:
    async def ask(query: Query) -> str:
        answer: str = await connection.fetchval(query.text, query.parameter)
        return answer

    run = children.id, children.version, children.worker
    owned = await connection.fetch(sql.flow_own, *run, children.flow_id)
    if not owned:
        return Hold.LOST, []
    [(line, status)] = owned
    if status == Status.CANCEL_REQUESTED:
        return Hold.CANCEL, []
    answers = await drive_async(insert_on_conn.insert(schema, children.jobs, repeat=True), ask)
    refuse_taken(children.jobs, answers)
    new = sum(not answer.existing for answer in answers)
    row = {"id": children.flow_id, "name": children.name, "by": children.by, "jobs": new + 1, "nodes": [], "more": new}
    edges = [edge_data(one) for one in child_edges(children, line)]
    ended = ended_lines(children, answers)
    await ask(Query(sql.flow_insert_on_conn, _text({"flow": row, "edges": edges, "lines": ended})))
    return Hold.KEPT, answers


async def edges_of(connection: Any, sql: Statements, children: Sequence[str]) -> dict[str, StoredEdges]:
    found: dict[str, StoredEdges] = {}
    for row in await connection.fetch(sql.flow_edges, list(set(children))):
        edge = edge_of(row)
        found.setdefault(edge.child, StoredEdges([])).items.append(edge)
    return found


async def flows(
    connection: Any, sql: Statements, ids: Sequence[str] | None, before: str | None, limit: int, name: str | None
) -> list[FlowRow]:
    asked = None if ids is None else list(ids)
    found = await connection.fetch(sql.flows, asked, before, limit, name)
    return [
        FlowRow(
            id=flow_id,
            name=title,
            by=by,
            jobs=jobs,
            created=created,
            counts=decode(counts),
            untaken=untaken,
            held=held,
            moving=moving,
        )
        for flow_id, title, by, jobs, created, counts, untaken, held, moving in found
    ]


async def graph(connection: Any, sql: Statements, flow_id: str) -> FlowGraph | None:
    found = await flows(connection, sql, [flow_id], None, 1, None)
    if not found:
        return None
    nodes = decode(await connection.fetchval(sql.flow_nodes, flow_id) or "[]")
    edges = [edge_of(row) for row in await connection.fetch(sql.flow_edges_of_flow, flow_id)]
    jobs = {job_id: STATUS[status] for job_id, status in await connection.fetch(sql.flow_jobs, flow_id)}
    return FlowGraph(found[0], [(job_id, name) for job_id, name in nodes], edges, jobs)


def _text(value: object) -> str:
    return _encode(value).decode()
