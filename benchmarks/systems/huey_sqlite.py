"""huey on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.systems.base import Order, System
from benchmarks.systems.huey import make_noop
from benchmarks.systems.verbs import Producer, sync_program, version_of

PREFIX = "sqlite:///"


def make_app(wanted: Order) -> Any:
    from huey import SqliteHuey
    from huey.storage import SqliteStorage

    class Storage(SqliteStorage):
        """Sets `synchronous` as the round says, also to NORMAL: huey's `fsync` knows only FULL and OFF."""

        def _create_connection(self) -> sqlite3.Connection:
            connection: sqlite3.Connection = super()._create_connection()
            connection.execute(f"PRAGMA synchronous = {wanted.options.get('synchronous', 'FULL')}")
            return connection

    return SqliteHuey("bench", filename=wanted.url.removeprefix(PREFIX), storage_class=Storage)


def setup(wanted: Order) -> None:
    make_app(wanted).storage.close()


@contextmanager
def producing(wanted: Order, callers: int) -> Iterator[Producer]:
    app = make_app(wanted)
    noop = make_noop(app)
    app.pending_count()
    yield Producer(noop, noop.map)
    app.storage.close()


def worker(wanted: Order) -> None:
    app = make_app(wanted)
    make_noop(app)
    app.create_consumer(
        workers=1, worker_type="thread", initial_delay=0.01, max_delay=0.02, graceful_signal="TERM", shutdown_timeout=5
    ).run()


async def unfinished(url: str) -> int:
    with closing(sqlite3.connect(url.removeprefix(PREFIX), timeout=30)) as connection:
        return int(
            connection.execute("SELECT (SELECT count(*) FROM task) + (SELECT count(*) FROM schedule)").fetchone()[0]
        )


SYSTEM = System(
    name="huey-sqlite",
    store="sqlite",
    version=version_of("huey"),
    unfinished=unfinished,
    settings={
        "worker": "consumer with 1 thread, polls every 10 to 20 ms (default: 0.1 to 10 s)",
        "database": "WAL, `synchronous` as the round says",
        "safety": "a job is deleted when it is claimed: a crash loses it",
        "results": "default: stored unless None; keeps no record of jobs without a result",
        "bulk": "task.map(), which inserts one by one",
    },
    pace=4000,
)

if __name__ == "__main__":
    sync_program(setup, producing, worker)
