"""claim: which worker gets which jobs, in which order, and what a claim does to the row."""

import asyncio
import random
from datetime import timedelta

import pytest
from msgspec import structs

from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, Released
from rowlock.stores.base import Claim, Progress
from tests.stores.conftest import paired_store, shared_store
from tests.stores.harness import LEASE, MINUTE, START, Harness, claim_by, ids, job, lanes, settlement

store = paired_store
unpaired = shared_store  # for several stores at once, and for claims that are bounded in bytes


async def test_what_a_claim_does_to_the_row(store: Harness) -> None:
    job_id = await store.add()
    now = await store.advance(5)
    [claimed] = (await store.claim("w1")).jobs
    assert (claimed.id, claimed.status, claimed.version, claimed.locked_by) == (job_id, Status.PROCESSING, 1, "w1")
    assert (claimed.claimed_at, claimed.started_at) == (now, now)
    assert claimed.locked_until == now + timedelta(seconds=LEASE)
    assert (await store.claim("w2")).jobs == []


async def test_the_next_claim_starts_afresh(store: Harness) -> None:
    first = await store.claimed()
    await store.store.progress([Progress(first.id, 1, 50.0, "stage", "message")])
    await store.store.settle([settlement(first, Failed("boom"), ran=1.0)])
    await store.advance(10)
    assert await store.store.promote() == 1
    [second] = (await store.claim("w2", start=False)).jobs
    assert (second.progress, second.stage, second.message, second.started_at) == (0.0, None, None, None)
    assert second.last_error == "boom"
    assert await store.story(first.id) == ["enqueued", "claimed", "retried", "claimed"]


# ── Order ──


async def test_strict_priority_across_lanes(store: Harness) -> None:
    new = [
        job("a", priority=1),
        job("b", priority=9),
        job("c", priority=5, template_version=2),
        job("a", priority=9, run_at=START - timedelta(seconds=1)),
        job("b", priority=1, run_at=START - timedelta(seconds=1)),
        job("c", priority=-1, template_version=2),
        job("b", priority=9),
        job("a", priority=5),
    ]
    await store.insert(*new)
    all_lanes = lanes("a", "b", ("c", 2))
    first = await store.store.claim(Claim("w1", all_lanes, 3, LEASE))
    second = await store.store.claim(Claim("w1", all_lanes, 100, LEASE))
    want = sorted(new, key=lambda n: (-n.priority, n.run_at or START, n.id))
    assert ids([*first.jobs, *second.jobs]) == [n.id for n in want]


async def test_a_newcomer_of_higher_priority_goes_first(store: Harness) -> None:
    """This holds whatever a store remembers of the last claim."""
    await store.insert(*[job(priority=1) for _ in range(10)])
    await store.claim(limit=3)
    high = await store.add(priority=2)
    old = await store.add(priority=1, run_at=START - timedelta(days=1))
    assert ids((await store.claim(limit=2)).jobs) == [high, old]


async def test_a_newcomer_of_another_store_goes_first_soon(unpaired: Harness) -> None:
    """Another process has enqueued the job. A store that remembers a lower bound may miss it only for a moment."""
    other = await unpaired.another()
    await unpaired.insert(*[job(priority=1) for _ in range(5000)])
    await unpaired.claim(limit=3)
    high = job(priority=2)
    await other.insert([high])
    async with asyncio.timeout(20):
        while (await unpaired.claim(limit=1)).jobs[0].id != high.id:
            await unpaired.store.wait_for_work(0.005)


async def test_given_back_keeps_its_place(store: Harness) -> None:
    new = [job() for _ in range(5)]
    await store.insert(*new)
    first, second = (await store.claim(limit=2)).jobs
    await store.store.settle([settlement(first, Released())])
    assert ids((await store.claim(limit=2)).jobs) == [first.id, new[2].id]
    assert second.id == new[1].id


# ── Which ──


@pytest.mark.parametrize("limit", [0, 1, 4, 5, 6])
async def test_the_limit(store: Harness, limit: int) -> None:
    await store.insert(*[job() for _ in range(5)])
    assert len((await store.claim(limit=limit)).jobs) == min(limit, 5)


async def test_only_known_lanes(store: Harness) -> None:
    await store.insert(job("a"), job("b"), job("a", template_version=1), job("a", template_version=2))
    assert (await store.store.claim(Claim("w1", (), 10, LEASE))).jobs == []
    assert (await store.store.claim(Claim("w1", lanes("c", ("b", 1)), 10, LEASE))).jobs == []
    [one] = (await store.store.claim(Claim("w1", lanes(("a", 2)), 10, LEASE))).jobs
    assert (one.topic, one.template_version) == ("a", 2)
    rest = (await store.store.claim(Claim("w1", lanes("a", ("a", 1)), 10, LEASE))).jobs
    assert {(j.topic, j.template_version) for j in rest} == {("a", 0), ("a", 1)}


