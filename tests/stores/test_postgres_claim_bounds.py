"""Dead index entries that an old snapshot keeps: statements skip them, and still find every job.

Work is counted (blocks that PostgreSQL fetches, entries that it reads), never timed.
"""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.core.job import Job, Lane
from rowlock.stores.base import Claim
from rowlock.stores.postgres import claim_bounds
from rowlock.stores.postgres.claim_bounds import MANY, NIL, SLACK, Lanes, Plan
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import connected, opening
from tests.core.test_lifecycle import a_job
from tests.stores.harness import job, lanes
from tests.stores.test_postgres_plans import FETCHED

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEAD = 20_000
LANES = lanes("mail", "bills")
CLAIM = Claim("w1", LANES, 10, 30.0)
PATIENCE = 60.0  # seconds for a condition to come true

# Jobs that were claimed and completed within the last minute, or promoted, claimed and completed.
ENDED = """
    INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload)
    SELECT gen_random_uuid(), 'mail', 'pending', {ready}, 100, clock_timestamp() - n * interval '3 ms', now(), now(),
           3, 600, '{{}}'
    FROM generate_series(1, {dead}) n"""


# ── What is read ──

ranks = st.integers(-3, 3)
moments = st.integers(0, 20).map(lambda n: NOW + timedelta(seconds=n))
ids = st.sampled_from([NIL, "4" * 8 + NIL[8:], "f" * 8 + NIL[8:]])
places = st.tuples(ranks, moments, ids)


def is_read(place: tuple[int, datetime, str], plan: Plan) -> int:
    """Return how many parts of the plan contain the place, by the conditions of claim.sql."""
    least, most = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    found = 0
    for rank, run_at, job_id, until_rank, until in zip(*plan.parts, strict=True):
        begin = (-(2**31) if rank is None else rank, run_at or least, job_id or NIL)
        end = (2**31 - 1 if until_rank is None else until_rank, until or most)
        found += place > begin and place[:2] < end
    return found


@given(st.dictionaries(ranks, st.tuples(moments, ids), min_size=1), st.lists(moments, min_size=2, max_size=2), places)
def test_every_place_is_read_once_except_what_is_left_out(
    read: dict[int, tuple[datetime, str]], ends: list[datetime], place: tuple[int, datetime, str]
) -> None:
    rank, run_at, _ = place
    left_out = rank in read and place[1:] <= read[rank]
    seen = Lanes(LANES)
    seen._read = dict(read)
    plan = seen.plan()
    assert is_read(place, plan) == (not left_out)
    for begin, end in itertools.product([None, min(ends)], [max(ends)]):
        with_piece = plan._replace(parts=tuple(zip(*seen._parts(claim_bounds.Piece(begin, end, False)), strict=True)))
        reread = left_out and (begin is None or place[1:] > (begin, NIL)) and run_at < min(end, read[rank][0])
        assert is_read(place, with_piece) == (not left_out or reread)


def test_positions_stay_behind_what_a_claim_brought_and_behind_its_time() -> None:
    old, new = NOW - timedelta(hours=1), NOW
    urgent, usual, last = (
        a_job(priority=150, run_at=new, id="a" * 8 + NIL[8:]),
        a_job(priority=100, run_at=old, id="b" * 8 + NIL[8:]),
        a_job(priority=100, run_at=old + timedelta(seconds=1), id="c" * 8 + NIL[8:]),
    )

    def positions(jobs: list[Job], limit: int) -> dict[int, tuple[datetime, str]]:
        seen = Lanes(LANES)
        for _ in range(2):
            assert not seen._read
            seen.learn(seen.plan(), limit, jobs, MANY + 100, NOW)
        return seen._read

    recent = NOW - SLACK, NIL
    assert positions([urgent, usual, last], 4) == {-150: recent, -100: recent}  # the claim has brought all jobs
    assert positions([urgent, usual, last], 3) == {-150: recent, -100: (last.run_at, last.id)}
    assert positions([urgent], 1) == {-150: recent}  # not further: a client may enqueue at this moment


@pytest.mark.parametrize("meanwhile", ["forget", "reach"])
def test_a_claim_that_was_sent_before_a_job_came_late_teaches_nothing(meanwhile: str) -> None:
    seen = Lanes(LANES)
    for _ in range(2):
        seen.learn(seen.plan(), 10, [a_job(priority=100)], MANY + 100, NOW)
    plan = seen.plan()
    if meanwhile == "forget":
        seen.forget()
    else:
        seen.reach(NOW - timedelta(seconds=9))
    before = dict(seen._read)
    seen.learn(plan, 10, [a_job(priority=100)], MANY + 100, NOW + timedelta(seconds=9))
    assert seen._read == before


def test_lanes_are_told_apart_and_none_is_named_twice() -> None:
    known = claim_bounds.ClaimBounds()
    both = known.of((Lane("a"), Lane("b", 2), Lane("a")))
    assert both.plan().lanes == ("a b", "0 2")
    assert known.of((Lane("a"), Lane("b", 2), Lane("a"))) is both
    assert known.of((Lane("a"),)).plan().lanes == ("a", None)
    for n in range(1000):
        known.of((Lane(f"t{n}"),))
    assert len(known._known) < 100


# ── Beside an old snapshot ──


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[PostgresStore]:
    # PostgreSQL marks an index entry as dead only after the commit that ended its row was flushed.
    async with opening(PostgresStore(f"{migrated_url}?pool_size=2&synchronous_commit=on")) as store:
        yield store


