"""claim: the heads of the lanes, merged, and one UPDATE for what was chosen."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any

from rowlock.core.codec import decode
from rowlock.core.job import Job, Lane, Status
from rowlock.stores.base import Claim, Claimed
from rowlock.stores.sqlite.rows import Times, json_text, span, sql

_Candidate = tuple[int, int, str, int]  # what they are ordered by: -priority, run_at, id; and n

_UNUSED: list[Any] = [None] * 14 + [0]  # expires_at … fire_at, and the number of history entries


def claim(conn: Connection, now: int, claim: Claim) -> Claimed:
    chosen = _choose(conn, now, claim) if claim.limit > 0 and claim.lanes else []
    jobs = _take(conn, now, claim, chosen) if chosen else []
    (due,) = conn.execute(sql("claim_next_due")).fetchone()
    return Claimed(jobs, contended=False, next_due=None if due is None else max(0, due - now) / 1e6)


def _choose(conn: Connection, now: int, claim: Claim) -> list[_Candidate]:
    limit = claim.limit
    paused = {topic for (topic,) in conn.execute(sql("claim_paused"), (now,)).fetchall()}
    lanes = [lane for lane in set(claim.lanes) if lane.topic not in paused]
    if not lanes:
        return []
    # Of many deep lanes each will give a part only: ask each for twice its share, then those for more that gave all.
    share = min(limit, 2 * limit // len(lanes) + 8)
    heads = [(lane, _head(conn, now, lane, share, 0)) for lane in lanes]
    chosen = sorted(candidate for _, head in heads for candidate in head)[:limit]
    if share < limit:
        last = chosen[-1] if len(chosen) == limit else None
        for lane, head in heads:
            if len(head) == share and (last is None or head[-1] <= last):
                chosen += _head(conn, now, lane, limit - share, share)
        chosen = sorted(chosen)[:limit]
    return chosen


def _head(conn: Connection, now: int, lane: Lane, limit: int, offset: int) -> list[_Candidate]:
    values = (lane.topic, lane.template_version or 0, now, limit, offset)
    return conn.execute(sql("claim_lane"), values).fetchall()


def _take(conn: Connection, now: int, claim: Claim, chosen: list[_Candidate]) -> list[Job]:
    until, started = now + span(claim.lease), now if claim.start else None
    rows = json_text([candidate[3] for candidate in chosen])
    values = {"worker": claim.worker, "until": until, "now": now, "started": started, "rows": rows}
    taken = {row[0]: row for row in conn.execute(sql("claim"), values).fetchall()}
    times = Times()
    return [_job(taken[candidate[2]], claim.worker, times, until, now, started) for candidate in chosen]


def _job(row: tuple[Any, ...], worker: str, times: Times, until: int, now: int, started: int | None) -> Job:
    """As it is now. Positional, as this is the hottest place of all."""
    (
        job_id, topic, template_version, payload, priority, run_at, retries, max_retries, crashes, timeout, version,
        created, rest,
    ) = row  # fmt: skip
    (
        expires_at, key, scope, scope_id, tags, trace, step, result, last_error, cancel_requested_at, cancel_reason,
        flow_id, schedule_id, fire_at, entries,
    ) = _UNUSED if rest is None else decode(rest)  # fmt: skip
    return Job(
        job_id, topic, template_version or None, decode(payload), Status.PROCESSING, priority, times[run_at],
        times[expires_at], key, scope, scope_id, tuple(tags) if tags else (), trace, step, 0.0, None, None, result,
        last_error, retries, max_retries, crashes, timeout, version, worker, times[until], times[cancel_requested_at],
        cancel_reason, flow_id, schedule_id, times[fire_at], times[created], times[now], times[now], times[started],
        None, 1 + version + entries,
    )  # fmt: skip
