"""What becomes of jobs and of their runs, by topic: counted in the transaction that does it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from sqlite3 import Connection

from rowlock.core.job import Status
from rowlock.stores.sqlite.rows import sql

_COLUMN = {Status.COMPLETED: 0, Status.FAILED: 1, Status.EXPIRED: 2, Status.CANCELLED: 3}
_EXECUTIONS, _EXECUTION_US, _RETRIED, _LOST = 4, 5, 6, 7

Ended = tuple[str, Status, int | None]  # topic, how, and for how many microseconds it ran


def count(
    conn: Connection, ended: Iterable[Ended], sign: int = 1, *, retried: Iterable[str] = (), lost: Iterable[str] = ()
) -> None:
    """Jobs that have ended; with sign -1, jobs that are taken back. Whatever has not ended is passed over.

    `retried` and `lost` are the topics of runs that were put back for a retry, or taken from who had them.
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
    add(conn, topics)


def add(conn: Connection, topics: dict[str, list[int]]) -> None:
    """To the totals: by topic, the columns of _jobs_totals in their order."""
    if topics:
        every = [sum(column) for column in zip(*topics.values(), strict=True)]
        conn.executemany(sql("count"), [("", *every), *((topic, *counts) for topic, counts in topics.items())])
