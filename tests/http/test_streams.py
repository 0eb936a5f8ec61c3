"""Server-sent events: whatever happens, and however a client reads, its stream ends at the state of the database."""

import asyncio
import random
import socket
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from rowlock.access import tokens
from rowlock.config import ServerSettings
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Cancel, Delete, Requeue
from rowlock.errors import StoreUnavailable
from rowlock.http import live, streams
from rowlock.http.server import bind
from rowlock.stores.base import Progress
from rowlock.stores.postgres import store as postgres_store
from rowlock.stores.queries import State
from rowlock.stores.sqlite import queries as sqlite_reading
from tests.http.harness import A, B, Server, Who, World, bearer, is_problem, user_token
from tests.http.reader import Reader, reading
from tests.stores.harness import claim_by, settlement
from tests.waiting import until

ONCE = "/api/events?seconds=0"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TICK", 0.02)
    monkeypatch.setattr(live, "COUNTING", 0.05)
    monkeypatch.setattr(live, "_SETTLED", 0.05)
    monkeypatch.setattr(streams, "_RECHECK", 0.05)


async def listed(world: World, query: str = "") -> dict[str, str]:
    """Return the statuses that the list has now, as a new page would show them."""
    answer = await world.get("read token", f"/api/jobs?{query}")
    return {job["id"]: job["status"] for job in answer.json()["items"]}


async def converged(world: World, reader: Reader, query: str = "limit=200") -> None:
    """Wait until the reader shows all of the list, and nothing that differs from the database."""

    async def same() -> bool:
        there = await listed(world, query)
        states = await (await world.store()).read(list(reader.jobs), State)
        return there.items() <= reader.statuses.items() and all(
            job_id in states and (str(states[job_id].status), states[job_id].version) == (job["status"], job["version"])
            for job_id, job in reader.jobs.items()
        )

    try:
        await until(same)
    except TimeoutError:
        there = await listed(world, query)
        raise AssertionError((there, reader.statuses, reader.events[-3:])) from None


async def shown(world: World, reader: Reader) -> str:
    """Enqueue a job, wait until the reader shows it, and return its id."""
    job_id = await world.enqueue(A)
    await until(lambda: job_id in reader.jobs)
    return job_id


async def test_the_present_first_then_what_changes(world: World) -> None:
    first = await world.enqueue(A)
    async with reading(world, "read token", "topic=mail") as reader:
        await until(lambda: first in reader.jobs and reader.stats is not None)
        assert reader.events[0][1].get("reset") or reader.events[1][1].get("reset")
        second = await world.enqueue(A)
        await until(lambda: reader.statuses.get(second) == "pending")
        store = await world.store()
        claimed = (await store.claim(claim_by("w1", "mail"))).jobs
        await store.progress([Progress(first, 1, 40.0, "reading", "page 4", worker="w1")])
        await until(lambda: reader.jobs[first]["progress"] == 40.0)
        assert (reader.jobs[first]["stage"], reader.jobs[first]["message"]) == ("reading", "page 4")
        await store.settle([settlement(job, Completed({})) for job in claimed])
        await until(lambda: reader.statuses == {first: "completed", second: "completed"})
        await until(lambda: reader.stats is not None and reader.stats["completed"] == 2)
        assert sum(data.get("reset", False) for _, data in reader.events) == 1


async def test_a_rule_about_the_time_is_judged_again_and_again(world: World) -> None:
    """A stream evaluates @now each time that it checks whether its reader may still see a job."""
    await world.change_settings(manage_rule="scope_id = @request.auth.id && run_at <= @now")
    later = await world.enqueue(A, delay=1.5)
    async with reading(world, "user A") as reader:
        await shown(world, reader)
        await until(lambda: later in reader.jobs)
        job = await world.job(later)
        assert job.run_at <= datetime.now(UTC)


