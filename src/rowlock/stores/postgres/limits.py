"""Limits: the questions of a claim of limited topics (stores/limits.py). Each is a statement of its own: only the last
one locks anything."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_never

import msgspec

from rowlock.core.limits import Candidate, Start
from rowlock.core.times import moment
from rowlock.stores.base import MOST_COUNTED, Claim
from rowlock.stores.driver_neutral import drive_async
from rowlock.stores.limits import (
    MOST_STARTS,
    Ask,
    Limits,
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
from rowlock.stores.postgres import rows
from rowlock.stores.postgres.clock import Clock
from rowlock.stores.postgres.statements import Statements


async def claim_limited(connection: Any, sql: Statements, clock: Clock, claim: Claim, limit: int) -> Taken:
    async def answer(ask: Ask) -> Any:
        match ask:
            case ReadLimits():
                stored = await _limits(connection, sql)
                clock.learn(moment(stored.now))
                return stored
            case ReadHeld(topics):
                return [tuple(row) for row in await connection.fetch(sql.limits_held, topics)]
            case ReadStarts(asked):
                columns = [list(column) for column in zip(*asked, strict=True)]
                return [Start(*row) for row in await connection.fetch(sql.limits_starts, *columns)]
            case ReadRows(lanes, bounds):
                topics, versions = [lane.topic for lane in lanes], [lane.template_version for lane in lanes]
                by_lane: list[list[Candidate]] = [[] for _ in lanes]
                for n, *job in await connection.fetch(sql.limits_rows, topics, versions, bounds):
                    by_lane[n - 1].append(Candidate(*job))
                return by_lane
            case ReadShares(lane, after, most):
                found = await connection.fetch(sql.limits_shares, lane.topic, lane.template_version, after, most)
                return [share for (share,) in found]
            case ReadJobs(lane, shares, most):
                found = await connection.fetch(sql.limits_jobs, lane.topic, lane.template_version, shares, most)
                jobs: dict[str, list[Candidate]] = {}
                for share, *job in found:
                    jobs.setdefault(share, []).append(Candidate(*job))
                return jobs
            case ReadOthers(lanes, most):
                topics, versions = [lane.topic for lane in lanes], [lane.template_version for lane in lanes]
                return [Candidate(*row) for row in await connection.fetch(sql.limits_others, topics, versions, most)]
            case Take():
                return await _take(connection, sql, claim, ask, clock.not_after())
            case _:
                assert_never(ask)

    return await drive_async(claiming(claim.lanes, limit), answer)


async def _limits(connection: Any, sql: Statements) -> Limits:
    [(epoch, now, turns, topics, limited, puts, paused)] = await connection.fetch(sql.limits)
    return read_limits(epoch, now, turns, dict(zip(topics, limited, strict=True)), puts, paused)


async def usage(connection: Any, sql: Statements) -> Usage:
    stored = await _limits(connection, sql)
    held = await connection.fetch(sql.limits_held, list(stored.limited))
    starts = await connection.fetch(sql.limits_usage, MOST_STARTS)
    waiting = await connection.fetch(sql.limits_waiting, MOST_COUNTED)
    return Usage(stored, [tuple(row) for row in held], [Start(*row) for row in starts], [tuple(row) for row in waiting])


async def _take(connection: Any, sql: Statements, claim: Claim, take: Take, not_after: datetime | None) -> Any:
    starts = msgspec.json.encode([one._asdict() for one in take.starts]).decode()
    given = (
        take.epoch,
        turns_text(take.turns),
        take.ids,
        claim.worker,
        claim.lease,
        True,
        not_after,
        starts,
        take.shares,
    )
    found = await connection.fetch(sql.limits_take, *given)
    if not found:
        return None
    now, until = found[0]["now"], found[0]["until"]
    jobs = [rows.claimed_job(row, claim.worker, now, until, now) for row in found[1:]]
    size = sum(len(row[rows.CLAIMED_PAYLOAD]) for row in found[1:])
    return sorted(jobs, key=rows.turn), size
