"""Sixteen connections in four processes claim the same jobs, in batches of any size. Each job goes to one of them."""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter

from rowlock.jobs import Jobs
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, ROOT, Stage
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.history_app import new_ids

PROCESSES, STORES = 4, 4
BATCH = 500


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(stage.url) as jobs:
        made = [await enqueue(stage, jobs, BATCH) for _ in range(cell.scale.raced // BATCH)]
        ids = {job_id for batch in made for job_id in batch}
        racers = [await launch(stage, cell.seed * PROCESSES + n) for n in range(PROCESSES)]
        try:
            async with asyncio.timeout(PATIENCE):
                for racer in racers:
                    assert racer.stdout is not None
                    assert await racer.stdout.readline() == b"ready\n"
                began = time.monotonic()
                answers = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))
                took = time.monotonic() - began
        finally:
            for racer in racers:
                if racer.returncode is None:
                    racer.kill()
                    await racer.wait()
        assert all(racer.returncode == 0 for racer in racers)
        claims = [json.loads(line) for out, _ in answers for line in out.splitlines()]
        result = await stage.judged(cell.result())
        result.violations += wrong(ids, claims)
        [(left,)] = await stage.tables.fetch("SELECT count(*) FROM _jobs")
        if left:
            result.violations.append(Violation("RACE", None, f"{left} jobs are left"))
        shares = Counter(worker for worker, _, _ in claims)
        result.figures |= {"claims": len(claims), "connections that got some": len(shares), "s of racing": took}
        return result


async def enqueue(stage: Stage, jobs: Jobs, count: int) -> list[str]:
    ids = new_ids.many(count)
    with stage.record.operation("enqueue", ids, batch=True) as told:
        told(await jobs.enqueue_many([{"topic": "raced", "id": one} for one in ids]))
    return ids


async def launch(stage: Stage, seed: int) -> Process:
    known = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    words = ("-m", "tests.faults.racer", stage.url, str(STORES), str(seed))
    return await asyncio.create_subprocess_exec(sys.executable, *words, env=known, stdin=PIPE, stdout=PIPE)


def wrong(ids: set[str], claims: list[tuple[str, str, int]]) -> list[Violation]:
    """Return the violations that the racers' own lists of claims show."""
    times = Counter(job_id for _, job_id, _ in claims)
    found = [Violation("RACE", one, f"was claimed {times[one]} times") for one in ids if times[one] != 1]
    found += [Violation("RACE", one, "was claimed, and nobody has enqueued it") for one in times.keys() - ids]
    found += [Violation("RACE", one, f"{who} got version {n} of it") for who, one, n in claims if n != 1]
    return found