async def happen(world: World, chance: random.Random, steps: int) -> None:
    """Let random things happen to jobs."""
    store = await world.store()
    ids: list[str] = []
    for _ in range(steps):
        match chance.randrange(8):
            case 0 | 1 | 2:
                ids.append(await world.enqueue(chance.choice([A, B])))
            case 3 | 4:
                for job in (await store.claim(claim_by("w1", "mail", limit=3))).jobs:
                    outcome = Completed({}) if chance.random() < 0.6 else Failed("no", final=chance.random() < 0.5)
                    if chance.random() < 0.8:
                        await store.settle([settlement(job, outcome, ran=0.1)])
            case 5 if ids:
                await store.move([chance.choice(ids)], Cancel(by="test"))
            case 6 if ids:
                await store.move([chance.choice(ids)], Delete(by="test"))
            case 7 if ids:
                await store.move([chance.choice(ids)], Requeue(by="test"))
        if chance.random() < 0.2:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_everyone_ends_at_the_same_state(world: World, seed: int) -> None:
    """Some readers read all the time, some stop for a while, and some come back."""
    chance = random.Random(seed)
    async with (
        reading(world, "read token", "limit=5&stats=false") as few,
        reading(world, "read token", "limit=200&topic=mail&stats=false") as topic,
        reading(world, "read token", "limit=200&status=pending&status=failed&stats=false") as some,
    ):
        await happen(world, chance, 30)
        topic.gate.clear()
        await happen(world, chance, 60)
        topic.gate.set()
        await happen(world, chance, 20)
        await converged(world, few, "limit=5")
        await converged(world, topic, "limit=200&topic=mail")
        await converged(world, some, "limit=200&status=pending&status=failed")
        async with reading(world, "read token", "limit=200&stats=false") as late:
            await converged(world, late)


async def test_what_was_shown_is_followed_to_its_end(world: World) -> None:
    async with reading(world, "read token", "limit=1&topic=mail&stats=false") as reader:
        first, second = await shown(world, reader), await shown(world, reader)
        await world.jobs.cancel(first)
        await until(lambda: first not in reader.jobs)
        assert reader.ended == {first: "cancelled"}
        await world.jobs.cancel(second)
        await until(lambda: reader.statuses == {second: "cancelled"})
        third = await world.enqueue(A)
        await until(lambda: reader.statuses == {third: "pending"})
        await world.jobs.delete(third)
        await until(lambda: reader.statuses == {second: "cancelled"})


async def test_jobs_by_id(world: World) -> None:
    seen, other = await world.enqueue(A), await world.enqueue(A)
    nobody = "0190e3d0-0000-7000-8000-000000000000"
    async with reading(world, "read token", f"id={seen}&id={nobody}&stats=false") as reader:
        await until(lambda: bool(reader.events))
        [(name, data)] = reader.events
        assert (name, [job["id"] for job in data["items"]], data["gone"]) == ("jobs", [seen], [nobody])
        await world.jobs.cancel(other)
        await world.jobs.cancel(seen)
        await until(lambda: reader.statuses == {seen: "cancelled"})
        await world.jobs.requeue(seen)
        await until(lambda: reader.statuses == {seen: "pending"})
        await world.jobs.delete(seen)
        await until(lambda: reader.statuses == {})


