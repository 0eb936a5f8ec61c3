"""Texts that mean something to a database, a template, a shell or a header, in every place that takes a text."""

import logging
from typing import Any
from urllib.parse import quote

import pytest

from rowlock.http.login_attempts import Attempts
from rowlock.http.respond import log
from tests.http.harness import ANYONE, SECRET, A, Place, Server, Who, World, bearer, by_hand, is_problem
from tests.http.test_jwt import plain_claims, raw

SQL = [
    "'", '"', "''", "`", "\\", "\\'", "';--", "' --", "/*", "*/", "#", ";", "%", "_", "%%", "\\%", "?", "$1", ":1",
    "@x", "{}", "' OR '1'='1", "' OR 1=1 --", '" OR ""="', "') OR ('1'='1", "1 OR 1=1", "1; SELECT 1",
    "'; DROP TABLE _jobs; --", "x'; DELETE FROM _jobs; --", "' UNION SELECT id, data FROM _jobs_records --",
    "' UNION ALL SELECT NULL, NULL --", "'||(SELECT data FROM _jobs_records LIMIT 1)||'",
    "1 AND (SELECT count(*) FROM _jobs) > 0", "' AND sqlite_version() --", "'; SELECT pg_sleep(10); --",
    "' || pg_sleep(10) --", "$$; DROP TABLE _jobs; $$", "E'\\x27'", "\u02bc OR 1=1", "＇ OR 1=1", "$.a", "$[0]", "$.*",
    "a->>'b'", "a.b[*]", "a.$.b", "a[0]", '$."a"', "a.b.c.d.e.f.g.h.i.j.k", "@.length", "..", "a..b",
]  # fmt: skip
CORPUS = [
    *SQL, "{{7*7}}",
    "${7*7}", "#{7*7}", "<%= 7*7 %>", "%s%s%s%n", "%(payload)s", "{0.__class__}", "{payload}", "__class__",
    "__class__.__mro__[1].__subclasses__()", "__import__('os').system('id')", "constructor.prototype", "__proto__",
    "../../../etc/passwd", "file:///etc/passwd", "|id", "$(id)", "`id`", "\r\nSet-Cookie: a=b", "a\r\n\r\n<html>",
    "a\nb", "\t", "<script>alert(1)</script>", "javascript:alert(1)", "\x1b[31m", "\u202e", "\ufeff", "\u0130", "true",
    "null", "NaN", "-0", "0x1F", "1e309", "", " ", "a" * 600, "😀", "é\u0301",
]  # fmt: skip
TEXTS = ("key", "scope", "scopeId")
FILTERS = (
    "topic", "status", "id", "key", "tag", "payload", "error", "scope", "scopeId", "flowId", "createdFrom",
    "createdUntil", "runAtFrom", "runAtUntil", "finishedFrom", "finishedUntil", "limit", "offset", "cursor",
)  # fmt: skip
SEARCHED = ("topic", "key", "tag", "payload", "error", "scope", "scopeId", "cursor")
CANARY = "canary-of-somebody"


def corpus(world: World) -> list[str]:
    """Return all texts for SQLite, and for PostgreSQL those that mean something to a database."""
    return CORPUS if world.place.kind == "sqlite" else SQL


async def schema(place: Place) -> list[tuple[Any, ...]]:
    if place.kind == "sqlite":
        return await place.fetch("SELECT type, name, sql FROM sqlite_master ORDER BY name")
    return await place.fetch(
        "SELECT relname::text, relkind::text FROM pg_class WHERE relname LIKE '%jobs%' ORDER BY relname"
    )


async def others(world: World) -> Any:
    """Return the schema and the row counts, which no request may change."""
    return await schema(world.place), await world.place.counts()


# ── Into filters ──


async def test_no_filter_finds_more_than_it_says(world: World) -> None:
    await world.enqueue("somebody", key=CANARY, payload={"a": CANARY}, tags=[CANARY], scope=CANARY)
    before = await others(world)
    for name in FILTERS:
        for text in corpus(world) if name in SEARCHED else SQL[::5]:  # the others take numbers, times or nothing
            for value in (text, f"a={text}", f"{text}=1") if name == "payload" else (text,):
                query = f"{name}={quote(value, safe='')}"
                answer = await world.get("superuser", f"/api/jobs?{query}")
                assert answer.status_code in (200, 400), (query, answer.text)
                if answer.status_code == 400:
                    is_problem(answer)
                else:
                    assert CANARY not in answer.text or name in ("limit", "offset"), query
    assert await others(world) == before


async def test_a_name_of_a_parameter_is_no_sql_either(world: World) -> None:
    before = await others(world)
    for text in corpus(world):
        answer = await world.get("superuser", f"/api/jobs?{quote(text, safe='')}=1")
        assert answer.status_code in (200, 400), text
    assert await others(world) == before


