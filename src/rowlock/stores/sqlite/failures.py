"""Dead letters in groups: the writer gives them their fingerprints, the reader groups by these."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any

from rowlock.core.codec import decode
from rowlock.core.fingerprint import fingerprint
from rowlock.stores.failures import FailureQuery, Failures, Grouped, asked, cut_error, make_failures
from rowlock.stores.sqlite.rows import json_text, micros, moment, span, sql

_CUT_ERROR = cut_error("substr(j.last_error, 1, {})", "substr(j.last_error, -{})")


def group(conn: Connection, limit: int) -> int:
    found = conn.execute(sql("ungrouped").replace("{error}", _CUT_ERROR), {"limit": max(limit, 0)}).fetchall()
    known = [{"n": n, "fingerprint": fingerprint(topic, error)} for n, topic, error in found]
    conn.executemany(sql("group_failures"), known)
    return len(found)


def read(conn: Connection, now: int, query: FailureQuery) -> Failures:
    seen = sql("failures_newest" if query.fingerprint is None else "failures_of_one")
    known = asked(query)
    known |= {name: None if known[name] is None else micros(known[name]) for name in ("since", "after_last")}
    known |= {"topics": json_text(query.topics) if query.topics else None, "span": span(known["span"]), "now": now}
    text = sql("failures").replace("{seen}", seen).replace("{error}", _CUT_ERROR)
    found = conn.execute(text, known).fetchall()
    groups = [_grouped(row) for row in found if row[0] is not None]
    return make_failures(query, groups, found[0][8], found[0][9])


def _grouped(row: tuple[Any, ...]) -> Grouped:
    known, topic, count, first, last, sample, error, parts, _, _ = row
    return Grouped(known, topic, count, moment(first), moment(last), sample, error, dict(decode(parts)))
