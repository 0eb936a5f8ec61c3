"""The verbs that read jobs: a snapshot each, on the connection that only reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from sqlite3 import Connection
from typing import TypeVar

from msgspec import structs

from rowlock.core.codec import decode
from rowlock.core.job import Event, Job, Lane, Status
from rowlock.core.steps import with_step_events
from rowlock.core.verify import StoredRow
from rowlock.stores.base import Beat, InLine, in_line
from rowlock.stores.driver_neutral import drive
from rowlock.stores.listing import find, find_newest, make_page, page_ids
from rowlock.stores.queries import BOUND, MAX_TOPICS, OWN_WINDOW, Filter, Page, Place, Stats, Tally, make_stats
from rowlock.stores.sqlite.connection import rollback
from rowlock.stores.sqlite.listing import look
from rowlock.stores.sqlite.rows import (
    READERS,
    Times,
    event,
    json_text,
    read_sql,
    sql,
    step,
    stored_row,
    stored_rows_sql,
)

T = TypeVar("T")


def list_jobs(conn: Connection, filter: Filter, place: Place) -> Page:
    """Return a page. In a transaction, so that the page and its jobs belong together."""
    try:
        conn.execute("BEGIN")
        found = drive(find(filter, place), partial(look, conn, filter))
        return make_page(found, place, read(conn, page_ids(found, place), Job))
    finally:
        rollback(conn)  # there is nothing to commit


def read(conn: Connection, ids: Sequence[str], shape: type[T]) -> dict[str, T]:
    found = conn.execute(read_sql(shape), {"ids": json_text(list(set(ids)))}).fetchall()
    make, times = READERS[shape], Times()
    return {row[0]: make(row, times) for row in found}


def held_by(conn: Connection, workers: Sequence[str], limit: int | None) -> list[Beat]:
    asked = (json_text(list(workers)), -1 if limit is None else max(limit, 0))
    found = conn.execute(sql("held_by"), asked).fetchall()
    return [Beat(job_id, version, bool(started), worker) for job_id, version, started, worker in found]


def events(conn: Connection, job_id: str) -> list[Event]:
    events = [event(row) for row in conn.execute(sql("events"), (job_id,)).fetchall()]
    ended = conn.execute(sql("ended_steps"), {"id": job_id}).fetchall()
    return with_step_events(events, [step(row) for row in ended])


def count_ready(conn: Connection, lanes: Sequence[Lane], limit: int) -> list[int]:
    asked = [{**structs.asdict(lane), "limit": max(limit, 0)} for lane in lanes]
    return [conn.execute(sql("count_ready"), one).fetchone()[0] for one in asked]


def place_in_line(conn: Connection, job_id: str, limit: int) -> InLine | None:
    found = conn.execute(sql("place_in_line"), {"id": job_id, "bound": limit + 1}).fetchone()
    if found is None:
        return None
    is_head, head, before, ahead, behind = found
    return in_line(job_id, bool(is_head), head, before, (ahead, behind), limit)


def newest(conn: Connection, filter: Filter, limit: int) -> list[str]:
    return drive(find_newest(filter, limit), partial(look, conn, filter))


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


def stats(conn: Connection, now: int, topic: str | None) -> Stats:
    text = sql("stats").replace("{of_topic}", "" if topic is None else "AND topic = :topic")
    # One row is for all topics, one more tells that there are more.
    bounds = {"bound": BOUND, "topics": MAX_TOPICS + 2}
    found = conn.execute(text, {"topic": topic, "now": now} | bounds).fetchall()
    live = [Tally(*row[:5]) for row in found if row[0] is not None]
    return make_stats(topic, live, [(row[1], decode(row[5])) for row in found if row[0] is None])


def stored_rows(conn: Connection, *, archived: bool, before: str | None, limit: int) -> list[StoredRow]:
    where = {"before": "g" if before is None else before, "limit": max(limit, 0)}  # g: behind every hexadecimal id
    times = Times()
    return [stored_row(row, times) for row in conn.execute(stored_rows_sql(archived=archived), where).fetchall()]


def end_counts(conn: Connection, limit: int) -> dict[Status, tuple[int, int]]:
    found = conn.execute(sql("end_counts"), {"limit": max(limit, 0)}).fetchone()
    ends = (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
    return {status: (found[2 * n], found[2 * n + 1]) for n, status in enumerate(ends)}
