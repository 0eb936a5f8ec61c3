"""Debounce: a newer enqueue replaces a job that no worker has claimed. Throttle: one job per key and window."""

import asyncio
import random
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from rowlock.client.verify import verify
from rowlock.core.debounce import Throttle, Window, debounce_line
from rowlock.core.job import Job, NewJob, Status
from rowlock.core.lifecycle import Completed, Failed, Outcome, Released, Snoozed
from rowlock.core.moves import Cancel, Delete, Edit, Requeue, Update
from rowlock.core.templates import line_of
from rowlock.stores.base import Retention, Store
from rowlock.stores.driver_neutral import Query, drive_async
from rowlock.stores.postgres import insert_on_conn
from tests.stores.conftest import shared_store
from tests.stores.harness import Harness, PostgresHarness, claim_by, job, lanes, settlement
from tests.stores.processes import deadlocks, real_job, stores
from tests.stores.test_lines import claim, end

store = shared_store
WINDOW = Window(30.0, 100.0)
DAY = 86_400.0


def debounced(key: str = "k", n: int = 0, window: Window = WINDOW, **fields: Any) -> NewJob:
    new = job(payload={"n": n}, key=key, delay=window.seconds, **fields)
    line = debounce_line(new.topic, new.scope, new.scope_id, key)
    return replace(new, if_live="debounce", line=line, debounce=window)


def throttled(key: str = "k", seconds: float = 60.0, **fields: Any) -> NewJob:
    new = real_job(key=key, **fields)
    return replace(new, throttle=Throttle(line_of(new.topic, new.scope, new.scope_id, key), seconds))


async def due(store: Harness) -> list[Job]:
    await store.store.promote()
    return await claim(store.store)


async def payload(store: Harness, job_id: str) -> Any:
    return (await store.job(job_id)).payload["n"]


# ── Debounce ──


async def test_a_newer_enqueue_replaces_the_job_that_has_not_started(store: Harness) -> None:
    first, second = debounced(n=1), debounced(n=2, priority=7, tags=("a",), max_retries=9, timeout=5.0, trace="t")
    [made] = await store.store.insert([first])
    assert (made.id, made.existing, made.status) == (first.id, False, Status.PENDING)
    later = await store.advance(20)
    [told] = await store.store.insert([replace(second, template_version=3)])
    assert told == replace(made, existing=True, run_at=later + timedelta(seconds=30))
    found = await store.job(first.id)
    assert (found.payload, found.priority, found.tags) == ({"n": 2}, 7, ("a",))
    assert (found.max_retries, found.timeout, found.trace, found.template_version) == (9, 5.0, "t", 3)
    assert (found.run_at, found.created, found.if_live) == (told.run_at, made.created, "debounce")
    assert (await store.story(first.id))[-1] == "debounced"
    assert (await verify(store.store, limit=1000, seconds=10)).findings == []
    await store.advance(30)
    await store.store.promote()
    [run] = (await store.store.claim(replace(claim_by("w"), lanes=lanes(("mail", 3))))).jobs
    assert run.payload == {"n": 2}


async def test_at_most_bounds_the_whole_delay(store: Harness) -> None:
    [made] = [told] = await store.store.insert([debounced()])
    for n in range(1, 4):
        await store.advance(25)
        [told] = await store.store.insert([debounced(n=n)])
    assert told.run_at == made.created + timedelta(seconds=100)
    await store.advance(60)
    [told] = await store.store.insert([debounced(n=4)])  # past the bound, and not claimed yet: it keeps its run_at
    assert told.run_at == made.created + timedelta(seconds=100)
    await store.store.promote()
    assert [run.payload["n"] for run in await claim(store.store)] == [4]


async def test_without_a_bound_each_enqueue_delays_it(store: Harness) -> None:
    [made] = [told] = await store.store.insert([debounced(window=Window(30.0))])
    for _ in range(20):
        await store.advance(29)
        assert await due(store) == []
        [told] = await store.store.insert([debounced(window=Window(30.0))])
    assert told.run_at == made.created + timedelta(seconds=20 * 29 + 30)


