"""Claims of topics that have limits, on each store."""

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec import structs, to_builtins

from rowlock.core import codec
from rowlock.core.job import Job, Lane, NewJob, Status
from rowlock.core.lifecycle import Completed, Failed, Released, Waits
from rowlock.core.limits import (
    LIMITED,
    PUT,
    Concurrency,
    Fair,
    Limit,
    Limited,
    Put,
    Rate,
    fields_of,
    rules_of,
    share_of,
)
from rowlock.core.moves import Cancel, Edit, Requeue, Rescue, Update
from rowlock.stores import limits as store_limits
from rowlock.stores.base import Claim, Store
from rowlock.stores.limits import NewShare, Taken
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.records import Write
from rowlock.stores.sqlite.store import SqliteStore
from tests.stores.conftest import shared_store
from tests.stores.harness import LEASE, Harness, claim_by, job, settlement
from tests.stores.processes import real_job, stores
from tests.stores.rows import micros

store = shared_store


async def limit(store: Harness, topic: str, *limits: Limit, puts: Sequence[Put] = ()) -> None:
    """Store the limits that a topic's code declares, and those that an operator has set."""
    writes = [Write(LIMITED, topic, to_builtins(Limited(limits)))]
    await store.store.write_records([*writes, *(Write(PUT, put.id, to_builtins(put)) for put in puts)])


def of(key: str | None, topic: str = "mail", **fields: Any) -> NewJob:
    """Return a job whose share follows from the key, its scope_id."""
    new = job(topic, scope_id=key, **fields)
    fields_ = fields_of(rules_of(topic, Limited((Concurrency(1, by="scope_id"),)), ()))
    return structs.replace(new, share=None if key is None else share_of(fields_, new, {}))


def keys(jobs: Sequence[Job]) -> list[str | None]:
    return [one.scope_id for one in jobs]


async def claim(store: Harness, n: int = 10, *topics: str, worker: str = "w1") -> list[Job]:
    return (await store.claim(worker, *topics, limit=n)).jobs


async def end(store: Harness, *jobs: Job, outcome: Any = None) -> None:
    await store.store.settle([settlement(one, outcome or Completed(), ran=0.0) for one in jobs])


# ── Concurrency ──


async def test_no_more_than_so_many_jobs_of_a_topic_are_held(store: Harness) -> None:
    await limit(store, "mail", Concurrency(3))
    await store.insert(*[job() for _ in range(9)])
    held = await claim(store, 2)
    assert len(held) == 2
    assert len(await claim(store, 5, worker="w2")) == 1
    assert await claim(store) == []
    await end(store, held[0])
    assert len(await claim(store)) == 1


async def test_each_value_has_a_limit_of_its_own(store: Harness) -> None:
    await limit(store, "mail", Concurrency(2, by="scope_id"), Concurrency(5))
    await store.insert(*[of(key) for key in "aaaabbbbcc" for _ in range(2)])
    first = await claim(store, 10)
    assert Counter(keys(first)) == {"a": 2, "b": 2, "c": 1}
    await end(store, next(one for one in first if one.scope_id == "a"))
    assert keys(await claim(store)) == ["c"]  # its turn comes after b's


async def test_an_operator_sets_another_limit_for_one_value(store: Harness) -> None:
    by = Concurrency(2, by="scope_id")
    await limit(store, "mail", by, puts=[Put("mail", Concurrency(4, by="scope_id"), "a")])
    await store.insert(*[of(key) for key in "ab" for _ in range(9)])
    assert Counter(keys(await claim(store, 50))) == {"a": 4, "b": 2}


async def test_topics_share_a_limit_by_its_name(store: Harness) -> None:
    for topic in ("mail", "bills"):
        await limit(store, topic, Concurrency(3, name="smtp"))
    await store.insert(*[job(topic) for topic in ("mail", "bills") for _ in range(5)])
    held = await claim(store, 2, "mail")
    assert len(held) == 2
    assert len(await claim(store, 9, "bills")) == 1
    assert await claim(store, 9, "mail", "bills") == []
    await end(store, held[0])
    assert [one.topic for one in await claim(store, 9, "bills", "mail")] == ["mail"]  # the oldest job


