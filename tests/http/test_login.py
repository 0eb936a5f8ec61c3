"""Accounts, sessions, the one-time link and tokens: what is kept of them, how they end, and whom they let in."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rowlock import Jobs
from rowlock.access import passwords, secrets, sessions, superusers, tokens
from rowlock.http import login_attempts
from rowlock.http.login_attempts import ACCOUNT, ADDRESS, PAIR, Attempts, Bound
from rowlock.http.problems import Problem
from rowlock.stores.records import Write
from tests.http.harness import ANYONE, BOSS, PASSWORD, REAL_HASHER, Place, Who, World, is_problem
from tests.waiting import until

LOGIN, SETUP, ME = "/api/auth/login", "/api/auth/setup", "/api/auth/me"
COOKIE = re.compile(r"rowlock_session=(rls_([0-9A-Za-z]{12})_[0-9A-Za-z]{49});")


def cookie(answer: httpx.Response) -> str:
    found = COOKIE.match(answer.headers["set-cookie"])
    assert found
    return found[1]


def browser(text: str) -> Who:
    return Who("a browser", {"cookie": f"rowlock_session={text}", "x-rowlock-csrf": "1"})


def with_id_of(text: str, other: str) -> str:
    """Return the secret that an attacker would make up from an id, knowing how checksums are made."""
    begun = text[:17] + other[17:-6]
    return begun + secrets._checksum(begun)


@asynccontextmanager
async def nobody_yet(place: Place) -> AsyncIterator[World]:
    """Yield an application that has no account yet."""
    async with Jobs(place.url) as jobs:
        yield World(place, jobs)


async def log_in(world: World, email: str = BOSS, password: str = PASSWORD, **more: Any) -> httpx.Response:
    return await world.post(ANYONE, LOGIN, {"email": email, "password": password}, **more)


async def is_in(world: World, who: Who, **more: Any) -> bool:
    answer = await world.get(who, ME, **more)
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


# ── Passwords ──


async def test_a_password_is_kept_as_argon2id_and_as_nothing_else(sqlite_world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(passwords, "_hasher", REAL_HASHER)
    store = await sqlite_world.store()
    await superusers.create(store, "new@example.com", "a password of its own", by="test")
    [record] = await store.records(superusers.KIND, ["new@example.com"])
    found = re.match(r"\$argon2id\$v=19\$m=(\d+),t=(\d+),p=\d+\$", record.data["password"])
    assert found
    assert int(found[1]) >= 19_456
    assert int(found[2]) >= 2
    assert "a password of its own" not in await sqlite_world.place.dump()


async def test_there_is_no_account_to_begin_with(place: Place) -> None:
    async with nobody_yet(place) as world:
        assert await superusers.every(await world.store()) == []
        assert (await place.counts())["_jobs_records"] == 0
        for email, password in (("admin@example.com", "admin"), ("admin", "admin"), ("root@localhost", ""), ("", "")):
            is_problem(await log_in(world, email, password), 401, "wrong_login")


async def test_a_wrong_password_and_an_unknown_account_are_answered_the_same(world: World) -> None:
    wrong, unknown, odd = [
        await log_in(world, email, "not the password") for email in (BOSS, "nobody@example.com", "a\0b" + "x" * 1000)
    ]
    for answer in (wrong, unknown, odd):
        problem = is_problem(answer, 401, "wrong_login")
        assert problem["detail"] == is_problem(wrong)["detail"]
        assert "set-cookie" not in answer.headers
    names = [sorted(answer.headers) for answer in (wrong, unknown, odd)]
    assert names[0] == names[1] == names[2]


async def test_an_unknown_account_costs_as_much_work_as_a_wrong_password(sqlite_world: World, monkeypatch: Any) -> None:
    """The test counts the work and doesn't time it: the server checks a hash of the same strength either way."""
    checked: list[str] = []
    real = passwords._hasher()

    class Counting:
        def verify(self, stored: str, password: str) -> bool:
            checked.append(stored.rpartition("$")[0].rpartition("$")[0])  # without salt and hash
            return bool(real.verify(stored, password))  # type: ignore[attr-defined]

        def hash(self, password: str) -> str:
            return str(real.hash(password))  # type: ignore[attr-defined]

    passwords._nobodys.cache_clear()
    monkeypatch.setattr(passwords, "_hasher", Counting)
    await log_in(sqlite_world, BOSS, "not the password")
    await log_in(sqlite_world, "nobody@example.com", "not the password")
    passwords._nobodys.cache_clear()
    assert len(checked) == 2
    assert checked[0] == checked[1]