async def test_while_one_runs_one_more_waits_behind_it(store: Harness) -> None:
    first = debounced(n=1)
    await store.store.insert([first])
    await store.advance(30)
    [run] = await due(store)
    second = debounced(n=2)
    [told] = await store.store.insert([second])
    assert (told.id, told.existing, told.status) == (second.id, False, Status.BLOCKED)
    [told] = await store.store.insert([debounced(n=3)])
    assert (told.id, told.existing, told.status) == (second.id, True, Status.BLOCKED)
    await store.advance(10)
    await end(store.store, run)
    assert await due(store) == []  # the second job is not due yet
    await store.advance(20)
    [run] = await due(store)
    assert (run.id, run.payload) == (second.id, {"n": 3})
    assert await store.story(second.id) == ["enqueued", "debounced", "unblocked", "claimed"]


@pytest.mark.parametrize("outcome", [Failed("x"), Released("stop"), Snoozed(50.0)])
async def test_a_job_that_was_claimed_keeps_its_payload(store: Harness, outcome: Outcome) -> None:
    """A run may have acted on the payload that it got. So the newer payload waits in a job behind it."""
    first, second = debounced(n=1), debounced(n=2)
    await store.store.insert([first])
    await store.advance(30)
    [run] = await due(store)
    await end(store.store, run, outcome)
    [told] = await store.store.insert([second])
    assert (told.id, told.existing, told.status) == (second.id, False, Status.BLOCKED)
    assert await payload(store, first.id) == 1
    await store.advance(3600)
    [again] = await due(store)
    assert again.id == first.id
    await end(store.store, again)
    assert [one.payload["n"] for one in await due(store)] == [2]


async def test_a_cancelled_or_deleted_job_takes_no_payload(store: Harness) -> None:
    for order in (Cancel(by="ops"), Delete(by="ops")):
        [gone] = await store.store.insert([debounced(n=1)])
        await store.store.move([gone.id], order)
        [told] = await store.store.insert([debounced(n=2)])
        assert not told.existing
        assert await payload(store, told.id) == 2


async def test_an_operator_may_edit_it(store: Harness) -> None:
    [made] = await store.store.insert([debounced(n=1)])
    await store.store.move([made.id], Update(by="ops", edit=Edit(delay=0.0, payload='{"n":9}')))
    assert [run.payload["n"] for run in await claim(store.store)] == [9]


async def test_requeue_beside_a_newer_job(store: Harness) -> None:
    """A job that no worker has claimed gives way to the newer job. A job that has run goes to the end of the line."""
    [old] = await store.store.insert([debounced(n=1)])
    await store.store.move([old.id], Cancel(by="ops"))
    [new] = await store.store.insert([debounced(n=2)])
    [refused] = await store.store.move([old.id], Requeue(by="ops"))
    assert (refused.done, refused.holder) == (False, new.id)
    await store.advance(30)
    [run] = await due(store)
    [answer] = await store.store.move([old.id], Requeue(by="ops"))
    assert answer.done
    [told] = await store.store.insert([debounced(n=3)])
    assert (told.id, told.existing) == (old.id, True)
    await end(store.store, run, Failed("x", final=True))
    await store.store.move([run.id], Requeue(by="ops"))
    await store.advance(30)
    assert [one.id for one in await due(store)] == [old.id]
    assert (await verify(store.store, limit=1000, seconds=10)).findings == []


async def test_a_batch_counts_as_one_enqueue_of_each_key(store: Harness) -> None:
    new = [debounced(key, n) for n, key in enumerate("abacab")]
    told = await store.store.insert([*new, job()])
    a, b, c = new[0].id, new[1].id, new[3].id
    assert [one.id for one in told[:-1]] == [a, b, a, c, a, b]
    assert [one.existing for one in told] == [False, False, True, False, True, True, False]
    assert [await payload(store, one) for one in (a, b, c)] == [4, 5, 3]
    assert {one.status for one in told} == {Status.PENDING}

    async def replaced(job_id: str) -> int:
        return sum(one["event"] == "debounced" for one in (await store.row(job_id)).history)

    assert [await replaced(one) for one in (a, b, c)] == [0, 0, 0]
    await store.store.insert([debounced(key, n) for n, key in enumerate("aab")])
    assert [await replaced(one) for one in (a, b, c)] == [1, 1, 0]
    assert [await payload(store, one) for one in (a, b, c)] == [1, 2, 3]


