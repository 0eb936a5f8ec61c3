"""get, events, the bounded history, JSON through the store, the doorbell."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import MAX_HISTORY, Completed, Failed, Released
from rowlock.core.moves import Cancel, CancelTimeout, Expire, Requeue, Rescue, Update
from rowlock.stores import reading
from rowlock.stores.base import Edit, Progress
from tests.stores.conftest import shared_store
from tests.stores.harness import LEASE, NOBODY, START, Harness, job, settlement

store = shared_store


async def test_get(store: Harness) -> None:
    live, done = await store.add("other"), (await store.settled(Completed())).id
    found = await store.store.read([done, NOBODY, live, done], Job)
    assert set(found) == {live, done}
    assert found[done].status is Status.COMPLETED
    assert await store.store.read([], Job) == {}
    assert await reading.events(store.store, NOBODY) == []


async def test_now_is_the_databases_clock(store: Harness) -> None:
    assert await store.store.now() == START
    await store.advance(1.5)
    assert await store.store.now() == store.now


async def test_a_long_life(store: Harness) -> None:
    job_id = await store.add(max_retries=1)
    [first] = (await store.claim("w1", start=False)).jobs
    await store.advance(LEASE + 1)
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    await store.store.move([job_id], Update(by="ann", edit=Edit(priority=1)))
    [second] = (await store.claim("w2")).jobs
    await store.advance(1)
    await store.store.settle([settlement(second, Failed("boom"), ran=0.5)])
    await store.store.move([job_id], Cancel(by="ann", reason="enough"))
    await store.store.move([job_id], Requeue(by="bob"))
    [third] = (await store.claim("w3")).jobs
    await store.store.move([job_id], Cancel(by="ann"))
    await store.store.settle([settlement(await store.job(job_id), Completed(), ran=0.0)])
    events = await store.events(job_id)
    assert [(e.seq, e.event, e.version, e.by) for e in events] == [
        (0, "enqueued", 0, None),
        (1, "claimed", 1, "w1"),
        (2, "rescued", 1, "m1"),
        (3, "updated", 1, "ann"),
        (4, "claimed", 2, "w2"),
        (5, "retried", 2, "w2"),
        (6, "cancelled", 2, "ann"),
        (7, "requeued", 2, "bob"),
        (8, "claimed", 3, "w3"),
        (9, "cancel_requested", 3, "ann"),
        (10, "completed", 3, "w3"),
    ]
    assert [e.at for e in events] == sorted(e.at for e in events)
    assert (await store.job(job_id)).events_count == len(events)
    assert first.version + 2 == third.version
    assert events[6].data == {"reason": "enough"}


async def test_the_history_is_bounded_and_what_was_dropped_is_counted(store: Harness) -> None:
    job_id = await store.add()
    for i in range(MAX_HISTORY + 5):
        await store.advance(1)
        await store.store.move([job_id], Update(by="ann", edit=Edit(priority=i)))
    row = await store.row(job_id)
    assert (len(row.history), row.dropped, row.job.events_count) == (MAX_HISTORY, 5, MAX_HISTORY + 6)
    events = await store.events(job_id)
    assert [e.seq for e in events] == [0, *range(6, MAX_HISTORY + 6)]
    [claimed] = (await store.claim()).jobs
    await store.store.settle([settlement(claimed, Released())])
    [claimed] = (await store.claim()).jobs
    await store.store.settle([settlement(claimed, Completed())])
    row = await store.row(job_id)
    assert (len(row.history), row.dropped, row.job.events_count) == (MAX_HISTORY, 6, MAX_HISTORY + 10)
    events = await store.events(job_id)
    assert [e.event for e in events][-4:] == ["claimed", "released", "claimed", "completed"]
    assert [e.seq for e in events] == [0, *range(7, MAX_HISTORY + 10)]


async def test_every_verb_drops_the_oldest_entry(store: Harness) -> None:
    job_id = await store.add()
    for i in range(MAX_HISTORY):
        await store.store.move([job_id], Update(by="ann", edit=Edit(priority=i)))

    async def dropped() -> int:
        row = await store.row(job_id)
        assert len(row.history) == MAX_HISTORY
        return row.dropped

    assert await dropped() == 0
    [claimed] = (await store.claim()).jobs
    assert await dropped() == 0
    await store.store.move([job_id], Cancel(by="ann"))
    assert await dropped() == 1
    await store.advance(1000)
    await store.store.move_due(CancelTimeout(by="m1"))
    assert await dropped() == 2
    await store.store.move([job_id], Requeue(by="ann"))
    assert await dropped() == 3
    [claimed] = (await store.claim()).jobs
    await store.advance(1000)
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    assert await dropped() == 4
    [claimed] = (await store.claim()).jobs
    await store.store.settle([settlement(claimed, Failed("x"))])
    assert await dropped() == 5
    await store.execute(f"UPDATE _jobs SET expires_at = created, started_at = NULL WHERE id = '{job_id}'")
    await store.store.move_due(Expire(by="m1"))
    assert await dropped() == 6
    await store.events(job_id)


# ── What goes in comes out ──

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


def same(one: Any, two: Any) -> bool:
    """Return True if both are equal and of the same type. In Python, 1, 1.0 and True are equal; so are 0.0 and -0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return one == two and math.copysign(1, one) == math.copysign(1, two)
    return bool(one == two)


