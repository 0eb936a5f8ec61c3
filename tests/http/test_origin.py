"""Where a request comes from: no foreign page makes a browser act here, and no foreign host name leads here."""

from typing import Any

import pytest

from rowlock.errors import InvalidInput
from rowlock.http.routes import Route
from rowlock.http.settings import ApiSettings
from tests.http.harness import ANYONE, BOSS, PASSWORD, A, Server, Who, World, by_hand, is_problem
from tests.http.oracle import REQUESTS, TARGETS, by_name

OWN = "http://localhost"
FRIEND = "https://app.example.com"
FOREIGN = [
    "https://evil.example.com", "null", "http://localhost:8080", "https://localhost", "http://localhost.evil.example.com",
    "http://evil.example.com/http://localhost", "http://127.0.0.1", "http://LOCALHOST.", "file://", "", "localhost",
    "http://localhost/", "http://localhost http://evil.example.com", "chrome-extension://abcdef", "*",
]  # fmt: skip


def session_without_signs(world: World) -> Who:
    """Return a browser with a session, whose request says nothing about the page that it comes from."""
    return Who("session", {"cookie": world.who["superuser"].headers["cookie"]})


async def cancel(world: World, who: Who | str, **more: Any) -> Any:
    """Cancel a new job. This change needs no body, so a form on a foreign page could send it."""
    job_id = await world.enqueue(A)
    answer = await world.post(who, f"/api/jobs/{job_id}/cancel", **more)
    job = await world.job(job_id)
    assert (answer.status_code == 200) == (job.status == "cancelled"), answer.text
    return answer


# ── Origins ──


async def test_a_page_of_another_origin_is_refused_whoever_it_comes_from(sqlite_world: World) -> None:
    for origin in FOREIGN:
        for who in ("anonymous", "superuser", "admin token", "user A"):
            for method, path in (("GET", "/api/jobs"), ("GET", "/api/auth/me"), ("POST", "/api/auth/logout")):
                answer = await sqlite_world.call(who, method, path, headers={"origin": origin})
                is_problem(answer, 403, "cross_origin")
                assert not any(name.startswith("access-control") for name in answer.headers)
            is_problem(await cancel(sqlite_world, who, headers={"origin": origin}), 403, "cross_origin")


async def test_a_browser_that_says_it_comes_from_elsewhere_is_believed(sqlite_world: World) -> None:
    for site in ("cross-site", "same-site", "nonsense", "", "same-origin, cross-site"):
        is_problem(await cancel(sqlite_world, "superuser", headers={"sec-fetch-site": site}), 403, "cross_origin")
        is_problem(await sqlite_world.get("superuser", "/api/jobs", headers={"sec-fetch-site": site}), 403)


async def test_every_route_but_the_probes_refuses_a_foreign_page(sqlite_world: World) -> None:
    def is_open(route: Route) -> bool:
        return route.access.kind == "probe"

    for name, route in by_name().items():
        ready = await REQUESTS[name](sqlite_world, TARGETS[0])
        for headers in ({"origin": "https://evil.example.com"}, {"sec-fetch-site": "cross-site"}):
            answer = await sqlite_world.call("superuser", route.method, ready.path, ready.json, headers=headers)
            assert answer.status_code == (200 if is_open(route) else 403), name


async def test_our_own_page_gets_through(world: World) -> None:
    for headers in ({"origin": OWN}, {"sec-fetch-site": "same-origin"}, {"x-rowlock-csrf": "1"}):
        assert (await cancel(world, session_without_signs(world), headers=headers)).status_code == 200


NO_SIGNS: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "none"},
    {"referer": OWN},
    {"x-requested-with": "XMLHttpRequest"},
]


async def test_a_session_without_a_sign_of_our_page_changes_nothing(world: World) -> None:
    for headers in NO_SIGNS:
        is_problem(await cancel(world, session_without_signs(world), headers=headers), 403, "csrf")