async def test_a_repeat_is_answered_by_its_own_job(store: Harness) -> None:
    """A repeated enqueue must not replace a newer payload by an older one."""
    first = debounced(n=1)
    await store.store.insert([first])
    await store.store.insert([debounced(n=2)])
    [told] = await store.store.insert([first], repeat=True)
    assert (told.id, told.existing) == (first.id, True)
    assert await payload(store, first.id) == 2
    await store.advance(30)
    [run] = await due(store)
    await end(store.store, run)
    [told] = await store.store.insert([first], repeat=True)
    assert (told.id, told.existing, told.status) == (first.id, True, Status.COMPLETED)


async def test_scopes_and_topics_are_apart(store: Harness) -> None:
    places: list[dict[str, Any]] = [{}, {"scope": "a"}, {"scope_id": "a"}, {"topic": "other"}]
    told = [(await store.store.insert([debounced(**place)]))[0] for place in places]
    assert not any(one.existing for one in told)
    assert len(await store.store.debounced([debounced(**place).line or "" for place in places])) == 4


async def test_the_history_is_bounded(store: Harness) -> None:
    [made] = await store.store.insert([debounced()])
    for n in range(110):
        await store.store.insert([debounced(n=n)])
    row = await store.row(made.id)
    assert len(row.history) == 100
    assert row.dropped == 11
    assert (await verify(store.store, limit=1000, seconds=10)).findings == []


async def test_any_order_of_things(store: Harness) -> None:
    """Random enqueues, claims, ends and cancels, beside a model. At most one job per key is open, with the last payload
    and the right time. A worker claims the last payload of each key after its enqueue."""
    for seed in range(4):
        await _any_order_of_things(store, random.Random(seed))
        await store.reset()


async def _any_order_of_things(store: Harness, dice: random.Random) -> None:
    last: dict[str, int] = {}  # by key, the payload of the last enqueue …
    open_: dict[str, str] = {}  # … and the job that carries it, until it is claimed or cancelled
    made: dict[str, datetime] = {}  # by id: when it was enqueued first, and when it is due
    times: dict[str, datetime] = {}
    seen: defaultdict[str, list[int]] = defaultdict(list)
    running: list[Job] = []

    async def claim_all() -> None:
        for run in await due(store):
            assert run.key is not None
            assert run.key not in {one.key for one in running}
            seen[run.key].append(run.payload["n"])
            if open_.get(run.key) == run.id:
                assert run.payload["n"] == last[run.key]
                del open_[run.key]
            running.append(run)

    for n in range(60):
        key = dice.choice("abc")
        match dice.randrange(6):
            case 0 | 1 | 2:
                window = dice.choice([WINDOW, Window(5.0), Window(20.0, 20.0)])
                new = debounced(key, n, window)
                [told] = await store.store.insert([new])
                now = store.now
                assert told.existing == (key in open_)
                assert told.id == open_.setdefault(key, new.id)
                first = made.setdefault(told.id, now)
                until = now + timedelta(seconds=window.seconds)
                if window.at_most is not None:
                    until = min(until, first + timedelta(seconds=window.at_most))
                due_at = times.get(told.id, now) if told.existing else now
                assert told.run_at == (until if until > now else min(due_at, now))
                times[told.id] = told.run_at
                last[key] = n
            case 3:
                await store.advance(dice.choice([1, 10, 40]))
                await claim_all()
            case 4 if running:
                run = running.pop(dice.randrange(len(running)))
                outcomes: list[Outcome] = [Completed(), Failed("x"), Failed("x", final=True)]
                await end(store.store, run, dice.choice(outcomes))
            case _ if key in open_ and dice.random() < 0.3:
                await store.store.move([open_.pop(key)], Cancel(by="ops"))
                last.pop(key, None)
    for _ in range(30):
        await store.advance(3600)
        await claim_all()
        while running:
            await end(store.store, running.pop())
    assert open_ == {}
    assert {key: numbers[-1] for key, numbers in seen.items() if key in last} == last
    assert (await verify(store.store, limit=1000, seconds=10)).findings == []


