"""The application whose schedules fire, and an operator who changes them.

As a program it is the operator: it reads one JSON order per line and answers with a line. The operator has its own
process, so that it can have the clock of its machine.
"""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from rowlock import Job, Jobs
from rowlock.core.schedules import read_definition
from rowlock.errors import RowlockError
from tests.proof.recorder import Recorder

jobs = Jobs()
Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"])).watch(jobs)


@jobs.task
async def tick(job: Job, at: str, schedule: str) -> str:
    """Return the nominal time, as the handler sees it."""
    return str(job.fire_at)


@jobs.task
async def slow(job: Job, at: str, schedule: str, seconds: float) -> str:
    """Take longer than the schedule's interval. Return the nominal time."""
    await asyncio.sleep(seconds)
    return str(job.fire_at)


async def obey(order: dict[str, Any]) -> None:
    verb, name = order["verb"], order["name"]
    match verb:
        case "put":
            given = read_definition(order["definition"])
            rest = {
                one: getattr(given, one) for one in ("missed", "most", "within", "if_live", "start", "end", "jitter")
            }
            await jobs.schedules.put(name, (given.topic, given.payload), given.when, **rest)
        case "backfill":
            now = await (await jobs._store()).now()
            await jobs.schedules.backfill(name, now - timedelta(seconds=order["seconds"]), now)
        case _:
            await getattr(jobs.schedules, verb)(name)


async def operate() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            await obey(msgspec.json.decode(line))
            print("ok", flush=True)
        except RowlockError as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
    await jobs.close()


if __name__ == "__main__":
    asyncio.run(operate())
