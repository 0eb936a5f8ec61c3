"""A topic whose workers are written in other languages: here are its types and its policy, and no code.

rowlock serve --url sqlite:///jobs.db
rowlock token create renderers --scope worker --topic external_worker_task --url sqlite:///jobs.db
python app.py                                                      # enqueue a job; prints its id

Then run a worker, or several of each. They claim over HTTP, and know nothing of the database:

ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… ./worker.sh
ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… node worker.mjs
"""

import asyncio
from dataclasses import dataclass

from rowlock import Cancel, Jobs

jobs = Jobs("sqlite:///jobs.db")


@dataclass
class Film:
    target: str
    frames: int


@jobs.task(
    "external_worker_task", version=1, external=True, title="Render a film", key=["target"], if_live="reject",
    timeout=600, max_retries=1, retry=[30, 120], cancel=Cancel(grace=30),
)  # fmt: skip
async def external_worker_task(target: str, frames: int) -> Film:
    """Never called: `external` says that a worker elsewhere does the work."""
    raise NotImplementedError


async def main() -> None:
    async with jobs:
        await jobs.templates.publish()  # usually a worker does it, but this topic has none in Python
        made = await external_worker_task.enqueue(target="holiday", frames=8)
        print(made.id)


if __name__ == "__main__":
    asyncio.run(main())
