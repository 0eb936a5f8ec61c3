"""The repository's examples run as their first lines say, and keep their promises when they are killed.

tests/http_mount runs the examples that mount the API, tests/http/test_worker_examples.py the workers that speak HTTP,
and test_external_examples.py those in examples/external."""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from rowlock import Every, Jobs
from rowlock.core.job import Status
from rowlock.core.steps import StepState
from rowlock.stores import reading
from tests.http.harness import Server
from tests.waiting import status_of, until

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# The unchanged script, but its process dies at its first print. That is in the step "notify", right after the step that
# stores the vectors.
DIES_IN_NOTIFY = """
import asyncio, os, ai_pipeline
ai_pipeline.print = lambda *_: os._exit(9)
asyncio.run(ai_pipeline.main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


def run(folder: Path, *command: str, code: int = 0) -> str:
    environ = {**os.environ, "ROWLOCK_LEASE": "1", "PYTHONWARNINGS": "error"}
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout


@contextmanager
def worker(folder: Path, app: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "rowlock", "worker", app, "--lease", "1"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)  # also closes its pipes


def test_every_example_is_run_by_a_test() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == {
        "templates.py", "steps.py", "ai_pipeline.py", "approval.py", "scheduled_report.py", "order_flow.py",
        "llm_limits.py",
    }  # fmt: skip


async def test_templates(folder: Path) -> None:
    run(folder, "templates.py")
    assert "is welcome already" in run(folder, "templates.py")
    async with Jobs(f"sqlite:///{folder / 'jobs.db'}") as jobs:
        with worker(folder, "templates:jobs"):
            for job in (await jobs.list()).items:
                assert (await jobs.wait(job.id, timeout=60)).status == "completed"


async def test_steps_go_on_where_a_killed_worker_stopped(folder: Path) -> None:
    long, pipeline = run(folder, "steps.py").split()
    async with Jobs(f"sqlite:///{folder / 'jobs.db'}") as jobs:

        async def done(job_id: str) -> int:
            return sum(step.state is StepState.SUCCEEDED for step in await jobs.steps(job_id))

        async def is_half_done() -> bool:
            return await done(pipeline) >= 3 and await done(long) >= 1

        with worker(folder, "steps:jobs"):
            await until(is_half_done)
        before = {(step.name, step.n): step for step in await reading.steps(await jobs._store(), pipeline)}
        with worker(folder, "steps:jobs"):
            ended = [await jobs.wait(job_id, timeout=60) for job_id in (long, pipeline)]
        assert [job.result for job in ended] == [{"target": "films", "done": 5}, {"target": "books", "done": 5}]
        after = {(step.name, step.n): step for step in await reading.steps(await jobs._store(), pipeline)}
        assert len(after) == 7
        ends = {place: step for place, step in before.items() if step.state is StepState.SUCCEEDED}
        assert len(ends) >= 3
        assert {place: after[place] for place in ends} == ends  # stored once, by the killed run
        shown = await jobs.steps(long)
        assert [(step.title, step.state) for step in shown] == [
            ("Prepare the data", "succeeded"),
            ("Do the work", "succeeded"),
            ("Put the result in order", "succeeded"),
        ]


def test_an_ai_pipeline_stores_its_vectors_exactly_once(folder: Path) -> None:
    run(folder, "-c", DIES_IN_NOTIFY, code=9)
    told = run(folder, "ai_pipeline.py").splitlines()
    assert told[:2] == ["document.txt: 10 parts can be searched", "10 vectors"]
    assert told[2:] == [
        "Download #1: succeeded", "Split #1: succeeded", "Embed #1: succeeded", "Embed #2: succeeded",
        "Embed #3: succeeded", "Store the vectors #1: succeeded", "Notify #1: succeeded",
    ]  # fmt: skip
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        assert connection.execute("SELECT count(*) FROM vectors").fetchone() == (10,)
        assert connection.execute("SELECT * FROM bills").fetchall() == [("document.txt", 10)]
        written = "SELECT name, version FROM _jobs_steps WHERE name IN ('upsert', 'notify') ORDER BY position"
        assert connection.execute(written).fetchall() == [("upsert", 1), ("notify", 2)]


async def test_an_approval_waits_for_a_person(folder: Path) -> None:
    url = f"sqlite:///{folder / 'jobs.db'}"
    with Server.running(url) as server:
        example = folder / "approval.py"
        example.write_text(example.read_text().replace("http://127.0.0.1:8090", server.url))
        async with Jobs(url) as jobs, httpx.AsyncClient() as client:
            with worker(folder, "approval:jobs", stdout=subprocess.PIPE) as process:

                async def told() -> str:
                    assert process.stdout is not None
                    return (await asyncio.to_thread(process.stdout.readline)).decode().strip()

                async def asked() -> tuple[str, str]:
                    """Return the id of a job that waits, and the address for its answer."""
                    job_id = (await asyncio.to_thread(run, folder, "approval.py")).strip()
                    question = await told()
                    await status_of(jobs, job_id, Status.WAITING)
                    return job_id, question.removeprefix("Request 7: answer at ")

                # A person who has the address can answer once. The data must fit the schema.
                job_id, address = await asked()
                assert (await client.post(address, json={"ok": "perhaps"})).status_code == 400
                assert (await client.post(address, json={"ok": True})).json() == {"state": "answered"}
                assert (await jobs.wait(job_id, timeout=60)).result == "request 7 is booked"
                assert (await client.post(address, json={"ok": False})).status_code == 409

                job_id, _ = await asked()
                await asyncio.to_thread(run, folder, "approval.py", job_id, "no")
                assert (await jobs.wait(job_id, timeout=60)).result == "request 7 is rejected"

                # No answer comes, and three days go by.
                job_id, address = await asked()
                for day in range(1, 4):
                    await jobs.wake(job_id)
                    assert await told() == "Request 7 still waits for an answer"
                    if day < 3:
                        await status_of(jobs, job_id, Status.WAITING)
                done = await jobs.wait(job_id, timeout=60)
                assert (done.result, done.retries) == ("nobody has decided about request 7", 0)
                assert (await client.get(address)).json() == {"state": "ended"}


async def test_a_scheduled_report_fires_on_time_and_once(folder: Path) -> None:
    coming = run(folder, "scheduled_report.py").splitlines()
    assert [line.partition(", next at ")[0] for line in coming] == [
        "user_123: At 09:00 every day (Asia/Taipei)", "user_456: At 09:00 every day (Europe/Berlin)",
    ]  # fmt: skip
    assert coming[0].endswith(" 01:00 UTC")
    assert run(folder, "scheduled_report.py").splitlines()[0] == coming[0]  # a second put changes nothing
    async with Jobs(f"sqlite:///{folder / 'jobs.db'}") as jobs:
        found = (await jobs.schedules.list()).items
        assert [(one.name, one.scope_id, one.source, one.revision) for one in found] == [
            ("daily report", "user_123", "api", 1),
            ("daily report", "user_456", "api", 1),
            ("the whole shop", None, "code", 1),
        ]
        # Two workers fire the same schedules.
        with worker(folder, "scheduled_report:jobs"), worker(folder, "scheduled_report:jobs"):
            asked = run(folder, "scheduled_report.py", "now", "user_123").strip()
            assert str((await jobs.wait(asked, timeout=60)).result).startswith("user_123, ")

            again = [run(folder, "scheduled_report.py", "again", "user_123", "3") for _ in range(2)]
            assert again[0] == again[1]  # the second backfill finds the jobs of the first
            filled = [line.split() for line in again[0].splitlines()]
            assert len(filled) == 3
            for at, job_id in filled:
                day = at.partition("T")[0]  # 01:00 in UTC, 09:00 in Taipei: the same date
                assert str((await jobs.wait(job_id, timeout=60)).result).startswith(f"user_123, {day}: ")

            report = ("scheduled_report", {"user": "everybody"})
            end = datetime.now(UTC) + timedelta(seconds=5)
            await jobs.schedules.put("often", report, Every(1), end=end, missed="all")

            async def is_over() -> bool:
                return (await jobs.schedules.get("often")).state == "over"

            await until(is_over)
            fires = await jobs.schedules.history("often")
            assert [one.reason for one in fires] == [None] * len(fires)
            assert 4 <= len(fires) <= 6
            for one in fires:
                assert one.job_id is not None
                job = await jobs.wait(one.job_id, timeout=60)
                assert (job.status, job.fire_at) == (Status.COMPLETED, one.fire_at)
        kinds = [line.split()[1] for line in run(folder, "scheduled_report.py", "history", "user_123").splitlines()]
        assert sorted(set(kinds) - {"schedule"}) == ["backfill", "run_now"]


async def test_an_order_is_a_flow(folder: Path) -> None:
    def order(item: str, amount: int) -> str:
        return run(folder, "order_flow.py", item, str(amount)).strip()

    def shown(flow_id: str) -> list[str]:
        return run(folder, "order_flow.py", "show", flow_id).splitlines()

    async with Jobs(f"sqlite:///{folder / 'jobs.db'}") as jobs:

        async def ended(flow_id: str, status: str) -> None:
            async def is_so() -> bool:
                return (await jobs.flows.get(flow_id)).status == status

            await until(is_so)

        async def is_paid(flow_id: str) -> bool:
            [node] = [node for node in (await jobs.flows.graph(flow_id)).nodes if node.name == "pay"]
            return node.status == "completed"

        good = order("mug", 120)
        with worker(folder, "order_flow:jobs"):
            await until(lambda: is_paid(good))
        # The worker was killed. Another worker goes on.
        with worker(folder, "order_flow:jobs"):
            cheap, torn, impossible = order("mug", 40), order("mug", 13), order("unicorn", 120)
            await ended(good, "completed")
            assert sorted(shown(good)) == [
                "completed",
                "gift: completed, a card for your mug",
                "invoice: completed, invoice of 120.00",
                "mail: completed, On its way: a mug, 1.5 kg, with invoice of 120.00 and a card for your mug",
                "pack: completed, 1.5",
                "pay: completed, {'id': 'charge for a mug', 'amount': 120.0}",
                "refund: not taken",
                "ship: completed, a mug, 1.5 kg, with invoice of 120.00 and a card for your mug",
            ]
            [ship] = [node.id for node in (await jobs.flows.graph(good)).nodes if node.name == "ship"]
            assert [event.event for event in await jobs.events(ship)].count("unblocked") == 1

            await ended(cheap, "completed")
            assert {"gift: not taken", "refund: not taken"} < set(shown(cheap))
            assert (await jobs.flows.get(cheap)).counts == {"completed": 5, "cancelled": 2}

            await ended(impossible, "failed")
            assert {
                "pack: failed",
                "ship: cancelled",
                "mail: cancelled",
                "refund: completed, 120.00 are paid back",
            } < set(shown(impossible))

            await ended(torn, "held")
            assert {"invoice: failed", "ship: held", "mail: blocked", "refund: not taken"} < set(shown(torn))
            assert run(folder, "order_flow.py", "release", torn) == "ship is released\n"
            await ended(torn, "failed")  # because its invoice failed
            assert "mail: completed, On its way: a mug, 1.5 kg, with no invoice and no gift" in shown(torn)


def test_a_provider_of_language_models_gets_no_more_than_it_allows(folder: Path) -> None:
    said = run(folder, "llm_limits.py")
    assert "rate: {'large': '10 of 10', 'small': '3 of 10'}, 4 waiting" in said
    most = re.search(r"at most (\d) at once, \{'large': 14, 'small': 3\}, (\d+) s", said) or re.search(
        r"at most (\d) at once, \{'small': 3, 'large': 14\}, (\d+) s", said
    )
    assert most is not None, said
    assert int(most[1]) <= 4
    assert int(most[2]) >= 5  # the large tenant had to wait for its rate window
    assert int(said.split()[-1]) <= 4  # the small tenant did not wait behind the large one's 14 jobs
