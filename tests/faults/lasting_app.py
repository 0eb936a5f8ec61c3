"""Handlers that take some seconds, and mark every result, message and row with their run. After a failover, two runs
may have the same version. Only workers use this application."""

import asyncio
import os
import secrets
from pathlib import Path
from typing import Any

from rowlock import Job
from rowlock.context import Context
from rowlock.core.retry import Delays
from tests.proof.history_app import jobs, output
from tests.proof.recorder import Recorder

record = Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"]))


def marked(job: Job) -> dict[str, Any]:
    return output(job) | {"by": job.locked_by, "mark": secrets.token_hex(8)}


async def lasting(job: Job, seconds: float) -> dict[str, Any]:
    await asyncio.sleep(seconds)
    return marked(job)


async def telling(job: Job, ctx: Context, seconds: float) -> dict[str, Any]:
    """Report progress, then return right after the last report."""
    for percent in range(0, 100, 10):
        ctx.progress(percent, message=job.locked_by)
        await asyncio.sleep(seconds / 10)
    ctx.progress(99, message=job.locked_by)
    return marked(job)


async def keeping(job: Job, ctx: Context, seconds: float) -> None:
    """Complete the job and insert a row, in one transaction."""
    await asyncio.sleep(seconds)
    result = marked(job)
    with record.operation("complete", [job.id], version=job.version, result=result, mark=result["mark"]):
        async with ctx.transaction() as conn:
            await conn.execute(f"INSERT INTO marked VALUES ('{result['mark']}', '{job.id}', {job.version})")
            ctx.complete(result)


for handler in (lasting, telling, keeping):
    jobs.register(handler.__name__, handler, retry=Delays((0.05, 0.1)))