async def test_a_completed_job_that_is_deleted_is_gone_though_nothing_else_happens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream looks at completed jobs only now and then, and the last write may come in between."""
    monkeypatch.setattr(live, "_SETTLED", 0.5)
    job_id = await world.ended(A, "mail")
    async with reading(world, "read token", f"id={job_id}&stats=false") as reader:
        await until(lambda: job_id in reader.jobs)
        await (await world.store()).move([job_id], Delete(by="test"))
        await until(lambda: job_id not in reader.jobs)


async def test_an_end_that_was_taken_back_is_not_told_again(world: World) -> None:
    async with reading(world, "read token", "topic=mail&limit=1&stats=false") as reader:
        first, second = await shown(world, reader), await shown(world, reader)
        await world.jobs.cancel(first)
        await until(lambda: first not in reader.jobs)
        await world.jobs.delete(second)
        await until(lambda: reader.statuses == {first: "cancelled"})
        await world.jobs.requeue(first)
        await until(lambda: reader.statuses == {first: "pending"})
        reader.ended.clear()
        await world.jobs.delete(first)
        await until(lambda: reader.jobs == {})
        assert reader.ended == {}


async def test_one_reader_for_all_who_look_at_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await world.store()
    asked: list[int] = []
    newest = type(store).newest

    async def counted(self: Any, filters: Any, limit: int) -> Any:
        asked.append(len(filters))
        return await newest(self, filters, limit)

    monkeypatch.setattr(type(store), "newest", counted)
    readers = [reading(world, "read token", "topic=mail&stats=false") for _ in range(30)]
    shown = [await one.__aenter__() for one in readers]
    job_id = await world.enqueue(A)
    await until(lambda: all(job_id in reader.jobs for reader in shown))
    assert set(asked) == {1}
    quiet = len(asked)
    store_mark = await store.mark()
    await asyncio.sleep(0.2)  # nothing happens
    if await store.mark() == store_mark:
        assert len(asked) <= quiet + 1
    for one in readers:
        await one.__aexit__(None, None, None)
    assert len(world.api.state.stream_limits) == 0
    assert world.api.state.live._views == {}


RULES = [
    "scope_id = @request.auth.id",
    "scope = 'team' && scope_id = @request.auth.id",
    "scope_id = @request.auth.id || (scope_id = @request.auth.id && topic = 'mail')",
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("query", ["topic=mail", "topic=mail&topic=bills&status=pending&status=cancelled", ""])
async def test_those_whom_a_rule_shows_their_own_jobs_are_read_together(
    world: World, monkeypatch: pytest.MonkeyPatch, rule: str, query: str
) -> None:
    """Separate lookups for each user would tell hundreds of users of a change only after many seconds."""
    await world.change_settings(manage_rule=rule)
    store = type(await world.store())
    newest_of_scopes, together = store.newest_of_scopes, list[int]()

    async def counted(self: Any, filters: Any, limit: int) -> Any:
        together.append(len(filters))
        return await newest_of_scopes(self, filters, limit)

    async def one_by_one(self: Any, filters: Any, limit: int) -> Any:
        raise AssertionError("each is looked up by itself")

    monkeypatch.setattr(store, "newest_of_scopes", counted)
    monkeypatch.setattr(store, "newest", one_by_one)
    users = [f"user-{n}" for n in range(10)]
    async with AsyncExitStack() as stack:
        readers = {}
        for user in users:
            who = Who(user, bearer(user_token(user)), "user", id=user)
            readers[user] = await stack.enter_async_context(reading(world, who, f"{query}&limit=5&stats=false"))
        ids = {}
        for user in users:
            ids[user] = [await world.enqueue(user, scope="team") for _ in range(3)]
            await world.enqueue(user, scope="team", topic="other")
        await world.jobs.cancel(ids["user-3"][0])
        shown = {user: dict.fromkeys(own, "pending") for user, own in ids.items()}
        shown["user-3"][ids["user-3"][0]] = "cancelled"
        await until(lambda: all(shown[user].items() <= readers[user].statuses.items() for user in users))
        assert max(together) == len(users)
        if query:
            assert all(readers[user].statuses == shown[user] for user in users)
        assert all(other[0] not in readers["user-0"].text for user, other in ids.items() if user != "user-0")


async def test_a_rule_that_hides_some_of_ones_own_shows_older_ones_instead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this case the jobs that are read together are not enough, nor if other topics have very many jobs."""
    monkeypatch.setattr(sqlite_reading, "OWN_WINDOW", 2)
    monkeypatch.setattr(postgres_store, "OWN_WINDOW", 2)
    await world.change_settings(manage_rule="scope = 'team' && scope_id = @request.auth.id")
    old = [await world.enqueue(A, scope="team") for _ in range(3)]
    for topic in ("mail", "other"):
        for _ in range(3):
            await world.enqueue(A, scope="own", topic=topic)
    async with (
        reading(world, "user A", "topic=mail&limit=2&stats=false") as of_topic,
        reading(world, "user A", "limit=2&stats=false") as own,
    ):
        await until(lambda: of_topic.jobs.keys() == own.jobs.keys() == {*old[1:]})
        store = await world.store()
        await store.claim(claim_by("w1", "mail", limit=20))
        held = (await store.read([old[2]], Job))[old[2]]
        await store.settle([settlement(held, Completed({}))])
        await until(lambda: of_topic.statuses[old[2]] == own.statuses[old[2]] == "completed")
        await store.move([old[2]], Delete(by="test"))
        await until(lambda: of_topic.jobs.keys() == own.jobs.keys() == {*old[:2]})


# ── Which callers may read ──


