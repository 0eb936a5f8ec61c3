"""`expires_at` bounds the first start only, whatever happens to the job afterwards."""

from datetime import timedelta

from rowlock.core.job import Status
from rowlock.core.lifecycle import Released, Snoozed
from rowlock.core.moves import Expire
from tests.stores.harness import Harness, claim_by, settlement


async def test_a_job_that_has_run_and_is_claimed_ahead_does_not_expire(store: Harness) -> None:
    """A worker that claims ahead sets no start mark by its claim. The claim must not remove the older start mark."""
    job_id = await store.add(expires_at=store.now + timedelta(seconds=60))
    [first] = (await store.claim()).jobs
    await store.store.settle([settlement(first, Snoozed(0.0), ran=1.0)])
    [ahead] = (await store.store.claim(claim_by(start=False))).jobs
    await store.store.settle([settlement(ahead, Released())])
    await store.advance(61.0)
    assert await store.store.move_due(Expire(by="m1")) == []
    assert (await store.job(job_id)).status is Status.PENDING
    assert [one.id for one in (await store.claim()).jobs] == [job_id]
