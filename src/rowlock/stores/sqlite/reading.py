"""list, stats, and what `verify` looks at: a snapshot each, on the connection that only reads."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from sqlite3 import Connection
from typing import TypeVar

from rowlock.core.codec import decode
from rowlock.core.job import Status
from rowlock.core.verify import Kept
from rowlock.stores.listing import Seen, Step, find, find_newest, make_page, page_ids
from rowlock.stores.reading import BOUND, MAX_TOPICS, OWN_WINDOW, Filter, Page, Place, Stats, Tally, make_stats
from rowlock.stores.sqlite.listing import look
from rowlock.stores.sqlite.rows import STATUS, Times, job, json_text, moment, sql

T = TypeVar("T")


def list_jobs(conn: Connection, filter: Filter, place: Place) -> Page:
    """In a transaction, so that a page and its jobs belong together."""
    found = _follow(conn, filter, find(filter, place))
    got = conn.execute(sql("get"), {"ids": json_text(page_ids(found, place))}).fetchall()
    times = Times()
    return make_page(found, place, {row[0]: job(row, times) for row in got})


def newest(conn: Connection, filter: Filter, limit: int) -> list[str]:
    return _follow(conn, filter, find_newest(filter, limit))


def newest_of_scope(conn: Connection, filter: Filter, limit: int) -> list[str] | None:
    """None: as many as that were not found among the newest of the scope."""
    found: set[str] = set()
    horizon = ""  # below it nothing is known
    for name in ("newest_of_scope", "newest_of_scope_archived"):
        hits = 0
        # Closed as soon as enough is found: a statement that is not done holds its snapshot.
        with closing(conn.execute(sql(name), {"scope_id": filter.scope_id, "count": OWN_WINDOW + 1})) as rows:
            for looked, (job_id, topic, status) in enumerate(rows):
                if hits == limit:
                    break
                if looked == OWN_WINDOW:
                    horizon = max(horizon, job_id)
                elif topic in (filter.topics or (topic,)) and status in (filter.statuses or (status,)):
                    found.add(job_id)
                    hits += 1
    newest = sorted(found, reverse=True)[:limit]
    is_known = not horizon or (len(newest) == limit and newest[-1] > horizon)
    return newest if is_known else None


def _follow(conn: Connection, filter: Filter, search: Generator[Step, Seen, T]) -> T:
    try:
        step = next(search)
        while True:
            step = search.send(look(conn, filter, step))
    except StopIteration as end:
        found: T = end.value
        return found


def stats(conn: Connection, now: int, topic: str | None) -> Stats:
    text = sql("stats").replace("{of_topic}", "" if topic is None else "AND topic = :topic")
    # One row is for all topics, one more tells that there are more.
    bounds = {"bound": BOUND, "topics": MAX_TOPICS + 2}
    found = conn.execute(text, {"topic": topic, "now": now} | bounds).fetchall()
    live = [
        Tally(branch, name, status, n, None if waited is None else waited / 1_000_000)
        for branch, name, status, n, waited, _ in found
        if branch is not None
    ]
    return make_stats(topic, live, [(row[1], decode(row[5])) for row in found if row[0] is None])


def kept(conn: Connection, archived: bool, before: str | None, limit: int) -> list[Kept]:
    where = {"before": "g" if before is None else before, "limit": max(limit, 0)}  # g: behind every hexadecimal id
    rows = conn.execute(sql("kept_archived" if archived else "kept"), where).fetchall()
    return [
        Kept(
            id=row[0],
            topic=row[1],
            status=STATUS[row[2]],
            ready=bool(row[3]),
            version=row[4],
            retries=row[5],
            max_retries=row[6],
            key=row[7],
            locked_by=row[8],
            locked_until=None if row[9] is None else moment(row[9]),
            finished_at=None if row[10] is None else moment(row[10]),
            scope=row[11],
            scope_id=row[12],
            history=decode(row[13]) if row[13] else (),
            dropped=row[14],
            twice=bool(row[15]),
        )
        for row in rows
    ]


def kept_counts(conn: Connection, limit: int) -> dict[Status, tuple[int, int]]:
    found = conn.execute(sql("kept_counts"), {"limit": max(limit, 0)}).fetchone()
    ends = (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
    return {status: (found[2 * n], found[2 * n + 1]) for n, status in enumerate(ends)}
