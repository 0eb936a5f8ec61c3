"""Pages of every list, and their cursors: a cursor tells nothing, and is for one caller and one query."""

import asyncio
import base64
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock import Jobs
from rowlock.access.identity import Identity, user
from rowlock.core.cron import Every
from rowlock.core.lifecycle import Completed, Failed
from rowlock.errors import InvalidInput
from rowlock.http import cursors
from rowlock.http.app import ROUTES
from rowlock.http.call import Call
from rowlock.http.cursors import Cursors
from rowlock.http.shapes import PageQuery
from rowlock.stores import listing
from rowlock.stores.base import NewLine, Progress
from rowlock.stores.queries import make_cursor
from tests.http.harness import JSON, A, B, World, is_problem
from tests.stores.harness import claim_by, info, settlement

MANY = 5


async def crowd(world: World) -> dict[str, str]:
    """Make at least five of everything that can be listed. Return the lists' paths."""
    store = await world.store()
    for n in range(MANY):
        await world.enqueue(A, topic=f"topic{n}")
        await world.ended(A, f"dead{n}", error=f"Broken{n}: no")
        await store.report(info(f"worker{n}"))
        await world.jobs.topics.pause(f"topic{n}", by="test")
    await store.tidy("group_failures", 100)
    bulk = await world.jobs.bulk.prepare("cancel", everything=True, dry_run=True, by="test")
    for _ in range(MANY):
        await world.jobs.bulk.prepare("requeue", everything=True, dry_run=True, by="test")
    for _ in range(3):
        await world.session("boss@example.com")
    busy = await world.enqueue(None, topic="busy", max_retries=100)
    for n in range(3):
        [run] = (await store.claim(claim_by("w1", "busy"))).jobs
        lines = tuple(NewLine(0.0, "info", f"line {n} {m}") for m in range(2))
        await store.progress([Progress(run.id, run.version, lines=lines)])
        await store.settle([settlement(run, Failed("no"), ran=0.0) if n < 2 else settlement(run, Completed(), ran=0.0)])
        if n < 2:
            await world.jobs.update(busy, delay=0.0, by="test")
    often, *_ = [await world.jobs.schedules.put(f"s{n}", ("often", {}), Every(86_400), by="test") for n in range(MANY)]
    for _ in range(MANY):
        await world.jobs.schedules.run_now(often.id, by="test")
    for n in range(MANY):
        await world.jobs.chain(("t", {}), name=f"flow{n}")
    return {
        "/api/flows": "/api/flows",
        "/api/jobs": "/api/jobs",
        "/api/jobs/{id}/events": f"/api/jobs/{busy}/events",
        "/api/jobs/{id}/logs": f"/api/jobs/{busy}/logs",
        "/api/failures": "/api/failures",
        "/api/topics": "/api/topics",
        "/api/workers": "/api/workers",
        "/api/audit": "/api/audit",
        "/api/tokens": "/api/tokens",
        "/api/sessions": "/api/sessions",
        "/api/schedules": "/api/schedules",
        "/api/schedules/{id}/history": f"/api/schedules/{often.id}/history",
        "/api/bulk": "/api/bulk",
        "/api/bulk/{id}/items": f"/api/bulk/{bulk.id}/items",
    }


async def walk(world: World, path: str, limit: int) -> list[JSON]:
    found: list[JSON] = []
    asked: dict[str, Any] = {"limit": limit}
    while True:
        answer = await world.get("superuser", path, params=asked)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert len(body["items"]) <= limit
        found += body["items"]
        if body["next"] is None:
            return found
        assert len(body["items"]) == limit
        asked["cursor"] = body["next"]


def test_every_list_has_pages() -> None:
    """A route that answers items takes limit and cursor, and gives next. Templates and limits come all at once: there
    are only as many as topics in the code."""
    lists = {
        route.path
        for route in ROUTES
        if route.method == "GET"
        and route.media == "application/json"
        and not route.path.startswith(("/api/templates", "/api/limits"))
        and any("items" in one.__struct_fields__ for one in route.answers)
    }
    paged = {
        route.path
        for route in ROUTES
        if route.query is not None
        and {"limit", "cursor"} <= set(route.query.__struct_fields__)
        and all("next" in one.__struct_fields__ for one in route.answers)
    }
    assert lists == paged


