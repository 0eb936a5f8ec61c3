"""What the workers of `rowlock bench` run: `rowlock worker` is started on this module by it, and by nobody else."""

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
    """How many nanoseconds after `sent` it began, by the clock that all processes of a machine have in common."""
    waited = None if sent is None else time.monotonic_ns() - sent
    if sleep:
        await asyncio.sleep(sleep)
    return waited


def _follow(supervisor: int) -> None:
    """Nobody writes to stdin: it ends with the process that measures, even if that one is killed."""
    sys.stdin.buffer.read()
    if os.getppid() == supervisor:  # else it is gone, and the number may be someone else's
        os.kill(supervisor, signal.SIGTERM)


threading.Thread(target=_follow, args=(os.getppid(),), name="rowlock-bench", daemon=True).start()
