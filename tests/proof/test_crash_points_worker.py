"""A whole worker at work: one of its calls to the database is cut off, whichever it is. The worker recovers by itself.

Calls are numbered as they come. Two runs are never the same, so a number does not always mean the same call. But over
all numbers each kind of call has its turn, with the real code above it.
"""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from rowlock.errors import OutcomeUnknown
from rowlock.jobs import Jobs
from tests.databases import KINDS, Databases
from tests.proof.fail_points import Point, Trap, hang_up, trapped
from tests.proof.history_app import app, new_ids
from tests.proof.recorder import Recorder
from tests.proof.test_worker_history import GRACE, LEASE, POLL, collected, drained, judged, prepare
from tests.proof.witness import TablesAt

WORK = ("quick", "threaded", "snoozing", "giving_up", "owning", "parent", "hopeless", "flaky")


async def _enqueue(jobs: Jobs, record: Recorder, topic: str) -> None:
    """Enqueue a job, and repeat that if the outcome is unknown. A client that chooses the id may do so."""
    payload, job_id = {"good_from": 2} if topic == "flaky" else {}, new_ids.one()
    for _ in range(2):
        with suppress(OutcomeUnknown), record.operation("enqueue", [job_id], topic=topic, key=None) as told:
            told(await jobs.enqueue(topic, payload, id=job_id))
            return


async def _work(url: str, record: Recorder, point: Point | None) -> int:
    """Run the jobs, and return how many calls that took."""
    began = time.monotonic()
    trap = Trap()
    with trapped(trap):
        jobs = app(record, url)
        try:
            await jobs.start(concurrency=3, lease=LEASE, poll=POLL, grace=GRACE)
            trap.set(point, hang_up)
            for topic in WORK:
                await _enqueue(jobs, record, topic)
            await drained(TablesAt(url))
        finally:
            await jobs.close()
    judged("cut off workers", await collected(url, record), began)
    return trap.calls


async def _cut(kind: str, databases: Databases, folder: Path, point: Point | None) -> int:
    folder.mkdir()  # noqa: ASYNC240 - nothing else is going on
    record = Recorder(folder)
    async with databases.at(kind, folder, prepare) as url:
        return await _work(url, record, point)


@pytest.mark.parametrize("nth", [3, 9])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_is_cut_off(kind: str, nth: int, databases: Databases, tmp_path: Path) -> None:
    await _cut(kind, databases, tmp_path / "record", Point(nth, after=True))


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_call_is_cut_off(kind: str, after: bool, databases: Databases, tmp_path: Path) -> None:
    calls = await _cut(kind, databases, tmp_path / "all", None)
    assert calls > len(WORK)
    for nth in range(1, calls + 1):
        await _cut(kind, databases, tmp_path / f"call {nth}", Point(nth, after))
