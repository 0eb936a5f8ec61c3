"""claim: the heads of the lanes, merged, and one UPDATE for what was chosen."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from sqlite3 import Connection

from rowlock.core.job import Lane
from rowlock.stores.base import Claim, Claimed
from rowlock.stores.sqlite.rows import Times, job, json_text, span, sql

_Candidate = tuple[int, int, str, int]  # what it is ordered by: -priority, run_at, id; and n


def claim(conn: Connection, now: int, claim: Claim) -> Claimed:
    chosen = _choose(conn, now, claim) if claim.limit > 0 and claim.lanes else []
    jobs = []
    if chosen:
        values = {
            "worker": claim.worker,
            "until": now + span(claim.lease),
            "now": now,
            "started": now if claim.start else None,
            "rows": json_text(chosen),
        }
        rows = {row[0]: row for row in conn.execute(sql("claim"), values).fetchall()}
        times = Times()
        jobs = [job(rows[n][1:], times) for n in chosen]
    (due,) = conn.execute(sql("claim_next_due")).fetchone()
    return Claimed(jobs, contended=False, next_due=None if due is None else max(0, due - now) / 1e6)


def _choose(conn: Connection, now: int, claim: Claim) -> list[int]:
    paused = {topic for (topic,) in conn.execute(sql("claim_paused"), (now,)).fetchall()}
    lanes = [lane for lane in set(claim.lanes) if lane.topic not in paused]
    # Of many deep lanes each will give a part only: ask for about twice its share first, for the rest when needed.
    share = min(claim.limit, 2 * claim.limit // max(1, len(lanes)) + 8)
    heads = [_lane(conn, now, lane, share, claim.limit) for lane in lanes]
    merged = heapq.merge(*heads) if len(heads) > 1 else (candidate for head in heads for candidate in head)
    return [candidate[3] for candidate in islice(merged, claim.limit)]


def _lane(conn: Connection, now: int, lane: Lane, share: int, limit: int) -> Iterator[_Candidate]:
    statement, version = sql("claim_lane"), lane.template_version or 0
    seen = 0
    while seen < limit:
        rows: list[_Candidate] = conn.execute(statement, (lane.topic, version, now, share, seen)).fetchall()
        yield from rows
        if len(rows) < share:
            return
        seen += share
        share = limit
