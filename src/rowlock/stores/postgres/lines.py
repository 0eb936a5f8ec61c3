"""advance: the next job of a line becomes its head. A line is all jobs with one key and if_live = "queue" or "replace".
A job of a flow also has a line: then `advance` looks at the jobs that wait for this job (flows.py).

A transaction that ends a job of a line, or adds one, also notes the line in _jobs_ends. Any claim finds the note, so
that nothing is blocked for ever, even if the process that wrote it has died.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rowlock.core.job import Status, owner_of
from rowlock.core.moves import Replace, Row, Unblock, advance
from rowlock.stores.postgres import flows, moves
from rowlock.stores.postgres.statements import Statements

BATCH = 500  # notes in one transaction, and jobs of a line that one transaction replaces
BY = "rowlock"


async def advance_lines(connection: Any, sql: Statements) -> tuple[set[str], bool]:
    """Return the ids of the new heads and of jobs of flows that are started, and whether there may be more to do at
    once."""
    async with connection.transaction(isolation="read_committed"):
        noted = [line for line, _ in await connection.fetch(sql.advance_take, BATCH)]
        if not noted:
            return set(), False
        advanced = await flows.advance(connection, sql, noted)
        if advanced.lines:
            await connection.execute(sql.advance_again, sorted(advanced.lines))
        heads, crowded = set[str](), False
        if lines := [line for line in noted if owner_of(line) is None]:
            heads, crowded = await _advance_heads(connection, sql, lines)
    return advanced.started | heads, crowded or bool(advanced.lines) or len(noted) == BATCH


async def _advance_heads(connection: Any, sql: Statements, lines: list[str]) -> tuple[set[str], bool]:
    # A statement of its own: its snapshot must be younger than the locks.
    found = await connection.fetch(sql.advance_rows, lines, BATCH + 1)
    now = moves.latest(found)
    rows: defaultdict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        row = moves.row_of(one, behind=3)
        rows[row.line or ""][one[2]].append(row)
    heads: list[Row] = []
    again: list[str] = []
    crowded = False
    for line, roles in rows.items():
        head, held = (roles[role][0] if roles[role] else None for role in ("head", "held"))
        plan = advance(head, held, roles["blocked"], BATCH)
        if plan.replaced:
            order = Replace(by=BY, reason=f"replaced by {plan.by or 'a newer job'}")
            await moves.apply(connection, sql, order, now, plan.replaced)
        if plan.head is not None:
            heads.append(plan.head)
        if head is None and roles["first"] and not roles["blocked"]:
            again.append(line)  # its enqueuer's transaction holds it
        if plan.again:
            again.append(line)
            # A head that waited may have ended just now.
            waited = held is not None and held.status is Status.WAITING
            crowded = crowded or waited or len(roles["blocked"]) > BATCH
    await moves.apply(connection, sql, Unblock(by=BY), now, heads)
    if again:
        await connection.execute(sql.advance_again, again)
    return {row.id for row in heads}, crowded