AWKWARD: list[dict[str, Any]] = [
    {"": {"": [[], {}, [[]]]}},
    {"big": 2**63 - 1, "small": -(2**63), "float": 1e22, "tiny": 5e-324, "huge": 1.7976931348623157e308, "minus": -0.0},
    {"whole": 1.0, "int": 1, "true": True, "null": None, "text": "1"},
    {"emoji": "👩‍👩‍👧", "rtl": "שלום", "control": "\x01\x1f\x7f\u2028\ufeff\uffff", "quotes": "'\"\\ $1 %s :x ?1 {}"},
    {"b": 1, "a": 2, "ä": 3, "A": 4},
    {"html": "</script><b>&amp;", "json": '{"a": "\\u0000"}'},
    {"deep": [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]},
]


@pytest.mark.parametrize("payload", AWKWARD, ids=range(len(AWKWARD)))
async def test_payload_and_result_come_back_exactly(store: Harness, payload: dict[str, Any]) -> None:
    claimed = await store.claimed(payload=payload)
    assert same(claimed.payload, payload)
    await store.store.settle([settlement(claimed, Completed(payload))])
    done = await store.job(claimed.id)
    assert same(done.payload, payload)
    assert same(done.result, payload)


@pytest.mark.parametrize("result", [None, False, 0, 0.5, "", "ü", [], {}, [None]])
async def test_results_of_any_kind(store: Harness, result: Any) -> None:
    assert same((await store.settled(Completed(result))).result, result)


async def test_any_json_comes_back_exactly(store: Harness) -> None:
    examples: list[dict[str, Any]] = []

    @settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(texts, values, max_size=4))
    def collect(payload: dict[str, Any]) -> None:
        examples.append(payload)

    collect()
    new = [job("mail", payload) for payload in examples]
    await store.insert(*new)
    found = await store.store.read([n.id for n in new], Job)
    for n, payload in zip(new, examples, strict=True):
        assert same(found[n.id].payload, payload)


async def test_a_payload_of_a_full_mebibyte(store: Harness) -> None:
    payload = {"a": "é" * ((2**20 - len('{"a":""}')) // 2)}
    assert (await store.job(await store.add("mail", payload))).payload == payload


async def test_awkward_texts_in_every_text_column(store: Harness) -> None:
    text = "'\"\\ $1 %s :x ?1 {} \x01\x7f\u2028 👩‍👩‍👧 " + "x" * 200
    claimed = await store.claimed(worker=text, key=text, scope=text, scope_id=text, trace=text, tags=[text[:128], "b"])
    await store.store.progress([Progress(claimed.id, 1, 1.0, text, text)])
    await store.store.move([claimed.id], Cancel(by=text, reason=text))
    found = await store.job(claimed.id)
    assert {found.key, found.scope, found.scope_id, found.trace, found.stage, found.message} == {text}
    assert {found.cancel_reason, found.locked_by} == {text}
    assert found.tags == (text[:128], "b")
    assert (await store.events(claimed.id))[-1].data == {"reason": text}
    assert [(a.by, a.reason) for a in await store.audit()] == [(text, text)]
    await store.store.settle([settlement(found, Failed(text))])
    assert (await store.job(claimed.id)).last_error == text
    await store.store.steer_topic("mail", "pause", by=text, reason=text)
    assert [(p.by, p.reason) for p in await store.store.paused()] == [(text, text)]


# ── The doorbell ──


async def woken(waiting: "asyncio.Task[bool]") -> bool:
    async with asyncio.timeout(20):
        return await waiting


async def test_a_ring_wakes_the_others(store: Harness) -> None:
    other = await store.another()
    await drained(other)
    waiting = asyncio.create_task(other.wait_for_work(60))
    while not waiting.done():  # the waiter may not listen yet
        await store.store.ring()
        await asyncio.wait([waiting], timeout=0.05)
    assert await woken(waiting)


async def test_a_ring_wakes_its_own_store(store: Harness) -> None:
    await drained(store.store)
    waiting = asyncio.create_task(store.store.wait_for_work(60))
    while not waiting.done():
        await store.store.ring()
        await asyncio.wait([waiting], timeout=0.05)
    assert await woken(waiting)


async def test_a_ring_between_two_waits_is_not_lost(store: Harness) -> None:
    await drained(store.store)
    await store.store.ring()
    async with asyncio.timeout(20):
        assert await store.store.wait_for_work(60)


async def test_silence_is_answered_in_the_end(store: Harness) -> None:
    await drained(store.store)
    assert not await store.store.wait_for_work(0.01)
    assert not await store.store.wait_for_work(0)


async def drained(store: Any) -> None:
    """Return once the store has told of everything that happened before."""
    async with asyncio.timeout(20):
        while await store.wait_for_work(0.2):
            pass


async def test_statuses_are_those_of_the_jobs_without_the_rest(store: Harness) -> None:
    live, done = await store.add("other"), (await store.settled(Completed())).id
    found = await store.store.read([done, NOBODY, live, done], Status)
    assert found == {live: Status.PENDING, done: Status.COMPLETED}
    assert await store.store.read([], Status) == {}