async def test_a_payload_path_is_a_path_of_names(world: World) -> None:
    """A payload path finds the job in which exactly this path stands, or none, whatever its text is."""
    for text in corpus(world):
        member = text.replace(".", "")
        made = await world.post("superuser", "/api/jobs/enqueue", {"topic": "paths", "payload": {member: {"x": 7}}})
        assert made.status_code in (200, 400), text
        answer = await world.get("superuser", f"/api/jobs?topic=paths&payload={quote(f'{member}.x=7', safe='')}")
        assert answer.status_code in (200, 400), (text, answer.text)
        if answer.status_code == 200 and made.status_code == 200 and "=" not in member:
            assert [item["payload"] for item in answer.json()["items"]] == [{member: {"x": 7}}], text
        if made.status_code == 200:
            await world.jobs.delete(made.json()["id"])


async def test_wildcards_are_letters(world: World) -> None:
    job_id = await world.ended(A, "failing", error="100% of a_b failed")
    for text, finds in (
        ("100%", True),
        ("a_b", True),
        ("a%b", False),
        ("%", True),
        ("a.b", False),
        ("\\", False),
        ("__", False),
    ):
        answer = await world.get("superuser", f"/api/jobs?topic=failing&error={quote(text)}")
        assert ([item["id"] for item in answer.json()["items"]] == [job_id]) == finds, text


# ── Into jobs ──


async def test_what_is_put_in_comes_out_unchanged(world: World) -> None:
    await world.change_settings(redact=[])  # some of the texts look like a header with a cookie
    tables = await schema(world.place)
    for n, text in enumerate(CORPUS):
        body = {"topic": "mail", "payload": {"text": text, text: [text]}, "tags": [text], **dict.fromkeys(TEXTS, text)}
        answer = await world.post("superuser", "/api/jobs/enqueue", body)
        if not text or len(text) > 128:
            is_problem(answer, 400)
            continue
        assert answer.status_code == 200, (text, answer.text)
        job = (await world.get("superuser", f"/api/jobs/{answer.json()['id']}")).json()
        assert job["payload"] == {"text": text, text: [text]}, n
        assert (job["key"], job["scope"], job["scope_id"], job["tags"]) == (text, text, text, [text])
        found = (await world.get("superuser", f"/api/jobs?key={quote(text, safe='')}")).json()
        assert [item["id"] for item in found["items"]] == [job["id"]], text
    assert await schema(world.place) == tables


async def test_a_topic_takes_harmless_characters_only(world: World) -> None:
    before = await others(world)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-")
    for text in corpus(world):
        if text and set(text) <= allowed and len(text) <= 128:
            continue
        is_problem(await world.post("superuser", "/api/jobs/enqueue", {"topic": text}), 400)
        path = f"/api/topics/{quote(text, safe='')}/pause"
        assert (await world.post("superuser", path)).status_code in (400, 404), text
        assert (await world.get("superuser", f"/api/jobs/stats?topic={quote(text, safe='')}")).status_code == 400, text
    assert await others(world) == before


async def test_reasons_names_and_settings_are_texts(world: World) -> None:
    tables = await schema(world.place)
    for text in corpus(world)[::2]:
        job_id = await world.enqueue(A)
        for method, path, body in (
            ("POST", f"/api/jobs/{job_id}/cancel", {"reason": text}),
            ("POST", f"/api/jobs/{job_id}/requeue", {"reason": text}),
            ("POST", "/api/topics/mail/pause", {"reason": text}),
            ("POST", "/api/topics/mail/resume", {"reason": text}),
            ("POST", "/api/tokens", {"name": text, "scopes": ["read"]}),
            ("POST", "/api/tokens", {"name": "x", "scopes": [text]}),
            ("POST", "/api/tokens", {"name": "x", "scopes": ["read"], "topics": [text]}),
            ("PATCH", "/api/settings", {"allowed_topics": [text], "reason": text}),
            ("PATCH", "/api/settings", {"allowed_topics": None}),
            ("POST", "/api/auth/login", {"email": text, "password": text}),
            ("DELETE", f"/api/tokens/{quote(text, safe='') or 'x'}", None),
            ("DELETE", f"/api/sessions/{quote(text, safe='') or 'x'}", None),
            ("GET", f"/api/jobs/{quote(text, safe='') or 'x'}", None),
        ):
            answer = await world.call("superuser", method, path, body)
            assert answer.status_code < 500, (path, text, answer.text)
            if answer.status_code == 429:
                world.api.attempts = Attempts()
    assert await schema(world.place) == tables
    assert (await world.get("superuser", "/api/audit?limit=200")).status_code == 200
    assert (await world.get("superuser", "/api/tokens")).status_code == 200
    assert (await world.get("superuser", "/metrics")).status_code == 200


# ── Into rules ──


@pytest.mark.timeout(600)  # a thousand writes
async def test_no_text_makes_a_rule_let_more_through(world: World) -> None:
    """Each text is tried as a whole rule, and in quotes in a rule."""
    await world.enqueue("somebody", payload={"a": CANARY})
    tables = await schema(world.place)
    for text in corpus(world):
        inside = text.replace("\\", "\\\\").replace("'", "\\'")
        for rule in (
            text,
            f"topic = '{text}'",
            f"topic = '{inside}'",
            f"topic ~ '{inside}x'",
            f"topic = @request.auth.{text}",
        ):
            answer = await world.call("admin token", "PATCH", "/api/settings", {"manage_rule": rule})
            assert answer.status_code in (200, 400), (rule, answer.text)
            if rule != "true":
                listed = await world.get("user A", "/api/jobs")
                assert listed.status_code in (200, 403), rule
                assert CANARY not in listed.text, rule
            await world.change_settings(manage_rule=None)
    assert await schema(world.place) == tables