@asynccontextmanager
async def old_snapshot(url: str) -> AsyncIterator[None]:
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetchval("SELECT count(*) FROM _jobs")
        yield


async def leave_dead(store: PostgresStore, *, ready: bool) -> None:
    async with store._connections.acquire() as connection:
        await connection.execute(ENDED.format(ready=ready, dead=DEAD))
        if not ready:
            await connection.execute("UPDATE _jobs SET ready = true")
        await connection.execute("DELETE FROM _jobs")


async def blocks(store: PostgresStore, statement: str, *parameters: Any) -> int:
    async with store._connections.acquire() as connection:
        await connection.execute("BEGIN")
        before: int = await connection.fetchval(FETCHED)
        await connection.fetch(statement, *parameters)
        after: int = await connection.fetchval(FETCHED)
        await connection.execute("ROLLBACK")
        return after - before


async def leaves_out(store: PostgresStore, claim: Claim = CLAIM) -> bool:
    """Make two claims that may learn of the dead entries; return True if the next claim leaves them out."""
    for _ in range(2):
        new = job()
        assert await brought(store, new, claim=claim) == [new.id]
    return bool(store._claim_bounds.of(claim.lanes)._read)


async def brought(store: PostgresStore, *jobs: Any, claim: Claim = CLAIM) -> list[str]:
    """Enqueue these jobs, and return the ids that a claim then brings."""
    await store.insert(jobs)
    return [one.id for one in (await store.claim(claim)).jobs]


@pytest.mark.parametrize("limit", [1, 10, 500])
async def test_a_claim_does_not_walk_over_dead_entries_again_and_again(
    store: PostgresStore, migrated_url: str, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(claim_bounds, "_RATE", 0.0)  # else claims also reread some of what they left out
    claim = Claim("w1", LANES, limit, 30.0)
    alone = await blocks(store, store._sql.claim, *store._ask(claim).parameters, None, None)
    async with old_snapshot(migrated_url):
        await leave_dead(store, ready=True)
        walked = await blocks(store, store._sql.claim, *store._ask(claim).parameters, None, None)
        assert walked > 300 + alone  # otherwise this test proves nothing
        assert await leaves_out(store, claim)
        fetched = [await blocks(store, store._sql.claim, *store._ask(claim).parameters, None, None) for _ in range(3)]
    assert max(fetched) < alone + 50, (alone, walked, fetched)


async def test_neither_promote_nor_a_claim_walks_over_what_was_promoted(
    store: PostgresStore, migrated_url: str
) -> None:
    claim = Claim("w1", lanes("bills"), 10, 30.0)  # this lane has no dead entries

    async def measure() -> list[int]:
        return [
            await blocks(store, store._sql.claim, *store._ask(claim).parameters, None, None),
            await blocks(store, store._sql.promote, 1000, store._due.after_now_and_then),
        ]

    await store.promote()
    alone = await measure()
    async with old_snapshot(migrated_url):
        await leave_dead(store, ready=False)
        walked = await measure()
        await store.promote()
        assert (await store.claim(claim)).next_due is None
        fetched = await measure()
        late, later = job("bills", delay=0.01), job("bills", delay=3600.0)
        await store.insert([late, later])
        due = (await store.claim(claim)).next_due
        assert due is not None
        assert due < 1
        while not await store.promote():
            pass
        assert [one.id for one in (await store.claim(claim)).jobs] == [late.id]
    assert min(walked) > 50 + max(alone)
    assert max(fetched) < max(alone) + 20, (alone, walked, fetched)


async def test_a_job_of_a_higher_priority_is_not_left_out(store: PostgresStore, migrated_url: str) -> None:
    async with old_snapshot(migrated_url):
        await leave_dead(store, ready=True)
        assert await leaves_out(store)
        explicit, again, highest = job(priority=150), job(priority=150), job(priority=2**31 - 1)
        assert await brought(store, explicit) == [explicit.id]
        assert await brought(store, again) == [again.id]
        assert await brought(store, job(priority=0), highest, claim=Claim("w1", LANES, 1, 30.0)) == [highest.id]


async def test_a_job_that_comes_late_to_its_place_is_found(store: PostgresStore, migrated_url: str) -> None:
    async with old_snapshot(migrated_url):
        await leave_dead(store, ready=True)
        assert await leaves_out(store)
        late = [job(run_at=datetime.now(UTC) - timedelta(seconds=seconds)) for seconds in (1, 30, 3600)]
        async with opening(PostgresStore(migrated_url)) as other:  # `store` itself would notice these jobs at once
            await other.insert(late)
        found: set[str] = set()
        end = time.monotonic() + PATIENCE
        while found != {one.id for one in late} and time.monotonic() < end:
            assert store._claim_bounds.of(LANES)._read
            found |= set(await brought(store, job())) & {one.id for one in late}
        assert found == {one.id for one in late}
        mine = job(run_at=datetime.now(UTC) - timedelta(seconds=30))
        assert await brought(store, mine) == [mine.id]  # at once


async def test_claims_read_everything_again_when_the_snapshot_is_gone(store: PostgresStore, migrated_url: str) -> None:
    async with old_snapshot(migrated_url):
        await leave_dead(store, ready=True)
        assert await leaves_out(store)
    end = time.monotonic() + PATIENCE
    while store._claim_bounds.of(LANES)._read and time.monotonic() < end:
        await brought(store, job())
    assert store._ask(CLAIM).plan.is_whole


async def test_without_an_old_snapshot_nothing_is_left_out(store: PostgresStore) -> None:
    await leave_dead(store, ready=True)
    assert not await leaves_out(store)
