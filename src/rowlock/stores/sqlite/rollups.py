"""Notes of events, rollups of notes, and charts of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from sqlite3 import Connection

from rowlock.core.sketch import Sketch
from rowlock.stores.rollups import ALL, KEPT, Key, Rollup, packed, roll_up
from rowlock.stores.series import Series, Window, make_series
from rowlock.stores.sqlite.rows import micros, span, sql

Runs = tuple[list[int], list[int]]  # the microseconds that runs with a beginning waited, and ran

_SECOND = 1_000_000


def note(conn: Connection, now: int, topic: str, counts: Sequence[int], runs: Runs | None) -> None:
    """Note how many jobs completed, failed, expired, were cancelled, retried, lost; and the times of runs that
    ended."""
    waits, took = (None, None) if runs is None else (packed(Sketch.of(durations)) for durations in runs)
    conn.execute(sql("note"), (now, topic, *counts, waits, took))


def note_enqueued(conn: Connection, now: int, topics: Mapping[str, int]) -> None:
    for topic, count in topics.items():
        conn.execute(sql("note_enqueued"), (now, topic, count))


def note_returned(conn: Connection, now: int, topic: str, *, requeued: int = 0, deleted: int = 0) -> None:
    """Note how many ended jobs were requeued, and how many pending jobs were deleted."""
    conn.execute(sql("note_returned"), (now, topic, requeued, deleted))


def is_waiting(conn: Connection) -> bool:
    """Return True if there are notes to fold."""
    (found,) = conn.execute(sql("notes_waiting")).fetchone()
    return bool(found)


def fold(conn: Connection, limit: int) -> int:
    notes = conn.execute(sql("notes"), (max(limit, 0),)).fetchall()
    if not notes:
        return 0
    conn.execute(sql("notes_folded"), (notes[-1][0],))
    rollups = roll_up(
        (topic, second, Rollup(counts, Sketch.unpack(waits), Sketch.unpack(runs)))
        for _, topic, second, *counts, waits, runs in notes
    )
    for key, rollup in rollups.items():
        _add(conn, key, rollup)
    return len(notes)


def _add(conn: Connection, key: Key, rollup: Rollup) -> None:
    where = key.span, key.topic, key.at * _SECOND
    if rollup.runs and (found := conn.execute(sql("rollup_sketches"), where).fetchone()):
        waits, runs = found
        rollup.waits.merge(Sketch.unpack(waits))
        rollup.runs.merge(Sketch.unpack(runs))
    conn.execute(sql("rollup_add"), (*where, *rollup.counts, packed(rollup.waits), packed(rollup.runs)))


def sweep(conn: Connection, now: int, limit: int) -> int:
    swept = 0
    for long, kept in KEPT.items():
        old = {"span": long, "since": now - span(kept), "limit": max(limit - swept, 0)}
        swept += conn.execute(sql("rollup_sweep"), old).rowcount
    return swept


def series(conn: Connection, topic: str | None, window: Window) -> Series:
    of_topic = "" if topic is None else "AND topic = :topic"
    asked = {"span": window.span, "topic": topic or ALL} | _bounds(*window.times)
    found = conn.execute(sql("series").replace("{of_topic}", of_topic), asked).fetchall()
    rollups = (
        (second, Rollup(counts, Sketch.unpack(waits), Sketch.unpack(runs))) for second, *counts, waits, runs in found
    )
    return make_series(topic, window, rollups)


def _bounds(since: datetime, until: datetime) -> dict[str, int]:
    return {"since": micros(since), "until": micros(until)}