async def test_the_pages_of_every_list_are_the_whole(world: World) -> None:
    paths = await crowd(world)
    assert set(paths) == {route.path for route in ROUTES if route.query and "cursor" in route.query.__struct_fields__}
    for path in paths.values():
        whole = (await world.get("superuser", path, params={"limit": 200})).json()
        assert whole["next"] is None
        assert len(whole["items"]) >= MANY, path
        for limit in (1, 3, len(whole["items"])):
            found = await walk(world, path, limit)
            assert _stable(found) == _stable(whole["items"]), (path, limit)
        for wrong in ("0", "201", "-1", "x"):
            is_problem(await world.get("superuser", path, params={"limit": wrong}), 400)


def _stable(items: list[JSON]) -> list[JSON]:
    """Return the items without what changes while the test reads them."""
    return [
        {name: value for name, value in item.items() if name not in ("last_used", "seen", "oldest_wait")}
        for item in items
    ]


# ── What a cursor is good for ──


async def first(world: World, who: str, path: str, **asked: Any) -> str:
    cursor = (await world.get(who, path, params={"limit": 1, **asked})).json()["next"]
    assert isinstance(cursor, str)
    return cursor


def refused(answer: httpx.Response) -> None:
    assert is_problem(answer, 400, "bad_cursor")["field"] == "cursor"


async def test_a_cursor_is_for_one_caller_and_one_question(world: World) -> None:
    await world.change_settings(manage_rule="true")
    paths = await crowd(world)
    for path in paths.values():
        cursor = await first(world, "admin token", path)
        assert (await world.get("admin token", path, params={"cursor": cursor})).status_code == 200
        refused(await world.get("superuser", path, params={"cursor": cursor}))
        for other in paths.values():
            if other != path:
                refused(await world.get("admin token", other, params={"cursor": cursor}))
    path = "/api/jobs"
    cursor = await first(world, "user A", path, status="pending")
    for who in ("user B", "anonymous", "read token", "job token"):
        refused(await world.get(who, path, params={"cursor": cursor, "status": "pending"}))
    for asked in (
        {},
        {"status": "failed"},
        {"status": ["pending", "failed"]},
        {"status": "pending", "topic": "topic1"},
    ):
        refused(await world.get("user A", path, params={"cursor": cursor, **asked}))
    for limit in (1, 50):  # the limit may change
        again = {"cursor": cursor, "status": "pending", "limit": limit}
        assert (await world.get("user A", path, params=again)).status_code == 200
    both = {"cursor": cursor, "status": "pending", "offset": 1}
    assert is_problem(await world.get("user A", path, params=both), 400, "both_given")["field"] == "offset"


async def test_a_cursor_tells_nothing_of_where_it_stands(world: World) -> None:
    await hidden_places(world)


