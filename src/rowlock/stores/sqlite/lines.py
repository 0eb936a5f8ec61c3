"""advance: the next job of a line becomes its head. A line is all jobs with one key and if_live = "queue" or "replace".
A job of a flow also has a line: then `advance` looks at the jobs that wait for this job (flows.py).

The transaction that ends a job of the line, or adds one, also advances the line: it has the write lock anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from sqlite3 import Connection

from rowlock.core.job import Status, owner_of
from rowlock.core.moves import Advance, Replace, Row, Unblock, advance
from rowlock.stores.sqlite import flows, moves

_ALL = 1_000_000_000
_BY = "rowlock"


def advance_lines(conn: Connection, now: int, lines: Iterable[str]) -> set[str]:
    """Return the ids of the new heads, and of jobs of flows that are started."""
    noted = list(lines)
    started = _advance_heads(conn, now, [line for line in noted if owner_of(line) is None])
    while noted:  # a job that is stopped by the end of another one has ended, too
        advanced = flows.advance(conn, now, sorted(noted))
        started |= advanced.started
        noted = list(advanced.lines)
        started |= _advance_heads(conn, now, [line for line in noted if owner_of(line) is None])
    return started


def _advance_heads(conn: Connection, now: int, lines: Iterable[str]) -> set[str]:
    heads: list[Row] = []
    for line in lines:
        plan = _advance(conn, now, line)
        while plan.again:  # a waiting head was replaced: it has ended, or is to run once more
            plan = _advance(conn, now, line)
        if plan.head is not None:
            heads.append(plan.head)
    if heads:
        moves.apply(conn, now, Unblock(by=_BY), heads, advances=False)
    return {row.id for row in heads}


def _advance(conn: Connection, now: int, line: str) -> Advance:
    rows = moves.lock_line(conn, line)
    head = next((row for row in rows if row.status is not Status.BLOCKED), None)
    blocked = [row for row in rows if row.status is Status.BLOCKED]
    newest = max((row.line_seq or 0 for row in rows if row.if_live == "replace"), default=0)
    plan = advance(head, head, [row for row in blocked if (row.line_seq or 0) <= newest] or blocked[:1], _ALL)
    if plan.replaced:
        moves.apply(conn, now, Replace(by=_BY, reason=f"replaced by {plan.by}"), plan.replaced, advances=False)
    return plan
