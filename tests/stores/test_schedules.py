"""Schedules in the stores: one transaction for each change, and at most one job per schedule and nominal time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from rowlock.core.cron import Cron, Every
from rowlock.core.job import Job, NewJob, Status
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Requeue
from rowlock.core.schedules import Fire, Fired, Schedule, ScheduleName
from rowlock.core.templates import line_of
from rowlock.errors import OnceTaken, RowlockError, StoreBusy
from rowlock.stores.base import Store
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.records import Entry
from rowlock.stores.schedules import FIRES_KEPT, Decided, ScheduleChange, ScheduleFilter, Which, in_any_case
from tests.stores.conftest import shared_store
from tests.stores.harness import NOBODY, START, Harness, PostgresHarness, _ids, claim_by, job, settlement
from tests.waiting import until

store = shared_store
MINUTE = timedelta(minutes=1)
ANN = Entry("ann", "schedule.put", "mail", "because", {"n": 1})


def schedule(name: str = "s", **fields: Any) -> Schedule:
    """Return a schedule for each minute from START on, of which no time is decided yet."""
    usual: dict[str, Any] = {
        "topic": "mail",
        "when": Every(60.0),
        "upto": START,
        "next_run_at": START + MINUTE,
        "zone_data": "2026a",
        "created": START,
        "updated": START,
    }
    return Schedule(id=_ids.one(), name=name, **usual | fields)


def change_to(new: Schedule | None, *fires: Fire, entries: Sequence[Entry] = ()) -> Any:
    return lambda _old, _now: ScheduleChange(new, fires, entries)


async def put(store: Store, *schedules: Schedule) -> None:
    for one in schedules:
        named = ScheduleName(one.name, one.scope, one.scope_id)
        [decided] = await store.change_schedules(Which(name=named), change_to(one))
        assert decided == Decided(one, [])


async def fire(store: Store, one: Schedule, *fires: Fire) -> list[Fired]:
    def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
        assert old is not None
        return ScheduleChange(old, fires)

    [decided] = await store.change_schedules(Which(ids=(one.id,)), decide)
    return decided.fired


async def found(store: Store, **wanted: Any) -> list[Schedule]:
    return await store.schedules(ScheduleFilter(**wanted), limit=1000)


async def fires_of(store: Store, one: Schedule) -> dict[datetime, Fired]:
    return {fired.fire_at: fired for fired in (await store.fires([one.id], limit=1000))[one.id]}


def at(minutes: float) -> datetime:
    return START + minutes * MINUTE


# ── Storing schedules ──


RICH = {
    "scope": "tenant",
    "scope_id": "7 ü",
    "topic": "reports/daily",
    "when": Cron("30 2 * * 1-5", "Europe/Berlin", "skip", "both"),
    "version": 3,
    "payload": {"text": "{{fire_at}} 'quoted' \\{{x}} ü😀", "n": [1, 2.5, None, True], "zero": -0.0, "big": 1 << 62},
    "options": {"priority": 7, "tags": ["a", "ü"], "timeout": 1.5, "max_retries": 0},
    "start": START - timedelta(days=400),
    "end": datetime(8999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "jitter": 12.25,
    "missed": "all",
    "most": 1000,
    "within": 86_400.5,
    "if_live": "queue",
    "description": "Every night\n'ü'",
    "revision": 12,
    "owner": "shop.jobs",
    "absent": True,
    "paused_at": START + timedelta(microseconds=1),
    "resumed_at": START + timedelta(microseconds=2),
    "paused_by": "ann",
    "pause_reason": "why not",
    "upto": START + timedelta(microseconds=3),
    "next_run_at": datetime(8999, 1, 1, tzinfo=UTC),
    "last_run_at": START - timedelta(microseconds=1),
    "last_job_id": NOBODY,
    "zone_data": "2026b",
}


async def test_what_was_put_is_read_to_the_microsecond(store: Harness) -> None:
    plain, rich = schedule("plain"), schedule("rich", **RICH)
    over = schedule("over", next_run_at=None, when=Every(1.5 + 1e-6, START))
    await put(store.store, plain, rich, over)
    assert {one.name: one for one in await found(store.store)} == {"plain": plain, "rich": rich, "over": over}
    changed = replace(rich, payload={}, options={}, scope="tenant", absent=False, resumed_at=None, last_job_id=None)
    await store.store.change_schedules(Which(ids=(rich.id,)), change_to(changed))
    assert await found(store.store, ids=(rich.id,)) == [changed]
    assert len(await found(store.store)) == 3


async def test_names_are_unique_by_scope(store: Harness) -> None:
    several = [
        schedule("s", scope=scope, scope_id=scope_id)
        for scope in (None, "a", "b")
        for scope_id in (None, "1", "2")
    ]  # fmt: skip
    await put(store.store, *several, schedule("S"))
    for one in several:
        seen: list[Schedule | None] = []
        which = Which(name=ScheduleName("s", one.scope, one.scope_id))
        look: Any = lambda old, _, seen=seen: seen.append(old)  # noqa: E731
        assert await store.store.change_schedules(which, look) == []
        assert seen == [one]


# ── Which schedules a change concerns ──


async def test_unknown_ids_and_names(store: Harness) -> None:
    known = schedule()
    await put(store.store, known)
    seen: list[tuple[Schedule | None, datetime]] = []
    decide: Any = lambda old, now: seen.append((old, now))  # noqa: E731
    assert await store.store.change_schedules(Which(ids=(NOBODY,)), decide) == []
    assert await store.store.change_schedules(Which(ids=()), decide) == []
    assert await store.store.change_schedules(Which(due=10), decide) == []
    assert seen == []
    assert await store.store.change_schedules(Which(name=ScheduleName("t")), decide) == []
    assert await store.store.change_schedules(Which(ids=(NOBODY, known.id)), decide) == []
    assert seen == [(None, START), (known, START)]


async def test_due_ones_come_oldest_first_and_no_more_than_asked(store: Harness) -> None:
    minutes = [5, 3, 1, None, 2, 9, 4]
    each = [schedule(f"s{n}", next_run_at=None if n is None else at(n)) for n in minutes]
    await put(store.store, *each)
    assert await store.store.next_fire() == 60.0
    await store.advance(60 * 4)
    assert await store.store.next_fire() == -180.0
    locked: list[str] = []
    for limit, expected in [(2, ["s1", "s2"]), (10, ["s3", "s4"]), (10, [])]:

        def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
            assert old is not None
            locked.append(old.name)
            return ScheduleChange(replace(old, upto=now, next_run_at=at(100)))

        locked.clear()
        await store.store.change_schedules(Which(due=limit), decide)
        assert sorted(locked) == expected
    assert await store.store.next_fire() == 60.0
    await store.execute("UPDATE _jobs_schedules SET next_run_at = NULL")
    assert await store.store.next_fire() is None


# ── One job per schedule and time ──


async def test_fires_against_a_model(store: Harness) -> None:
    """Random writes in random order: a time that has a job keeps it, and a time without a job may get one."""
    for seed in range(12):
        await store.reset()
        rng = random.Random(seed)
        schedules = [schedule(f"s{n}") for n in range(3)]
        await put(store.store, *schedules)
        other = await store.another()
        model: dict[tuple[str, datetime], tuple[str | None, str | None, str]] = {}
        for _ in range(30):
            await store.advance(1)
            batch: dict[str, list[Fire]] = {}
            expected: dict[str, list[datetime]] = {}
            for one in rng.sample(schedules, rng.randint(1, 3)):
                fires = []
                for minute in rng.sample(range(5), rng.randint(1, 3)):
                    kind: Any = rng.choice(["schedule", "backfill", "run_now"])
                    with_job = rng.random() < 0.4
                    fires.append(
                        Fire(fire_at=at(minute), kind=kind, job=job())
                        if with_job
                        else Fire(fire_at=at(minute), kind=kind, reason="missed", detail=rng.choice([None, "ü"]))
                    )
                batch[one.id] = fires
                for new in fires:
                    taken = model.get((one.id, new.fire_at), (None, None, ""))[0] is not None
                    if not taken:
                        made = None if new.job is None else new.job.id
                        model[one.id, new.fire_at] = (made, new.reason, new.kind)
                    if not taken and new.job is not None:
                        expected.setdefault(one.id, []).append(new.fire_at)

            def decide(old: Schedule | None, _: datetime, batch: dict[str, list[Fire]] = batch) -> ScheduleChange:
                assert old is not None
                return ScheduleChange(old, batch[old.id])

            decided = await rng.choice([store.store, other]).change_schedules(Which(ids=tuple(batch)), decide)
            told = {
                each.schedule.id: times
                for each in decided
                if each.schedule and (times := [one.fire_at for one in each.fired if one.job_id is not None])
            }
            assert told == expected
        stored = {
            (one.id, fire_at): (fired.job_id, fired.reason, fired.kind)
            for one in schedules
            for fire_at, fired in (await fires_of(store.store, one)).items()
        }
        assert stored == model
        jobs = {row.job.id: (row.job.schedule_id, row.job.fire_at) for row in (await store.rows()).values()}
        assert jobs == {made: key for key, (made, _, _) in model.items() if made is not None}


async def test_the_newest_run_is_noted_but_not_that_of_a_backfill(store: Harness) -> None:
    one = schedule()
    await put(store.store, one)
    [second] = await fire(store.store, one, Fire(fire_at=at(2), job=job()))
    await fire(store.store, one, Fire(fire_at=at(1), job=job()), Fire(fire_at=at(3), kind="backfill", job=job()))
    await fire(store.store, one, Fire(fire_at=at(4), reason="live"))
    [now] = await found(store.store)
    assert (now.last_run_at, now.last_job_id) == (at(2), second.job_id)
    [third] = await fire(store.store, one, Fire(fire_at=at(5), kind="run_now", job=job()))
    [now] = await found(store.store)
    assert (now.last_run_at, now.last_job_id) == (at(5), third.job_id)


@pytest.mark.parametrize("end", [Completed({"ok": 1}), Failed("x", final=True)])
async def test_a_job_knows_its_schedule_and_its_time_for_ever(store: Harness, end: Any) -> None:
    one, fire_at = schedule(), START - timedelta(microseconds=1)
    await put(store.store, one)
    new = job(payload={"n": 1}, run_at=fire_at)
    [fired] = await fire(store.store, one, Fire(fire_at=fire_at, job=new))
    assert fired == Fired(fire_at=fire_at, at=START, kind="schedule", job_id=new.id)
    [claimed] = (await store.claim()).jobs
    assert (claimed.id, claimed.schedule_id, claimed.fire_at) == (new.id, one.id, fire_at)
    await store.store.settle([settlement(claimed, end)])
    ended = await store.job(new.id)
    assert (ended.schedule_id, ended.fire_at, ended.finished_at) == (one.id, fire_at, START)
    if ended.status is Status.FAILED:
        await store.store.move([new.id], Requeue(by="ann"))
        again = await store.job(new.id)
        assert (again.schedule_id, again.fire_at, again.status) == (one.id, fire_at, Status.PENDING)
    await store.store.change_schedules(Which(ids=(one.id,)), change_to(None))
    kept = await store.job(new.id)  # its schedule is deleted
    assert (kept.schedule_id, kept.fire_at) == (one.id, fire_at)


# ── Jobs that are not over ──


def keyed(one: Schedule, if_live: str) -> NewJob:
    new = job(key=one.key)
    kept = "queue" if if_live == "reject" else if_live
    return replace(new, if_live=kept, line=line_of(new.topic, None, None, one.key))


async def fire_next(store: Harness, one: Schedule, if_live: str) -> Fired:
    await store.advance(60)
    new = keyed(one, if_live)
    room = {"queue": 2, "reject": 1}.get(if_live)
    [fired] = await fire(store.store, one, Fire(fire_at=store.now, job=new, room=room))
    return fired


async def run(store: Harness) -> Job:
    """Claim the only job that can be claimed. A claim that has unblocked a job is `contended`: claim once more."""
    claimed = await store.claim()
    if not claimed.jobs and claimed.contended:
        claimed = await store.claim()
    [found] = claimed.jobs
    return found


async def test_reject(store: Harness) -> None:
    one = schedule(if_live="reject")
    await put(store.store, one)
    first = await fire_next(store, one, "reject")
    assert first.job_id
    second = await fire_next(store, one, "reject")
    assert (second.job_id, second.reason, second.detail) == (None, "live", "the last job is not over")
    ran = await run(store)
    assert (await fire_next(store, one, "reject")).reason == "live"
    await store.store.settle([settlement(ran, Completed())])
    last = await fire_next(store, one, "reject")
    assert last.job_id not in (None, first.job_id)
    assert (
        sorted(fired.job_id is None for fired in (await fires_of(store.store, one)).values())
        == [False] * 2 + [True] * 2
    )
    assert len(await store.rows()) == 2


async def test_queue_lets_one_wait(store: Harness) -> None:
    one = schedule(if_live="queue")
    await put(store.store, one)
    first = await fire_next(store, one, "queue")
    second = await fire_next(store, one, "queue")
    third = await fire_next(store, one, "queue")
    assert first.job_id
    assert second.job_id
    assert (third.job_id, third.reason) == (None, "live")
    ran = await run(store)
    assert ran.id == first.job_id
    assert (await fire_next(store, one, "queue")).reason == "live"
    await store.store.settle([settlement(ran, Completed())])
    fifth = await fire_next(store, one, "queue")  # the second job is the head now, or soon
    assert fifth.job_id
    assert (await fire_next(store, one, "queue")).reason == "live"
    for expected in (second, fifth):
        ran = await run(store)
        assert ran.id == expected.job_id
        await store.store.settle([settlement(ran, Completed())])
    assert not (await store.claim()).jobs


async def test_queue_takes_all_that_were_missed(store: Harness) -> None:
    """Without `room` the store does not count the jobs that wait."""
    one = schedule(if_live="queue")
    await put(store.store, one)
    many = [keyed(one, "queue") for _ in range(5)]
    fired = await fire(store.store, one, *[Fire(fire_at=at(n), job=new) for n, new in enumerate(many)])
    assert [each.job_id for each in fired] == [new.id for new in many]
    ran = list[Any]()
    while len(ran) < 5:
        head = await run(store)
        ran.append(head.fire_at)
        await store.store.settle([settlement(head, Completed())])
    assert ran == [at(n) for n in range(5)]


async def test_replace_cancels_the_last_one(store: Harness) -> None:
    one = schedule(if_live="replace")
    await put(store.store, one)
    first, second = [await fire_next(store, one, "replace") for _ in range(2)]
    ran = await run(store)
    assert ran.id == second.job_id
    assert (await store.job(str(first.job_id))).status is Status.CANCELLED
    third = await fire_next(store, one, "replace")
    assert third.job_id
    await store.claim()
    assert (await store.job(ran.id)).status is Status.CANCEL_REQUESTED


async def test_a_job_that_the_store_refuses_leaves_nothing(store: Harness) -> None:
    """The whole batch is rolled back, with the fires of other schedules."""
    one, other = schedule("a"), schedule("b")
    await put(store.store, one, other)
    taken = replace(job(key="k"), once=line_of("mail", None, None, "k"))
    await store.insert(taken)
    again = replace(job(key="k"), once=line_of("mail", None, None, "k"))
    jobs = {one.id: job(), other.id: again}

    def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
        assert old is not None
        return ScheduleChange(replace(old, upto=at(9)), [Fire(fire_at=at(1), job=jobs[old.id])], [ANN])

    with pytest.raises(OnceTaken):
        await store.store.change_schedules(Which(ids=(one.id, other.id)), decide)
    assert await found(store.store) == [one, other]
    assert await store.store.fires([one.id, other.id]) == {one.id: [], other.id: []}
    assert list(await store.rows()) == [taken.id]
    assert await store.audit() == []


# ── Transactions ──


async def test_a_decision_that_raises_leaves_nothing(store: Harness) -> None:
    class Oops(Exception):
        pass

    one, other = schedule("a"), schedule("b")
    await put(store.store, one, other)
    calls = []

    def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
        calls.append(old)
        if len(calls) == 2:
            raise Oops
        return ScheduleChange(old and replace(old, upto=now), [Fire(fire_at=at(1), job=job())], [ANN])

    await store.advance(60)
    for which in (Which(due=10), Which(ids=(one.id, other.id))):
        calls.clear()
        with pytest.raises(Oops):
            await store.store.change_schedules(which, decide)
        assert len(calls) == 2
    assert await found(store.store) == [one, other]
    assert await store.rows() == {}
    assert await store.audit() == []
    [decided] = await store.store.change_schedules(Which(ids=(one.id,)), change_to(one, entries=[ANN]))
    assert decided.schedule == one  # the store is still usable


async def test_the_audit_is_written_with_the_change(store: Harness) -> None:
    one = schedule()
    await store.store.change_schedules(Which(name=ScheduleName("s")), change_to(one, entries=[ANN, ANN]))
    await store.advance(5)
    await store.store.change_schedules(Which(ids=(one.id,)), change_to(None, entries=[replace(ANN, action="gone")]))
    assert [(entry.at, entry.by, entry.action, entry.topic, entry.reason) for entry in await store.audit()] == [
        (START, "ann", "schedule.put", "mail", "because"),
        (START, "ann", "schedule.put", "mail", "because"),
        (at(5 / 60), "ann", "gone", "mail", "because"),
    ]
    assert (await store.audit())[0].data == {"n": 1}
    seen = await store.store.change_schedules(Which(ids=(one.id,)), change_to(one, entries=[ANN]))
    assert seen == []  # the schedule is gone, so no decision was made
    assert len(await store.audit()) == 3


async def test_a_deleted_schedule_takes_its_fires_and_leaves_its_jobs(store: Harness) -> None:
    one, other = schedule("a"), schedule("b")
    await put(store.store, one, other)
    for each in (one, other):
        await fire(store.store, each, Fire(fire_at=at(1), job=job()), Fire(fire_at=at(2), reason="missed"))
    [decided] = await store.store.change_schedules(Which(ids=(one.id,)), change_to(None))
    assert decided == Decided(None, [])
    assert await found(store.store, ids=(one.id,)) == []
    assert await store.fetch(f"SELECT count(*) FROM _jobs_fires WHERE schedule_id = '{one.id}'") == [(0,)]
    assert len((await store.store.fires([other.id]))[other.id]) == 2
    assert len(await store.rows()) == 2
    anew = replace(one, id=_ids.one())
    await put(store.store, anew)
    assert (await store.store.fires([anew.id]))[anew.id] == []


# ── Reading ──


async def test_pages_and_filters_of_schedules_against_a_model(store: Harness) -> None:
    rng = random.Random(7)
    each: list[Schedule] = []
    for n in range(40):
        name = rng.choice(["Night", "night", "day", "dawn ü", "Z", "_x", "%", "é"])
        paused, resumed = rng.choice([(None, None), (START, None), (START, at(1))])
        one = schedule(
            name,
            scope=rng.choice([None, "tenant"]),
            scope_id=str(n),
            topic=rng.choice(["mail", "bills"]),
            owner=rng.choice([None, "shop"]),
            absent=rng.random() < 0.3,
            paused_at=paused,
            resumed_at=resumed,
            next_run_at=rng.choice([None, at(1), at(2)]),
            zone_data=rng.choice(["", "2025a", "2026a"]),
        )
        each.append(one)
    await put(store.store, *each)
    by_name = sorted(each, key=lambda one: (one.name.encode(), one.id))
    assert await found(store.store) == by_name
    tests: list[tuple[dict[str, Any], Callable[[Schedule], Any]]] = [
        ({"name": "night"}, lambda one: one.name == "night"),
        ({"topic": "bills"}, lambda one: one.topic == "bills"),
        ({"scope": "tenant"}, lambda one: one.scope == "tenant"),
        ({"scope_id": "7"}, lambda one: one.scope_id == "7"),
        ({"state": "over"}, lambda one: one.state == "over"),
        ({"state": "paused"}, lambda one: one.state == "paused"),
        ({"state": "active"}, lambda one: one.state == "active"),
        ({"pattern": in_any_case("NIG")}, lambda one: "nig" in one.name.lower()),
        ({"pattern": in_any_case("%")}, lambda one: "%" in one.name),
        ({"pattern": in_any_case("_")}, lambda one: "_" in one.name),
        ({"pattern": in_any_case("Ü")}, lambda one: "ü" in one.name),
        ({"owner": "shop"}, lambda one: one.owner == "shop"),
        ({"absent": True}, lambda one: one.absent),
        ({"absent": False}, lambda one: not one.absent),
        ({"zone_data": "2026a"}, lambda one: one.zone_data < "2026a"),
        ({"ids": (each[3].id, NOBODY, each[9].id)}, lambda one: one in (each[3], each[9])),
        ({"ids": ()}, lambda one: False),
    ]
    for _ in range(60):
        some = rng.sample(tests, rng.randint(1, 3))
        wanted = {name: value for fields, _ in some for name, value in fields.items()}
        meet = [fits for fields, fits in some if all(wanted[name] == value for name, value in fields.items())]
        expected = [one for one in by_name if all(fits(one) for fits in meet)]
        limit, seen = rng.randint(1, 9), list[Schedule]()
        while page := await store.store.schedules(
            ScheduleFilter(**wanted), after=(seen[-1].name, seen[-1].id) if seen else None, limit=limit
        ):
            assert len(page) <= limit
            seen += page
        assert seen == expected, wanted


async def test_pages_of_fires(store: Harness) -> None:
    one, other, without = schedule("a"), schedule("b"), schedule("c")
    await put(store.store, one, other, without)
    for each, count in ((one, 25), (other, 3)):
        await fire(store.store, each, *[Fire(fire_at=at(n), reason="missed", detail=str(n)) for n in range(count)])
    ids = [one.id, other.id, without.id, NOBODY]
    found = await store.store.fires(ids, limit=5)
    assert {key: [fired.detail for fired in value] for key, value in found.items()} == {
        one.id: ["24", "23", "22", "21", "20"],
        other.id: ["2", "1", "0"],
        without.id: [],
        NOBODY: [],
    }
    assert [fired.detail for fired in (await store.store.fires([one.id], before=at(3)))[one.id]] == ["2", "1", "0"]
    seen: list[Fired] = []
    while page := (await store.store.fires([one.id], before=seen[-1].fire_at if seen else None, limit=7))[one.id]:
        seen += page
    assert [fired.fire_at for fired in seen] == [at(n) for n in reversed(range(25))]
    assert await store.store.fires([]) == {}


async def test_old_fires_without_a_job_are_pruned(store: Harness) -> None:
    one = schedule()
    await put(store.store, one)
    await fire(store.store, one, *[Fire(fire_at=at(n), reason="missed") for n in range(5)])
    await fire(store.store, one, Fire(fire_at=at(9), job=job()))
    await store.advance(FIRES_KEPT)
    assert await store.store.tidy("prune_fires", 100) == 0
    await store.advance(1e-6)
    await fire(store.store, one, Fire(fire_at=at(6), reason="live"))  # an old time, but stored only now
    assert await store.store.tidy("prune_fires", 3) == 3
    assert await store.store.tidy("prune_fires", 3) == 2
    assert await store.store.tidy("prune_fires", 3) == 0
    assert sorted(await fires_of(store.store, one)) == [at(6), at(9)]


# ── Rows that this release can't read ──

_GOOD = '"topic": "mail", "when": {"every": 60}'
GARBAGE = {
    "no object": "[]",
    "nothing": "null",
    "a number": "5",
    "a text": '"x"',
    "empty": "{}",
    "no when": '{"topic": "mail"}',
    "a when of tomorrow": '{"topic": "mail", "when": {"moon": "full"}}',
    "a bad when": '{"topic": "mail", "when": {"cron": "x"}}',
    "when is no object": '{"topic": "mail", "when": 5}',
    "an extra of tomorrow": '{"topic": "mail", "when": {"cron": "* * * * *", "moon": 1}}',
    "a bad time": '{"topic": "mail", "when": {"every": 60}, "start": "soon"}',
    "an odd time": '{"topic": "mail", "when": {"every": 60}, "end": 5}',
    "no topic": '{"when": {"every": 60}}',
    "a bad topic": '{"topic": 5, "when": {"every": 60}}',
    "a policy of tomorrow": "{" + _GOOD + ', "missed": "some"}',
    "an if_live of tomorrow": "{" + _GOOD + ', "if_live": "some"}',
    "most": "{" + _GOOD + ', "missed": "all", "most": "many"}',
    "within": "{" + _GOOD + ', "missed": "all", "within": "long"}',
    "jitter": "{" + _GOOD + ', "jitter": "much"}',
    "payload": "{" + _GOOD + ', "payload": []}',
    "options": "{" + _GOOD + ', "options": {"colour": "red"}}',
    "options are no object": "{" + _GOOD + ', "options": 7}',
    "version": "{" + _GOOD + ', "version": "one"}',
    "a blank of tomorrow": "{" + _GOOD + ', "payload": {"a": "{{moon}}"}}',
    "a huge number": '{"topic": 1e999}',
    "a lone surrogate": '{"topic": "\\ud800"}',
    "very deep": '{"topic": ' + "[" * 3000 + "]" * 3000 + "}",
}
BROKEN_JSON = {"broken": "{", "no JSON": "what?", "no text": "", "bytes": "\x01"}  # PostgreSQL refuses to store these


@pytest.mark.parametrize("what", [*GARBAGE, *BROKEN_JSON])
async def test_a_definition_that_cant_be_read_harms_nobody_else(store: Harness, what: str) -> None:
    if what in BROKEN_JSON and store.kind == "postgres":
        pytest.skip("its type is json")
    bad, good = schedule("bad", next_run_at=at(0.5)), schedule("good")
    await put(store.store, bad, good)
    text = (GARBAGE | BROKEN_JSON)[what].replace("'", "''")
    await store.execute(f"UPDATE _jobs_schedules SET definition = '{text}' WHERE id = '{bad.id}'")
    assert await found(store.store) == [good]
    assert await found(store.store, ids=(bad.id, good.id)) == [good]
    await store.advance(60)
    seen: list[str] = []
    await store.store.change_schedules(Which(due=10), lambda old, _: seen.append(old.name if old else "?"))
    assert seen == ["good"]
    await store.store.change_schedules(Which(ids=(bad.id, good.id)), change_to(replace(good, revision=2)))
    assert await found(store.store) == [replace(good, revision=2)]
    [row] = await store.fetch(f"SELECT revision FROM _jobs_schedules WHERE id = '{bad.id}'")
    assert row == (1,)  # untouched


# ── Several connections ──


@asynccontextmanager
async def locked(store: PostgresHarness, schedule_id: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Yield another connection whose transaction has locked the row."""
    other = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            await other.execute(f"SELECT 1 FROM _jobs_schedules WHERE id = '{schedule_id}' FOR UPDATE")
            yield other
    finally:
        await other.close()


WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_due_ones_that_are_locked_are_left_out(postgres_store: PostgresHarness) -> None:
    store = postgres_store.store
    first, second = schedule("a"), schedule("b", next_run_at=at(1.5))
    await put(store, first, second)
    await postgres_store.advance(120)
    seen: list[str] = []
    async with locked(postgres_store, first.id):
        await store.change_schedules(Which(due=1), lambda old, _: seen.append(old.name if old else "?"))
        assert seen == ["b"]
    await store.change_schedules(Which(due=1), lambda old, _: seen.append(old.name if old else "?"))
    assert seen == ["b", "a"]


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_named_one_that_is_locked_is_waited_for(postgres_store: PostgresHarness, by_name: bool) -> None:
    """After the wait, the change sees what the other transaction has written, and a time after that."""
    store = postgres_store.store
    one = schedule()
    await put(store, one)
    which = Which(name=ScheduleName("s")) if by_name else Which(ids=(one.id,))
    seen: list[Any] = []
    async with locked(postgres_store, one.id) as other:
        asked = asyncio.create_task(store.change_schedules(which, lambda old, now: seen.append((old, now))))
        await until(lambda: postgres_store.fetch(WAITS), "the second one waits")
        await other.execute("UPDATE _jobs_schedules SET revision = 5")
        await postgres_store.advance(7)
    await asked
    assert seen == [(replace(one, revision=5), postgres_store.now)]