@pytest.mark.parametrize("password", ["", "short", "password1234", "aaaaaaaaaaaaaaaa", "x" * 513, "abababababab"])
async def test_a_password_that_anyone_would_try_is_refused(sqlite_place: Place, password: str) -> None:
    async with nobody_yet(sqlite_place) as world:
        link = await superusers.first_link(await world.store())
        assert link
        body = {"token": link.text, "email": "ann@example.com", "password": password}
        assert is_problem(await world.post(ANYONE, SETUP, body), 400)["field"] == "password"
        assert await superusers.every(await world.store()) == []


async def test_a_long_password_that_begins_right_is_wrong(sqlite_world: World) -> None:
    is_problem(await log_in(sqlite_world, BOSS, PASSWORD + "x"), 401)
    is_problem(await log_in(sqlite_world, BOSS, PASSWORD + "x" * 600), 401)


NO_LOGINS: list[Any] = [{}, {"email": BOSS}, {"email": BOSS, "password": None}, {"email": [], "password": {}}]


async def test_a_login_without_its_fields_is_refused(sqlite_world: World) -> None:
    for body in NO_LOGINS:
        is_problem(await sqlite_world.post(ANYONE, LOGIN, body), 400)


# ── How often a client may guess ──


async def guess(world: World, email: str = BOSS, **more: Any) -> httpx.Response:
    return await log_in(world, email, "not the password", **more)


def stop_the_clock(world: World) -> None:
    """Stop the clock of the login limits: nothing is forgotten and no wait ends, however slow the machine is."""
    world.api.attempts = Attempts(lambda: 0.0)


async def test_whoever_guesses_must_wait_for_longer_and_longer(world: World) -> None:
    stop_the_clock(world)
    statuses = [(await guess(world)).status_code for _ in range(PAIR.free + 1)]
    assert statuses == [401] * PAIR.free + [429]
    refused = await log_in(world)  # even with the right password
    assert is_problem(refused, 429, "too_many_logins")
    assert int(refused.headers["retry-after"]) >= 1


async def test_guesses_at_the_same_moment_count_as_well(world: World) -> None:
    answers = await asyncio.gather(*(guess(world) for _ in range(20)))
    assert sum(answer.status_code == 401 for answer in answers) <= PAIR.free


async def test_the_name_of_an_account_is_the_same_in_capitals(sqlite_world: World) -> None:
    stop_the_clock(sqlite_world)
    for n in range(PAIR.free):
        await guess(sqlite_world, BOSS.upper() if n % 2 else BOSS)
    is_problem(await guess(sqlite_world, BOSS.title()), 429)


async def test_an_address_that_tries_many_accounts_must_wait_too(sqlite_world: World) -> None:
    stop_the_clock(sqlite_world)
    statuses = [(await guess(sqlite_world, f"user{n}@example.com")).status_code for n in range(ADDRESS.free + 1)]
    assert statuses == [401] * ADDRESS.free + [429]
    assert (await guess(sqlite_world, client="192.0.2.7")).status_code == 401


async def test_an_account_at_which_many_addresses_guess_must_wait_too(sqlite_world: World) -> None:
    stop_the_clock(sqlite_world)
    statuses = [(await guess(sqlite_world, client=f"192.0.2.{n}")).status_code for n in range(ACCOUNT.free + 1)]
    assert statuses == [401] * ACCOUNT.free + [429]
    assert (await guess(sqlite_world, "other@example.com", client="192.0.2.7")).status_code == 401


