"""The verbs that read jobs. Each reads one snapshot, on the connection that only reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from sqlite3 import Connection
from typing import Any, TypeVar, cast

from msgspec import structs

from rowlock.core.codec import decode
from rowlock.core.job import History, Job, Lane, Status
from rowlock.core.steps import StoredSteps, with_step_events
from rowlock.core.verify import StepOwner, StoredRow
from rowlock.stores.base import MOST_COUNTED, Beat, InLine, Part, in_line
from rowlock.stores.driver_neutral import drive
from rowlock.stores.flows import StoredEdges
from rowlock.stores.listing import find, find_newest, make_page, page_ids
from rowlock.stores.queries import BOUND, MAX_TOPICS, OWN_WINDOW, Filter, Page, Place, Stats, Tally, make_stats
from rowlock.stores.sqlite.connection import rollback
from rowlock.stores.sqlite.flows import edges_of
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
    if (read_one := _ONE_BY_ONE.get(shape)) is not None:
        one_by_one = {job_id: read_one(conn, job_id) for job_id in ids}
        return {job_id: one for job_id, one in one_by_one.items() if one is not None}
    if shape is StoredEdges:
        return cast(dict[str, T], edges_of(conn, ids))
    found = conn.execute(read_sql(shape), {"ids": json_text(list(set(ids)))}).fetchall()
    make, times = READERS[shape], Times()
    return {row[0]: make(row, times) for row in found}


def _stored_steps(conn: Connection, job_id: str) -> StoredSteps | None:
    found = conn.execute(sql("steps"), (job_id,)).fetchall()
    return StoredSteps([step(row) for row in found]) if found else None


def _history(conn: Connection, job_id: str) -> History | None:
    events = [event(row) for row in conn.execute(sql("events"), (job_id,)).fetchall()]
    ended = conn.execute(sql("ended_steps"), {"id": job_id}).fetchall()
    return History(with_step_events(events, [step(row) for row in ended])) if events else None


def _in_line(conn: Connection, job_id: str) -> InLine | None:
    found = conn.execute(sql("place_in_line"), {"id": job_id, "bound": MOST_COUNTED + 1}).fetchone()
    return None if found is None else in_line(job_id, MOST_COUNTED, *found)


_ONE_BY_ONE: dict[type, Callable[[Connection, str], Any]] = {
    StoredSteps: _stored_steps,
    History: _history,
    InLine: _in_line,
}


def held_by(conn: Connection, workers: Sequence[str], limit: int | None) -> list[Beat]:
    asked = (json_text(list(workers)), -1 if limit is None else max(limit, 0))
    found = conn.execute(sql("held_by"), asked).fetchall()
    return [Beat(job_id, version, bool(started), worker) for job_id, version, started, worker in found]


def count_ready(conn: Connection, lanes: Sequence[Lane], limit: int) -> list[int]:
    asked = [{**structs.asdict(lane), "limit": max(limit, 0)} for lane in lanes]
    return [conn.execute(sql("count_ready"), one).fetchone()[0] for one in asked]


def newest(conn: Connection, filter: Filter, limit: int) -> list[str]:
    return drive(find_newest(filter, limit), partial(look, conn, filter))


def newest_of_scope(conn: Connection, filter: Filter, limit: int) -> list[str] | None:
    """Return the ids of the newest jobs of the scope that meet the filter. None: too few were found among the scope's
    newest."""
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
    # One row is for all topics, one more row tells that there are more.
    bounds = {"bound": BOUND, "topics": MAX_TOPICS + 2}
    found = conn.execute(text, {"topic": topic, "now": now} | bounds).fetchall()
    live = [Tally(*row[:5]) for row in found if row[0] is not None]
    return make_stats(topic, live, [(row[1], decode(row[5])) for row in found if row[0] is None])


def stored_rows(conn: Connection, part: Part, before: str | None, limit: int) -> list[StoredRow] | list[StepOwner]:
    where = {"before": "g" if before is None else before, "limit": max(limit, 0)}  # g: behind every hexadecimal id
    if part == "steps":
        owners = dict(conn.execute(sql("step_owners"), where).fetchall())
        return [StepOwner(job_id, bool(exists)) for job_id, exists in owners.items()]
    times = Times()
    found = conn.execute(stored_rows_sql(archived=part == "archive"), where).fetchall()
    return [stored_row(row, times) for row in found]


def end_counts(conn: Connection, limit: int) -> dict[Status, tuple[int, int]]:
    found = conn.execute(sql("end_counts"), {"limit": max(limit, 0)}).fetchone()
    ends = (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
    return {status: (found[2 * n], found[2 * n + 1]) for n, status in enumerate(ends)}