async def test_another_transaction_takes_the_name_first(postgres_store: PostgresHarness) -> None:
    store = postgres_store.store
    theirs, mine = schedule("s"), schedule("s")
    await put(store, replace(theirs, name="t"))

    def decide(old: Schedule | None, _: datetime) -> ScheduleChange:
        assert old is None
        with psycopg.connect(postgres_store.url) as other:  # between the store's read and its write
            other.execute("UPDATE _jobs_schedules SET name = 's'")
        return ScheduleChange(mine, [], [ANN])

    with pytest.raises(StoreBusy, match="same name"):
        await store.change_schedules(Which(name=ScheduleName("s")), decide)
    assert await found(store) == [theirs]
    assert await postgres_store.audit() == []


async def test_many_put_the_same_name_at_once(real_store: Harness) -> None:
    for n in range(10):
        name = f"s{n}"
        stores = [real_store.store, *[await real_store.another() for _ in range(3)]]

        async def one(store: Store, name: str = name) -> str:
            def decide(old: Schedule | None, now: datetime) -> ScheduleChange | None:
                return ScheduleChange(schedule(name), [], [ANN]) if old is None else None

            try:
                return "new" if await store.change_schedules(Which(name=ScheduleName(name)), decide) else "there"
            except StoreBusy:
                return "busy"

        answers = await asyncio.gather(*(one(store) for store in stores * 2))
        assert answers.count("new") == 1
        assert len(await found(real_store.store, name=name)) == 1
        assert len(await real_store.audit()) == n + 1
        await real_store.close_others()


