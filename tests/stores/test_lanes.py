"""Which jobs wait for a worker, by topic and version; and where a job stands in the line of its key."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from rowlock.core.job import Lane, NewJob
from rowlock.core.lifecycle import Completed
from rowlock.stores.base import InLine, Store
from rowlock.stores.postgres import store as postgres_store
from rowlock.stores.sqlite import queries as sqlite_reading
from tests.stores.harness import Harness, claim_by, settlement
from tests.stores.processes import real_job
from tests.stores.test_lines import lined


def of_version(version: int, topic: str = "mail") -> NewJob:
    return replace(real_job(topic=topic), template_version=version)


async def place(store: Store, job_id: str) -> InLine | None:
    return (await store.read([job_id], InLine)).get(job_id)


async def test_ready_jobs_are_counted_by_topic_and_version_up_to_a_bound(real_store: Harness) -> None:
    store = real_store.store
    later = replace(of_version(1), run_at=await store.now() + timedelta(hours=1))
    await store.insert([of_version(0), *(of_version(1) for _ in range(5)), later, of_version(1, "bills")])
    lanes = [Lane("mail", 1), Lane("mail"), Lane("mail", 2), Lane("bills", 1)]
    assert await store.count_ready(lanes) == [5, 1, 0, 1]
    assert await store.count_ready(lanes, 3) == [3, 1, 0, 1]
    assert await store.count_ready([]) == []


async def test_a_job_knows_its_place_in_the_line_of_its_key(real_store: Harness) -> None:
    store = real_store.store
    jobs, other, free = [lined() for _ in range(5)], lined("other"), real_job(key="k2")
    await store.insert([*jobs, other, free])
    ids = [job.id for job in jobs]
    assert await store.read(ids, InLine) == {
        job_id: InLine(ids[0], ids[n - 1] if n else None, n, 4 - n, ahead_capped=False, behind_capped=False)
        for n, job_id in enumerate(ids)
    }
    assert await place(store, other.id) == InLine(other.id, None, 0, 0, False, False)
    assert await place(store, free.id) is None
    assert await place(store, real_job().id) is None


async def test_a_long_line_is_counted_up_to_a_bound(real_store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_reading, postgres_store):
        monkeypatch.setattr(module, "MOST_COUNTED", 2)
    store = real_store.store
    jobs = [lined() for _ in range(6)]
    await store.insert(jobs)
    ids = [job.id for job in jobs]
    places = await store.read(ids, InLine)
    assert places[ids[5]] == InLine(ids[0], ids[4], 2, 0, True, False)
    assert places[ids[2]] == InLine(ids[0], ids[1], 2, 2, False, True)
    assert places[ids[0]] == InLine(ids[0], None, 0, 2, False, True)


async def test_a_job_that_has_ended_stands_in_no_line(real_store: Harness) -> None:
    store = real_store.store
    jobs = [lined(), lined()]
    await store.insert(jobs)
    [head] = (await store.claim(claim_by("w", limit=1))).jobs
    assert (await place(store, head.id) or InLine(None, None, 0, 0, False, False)).head == head.id
    await store.settle([settlement(head, Completed())])
    assert await place(store, head.id) is None
    await store.claim(claim_by("w", limit=1))  # PostgreSQL chooses the next head in a claim
    assert await place(store, jobs[1].id) == InLine(jobs[1].id, None, 0, 0, False, False)
