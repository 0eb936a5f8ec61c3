"""How jobs have ended, by topic: counted in the transaction that ends them."""

from __future__ import annotations

from collections.abc import Iterable
from sqlite3 import Connection

from rowlock.core.job import Status
from rowlock.stores.sqlite.rows import sql

_COLUMN = {Status.COMPLETED: 0, Status.FAILED: 1, Status.EXPIRED: 2, Status.CANCELLED: 3}
_EXECUTIONS, _EXECUTION_US = 4, 5

Ended = tuple[str, Status, int | None]  # topic, how, and for how many microseconds it ran


def count(conn: Connection, ended: Iterable[Ended], sign: int = 1) -> None:
    """Jobs that have ended; with sign -1, jobs that are taken back. Whatever has not ended is passed over."""
    topics: dict[str, list[int]] = {}
    for topic, status, took in ended:
        column = _COLUMN.get(status)
        if column is None:
            continue
        counts = topics.get(topic)
        if counts is None:
            counts = topics[topic] = [0] * 6
        counts[column] += sign
        if took is not None:
            counts[_EXECUTIONS] += 1
            counts[_EXECUTION_US] += took
    add(conn, topics)


def add(conn: Connection, topics: dict[str, list[int]]) -> None:
    """To the totals: by topic, the columns of _jobs_totals in their order."""
    if topics:
        every = [sum(column) for column in zip(*topics.values(), strict=True)]
        conn.executemany(sql("count"), [("", *every), *((topic, *counts) for topic, counts in topics.items())])
