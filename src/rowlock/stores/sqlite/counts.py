"""Counts the ends of jobs and of their runs, by topic, in the transaction that ends them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from sqlite3 import Connection

from rowlock.core.job import Status
from rowlock.stores.sqlite.rollups import Runs, note, note_returned
from rowlock.stores.sqlite.rows import sql

_COMPLETED, _FAILED, _EXPIRED, _CANCELLED = range(4)
_COLUMN = {
    Status.COMPLETED: _COMPLETED,
    Status.FAILED: _FAILED,
    Status.EXPIRED: _EXPIRED,
    Status.CANCELLED: _CANCELLED,
}
_EXECUTIONS, _EXECUTION_US, _RETRIED, _LOST, _REQUEUED = range(4, 9)

Ended = tuple[str, Status, int | None]  # topic, the status after it, and the microseconds of the run


def count(conn: Connection, now: int, ended: Iterable[Ended], retried: Iterable[str], runs: Mapping[str, Runs]) -> None:
    """Count jobs that have ended. Jobs in `ended` that have not ended are passed over.

    `retried`: the topics of runs that were put back for a retry. `runs`: by topic, the times of the runs that ended by
    themselves.
    """
    topics: defaultdict[str, list[int]] = defaultdict(lambda: [0] * _REQUEUED)
    for topic, status, took in ended:
        column = _COLUMN.get(status)
        if column is None:
            continue
        counts = topics[topic]
        counts[column] += 1
        if took is not None:
            counts[_EXECUTIONS] += 1
            counts[_EXECUTION_US] += took
    for topic in retried:
        topics[topic][_RETRIED] += 1
    add(conn, now, topics, runs)


def add_moves(conn: Connection, now: int, tallies: Mapping[str, Counter[str]]) -> None:
    """Count the tallies of patches (core.moves.COUNTERS), by topic. A requeue takes an end back: its count is
    negative."""
    ends: dict[str, list[int]] = {}
    requeues: dict[str, list[int]] = {}
    for topic, tally in tallies.items():
        if tally["deleted"]:
            note_returned(conn, now, topic, deleted=tally["deleted"])
            continue
        row = [0, tally["failed"], tally["expired"], tally["cancelled"], 0, 0, tally["retried"], tally["lost"]]
        (requeues if min(row) < 0 else ends)[topic] = row
    add(conn, now, ends)
    add(conn, now, requeues, is_new=False)


def add(
    conn: Connection,
    now: int,
    topics: dict[str, list[int]],
    runs: Mapping[str, Runs] | None = None,
    *,
    is_new: bool = True,
) -> None:
    """Add to the totals: by topic, the columns of _jobs_totals in their order, up to `lost`. Also note it for the
    rollups. `is_new` False: these are requeues. They take ends back from the totals, and are noted as requeues."""
    if topics:
        rows = [(topic, *_row(counts, is_new)) for topic, counts in topics.items()]
        every = [sum(column) for column in zip(*(row[1:] for row in rows), strict=True)]
        conn.executemany(sql("count"), [("", *every), *rows])
        for topic, counts in topics.items():
            if not is_new:
                note_returned(conn, now, topic, requeued=-sum(counts[:_EXECUTIONS]))
            else:
                note(conn, now, topic, [*counts[:_EXECUTIONS], *counts[_RETRIED:]], runs.get(topic) if runs else None)


def _row(counts: list[int], is_new: bool) -> list[int]:
    """Return all counters of a topic. The time of runs is at least 0, also if the clock was set back: no counter of
    time may fall."""
    row = [*counts, *([0, 0, 0] if is_new else [-ends for ends in counts[_FAILED : _CANCELLED + 1]])]
    row[_EXECUTION_US] = max(row[_EXECUTION_US], 0)
    return row
