"""Jobs of several steps: each result is stored, so a run that was killed goes on where it stopped.

python examples/steps.py                                           # enqueue a job of each kind
cd examples && rowlock worker steps:jobs                           # run them; kill it with Ctrl-C twice, start it again
rowlock jobs steps ID --url sqlite:///jobs.db                      # what is stored of its steps
"""

import asyncio
from dataclasses import dataclass

from rowlock import Cancel, Context, Jobs, step

jobs = Jobs("sqlite:///jobs.db")
PACE = 0.2  # seconds that a part of the work takes here


@dataclass
class Prepared:
    target: str
    parts: list[str]


@dataclass
class Report:
    target: str
    done: int


@step(title="Prepare the data", timeout=60)
async def prepare(target: str) -> Prepared:
    await asyncio.sleep(PACE)
    return Prepared(target, [f"{target}/{n}" for n in range(1, 6)])


@step(title="Do the work", timeout=300, weight=5)
async def execute(ctx: Context, prepared: Prepared) -> int:
    """One long step. It reports its own progress, and stops when the job is cancelled."""
    for n, part in enumerate(prepared.parts):
        ctx.check()
        ctx.progress(100 * n / len(prepared.parts), message=f"working on {part}")
        await asyncio.sleep(PACE)
    return len(prepared.parts)


@step(title="Do a part of the work")
async def execute_part(part: str) -> int:
    await asyncio.sleep(PACE)
    return len(part)


@step(title="Put the result in order", timeout=30, cancelable=False)
async def finalize(target: str, done: int) -> Report:
    """Return the report. A cancel waits for the end of this step."""
    await asyncio.sleep(PACE)
    return Report(target, done)


@jobs.task(
    "demo_long_task", version=1, title="A long task", steps=[prepare, execute, finalize], key=["target"],
    if_live="reject", timeout=600, max_retries=1, retry=[30, 120], cancel=Cancel(grace=30),
)  # fmt: skip
async def demo_long_task(ctx: Context, target: str) -> Report:
    """Three steps, one after the other."""
    prepared = await ctx.step(prepare, target)
    done = await ctx.step(execute, prepared)
    return await ctx.step(finalize, target, done)


@jobs.task("multi_step_pipeline", version=1, title="A pipeline", steps=[prepare, execute_part, finalize])
async def multi_step_pipeline(ctx: Context, target: str) -> Report:
    """As many steps as there are parts: each part is done once, also if the worker is killed between two of them."""
    prepared = await ctx.step(prepare, target)
    sizes = [await ctx.step(execute_part, part) for part in prepared.parts]
    return await ctx.step(finalize, target, len(sizes))


if __name__ == "__main__":
    jobs.sync.open()
    print(demo_long_task.sync.enqueue(target="films").id)
    print(multi_step_pipeline.sync.enqueue(target="books").id)
    jobs.sync.close()