async def hidden_places(world: World) -> None:
    """A search that ends at its bound ends at a job that the caller may not see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_budget", lambda *_: 2)
        patch.setattr(listing, "BUDGET", 2)
        await _hidden_places(world)


async def _hidden_places(world: World) -> None:
    await world.change_settings(manage_rule="priority < 50 && @request.auth.id != ''")
    mine = await world.enqueue(A, priority=10)
    hidden = [await world.enqueue(B, topic=f"t{n}", priority=100) for n in range(7)]
    asked: dict[str, Any] = {"limit": 5}
    seen: list[str] = []
    told: list[str] = []
    while True:
        body = (await world.get("user A", "/api/jobs", params=asked)).json()
        seen += [item["id"] for item in body["items"]]
        if body["next"] is None:
            break
        told.append(body["next"])
        asked["cursor"] = body["next"]
    assert (seen, len(told) > 2) == ([mine], True)
    for cursor in told:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        for job_id in hidden:
            for form in (job_id, UUID(job_id).hex, make_cursor(job_id)):
                assert form not in cursor
                assert form.encode() not in raw
            assert UUID(job_id).bytes not in raw
    again = (await world.get("user A", "/api/jobs", params={"limit": 5})).json()["next"]
    assert again != told[0]  # the cursor for the same place looks different each time
    for plain in (make_cursor(hidden[0]), hidden[0]):
        refused(await world.get("user A", "/api/jobs", params={"cursor": plain}))


# ── The key ──


async def test_servers_of_one_database_understand_each_other(world: World) -> None:
    """This holds even if the servers are asked at the same moment, before there is a key."""
    await crowd(world)
    store = await world.store()
    assert await store.records(cursors.KIND) == []
    servers = [world.another_api() for _ in range(6)]
    answers = await asyncio.gather(
        *(world.get("superuser", "/api/jobs", params={"limit": 1}, api=api) for api in servers)
    )
    [record] = await store.records(cursors.KIND)
    assert record.revision == 1
    for n, answer in enumerate(answers):
        asked = {"cursor": answer.json()["next"], "limit": 1}
        told = await world.get("superuser", "/api/jobs", params=asked, api=servers[n - 1])
        assert told.status_code == 200, told.text


async def test_the_key_is_never_told(world: World) -> None:
    paths = await crowd(world)
    await first(world, "superuser", "/api/jobs")
    [record] = await (await world.store()).records(cursors.KIND)
    key = record.data["key"]
    assert len(bytes.fromhex(key)) == 32
    for path in (*paths.values(), "/api/settings", "/metrics", "/api/openapi.json", "/_/me"):
        answer = await world.get(
            "superuser", path, params={} if path[:5] != "/api/" or path not in paths else {"limit": 200}
        )
        assert key not in answer.text, path
    assert cursors.KIND not in {
        entry["action"] for entry in (await world.get("superuser", "/api/audit")).json()["items"]
    }


async def test_another_database_has_another_key(world: World) -> None:
    async with Jobs("sqlite://") as other:
        keys = []
        for jobs in (world.jobs, other):
            mine = Cursors(jobs._store)
            assert await mine._read() is None
            assert await mine.seal(asking(user({"id": "u1"})), "here")
            keys.append(await mine._read())
        assert keys[0] != keys[1]


# ── The seal ──


class Asked(PageQuery, frozen=True, kw_only=True):
    topic: str = ""


def asking(who: Identity, topic: str = "", path: str = "/api/jobs", **parameters: str) -> Call:
    route = SimpleNamespace(method="GET", path=path)
    return cast(Call, SimpleNamespace(identity=who, query=Asked(topic=topic), parameters=parameters, route=route))


def sealing(key: bytes = bytes(32)) -> Cursors:
    async def nowhere() -> Any: ...

    made = Cursors(nowhere)
    made._keys = cursors._mac(key, b"stream"), cursors._mac(key, b"seal")
    made._until = float("inf")
    return made


@given(place=st.text(max_size=200), at=st.integers(0, 10_000), by=st.integers(1, 63), name=st.text("abc", max_size=3))
def test_a_sealed_place_is_read_again_and_no_other_is(place: str, at: int, by: int, name: str) -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

    async def check() -> None:
        mine, ours = asking(user({"id": "u1"}), "mail", id="1"), sealing()
        cursor = await ours.seal(mine, place)
        assert cursor is not None
        assert await ours.open(mine, cursor) == place
        assert place == "" or len(place) < 4 or place not in cursor
        n = at % len(cursor)
        changed = cursor[:n] + letters[(letters.index(cursor[n]) + by) % 64] + cursor[n + 1 :]
        texts = (changed, cursor[:n], cursor + letters[by], f"{cursor}==", cursor * 90)
        same = user({"id": "u1"})
        calls = [
            asking(user({"id": f"u{name}"}), "mail", id="1"), asking(Identity(kind="token", id="u1"), "mail", id="1"),
            asking(same, name, id="1"), asking(same, "mail", id="2"), asking(same, "mail", "/api/x", id="1"),
        ]  # fmt: skip
        others = [(mine, text) for text in texts] + [(call, cursor) for call in calls]
        for call, text in others:
            with pytest.raises(InvalidInput) as told:
                await ours.open(call, text)
            assert (told.value.field, told.value.code) == ("cursor", "bad_cursor")
        with pytest.raises(InvalidInput):
            await sealing(b"another key").open(mine, cursor)

    asyncio.run(check())