async def test_topics_share_a_limit_by_the_values_of_a_field(store: Harness) -> None:
    for topic in ("mail", "bills"):
        await limit(store, topic, Concurrency(1, by="scope_id", name="smtp"))
    await store.insert(*[of(key, topic) for topic in ("mail", "bills") for key in "ab" for _ in range(2)])
    assert keys(await claim(store, 1, "mail")) == ["a"]
    assert keys(await claim(store, 9, "bills")) == ["b"]
    assert await claim(store, 9, "mail", "bills") == []


async def test_what_a_worker_was_asked_to_cancel_is_held_and_what_waits_is_not(store: Harness) -> None:
    await limit(store, "mail", Concurrency(1))
    await store.insert(*[job() for _ in range(3)])
    [one] = await claim(store)
    await store.store.move([one.id], Cancel(by="ann"))
    assert await claim(store) == []
    await end(store, structs.replace(one, status=Status.CANCEL_REQUESTED), outcome=Failed("stopped", final=True))
    [two] = await claim(store)
    await end(store, two, outcome=Waits("signal:go", None, 0))
    assert len(await claim(store)) == 1


async def test_a_job_of_a_dead_worker_counts_until_it_is_rescued(store: Harness) -> None:
    await limit(store, "mail", Concurrency(1))
    await store.insert(job(), job())
    assert len(await claim(store)) == 1
    await store.advance(LEASE + 1)
    assert await claim(store) == []
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    assert len(await claim(store)) == 1


# ── Rates ──


async def test_no_window_has_more_starts_than_the_rate(store: Harness) -> None:
    await limit(store, "mail", Rate(3, per=10))
    await store.insert(*[job() for _ in range(20)])
    assert len(await claim(store, 2)) == 2
    await store.advance(4)
    claimed = await store.claim(limit=9)
    assert (len(claimed.jobs), claimed.next_start) == (1, 6.0)
    await store.advance(5.9)
    claimed = await store.claim(limit=9)
    assert claimed.jobs == []
    assert claimed.next_start == pytest.approx(0.1)
    await store.advance(0.1)
    claimed = await store.claim(limit=9)
    assert len(claimed.jobs) == 2
    assert claimed.next_start == pytest.approx(4.0)
    await store.advance(4)
    assert len(await claim(store)) == 1


async def test_a_burst_spreads_the_starts_evenly(store: Harness) -> None:
    await limit(store, "mail", Rate(6, per=6, burst=2))
    await store.insert(*[job() for _ in range(20)])
    times = []
    for _ in range(70):
        claimed = await store.claim(limit=5)
        times += [store.now] * len(claimed.jobs)
        await store.advance(0.1 if claimed.next_start is None else max(0.1, claimed.next_start))
        if len(times) == 12:
            break
    assert [round((at - times[0]).total_seconds()) for at in times] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]


async def test_retries_rescues_releases_and_requeues_count_as_starts(store: Harness) -> None:
    await limit(store, "mail", Rate(5, per=1000))
    await store.insert(job(max_retries=50))
    [run] = await claim(store)
    await end(store, run, outcome=Failed("boom"))
    await store.advance(60)
    await store.store.promote()
    [run] = await claim(store)
    await end(store, run, outcome=Released())
    [run] = await claim(store)
    await store.advance(LEASE + 1)
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    await store.advance(60)
    await store.store.promote()
    [run] = await claim(store)
    await end(store, run, outcome=Failed("never", final=True))
    await store.store.move([run.id], Requeue(by="ann"))
    [run] = await claim(store)
    await end(store, run, outcome=Released())
    claimed = await store.claim()
    assert claimed.jobs == []
    assert claimed.next_start is not None
    await store.advance(claimed.next_start)
    assert len(await claim(store)) == 1


async def test_each_value_has_a_rate_of_its_own_and_starts_are_pruned(store: Harness) -> None:
    await limit(store, "mail", Rate(2, per=100, by="scope_id"))
    await store.insert(*[of(key) for key in "abc" for _ in range(5)])
    assert Counter(keys(await claim(store, 50))) == {"a": 2, "b": 2, "c": 2}
    assert (await store.claim(limit=50)).next_start == 100.0
    await store.advance(100)
    assert Counter(keys(await claim(store, 50))) == {"a": 2, "b": 2, "c": 2}
    await store.advance(100)
    assert Counter(keys(await claim(store, 50))) == {"a": 1, "b": 1, "c": 1}
    assert await store.fetch("SELECT count(*) FROM _jobs_starts") == [(9,)]
    assert await store.store.tidy("prune_starts", 2) == 2
    assert await store.store.tidy("prune_starts", 1000) == 1
    assert await store.fetch("SELECT count(*) FROM _jobs_starts") == [(6,)]


