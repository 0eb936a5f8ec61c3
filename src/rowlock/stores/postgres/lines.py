"""advance: the next job of a line becomes its head. A line is all jobs with one key and if_live = "queue" or "replace".

Whatever ends a job of a line, or adds one, notes the line in _jobs_ends, in the same transaction. Any claim finds the
note, so that nothing is blocked for ever, even if the process that wrote it has died.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rowlock.core.job import Status
from rowlock.core.moves import Replace, Row, Unblock, advance
from rowlock.stores.postgres import moves
from rowlock.stores.postgres.statements import Statements

BATCH = 500  # notes in one transaction, and jobs of a line that one transaction replaces
BY = "rowlock"


async def advance_lines(connection: Any, sql: Statements) -> tuple[set[str], bool]:
    """Return the ids of the new heads, and whether there may be more to do at once."""
    async with connection.transaction(isolation="read_committed"):
        lines = [line for line, _ in await connection.fetch(sql.advance_take, BATCH)]
        if not lines:
            return set(), False
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
            if plan.again:
                again.append(line)
                # A head that waited may have ended just now.
                waited = held is not None and held.status is Status.WAITING
                crowded = crowded or waited or len(roles["blocked"]) > BATCH
        await moves.apply(connection, sql, Unblock(by=BY), now, heads)
        if again:
            await connection.execute(sql.advance_again, again)
    return {row.id for row in heads}, crowded or len(lines) == BATCH
