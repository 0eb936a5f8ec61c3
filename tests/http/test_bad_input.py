"""Requests that no client should send: the server refuses each with a code and the field, and changes nothing."""

import asyncio
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock.http import request
from rowlock.http.request import LARGEST_BODY
from tests.http.harness import A, Sent, World, by_hand, is_problem

each_database = pytest.mark.sampled(1)  # each run tests every database, not one of them by turns
MIB = 1 << 20
ENQUEUE = "/api/jobs/enqueue"
JSON_TYPE = ("content-type", "application/json")


async def refused(world: World, content: bytes | str, *, field: str | None = None, path: str = ENQUEUE) -> str:
    """Send the content, check that it is refused and changes nothing, and return the code."""
    before = await world.place.counts()
    answer = await world.call("superuser", "POST", path, headers=[JSON_TYPE], content=content)
    problem = is_problem(answer)
    assert problem.get("field"), (content, problem)
    assert field is None or problem["field"] == field, problem
    assert await world.place.counts() == before
    return str(problem["code"])


# ── The body's form ──


NOT_JSON: list[str | None] = [
    None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json",
    "application/json; charset=latin-1", "application/jsonp", "application/json, text/plain", "application/*",
    "application/json; charset=utf-8; x=y",
]  # fmt: skip


async def test_only_json_is_read(sqlite_world: World) -> None:
    for kind in NOT_JSON:
        headers = {} if kind is None else {"content-type": kind}
        before = await sqlite_world.place.counts()
        answer = await sqlite_world.post("superuser", ENQUEUE, headers=headers, content=b'{"topic": "mail"}')
        assert is_problem(answer, 415)["field"] == "content-type", kind
        assert await sqlite_world.place.counts() == before


async def test_json_is_read_however_it_is_spelled(sqlite_world: World) -> None:
    for kind in ("application/json", "Application/JSON", "application/json; charset=UTF-8"):
        headers = {"content-type": kind}
        answer = await sqlite_world.post("superuser", ENQUEUE, headers=headers, content=b'{"topic": "mail"}')
        assert answer.status_code == 200, kind


async def test_a_compressed_body_is_not_unpacked(sqlite_world: World) -> None:
    headers = [JSON_TYPE, ("content-encoding", "gzip")]
    answer = await sqlite_world.post("superuser", ENQUEUE, headers=headers, content=b"\x1f\x8b")
    assert is_problem(answer, 415)["field"] == "content-encoding"


NOT_WANTED = [
    b"", b"{", b'{"topic": "mail"} x', b"null", b"[]", b'"mail"', b"7", b'{"topic"', b"{'topic': 'mail'}",
    b'{"topic": "mail",}', b'{"topic": "mail", "payload": NaN}', b'{"topic": "mail", "payload": {"a": Infinity}}',
    b"\xef\xbb\xbf" + b'{"topic": "mail"}', b'{"topic": "mail", "payload": {"a": 01}}', b"\0", b"\xff\xfe{\0}\0",
]  # fmt: skip


@each_database
async def test_what_is_not_the_json_that_is_wanted_is_refused(world: World) -> None:
    for content in NOT_WANTED:
        assert await refused(world, content) in ("bad_json", "bad_value", "missing", "not_utf8"), content


NOT_UTF_8 = [
    b'{"topic": "\xff"}', b'{"topic": "mail", "payload": {"a": "\xc3("}}',
    b'{"topic": "mail", "key": "\xed\xa0\x80"}', b'{"topic": "mail", "payload": {"\xc0\xaf": 1}}',
]  # fmt: skip


@each_database
async def test_invalid_utf_8_is_refused(world: World) -> None:
    for content in NOT_UTF_8:
        assert await refused(world, content) == "not_utf8", content


FORMS = [
    '{"topic": "%s"}', '{"topic": "mail", "payload": {"a": "%s"}}', '{"topic": "mail", "payload": {"%s": 1}}',
    '{"topic": "mail", "key": "%s"}', '{"topic": "mail", "scopeId": "%s"}', '{"topic": "mail", "tags": ["%s"]}',
    '{"topic": "mail", "id": "%s"}', '{"topic": "mail", "%s": 1}', '{"topic": "mail", "runAt": "%s"}',
    '{"topic": "mail", "priority": "%s"}',
]  # fmt: skip


@each_database
async def test_characters_that_no_database_keeps_are_refused(world: World) -> None:
    for form in FORMS:
        for bad in (r"\ud800", r"\udfff", r"\u0000", r"a\u0000b"):
            await refused(world, form % bad)


