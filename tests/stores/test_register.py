"""The workers' register: report, retire, workers. And which jobs a worker holds in the tables: held_by, look."""

import asyncio

import pytest
from msgspec import structs

from rowlock.core.job import HELD, Status
from rowlock.core.lifecycle import Completed, Released
from rowlock.stores.base import Beat, Hold, Store
from tests.stores.conftest import paired_store
from tests.stores.harness import LEASE, START, Harness, info, settlement

store = paired_store

# ── report, retire, workers ──


async def test_a_later_report_says_all_anew_but_the_start(store: Harness) -> None:
    """The store ignores the times that a report claims."""
    later = info(host="there", pid=1, topics=(), concurrency=2, running=1, lease=7.5, stopping=True, rowlock="1.1")
    for worker in (info(), later, info(started=START, seen=START)):
        assert await store.store.report(worker) == store.now
        assert await store.store.workers() == [structs.replace(worker, started=START, seen=store.now)]
        await store.advance(5)


async def test_workers_are_listed_by_name(store: Harness) -> None:
    names = ["b", "a", "C", "ä", "a-2"]
    for name in names:
        await store.store.report(info(name))
    assert [worker.name for worker in await store.store.workers()] == sorted(names)


async def test_who_retires_is_gone_and_begins_anew(store: Harness) -> None:
    for name in ("w1", "w2", "w3"):
        await store.store.report(info(name))
    assert await store.store.retire(["w1", "w3", "nobody"]) == 2
    assert [worker.name for worker in await store.store.workers()] == ["w2"]
    assert await store.store.retire(["w1", "w3"]) == 0
    assert await store.store.retire([]) == 0
    now = await store.advance(1)
    await store.store.report(info())
    assert (await store.store.workers())[0].started == now


async def test_many_report_while_others_retire_the_dead(real_store: Harness) -> None:
    stores = [await real_store.another() for _ in range(3)]
    dead = [f"dead {n}" for n in range(20)]
    for name in dead:
        await real_store.store.report(info(name))

    async def live(store: Store, name: str) -> None:
        seen = [await store.report(info(name, running=n)) for n in range(10)]
        assert seen == sorted(seen)

    retired = await asyncio.gather(
        *(store.retire(dead if n % 2 else dead[::-1]) for n, store in enumerate(stores)),
        *(live(store, f"lives {n}") for n, store in enumerate(stores)),
    )
    assert sum(count or 0 for count in retired) == len(dead)
    assert [(worker.name, worker.running) for worker in await real_store.store.workers()] == [
        (f"lives {n}", 9) for n in range(3)
    ]


# ── look ──


@pytest.mark.parametrize("status", Status)
async def test_look_in_every_status(store: Harness, status: Status) -> None:
    job = await store.in_status(status)
    before = await store.rows()
    expected = {Status.PROCESSING: Hold.KEPT, Status.CANCEL_REQUESTED: Hold.CANCEL}.get(status, Hold.LOST)
    runs = [Beat(job.id, job.version), Beat(job.id, job.version + 1), Beat(job.id, job.version - 1)]
    assert await store.store.look(runs) == [expected, Hold.LOST, Hold.LOST]
    assert await store.rows() == before


# ── held_by ──


@pytest.mark.parametrize("status", Status)
async def test_held_by_in_every_status(store: Harness, status: Status) -> None:
    job = await store.in_status(status)
    expected = [Beat(job.id, 1, started=True, worker="w1")] if status in HELD else []
    assert await store.store.held_by(["w1"]) == expected


async def test_held_by_names_the_runs_of_this_worker_alone(store: Harness) -> None:
    _, ahead, again = await store.claimed(), await store.claimed(start=False), await store.claimed()
    await store.claimed("w2")
    await store.store.settle([settlement(again, Released())])
    await store.claim("w1")
    await store.settled(Completed(), topic="other")
    assert len(await store.store.held_by(["w1"])) == 3
    assert await store.store.held_by(["w"]) == []
    await store.store.heartbeat([Beat(ahead.id, 1, started=True)], LEASE)
    assert Beat(ahead.id, 1, True, "w1") in await store.store.held_by(["w1"])


async def test_held_by_any_names_the_runs_of_these_workers_those_first_whose_leases_end_first(store: Harness) -> None:
    late = await store.claimed("w1")
    await store.store.heartbeat([Beat(late.id, 1)], 10 * LEASE)
    ahead, other = await store.claimed("w2", start=False), await store.claimed("w3")
    expected = [Beat(ahead.id, 1, False, "w2"), Beat(late.id, 1, True, "w1")]
    assert await store.store.held_by(["w1", "w2", "nobody"], 10) == expected
    assert await store.store.held_by(["w1", "w2"], 1) == expected[:1]
    assert await store.store.held_by(["w3"], 10) == [Beat(other.id, 1, True, "w3")]
    assert await store.store.held_by([], 10) == []
    assert await store.store.held_by(["w3"], 0) == []
