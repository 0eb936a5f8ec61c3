"""The steps of the demo's two jobs that have some: a long task, and a pipeline."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from rowlock.context import Context
from rowlock.steps import step


async def _work(ctx: Context, parts: int) -> None:
    """Take a while, report the progress of the step, and stop if the job is cancelled."""
    for part in range(parts):
        ctx.check()
        ctx.progress(100 * part / parts)
        await asyncio.sleep(random.uniform(0.2, 0.5))  # noqa: S311 - a demo


@step(title="Prepare the data", timeout=60)
async def prepare(ctx: Context, target: str) -> list[str]:
    await _work(ctx, 4)
    return [f"{target}/{n}" for n in range(1, 13)]


@step(title="Do the work", timeout=300, weight=5)
async def execute(ctx: Context, parts: list[str]) -> int:
    await _work(ctx, len(parts))
    return len(parts)


@step(title="Put the result in order", timeout=30, cancelable=False)
async def finalize(ctx: Context, done: int) -> dict[str, int]:
    await asyncio.sleep(1.5)
    return {"done": done}


@step(title="Download the document", timeout=60)
async def download(ctx: Context, document: str) -> dict[str, Any]:
    await _work(ctx, 4)
    return {"document": document, "pages": 6, "signed_url": "https://demo:hunter2@example.org/" + document}


@step(title="Split it")
async def split(ctx: Context, text: dict[str, Any]) -> list[str]:
    await _work(ctx, 2)
    return [f"{text['document']}, page {page + 1}" for page in range(text["pages"])]


@step(title="Embed a part", weight=4)
async def embed(ctx: Context, part: str) -> list[float]:
    await _work(ctx, 3)
    return [round(random.uniform(-1, 1), 3) for _ in range(4)]  # noqa: S311 - a demo


@step(title="Upload the vectors", retry=[1, 2, 4], max_retries=3)  # has retries of its own
async def upload(ctx: Context, url: str, vectors: int) -> None:
    await _work(ctx, 2)
    if "down" in url or ctx.job.version < 3:  # the first two runs of a job fail
        raise ConnectionError(f"{url} is not answering")


@step(title="Notify the reader", cancelable=False)
async def notify(ctx: Context, document: str) -> None:
    await asyncio.sleep(0.5)
