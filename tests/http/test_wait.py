"""Long polls: they answer when the job has ended, when their time is over or when the server stops, and cost little."""

import asyncio
from typing import Any

import httpx
import pytest

from rowlock.http import wait_for_end
from tests.http.harness import World
from tests.waiting import until

MANY = 80


async def pending(world: World) -> str:
    return (await world.jobs.enqueue("slow")).id


async def waiting(world: World, count: int) -> None:
    await until(lambda: len(world.api.state.wait_for_end) >= count)


async def asks(world: World, job_id: str) -> asyncio.Task[httpx.Response]:
    asking = asyncio.create_task(world.call("read token", "GET", f"/api/jobs/{job_id}/wait?timeout=60"))
    await waiting(world, 1)
    return asking


async def test_all_who_wait_are_told_of_the_end_and_one_look_serves_them_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await pending(world)
    store = await world.jobs._store()
    looks: list[list[str]] = []
    read = type(store).read

    async def counted(self: Any, ids: list[str], shape: type) -> Any:
        looks.append(list(ids))
        return await read(self, ids, shape)

    asking = [
        asyncio.create_task(world.call("read token", "GET", f"/api/jobs/{job_id}/wait?timeout=30")) for _ in range(MANY)
    ]
    await waiting(world, MANY)
    monkeypatch.setattr(type(store), "read", counted)
    await until(lambda: len(looks) >= 3)
    assert looks[:3] == [[job_id]] * 3  # each look reads the job once, not eighty times
    await world.jobs.cancel(job_id)
    answers = await asyncio.gather(*asking)
    assert {answer.json()["status"] for answer in answers} == {"cancelled"}
    assert len(world.api.state.wait_for_end) == 0


async def test_when_the_time_is_over_it_tells_how_the_job_stands(world: World) -> None:
    job_id = await pending(world)
    answer = await world.call("read token", "GET", f"/api/jobs/{job_id}/wait?timeout=0.05")
    assert (answer.status_code, answer.json()["status"]) == (200, "pending")


async def test_a_server_that_stops_tells_everyone_at_once(world: World) -> None:
    job_id = await pending(world)
    asking = await asks(world, job_id)
    world.api.state.wait_for_end.stop()
    assert (await asking).json()["status"] == "pending"
    late = await world.call("read token", "GET", f"/api/jobs/{job_id}/wait?timeout=60")
    assert late.json()["status"] == "pending"


async def test_who_hangs_up_is_forgotten(world: World) -> None:
    job_id = await pending(world)
    asking = await asks(world, job_id)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: not len(world.api.state.wait_for_end))


async def test_not_everyone_may_wait_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_for_end, "MOST", 1)
    job_id = await pending(world)
    asking = await asks(world, job_id)
    refused = await world.call("read token", "GET", f"/api/jobs/{job_id}/wait?timeout=60")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    world.api.state.wait_for_end.stop()
    await asking