async def test_two_enqueues_at_the_same_moment(real_store: Harness) -> None:
    """One enqueue makes the job, the others replace its payload. A worker gets the last payload of all."""
    everyone = await stores(real_store, 4)
    for n in range(12):
        batch = [debounced(f"{n}", who, window=Window(0.001)) for who in range(len(everyone))]
        told = await asyncio.gather(*(store.insert([one]) for store, one in zip(everyone, batch, strict=True)))
        answers = [one for [one] in told]
        assert len({one.id for one in answers}) == 1, answers
        assert sum(not one.existing for one in answers) == 1
    assert await _twice(real_store) == []
    assert await deadlocks(real_store) == 0


async def _twice(store: Harness) -> list[Any]:
    return await store.fetch(
        "SELECT line, count(*) FROM _jobs WHERE if_live = 'debounce' AND version = 0 "
        "AND status IN ('pending', 'blocked') GROUP BY line HAVING count(*) > 1"
    )


async def test_an_enqueue_meets_a_claim(real_store: Harness) -> None:
    """The job is due at once, so that each enqueue meets claims. In any order, the last payload runs last."""
    enqueuer, *workers = await stores(real_store, 3)
    done = asyncio.Event()
    seen: list[int] = []
    twice = 0

    async def work(store: Store, name: str) -> None:
        while True:
            over = done.is_set()
            await store.promote()
            jobs = (await store.claim(claim_by(name))).jobs
            assert len(jobs) <= 1
            seen.extend(one.payload["n"] for one in jobs)
            await store.settle([settlement(one, Completed()) for one in jobs])
            if over and not jobs and not await real_store.fetch("SELECT 1 FROM _jobs"):
                return

    async def edit() -> None:
        nonlocal twice
        for n in range(60):
            [told] = await enqueuer.insert([debounced(n=n, window=Window(1e-6))])
            twice += told.existing
        done.set()

    async with asyncio.timeout(60):
        await asyncio.gather(edit(), *(work(store, f"w{n}") for n, store in enumerate(workers)))
    assert seen == sorted(seen)
    assert seen[-1] == 59
    assert len(seen) + twice == 60


async def test_an_open_transaction_holds_its_key_and_nothing_else(real_postgres_store: PostgresHarness) -> None:
    """An enqueue of the same key waits for the transaction. A worker doesn't, neither for the job nor for its line."""
    harness = real_postgres_store
    store = harness.store
    now = Window(1e-6)
    [head] = await store.insert([debounced(n=1, window=now)])
    await store.promote()
    [run] = await claim(store)
    [behind] = await store.insert([debounced(n=2, window=now)])
    connection = await harness.connection()
    transaction = connection.transaction()
    await transaction.start()

    async def ask(query: Query) -> str:
        return str(await connection.fetchval(query.text, query.parameter))

    [told] = await drive_async(insert_on_conn.insert("public", [debounced(n=3, window=now)], repeat=False), ask)
    assert (told.id, told.existing) == (behind.id, True)
    other = asyncio.create_task((await harness.another()).insert([debounced(n=4, window=now)]))
    async with asyncio.timeout(10):
        await end(store, run)
        assert await claim(store) == []
        plain = real_job()
        await store.insert([plain])
        assert [one.id for one in await claim(store)] == [plain.id]
    assert not other.done()
    await transaction.commit()
    [told] = await other
    assert (told.id, told.existing) == (behind.id, True)
    await claim(store)
    await store.promote()
    assert [one.payload["n"] for one in await claim(store)] in ([4], [])  # [] if the first claim has brought it
    assert await payload(harness, behind.id) == 4
    assert head.id == run.id


# ── Throttle ──


