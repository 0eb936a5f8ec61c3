"""The application of `rowlock bench`: it starts `rowlock worker` with this module."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from rowlock.cli.bench_runs import TOPIC
from rowlock.jobs import Jobs

jobs = Jobs(migrate=False)  # the database is in the environment


@jobs.task(os.environ[TOPIC], max_retries=0)
async def work(sleep: float = 0.0, sent: int | None = None, fill: str = "") -> int | None:
    """Return the nanoseconds from `sent` to the start, by the clock that all processes of a machine share."""
    waited = None if sent is None else time.monotonic_ns() - sent
    if sleep:
        await asyncio.sleep(sleep)
    return waited


def _follow(supervisor: int) -> None:
    """End the workers with `rowlock bench`, even if it is killed: stdin is a pipe that closes with it."""
    sys.stdin.buffer.read()
    if os.getppid() == supervisor:  # else it has ended, and another process may have its id
        os.kill(supervisor, signal.SIGTERM)


threading.Thread(target=_follow, args=(os.getppid(),), name="rowlock-bench", daemon=True).start()