async def test_every_route_that_changes_something_wants_a_sign(sqlite_world: World) -> None:
    who = session_without_signs(sqlite_world)
    for name, route in by_name().items():
        if route.method == "GET" or route.access.kind == "callback":  # these routes use no session
            continue
        ready = await REQUESTS[name](sqlite_world, TARGETS[0])
        answer = await sqlite_world.call(who, route.method, ready.path, ready.json)
        assert is_problem(answer, 403, "csrf"), name


async def test_a_session_may_look_without_a_sign(sqlite_world: World) -> None:
    """A link on another site may lead here, because the request only shows something and changes nothing."""
    assert (await sqlite_world.get(session_without_signs(sqlite_world), "/api/jobs")).status_code == 200


async def test_a_token_needs_no_sign(sqlite_world: World) -> None:
    assert (await cancel(sqlite_world, "admin token")).status_code == 200


FORMS: list[str | None] = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]


async def test_what_a_form_can_send_is_never_read(sqlite_world: World) -> None:
    for kind in FORMS:
        before = await sqlite_world.place.counts()
        headers = {"origin": OWN} | ({} if kind is None else {"content-type": kind})
        for path, text in (
            ("/api/jobs/enqueue", '{"topic": "mail"}'),
            ("/api/tokens", '{"name": "x", "scopes": ["admin"]}'),
            ("/api/auth/login", f'{{"email": "{BOSS}", "password": "{PASSWORD}"}}'),
        ):
            is_problem(await sqlite_world.post("superuser", path, headers=headers, content=text), 415)
        assert await sqlite_world.place.counts() == before


