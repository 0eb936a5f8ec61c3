"""An application of flows: jobs that end in every way, and jobs that start other jobs and wait for them."""

import asyncio
import os
from pathlib import Path
from typing import Any

from rowlock import Job, Jobs, SyncContext
from rowlock.context import Context
from rowlock.core.retry import Delays
from rowlock.errors import Cancelled, ChildFailed, Final
from tests.proof.history_app import output
from tests.proof.recorder import Recorder

HOPELESS = 7  # if a payload says `hopeless`, one piece in so many fails for good


class Handlers:
    async def part(self, job: Job, how: str, seconds: float = 0.0, x: Any = None) -> dict[str, Any]:
        """A job of a flow."""
        await asyncio.sleep(seconds)
        if how == "hopeless" or (how == "flaky" and job.retries == 0):
            raise Final("the card was refused") if how == "hopeless" else ConnectionError("the bank is away")
        if how == "giving_up":
            raise Cancelled("the order was withdrawn")
        return output(job) | {"n": number(job.id)}

    async def piece(self, job: Job, n: int, hopeless: bool = False) -> dict[str, Any]:
        """A job that another job has started."""
        if n % 10 == 3:
            await asyncio.sleep(0.05)
        if n % 10 == 5 and job.retries == 0:
            raise ConnectionError("the bank is away")
        if hopeless and n % HOPELESS == 0:
            raise Final("the card was refused")
        return output(job) | {"n": n}

    async def collecting(self, job: Job, ctx: Context, counts: list[int], hopeless: bool = False) -> dict[str, Any]:
        """Start as many jobs as the first count says and wait for them, then those of the next count."""
        got: list[list[Any]] = []
        for count in counts:
            drafts = [("piece", {"n": n, "hopeless": hopeless}) for n in range(count)]
            found = await ctx.gather(drafts, if_failed="return")
            got.append([None if isinstance(one, ChildFailed) else one["n"] for one in found])
        return output(job) | {"got": got}

    def threaded_collecting(self, job: Job, ctx: SyncContext, counts: list[int]) -> dict[str, Any]:
        got = [[one["n"] for one in ctx.gather([("piece", {"n": n}) for n in range(count)])] for count in counts]
        return output(job) | {"got": got}


def number(job_id: str) -> int:
    """Return the number that conditions test: always the same for the same job."""
    return int(job_id[-2:], 16) % 11


def app(record: Recorder, url: str | None = None) -> Jobs:
    jobs = Jobs(url) if url else Jobs()
    record.watch(jobs)
    handlers = Handlers()
    soon = Delays((0.05, 0.1))
    for name in ("part", "piece", "collecting", "threaded_collecting"):
        jobs.register(name, getattr(handlers, name), retry=soon, max_retries=50)
    return jobs


if folder := os.environ.get("ROWLOCK_PROOF_RECORD"):
    jobs = app(Recorder(Path(folder)))