async def test_addresses_of_one_subscriber_are_one(sqlite_world: World) -> None:
    stop_the_clock(sqlite_world)
    statuses = [(await guess(sqlite_world, client=f"2001:db8::{n}")).status_code for n in range(PAIR.free + 1)]
    assert statuses == [401] * PAIR.free + [429]


async def test_who_guesses_locks_nobody_else_out(sqlite_world: World) -> None:
    """A client that guesses locks out neither other users behind its proxy nor the account's owner elsewhere."""
    stop_the_clock(sqlite_world)
    for n in range(60):
        await guess(sqlite_world, f"user{n}@example.com", client="192.0.2.1")
        await guess(sqlite_world, client="192.0.2.1")
    is_problem(await log_in(sqlite_world, client="192.0.2.1"), 429)
    assert (await log_in(sqlite_world, client="192.0.2.2")).status_code == 200
    await sqlite_world.superuser("second@example.com")
    assert (await log_in(sqlite_world, "second@example.com", client="192.0.2.1")).status_code == 200


async def test_who_has_logged_in_from_there_before_is_not_locked_out_by_many(sqlite_world: World) -> None:
    """Neither guesses from many addresses nor many guesses behind the same proxy lock out such a user."""
    stop_the_clock(sqlite_world)
    assert (await log_in(sqlite_world, client="192.0.2.1")).status_code == 200
    for n in range(ACCOUNT.free):
        await guess(sqlite_world, client=f"192.0.3.{n}")
    for n in range(ADDRESS.free):
        await guess(sqlite_world, f"user{n}@example.com", client="192.0.2.1")
    is_problem(await log_in(sqlite_world, client="192.0.4.1"), 429)
    is_problem(await guess(sqlite_world, "new@example.com", client="192.0.2.1"), 429)
    for _ in range(3):
        assert (await log_in(sqlite_world, client="192.0.2.1")).status_code == 200


async def test_an_account_of_ones_own_is_no_way_to_guess_without_end(sqlite_world: World) -> None:
    stop_the_clock(sqlite_world)
    refused = 0
    for n in range(ADDRESS.free + 20):
        if n % 4 == 0:
            assert (await log_in(sqlite_world)).status_code == 200
        refused += (await guess(sqlite_world, f"user{n}@example.com")).status_code == 429
    assert refused == 20


DAY = 86_400
GUESSERS: dict[str, tuple[Callable[[int], tuple[str, str]], Bound]] = {
    "one account from one address": (lambda n: (BOSS, "192.0.2.1"), PAIR),
    "one account from wherever": (lambda n: (BOSS, str(n)), ACCOUNT),
    "many accounts from one address": (lambda n: (str(n), "192.0.2.1"), ADDRESS),
    "one after the other from one address": (lambda n: (str(n % 3000), "192.0.2.1"), ADDRESS),
}


@pytest.mark.parametrize("kind", GUESSERS)
def test_a_day_of_guessing_is_bounded(kind: str) -> None:
    """A client that tries again as soon as it may gets only so many guesses."""
    target, bound = GUESSERS[kind]
    clock, guesses = [0.0], 0
    counted = Attempts(lambda: clock[0])
    while clock[0] < DAY:
        email, address = target(guesses)
        try:
            counted.begin(address, email)
            guesses += 1
        except Problem as problem:
            clock[0] += float(problem.headers["retry-after"])
    assert DAY / bound.seconds <= guesses <= bound.free + DAY / bound.seconds + 20