ELSEWHERE: list[dict[str, str]] = [
    {"origin": "https://evil.example.com"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
]


async def test_nobody_is_logged_in_by_a_foreign_page(sqlite_world: World) -> None:
    for headers in ELSEWHERE:
        body = {"email": BOSS, "password": PASSWORD}
        answer = await sqlite_world.post(ANYONE, "/api/auth/login", body, headers=headers)
        is_problem(answer, 403, "cross_origin")
        assert "set-cookie" not in answer.headers


async def test_behind_a_proxy_the_origin_is_the_one_that_browsers_know(sqlite_world: World) -> None:
    api = sqlite_world.another_api(public_url="https://jobs.example.com")
    who = session_without_signs(sqlite_world)
    right = {"origin": "https://jobs.example.com"}
    assert (await cancel(sqlite_world, who, headers=right, api=api)).status_code == 200
    for wrong in (OWN, "http://jobs.example.com", "https://jobs.example.com:8443", "https://jobs.example.com.evil.com"):
        is_problem(await cancel(sqlite_world, who, headers={"origin": wrong}, api=api), 403, "cross_origin")


async def test_what_a_proxy_would_say_is_not_believed_from_anyone(sqlite_world: World) -> None:
    forged = {
        "x-forwarded-host": "evil.example.com", "x-forwarded-proto": "https", "forwarded": "host=evil.example.com",
        "x-original-url": "/healthz", "x-rewrite-url": "/healthz", "x-http-method-override": "GET",
    }  # fmt: skip
    headers = {**forged, "origin": "https://evil.example.com"}
    is_problem(await cancel(sqlite_world, session_without_signs(sqlite_world), headers=headers), 403, "cross_origin")
    is_problem(await sqlite_world.get(ANYONE, "/api/jobs", headers=forged), 401)


# ── Hosts ──


FOREIGN_HOSTS = [
    "evil.example.com", "evil.example.com:80", "localhost.evil.example.com", "127.0.0.1.nip.io", "",
    "localhost@evil.com", "evil.com/localhost", "[::2]", "0.0.0.0", "localhost:80:80", "localhost,evil.com",
    "127.0.0.2", "[::1",
]  # fmt: skip


async def test_a_foreign_name_that_leads_here_gets_nothing(sqlite_world: World) -> None:
    for host in FOREIGN_HOSTS:
        api = sqlite_world.another_api(allowed_hosts=("localhost", "127.0.0.1", "::1"))
        await sqlite_world.change_settings(manage_rule="true")
        for method in ("GET", "OPTIONS"):
            answer = await sqlite_world.call(ANYONE, method, "/api/jobs", api=api, headers={"host": host})
            is_problem(answer, 421, "wrong_host")
        # After DNS rebinding, that name is also the page's origin.
        headers = {"host": host, "origin": f"http://{host}"}
        is_problem(await cancel(sqlite_world, "superuser", headers=headers, api=api), 421, "wrong_host")


async def test_our_own_names_are_answered(sqlite_world: World) -> None:
    for host in ("localhost", "localhost:8090", "LOCALHOST", "127.0.0.1:1", "[::1]:8090", "[::1]"):
        api = sqlite_world.another_api(allowed_hosts=("localhost", "127.0.0.1", "::1"))
        answer = await sqlite_world.get("admin token", "/api/jobs", api=api, headers={"host": host})
        assert answer.status_code == 200


async def test_the_probes_are_asked_by_whatever_name(sqlite_world: World) -> None:
    api = sqlite_world.another_api(allowed_hosts=("localhost",))
    for path in ("/healthz", "/readyz"):
        answer = await sqlite_world.get(ANYONE, path, api=api, headers={"host": "10.1.2.3:8090"})
        assert answer.status_code == 200


# ── Other origins that are allowed ──


async def preflight(world: World, origin: str, **more: Any) -> Any:
    headers = {"origin": origin, "access-control-request-method": "DELETE"}
    return await world.call(ANYONE, "OPTIONS", "/api/jobs", headers=headers, **more)


async def test_by_default_no_other_origin_may(sqlite_world: World) -> None:
    answer = await preflight(sqlite_world, FRIEND)
    is_problem(answer, 403, "cross_origin")
    assert not any(name.startswith("access-control") for name in answer.headers)
    answer = await sqlite_world.get("admin token", "/api/jobs")
    assert not any(name.startswith("access-control") for name in answer.headers)


async def test_a_named_origin_may_and_no_other(sqlite_world: World) -> None:
    api = sqlite_world.another_api(origins=(FRIEND,))
    answer = await preflight(sqlite_world, FRIEND, api=api)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == FRIEND
    assert "DELETE" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert answer.headers["vary"] == "Origin"
    got = await sqlite_world.get("admin token", "/api/jobs", api=api, headers={"origin": FRIEND})
    assert got.status_code == 200
    assert got.headers["access-control-allow-origin"] == FRIEND
    for near in ("https://app.example.com:443", "http://app.example.com", "https://app.example.com.evil.com", "null",
                 "https://xapp.example.com", "https://APP.example.com", "https://app.example.com/"):  # fmt: skip
        refused = await preflight(sqlite_world, near, api=api)
        is_problem(refused, 403)
        assert not any(name.startswith("access-control") for name in refused.headers)


async def test_a_refusal_can_be_read_by_the_page_that_may_ask(sqlite_world: World) -> None:
    api = sqlite_world.another_api(origins=(FRIEND,))
    answer = await sqlite_world.get(ANYONE, "/api/jobs", api=api, headers={"origin": FRIEND})
    is_problem(answer, 401)
    assert answer.headers["access-control-allow-origin"] == FRIEND


async def test_credentials_never_go_along_with_another_origin(sqlite_world: World) -> None:
    """A browser would send the cookie along for a page on another port of the same host. The cookie must not count."""
    for origin in (FRIEND, "http://localhost:3000"):
        api = sqlite_world.another_api(origins=(origin,))
        for answer in (
            await preflight(sqlite_world, origin, api=api),
            await sqlite_world.get("superuser", "/api/jobs", api=api, headers={"origin": origin}),
        ):
            assert "access-control-allow-credentials" not in answer.headers
        for who in (session_without_signs(sqlite_world), sqlite_world.who["superuser"]):
            answer = await cancel(sqlite_world, who, headers={"origin": origin}, api=api)
            assert answer.status_code in (401, 403), "the session of our own page has done what another page wanted"


@pytest.mark.parametrize(
    "origin", ["*", "https://*.example.com", "null", "app.example.com", "https://a.example.com/", "", "ftp://x"]
)
def test_only_exact_origins_can_be_named(origin: str) -> None:
    with pytest.raises(InvalidInput):
        ApiSettings(origins=(origin,))
    if origin and origin != "https://a.example.com/":  # a public URL may have a path
        with pytest.raises(InvalidInput):
            ApiSettings(public_url=origin)


async def test_a_public_url_may_have_a_path(sqlite_world: World) -> None:
    """A browser names only the origin, without the path."""
    api = sqlite_world.another_api(public_url="https://a.example.com/queue")
    who = session_without_signs(sqlite_world)
    assert (await cancel(sqlite_world, who, headers={"origin": "https://a.example.com"}, api=api)).status_code == 200
    answer = await cancel(sqlite_world, who, headers={"origin": "https://b.example.com"}, api=api)
    is_problem(answer, 403, "cross_origin")


# ── Cookies and headers ──


async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(sqlite_world: World) -> None:
    body = {"email": BOSS, "password": PASSWORD}
    plain = (await sqlite_world.post(ANYONE, "/api/auth/login", body)).headers["set-cookie"]
    assert plain.startswith("rowlock_session=rls_")
    secure = (await sqlite_world.post(ANYONE, "/api/auth/login", body, base="https://jobs.example.com")).headers[
        "set-cookie"
    ]
    assert secure.startswith("__Host-rowlock=rls_")
    assert "; Secure" in secure
    for text in (plain, secure):
        assert "; HttpOnly" in text
        assert "; SameSite=Strict" in text
        assert "; Path=/;" in text
        assert "domain" not in text.lower()


async def test_over_https_a_cookie_without_the_prefix_is_not_taken(sqlite_world: World) -> None:
    """Another host of the same domain could have set the cookie."""
    answer = await sqlite_world.get("superuser", "/api/auth/me", base="https://localhost")
    is_problem(answer, 401)


async def test_every_answer_has_the_headers_that_browsers_heed(sqlite_world: World) -> None:
    for path in ("/healthz", "/api/jobs", "/nothing", "/api/openapi.json", "/_/me", "/metrics"):
        for base in ("http://localhost", "https://localhost"):
            headers = (await sqlite_world.get("admin token", path, base=base)).headers
            assert headers.get("x-content-type-options") == "nosniff"
            assert headers.get("cache-control") == "no-store"
            assert headers.get("cross-origin-resource-policy") == "same-origin"
            if headers["content-type"] != "application/json":
                assert headers.get("referrer-policy") == "no-referrer"
                assert headers.get("cross-origin-opener-policy") == "same-origin"
                assert "default-src 'none'" in headers["content-security-policy"]
                assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert ("strict-transport-security" in headers) == base.startswith("https")
            assert "text/html" not in headers["content-type"]
            assert "server" not in headers


async def test_a_websocket_is_not_answered(sqlite_world: World) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await sqlite_world.api({"type": "websocket", "path": "/api/jobs", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_request_id_comes_back_only_if_it_is_harmless(sqlite_world: World) -> None:
    for given in ("a", "x" * 65, "abc def ghi", "a\r\nSet-Cookie: x=1", "é" * 10, "<script>1</script>"):
        headers = [(b"x-request-id", given.encode("utf-8"))]
        sent = await by_hand(sqlite_world.api, "GET", "/healthz", headers=headers)
        [came] = [value for name, value in sent.headers if name == b"x-request-id"]
        assert came != given.encode()
        assert len(came) == 16


async def test_over_a_real_connection_the_host_is_the_one_of_the_request(sqlite_world: World) -> None:
    import httpx

    with Server.running(sqlite_world.place.url, allowed_hosts=("127.0.0.1",)) as server:
        headers = dict(sqlite_world.who["admin token"].headers)
        async with httpx.AsyncClient() as client:
            good = await client.get(f"{server.url}/api/jobs", headers=headers)
            bad = await client.get(f"{server.url}/api/jobs", headers={**headers, "host": "evil.example.com"})
            own = await client.get(f"{server.url}/api/jobs", headers={**headers, "origin": server.url})
            other = await client.get(f"{server.url}/api/jobs", headers={**headers, "origin": "http://127.0.0.1:1"})
        assert [one.status_code for one in (good, bad, own, other)] == [200, 421, 200, 403]
        assert "server" not in good.headers
