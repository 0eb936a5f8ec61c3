"""The application of the history, with handlers that harm their process after they have returned."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from rowlock import Job
from rowlock.core.retry import Delays
from tests.proof.history_app import app, output
from tests.proof.recorder import Recorder

SOON = Delays((0.05, 0.1))

record = Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"]))
jobs = app(record)


@jobs.task(retry=SOON)
async def cancels_all(job: Job) -> dict[str, Any]:
    expect_the_end(job)
    for task in asyncio.all_tasks():
        task.cancel()
    return output(job)


@jobs.task(retry=SOON)
async def closes_all(job: Job) -> dict[str, Any]:
    expect_the_end(job)
    asyncio.get_running_loop().call_soon(os.closerange, 3, 1024)
    return output(job)


@jobs.task(retry=SOON)
async def exits_after(job: Job) -> dict[str, Any]:
    expect_the_end(job)
    asyncio.get_running_loop().call_soon(os._exit, 3)
    return output(job)


@jobs.task(retry=SOON)
def exits_soon_after(job: Job) -> dict[str, Any]:
    expect_the_end(job)
    threading.Timer(0.002, os._exit, (4,)).start()
    return output(job)


def expect_the_end(job: Job) -> None:
    """Record that the worker is about to die. A child process of the worker, in which suspects run, records nothing."""
    if f"-{os.getpid()}-" in str(job.locked_by):
        record.fault("exit", str(job.locked_by))