async def test_a_rate_that_changes_forgets_no_start_of_its_window(store: Harness) -> None:
    async def most(seconds: int) -> int:
        """Start all jobs that may start within these seconds, and return how many did."""
        started = 0
        for _ in range(seconds * 2):
            started += len(await claim(store, 50))
            await store.advance(0.5)
        return started

    put = Put("mail", Rate(5, per=1))
    await limit(store, "mail", Rate(5, per=6))
    await store.insert(*[job() for _ in range(100)])
    assert await most(1) == 5
    await limit(store, "mail", Rate(5, per=6), puts=[put])
    assert await most(4) == 20
    await store.store.write_records([Write(PUT, put.id, None)])
    claimed = await store.claim(limit=50)
    assert (claimed.jobs, claimed.next_start) == ([], 5.0), "the last five count, 1 s ago"
    assert await most(5) == 0
    assert await most(1) == 5
    await limit(store, "mail", Rate(5, per=6), puts=[put])
    assert await most(10) == 50
    await limit(store, "mail", Rate(5, per=6), puts=[Put("mail", Rate(5, per=20))])
    claimed = await store.claim(limit=50)
    assert claimed.jobs == [], "a window longer than any before"
    assert claimed.next_start == 19.0


async def test_a_start_counts_even_if_its_job_is_large(store: Harness) -> None:
    """A claim that is bounded in bytes counts exactly the jobs that it starts."""
    await limit(store, "mail", Rate(6, per=100))
    await store.insert(*[job(payload={"text": "x" * 10_000}) for _ in range(8)])
    started = (await store.claim(limit=9, size=20_000)).jobs
    started += (await store.claim(limit=9, size=20_000)).jobs
    assert len(started) == 6


# ── Turns ──


async def test_values_take_turns_by_their_weights(store: Harness) -> None:
    await limit(store, "mail", Fair("scope_id", weights={"a": 3}))
    await store.insert(*[of(key) for key in "abc" for _ in range(20)])
    got: list[str | None] = []
    for n in (1, 1, 1, 1, 1, 1, 5, 4):
        got += sorted(keys(await claim(store, n)), key=str)
    assert "".join(str(one) for one in got[:6]) == "aaabca"
    assert Counter(got) == {"a": 9, "b": 3, "c": 3}


async def test_a_turn_passes_on_if_its_value_has_no_more_jobs(store: Harness) -> None:
    await limit(store, "mail", Fair("scope_id", weights={"a": 9}))
    await store.insert(of("a"), of("b"), of("b"))
    assert [keys(await claim(store, 1)) for _ in range(4)] == [["a"], ["b"], ["b"], []]


async def test_jobs_without_a_share_take_turns_too(store: Harness) -> None:
    await limit(store, "mail", Fair("scope_id"))
    await store.insert(*[of(key) for key in (None, "a", "b") for _ in range(9)])
    assert [keys(await claim(store, 1))[0] for _ in range(7)] == [None, "a", "b", None, "a", "b", None]


async def test_jobs_without_a_share_count_as_one_value(store: Harness) -> None:
    await limit(store, "mail", Concurrency(1, by="scope_id"))
    await store.insert(*[of(key) for key in (None, "a") for _ in range(9)])
    assert Counter(keys(await claim(store))) == {None: 1, "a": 1}
    assert await claim(store) == []


async def test_within_a_value_priority_comes_first_then_age(store: Harness) -> None:
    await limit(store, "mail", Fair("scope_id"))
    jobs = [of("a", priority=n % 3) for n in range(6)]
    await store.insert(*jobs)
    order = [jobs[n].id for n in (2, 5, 1, 4, 0, 3)]
    assert [(await claim(store, 1))[0].id for _ in range(6)] == order


def asked_of(monkeypatch: pytest.MonkeyPatch, *kinds: type[Any]) -> list[int]:
    """Return a list that gets, for each claim, its number of questions of these kinds (default: all kinds)."""
    asked, claiming = [], store_limits._claiming

    def counted(*given: Any) -> Any:
        steps = claiming(*given)
        answer: Any = None
        n = 0
        try:
            while True:
                ask = steps.send(answer)
                n += not kinds or isinstance(ask, kinds)
                answer = yield ask
        except StopIteration as done:
            asked.append(n)
            return done.value

    monkeypatch.setattr(store_limits, "_claiming", counted)
    return asked


