"""An application whose topics have limits."""

import asyncio
import os
from pathlib import Path
from typing import Any

from rowlock import Concurrency, Job, Jobs, Rate
from rowlock.core.retry import Delays
from tests.proof.history_app import output
from tests.proof.recorder import Recorder

RATE = Rate(20, per=1.0, burst=5)
LIMITS: dict[str, list[Any]] = {
    "one": [Concurrency(1, by="tenant")],
    "three": [Concurrency(3, by="tenant"), Concurrency(5)],
    "ten": [Concurrency(10, name="bank")],
    "rated": [RATE, Concurrency(10, name="bank")],
}


async def run(job: Job, tenant: str, seconds: float = 0.0, bad: bool = False) -> dict[str, Any]:
    await asyncio.sleep(seconds)
    if bad and job.retries == 0:
        raise ConnectionError("the bank is away")
    return output(job)


def app(record: Recorder, url: str | None = None) -> Jobs:
    jobs = Jobs(url) if url else Jobs()
    record.watch(jobs)
    for topic, limits in LIMITS.items():
        jobs.register(topic, run, retry=Delays((0.05, 0.1)), max_retries=50, limits=limits)
    return jobs


if folder := os.environ.get("ROWLOCK_PROOF_RECORD"):
    jobs = app(Recorder(Path(folder)))
