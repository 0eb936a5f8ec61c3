"""A producer in its own process: `python -m tests.faults.producer URL FOLDER SEED PAUSE`. Until its stdin ends, it
enqueues jobs with and without delays, and keeps a record in FOLDER."""

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any

from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from tests.proof.history_app import new_ids
from tests.proof.recorder import Recorder

KINDS: dict[str, dict[str, Any]] = {
    "quick": {}, "nap": {"seconds": 0.3}, "flaky": {"good_from": 2}, "snoozing": {}, "until": {"seconds": 3.0},
}  # fmt: skip


async def main(url: str, record: Recorder, chance: Random, pause: float) -> None:
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with Jobs(url) as jobs:
        while not over.done():
            topic, job_id = chance.choice(list(KINDS)), new_ids.one()
            delay = round(chance.uniform(0.5, 3.0), 3) if chance.random() < 0.4 else 0.0
            for _ in range(100):
                try:
                    with record.operation("enqueue", [job_id], topic=topic, key=None, delay=delay) as told:
                        told(await jobs.enqueue(topic, KINDS[topic], id=job_id, delay=delay))
                    break
                except StoreError:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(chance.uniform(0.0, 2 * pause))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Recorder(Path(sys.argv[2])), Random(int(sys.argv[3])), float(sys.argv[4])))
