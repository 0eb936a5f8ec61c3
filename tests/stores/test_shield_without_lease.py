"""A step that is not cancelable shields a run. It does not shield a job that no worker holds."""

from rowlock.core.job import Status
from rowlock.core.moves import Cancel, CancelTimeout
from tests.stores.harness import Harness, mark


async def test_a_job_without_a_lease_is_not_shielded_by_a_step_that_is_left_behind(store: Harness) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "succeeded"), mark(run, "b", "running", cancelable=False)])
    job = await store.waits(run, undoes=True)
    await store.store.move([job.id], Cancel(by="ann"))
    await store.advance(100)
    assert [one.id for one in await store.store.move_due(CancelTimeout(by="m1", grace=7.0))] == [job.id]
    assert (await store.job(job.id)).status is Status.CANCELLED
