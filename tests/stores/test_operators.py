"""cancel, requeue, update, delete, pause: whole rows, and the audit."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp
from rowlock.stores.base import Changed, Edit, Pause, Progress
from tests.stores.conftest import shared_store
from tests.stores.harness import LEASE, MINUTE, NOBODY, START, Harness, job, settlement
from tests.stores.rows import Audit, Row, micros

store = shared_store


def audit(at: datetime, action: str, job_id: str | None, reason: str | None = None, **data: Any) -> Audit:
    return Audit(at=at, by="ann", action=action, job_id=job_id, topic="mail", reason=reason, data=data)


# ── cancel ──


@pytest.mark.parametrize("status", [Status.PENDING, Status.BLOCKED, Status.WAITING, Status.PROCESSING])
@pytest.mark.parametrize("reason", ["wrong address", None])
async def test_cancel(store: Harness, status: Status, reason: str | None) -> None:
    there = await store.in_status(status)
    before = await store.row(there.id)
    now = await store.advance(2)
    held = status is Status.PROCESSING
    goal = Status.CANCEL_REQUESTED if held else Status.CANCELLED
    assert await store.store.cancel([there.id], by="ann", reason=reason) == [Changed(there.id, True, goal)]
    expected = structs.replace(
        there,
        status=goal,
        finished_at=None if held else now,
        cancel_requested_at=now,
        cancel_reason=reason,
        updated=now,
        events_count=there.events_count + 1,
    )
    entry: dict[str, Any] = {"at": micros(now), "event": goal.value, "status": goal, "version": there.version}
    entry |= {"by": "ann"} | ({"reason": reason} if reason else {})
    assert await store.row(there.id) == Row(expected, False, (*before.history, entry))
    assert (await store.audit())[-1] == audit(now, "cancel", there.id, reason)
    assert (await store.story(there.id))[-1] == goal.value


async def test_cancel_of_a_batch_answers_in_order(store: Harness) -> None:
    pending, running = await store.add("other"), (await store.claimed()).id
    done = (await store.settled(Completed(), topic="third")).id
    answers = await store.store.cancel([done, running, NOBODY, pending], by="ann")
    assert answers == [
        Changed(done, False, Status.COMPLETED),
        Changed(running, True, Status.CANCEL_REQUESTED),
        Changed(NOBODY, False, None),
        Changed(pending, True, Status.CANCELLED),
    ]
    assert {a.job_id for a in await store.audit()} == {running, pending}
    assert await store.store.cancel([], by="ann") == []


async def test_named_twice_is_done_once(store: Harness) -> None:
    one, two = await store.add(), await store.add()
    answers = await store.store.cancel([one, two, one], by="ann")
    assert [a.id for a in answers] == [one, two, one]
    assert answers[0].done
    assert len(await store.audit()) == 2
    assert await store.story(one) == ["enqueued", "cancelled"]


async def test_a_cancelled_job_is_not_claimed_and_gives_up_its_key(store: Harness) -> None:
    first = await store.add(key="k")
    await store.store.cancel([first], by="ann")
    second = await store.add(key="k")
    assert [j.id for j in (await store.claim()).jobs] == [second]


# ── requeue ──


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.CANCELLED])
async def test_requeue(store: Harness, status: Status) -> None:
    there = await store.in_status(status)
    before = await store.row(there.id)
    now = await store.advance(2)
    assert await store.store.requeue([there.id], by="ann", reason="fixed") == [Changed(there.id, True, Status.PENDING)]
    expected = structs.replace(
        there,
        status=Status.PENDING,
        run_at=now,
        expires_at=None,
        finished_at=None,
        updated=now,
        events_count=there.events_count + 1,
    )
    entry = {"at": micros(now), "event": "requeued", "status": "pending", "version": there.version}
    entry |= {"by": "ann", "reason": "fixed"}
    assert await store.row(there.id) == Row(expected, True, (*before.history, entry))
    assert await store.audit() == [audit(now, "requeue", there.id, "fixed")]
    assert [j.id for j in (await store.claim()).jobs] == [there.id]


async def test_requeue_with_changes(store: Harness) -> None:
    there = await store.in_status(Status.FAILED)
    before = await store.row(there.id)
    now = await store.advance(2)
    edit = Edit(priority=7, delay=60.0, payload='{"b":9007199254740993}', tags=("x",))
    answers = await store.store.requeue([there.id], edit, version=there.version, by="ann", reason="fixed")
    assert answers == [Changed(there.id, True, Status.PENDING)]
    later = now + timedelta(minutes=1)
    changes: dict[str, Any] = {"priority": 7, "run_at": later, "payload": {"b": 9007199254740993}, "tags": ("x",)}
    expected = structs.replace(
        there, status=Status.PENDING, **changes, finished_at=None, updated=now, events_count=there.events_count + 1
    )
    entry = {"at": micros(now), "event": "requeued", "status": "pending", "version": there.version, "by": "ann"}
    entry |= {"reason": "fixed", "changed": ["payload", "priority", "run_at", "tags"]}
    assert await store.row(there.id) == Row(expected, False, (*before.history, entry))
    was = {"payload": there.payload, "priority": there.priority, "run_at": micros(there.run_at), "tags": []}
    now_is = {"payload": {"b": 9007199254740993}, "priority": 7, "run_at": micros(later), "tags": ["x"]}
    assert await store.audit() == [audit(now, "requeue", there.id, "fixed", before=was, after=now_is)]
    assert (await store.claim()).jobs == []
    await store.advance(MINUTE)
    await store.store.promote()
    assert [j.payload for j in (await store.claim()).jobs] == [{"b": 9007199254740993}]


async def test_requeue_of_a_job_that_has_run_again_since(store: Harness) -> None:
    there = await store.in_status(Status.FAILED)
    before = await store.rows()
    answers = await store.store.requeue([there.id], Edit(payload="{}"), version=there.version - 1, by="ann")
    assert answers == [Changed(there.id, False, Status.FAILED)]
    assert await store.rows() == before
    assert await store.audit() == []


async def test_requeue_with_changes_while_another_has_the_key(store: Harness) -> None:
    dead = (await store.settled(GaveUp(), key="k")).id
    holder = await store.add(key="k")
    before = await store.rows()
    answers = await store.store.requeue([dead], Edit(payload='{"other":1}'), by="ann")
    assert answers == [Changed(dead, False, Status.CANCELLED, holder)]
    assert await store.rows() == before


async def test_requeue_while_others_have_the_key_in_their_scopes(store: Harness) -> None:
    dead = (await store.settled(GaveUp(), key="k", scope="a", scope_id="a")).id
    for scope, scope_id in ((None, None), ("a", None), (None, "a"), ("b", "a")):
        await store.add(key="k", scope=scope, scope_id=scope_id)
    assert await store.store.requeue([dead], by="ann") == [Changed(dead, True, Status.PENDING)]


async def test_requeue_resets_what_a_run_left_behind(store: Harness) -> None:
    claimed = await store.claimed(max_retries=1, run_at=START - timedelta(days=1))
    await store.advance(LEASE + 1)
    await store.store.rescue(by="m1", backoff=[1.0])
    [claimed] = (await store.claim("w2")).jobs
    await store.store.progress([Progress(claimed.id, 2, 40.0, "stage", "message")])
    await store.store.cancel([claimed.id], by="ann", reason="stop")
    await store.store.settle([settlement(await store.job(claimed.id), Failed("boom"))])
    there = await store.job(claimed.id)
    assert (there.retries, there.crashes, there.progress, there.stage) == (1, 1, 40.0, "stage")
    assert (there.status, there.last_error, there.cancel_reason) == (Status.CANCELLED, "boom", "stop")
    await store.store.requeue([there.id], by="ann")
    assert await store.job(there.id) == structs.replace(
        there,
        status=Status.PENDING,
        run_at=store.now,
        retries=0,
        crashes=0,
        progress=0.0,
        stage=None,
        message=None,
        finished_at=None,
        cancel_requested_at=None,
        cancel_reason=None,
        updated=store.now,
        events_count=there.events_count + 1,
    )


async def test_requeue_while_another_has_the_key(store: Harness) -> None:
    dead = (await store.settled(GaveUp(), key="k")).id
    holder = await store.add(key="k")
    elsewhere = (await store.settled(GaveUp(), topic="other", key="k")).id
    before = await store.rows()
    answers = await store.store.requeue([dead, elsewhere], by="ann")
    assert answers[0] == Changed(dead, False, Status.CANCELLED, holder)
    assert answers[1].done
    assert (await store.rows())[dead] == before[dead]
    assert [a.job_id for a in await store.audit()] == [elsewhere]


async def test_requeue_of_two_with_one_key(store: Harness) -> None:
    older = (await store.settled(GaveUp(), key="k")).id
    newer = (await store.settled(GaveUp(), key="k")).id
    answers = await store.store.requeue([newer, older], by="ann")
    assert answers == [Changed(newer, False, Status.CANCELLED, older), Changed(older, True, Status.PENDING)]
    assert [a.job_id for a in await store.audit()] == [older]


async def test_requeue_of_a_batch_answers_in_order(store: Harness) -> None:
    dead = (await store.settled(Failed("x", final=True))).id
    live = await store.add()
    answers = await store.store.requeue([live, NOBODY, dead], by="ann")
    assert [(a.id, a.done, a.status) for a in answers] == [
        (live, False, Status.PENDING),
        (NOBODY, False, None),
        (dead, True, Status.PENDING),
    ]
    assert await store.store.requeue([], by="ann") == []


# ── update ──

EDITS: dict[str, tuple[Edit, dict[str, Any], bool]] = {  # the edit, the columns, ready afterwards
    "priority": (Edit(priority=7), {"priority": 7}, True),
    "payload": (Edit(payload='{"b":[2.5,null]}'), {"payload": {"b": [2.5, None]}}, True),
    "tags": (Edit(tags=("x", "ü")), {"tags": ("x", "ü")}, True),
    "no tags": (Edit(tags=()), {"tags": ()}, True),
    "run_at": (Edit(run_at=START + timedelta(hours=1)), {"run_at": START + timedelta(hours=1)}, False),
    "run_at past": (Edit(run_at=START - timedelta(hours=1)), {"run_at": START - timedelta(hours=1)}, True),
    "delay": (Edit(delay=5.5), {"run_at": START + timedelta(seconds=7.5)}, False),
    "delay 0": (Edit(delay=0.0), {"run_at": START + timedelta(seconds=2)}, True),
    "all": (
        Edit(priority=-1, run_at=START, payload="{}", tags=("y",)),
        {"priority": -1, "run_at": START, "payload": {}, "tags": ("y",)},
        True,
    ),
}


@pytest.mark.parametrize("case", EDITS)
async def test_update(store: Harness, case: str) -> None:
    edit, columns, ready = EDITS[case]
    job_id = await store.add("mail", {"a": 1}, tags=("old",), run_at=START - timedelta(seconds=9))
    untouched = await store.add()
    before = await store.rows()
    now = await store.advance(2)
    assert await store.store.update([job_id], edit, by="ann", reason="why") == [Changed(job_id, True, Status.PENDING)]
    expected = structs.replace(before[job_id].job, **columns, updated=now, events_count=2)
    entry = {"at": micros(now), "event": "updated", "status": "pending", "version": 0, "by": "ann", "reason": "why"}
    history = ({**entry, "changed": sorted(columns)},)
    assert await store.rows() == {job_id: Row(expected, ready, history), untouched: before[untouched]}

    def plain(value: Any) -> Any:
        return micros(value) if isinstance(value, datetime) else list(value) if isinstance(value, tuple) else value

    was = {name: plain(getattr(before[job_id].job, name)) for name in columns}
    now_is = {name: plain(value) for name, value in columns.items()}
    assert await store.audit() == [audit(now, "update", job_id, "why", before=was, after=now_is)]
    assert await store.story(job_id) == ["enqueued", "updated"]


async def test_update_of_other_columns_leaves_ready_to_promote(store: Harness) -> None:
    job_id = await store.add(delay=MINUTE)
    await store.store.update([job_id], Edit(priority=3), by="ann")
    assert not (await store.row(job_id)).ready
    await store.advance(MINUTE)
    await store.store.update([job_id], Edit(priority=4), by="ann")
    assert not (await store.row(job_id)).ready
    assert await store.store.promote() == 1


async def test_an_updated_priority_counts_in_the_next_claim(store: Harness) -> None:
    first, second = await store.add(), await store.add()
    await store.claimed("w0", priority=1000)  # so that a store which remembers the last claim has something to remember
    await store.store.update([second], Edit(priority=101), by="ann")
    assert [j.id for j in (await store.claim()).jobs] == [second, first]


async def test_update_of_a_batch_answers_in_order(store: Harness) -> None:
    pending, running = await store.add("other"), (await store.claimed()).id
    answers = await store.store.update([running, NOBODY, pending], Edit(priority=5), by="ann")
    assert [(a.id, a.done, a.status) for a in answers] == [
        (running, False, Status.PROCESSING),
        (NOBODY, False, None),
        (pending, True, Status.PENDING),
    ]
    assert await store.store.update([], Edit(priority=5), by="ann") == []


# ── delete ──


@pytest.mark.parametrize("status", [Status.PENDING, Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.COMPLETED])
async def test_delete(store: Harness, status: Status) -> None:
    there = await store.in_status(status)
    now = await store.advance(2)
    assert await store.store.delete([there.id], by="ann", reason="gdpr") == [Changed(there.id, True, status)]
    assert await store.rows() == {}
    assert await store.store.events(there.id) == []
    assert (await store.audit())[-1] == audit(now, "delete", there.id, "gdpr", status=status.value)
    assert await store.store.delete([there.id], by="ann") == [Changed(there.id, False, None)]
    assert [a.action for a in await store.audit()].count("delete") == 1


async def test_delete_of_a_batch_answers_in_order(store: Harness) -> None:
    pending, running = await store.add("other"), (await store.claimed()).id
    done = (await store.settled(Completed(), topic="third")).id
    answers = await store.store.delete([done, running, NOBODY, pending], by="ann")
    assert [(a.id, a.done, a.status) for a in answers] == [
        (done, True, Status.COMPLETED),
        (running, False, Status.PROCESSING),
        (NOBODY, False, None),
        (pending, True, Status.PENDING),
    ]
    assert set(await store.rows()) == {running}
    assert await store.store.delete([], by="ann") == []


# ── pause ──


async def test_pause_and_resume(store: Harness) -> None:
    until = START + timedelta(minutes=5)
    await store.store.pause("b", by="ann", reason="deploy", until=until)
    await store.advance(1)
    await store.store.pause("a", by="bob")
    assert await store.store.paused() == [
        Pause("a", START + timedelta(seconds=1), None, None, "bob"),
        Pause("b", START, until, "deploy", "ann"),
    ]
    assert (await store.store.paused())[0].at.tzinfo is UTC
    await store.advance(1)
    await store.store.pause("a", by="ann", reason="again")  # the latest counts
    assert (await store.store.paused())[0] == Pause("a", store.now, None, "again", "ann")
    assert await store.store.resume("a", by="ann", reason="done")
    assert not await store.store.resume("a", by="ann")
    assert not await store.store.resume("never", by="ann")
    assert [p.topic for p in await store.store.paused()] == ["b"]
    await store.advance(5 * MINUTE)
    assert await store.store.paused() == []
    assert [(a.action, a.by, a.topic, a.reason, a.job_id, a.data) for a in await store.audit()] == [
        ("pause", "ann", "b", "deploy", None, {"until": micros(until)}),
        ("pause", "bob", "a", None, None, {}),
        ("pause", "ann", "a", "again", None, {}),
        ("resume", "ann", "a", "done", None, {}),
    ]


async def test_a_pause_stops_claims_and_nothing_else(store: Harness) -> None:
    claimed = await store.claimed()
    await store.store.pause("mail", by="ann")
    await store.insert(job(), job(delay=1))
    await store.advance(1)
    assert await store.store.promote() == 1
    assert (await store.store.settle([settlement(claimed, Completed())])).verdicts[0].answer == "applied"
    assert (await store.claim()).jobs == []
