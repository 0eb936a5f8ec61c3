"""Handlers in C, Rust and JavaScript, each in a sandbox. Run it in this folder:  python app.py

It enqueues one job of each, runs a worker until they have ended, and prints the results. A worker of its own would be:
rowlock worker app:jobs
"""

import asyncio
import base64
from pathlib import Path

from rowlock import Context, Filter, Jobs

HERE = Path(__file__).parent
jobs = Jobs("sqlite:///wasm.db")


def image(width: int, height: int, pixels: str, factor: int = 2) -> dict[str, int | str]:
    """Scale a gray image down."""
    raise NotImplementedError  # never called: it declares the types for callers and for the template


# C. `signature` makes type checkers, the client and the database check the payload.
thumbnail = jobs.wasm("thumbnail", HERE / "thumbnail.wasm", signature=image, memory=8 << 20, timeout=30)
# Rust. It may enqueue jobs of one topic.
words = jobs.wasm("words", HERE / "words.wasm", enqueue=["words.report"], timeout=30)
# JavaScript, in an interpreter that is part of the module.
order = jobs.wasm("order", HERE / "javascript.wasm", memory=32 << 20, timeout=30)


@jobs.task("words.report")
async def report(ctx: Context, words: int, longest: str) -> str:
    return f"{words} words, the longest is {longest!r}"


async def main() -> None:
    pixels = bytes(range(0, 256, 4))  # 8 × 8
    async with jobs:
        await jobs.start()
        made = [
            await thumbnail.enqueue(width=8, height=8, pixels=base64.b64encode(pixels).decode(), factor=4),
            await words.enqueue(text="the quick brown fox jumps", report_to="words.report"),
            await order.enqueue(items=[{"name": "tea", "price": 300, "count": 2}, {"name": "bread", "price": 250}]),
        ]
        for one in made:
            job = await jobs.wait(one.id, timeout=60)
            print(job.topic, job.status, job.result if job.last_error is None else job.last_error)
        [reported] = (await jobs.list(Filter(topics=["words.report"]), limit=1)).items
        print((await jobs.wait(reported.id, timeout=60)).result)


if __name__ == "__main__":
    asyncio.run(main())