HALF_PAIRS = [r"\ud800", r"\uDFFF and more to read", r"\\\ud800\n", r"\ud83d\ude00\ud83d", r"\ud83d\u0041"]


async def test_half_a_pair_is_told_as_what_it_is(sqlite_world: World) -> None:
    for text in HALF_PAIRS:
        assert await refused(sqlite_world, f'{{"topic": "mail", "key": "{text}"}}') == "lone_surrogate", text


async def test_a_whole_pair_is_no_excuse_for_what_else_is_wrong(sqlite_world: World) -> None:
    for text in (r"\ud83d\ude00", r"\\ud800", r"\ud83d\ude00\ud83d\ude00"):
        assert await refused(sqlite_world, f'{{"topic": "mail", "key": "{text}"') == "bad_json", text


# ── The body's size ──


async def test_a_payload_of_exactly_one_mebibyte_passes(world: World) -> None:
    payload = {"a": "x" * (MIB - len('{"a":""}'))}
    assert len(json.dumps(payload, separators=(",", ":"))) == MIB
    answer = await world.post("superuser", ENQUEUE, {"topic": "mail", "payload": payload})
    assert answer.status_code == 200, answer.text
    job = (await world.get("superuser", f"/api/jobs/{answer.json()['id']}")).json()
    assert job["payload"] == payload


async def test_a_payload_of_one_byte_more_does_not(world: World) -> None:
    payload = {"a": "x" * (MIB - len('{"a":""}') + 1)}
    assert await refused(world, json.dumps({"topic": "mail", "payload": payload}), field="payload") == "too_large"


async def stream(world: World, sizes: Iterator[int], *headers: tuple[bytes, bytes]) -> Sent:
    parts = (b" " * size for size in sizes)
    headers = (*world.who["admin token"].raw_headers, *headers)
    return await by_hand(world.api, "POST", ENQUEUE, headers=headers, parts=parts)


async def test_a_body_that_never_ends_is_refused_while_it_comes_in(sqlite_world: World) -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 10_000

    sent = await stream(sqlite_world, endless(), (b"transfer-encoding", b"chunked"))
    assert sent.status == 413
    assert sent.json()["code"] == "too_large"
    assert LARGEST_BODY < sent.read <= LARGEST_BODY + 10_000
    assert (b"connection", b"close") in sent.headers


async def test_a_body_that_does_not_come_is_given_up(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "PATIENCE", 0.05)
    headers = sqlite_world.who["enqueue token"].raw_headers
    sent = await by_hand(sqlite_world.api, "POST", ENQUEUE, headers=headers, receive=asyncio.Event().wait)
    assert sent.status == 408


async def test_a_body_that_says_it_is_too_large_is_not_read_at_all(sqlite_world: World) -> None:
    for told in (b"1114113", b"99999999999", b"9" * 5000):
        sent = await stream(sqlite_world, iter([10]), (b"content-length", told))
        assert (sent.status, sent.read) == (413, 0), told


async def test_a_body_that_says_less_than_it_is_gets_no_further(sqlite_world: World) -> None:
    for told in (b"5", b"-1", b"abc", b"", b"+7", "٣".encode("latin-1", "replace")):
        sent = await stream(sqlite_world, iter([10_000] * 200), (b"content-length", told))
        assert sent.status == 413, told
        assert sent.read <= LARGEST_BODY + 10_000, told


async def test_who_may_not_enqueue_is_refused_before_the_body_is_read(sqlite_world: World) -> None:
    kind = (b"content-type", b"application/json")
    sent = await by_hand(sqlite_world.api, "POST", ENQUEUE, headers=[kind], parts=iter([b" " * 10_000] * 100))
    assert (sent.status, sent.read) == (401, 0)