async def test_topics_that_share_a_limit_need_no_statement_each(
    store: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_of(monkeypatch)
    topics = [f"t{n:02}" for n in range(20)]
    for topic in topics:
        await limit(store, topic, Concurrency(30, name="api"), Rate(30, per=1, name="api"), Rate(1, per=1))
    await store.insert(*[job(topic) for topic in topics for _ in range(2)])
    assert sorted(one.topic for one in await claim(store, 50, *topics)) == topics
    assert asked == [5], "limits, held jobs, starts, jobs, take"


async def test_ten_thousand_values_are_looked_at_in_bounded_parts(
    store: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values but the last are full. Each claim looks at 1,000 at most, and the next claim goes on from there."""
    total = 5000
    await limit(store, "mail", Concurrency(1, by="scope_id"))
    for first in range(0, total, 1000):
        await store.insert(*[of(f"{n:05}") for n in range(first, first + 1000)])
    looks = asked_of(monkeypatch, store_limits.ReadShares)
    got = await claim(store, total)
    while more := await claim(store, 500):
        got += more
    assert len(got) == len(set(keys(got))) == total
    # Now each value has another job, and only the last value has room.
    for first in range(0, total, 1000):
        await store.insert(*[of(f"{n:05}") for n in range(first, first + 1000)])
    await end(store, max(got, key=lambda one: str(one.scope_id)))
    looks.clear()
    found: list[Job] = []
    for _ in range(10):
        claimed = await store.claim(limit=10)
        found += claimed.jobs
        if found:
            break
        assert claimed.contended, "it pays to claim again"
    assert keys(found) == [f"{total - 1:05}"]
    assert max(looks) <= store_limits._LOOKS


async def test_many_values_and_jobs_without_a_share(store: Harness) -> None:
    """The first look also brings the jobs without a share: one share more than it asked for."""
    await limit(store, "mail", Concurrency(1, by="scope_id"))
    few = store_limits._SHARES
    await store.insert(*[of(None) for _ in range(3)], *[of(f"{n:05}") for n in range(few + 5)])
    assert len(await claim(store, few)) == few
    rest = await claim(store, few) + await claim(store, few)
    assert len(rest) == 6


async def test_a_full_topic_is_not_searched_for_values(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await limit(store, "mail", Concurrency(1), Concurrency(1, by="scope_id"))
    await store.insert(*[of(key) for key in "abc"])
    assert len(await claim(store)) == 1
    monkeypatch.setattr(store_limits, "_ring", None)
    assert await claim(store) == []


# ── Beside everything else ──


async def test_a_paused_topic_is_not_claimed_but_what_it_holds_counts(store: Harness) -> None:
    for topic in ("mail", "bills"):
        await limit(store, topic, Concurrency(2, name="smtp"))
    await store.insert(*[job(topic) for topic in ("mail", "bills") for _ in range(3)])
    assert len(await claim(store, 1, "mail")) == 1
    await store.store.steer_topic("mail", "pause", by="ann")
    assert [one.topic for one in await claim(store, 9, "mail", "bills")] == ["bills"]
    await store.store.steer_topic("mail", "resume", by="ann")
    assert await claim(store, 9, "mail", "bills") == []


async def test_priorities_count_between_limited_and_plain_topics(store: Harness) -> None:
    await limit(store, "mail", Concurrency(9))
    await claim(store, 3, "mail", "bills")  # a store learns from a claim that there are limits
    for topic in ("mail", "bills"):
        await store.insert(*[job(topic, priority=n) for n in range(4)])
    got = await claim(store, 3, "mail", "bills")
    assert sorted((one.priority, one.topic) for one in got) == [(2, "mail"), (3, "bills"), (3, "mail")]
    got = await claim(store, 9, "mail", "bills")
    assert len(got) == 5


async def test_expired_jobs_are_not_claimed_and_hold_up_no_value(store: Harness) -> None:
    await limit(store, "mail", Concurrency(1, by="scope_id"))
    soon = await store.advance(10)
    await store.insert(*[of(key, expires_at=soon) for key in ("a", "aa", "ab")], of("b"))
    await store.advance(1)
    assert keys(await claim(store, 1)) == ["b"]
    await limit(store, "bills", Concurrency(1))
    await store.insert(job("bills", expires_at=soon), job("bills"))
    assert len(await claim(store, 1, "bills")) == 1


async def test_limits_hold_for_the_next_claim_and_no_longer(store: Harness) -> None:
    await store.insert(*[job() for _ in range(20)])
    assert len(await claim(store, 2)) == 2
    await limit(store, "mail", puts=[Put("mail", Concurrency(3))])
    assert len(await claim(store)) == 1
    await limit(store, "mail", puts=[Put("mail", Concurrency(5))])
    assert len(await claim(store)) == 2
    await store.store.write_records([Write(LIMITED, "mail", None), Write(PUT, Put("mail", Concurrency(5)).id, None)])
    assert len(await claim(store, 6)) == 6
    await limit(store, "mail", Concurrency(1))
    assert await claim(store) == []


async def test_a_limited_job_is_never_claimed_ahead(store: Harness) -> None:
    await limit(store, "mail", Concurrency(9))
    await store.insert(*[job() for _ in range(9)], *[job("bills") for _ in range(9)])
    lanes = Lane("mail"), Lane("bills")
    ahead = await store.store.claim(Claim("w1", lanes, 6, LEASE, start=False, slots=0))
    assert {one.topic for one in ahead.jobs} == {"bills"}
    assert all(one.started_at is None for one in ahead.jobs)
    mixed = await store.store.claim(Claim("w1", lanes, 6, LEASE, start=False, slots=2))
    assert [one.topic for one in mixed.jobs] == ["mail", "mail"]
    assert mixed.start is True
    assert all(one.started_at is not None for one in mixed.jobs)


async def test_a_settlement_makes_room_for_the_claim_that_comes_with_it(store: Harness) -> None:
    await limit(store, "mail", Concurrency(1))
    await store.insert(*[job() for _ in range(3)])
    [one] = await claim(store)
    settled = await store.store.settle([settlement(one, Completed(), ran=0.0)], claim_by())
    assert settled.claimed is not None
    assert len(settled.claimed.jobs) == 1
    assert settled.claimed.limited


async def test_the_plain_claim_never_takes_a_limited_topic(store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await limit(store, "mail", Concurrency(9))
    await store.insert(job(), job("bills"))

    def none(*_: Any) -> Generator[Any, Any, Taken]:
        yield from ()
        return Taken()

    monkeypatch.setattr(store_limits, "_claiming", none)
    assert [one.topic for one in await claim(store, 9, "mail", "bills")] == ["bills"]


# ── Races: real connections, the real clock ──


@pytest.mark.parametrize(
    ("most", "values", "total"),
    [(1, 4, 100), (3, 2, 200), (10, 1, 200), pytest.param(3, 5, 8000, marks=pytest.mark.proof)],
)
async def test_sixteen_claimers_never_exceed_a_limit(real_store: Harness, most: int, values: int, total: int) -> None:
    """`running` never counts more runs than the database holds: it counts a run after its claim and until its settle
    begins. As long as no run ends, the claimers start all that may start."""
    await limit(real_store, "mail", Concurrency(most, by="scope_id"))
    names = [str(n % values) for n in range(total)]
    await real_store.insert(*[structs.replace(of(name), id=real_job().id) for name in names])
    running: Counter[str | None] = Counter()
    done: list[str] = []

    async def work(each: Store, name: str) -> None:
        wish = claim_by(name, limit=1 + len(name) % 3, lease=600.0)
        held: list[Job] = []
        while len(done) < total:
            for one in held:
                running[one.scope_id] -= 1
            settled = await each.settle([settlement(one, Completed(), ran=0.0) for one in held], wish)
            done.extend(one.id for one in held)
            assert settled.claimed is not None
            held = settled.claimed.jobs
            for one in held:
                running[one.scope_id] += 1
                assert running[one.scope_id] <= most
            await asyncio.sleep(0)

    everyone = await stores(real_store, 16)
    first: list[Job] = []

    async def fill(each: Store, name: str) -> None:
        while (claimed := await each.claim(claim_by(name, limit=2, lease=600.0))).jobs or claimed.contended:
            first.extend(claimed.jobs)

    await asyncio.gather(*(fill(one, f"f{n}") for n, one in enumerate(everyone)))
    assert Counter(one.scope_id for one in first) == {str(n): most for n in range(values)}
    await end(real_store, *first)
    done += [one.id for one in first]
    await asyncio.gather(*(work(one, f"w{n:0{n % 3 + 2}}") for n, one in enumerate(everyone)))
    assert len(done) == len(set(done)) == total


async def test_claimers_never_exceed_a_rate(real_store: Harness) -> None:
    """The start times that the database has stored must keep the rate."""
    rate = Rate(20, per=0.4, burst=5)
    await limit(real_store, "mail", rate)
    await real_store.insert(*[real_job() for _ in range(60)])
    times: list[int] = []

    async def work(each: Store, name: str) -> None:
        while len(times) < 60:
            claimed = await each.claim(claim_by(name, limit=3, lease=600.0))
            times.extend(micros(one.claimed_at) for one in claimed.jobs if one.claimed_at is not None)
            await asyncio.sleep(0.002)

    everyone = await stores(real_store, 8)
    await asyncio.gather(*(work(one, f"w{n}") for n, one in enumerate(everyone)))
    times.sort()
    for length, most in rate.windows:
        assert all(past - first >= length for first, past in zip(times, times[most:], strict=False))


# ── Shares ──


async def test_another_payload_brings_another_share(store: Harness) -> None:
    new = of("a")
    await store.insert(new)
    await store.store.move([new.id], Update(by="ann", edit=Edit(payload='{"a":1}', share='{"scope_id":"z"}')))
    assert await store.fetch("SELECT share FROM _jobs") == [('{"scope_id":"z"}',)]
    await store.store.move([new.id], Update(by="ann", edit=Edit(priority=3)))
    assert await store.fetch("SELECT share FROM _jobs") == [('{"scope_id":"z"}',)]
    await store.store.move([new.id], Update(by="ann", edit=Edit(payload="{}", share=None)))
    assert await store.fetch("SELECT share FROM _jobs") == [(None,)]


async def test_shares_are_set_if_the_job_is_idle_and_as_it_was(store: Harness) -> None:
    await store.insert(*[of(None) for _ in range(4)])
    [held] = await claim(store, 1)
    idle = [await store.job(str(one)) for (one,) in await store.fetch("SELECT id FROM _jobs WHERE locked_by IS NULL")]
    await store.advance(1)
    await store.store.move([idle[0].id], Update(by="ann", edit=Edit(payload='{"a":1}', share="mine")))
    await store.store.set_shares([NewShare(one.id, one.updated, "new") for one in [held, *idle]])
    await store.store.set_shares([])
    found = {str(job_id): share for job_id, share in await store.fetch("SELECT id, share FROM _jobs")}
    assert found == {held.id: None, idle[0].id: "mine", idle[1].id: "new", idle[2].id: "new"}


# ── PostgreSQL only: what can happen between the questions of a claim ──


class Between:
    """Runs `act` before the last question of the next claim."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rowlock.stores.postgres import limits as postgres_limits

        self.act: Any = None
        self.takes = 0
        take = postgres_limits._take

        async def later(*given: Any) -> Any:
            self.takes += 1
            act, self.act = self.act, None
            if act is not None:
                await act()
            return await take(*given)

        monkeypatch.setattr(postgres_limits, "_take", later)


@pytest.fixture
def between(store: Harness, monkeypatch: pytest.MonkeyPatch) -> Between:
    if not isinstance(store.store, PostgresStore):
        pytest.skip("SQLite claims under the write lock")
    return Between(monkeypatch)


async def test_a_claim_in_between_is_seen(store: Harness, between: Between) -> None:
    await limit(store, "mail", Concurrency(2))
    await store.insert(*[job() for _ in range(9)])
    other = await store.another()
    got: list[Job] = []

    async def claim_too() -> None:
        got.extend((await other.claim(claim_by("w2", limit=1))).jobs)

    between.act = claim_too
    got += await claim(store)
    assert len(got) == len({one.id for one in got}) == 2
    assert between.takes == 3


async def test_a_change_of_limits_in_between_is_seen(store: Harness, between: Between) -> None:
    await limit(store, "mail", Concurrency(5))
    await store.insert(*[job() for _ in range(9)])
    between.act = lambda: limit(store, "mail", Concurrency(1))
    assert len(await claim(store)) == 1


async def test_a_pause_in_between_is_seen(store: Harness, between: Between) -> None:
    await limit(store, "mail", Concurrency(5))
    await store.insert(*[job() for _ in range(9)])
    between.act = lambda: store.store.steer_topic("mail", "pause", by="ann")
    assert await claim(store) == []


async def test_another_share_in_between_is_seen(store: Harness, between: Between) -> None:
    await limit(store, "mail", Concurrency(1, by="scope_id"))
    first, second = of("a"), of("b")
    await store.insert(first)
    assert len(await claim(store)) == 1
    await store.insert(second)
    edit = Edit(payload='{"a":1}', share=first.share)
    between.act = lambda: store.store.move([second.id], Update(by="ann", edit=edit))
    claimed = await store.claim()
    assert claimed.jobs == []
    assert claimed.contended
    assert await claim(store) == []


async def test_a_job_that_another_connection_has_locked_is_left_out(real_store: Harness) -> None:
    if not isinstance(real_store.store, PostgresStore):
        pytest.skip("SQLite has one writer")
    await limit(real_store, "mail", Concurrency(5))
    jobs = [job(), job()]
    await real_store.insert(*jobs)
    connection = await asyncpg.connect(real_store.url)  # type: ignore[attr-defined]
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM _jobs WHERE id = $1 FOR UPDATE", jobs[0].id)
            claimed = await real_store.claim()
            assert [one.id for one in claimed.jobs] == [jobs[1].id]
            assert claimed.contended
    finally:
        await connection.close()
    assert [one.id for one in (await real_store.claim()).jobs] == [jobs[0].id]


async def test_sql_workers_are_told_that_a_topic_has_limits(store: Harness) -> None:
    if isinstance(store.store, SqliteStore):
        pytest.skip("SQL functions are PostgreSQL's")
    await limit(store, "mail", Concurrency(5))
    await store.insert(job(), job("bills"))
    with pytest.raises(
        asyncpg.PostgresError, match="topics: mail has limits, and SQL can't keep them: run its jobs in"
    ):
        await store.fetch("SELECT id FROM claim_job_batch('w1', '{bills,mail@0}', 5)")
    assert len(await store.fetch("SELECT id FROM claim_job_batch('w1', '{bills}', 5)")) == 1


@pytest.mark.parametrize(
    ("limits", "puts"),
    [
        ([Concurrency(1, by="scope_id"), Rate(2, per=9, by="key"), Rate(2, per=9)], []),
        ([Concurrency(1, by="scope", name="smtp")], [Rate(2, per=9, by="payload.a.b"), Concurrency(9)]),
        ([Fair("scope")], [Fair("payload.a", {"x": 2})]),
        ([Rate(2, per=9)], []),
    ],
)
async def test_sql_gives_a_job_the_share_that_the_library_gives(
    store: Harness, limits: list[Limit], puts: list[Limit]
) -> None:
    if isinstance(store.store, SqliteStore):
        pytest.skip("SQL functions are PostgreSQL's")
    name = getattr(limits[0], "name", None) or "mail"
    put = [Put(name, one) for one in puts]
    await limit(store, "mail", *limits, puts=[*put, Put("others", Rate(1, per=1, by="other"))])
    fields = fields_of(rules_of("mail", Limited(tuple(limits)), put))
    values = ["x", "", None, 7, -7, 0, 1 << 62, True, 'q"\\/\n\t\u0001\x7f\u2028é😀', "l" * 200, "ü" * 201]
    for n, value in enumerate(values):
        text = value if isinstance(value, str) and value else None
        payload: Any = {"a": {"b": value, "c": 1} if "payload.a.b" in fields else value}
        new = job(key=text and f"{n}{text[:9]}", scope=text, scope_id=text, payload=payload)
        given = [None if one is None else f"'{one}'" for one in (new.key, new.scope, new.scope_id)]
        key, scope, scope_id = ("NULL" if one is None else one for one in given)
        data = codec.encode(payload, "payload").replace("'", "''")
        [(share,)] = await store.fetch(f"SELECT _jobs_share('mail', '{data}', {key}, {scope}, {scope_id})")
        assert share == share_of(fields, new, payload)
    for wrong in ("[]", "{}", "7.5", "7.0", "1e2", "-0"):
        query = f"SELECT enqueue_job('mail', '{{\"a\": {{\"b\": {wrong}}}}}')"
        if "payload.a.b" in fields:
            with pytest.raises(asyncpg.PostgresError, match=r"has a limit by payload\.a\.b, and SQL can only"):
                await store.fetch(query)
    await store.fetch("SELECT enqueue_job('mail', '{\"a\": \"x\"}', scope_id => 's')")
    [(share,)] = await store.fetch("SELECT share FROM _jobs")
    assert share == share_of(fields, job(scope_id="s"), {"a": "x"})
