"""What streams read agrees with lists and single reads. And the mark tells whether a client has written anything."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Cancel
from rowlock.stores.base import Beat, Progress
from rowlock.stores.postgres import store as postgres_store
from rowlock.stores.queries import Filter, State
from rowlock.stores.sqlite import queries as sqlite_reading
from tests.stores.harness import Harness, claim_by, settlement

NOBODY = "0190e3d0-0000-7000-8000-000000000000"


async def fill(harness: Harness) -> list[str]:
    """Insert jobs in several states, live and archived, of two topics and two scopes; return their ids."""
    store = harness.store
    ids: list[str] = []
    for n, (topic, scope_id) in enumerate(itertools.product(("mail", "bills"), ("a", "b", None))):
        for _ in range(3):
            ids.append(await harness.add(topic, scope_id=scope_id, key=f"{n} {len(ids)}", tags=["red"]))
    for topic in ("mail", "bills"):
        done, failed, held = (await store.claim(claim_by("w1", topic, limit=3))).jobs
        await store.progress([Progress(held.id, 1, 40.0, "reading", "page 4", worker="w1")])
        await store.settle([settlement(done, Completed({})), settlement(failed, Failed("no", final=True))])
    return ids


async def test_states_are_what_get_says(store: Harness) -> None:
    ids = await fill(store)
    found, jobs = await store.store.read([*ids, NOBODY, ids[0]], State), await store.store.read(ids, Job)
    assert found.keys() == {*ids}
    for job_id, state in found.items():
        assert {name: getattr(jobs[job_id], name) for name in State.__struct_fields__} == {
            name: getattr(state, name) for name in State.__struct_fields__
        }
    assert await store.store.read([], State) == {}


async def test_newest_is_the_beginning_of_the_list(store: Harness) -> None:
    ids = await fill(store)
    filters = [
        Filter(), Filter(topics=["mail"]), Filter(topics=["bills", "none"]), Filter(statuses=["failed", "completed"]),
        Filter(statuses=["processing"], topics=["mail"]), Filter(scope_id="a"), Filter(tags=["red"]),
        Filter(ids=ids[:4]), Filter(keys=["0 1"]), Filter(where=False),
    ]  # fmt: skip
    for limit in (1, 4, 200):
        wanted = [[job.id for job in (await store.store.list(one, limit=limit)).items] for one in filters]
        assert await store.store.newest(filters, limit) == wanted
    assert await store.store.newest([], 5) == []


OWN = [
    Filter(scope_id=scope_id, topics=topics, statuses=statuses)
    for scope_id, topics, statuses in itertools.product(
        ("b", "nobody", "a"),
        ([], ["mail"], ["bills", "none"], ["none"]),
        ([], ["pending"], ["completed"], ["failed", "completed", "processing"]),
    )
]


async def test_everyones_own_newest(store: Harness) -> None:
    await fill(store)
    for limit in (1, 4, 200):
        wanted = [[job.id for job in (await store.store.list(one, limit=limit)).items] for one in OWN]
        assert await store.store.newest_of_scopes(OWN, limit) == wanted
    assert await store.store.newest_of_scopes([], 3) == []


@pytest.mark.parametrize("window", [1, 2, 3, 5])
async def test_of_a_scope_with_many_other_jobs_it_is_said_if_not_enough_was_looked_at(
    store: Harness, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Each answer is right, or it is None: then the store can't know the answer."""
    await fill(store)
    for module in (sqlite_reading, postgres_store):
        monkeypatch.setattr(module, "OWN_WINDOW", window)
    told = []
    for limit in (1, 4):
        wanted = [[job.id for job in (await store.store.list(one, limit=limit)).items] for one in OWN]
        for one, ids, all_ids in zip(OWN, await store.store.newest_of_scopes(OWN, limit), wanted, strict=True):
            assert ids is None or ids == all_ids, one
            told.append(ids is not None)
    assert not all(told)
    assert any(told)


async def test_a_mark_changes_with_every_write_and_with_nothing_else(store: Harness) -> None:
    one = await store.add("mail")
    verbs: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.add("mail"),
        lambda: store.store.claim(claim_by("w1", "mail", limit=1)),
        lambda: store.store.heartbeat([Beat(one, 1, worker="w1")], 60.0),
        lambda: store.store.progress([Progress(one, 1, 10.0, worker="w1")]),
        lambda: store.store.move([one], Cancel(by="test")),
        lambda: store.store.steer_topic("mail", "pause", by="test"),
    ]
    for verb in verbs:
        before = await store.store.mark()
        await store.store.list(Filter())
        await store.store.read([one], State)
        assert await store.store.mark() == before
        await verb()
        assert await store.store.mark() != before
