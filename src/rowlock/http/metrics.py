"""Metrics for Prometheus, of the whole queue. They come from the database, so every process returns the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rowlock.client.why import is_live
from rowlock.core.job import LIVE, Status
from rowlock.stores.base import Store
from rowlock.stores.queries import Counts, Stats

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_REQUEUED = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)  # statuses that allow a requeue

Sample = tuple[Mapping[str, str], float]


async def render(store: Store, stats: Stats) -> bytes:
    now = await store.now()
    workers = [worker for worker in await store.workers() if is_live(worker, now)]
    paused = await store.paused()
    topics = stats.topics.items()

    def by_topic(value: Callable[[Counts], float]) -> list[Sample]:
        return [({"topic": name}, value(one)) for name, one in topics]

    families: list[tuple[str, str, str, Iterable[Sample]]] = [
        ("rowlock_jobs", "gauge", "Jobs on their way, by topic and status.", [
            ({"topic": name, "status": status}, getattr(one, status)) for name, one in topics for status in sorted(LIVE)
        ]),
        ("rowlock_oldest_wait_seconds", "gauge", "How long the job has waited that is ready for longest.",
            by_topic(lambda one: one.oldest_wait or 0.0)),
        ("rowlock_ended_jobs_total", "counter", "Ends of jobs, by topic and how; a requeued job can end again.", [
            ({"topic": name, "status": status}, ends) for name, one in topics for status, ends in _ends(one).items()
        ]),
        ("rowlock_requeued_jobs_total", "counter", "Jobs that were requeued, by topic and how they had ended.", [
            ({"topic": name, "status": status}, _requeued(one, status)) for name, one in topics for status in _REQUEUED
        ]),
        ("rowlock_retries_total", "counter", "Failed runs that were tried again.", by_topic(lambda one: one.retried)),
        ("rowlock_lost_leases_total", "counter", "Runs that were taken from a worker that went silent.",
            by_topic(lambda one: one.lost)),
        ("rowlock_execution_seconds_sum", "counter", "Time that completed runs took.",
            by_topic(lambda one: one.execution_time / 1000)),
        ("rowlock_execution_seconds_count", "counter", "Completed runs.", by_topic(lambda one: one.executions)),
        ("rowlock_topic_paused", "gauge", "1 if the topic is paused.", [
            ({"topic": pause.topic}, 1) for pause in paused
        ]),
        ("rowlock_worker_slots", "gauge", "Jobs that live workers can run at once.", [
            ({"worker": worker.name}, worker.concurrency) for worker in workers
        ]),
        ("rowlock_worker_running", "gauge", "Jobs that live workers run.", [
            ({"worker": worker.name}, worker.running) for worker in workers
        ]),
    ]  # fmt: skip
    lines: list[str] = []
    for name, kind, text, samples in families:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_labels(labels)}}} {value!r}" for labels, value in samples]
    return ("\n".join(lines) + "\n").encode()


def _ends(one: Counts) -> dict[Status, int]:
    """Return how many jobs ended in each status. `Counts` leaves out requeued jobs, so its numbers can fall."""
    dead = {status: getattr(one, status) + _requeued(one, status) for status in _REQUEUED}
    return {Status.COMPLETED: one.completed, **dead}


def _requeued(one: Counts, status: Status) -> int:
    count: int = getattr(one, f"requeued_{status}")
    return count


_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