async def test_a_tenant_sees_only_what_is_theirs(world: World) -> None:
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    theirs = await world.enqueue(B)
    async with (
        reading(world, "user A", "topic=mail") as reader,
        reading(world, "user A", "stats=false") as own,
        reading(world, "user A", f"id={theirs}&stats=false") as by_id,
    ):
        mine = await world.enqueue(A)
        more = await world.enqueue(B)
        await until(lambda: mine in reader.jobs and mine in own.jobs and bool(by_id.events))
        await world.jobs.cancel(mine)
        await world.jobs.cancel(theirs)
        await until(lambda: reader.statuses[mine] == own.statuses[mine] == "cancelled")
        await until(lambda: reader.stats is not None and reader.stats["cancelled"] == 1)
        for one in (reader, own):
            assert theirs not in one.text
            assert more not in one.text
        assert by_id.events == [("jobs", {"items": [], "gone": [theirs], "reset": True})]


async def test_who_is_logged_out_is_sent_away(world: World) -> None:
    who = await world.token("short", ["read"])
    await world.enqueue(A)
    async with reading(world, who) as reader:
        await until(lambda: bool(reader.jobs))
        assert await tokens.revoke(await world.store(), who.id, by="test")
        await until(lambda: reader.is_over)
        assert reader.ends == ["not_authenticated"]


async def test_a_rule_that_changes_shows_another_part(world: World) -> None:
    await world.change_settings(manage_rule="true")
    mine, theirs = await world.enqueue(A), await world.enqueue(B)
    async with reading(world, "user A", "topic=mail&stats=false") as reader:
        await until(lambda: reader.jobs.keys() == {mine, theirs})
        await world.change_settings(manage_rule="scope_id = @request.auth.id")
        await until(lambda: reader.jobs.keys() == {mine})
        await world.change_settings(manage_rule="")
        await until(lambda: reader.is_over)
        assert reader.ends == ["not_allowed"]


async def test_what_is_redacted_is_not_streamed_either(world: World) -> None:
    await world.change_settings(redact=["password"])
    job_id = await world.enqueue(A, payload={"password": "hunter22"})
    store = await world.store()
    await store.claim(claim_by("w1", "mail"))
    await store.progress([Progress(job_id, 1, 40.0, "password=hunter22", "about hunter22", worker="w1")])
    async with reading(world, "read token", "topic=mail") as reader:
        await until(lambda: job_id in reader.jobs)
        assert "hunter22" not in reader.text
        assert "[redacted]" in reader.jobs[job_id]["message"]
    for query in ("payload=password=hunter22", "error=hunter22"):
        assert is_problem(await world.get("read token", f"/api/events?seconds=0&{query}"), 403)
        assert (await world.get("admin token", f"/api/events?seconds=0&{query}")).status_code == 200


def is_refused(answer: httpx.Response, code: str) -> None:
    assert is_problem(answer, 429, code)
    assert answer.headers["retry-after"] == "5"