async def test_many_fire_the_same_times_at_once(real_store: Harness) -> None:
    """Each store decides for itself. Half of them find the schedules by id, and ignore what was decided."""
    each = [schedule(f"s{n}", upto=START, next_run_at=at(1)) for n in range(5)]
    await put(real_store.store, *each)
    stores = [await real_store.another() for _ in range(6)]

    def advance(old: Schedule | None, _: datetime) -> ScheduleChange | None:
        assert old is not None
        if old.next_run_at is None:
            return None
        times = list(islice((at(n) for n in range(1, 41) if at(n) > old.upto), 4))
        done = replace(old, upto=times[-1], next_run_at=None if times[-1] == at(40) else times[-1] + MINUTE)
        return ScheduleChange(done, [Fire(fire_at=fire_at, job=job()) for fire_at in times])

    def blindly(old: Schedule | None, _: datetime) -> ScheduleChange | None:
        return ScheduleChange(old, [Fire(fire_at=at(n), kind="backfill", job=job()) for n in range(1, 41, 7)])

    async def work(store: Store, n: int) -> None:
        while await real_store.store.next_fire() is not None:
            which = Which(due=2) if n % 2 else Which(ids=tuple(one.id for one in each))
            await store.change_schedules(which, advance if n % 2 else blindly)

    await asyncio.gather(*(work(store, n) for n, store in enumerate(stores)))
    rows = [row.job for row in (await real_store.rows()).values()]
    made = [(row.schedule_id, row.fire_at) for row in rows]
    assert sorted(made) == sorted((one.id, at(n)) for one in each for n in range(1, 41))
    fires = {(one.id, fire_at): fired.job_id for one in each for fire_at, fired in (await fires_of(real_store.store, one)).items()}  # fmt: skip  # noqa: E501
    assert fires == {(row.schedule_id, row.fire_at): row.id for row in rows}


