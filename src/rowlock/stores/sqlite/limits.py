"""Limits: the questions of a claim of limited topics (stores/limits.py). All of it runs under the write lock: no claim
comes in between."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any, assert_never

from msgspec import structs

from rowlock.core.job import Lane
from rowlock.core.limits import LIMITED, PUT, Candidate, Start
from rowlock.stores.base import MOST_COUNTED, Claim
from rowlock.stores.driver_neutral import drive
from rowlock.stores.limits import (
    MOST_STARTS,
    Ask,
    Limits,
    NewShare,
    ReadHeld,
    ReadJobs,
    ReadLimits,
    ReadOthers,
    ReadRows,
    ReadShares,
    ReadStarts,
    Take,
    Taken,
    Usage,
    claiming,
    read_limits,
    turns_text,
)
from rowlock.stores.sqlite import claim as claims
from rowlock.stores.sqlite.rows import json_text, micros, sql


def claim_limited(conn: Connection, now: int, claim: Claim, limit: int) -> Taken:
    return drive(claiming(claim.lanes, limit), lambda ask: _answer(conn, now, claim, ask))


def _answer(conn: Connection, now: int, claim: Claim, ask: Ask) -> Any:
    match ask:
        case ReadLimits():
            return limits(conn, now)
        case ReadHeld(topics):
            return conn.execute(sql("limits_held"), (json_text(topics),)).fetchall()
        case ReadStarts(asked):
            found = [row for one in asked for row in conn.execute(sql("limits_starts"), one).fetchall()]
            return [Start(*row) for row in found]
        case ReadRows(lanes, bounds):
            return [_candidates(conn, now, [lane], most) for lane, most in zip(lanes, bounds, strict=True)]
        case ReadShares(lane, after, most):
            walk = _lane(lane) | {"after": after or "", "limit": most, "now": now}
            shares = [share for (share,) in conn.execute(sql("limits_shares"), walk).fetchall()]
            has_none = after is None and _jobs(conn, now, lane, "", 1)
            return ["", *shares] if has_none else shares
        case ReadJobs(lane, chosen, most):
            return {share: _jobs(conn, now, lane, share, most) for share in chosen}
        case ReadOthers(lanes, most):
            return _candidates(conn, now, lanes, most)
        case Take(_, ids, _, starts, turns):
            conn.execute(sql("limits_turn"), (turns_text(turns),))
            conn.executemany(sql("limits_count"), [one._asdict() | {"now": now} for one in starts])
            places = [place for (place,) in conn.execute(sql("limits_places"), (json_text(ids),)).fetchall()]
            whole = structs.replace(claim, size=None)  # all of them count as started
            return claims.take(conn, now, whole, places, start=True) if places else ([], 0)
        case _:
            assert_never(ask)


def limits(conn: Connection, now: int) -> Limits:
    epoch, turns = conn.execute(sql("limits")).fetchone()
    limited = dict(conn.execute(sql("limits_records"), (LIMITED,)).fetchall())
    puts = [data for _, data in conn.execute(sql("limits_records"), (PUT,)).fetchall()]
    paused = [topic for (topic,) in conn.execute(sql("claim_paused"), (now,)).fetchall()]
    return read_limits(epoch, now, turns, limited, puts, paused)


def usage(conn: Connection, now: int) -> Usage:
    stored = limits(conn, now)
    held = conn.execute(sql("limits_held"), (json_text(list(stored.limited)),)).fetchall()
    starts = [Start(*row) for row in conn.execute(sql("limits_usage"), (now, MOST_STARTS)).fetchall()]
    return Usage(stored, held, starts, conn.execute(sql("limits_waiting"), (MOST_COUNTED,)).fetchall())


def _lane(lane: Lane) -> dict[str, Any]:
    return {"topic": lane.topic, "version": lane.template_version}


def _jobs(conn: Connection, now: int, lane: Lane, share: str, most: int) -> list[Candidate]:
    """Return the first jobs of a share. The empty text: jobs that have no share."""
    asked = _lane(lane) | {"now": now, "limit": most}
    if share:
        found = conn.execute(sql("limits_jobs"), asked | {"share": share}).fetchall()
    else:
        found = conn.execute(sql("limits_none"), asked).fetchall()
    return [Candidate(*row) for row in found]


def _candidates(conn: Connection, now: int, lanes: Any, most: int) -> list[Candidate]:
    return [Candidate(rank, run_at, job_id) for rank, run_at, job_id, _ in claims.heads(conn, now, lanes, most)]


def set_shares(conn: Connection, shares: Sequence[NewShare]) -> None:
    conn.executemany(sql("set_shares"), [one._asdict() | {"updated": micros(one.updated)} for one in shares])


def prune_starts(conn: Connection, now: int, limit: int) -> int:
    return conn.execute(sql("prune_starts"), {"now": now, "limit": limit}).rowcount
