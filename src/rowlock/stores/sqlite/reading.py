"""list and stats: a snapshot each, on the connection that only reads."""

from __future__ import annotations

from sqlite3 import Connection

from rowlock.core.codec import decode
from rowlock.stores.listing import Found, find, make_page, page_ids
from rowlock.stores.reading import BOUND, MAX_TOPICS, Filter, Page, Place, Stats, Tally, make_stats
from rowlock.stores.sqlite.listing import look
from rowlock.stores.sqlite.rows import Times, job, json_text, sql


def list_jobs(conn: Connection, filter: Filter, place: Place) -> Page:
    """In a transaction, so that a page and its jobs belong together."""
    found = _find(conn, filter, place)
    got = conn.execute(sql("get"), {"ids": json_text(page_ids(found, place))}).fetchall()
    times = Times()
    return make_page(found, place, {row[0]: job(row, times) for row in got})


def _find(conn: Connection, filter: Filter, place: Place) -> Found:
    search = find(filter, place)
    try:
        step = next(search)
        while True:
            step = search.send(look(conn, filter, step))
    except StopIteration as end:
        found: Found = end.value
        return found


def stats(conn: Connection, topic: str | None) -> Stats:
    text = sql("stats").replace("{of_topic}", "" if topic is None else "AND topic = :topic")
    # One row is for all topics, one more tells that there are more.
    found = conn.execute(text, {"topic": topic, "bound": BOUND, "topics": MAX_TOPICS + 2}).fetchall()
    live = [Tally(branch, name, status, n) for branch, name, status, n, _ in found if branch is not None]
    return make_stats(topic, live, [(row[1], decode(row[4])) for row in found if row[0] is None])
