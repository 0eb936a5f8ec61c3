"""claim: merges the heads of the lanes, and claims the chosen jobs by one UPDATE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from sqlite3 import Connection, DataError
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from rowlock.core.codec import decode
from rowlock.core.job import Job, Lane, Status
from rowlock.core.times import NEVER
from rowlock.stores import columns
from rowlock.stores.base import Claim, Claimed
from rowlock.stores.limits import Taken, add_limited
from rowlock.stores.sqlite.rows import COMMON, RARE, RULES, Times, json_text, span, sql

_Candidate = tuple[int, int, str, int]  # the sort key (-priority, run_at, id), and n

_UNUSED: list[Any] = [None] * len(RARE) + [0]  # and no history entries
# JSON is decoded already. The whole loop is compiled: a call for each job would take a tenth longer.
_RULES = {**RULES, "json": "{}", "json?": "{}", "tags": "tuple({}) if {} else ()", "float": "float({})"}
_GIVEN = {**columns.CLAIM_SETS, "events_count": "1 + version + entries"}
_jobs_of: Callable[..., list[Job]] = columns.compile_function(
    f"""def jobs_of(rows, payloads, worker, until, now, started, times, timeout_of):
    jobs = []
    for row, payload in zip(rows, payloads, strict=True):
        {", ".join(COMMON)}, rest = row
        {", ".join(RARE)}, entries = UNUSED if rest is None else rest
        if timeout is None:
            timeout = timeout_of(id)
        jobs.append(Job({columns.values_of(columns.JOB, _RULES, _GIVEN)}))
    return jobs
""",
    {
        "Job": Job,
        "PROCESSING": Status.PROCESSING,
        "CANCEL_REQUESTED": Status.CANCEL_REQUESTED,
        "UNUSED": _UNUSED,
    },
)

_PART = 500  # jobs in one answer, which is in memory as text, too …
_FEW = 20  # … and in the first answer, before it is known how large they are

_candidates = msgspec.json.Decoder(list[_Candidate]).decode


class _Lease(NamedTuple):
    """The values that a claim sets, in the form that jobs have."""

    worker: str
    until: datetime
    now: datetime
    started: datetime | None


def claim(conn: Connection, now: int, claim: Claim) -> Claimed:
    taken = _claim_limited(conn, now, claim)
    if taken is None or not taken.jobs:
        claimed = _claim(conn, now, claim)
    else:
        # All of them start at once: what is claimed ahead could take the slot of a job that counts as started.
        claimed = _claim(conn, now, structs.replace(claim, limit=claim.starting - len(taken.jobs), start=True))
    return claimed if taken is None else add_limited(taken, claimed)


def _claim_limited(conn: Connection, now: int, claim: Claim) -> Taken | None:
    limited = {topic for (topic,) in conn.execute(sql("claim_limited")).fetchall()}
    if not limited or claim.starting <= 0 or not any(lane.topic in limited for lane in claim.lanes):
        return None
    from rowlock.stores.sqlite.limits import claim_limited  # it reads lanes, too

    return claim_limited(conn, now, claim, claim.starting)


def _claim(conn: Connection, now: int, claim: Claim) -> Claimed:
    chosen = _choose(conn, now, claim) if claim.limit > 0 and claim.lanes else []
    numbers = [candidate[3] for candidate in chosen]
    jobs, size = take(conn, now, claim, numbers, start=claim.start) if chosen else ([], 0)
    (due,) = conn.execute(sql("claim_next_due")).fetchone()
    next_due = None if due is None or due >= NEVER else max(0, due - now) / 1e6
    return Claimed(jobs, contended=len(jobs) < len(chosen), next_due=next_due, size=size)


def _choose(conn: Connection, now: int, claim: Claim) -> list[_Candidate]:
    left_out = {topic for (topic,) in conn.execute(sql("claim_paused"), (now,)).fetchall()}
    left_out |= {topic for (topic,) in conn.execute(sql("claim_limited")).fetchall()}
    return heads(conn, now, [lane for lane in set(claim.lanes) if lane.topic not in left_out], claim.limit)


def heads(conn: Connection, now: int, lanes: Sequence[Lane], limit: int) -> list[_Candidate]:
    """Return the first jobs of all these lanes together."""
    if not lanes:
        return []
    if len(lanes) == 1:
        return _head(conn, now, lanes[0], limit, 0)
    # Each of many deep lanes will give a part only. So ask each lane for twice its share. Then ask the lanes for more
    # that gave all of that.
    share = min(limit, 2 * limit // len(lanes) + 8)
    found = [(lane, _head(conn, now, lane, share, 0)) for lane in lanes]
    chosen = sorted(candidate for _, head in found for candidate in head)[:limit]
    if share < limit:
        last = chosen[-1] if len(chosen) == limit else None
        for lane, head in found:
            if len(head) == share and (last is None or head[-1] <= last):
                chosen += _head(conn, now, lane, limit - share, share)
        chosen = sorted(chosen)[:limit]
    return chosen


def _head(conn: Connection, now: int, lane: Lane, limit: int, offset: int) -> list[_Candidate]:
    values = (lane.topic, lane.template_version, now, limit, offset)
    (found,) = conn.execute(sql("claim_lane"), values).fetchone()
    return [] if found is None else _candidates(found)


def take(conn: Connection, now: int, claim: Claim, numbers: list[int], *, start: bool) -> tuple[list[Job], int]:
    """Claim jobs. Return them, and the bytes of their payloads. They are read part by part until there are enough
    bytes; then the jobs that were read are claimed."""
    until, started = now + span(claim.lease), now if start else None
    times = Times()
    lease = _Lease(claim.worker, times[until], times[now], times[started])
    jobs: list[Job] = []
    size = 0
    while len(jobs) < len(numbers) and (claim.size is None or size < claim.size):
        part = _PART if claim.size is None else _fitting(claim.size, size, len(jobs))
        more, bytes_ = _read(conn, numbers[len(jobs) : len(jobs) + part], lease, times)
        jobs += more
        size += bytes_
    taken = json_text(numbers[: len(jobs)])
    values = {"worker": claim.worker, "until": until, "now": now, "started": started, "rows": taken}
    conn.execute(sql("claim"), values)
    return jobs, size


def _fitting(most: int, size: int, count: int) -> int:
    """Return how many more jobs to read: a few at first, then as many as fit by the average size so far."""
    return _FEW if not count else min(_PART, max(1, (most - size) * count // max(size, 1)))


def _read(conn: Connection, numbers: list[int], lease: _Lease, times: Times) -> tuple[list[Job], int]:
    """Return the jobs as they will be when they are claimed, and the bytes of their payloads."""
    rows = {"rows": json_text(numbers)}
    try:
        found, payloads = conn.execute(sql("claim_rows"), rows).fetchone()
    except DataError:  # more than SQLite puts in one text, which is 10^9 bytes
        if len(numbers) == 1:
            raise
        half = len(numbers) // 2
        first, second = _read(conn, numbers[:half], lease, times), _read(conn, numbers[half:], lease, times)
        return first[0] + second[0], first[1] + second[1]
    timeouts: dict[str, float] = {}

    def timeout_of(job_id: str) -> float:
        if not timeouts:
            timeouts.update(conn.execute(sql("claim_timeouts"), rows).fetchall())
        return timeouts[job_id]

    jobs = _jobs_of(decode(found), decode(payloads), *lease, times, timeout_of)
    return jobs, len(payloads)