def test_typing_wrong_now_and_then_is_forgotten() -> None:
    clock = [0.0]
    counted = Attempts(lambda: clock[0])
    for _ in range(1000):  # for months, behind a proxy that the settings don't name
        clock[0] += ADDRESS.seconds
        for email in (BOSS, "other@example.com"):
            counted.begin("192.0.2.1", email)
            counted.succeeded("192.0.2.1", email)
        counted.begin("192.0.2.1", f"{clock[0]}@example.com")
    for _ in range(50):  # one account
        clock[0] += PAIR.seconds
        counted.begin("192.0.2.2", BOSS)


async def test_what_is_remembered_of_guesses_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_attempts, "_KEPT", 10)
    counted = Attempts()
    for n in range(100):
        counted.begin(f"192.0.2.{n}", f"user{n}@example.com")
        counted.succeeded(f"192.0.3.{n}", f"user{n}@example.com")
    assert [len(one) for one in (counted._pairs, counted._accounts, counted._addresses, counted._known)] == [10] * 4


async def test_only_so_many_wait_for_the_check_of_a_password(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check takes a core for a while. Two run at a time, so that a flood doesn't delay other users for minutes."""
    go, checking = asyncio.Event(), list[int]()
    is_right = passwords.is_right

    async def slow(password: str, stored: str | None) -> bool:
        checking.append(1)
        await go.wait()
        return await is_right(password, stored)

    monkeypatch.setattr(passwords, "is_right", slow)
    tries = [
        asyncio.create_task(guess(sqlite_world, f"user{n}@example.com", client=f"192.0.2.{n % 7}")) for n in range(100)
    ]
    await until(lambda: sum(task.done() for task in tries) == 50 and len(checking) == 2)
    assert {task.result().status_code for task in tries if task.done()} == {429}
    go.set()
    statuses = [answer.status_code for answer in await asyncio.gather(*tries)]
    assert (statuses.count(401), statuses.count(429)) == (50, 50)


async def test_one_address_does_not_have_all_places_of_those_who_wait(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_attempts, "MOST_OF_ONE", 3)
    answers = await asyncio.gather(
        *(guess(sqlite_world, f"user{n}@example.com", client="192.0.2.1") for n in range(30)),
        log_in(sqlite_world, client="192.0.2.2"),
    )
    assert [answer.status_code for answer in answers].count(429) == 27
    assert answers[-1].status_code == 200


# ── Behind a proxy ──


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "trusted_proxies" in record.getMessage()]


