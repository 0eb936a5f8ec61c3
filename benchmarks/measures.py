"""The measures: their names, their units, and the functions that measure them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import archive, drain, enqueue, idle, latency, offered, pinned, pooled, producers
from benchmarks.bench import Bench

FULL_SYNC = {"synchronous": "FULL"}
NORMAL_SYNC = {"synchronous": "NORMAL"}


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    run: Callable[[Bench, str], None]
    unit: str = "jobs/s"
    quick: bool = False
    note: str = ""

    @property
    def is_rate(self) -> bool:
        """True if each system has one number, and a larger one is better."""
        return self.unit == "jobs/s"

    @property
    def on_sqlite(self) -> bool:
        return self.name.startswith("sqlite")


ALL = (
    Measure(
        "enqueue_one", "Enqueue, one by one", lambda b, name: enqueue.measure(b, name, "enqueue_one"), quick=True,
        note="One caller that awaits each enqueue.",
    ),
    Measure(
        "enqueue_concurrent", "Enqueue, 100 concurrent callers",
        lambda b, name: enqueue.measure(b, name, "enqueue_concurrent"), quick=True,
        note="In one process: async tasks, or threads where the library blocks. raw: one INSERT for 100 jobs.",
    ),
    Measure(
        "enqueue_bulk", "Enqueue, in bulk", lambda b, name: enqueue.measure(b, name, "enqueue_bulk"), quick=True,
        note="1,000 jobs per call, by the best call that the system has.",
    ),
    Measure(
        "drain_1", "Drain, one worker process", lambda b, name: drain.measure(b, name, 1), quick=True,
        note="From the first handler's start until all jobs are completed in the store.",
    ),
    Measure(
        "drain_2", "Drain, two worker processes", lambda b, name: drain.measure(b, name, 2), quick=True,
    ),
    Measure(
        "fetch_16", "Fetch, sixteen processes",
        lambda b, name: drain.measure_fetch(b, name, b.named("rowlock", "raw", "pgqueuer", "graphile-worker")),
        unit="jobs/s, not comparable",
        note="No ratios, as this is not the same work: raw and pgqueuer claim one job at a time; `rowlock worker "
        "--concurrency 1` runs one at a time, but claims short jobs ahead; graphile-worker is as in the drains.",
    ),
    Measure(
        "pickup", "Pickup by an idle worker", latency.measure, unit="ms", quick=True,
        note="From before the enqueue call to the handler's start, in another process.",
    ),
    Measure(
        "idle", "An idle worker", idle.measure, unit="MB", quick=True,
        note="After 50 jobs. Memory is the resident set of the largest process; shared memory counts for each process.",
    ),
    Measure(
        "sqlite_enqueue_one", "SQLite: enqueue, one by one, synchronous FULL",
        lambda b, name: enqueue.measure(b, name, "enqueue_one", sqlite=True, options=FULL_SYNC),
    ),
    Measure(
        "sqlite_enqueue_one_normal", "SQLite: enqueue, one by one, synchronous NORMAL",
        lambda b, name: enqueue.measure(b, name, "enqueue_one", sqlite=True, options=NORMAL_SYNC),
    ),
    Measure(
        "sqlite_enqueue_bulk", "SQLite: enqueue, in bulk, synchronous FULL",
        lambda b, name: enqueue.measure(b, name, "enqueue_bulk", sqlite=True, options=FULL_SYNC), quick=True,
    ),
    Measure(
        "sqlite_enqueue_bulk_normal", "SQLite: enqueue, in bulk, synchronous NORMAL",
        lambda b, name: enqueue.measure(b, name, "enqueue_bulk", sqlite=True, options=NORMAL_SYNC),
    ),
    Measure(
        "sqlite_drain_full", "SQLite: drain, one worker process, synchronous FULL",
        lambda b, name: drain.measure(b, name, 1, sqlite=True, options=FULL_SYNC), quick=True,
    ),
    Measure(
        "sqlite_drain_normal", "SQLite: drain, one worker process, synchronous NORMAL",
        lambda b, name: drain.measure(b, name, 1, sqlite=True, options=NORMAL_SYNC),
    ),
    Measure(
        "archive", "Drain beside completed jobs", archive.measure, unit="jobs/s by size",
        note="One worker process. The archive is spread over the last seven days.",
    ),
    Measure(
        "xmin_pinned", "Drain beside a long transaction", pinned.measure, unit="share lost",
        note="A transaction that is older than the jobs holds its snapshot: dead rows can't be vacuumed.",
    ),
    Measure(
        "xmin_offered", "Pickup beside a long transaction", offered.measure, unit="ms by 10 s",
        note="600 jobs a second are offered to one worker process, without such a transaction and beside it.",
    ),
    Measure(
        "producers_32", "32 producers and a worker", producers.measure, unit="jobs/s by kind",
        note="32 processes, each on one connection, enqueue one by one while a worker drains.",
    ),
    Measure(
        "pooled_enqueue", "Through PgBouncer: enqueue, one by one", pooled.measure_enqueue, unit="jobs/s by way",
        note="PgBouncer in transaction mode, on the same machine; without prepared statements.",
    ),
    Measure(
        "pooled_pickup", "Through PgBouncer: pickup by an idle worker", pooled.measure_pickup, unit="ms",
        note="Without listen_url the worker polls every second.",
    ),
)  # fmt: skip
