"""The judge of the suite `javascript`: correct handlers in Node pass, and each sabotaged handler is found. In both
tests, a worker is frozen until another worker runs its jobs."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rowlock.jobs import Jobs
from tests.faults.load import signal as send_signal
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.scale import SMALL
from tests.faults.stage import LEASE, PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.suites.javascript import APP, SLOTS, cannot_run, finished, hired, overcharged, robbed
from tests.proof.history import History
from tests.proof.history_app import new_ids
from tests.proof.lives import World
from tests.proof.recorder import now
from tests.waiting import until

SABOTAGES = "javascript_sabotages.mjs"
LONG = {"seconds": 3 * LEASE}
PAYLOADS: dict[str, dict[str, Any]] = {
    "quick": {}, "brief": {"seconds": 0.02}, "stepping": {}, "waiting": {}, "nap": LONG, "deaf": LONG,
}  # fmt: skip
# Another worker takes these over. They fill all slots, so no claim waits for more jobs. The last topic begins last.
LONG_ONES = ("nap", "deaf")
CAUGHT = {  # by topic: the invariants that must find what is wrong with its handler, and what they say
    "quick": {"X1": "no run 1 has finished well"},
    "brief": {"X2": "was executed 2 times"},
    "stepping": {"S21": "step fetch#1 began in run"},
    "waiting": {"S22": "was completed with None, and has read"},
    "nap": {"X3": "run 1 began after run 2"},
    "deaf": {"X1": "before its run ended", "S8": "is not what run 2 made"},
}

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(300),
    pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run())),
]


async def test_honest_handlers_pass_and_what_is_planted_in_their_history_is_found(tmp_path: Path) -> None:
    result, topics, history = await play(tmp_path, APP)
    assert not result.bad, result.details()
    assert result.figures["executions"] >= len(topics) + SLOTS  # another worker ran the long jobs again
    assert not list(overcharged(World(history), 0))
    assert {topics[str(one.job_id)] for one in robbed(World(history), now(), "deaf")} == set(LONG_ONES)
    assert not robbed(World(history), now(), "quick")  # no "quick" job ran when the leases were lost
    history.executions = [run for run in history.executions if run.version > 1 or topics[run.job_id] not in LONG_ONES]
    assert list(overcharged(World(history), SLOTS - 1))  # the record lacks these runs now, as if they had never begun
    assert not list(overcharged(World(history), SLOTS))


async def test_every_sabotage_is_caught_by_its_invariants(tmp_path: Path) -> None:
    result, topics, _ = await play(tmp_path, SABOTAGES)
    found = [(topics[one.job_id], one.invariant, one.text) for one in result.violations if one.job_id is not None]
    for topic, sayings in CAUGHT.items():
        for invariant, words in sayings.items():
            assert any((topic, invariant) == one[:2] and words in one[2] for one in found), result.details()


async def play(folder: Path, handlers: str) -> tuple[Result, dict[str, str], History]:
    """Return what the checker finds, the topics of the jobs, and the history."""
    cell = Cell("javascript", "sqlite", 1, folder / "cell", SMALL)
    async with (
        staged(cell) as stage,
        Jobs(stage.url) as jobs,
        hired(stage, jobs, count=1, handlers=handlers) as workers,
    ):
        topics = {new_ids.one(): topic for topic in PAYLOADS if topic not in LONG_ONES}
        await enqueue(stage, jobs, topics)
        for job_id in (job_id for job_id, topic in topics.items() if topic == "waiting"):
            await send_signal(jobs, stage.record, job_id)
        await stage.drained()
        each = SLOTS // len(LONG_ONES)
        long = {new_ids.one(): topic for topic in LONG_ONES for _ in range(each)}
        both = topics | long
        await enqueue(stage, jobs, long)
        await until(lambda: running(stage, 1, both)["deaf"] == each, what="the long jobs to begin", patience=PATIENCE)
        [worker] = workers.workers
        stage.record.fault("stop", worker.pid)
        worker.send_signal(signal.SIGSTOP)
        workers.hire()
        await until(lambda: running(stage, 2, both).total() == SLOTS, what="another worker", patience=PATIENCE)
        stage.record.fault("cont", worker.pid)
        worker.send_signal(signal.SIGCONT)
        return await finished(workers, cell.result()), both, stage.histories[-1]


async def enqueue(stage: Stage, jobs: Jobs, topics: dict[str, str]) -> None:
    drafts = [{"id": job_id, "topic": topic, "payload": PAYLOADS[topic]} for job_id, topic in topics.items()]
    with stage.record.operation("enqueue", list(topics), batch=True) as told:
        told(await jobs.enqueue_many(drafts))


def running(stage: Stage, version: int, topics: dict[str, str]) -> Counter[str]:
    """Return, for each topic, how many handlers are in this version of their job, by the handlers' own record."""
    runs = stage.record.load(History(stage.store)).executions
    return Counter(topics[run.job_id] for run in runs if run.version == version and run.ended is None)