@pytest.mark.parametrize(
    ("name", "value"), [("x-forwarded-for", "203.0.113.9, 10.0.0.9"), ("forwarded", "for=203.0.113.9;proto=https")]
)
async def test_a_proxy_that_is_not_trusted_is_said_once(
    sqlite_world: World, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    for client in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.1"):
        await sqlite_world.get("anonymous", ME, headers={name: value}, client=client)
    await sqlite_world.get("anonymous", ME, client="192.0.2.3")
    told = warnings(caplog)
    assert [line.split()[0] for line in told] == ["192.0.2.1", "192.0.2.2"]
    assert f"the header {name}" in told[0]
    assert "--trusted-proxy 192.0.2.1" in told[0]
    for n in range(100):  # any client can send such a header
        await sqlite_world.get("anonymous", ME, headers={name: value}, client=f"198.51.100.{n}")
    assert len(warnings(caplog)) == 20


async def test_behind_a_trusted_proxy_each_client_counts_by_itself(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stop_the_clock(sqlite_world)
    api: Any = sqlite_world.api
    behind: Any = {"api": ProxyHeadersMiddleware(api, trusted_hosts=["10.0.0.1"]), "client": "10.0.0.1"}
    one, other = {"x-forwarded-for": "203.0.113.9"}, {"x-forwarded-for": "203.0.113.10"}
    statuses = [(await guess(sqlite_world, headers=one, **behind)).status_code for _ in range(PAIR.free + 1)]
    assert statuses == [401] * PAIR.free + [429]
    assert (await log_in(sqlite_world, headers=other, **behind)).status_code == 200
    assert warnings(caplog) == []


# ── Sessions ──


async def test_a_login_makes_a_new_session_and_ends_the_one_before(world: World) -> None:
    first = cookie(await log_in(world))
    second = cookie(await log_in(world, headers={"cookie": f"rowlock_session={first}", "x-rowlock-csrf": "1"}))
    assert first != second
    assert not await is_in(world, browser(first))
    assert await is_in(world, browser(second))


async def test_a_session_that_somebody_put_there_is_worth_nothing(world: World) -> None:
    """Session fixation: the server never takes over a session that the browser brings along."""
    planted = "rls_" + "A" * 12 + "_" + "B" * 49
    given = cookie(await log_in(world, headers={"cookie": f"rowlock_session={planted}"}))
    assert given != planted
    assert not await is_in(world, browser(planted))


async def test_a_session_of_which_only_the_id_is_right_is_none(world: World) -> None:
    text = cookie(await log_in(world))
    forged = with_id_of(text, cookie(await log_in(world)))
    for wrong in (forged, text[:-1], text[:-1] + ("a" if text[-1] != "a" else "b"), text.swapcase(), "", "x" * 5000):
        assert not await is_in(world, browser(wrong))


async def test_who_knows_the_id_of_a_session_can_not_end_it_by_logging_in(world: World) -> None:
    theirs = cookie(await log_in(world))
    forged = with_id_of(theirs, cookie(await log_in(world)))
    await log_in(world, headers={"cookie": f"rowlock_session={forged}", "x-rowlock-csrf": "1"})
    assert await is_in(world, browser(theirs))


async def rewrite(world: World, text: str, *, expires: timedelta | None = None, ends: timedelta | None = None) -> None:
    """Let time pass for a session: `expires` and `ends` are counted from now."""
    store = await world.store()
    now = await store.now()
    [record] = await store.records(sessions.KIND, [text.split("_")[1]])
    data = record.data if ends is None else {**record.data, "ends": (now + ends).isoformat()}
    until = record.expires_at if expires is None else now + expires
    await store.write_records([Write(sessions.KIND, record.id, data, expires_at=until)])


async def test_a_session_that_nobody_uses_ends(world: World) -> None:
    text = cookie(await log_in(world))
    [record] = await (await world.store()).records(sessions.KIND, [text.split("_")[1]])
    assert record.expires_at
    assert record.expires_at - record.created <= timedelta(minutes=30, seconds=1)
    await rewrite(world, text, expires=timedelta(seconds=-1))
    assert not await is_in(world, browser(text))


async def test_a_session_ends_after_half_a_day_however_much_it_is_used(world: World) -> None:
    text = cookie(await log_in(world))
    [session] = [one for one in await sessions.every(await world.store()) if one.id == text.split("_")[1]]
    assert session.ends - session.created <= timedelta(hours=12, seconds=1)
    await rewrite(world, text, ends=timedelta(seconds=-1))
    assert not await is_in(world, browser(text))


async def test_use_makes_a_session_last_but_not_beyond_its_end(world: World) -> None:
    text = cookie(await log_in(world))
    store = await world.store()
    await rewrite(world, text, ends=timedelta(minutes=5))
    [record] = await store.records(sessions.KIND, [text.split("_")[1]])
    later = record.updated + timedelta(minutes=2)
    await sessions.touch(store, record, later)
    [touched] = await store.records(sessions.KIND, [record.id])
    assert touched.expires_at
    assert touched.expires_at <= sessions.from_record(touched).ends


async def test_a_use_does_not_bring_back_a_session_that_was_ended(world: World) -> None:
    text = cookie(await log_in(world))
    store = await world.store()
    [record] = await store.records(sessions.KIND, [text.split("_")[1]])
    await sessions.end(store, record.id, by="test")
    await sessions.touch(store, record, record.updated + timedelta(minutes=2))
    assert not await is_in(world, browser(text))


async def test_logging_out_ends_the_session_on_the_server(world: World) -> None:
    text = cookie(await log_in(world))
    answer = await world.post(browser(text), "/api/auth/logout")
    assert answer.status_code == 204
    assert "rowlock_session=; " in answer.headers["set-cookie"]
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not await is_in(world, browser(text))
    assert not await is_in(world, browser(text), api=world.another_api())


async def test_another_password_ends_all_sessions(world: World) -> None:
    texts = [cookie(await log_in(world)) for _ in range(2)]
    await superusers.set_password(await world.store(), BOSS, "another password for me", by="test")
    for text in texts:
        assert not await is_in(world, browser(text))
    is_problem(await log_in(world), 401)
    assert (await log_in(world, password="another password for me")).status_code == 200


async def test_a_removed_account_is_out_at_once(world: World) -> None:
    text = cookie(await log_in(world))
    await superusers.delete(await world.store(), BOSS, by="test")
    assert not await is_in(world, browser(text))
    assert not await is_in(world, browser(text), api=world.another_api())


async def test_an_admin_sees_and_ends_sessions(world: World) -> None:
    text = cookie(await log_in(world, headers={"user-agent": "curl/1\t\x7f"}))
    session_id = text.split("_")[1]
    listed = await world.get("superuser", "/api/sessions")
    [shown] = [one for one in listed.json()["items"] if one["id"] == session_id]
    assert shown["email"] == BOSS
    assert "curl/1" in shown["client"]
    assert text not in listed.text
    assert "hash" not in listed.text
    assert (await world.call("superuser", "DELETE", f"/api/sessions/{session_id}")).status_code == 204
    assert not await is_in(world, browser(text))
    is_problem(await world.call("superuser", "DELETE", f"/api/sessions/{session_id}"), 404)


async def test_a_read_only_superuser_sees_but_changes_nothing(world: World) -> None:
    assert (await world.get("read-only superuser", ME)).json()["read_only"] is True
    assert (await world.get("read-only superuser", "/api/jobs")).status_code == 200
    is_problem(await world.post("read-only superuser", "/api/jobs/enqueue", {"topic": "mail"}), 403, "read_only")
    await world.change_settings(enqueue_rule="true", manage_rule="true")
    is_problem(await world.post("read-only superuser", "/api/jobs/enqueue", {"topic": "mail"}), 403, "read_only")


# ── The one-time link ──


async def set_up(world: World, token: str, email: str = "first@example.com", **more: Any) -> httpx.Response:
    return await world.post(ANYONE, SETUP, {"token": token, "email": email, "password": PASSWORD}, **more)


async def test_of_fifty_who_use_the_link_at_once_one_becomes_the_superuser(place: Place) -> None:
    async with nobody_yet(place) as world:
        store = await world.store()
        links = [await superusers.first_link(store) for _ in range(5)]
        apis = [world.another_api(), world.another_api()]
        answers = await asyncio.gather(
            *(
                set_up(world, link.text, f"user{n}{m}@example.com", api=apis[m % 2])
                for n, link in enumerate(links)
                for m in range(10)
                if link is not None
            )
        )
        made = [answer for answer in answers if answer.status_code == 200]
        assert len(answers) == 50
        assert len(made) == 1
        assert all(answer.status_code in (403, 404, 429) for answer in answers if answer is not made[0])
        [first] = await superusers.every(store)
        assert first.email == made[0].json()["id"]
        assert await is_in(world, browser(cookie(made[0])))


async def test_the_link_works_once_and_then_there_is_nothing_there(place: Place) -> None:
    async with nobody_yet(place) as world:
        link = await superusers.first_link(await world.store())
        assert link
        page = await world.get(ANYONE, "/_/setup")
        assert page.status_code == 200
        assert (await world.get(ANYONE, "/_/me")).json()["set_up"] is False
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert (await set_up(world, link.text)).status_code == 200
        is_problem(await set_up(world, link.text, "second@example.com"), 404)
        assert (await world.get(ANYONE, "/_/me")).json()["set_up"] is True  # the page uses this to explain a used link
        assert await superusers.first_link(await world.store()) is None
        assert len(await superusers.every(await world.store())) == 1


@asynccontextmanager
async def with_links(place: Place) -> AsyncIterator[tuple[World, str, str]]:
    """Yield a server that has no account yet, and two links to set it up."""
    async with nobody_yet(place) as world:
        one, two = [await superusers.first_link(await world.store()) for _ in range(2)]
        assert one
        assert two
        yield world, one.text, two.text


async def test_the_link_stays_used_after_the_superuser_was_removed(place: Place) -> None:
    async with with_links(place) as (world, one, two):
        await set_up(world, one)
        await superusers.delete(await world.store(), "first@example.com", by="test")
        is_problem(await set_up(world, two), 404)


async def test_a_link_that_is_too_old_is_refused(place: Place) -> None:
    async with with_links(place) as (world, link, _):
        store = await world.store()
        [record] = await store.records("link", [link.split("_")[1]])
        assert record.expires_at
        assert record.expires_at - record.created <= timedelta(minutes=30, seconds=1)
        over = await store.now() - timedelta(seconds=1)
        await store.write_records([Write("link", record.id, record.data, expires_at=over)])
        is_problem(await set_up(world, link), 403, "bad_link")
        assert await superusers.every(store) == []


@pytest.mark.parametrize("token", ["", "x", "rlo_" + "A" * 12 + "_" + "B" * 49, "rlk_" + "A" * 12 + "_" + "B" * 49])
async def test_a_made_up_link_is_refused(sqlite_place: Place, token: str) -> None:
    async with with_links(sqlite_place) as (world, _, _):
        is_problem(await set_up(world, token), 403, "bad_link")


async def test_a_link_whose_secret_is_wrong_is_refused_without_work(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_links(sqlite_place) as (world, one, two):
        monkeypatch.setattr(passwords, "_hasher", pytest.fail)
        is_problem(await set_up(world, with_id_of(one, two)), 403, "bad_link")


async def test_an_account_that_was_made_by_hand_closes_the_link(sqlite_place: Place) -> None:
    async with with_links(sqlite_place) as (world, link, _):
        await superusers.create(await world.store(), BOSS, PASSWORD, by="test")
        is_problem(await set_up(world, link), 404)


# ── What the server keeps ──


async def test_no_secret_stands_in_the_database(world: World) -> None:
    session = cookie(await log_in(world))
    made = await world.post("superuser", "/api/tokens", {"name": "made", "scopes": ["read"]})
    token = made.json()["token"]
    job_id = await world.enqueue(None)
    of_job = (await world.post("superuser", f"/api/jobs/{job_id}/token")).json()["token"]
    await guess(world)
    dump = await world.place.dump()
    assert made.json()["id"] in dump  # so the dump has the records that could hold secrets
    for secret in (session, token, of_job):
        kind, _, rest = secret.split("_")
        assert rest[:43] not in dump, kind
    assert PASSWORD not in dump
    assert "not the password" not in dump
    for text in (world.who["admin token"].headers["authorization"], world.who["superuser"].headers["cookie"]):
        assert text.rpartition("_")[2] not in dump


async def test_a_token_is_told_once(world: World) -> None:
    made = (await world.post("superuser", "/api/tokens", {"name": "made", "scopes": ["read"]})).json()
    assert re.match(r"rlk_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}\Z", made["token"])
    listed = (await world.get("superuser", "/api/tokens")).text
    assert made["id"] in listed
    assert made["token"].rpartition("_")[2][:43] not in listed
    assert '"token"' not in listed
    assert "hash" not in listed


async def test_a_revoked_token_is_refused_by_the_next_request_in_every_process(world: World) -> None:
    who = await world.token("short-lived", ["read"])
    async with Jobs(world.place.url) as elsewhere:
        apis = [world.api, world.another_api(), elsewhere.asgi()]
        for api in apis:
            assert await is_in(world, who, api=api)
        assert (await world.call("superuser", "DELETE", f"/api/tokens/{who.id}")).status_code == 204
        for api in apis:
            is_problem(await world.get(who, ME, api=api), 401)


async def test_a_use_does_not_bring_back_a_token_that_was_revoked(world: World) -> None:
    who = await world.token("short-lived", ["read"])
    store = await world.store()
    [record] = await store.records(tokens.KIND, [who.id])
    await tokens.revoke(store, who.id, by="test")
    await tokens.touch(store, record, await store.now() + timedelta(hours=1))
    is_problem(await world.get(who, ME), 401)


async def test_a_token_that_is_nearly_right_is_refused(world: World) -> None:
    text = world.who["admin token"].headers["authorization"].removeprefix("Bearer ")
    other = world.who["read token"].headers["authorization"].removeprefix("Bearer ")
    for wrong in (text[:-1], text + "x", text[:17] + other[17:], with_id_of(text, other), text.upper(), f" {text}", ""):
        is_problem(await world.get(Who("x", {"authorization": f"Bearer {wrong}"}), ME), 401)


async def test_another_kind_of_credential_is_an_error_and_not_nobody(sqlite_world: World) -> None:
    for scheme in ("Basic", "Token", "", "Bearer,", "Digest"):
        await sqlite_world.change_settings(manage_rule="true")
        answer = await sqlite_world.get(Who("x", {"authorization": f"{scheme} abc"}), "/api/jobs")
        assert is_problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_session_is_no_token_and_a_token_no_session(sqlite_world: World) -> None:
    session = cookie(await log_in(sqlite_world))
    is_problem(await sqlite_world.get(Who("x", {"authorization": f"Bearer {session}"}), ME), 401)
    token = sqlite_world.who["admin token"].headers["authorization"].removeprefix("Bearer ")
    assert not await is_in(sqlite_world, browser(token))


async def test_a_token_in_the_url_is_not_taken(sqlite_world: World) -> None:
    token = sqlite_world.who["admin token"].headers["authorization"].removeprefix("Bearer ")
    for name in ("token", "access_token", "api_key"):
        is_problem(await sqlite_world.get(ANYONE, f"/api/auth/me?{name}={token}"), 401)


async def test_passwords_do_not_go_over_plain_http_to_other_machines(sqlite_world: World) -> None:
    is_problem(await log_in(sqlite_world, base="http://jobs.example.com"), 403, "insecure")
    assert (await log_in(sqlite_world, base="https://jobs.example.com")).status_code == 200
    api = sqlite_world.another_api(insecure_http=True)
    assert (await log_in(sqlite_world, base="http://jobs.example.com", api=api)).status_code == 200


# ── What the log and the audit tell ──


async def test_a_failed_login_stands_in_the_log_without_what_was_typed(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await log_in(sqlite_world, "typed in the wrong field", "not the password")
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith(": a login from 127.0.0.1 failed")


async def test_the_audit_tells_who_did_what_without_secrets(world: World) -> None:
    text = cookie(await log_in(world))
    made = (await world.post(browser(text), "/api/tokens", {"name": "made", "scopes": ["read"]})).json()
    await world.call(browser(text), "DELETE", f"/api/tokens/{made['id']}")
    await world.call(browser(text), "PATCH", "/api/settings", {"manage_rule": "true", "reason": "to see"})
    await world.post(browser(text), "/api/auth/logout")
    told = (await world.get("admin token", "/api/audit?limit=20")).json()["items"]
    by_boss = [one["action"] for one in told if one["by"] == f"superuser {BOSS}"]
    assert by_boss[:5] == ["session.end", "settings.change", "token.revoke", "token.create", "session.begin"]
    [change] = [one for one in told if one["action"] == "settings.change"]
    assert change["reason"] == "to see"
    assert change["data"] == {"before": {"manage_rule": None}, "after": {"manage_rule": "true"}}
    assert made["token"].rpartition("_")[2] not in str(told)
