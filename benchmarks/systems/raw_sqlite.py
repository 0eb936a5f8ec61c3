"""The limit on SQLite: rowlock's own statements, in a bare loop on one connection."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import marks
from benchmarks.systems import rowlock, rowlock_sqlite
from benchmarks.systems.base import Order, System
from benchmarks.systems.raw import BATCH, DONE, LEASE, PAUSE, new_jobs
from benchmarks.systems.verbs import Payload, Producer, sync_program
from rowlock.core.ids import IdMaker
from rowlock.core.job import Lane
from rowlock.core.lifecycle import Settlement
from rowlock.stores.base import Claim


def open_database(wanted: Order) -> Any:
    from rowlock.stores.sqlite.connect import connect_writer
    from rowlock.stores.sqlite.connection import SqliteConnection

    synchronous = wanted.options.get("synchronous", "FULL").lower()
    return SqliteConnection(
        connect_writer(wanted.url.removeprefix("sqlite:///"), synchronous=synchronous, busy_timeout=30.0)
    )


@contextmanager
def producing(wanted: Order, callers: int) -> Iterator[Producer]:
    from rowlock.stores.sqlite.insert import insert

    database = open_database(wanted)
    ids = IdMaker(time.time_ns, os.urandom)

    def many(payloads: list[Payload]) -> None:
        with database.transaction() as now:
            insert(database.conn, now, new_jobs(ids.many(len(payloads)), payloads))

    yield Producer(lambda payload: many([payload]), many)
    database.conn.close()


def worker(wanted: Order) -> None:
    from rowlock.stores.sqlite.claim import claim
    from rowlock.stores.sqlite.settle import settle

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    database = open_database(wanted)
    wish = Claim(f"raw-{os.getpid()}", (Lane(rowlock.TOPIC),), BATCH, LEASE)
    done: list[Settlement] = []
    while not stopped or done:
        with database.transaction() as now:
            answer = settle(database.conn, now, done, wish).claimed if done else claim(database.conn, now, wish)
        assert answer is not None
        done = []
        for job in answer.jobs:
            marks.seen(job.payload["n"])
            done.append(Settlement(job.id, job.version, DONE, job.locked_by))
        if not done:
            time.sleep(PAUSE)
    database.conn.close()


SYSTEM = System(
    name="raw-sqlite",
    store="sqlite",
    version=rowlock.SYSTEM.version,
    unfinished=rowlock_sqlite.unfinished,
    completed=rowlock_sqlite.completed,
    settings={
        "client": "one connection",
        "worker": f"one loop of settle-and-claim of {BATCH}",
        "database": "rowlock's: WAL, `synchronous` as the round says",
    },
    pace=50_000,
    lacks=frozenset({"produce", "enqueue_concurrent"}),
)

if __name__ == "__main__":
    sync_program(rowlock.setup, producing, worker)