async def test_no_claim_makes_a_rule_let_more_through(world: World) -> None:
    await world.enqueue("somebody", payload={"a": CANARY}, scope="somebody")
    await world.change_settings(manage_rule="scope_id = @request.auth.id || scope ~ @request.auth.team")
    for text in corpus(world):
        if text in ("%", "%%"):  # the rule uses the claim as a pattern, as its author wants
            continue
        who = Who(
            "x", bearer(raw({"alg": "HS256"}, {**plain_claims(), "sub": text or "x", "team": text}, SECRET.encode()))
        )
        listed, stats = [await world.get(who, path) for path in ("/api/jobs", "/api/jobs/stats")]
        for answer in (listed, stats):
            assert answer.status_code in (200, 401, 403), (text, answer.text)
        assert CANARY not in listed.text, text
        assert stats.json().get("pending", 0) == 0, text


async def test_explain_takes_any_text(sqlite_world: World) -> None:
    for text in CORPUS:
        for body in (
            {"action": text}, {"action": "manage", "rule": text}, {"action": "manage", "claims": {text: text}},
            {"action": "manage", "job": text}, {"action": "manage", "job": {text: text}},
            {"action": "manage", "job": {"topic": text}, "rule": "topic = 'a'"},
        ):  # fmt: skip
            answer = await sqlite_world.post("superuser", "/api/access/explain", body)
            assert answer.status_code in (200, 400, 404), (body, answer.text)


# ── Into headers ──


HEADERS = [
    "x-request-id",
    "origin",
    "host",
    "user-agent",
    "authorization",
    "cookie",
    "accept",
    "x-rowlock-csrf",
    "referer",
]


async def test_no_header_comes_back_as_two(sqlite_world: World) -> None:
    for name in HEADERS:
        for text in CORPUS:
            headers = [(name.encode(), text.encode())]
            if name == "host":
                headers = [(b"x", b"y")]
            sent = await by_hand(sqlite_world.api, "GET", "/api/auth/me", headers=headers)
            assert sent.status in (400, 401, 403, 421), (text, sent.body)
            for key, value in sent.headers:
                assert b"\r" not in key + value
                assert b"\n" not in key + value
            assert [key for key, _ in sent.headers].count(b"set-cookie") == 0


@pytest.mark.parametrize("path", ["/api/jobs/%0d%0aSet-Cookie:%20a=b", "/api/topics/a%0d%0aX:%20y/pause", "/%0d%0a/x"])
async def test_a_line_break_in_a_path_splits_no_answer(sqlite_world: World, path: str) -> None:
    import httpx

    with Server.running(sqlite_world.place.url) as server:
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{server.url}{path}", headers=dict(sqlite_world.who["admin token"].headers))
        assert answer.status_code in (400, 404, 405)
        assert "set-cookie" not in answer.headers
        assert "x" not in answer.headers


async def test_a_line_break_makes_no_second_line_in_the_log(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, log.name):
        for text in ("\n", "\r\n", "\u2028", "\x1b[2J", "\0"):
            await by_hand(sqlite_world.api, "GET", f"/api/jobs/{text}forged 200 entry")
            await by_hand(sqlite_world.api, f"GET{text}", "/api/jobs")
    lines = [record.getMessage() for record in caplog.records if record.name == log.name]
    assert len(lines) == 10
    assert all(line.isprintable() for line in lines)


# ── Out of the log ──


def credentials(who: Who) -> list[str]:
    return [who.headers[name] for name in ("authorization", "cookie") if name in who.headers]


def secret_part(text: str) -> str:
    """Return the secret part: a JWT's signature, which may contain a _; of our own texts what follows the last _."""
    return text.rpartition("." if "." in text else "_")[2]


async def test_no_secret_gets_into_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for who in ("admin token", "user A", "superuser", "revoked token"):
            await world.get(who, "/api/jobs")
            await world.post(who, "/api/jobs/enqueue", {"topic": "mail", "payload": {"password": "canary-payload"}})
        await world.post(ANYONE, "/api/auth/login", {"email": "x@example.com", "password": "canary-password"})
        made = (await world.post("superuser", "/api/tokens", {"name": "x", "scopes": ["read"]})).json()
        await world.post(
            ANYONE, "/api/auth/setup", {"token": "canary-link", "email": "x", "password": "canary-password"}
        )
    for secret in (
        "canary-password", "canary-payload", "canary-link", SECRET,
        *map(secret_part, (made["token"], *(text for who in world.who.values() for text in credentials(who)))),
    ):  # fmt: skip
        assert len(secret) > 9
        assert secret not in caplog.text
    assert SECRET not in repr(world.api.settings)