async def test_not_everyone_at_once(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller has all the streams, and superusers find a place when all other places are taken."""
    await sqlite_world.change_settings(manage_rule="scope_id = @request.auth.id")
    for name, value in {"MOST_BY_RULE": 1, "MOST_OF_ONE": 2, "MOST": 6, "RESERVED": 2}.items():
        monkeypatch.setattr(streams, name, value)
    async with reading(sqlite_world, "user A"), reading(sqlite_world, "user B"):
        is_refused(await sqlite_world.get("user A", ONCE), "too_many_streams")
        async with reading(sqlite_world, "read token"), reading(sqlite_world, "read token"):
            is_refused(await sqlite_world.get("read token", ONCE), "too_many_streams")
            for who in ("manage token", "admin token"):
                is_refused(await sqlite_world.get(who, ONCE), "streams_taken")
            async with reading(sqlite_world, "superuser"), reading(sqlite_world, "read-only superuser"):
                is_refused(await sqlite_world.get("superuser", ONCE), "streams_taken")
        assert (await sqlite_world.get("read token", ONCE)).status_code == 200
    assert len(sqlite_world.api.state.stream_limits) == 0


async def test_one_token_does_not_take_all_streams(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if all requests come at the same moment. The test uses the real bounds."""
    give = asyncio.Event()
    admit = type(sqlite_world.api).admit

    async def at_once(*arguments: Any) -> Any:
        call = await admit(*arguments)
        await give.wait()
        return call

    monkeypatch.setattr(type(sqlite_world.api), "admit", at_once)
    async with AsyncExitStack() as stack:
        tries = [stack.enter_async_context(reading(sqlite_world, "read token", "stats=false")) for _ in range(300)]
        opening = asyncio.gather(*tries)
        give.set()
        opened = [reader for reader in await opening if reader.status == 200]
        assert len(opened) == len(sqlite_world.api.state.stream_limits) == 200


async def test_a_users_job_tokens_have_the_users_places(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await sqlite_world.change_settings(manage_rule="scope_id = @request.auth.id")
    monkeypatch.setattr(streams, "MOST_BY_RULE", 2)
    job_id = await sqlite_world.enqueue(A)
    made = {}
    for maker in ("user A", "read token"):
        text = (await sqlite_world.post(maker, f"/api/jobs/{job_id}/token")).json()["token"]
        made[maker] = Who(f"for one job, by {maker}", bearer(text))
    async with reading(sqlite_world, "user A"), reading(sqlite_world, made["user A"]):
        for who in ("user A", made["user A"]):
            is_refused(await sqlite_world.get(who, ONCE), "too_many_streams")
        async with reading(sqlite_world, made["read token"]), reading(sqlite_world, made["read token"]):
            is_refused(await sqlite_world.get(made["read token"], ONCE), "too_many_streams")
        assert (await sqlite_world.get("read token", ONCE)).status_code == 200


async def test_of_those_who_say_nothing_each_address_has_its_places(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All IPv6 addresses of one subscriber count as one address."""
    await sqlite_world.change_settings(manage_rule="true")
    monkeypatch.setattr(streams, "MOST_BY_RULE", 1)
    for one, same, other in (
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.3"),
    ):
        async with reading(sqlite_world, "anonymous", client=one):
            async with reading(sqlite_world, "anonymous", "seconds=0", client=same) as refused:
                assert refused.status == 429
            async with reading(sqlite_world, "anonymous", "seconds=0", client=other) as reader:
                assert reader.status == 200


async def test_who_hangs_up_has_no_place_any_more(sqlite_world: World) -> None:
    """This holds even while the server writes something that the client doesn't read. A HEAD request takes no place."""
    await sqlite_world.enqueue(A)
    async with reading(sqlite_world, "read token") as reader:
        await until(lambda: bool(reader.events))
        reader.gate.clear()
        await sqlite_world.enqueue(A)
        await until(lambda: reader.is_stuck)
        assert len(sqlite_world.api.state.stream_limits) == 1
        reader.hang_up()
        await until(lambda: len(sqlite_world.api.state.stream_limits) == 0)
    assert (await sqlite_world.call("read token", "HEAD", "/api/events")).status_code == 200
    assert len(sqlite_world.api.state.stream_limits) == 0


async def test_a_connection_that_breaks_before_the_stream_begins_leaves_no_place(sqlite_world: World) -> None:
    async def broken(message: Any) -> None:
        raise OSError("the connection is gone")

    scope = {"type": "http", "method": "GET", "path": "/api/events", "query_string": b"", "scheme": "http"}
    headers = {"host": "localhost", **sqlite_world.who["read token"].headers}
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    with pytest.raises(OSError, match="is gone"):
        await sqlite_world.api({**scope, "headers": listed, "client": ("127.0.0.1", 1)}, asyncio.Future, broken)
    assert len(sqlite_world.api.state.stream_limits) == 0


async def test_a_real_client_that_vanishes_leaves_its_place(sqlite_world: World) -> None:
    with Server.running(sqlite_world.place.url) as server:
        headers = dict(sqlite_world.who["read token"].headers)
        async with (
            httpx.AsyncClient(headers=headers, timeout=30) as client,
            client.stream("GET", f"{server.url}/api/events") as answer,
        ):
            await anext(answer.aiter_lines())
            assert len(server.app.state.stream_limits) == 1
        await until(lambda: len(server.app.state.stream_limits) == 0)


def test_connections_whose_client_is_silent_are_closed() -> None:
    """A client without power closes nothing: the system must find out. Connections inherit the listener's options."""
    with bind(ServerSettings(port=0)) as bound, socket.create_connection(bound.getsockname()), bound.accept()[0] as own:
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


NO_SENSE: list[tuple[str, str]] = [
    ("limit=201", "limit"), ("limit=-1", "limit"), ("limit=0&stats=false", "limit"), ("seconds=-1", "seconds"),
    ("status=done", "status"), ("id=7", "id"), ("stats=maybe", "stats"), ("offset=3", "offset"),
]  # fmt: skip


async def test_what_makes_no_sense_is_refused_before_it_begins(sqlite_world: World) -> None:
    for query, field in NO_SENSE:
        answer = await sqlite_world.get("read token", f"/api/events?{query}")
        assert is_problem(answer, 400)
        assert answer.json()["field"] == field


# ── Trouble ──


async def test_the_database_is_away_for_a_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = type(await world.store())
    mark = store.mark
    failures: list[int] = []

    async def away(self: Any) -> str:
        if len(failures) < 3:
            failures.append(1)
            raise StoreUnavailable("away")
        return await mark(self)

    async with reading(world, "read token", "topic=mail&stats=false") as reader:
        await until(lambda: bool(reader.events))
        monkeypatch.setattr(store, "mark", away)
        await shown(world, reader)
        assert len(failures) == 3


async def test_a_mistake_of_the_reader_does_not_silence_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = type(await world.store())
    mark, failures = store.mark, list[int]()

    async def broken(self: Any) -> str:
        if not failures:
            failures.append(1)
            raise OSError("nobody thought of this")
        return await mark(self)

    monkeypatch.setattr(live, "_IDLE", 0.1)
    async with reading(world, "read token", "topic=mail&stats=false") as reader:
        await until(lambda: bool(reader.events))
        monkeypatch.setattr(store, "mark", broken)
        job_id = await world.enqueue(A)
        await until(lambda: job_id in reader.jobs and bool(failures))


async def test_too_much_to_look_at_leaves_the_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_BUDGET": 0.0, "_TOGETHER": 1, "_LATE": 0.0}.items():
        monkeypatch.setattr(live, name, value)
    async with (
        reading(world, "read token", "topic=mail") as one,
        reading(world, "read token", "topic=mail&limit=3") as two,
        reading(world, "read token", "topic=mail&limit=4") as three,
    ):
        for _ in range(4):
            await world.enqueue(A)
            await asyncio.sleep(0.05)
        await until(lambda: any(name == "behind" for reader in (one, two, three) for name, _ in reader.events))
        readers = (one, two, three)
        await until(lambda: all(reader.stats is not None and reader.stats["pending"] == 4 for reader in readers))
        await until(lambda: all(len(reader.jobs) >= 3 for reader in readers))  # each reader has its turn


async def test_who_stops_reading_costs_nothing_and_misses_nothing(world: World) -> None:
    async with reading(world, "read token", "topic=mail&limit=3&stats=false") as reader:
        first = [await world.enqueue(A) for _ in range(3)]
        await until(lambda: reader.jobs.keys() == {*first})
        reader.gate.clear()
        seen = len(reader.events)
        for n in range(30):
            await world.jobs.cancel(await world.enqueue(A))
            if n % 10 == 0:
                await asyncio.sleep(0.05)
        for job_id in first:
            await world.jobs.cancel(job_id)
        async with reading(world, "read token", "topic=mail&limit=3&stats=false") as other:
            await converged(world, other, "limit=3&topic=mail")  # then the server has read everything for both readers
        reader.gate.set()
        await converged(world, reader, "limit=3&topic=mail")
        assert reader.ended.items() >= dict.fromkeys(first, "cancelled").items()
        assert len(reader.events) - seen <= 3  # the event that was on its way, and those from there to the end


async def test_silence_is_broken_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_QUIET", 0.05)
    async with reading(world, "read token") as reader:
        await until(lambda: len(reader.comments) >= 3)


async def test_a_stream_ends_when_it_was_told_to(world: World) -> None:
    job_id = await world.enqueue(A)
    answer = await world.get("read token", "/api/events?seconds=0")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert job_id in answer.text
    assert answer.text.count("event: ") == 2
    head = await world.call("read token", "HEAD", "/api/events")
    assert (head.status_code, head.content) == (200, b"")


async def test_a_real_server_streams_and_says_goodbye(world: World) -> None:
    job_id = await world.enqueue(A)
    with Server.running(world.place.url) as server:
        async with (
            httpx.AsyncClient(headers=dict(world.who["read token"].headers), timeout=30) as client,
            client.stream("GET", f"{server.url}/api/events?id={job_id}&stats=false") as answer,
        ):
            lines = answer.aiter_lines()
            text = ""
            while job_id not in text:
                text = await anext(lines)
            await world.jobs.cancel(job_id)
            while '"cancelled"' not in text:
                text = await anext(lines)
            server.call(server.app.stop)
            assert '{"reason":"stopping"}' in "".join([line async for line in lines])