BOMBS: dict[str, str] = {
    "depth of 100,000, arrays": '{"topic": "mail", "payload": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    "depth of 100,000, objects": '{"topic": "mail", "payload": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    "depth of 500,000, never closed": '{"topic": "mail", "payload": {"a": ' + "[" * 500_000,
    "depth of 65": '{"topic": "mail", "payload": ' + '{"a":' * 65 + "1" + "}" * 66,
    "depth outside of the payload": '{"topic": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a million keys": '{"topic": "mail", "payload": {' + ",".join(f'"{n}":0' for n in range(1_000_000)) + "}}",
    "a huge exponent": '{"topic": "mail", "payload": {"a": 1e999999999}}',
    "a huge exponent, negative": '{"topic": "mail", "payload": {"a": -1e400}}',
    "a huge integer": '{"topic": "mail", "payload": {"a": ' + "9" * 500_000 + "}}",
    "an integer of 65 bits": '{"topic": "mail", "payload": {"a": 18446744073709551616}}',
    "an integer of 64 bits, without a sign": '{"topic": "mail", "payload": {"a": 9223372036854775808}}',
    "a delay beyond time": '{"topic": "mail", "delay": 1e300}',
    "a delay of a huge exponent": '{"topic": "mail", "delay": 1e999}',
    "many retries": '{"topic": "mail", "maxRetries": 1e18}',
    "more retries": '{"topic": "mail", "maxRetries": 99999999999999999999999}',
    "a priority that is no number": '{"topic": "mail", "priority": [[]]}',
    "a time before time": '{"topic": "mail", "runAt": "0001-01-01T00:00:00+23:59"}',
    "a time after time": '{"topic": "mail", "runAt": "9999-12-31T23:59:59-23:59"}',
    "a time without a zone": '{"topic": "mail", "runAt": "2026-01-01T00:00:00"}',
    "a time as a number": '{"topic": "mail", "runAt": 1e18}',
    "a long topic": '{"topic": "' + "a" * 1_000_000 + '"}',
    "a long key": '{"topic": "mail", "key": "' + "a" * 1_000_000 + '"}',
    "a long name": '{"topic": "mail", "' + "a" * 1_000_000 + '": 1}',
    "many tags": '{"topic": "mail", "tags": [' + ",".join(['"t"'] * 200_000) + "]}",
    "a payload that is no object": '{"topic": "mail", "payload": [1]}',
}


@each_database
async def test_a_bomb_does_not_go_off(world: World) -> None:
    for bomb, content in BOMBS.items():
        before = await world.place.counts()
        answer = await world.call("superuser", "POST", ENQUEUE, headers=[JSON_TYPE], content=content)
        assert is_problem(answer)["status"] in (400, 413), bomb
        assert len(answer.content) < 2_000, f"{bomb}: what was sent comes back"
        assert await world.place.counts() == before, bomb


async def test_bombs_take_little_memory(sqlite_world: World) -> None:
    """One of the bodies has as many keys as fit, which is legal."""
    many = '{"topic": "mail", "payload": {' + ",".join(f'"{n}":0' for n in range(110_000)) + "}}"
    assert len(many) < LARGEST_BODY
    tracemalloc.start()
    try:
        for content in (*BOMBS.values(), many):
            data = content.encode()
            tracemalloc.reset_peak()
            began = tracemalloc.get_traced_memory()[0]
            await sqlite_world.call("superuser", "POST", ENQUEUE, headers=[JSON_TYPE], content=data)
            assert tracemalloc.get_traced_memory()[1] - began < 50 * MIB
    finally:
        tracemalloc.stop()


async def test_many_keys_make_a_job_if_they_fit(world: World) -> None:
    payload = {str(n): 0 for n in range(60_000)}
    answer = await world.post("superuser", ENQUEUE, {"topic": "mail", "payload": payload})
    assert answer.status_code == 200, answer.text


async def test_a_key_that_is_there_twice_is_refused(world: World) -> None:
    """Otherwise a rule might judge one value, and the job have the other."""
    await world.change_settings(enqueue_rule="scope_id = @request.auth.id")
    content = '{"topic": "mail", "scope_id": "user-b", "scope_id": "user-a"}'
    answer = await world.post("user A", ENQUEUE, headers=[JSON_TYPE], content=content)
    assert is_problem(answer, 400, "duplicate_key")["field"] == "scope_id"


# ── Fields ──


WRONG_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    (ENQUEUE, {}, "topic"),
    (ENQUEUE, {"topic": ""}, "topic"),
    (ENQUEUE, {"topic": None}, "topic"),
    (ENQUEUE, {"topic": 7}, "topic"),
    (ENQUEUE, {"topic": "mail", "run_at": "2026-01-01T00:00:00Z", "runAt": "2026-01-01T00:00:00Z"}, "run_at"),
    (ENQUEUE, {"topic": "mail", "max_retries": None, "maxRetries": None}, "max_retries"),
    (ENQUEUE, {"topic": "mail", "RunAt": "2026-01-01T00:00:00Z"}, "RunAt"),
    (ENQUEUE, {"topic": "mail", "maxRetries": -1}, "max_retries"),
    (ENQUEUE, {"topic": "mail", "maxRetries": "3"}, "max_retries"),
    (ENQUEUE, {"topic": "mail", "timeout": -1}, "timeout"),
    (ENQUEUE, {"topic": "mail", "timeout": 0}, "timeout"),
    (ENQUEUE, {"topic": "mail", "delay": -1}, "delay"),
    (ENQUEUE, {"topic": "mail", "delay": 1, "runAt": "2026-01-01T00:00:00Z"}, "delay"),
    (ENQUEUE, {"topic": "mail", "priority": "high-ish"}, "priority"),
    (ENQUEUE, {"topic": "mail", "priority": 10**12}, "priority"),
    (ENQUEUE, {"topic": "mail", "id": "7"}, "id"),
    (ENQUEUE, {"topic": "mail", "id": "0193fb1e-0000-7000-8000-00000000000g"}, "id"),
    (ENQUEUE, {"topic": "mail", "key": ""}, "key"),
    (ENQUEUE, {"topic": "mail", "scopeId": ""}, "scope_id"),
    (ENQUEUE, {"topic": "mail", "tags": "a"}, "tags"),
    (ENQUEUE, {"topic": "mail", "tags": [1]}, "tags[0]"),
    (ENQUEUE, {"topic": "mail", "__proto__": {}}, "__proto__"),
    ("/api/jobs/enqueue/batch", {"jobs": []}, "jobs"),
    ("/api/jobs/enqueue/batch", {"jobs": [{"topic": "mail"}] * 1001}, "jobs"),
    ("/api/jobs/enqueue/batch", {"jobs": [{"topic": "mail"}, {"topic": ""}]}, "jobs[1].topic"),
    ("/api/jobs/enqueue/batch", {"jobs": [{"topic": "m"}, {"topic": "m", "maxRetries": -1}]},
     "jobs[1].max_retries"),
    ("/api/tokens", {"name": "x", "scopes": []}, "scopes"),
    ("/api/tokens", {"name": "x", "scopes": ["root"]}, "scopes"),
    ("/api/tokens", {"name": "", "scopes": ["read"]}, "name"),
    ("/api/tokens", {"name": "x\0", "scopes": ["read"]}, "name"),
    ("/api/tokens", {"name": "x", "scopes": ["read"], "expiresAt": "2020-01-01T00:00:00Z"}, "expires_at"),
    ("/api/tokens", {"name": "x", "scopes": ["read"], "expiresAt": "2020-01-01T00:00:00"}, "expires_at"),
    ("/api/tokens", {"name": "x", "scopes": ["read"], "topics": []}, "topics"),
    ("/api/tokens", {"name": "x", "scopes": ["read"], "topics": ["a b"]}, "topics"),
    ("/api/tokens", {"name": "x", "scopes": ["admin"], "topics": ["mail"]}, "topics"),
    ("/api/access/explain", {"action": "rule"}, "action"),
    ("/api/access/explain", {"action": "manage", "rule": "topic ="}, "rule"),
    ("/api/access/explain", {"action": "manage", "job": {"nothing": 1}}, "job.nothing"),
    ("/api/access/explain", {"action": "manage", "job": {"created": "soon"}}, "job.created"),
    ("/api/access/explain", {"action": "manage", "job": {"created": "0001-01-01T00:00:00+23:59"}}, "job.created"),
    ("/api/access/explain", {"action": "manage", "job": "7"}, "job"),
    ("/api/topics/mail/pause", {"until": "2020"}, "until"),
    ("/api/topics/mail/pause", {"reason": "\0"}, "reason"),
]  # fmt: skip


@each_database
async def test_a_wrong_field_is_named(world: World) -> None:
    for path, body, field in WRONG_FIELDS:
        await refused(world, json.dumps(body), field=field, path=path)


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({}, "settings"), ({"nothing": 1}, "nothing"), ({"http_enabled": "yes"}, "http_enabled"),
    ({"enqueue_rule": "tru"}, "enqueue_rule"), ({"manage_rule": "topic = 'a"}, "manage_rule"),
    ({"manage_rule": "x" * 3000}, "manage_rule"), ({"allowed_topics": [""]}, "allowed_topics"),
    ({"allowed_topics": ["a"] * 1001}, "allowed_topics"), ({"worker_pool_size": 0}, "worker_pool_size"),
    ({"worker_pool_size": 1.5}, "worker_pool_size"), ({"poll_interval": 1e300}, "poll_interval"),
    ({"lock_duration": -1}, "lock_duration"),
    ({"manage_rule": "created > '0001-01-01T00:00:00+23:59'"}, "manage_rule"),
    ({"manage_rule": "topic = '\ud800'"}, "body"), ({"manage_rule": "topic = '\0'"}, "manage_rule"),
    ({"http_enabled": True, "reason": "\0"}, "reason"),
]  # fmt: skip


@each_database
async def test_wrong_settings_are_named_and_not_kept(world: World) -> None:
    for body, field in WRONG_SETTINGS:
        before = (await world.get("superuser", "/api/settings")).json()
        answer = await world.call("superuser", "PATCH", "/api/settings", body)
        assert is_problem(answer, 400)["field"] == field, body
        assert (await world.get("superuser", "/api/settings")).json() == before, body


WRONG_PARAMETERS: list[tuple[str, str]] = [
    ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=201", "limit"), ("limit=9" + "9" * 400, "limit"),
    ("limit=ten", "limit"), ("limit=", "limit"), ("limit=1.5", "limit"), ("limit=1&limit=2", "limit"),
    ("limit=٣", "limit"), ("limit=%2B5%00", "limit"), ("limit=true", "limit"),
    ("offset=-1", "offset"), ("offset=10001", "offset"), ("offset=" + "9" * 100, "offset"),
    ("cursor=", "cursor"), ("cursor=x", "cursor"), ("cursor=AAAA", "cursor"), ("cursor=" + "A" * 5000, "cursor"),
    ("cursor=%00", "cursor"), ("cursor=AZP7HgAAcACAAAAAAAAAAA", "cursor"), ("status=done", "status"),
    ("status=", "status"), ("status=pending&status=x", "status"), ("status=PENDING", "status"),
    ("id=7", "id"), ("id=", "id"), ("topic=", "topic"), ("topic=%00", "topic"), ("key=", "key"), ("tag=", "tag"),
    ("scopeId=", "scope_id"), ("scope_id=x&scopeId=x", "scope_id"), ("scope_id=", "scope_id"),
    ("scopeid=x", "scopeid"), ("flowId=x", "flow_id"), ("nothing=1", "nothing"),
    ("createdFrom=yesterday", "created_from"), ("createdFrom=2026-01-01T00:00:00", "created_from"),
    ("createdFrom=0001-01-01T00:00:00%2B23:59", "created_from"),
    ("createdUntil=9999-12-31T23:59:59-23:59", "created_until"),
    ("createdFrom=null", "created_from"), ("createdFrom=7", "created_from"), ("createdFrom=-0", "created_from"),
    ("finishedUntil=NULL", "finished_until"), ("payload=a", "payload"), ("payload==1", "payload"),
    ("payload=a..b=1", "payload"), ("payload=a%22=1", "payload"),
    ("payload=a=" + "[" * 5000, "payload"),
    ("error=", "error"), ("error=%00", "error"), ("&".join(f"tag=t{n}" for n in range(99)), "tag"),
]  # fmt: skip


@each_database
async def test_a_wrong_parameter_is_named(world: World) -> None:
    for query, field in WRONG_PARAMETERS:
        answer = await world.get("superuser", f"/api/jobs?{query}")
        assert is_problem(answer, 400)["field"] == field, query


UNREADABLE = ["%ff", "topic=%ff", "topic=%ED%A0%80", "&".join(f"id={n}" for n in range(101)), "topic=" + "a" * 20_000]


@each_database
async def test_a_query_that_can_not_be_read_is_refused(world: World) -> None:
    for query in UNREADABLE:
        is_problem(await world.get("superuser", f"/api/jobs?{query}"), 400)


WRONG_ELSEWHERE = [
    "/api/audit?limit=0", "/api/audit?limit=201", "/api/audit?before=1", "/api/audit?cursor=" + "9" * 30,
    "/api/audit?cursor=1", "/api/topics?cursor=mail", "/api/workers?cursor=w1", "/api/tokens?limit=201",
    "/api/jobs/stats?topic=", "/api/jobs/stats?topic=%00", "/api/jobs/stats?nothing=1",
    "/api/workers?x=1", "/api/tokens?x=1",
]  # fmt: skip


@each_database
async def test_a_wrong_parameter_is_refused_everywhere(world: World) -> None:
    for path in WRONG_ELSEWHERE:
        assert is_problem(await world.get("superuser", path), 400)["field"], path


IDS = [
    "7", "x" * 5000, "0193fb1e-0000-7000-8000-00000000000", "0193fb1e-0000-7000-8000-0000000000000", "%00",
    "0193fb1e%00-0000-7000-8000-000000000000", "..", "%2e%2e", "%ff", "{id}", "null",
    "0193fb1e-0000-7000-8000-00000000000%0a", "%F0%9F%92%A9",
]  # fmt: skip


@each_database
async def test_a_malformed_id_is_refused(world: World) -> None:
    for given in IDS:
        before = await world.place.counts()
        for method, path in (
            ("GET", "/api/jobs/{}"), ("DELETE", "/api/jobs/{}"), ("POST", "/api/jobs/{}/cancel"),
            ("GET", "/api/jobs/{}/events"), ("GET", "/api/jobs/{}/wait"), ("DELETE", "/api/tokens/{}"),
            ("DELETE", "/api/sessions/{}"), ("POST", "/api/topics/{}%00/pause"),
        ):  # fmt: skip
            if path.endswith("/events") and given in ("..", "%2e%2e"):
                continue  # the HTTP client itself shortens this path to /api/events, which exists
            answer = await world.call("superuser", method, path.format(given))
            allowed = (400, 404, 405) if "topics" in path else (404, 405)
            assert answer.status_code in allowed, (method, path, answer.text)
            is_problem(answer)
        assert await world.place.counts() == before, "not even an entry in the audit"


@each_database
async def test_nobody_waits_for_ever(world: World) -> None:
    for timeout in ("-1", "61", "nan", "inf", "1e400", "x", ""):
        job_id = await world.enqueue(A)
        answer = await world.get("superuser", f"/api/jobs/{job_id}/wait?timeout={timeout}")
        assert is_problem(answer, 400)["field"] == "timeout", timeout


@each_database
async def test_a_job_token_does_not_live_for_ever(world: World) -> None:
    for seconds in (0, -1, 86_401, 1e300, "60", None):
        job_id = await world.enqueue(A)
        answer = await world.post("superuser", f"/api/jobs/{job_id}/token", {"seconds": seconds})
        assert is_problem(answer, 400)["field"] == "seconds", seconds


# ── Headers, methods, paths ──


ONCE = ["authorization", "content-type", "content-length", "host", "origin", "transfer-encoding"]


async def test_a_header_that_decides_something_may_stand_there_once(sqlite_world: World) -> None:
    for name in ONCE:
        twice = [(name.encode(), b"a"), (name.encode(), b"b")]
        sent = await by_hand(sqlite_world.api, "GET", "/api/jobs", headers=twice)
        assert sent.status == 400, name
        assert sent.json()["field"] == name


WRONG_METHODS = ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "get", "GET\r\nX: y"]


