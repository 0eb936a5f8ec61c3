"""heartbeat and progress; and a run that is over can write nothing."""

from datetime import timedelta

import pytest

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, Outcome, Released
from rowlock.core.moves import Cancel, CancelTimeout, Rescue
from rowlock.stores.base import Beat, Hold, NewLine, Progress
from tests.stores.conftest import paired_store
from tests.stores.harness import LEASE, NOBODY, OUTCOMES, START, Harness, ids, settlement

store = paired_store

# ── heartbeat ──


async def test_heartbeat_never_shortens_a_lease(store: Harness) -> None:
    claimed = await store.claimed()
    assert await store.store.heartbeat([Beat(claimed.id, 1)], 1.0) == [Hold.KEPT]
    assert await store.job(claimed.id) == claimed


@pytest.mark.parametrize("start", [True, False])
async def test_the_start_mark_is_written_once(store: Harness, start: bool) -> None:
    claimed = await store.claimed(start=start)
    for started in (False, True, True):
        await store.advance(1)
        await store.store.heartbeat([Beat(claimed.id, 1, started)], LEASE)
    assert (await store.job(claimed.id)).started_at == START + timedelta(seconds=0 if start else 2)


async def test_heartbeat_revives_a_lease_that_nobody_rescued(store: Harness) -> None:
    claimed = await store.claimed()
    await store.advance(1000)
    assert await store.store.heartbeat([Beat(claimed.id, 1)], LEASE) == [Hold.KEPT]
    assert await store.store.move_due(Rescue(by="m1", backoff=[1.0])) == []


# ── progress ──


@pytest.mark.parametrize("percent", [None, -1.0, 0.0, 33.3, 100.0, 100.1, 1e300])
@pytest.mark.parametrize("stage", [None, "embedding"])
async def test_progress(store: Harness, percent: float | None, stage: str | None) -> None:
    """The store keeps progress between 0 and 100. A field that a report leaves out stays as it is."""
    claimed = await store.claimed()
    for message in ("3 of 9", None, "5 of 9"):
        await store.advance(1)
        assert await store.store.progress([Progress(claimed.id, 1, percent, stage, message)]) == [Hold.KEPT]
    after = await store.job(claimed.id)
    assert (after.progress, after.message) == (min(max(percent or 0.0, 0.0), 100.0), "5 of 9")


async def test_a_mixed_batch_answers_in_order(store: Harness) -> None:
    kept, asked, stale, back = [await store.claimed(f"w{i}") for i in range(4)]
    await store.store.move([asked.id], Cancel(by="ann"))
    await store.store.settle([settlement(back, Released())])
    done = await store.settled(Completed(), topic="other")
    await store.advance(1)
    runs = [(done.id, 1), (kept.id, 1), (NOBODY, 1), (asked.id, 1), (stale.id, 0), (back.id, 1)]
    lost, keep, cancel = Hold.LOST, Hold.KEPT, Hold.CANCEL
    expected = [lost, keep, lost, cancel, lost, lost]
    assert await store.store.heartbeat([Beat(*run) for run in runs], LEASE) == expected
    assert await store.store.progress([Progress(*run, 5.0 + n) for n, run in enumerate(runs)]) == expected
    assert await store.store.look([Beat(*run) for run in runs]) == expected
    assert await store.store.heartbeat([], LEASE) == []
    assert await store.store.progress([]) == []
    assert await store.store.look([]) == []


# ── Zombies ──


async def _zombie_is_fenced(store: Harness, zombie: Job, answer: Answer = Answer.LOST) -> None:
    """Check that a zombie changes nothing through its own connection, and that each answer says so."""
    theirs = await store.another()
    before = await store.rows()
    assert await theirs.heartbeat([Beat(zombie.id, zombie.version, started=True)], 1000.0) == [Hold.LOST]
    said = (NewLine(0.0, "info", "still here"),)
    assert await theirs.progress([Progress(zombie.id, zombie.version, 99.0, "s", "m", said)]) == [Hold.LOST]
    assert await theirs.look([Beat(zombie.id, zombie.version)]) == [Hold.LOST]
    assert (zombie.id, zombie.version) not in [(held.id, held.version) for held in await theirs.held_by(["A"])]
    for outcome in OUTCOMES.values():
        [verdict] = (await theirs.settle([settlement(zombie, outcome, ran=1.0)])).verdicts
        assert verdict.answer is answer
    assert await store.rows() == before


async def test_a_zombie_after_rescue_and_the_next_claim(store: Harness) -> None:
    a = await store.claimed("A")
    await store.advance(LEASE + 0.000001)
    assert len(await store.store.move_due(Rescue(by="m1", backoff=[1.0]))) == 1
    await _zombie_is_fenced(store, a)
    [b] = (await store.claim("B")).jobs
    assert (b.id, b.version) == (a.id, 2)
    await _zombie_is_fenced(store, a)
    assert await store.store.heartbeat([Beat(b.id, 2)], LEASE) == [Hold.KEPT]
    assert await store.store.progress([Progress(b.id, 2, 10.0)]) == [Hold.KEPT]
    [verdict] = (await store.store.settle([settlement(b, Completed("B"))])).verdicts
    assert verdict.answer is Answer.APPLIED
    await _zombie_is_fenced(store, a)
    done = await store.job(a.id)
    assert (done.result, done.locked_by) == ("B", "B")
    assert await store.story(a.id) == ["enqueued", "claimed", "rescued", "claimed", "completed"]


@pytest.mark.parametrize("outcome", [Completed(), Failed("x")], ids=["completed", "failed"])
async def test_an_old_version_in_the_same_status_is_refused(store: Harness, outcome: Outcome) -> None:
    """The job is processing again, but the run is another one."""
    a = await store.claimed("A")
    await store.store.settle([settlement(a, Released())])
    [b] = (await store.claim("A")).jobs  # the fence also stops an earlier run of the same worker
    before = await store.rows()
    assert await store.store.heartbeat([Beat(a.id, 1)], 1000.0) == [Hold.LOST]
    [verdict] = (await store.store.settle([settlement(a, outcome)])).verdicts
    assert verdict.answer is Answer.LOST
    assert await store.rows() == before
    assert (await store.job(b.id)).version == 2


@pytest.mark.parametrize("end", ["failed", "cancel_timeout", "rescued to expired"])
async def test_a_zombie_after_the_end_of_its_job(store: Harness, end: str) -> None:
    a = await store.claimed("A", max_retries=0)
    if end == "failed":
        await store.store.settle([settlement(a, Failed("x"))])
        [late] = (await store.store.settle([settlement(a, Completed())])).verdicts
        assert late.answer is Answer.LOST
    elif end == "cancel_timeout":
        await store.store.move([a.id], Cancel(by="ann"))
        await store.advance(31)
        assert ids(await store.store.move_due(CancelTimeout(by="m1"))) == [a.id]
        await _zombie_is_fenced(store, a)
    else:
        await store.advance(LEASE + 1)
        [rescued] = await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
        assert rescued.status is Status.EXPIRED
        await _zombie_is_fenced(store, a)
