"""Dead letters in groups: one writer gives them their fingerprints, the reader groups by them."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any

from rowlock.core.codec import decode
from rowlock.core.fingerprint import fingerprint
from rowlock.stores.failures import (
    MOST_LOOKED_AT,
    TRENDS,
    FailureQuery,
    Failures,
    Grouped,
    cut_error,
    make_failures,
    read_cursor,
)
from rowlock.stores.sqlite.rows import json_text, micros, moment, span, sql

_CUT_ERROR = cut_error("substr(j.last_error, 1, {})", "substr(j.last_error, -{})")


def group(conn: Connection, limit: int) -> int:
    found = conn.execute(sql("ungrouped").replace("{error}", _CUT_ERROR), {"limit": max(limit, 0)}).fetchall()
    known = [{"n": n, "fingerprint": fingerprint(topic, error)} for n, topic, error in found]
    conn.executemany(sql("group_failures"), known)
    return len(found)


def read(conn: Connection, now: int, query: FailureQuery) -> Failures:
    seconds, parts = TRENDS[query.trend]
    seen = sql("failures_newest" if query.fingerprint is None else "failures_of_one")
    asked: dict[str, Any] = {
        "bound": MOST_LOOKED_AT + 1,
        "since": -(1 << 62) if query.since is None else micros(query.since),
        "topics": json_text(query.topics) if query.topics else None,
        "limit": query.limit + 1,
        "span": span(seconds),
        "parts": parts,
        "fingerprint": query.fingerprint,
        "now": now,
    }
    n, last, known = read_cursor(query.cursor)
    asked |= {"after_n": n, "after_last": None if last is None else micros(last), "after_fingerprint": known}
    text = sql("failures").replace("{seen}", seen).replace("{error}", _CUT_ERROR)
    found = conn.execute(text, asked).fetchall()
    groups = [_grouped(row) for row in found if row[0] is not None]
    return make_failures(query, groups, found[0][8], found[0][9])


def _grouped(row: tuple[Any, ...]) -> Grouped:
    known, topic, count, first, last, sample, error, parts, _, _ = row
    return Grouped(known, topic, count, moment(first), moment(last), sample, error, dict(decode(parts)))
