"""report, retire, workers: the workers' register."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from sqlite3 import Connection
from typing import Any

from msgspec import structs

from rowlock.core.codec import decode
from rowlock.stores.base import WorkerInfo
from rowlock.stores.sqlite.rows import json_text, moment, sql


def report(conn: Connection, now: int, worker: WorkerInfo) -> datetime:
    conn.execute(sql("report"), structs.asdict(worker) | {"topics": json_text(worker.topics), "now": now})
    return moment(now)


def retire(conn: Connection, names: Sequence[str]) -> int:
    return conn.execute(sql("retire"), (json_text(list(names)),)).rowcount


def workers(conn: Connection) -> list[WorkerInfo]:
    return [_worker(row) for row in conn.execute(sql("workers")).fetchall()]


def _worker(row: tuple[Any, ...]) -> WorkerInfo:
    name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen = row
    return WorkerInfo(
        name=name,
        host=host,
        pid=pid,
        topics=tuple(decode(topics)),
        concurrency=concurrency,
        running=running,
        lease=lease,
        stopping=bool(stopping),
        rowlock=rowlock,
        started=moment(started),
        seen=moment(seen),
    )
