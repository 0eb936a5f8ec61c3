"""Numbers for Prometheus, of the whole queue: from the database, so that it doesn't matter which process is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rowlock.client.why import is_live
from rowlock.core.job import LIVE, Status
from rowlock.stores.base import Store
from rowlock.stores.reading import Stats

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_ENDED = (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)

Sample = tuple[Mapping[str, str], float]


async def render(store: Store, stats: Stats) -> bytes:
    now = await store.now()
    workers = [worker for worker in await store.workers() if is_live(worker, now)]
    paused = await store.paused()
    topics = stats.topics.items()
    families: list[tuple[str, str, str, Iterable[Sample]]] = [
        ("rowlock_jobs", "gauge", "Jobs on their way, by topic and status.", [
            ({"topic": name, "status": status}, getattr(one, status)) for name, one in topics for status in sorted(LIVE)
        ]),
        ("rowlock_oldest_wait_seconds", "gauge", "How long the job has waited that is ready for longest.", [
            ({"topic": name}, one.oldest_wait or 0.0) for name, one in topics
        ]),
        ("rowlock_ended_jobs_total", "counter", "Jobs that ended, by topic and how; a requeue takes back its end.", [
            ({"topic": name, "status": status}, getattr(one, status)) for name, one in topics for status in _ENDED
        ]),
        ("rowlock_retries_total", "counter", "Failed runs that were tried again.", [
            ({"topic": name}, one.retried) for name, one in topics
        ]),
        ("rowlock_lost_leases_total", "counter", "Runs that were taken from a worker that went silent.", [
            ({"topic": name}, one.lost) for name, one in topics
        ]),
        ("rowlock_execution_seconds_sum", "counter", "Time that completed runs took.", [
            ({"topic": name}, (one.avg_execution_time or 0.0) * one.executions / 1000) for name, one in topics
        ]),
        ("rowlock_execution_seconds_count", "counter", "Completed runs.", [
            ({"topic": name}, one.executions) for name, one in topics
        ]),
        ("rowlock_topic_paused", "gauge", "1: no job of this topic is started.", [
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


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
