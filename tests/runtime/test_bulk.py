"""Workers carry on with bulk actions: some batches in every pass of maintenance."""

import pytest

from rowlock.core.job import Status
from rowlock.jobs import Jobs
from rowlock.runtime import maintenance
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.rescue_guard import RescueGuard
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Store
from rowlock.stores.bulk import Bulk
from rowlock.stores.queries import Filter
from tests.runtime.running import started
from tests.waiting import ended, status_of


async def test_a_worker_requeues_what_was_started_and_runs_it(jobs: Jobs) -> None:
    healthy = False

    @jobs.task(max_retries=0)
    async def flaky(n: int) -> int:
        if not healthy:
            raise RuntimeError("not yet")
        return n

    await started(jobs, poll=0.1, maintenance=0.05)
    made = [await flaky.enqueue(n) for n in range(5)]
    for one in made:
        assert (await ended(jobs, one.id)).status is Status.FAILED
    healthy = True
    bulk = await jobs.bulk.prepare("requeue", Filter(statuses=["failed"]), dry_run=False)
    for one in made:
        await status_of(jobs, one.id, Status.COMPLETED)
    assert (await jobs.bulk.get(bulk.id)).done == 5


@pytest.mark.parametrize(("share", "batches"), [(60.0, maintenance._BATCHES), (-1.0, 1)])
async def test_a_pass_does_not_wait_for_the_end_of_it(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, share: float, batches: int
) -> None:
    """A pass runs a limited number of batches. If a batch takes long, the pass runs only one."""
    monkeypatch.setattr(maintenance, "_SHARE", share)
    store: Store = await jobs._store()
    await jobs.enqueue_many([("mail", {}) for _ in range(50)])
    bulk = await jobs.bulk.prepare("cancel", Filter(topics=["mail"]), dry_run=False)
    run_bulk, calls = store.run_bulk, 0

    async def one_by_one(bulk_id: str | None = None, limit: int = 1) -> Bulk | None:
        nonlocal calls
        calls += 1
        return await run_bulk(bulk_id, 1)

    monkeypatch.setattr(store, "run_bulk", one_by_one)
    await Maintenance(WorkerSettings(), "w1", RescueGuard(1.0), lambda: None).run_once(store)
    assert (calls, (await jobs.bulk.get(bulk.id)).done) == (batches, batches)
