"""Tokens for one job: any caller that sees the job can make them, but only a limited number of them."""

import asyncio
from typing import Any

import httpx
import pytest

from rowlock.access import short_lived, tokens
from rowlock.access.short_lived import Bound
from rowlock.errors import InvalidInput
from tests.http.harness import A, B, Who, World, bearer, is_problem
from tests.http.test_series import quick_upkeep
from tests.waiting import until

SOON = 5  # seconds: long enough for some requests on a busy machine
RULE = "scope_id = @request.auth.id || scope = 'shared'"


async def make(world: World, who: Who | str, job_id: str, **body: Any) -> httpx.Response:
    return await world.post(who, f"/api/jobs/{job_id}/token", body)


async def many(world: World, who: str, job_id: str, count: int, **body: Any) -> int:
    """Ask for so many tokens at the same moment. Return how many of them were made."""
    answers = await asyncio.gather(*(make(world, who, job_id, **body) for _ in range(count)))
    for answer in answers:
        if answer.status_code != 201:
            is_problem(answer, 429, "too_many_tokens")
    return sum(answer.status_code == 201 for answer in answers)


async def good_ones(world: World, job_id: str) -> int:
    return sum(one.job == job_id for one in await tokens.every(await world.store()))


async def test_a_user_makes_a_hundred_and_twenty_of_them_for_one_job(world: World) -> None:
    await world.change_settings(manage_rule=RULE)
    ids = [await world.enqueue(A) for _ in range(6)]
    for job_id in ids[:5]:
        made = [(await make(world, "user A", job_id)).status_code for _ in range(21)]
        assert made == [201] * 20 + [429]
    refused = await make(world, "user A", ids[5])
    assert "100 tokens are" in is_problem(refused, 429, "too_many_tokens")["detail"]
    assert 0 < int(refused.headers["retry-after"]) <= 3660
    assert [await good_ones(world, job_id) for job_id in ids] == [20] * 5 + [0]


async def test_of_many_that_are_asked_for_at_once_no_more_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if several servers make them. No maker is refused because of another maker."""
    await world.change_settings(manage_rule=RULE)
    monkeypatch.setattr(short_lived, "BY_RULE", Bound(5, 3))
    monkeypatch.setattr(short_lived, "BY_SCOPE", Bound(9, 8))
    first, second, third = [await world.enqueue(A, scope="shared") for _ in range(3)]
    counts = await asyncio.gather(
        many(world, "user A", first, 6),
        many(world, "user B", first, 2),
        many(world, "read token", first, 9),
        many(world, "superuser", first, 1, manage=True),
    )
    assert list(counts) == [3, 2, 8, 1]
    assert await many(world, "user A", second, 5) == 2
    assert await many(world, "read token", third, 2) == 1
    assert await good_ones(world, first) == 14


async def test_one_that_has_ended_does_not_count_and_is_swept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.change_settings(manage_rule=RULE)
    monkeypatch.setattr(short_lived, "BY_RULE", Bound(2, 2))
    mine, theirs = await world.enqueue(A), await world.enqueue(B)
    assert [await many(world, "user A", mine, 1, seconds=seconds) for seconds in (3600, SOON, SOON)] == [1, 1, 0]
    assert await many(world, "user B", theirs, 3, seconds=SOON) == 2

    async def again() -> bool:
        return await many(world, "user A", mine, 1) == 1

    await until(again)

    async def swept() -> bool:
        rows = await world.place.fetch("SELECT kind, id FROM _jobs_records")
        kept = {id_ for kind, id_ in rows if kind == "token"}
        counts = [id_ for kind, id_ in rows if kind == short_lived.KIND]
        return kept == {one.id for one in await tokens.every(await world.store())} and len(counts) == 2

    upkeep = quick_upkeep(world, monkeypatch)
    upkeep.start()
    await until(swept)
    await upkeep.stop()


async def test_one_that_ends_while_it_is_made_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, store = await world.enqueue(A), await world.store()

    async def too_late(kind: str, ids: Any = None, **options: Any) -> list[Any]:
        return [one for one in await found(kind, ids, **options) if one.kind != "token"]

    found = store.records
    monkeypatch.setattr(store, "records", too_late)
    with pytest.raises(InvalidInput, match="choose a later time"):
        await tokens.create(store, "short", ["read"], by="test", job=mine)


async def test_a_refusal_tells_nothing_of_what_may_not_be_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.change_settings(manage_rule=RULE)
    monkeypatch.setattr(short_lived, "BY_RULE", Bound(1, 1))
    mine, theirs = await world.enqueue(A), await world.enqueue(B)
    assert (await make(world, "user A", mine)).status_code == 201
    is_problem(await make(world, "user A", mine), 429)
    is_problem(await make(world, "user A", theirs), 404)
    made = Who("for one job", bearer((await make(world, "user B", theirs)).json()["token"]))
    is_problem(await make(world, made, theirs), 403)
