"""Misuse: verbs in wrong states, wrong types, closed objects, other threads and loops, forks, awaits that are cancelled
halfway, starts and stops out of turn. rowlock raises only documented errors, nothing hangs, and nothing is half
done."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from rowlock.jobs import Jobs
from rowlock.stores.queries import Filter
from tests.faults.misuses import REFUSALS, Misuses
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.waiting import until

LANES = 4  # tasks that misuse rowlock side by side
LONGEST = 60.0  # seconds for one misuse
LIVE = ["pending", "processing", "cancel_requested", "blocked", "waiting"]


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(safe_to_fork(stage.url)) as jobs:
        await stage.start_workers(1)
        misuses = Misuses(stage, jobs, safe_to_fork(stage.url))
        trying = Trying(stage)
        for misuse in misuses.all:  # each once, one after the other
            await trying.one(misuse)
        before = descriptors()
        turns = [cell.scale.misuses // LANES] * LANES
        await asyncio.gather(*(trying.many(misuses, turn) for turn in turns))
        await swept(stage, jobs)
        await stage.stop_all()
        report = await jobs.verify()
        result = await stage.judged(cell.result(misuses=trying.count, refused=trying.refused))
        result.violations += trying.violations
        result.violations += [Violation("VERIFY", one.job_id, f"{one.check}: {one.text}") for one in report.findings]
        result.figures["descriptors more than before"] = max(0, descriptors() - before)
        return result


def safe_to_fork(url: str) -> str:
    """Return the URL without TLS. If a process forks while another thread is inside OpenSSL, its locks stay locked."""
    return url if url.startswith("sqlite") else f"{url}{'&' if '?' in url else '?'}sslmode=disable"


class Trying:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.count = self.refused = 0
        self.violations: list[Violation] = []

    async def many(self, misuses: Misuses, times: int) -> None:
        for _ in range(times):
            await self.one(self._stage.chance.choice(misuses.all))

    async def one(self, misuse: Callable[[], Awaitable[object]]) -> None:
        self.count += 1
        name = getattr(misuse, "__name__", repr(misuse))
        limit = asyncio.timeout(LONGEST)
        try:
            async with limit:
                await misuse()
        except REFUSALS:
            self.refused += 1
        except TimeoutError as error:
            if limit.expired():
                where = "".join(traceback.format_exception(error))[-1500:]
                self.violations.append(Violation("HANGS", None, f"{name}: {where}"))
        except Exception as error:
            where = "".join(traceback.format_exception(error))[-1500:]
            self.violations.append(Violation("MISUSE", None, f"{name}: {error!r}\n{where}"))


async def swept(stage: Stage, jobs: Jobs) -> None:
    """Cancel the jobs that are left. Their topic has no handler, or they are due in another century."""
    for pause in await jobs.topics.paused():
        await jobs.topics.resume(pause.topic)

    async def empty() -> bool:
        left = await jobs.list(Filter(statuses=LIVE), limit=200)
        for job in left.items:
            if job.status == "pending":
                try:
                    with stage.record.operation("cancel", [job.id]):
                        await jobs.cancel(job.id)
                except REFUSALS:
                    continue  # a worker has just claimed it
        return not left.items

    await until(empty, what="everything to end", patience=PATIENCE)


def descriptors() -> int:
    open_files = Path("/proc/self/fd")
    return len(list(open_files.iterdir())) if open_files.exists() else 0