async def test_a_wrong_method_is_told_the_right_ones(sqlite_world: World) -> None:
    for method in WRONG_METHODS:
        sent = await by_hand(sqlite_world.api, method, "/api/jobs")
        assert sent.status == 405, method
        assert (b"allow", b"GET") in sent.headers


async def test_head_answers_like_get_without_a_body(world: World) -> None:
    got, head = [await world.call("superuser", method, "/api/jobs") for method in ("GET", "HEAD")]
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(got.content))


NO_PATHS = ["/api", "/api/jobs//", "/api//jobs", "/API/JOBS", "/api/jobs/a/b/c", "/__", "/api/../healthz", "/%00"]


async def test_there_is_nothing_at_other_paths(sqlite_world: World) -> None:
    for path in NO_PATHS:
        sent = await by_hand(sqlite_world.api, "GET", path)
        assert (sent.status, sent.json()["code"]) == (404, "no_such_path"), path


async def test_noise_is_never_an_error_of_ours(sqlite_world: World) -> None:
    """The requests are legal ones with bytes changed at random."""
    chance = random.Random(7)
    seeds = [
        b'{"topic": "mail", "payload": {"a": [1, 2.5, null, "\xc3\xa9"]}, "runAt": "2030-01-01T00:00:00Z", "tags": []}',
        b'{"topic": "mail", "delay": 3, "maxRetries": 2, "priority": "high", "key": "k", "scopeId": "s", "timeout": 9}',
    ]
    for _ in range(400):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.choice([chance.randrange(256), *b'{}[]",:\\0-9eE.'])
        answer = await sqlite_world.post("admin token", ENQUEUE, headers=[JSON_TYPE], content=bytes(data))
        assert answer.status_code < 500, bytes(data)