async def test_the_first_of_a_window_counts(store: Harness) -> None:
    first = throttled()
    [made] = await store.store.insert([first])
    assert not made.existing
    [told] = await store.store.insert([throttled()])
    assert told == replace(made, existing=True)
    await store.advance(59)
    [run] = await claim(store.store)
    await end(store.store, run)
    [told] = await store.store.insert([throttled()])
    assert (told.id, told.existing, told.status) == (first.id, True, Status.COMPLETED)
    await store.advance(1)
    second = throttled()
    [told] = await store.store.insert([second])
    assert (told.id, told.existing) == (second.id, False)


@pytest.mark.parametrize("end_", ["delete", "prune"])
async def test_the_window_outlasts_the_job(store: Harness, end_: str) -> None:
    first = throttled(seconds=3 * DAY)
    [made] = await store.store.insert([first])
    if end_ == "delete":
        await store.store.move([first.id], Delete(by="ops"))
    else:
        [run] = await claim(store.store)
        await end(store.store, run)
        await store.advance(2 * DAY)
        await store.store.prune(Retention(completed=DAY))
    assert await store.store.read([first.id], Status) == {}
    assert await store.store.tidy("prune_throttles", 10) == 0
    [told] = await store.store.insert([throttled(seconds=3 * DAY)])
    assert (told.id, told.existing, told.created) == (first.id, True, made.created)
    await store.advance(3 * DAY)
    assert await store.store.tidy("prune_throttles", 10) == 1
    assert not (await store.store.insert([throttled()]))[0].existing


async def test_a_repeat_of_a_throttled_enqueue(store: Harness) -> None:
    """It gets the id of its own job, also after the window, and also if the job was deleted meanwhile."""
    first = throttled()
    await store.store.insert([first])
    for seconds in (0, 100):
        await store.advance(seconds)
        [told] = await store.store.insert([first], repeat=True)
        assert (told.id, told.existing) == (first.id, True)
    await store.store.move([first.id], Delete(by="ops"))
    [told] = await store.store.insert([first], repeat=True)
    assert (told.id, told.existing) == (first.id, True)
    assert await store.rows() == {}


async def test_a_live_job_answers_after_the_window(store: Harness) -> None:
    """At most one live job has a key, also with throttle. The enqueue makes no job, so no window begins."""
    first = throttled()
    await store.store.insert([first])
    await store.advance(100)
    [told] = await store.store.insert([throttled()])
    assert (told.id, told.existing, told.status) == (first.id, True, Status.PENDING)
    [run] = await claim(store.store)
    await end(store.store, run)
    assert not (await store.store.insert([throttled()]))[0].existing


async def test_a_longer_window_keeps_the_row(store: Harness) -> None:
    [made] = await store.store.insert([throttled(seconds=10.0)])
    await store.store.insert([throttled(seconds=100.0)])
    await store.advance(50)
    assert await store.store.tidy("prune_throttles", 10) == 0
    assert (await store.store.insert([throttled(seconds=100.0)]))[0].id == made.id


async def test_throttled_jobs_in_a_line_and_in_a_batch(store: Harness) -> None:
    def queued(key: str) -> NewJob:
        new = throttled(key)
        return replace(new, if_live="queue", line=new.throttle and new.throttle.line)

    new = [queued("a"), throttled("b"), queued("a"), throttled("b"), debounced("a"), job(), debounced("a", 2)]
    told = await store.store.insert(new)
    ids = [one.id for one in new]
    assert [one.id for one in told] == [ids[0], ids[1], ids[0], ids[1], ids[4], ids[5], ids[4]]
    assert [one.existing for one in told] == [False, False, True, True, False, False, True]
    await store.advance(60)
    [told_] = await store.store.insert([queued("a")])
    assert (told_.existing, told_.status) == (False, Status.BLOCKED)


async def test_many_throttled_enqueues_at_once(real_store: Harness) -> None:
    everyone = await stores(real_store, 16)
    for n in range(3):
        new = [throttled(f"{n}") for _ in everyone]
        told = await asyncio.gather(*(store.insert([one]) for store, one in zip(everyone, new, strict=True)))
        answers = [one for [one] in told]
        assert len({one.id for one in answers}) == 1
        assert sum(not one.existing for one in answers) == 1
        assert len(await real_store.fetch("SELECT 1 FROM _jobs")) == n + 1