async def test_a_fire_that_another_transaction_has_made_is_never_replaced(postgres_store: PostgresHarness) -> None:
    """The primary key is the last guard, if a transaction writes despite the lock and the read."""
    one = schedule()
    await put(postgres_store.store, one)
    store: Any = postgres_store.store
    theirs = job()
    await postgres_store.insert(theirs)

    with pytest.MonkeyPatch.context() as patch:
        init = Statements.__init__

        def blind(self: Statements, schema: str) -> None:
            init(self, schema)
            blinded: Any = self
            blinded.schedules_look_on_conn = """SELECT '{"fired": [], "live": {}}' FROM (SELECT $1::text) AS a"""

        patch.setattr(Statements, "__init__", blind)
        patch.setattr("rowlock.stores.postgres.schedules.statements_on_conn", lambda schema: Statements(f'"{schema}"'))
        await fire(store, one, Fire(fire_at=at(1), job=job()))
        with pytest.raises(StoreBusy, match="same time"):
            await fire(store, one, Fire(fire_at=at(1), job=job()))
    assert len(await postgres_store.rows()) == 2


async def test_the_name_of_a_schedule_that_cant_be_read_is_taken(store: Harness) -> None:
    """Changing it raises a RowlockError, and the row stays."""
    await put(store.store, schedule())
    await store.execute("""UPDATE _jobs_schedules SET definition = '{"topic": "mail"}'""")
    with pytest.raises(RowlockError):
        await store.store.change_schedules(Which(name=ScheduleName("s")), change_to(schedule(), entries=[ANN]))
    assert await store.fetch("SELECT name, revision FROM _jobs_schedules") == [("s", 1)]
    assert await store.audit() == []


async def test_claims_find_the_job_of_a_time_long_past(store: Harness) -> None:
    """PostgreSQL's claims begin behind the dead index entries that they have seen. They must not miss this job."""
    one = schedule()
    await put(store.store, one)
    for _ in range(3):
        for done in (await store.claim(limit=50)).jobs:
            await store.store.settle([settlement(done, Completed())])
        await store.insert(*[job() for _ in range(20)])
    await store.store.claim(claim_by("w2", limit=100))
    past = START - timedelta(days=30)
    [fired] = await fire(store.store, one, Fire(fire_at=past, job=job(run_at=past)))
    [claimed] = (await store.claim()).jobs
    assert claimed.id == fired.job_id
