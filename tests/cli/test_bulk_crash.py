"""kill -9 of a server in the middle of a bulk requeue: another server carries on. Each job is requeued once, except the
jobs that failed after the preview."""

import asyncio
import os
import signal
import time
from collections import Counter

import pytest

from rowlock.core.job import Lane, Status
from rowlock.core.lifecycle import Failed, Settlement, decide
from rowlock.core.verify import StoredRow
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim
from rowlock.stores.bulk import Bulk
from tests.cli.conftest import Shell
from tests.cli.test_serve import Server, serving, token

ROUNDS = 5  # a server may finish the action before it is killed


async def add_dead(jobs: Jobs, topic: str, count: int) -> None:
    store = await jobs._store()
    for start in range(0, count, 5000):
        await jobs.enqueue_many([(topic, {"n": n}) for n in range(start, min(start + 5000, count))])
    while claimed := (await store.claim(Claim("w1", (Lane(topic),), 500, 60.0))).jobs:
        now = await store.now()
        ends = [decide(job, Failed("never", final=True), now, ran=0.0) for job in claimed]
        pairs = zip(claimed, ends, strict=True)
        await store.settle([Settlement(job.id, job.version, end, "w1") for job, end in pairs])


async def all_kept(jobs: Jobs) -> list[StoredRow]:
    found = await (await jobs._store()).stored_rows("jobs", before=None, limit=1_000_000)
    return [row for row in found if isinstance(row, StoredRow)]


def killed_midway(shell: Shell, server: Server, secret: str, topic: str, count: int) -> Bulk | None:
    """Kill the server in the middle of a bulk action. Return the action, or None if it was done before."""
    shell.do(lambda jobs: add_dead(jobs, topic, count))
    body = {"action": "requeue", "filter": {"topic": [topic]}, "reason": "fixed"}
    made = server.ask("POST", "/api/bulk", secret, json=body).json()
    assert made["total"] == count
    shell.do(lambda jobs: add_dead(jobs, topic, 20))  # these jobs fail after the preview
    path = f"/api/bulk/{made['id']}"
    info = server.ask("POST", f"{path}/start", secret).json()
    while info["done"] < count // 3:
        info = server.ask("GET", path, secret).json()
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.process.wait(30) == -signal.SIGKILL
    left = shell.do(lambda jobs: jobs.bulk.get(made["id"]))
    return left if left.status == "running" else None


def finished(shell: Shell, bulk_id: str) -> Bulk:
    async def look(jobs: Jobs) -> Bulk:
        while (bulk := await jobs.bulk.get(bulk_id)).status == "running":  # noqa: ASYNC110 - others work on it
            await asyncio.sleep(0.02)
        return bulk

    return shell.do(look)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [3000, pytest.param(50_000, marks=pytest.mark.proof)])
def test_a_server_that_is_killed_midway(shell: Shell, count: int) -> None:
    secret = token(shell, "manage")
    for number in range(ROUNDS):
        topic = f"mail{number}"
        with serving(shell, link=True) as server:
            left = killed_midway(shell, server, secret, topic, count)
        if left is not None:
            break
    else:
        pytest.fail("it was always done before it was killed")
    assert 0 < left.done < count
    with serving(shell, link=True):  # the server carries on without a request
        began = time.monotonic()
        ended = finished(shell, left.id)
        print(f"{left.left} of {count} in {time.monotonic() - began:.1f} s")
    assert (ended.status, ended.done, ended.skipped) == ("done", count, 0)
    rows = [row for row in shell.do(all_kept) if row.topic == topic]
    stories = Counter((row.status, sum(entry["event"] == "requeued" for entry in row.history)) for row in rows)
    assert stories == {(Status.PENDING, 1): count, (Status.FAILED, 0): 20}
    stats = shell.json("stats", topic)
    assert (stats["pending"], stats["failed"]) == (count, 20)
