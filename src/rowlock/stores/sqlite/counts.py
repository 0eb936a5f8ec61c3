"""What becomes of jobs and of their runs, by topic: counted in the transaction that does it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from sqlite3 import Connection

from rowlock.core.job import Status
from rowlock.stores.sqlite.rollups import Runs, note, note_returned
from rowlock.stores.sqlite.rows import sql

_COLUMN = {Status.COMPLETED: 0, Status.FAILED: 1, Status.EXPIRED: 2, Status.CANCELLED: 3}
_EXECUTIONS, _EXECUTION_US, _RETRIED, _LOST = 4, 5, 6, 7

Ended = tuple[str, Status, int | None]  # topic, how, and for how many microseconds it ran


def count(
    conn: Connection,
    now: int,
    ended: Iterable[Ended],
    sign: int = 1,
    *,
    retried: Iterable[str] = (),
    lost: Iterable[str] = (),
    runs: Mapping[str, Runs] | None = None,
) -> None:
    """Jobs that have ended; with sign -1, jobs that are taken back. Whatever has not ended is passed over.

    `retried` and `lost` are the topics of runs that were put back for a retry, or taken from who had them. `runs`:
    by topic, how long those took that ended by themselves.
    """
    topics: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 8)
    for topic, status, took in ended:
        column = _COLUMN.get(status)
        if column is None:
            continue
        counts = topics[topic]
        counts[column] += sign
        if took is not None:
            counts[_EXECUTIONS] += 1
            counts[_EXECUTION_US] += took
    for topic in retried:
        topics[topic][_RETRIED] += 1
    for topic in lost:
        topics[topic][_LOST] += 1
    add(conn, now, topics, runs, is_new=sign > 0)


def add(
    conn: Connection,
    now: int,
    topics: dict[str, list[int]],
    runs: Mapping[str, Runs] | None = None,
    *,
    is_new: bool = True,
) -> None:
    """To the totals: by topic, the columns of _jobs_totals in their order. And a note for the rollups: if it is not
    `is_new`, of a requeue, since an end that is taken back has happened all the same."""
    if topics:
        every = [sum(column) for column in zip(*topics.values(), strict=True)]
        conn.executemany(sql("count"), [("", *every), *((topic, *counts) for topic, counts in topics.items())])
        for topic, counts in topics.items():
            if not is_new:
                note_returned(conn, now, topic, requeued=-sum(counts[:_EXECUTIONS]))
            else:
                note(conn, now, topic, [*counts[:_EXECUTIONS], *counts[_RETRIED:]], runs.get(topic) if runs else None)
