"""The demo's limits: questions to a language model. Its provider allows some at once, and some for each tenant."""

from __future__ import annotations

import asyncio
import random

from rowlock.context import Context
from rowlock.core.limits import Concurrency, Rate
from rowlock.jobs import Jobs

ASK = "llm.complete"
TENANTS = {"acme": 9, "globex": 2, "initech": 1}  # and how many questions they ask at once
_LIMITS = (Concurrency(2, name="llm"), Rate(20, per=60, by="scope_id", name="llm"))


async def complete(ctx: Context, prompt: str) -> str:
    for percent in range(0, 100, 25):
        ctx.check()
        ctx.progress(percent, message="thinking")
        await asyncio.sleep(random.uniform(0.1, 0.3))  # noqa: S311 - a demo
    return prompt[::-1]


async def embed(text: str) -> list[float]:
    await asyncio.sleep(0.2)
    return [float(len(text))]


def register_limits(jobs: Jobs) -> None:
    """Both topics use the same account, so they share its limits."""
    jobs.task(ASK, limits=_LIMITS, fair="scope_id", title="Ask a language model")(complete)
    jobs.task("llm.embed", limits=_LIMITS, fair="scope_id", title="Embed a text")(embed)