async def test_a_lane_named_twice_gives_each_job_once(store: Harness) -> None:
    await store.insert(*[job() for _ in range(4)])
    claimed = (await store.store.claim(Claim("w1", lanes("mail", "mail"), 3, LEASE))).jobs
    assert len(set(ids(claimed))) == len(claimed) == 3


async def test_next_due(store: Harness) -> None:
    await store.add("other", delay=90)
    assert (await store.claim()).next_due == pytest.approx(90)
    await store.add(delay=MINUTE)
    await store.advance(15)
    assert (await store.claim()).next_due == pytest.approx(45)
    await store.advance(50)
    due = await store.claim()
    assert (due.jobs, due.next_due) == ([], 0)
    assert await store.store.promote() == 1
    assert (await store.claim()).next_due == pytest.approx(25)


async def test_expired_jobs_are_not_claimed(store: Harness) -> None:
    await store.insert(job(expires_at=START), job(expires_at=START - timedelta(seconds=1)))
    last_chance = await store.add(expires_at=START + timedelta(microseconds=1), priority=1)
    assert ids((await store.claim(limit=1)).jobs) == [last_chance]
    assert (await store.claim()).jobs == []
    assert not (await store.claim()).contended


async def test_paused_topics_are_not_claimed(store: Harness) -> None:
    await store.insert(job("a", priority=9), job("b"), job("c"))
    await store.store.steer_topic("a", "pause", by="ann")
    await store.store.steer_topic("b", "pause", by="ann", until=START + timedelta(seconds=10))
    assert [j.topic for j in (await store.claim("w1", "a", "b", "c")).jobs] == ["c"]
    await store.advance(9.999999)
    assert (await store.claim("w1", "a", "b", "c")).jobs == []
    await store.advance(0.000001)
    assert [j.topic for j in (await store.claim("w1", "a", "b", "c")).jobs] == ["b"]
    await store.store.steer_topic("a", "resume", by="ann")
    assert [j.topic for j in (await store.claim("w1", "a", "b", "c")).jobs] == ["a"]


async def test_a_pause_binds_the_other_stores(unpaired: Harness) -> None:
    other = await unpaired.another()
    await unpaired.insert(job(), job())
    assert len((await other.claim(claim_by(limit=1))).jobs) == 1
    await unpaired.store.steer_topic("mail", "pause", by="ann")
    assert (await other.claim(claim_by())).jobs == []


async def test_many_lanes(store: Harness) -> None:
    new = [job(f"t{i}", priority=i) for i in range(120)]
    await store.insert(*new)
    answer = await store.claim("w1", *(f"t{i}" for i in range(100)), limit=50)
    assert [j.priority for j in answer.jobs] == list(range(99, 49, -1))


# ── Merged with settle ──


async def test_settle_and_claim_in_one_call(store: Harness) -> None:
    new = [job(priority=9 - i) for i in range(4)]
    await store.insert(*new)
    one, two = (await store.claim("w1", limit=2)).jobs
    await store.advance(1)
    stale = structs.replace(settlement(one, Completed()), version=7)
    wishes = [settlement(one, Completed(1)), settlement(two, Failed("x", final=True))]
    for settlements, expected in ((wishes, new[2]), ([stale], new[3])):
        claimed = (await store.store.settle(settlements, claim_by("w1", limit=1))).claimed
        assert claimed is not None
        assert ids(claimed.jobs) == [expected.id]


async def test_settle_nothing_and_claim(store: Harness) -> None:
    job_id = await store.add()
    both = await store.store.settle([], claim_by())
    assert ids(both.claimed.jobs if both.claimed else []) == [job_id]
    assert (await store.store.settle([])).claimed is None


async def test_a_claim_brings_no_more_than_so_many_bytes(unpaired: Harness) -> None:
    """A claim brings about that many bytes, in the usual order, and at least one job. The next claim gets the rest."""
    text = random.Random(1).randbytes(5000).hex()  # a database can hardly compress this
    made = [job("mail", {"text": text}, priority=n % 3) for n in range(100)]
    await unpaired.store.insert(made)
    every = [one.id for one in sorted(made, key=lambda one: (-one.priority, one.id))]
    first = await unpaired.claim("w1", limit=100, size=300_000)
    assert 10 <= len(first.jobs) <= 60
    assert first.contended
    assert first.size == pytest.approx(len(first.jobs) * len(made[0].payload), rel=0.01)
    single = await unpaired.claim("w1", limit=100, size=1)
    rest = await unpaired.claim("w1", limit=100, size=10_000_000)
    assert len(single.jobs) >= 1
    assert not rest.contended
    assert [one.id for answer in (first, single, rest) for one in answer.jobs] == every
