"""The application's own users: the server knows them by JWTs, or by the application's own hook."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from rowlock.access import jwt as verifying
from rowlock.access.identity import Identity
from rowlock.access.jwt import LONGEST_TOKEN, KeySet, Verifier
from rowlock.errors import InvalidInput
from tests.http.harness import ANYONE, SECRET, A, Who, World, bearer, is_problem, user_token

ME = "/api/auth/me"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def claims(**more: Any) -> dict[str, Any]:
    given = {"sub": A, "exp": datetime.now(UTC) + timedelta(hours=1), **more}
    return {name: value for name, value in given.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm=algorithm, headers=None if kid is None else {"kid": kid})


async def status(world: World, text: str, **more: Any) -> int:
    return (await world.get(Who("x", bearer(text)), ME, **more)).status_code


def raw(header: dict[str, Any], body: dict[str, Any], key: bytes | None = None) -> str:
    """Return a JWT that is signed by hand, because libraries refuse to sign such a token."""
    return raw_text(json.dumps(header, default=str), json.dumps(body, default=str), key)


def raw_text(header: str, body: str, key: bytes | None = SECRET.encode()) -> str:
    text = b".".join([base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in (header, body)])
    mac = b"" if key is None else hmac.new(key, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def plain_claims() -> dict[str, Any]:
    return {"sub": A, "exp": int((datetime.now(UTC) + timedelta(hours=1)).timestamp())}


def hand_signed(**claims: Any) -> Who:
    """Return a user with these claims, whatever they are."""
    return Who("x", bearer(raw({"alg": "HS256"}, plain_claims() | claims, SECRET.encode())))


# ── A shared secret ──


async def test_a_good_one_says_who_it_is(world: World) -> None:
    me = (await world.get("user A", ME)).json()
    assert (me["kind"], me["id"], me["scopes"]) == ("user", A, [])


HOUR = timedelta(hours=1)
BAD: dict[str, Any] = {
    "another key": lambda: signed("another secret that is as long as it has to be"),
    "expired": lambda: signed(exp=datetime.now(UTC) - HOUR),
    "not yet valid": lambda: signed(nbf=datetime.now(UTC) + HOUR),
    "from the future": lambda: signed(iat=datetime.now(UTC) + HOUR),
    "never expires": lambda: signed(exp=None),
    "nobody's": lambda: signed(sub=None),
    "of an empty name": lambda: signed(sub=""),
    "of a number": lambda: raw({"alg": "HS256"}, {**plain_claims(), "sub": 7}, SECRET.encode()),
    "no signature, none": lambda: raw({"alg": "none"}, plain_claims()),
    "no signature, NONE": lambda: raw({"alg": "NONE"}, plain_claims()),
    "no signature, HS256": lambda: raw({"alg": "HS256"}, plain_claims()),
    "signed, says none": lambda: raw({"alg": "none"}, plain_claims(), SECRET.encode()),
    "signed by nothing": lambda: raw({"alg": "HS256"}, plain_claims(), b""),
    "HS512": lambda: signed(SECRET + SECRET, "HS512"),
    "HS384 with our secret": lambda: signed(SECRET, "HS384"),
    "RS256": lambda: signed(RSA, "RS256"),
    "its own key inside": lambda: jwt.encode(claims(), RSA, "RS256", headers={"jwk": json.loads(public(RSA))}),
    "critical extension": lambda: raw({"alg": "HS256", "crit": ["x"], "x": 1}, plain_claims(), SECRET.encode()),
    "too long": lambda: signed(more="x" * LONGEST_TOKEN),
    "not JSON": lambda: "e30.bm9uc2Vuc2U.AAAA",
    "dots": lambda: "..",
    "many dots": lambda: "." * 5000,
    "an array": lambda: raw([], plain_claims(), SECRET.encode()),  # type: ignore[arg-type]
    "claims that are an array": lambda: raw({"alg": "HS256"}, [], SECRET.encode()),  # type: ignore[arg-type]
    "deep claims": lambda: raw_text('{"alg": "HS256"}', f'{{"sub": "a", "exp": {"[" * 2500}{"]" * 2500}}}'),
    "a deep header": lambda: raw_text("[" * 2500 + "]" * 2500, "{}"),
    "an expiry of 5,000 digits": lambda: raw_text('{"alg": "HS256"}', f'{{"sub": "a", "exp": {"9" * 5000}}}'),
    "a key id that is a list": lambda: raw({"alg": "HS256", "kid": []}, plain_claims(), SECRET.encode()),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_one_is_refused(sqlite_world: World, kind: str) -> None:
    answer = await sqlite_world.get(Who("x", bearer(BAD[kind]())), ME)
    is_problem(answer, 401, "not_authenticated")


async def test_a_changed_one_is_refused(sqlite_world: World) -> None:
    text = user_token(A)
    for at in range(0, len(text) - 2, 7):  # the last character may hold unused bits
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        assert await status(sqlite_world, changed) == 401, at


NO_TIMES = [
    1e15, 1e12, 253_402_300_800, 10**30, 10**4000, 1e300, -1, -1e9, -1e300, float("nan"), float("inf"), float("-inf"),
    True, False, None, "", "soon", "1e15", "99999999999", "1.5", [], [99_999_999_999], {}, {"a": 1},
]  # fmt: skip


async def test_a_time_that_is_none_is_refused_and_named(sqlite_world: World) -> None:
    for name, value in itertools.product(("exp", "nbf", "iat"), NO_TIMES):
        answer = await sqlite_world.get(hand_signed(**{name: value}), ME)
        problem = is_problem(answer, 401, None if (name, value) == ("exp", None) else "bad_claim")
        assert problem.get("field", "exp") == name, value


LAST = 253_402_214_400  # the last day of the year 9999


async def test_times_that_are_far_away_are_times(sqlite_world: World) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"exp": LAST}, 200), ({"exp": LAST - 0.5}, 200), ({"nbf": 0, "iat": 0}, 200), ({"exp": 0}, 401),
        ({"exp": 0.0}, 401), ({"nbf": LAST}, 401), ({"iat": LAST}, 401), ({"nbf": 0, "iat": LAST}, 401),
    ]  # fmt: skip
    for times, wanted in cases:
        assert (await sqlite_world.get(hand_signed(**times), ME)).status_code == wanted, times


def strange_claims() -> list[dict[str, Any]]:
    """Return sets of claims. The application could have signed each of them."""
    times = st.one_of(st.sampled_from(NO_TIMES), st.integers(), st.floats(), st.just(plain_claims()["exp"]))
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(["\ud800", "\0"])
    )
    anything = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
    known = {"exp": times, "nbf": times, "iat": times, "sub": st.just(A) | anything}
    more = dict.fromkeys(("id", "aud", "iss", "jti", "role", "team", "superuser", "kid"), anything)
    made: list[dict[str, Any]] = []

    @settings(max_examples=200, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({}, optional={**known, **more}), st.booleans())
    def collect(claims: dict[str, Any], is_valid: bool) -> None:
        made.append(claims | plain_claims() if is_valid else claims)

    collect()
    return made


async def test_no_claims_that_were_signed_break_anything(sqlite_world: World) -> None:
    """The application, which has the secret, makes mistakes. It is told of them, and they are never a server error."""
    rule = "scope = @request.auth.team || priority > @request.auth.exp || scope_id = @request.auth.id"
    await sqlite_world.change_settings(manage_rule=rule)
    job_id = await sqlite_world.enqueue(A)
    statuses = set()
    for one in strange_claims():
        who = Who("x", bearer(raw({"alg": "HS256"}, one, SECRET.encode())))
        for method, path in (("GET", "/api/jobs"), ("POST", f"/api/jobs/{job_id}/token")):
            answer = await sqlite_world.call(who, method, path)
            assert answer.status_code < 500, (one, answer.text)
            statuses.add(answer.status_code)
    assert {200, 401} <= statuses


async def test_a_token_for_another_audience_is_refused_though_none_is_set(sqlite_world: World) -> None:
    """Otherwise a token that the same secret has signed for another service would be good here."""
    for audience in ("web", ["web"], ["web", "jobs"], "jobs"):
        answer = await sqlite_world.get(Who("x", bearer(signed(aud=audience))), ME)
        problem = is_problem(answer, 401, "wrong_audience")
        assert "jwt_audience" in problem["detail"]
    assert await status(sqlite_world, signed()) == 200
    assert await status(sqlite_world, signed(aud=[])) == 200  # it names no audience


async def test_it_is_refused_if_no_secret_is_set(sqlite_world: World) -> None:
    assert await status(sqlite_world, user_token(A), api=sqlite_world.jobs.asgi()) == 401


async def test_issuer_and_audience_must_be_the_ones_that_are_set(sqlite_world: World) -> None:
    api = sqlite_world.another_api(jwt_issuer="https://id.example.com", jwt_audience="jobs")
    right: dict[str, Any] = {"iss": "https://id.example.com", "aud": "jobs"}
    assert await status(sqlite_world, signed(**right), api=api) == 200
    assert await status(sqlite_world, signed(**{**right, "aud": ["web", "jobs"]}), api=api) == 200
    for wrong in (
        {}, {"iss": right["iss"]}, {"aud": "jobs"}, {**right, "aud": "web"}, {**right, "iss": "https://evil.example.com"},
        {**right, "iss": "https://id.example.com/"}, {**right, "aud": []}, {**right, "aud": "job"},
    ):  # fmt: skip
        assert await status(sqlite_world, signed(**wrong), api=api) == 401, wrong


async def test_a_strange_name_is_nothing_special(world: World) -> None:
    """The server may refuse a strange name, but such a name finds nothing and breaks nothing."""
    for sub in ("a\0b", "x" * 2000, "\ud800", "a\r\nb", "<script>", "' OR 1=1 --", "%"):
        await world.change_settings(manage_rule="scope_id = @request.auth.id", enqueue_rule="@request.auth.id != ''")
        job_id, who = await world.enqueue(A), hand_signed(sub=sub)
        for method, path, body in (
            ("GET", ME, None), ("GET", "/api/jobs", None), ("GET", "/api/jobs/stats", None),
            ("GET", f"/api/jobs/{job_id}", None), ("POST", f"/api/jobs/{job_id}/cancel", None),
            ("POST", "/api/jobs/enqueue", {"topic": "mail", "scopeId": sub}),
        ):  # fmt: skip
            answer = await world.call(who, method, path, body)
            assert answer.status_code < 500, (sub, method, path, answer.text)
            assert job_id not in answer.text, sub
        await world.change_settings(manage_rule="true")
        answer = await world.post(who, f"/api/jobs/{job_id}/cancel")  # the audit records the name
        assert answer.status_code < 500, answer.text


async def test_a_strange_claim_matches_nothing_and_breaks_nothing(world: World) -> None:
    await world.change_settings(manage_rule="scope = @request.auth.team || priority = @request.auth.team")
    job_id = await world.enqueue(A)
    teams: list[Any] = ["a\0b", "\ud800", "x" * 3000, 1e300, 10**30, True, None, [], {"a": 1}, ""]
    for team in teams:
        for path in ("/api/jobs", "/api/jobs/stats", f"/api/jobs/{job_id}", f"/api/jobs/{job_id}/why"):
            answer = await world.get(hand_signed(team=team), path)
            assert answer.status_code in (200, 403, 404), (team, answer.text)
            assert job_id not in answer.text, team


async def test_no_claim_makes_a_superuser(world: World) -> None:
    text = signed(superuser=True, scopes=["admin"], role="admin", kind="superuser", id="boss@example.com")
    me = (await world.get(Who("x", bearer(text)), ME)).json()
    assert (me["kind"], me["id"], me["scopes"]) == ("user", A, [])
    is_problem(await world.get(Who("x", bearer(text)), "/api/settings"), 403)


@pytest.mark.parametrize("secret", ["", "short", "x" * 31])
def test_a_secret_that_can_be_guessed_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput):
        Verifier(secret=secret)


def test_a_secret_and_a_key_set_are_not_taken_together() -> None:
    with pytest.raises(InvalidInput):
        Verifier(secret=SECRET, jwks="keys.json")


# ── A key set ──


def public(key: Any, **more: Any) -> str:
    made: dict[str, Any] = (
        RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        if isinstance(key, rsa.RSAPrivateKey)
        else ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    )
    return json.dumps({**made, **more})


def key_set(**keys: Any) -> str:
    return json.dumps({"keys": [json.loads(public(key, kid=kid, use="sig")) for kid, key in keys.items()]})


@pytest.fixture
def keys(sqlite_world: World, tmp_path: Path) -> tuple[World, Path]:
    """Return an application that takes the keys from a file, and that file."""
    file = tmp_path / "jwks.json"
    file.write_text(key_set(one=RSA, two=EC))
    sqlite_world.api = sqlite_world.jobs.asgi(jwt_jwks=str(file))
    return sqlite_world, file


async def test_a_key_of_the_set_is_taken(keys: tuple[World, Path]) -> None:
    world, _ = keys
    assert await status(world, signed(RSA, "RS256", "one")) == 200
    assert await status(world, signed(EC, "ES256", "two")) == 200


async def test_anything_else_is_not(keys: tuple[World, Path]) -> None:
    world, _ = keys
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    number = base64.urlsafe_b64decode(json.loads(public(RSA))["n"] + "==")
    for text in (
        signed(OTHER_RSA, "RS256", "one"),  # another key under a known name
        signed(RSA, "RS256", "three"),  # an unknown name
        signed(RSA, "RS256"),  # no name
        signed(RSA, "RS512", "one"),
        signed(EC, "ES256", "one"),  # a known name of another kind of key
        signed(RSA, "RS256", "two"),
        signed(SECRET, "HS256", "one"),
        raw({"alg": "HS256", "kid": "one"}, plain_claims(), pem),  # the public key as a shared secret
        raw({"alg": "HS256", "kid": "one"}, plain_claims(), pem.strip()),
        raw({"alg": "HS256", "kid": "one"}, plain_claims(), public(RSA).encode()),
        raw({"alg": "HS256", "kid": "one"}, plain_claims(), number),
        raw({"alg": "none", "kid": "one"}, plain_claims()),
        raw({"alg": "RS256", "kid": "one"}, plain_claims()),
        raw({"alg": "RS256", "kid": {"a": 1}}, plain_claims()),
        signed(RSA, "RS256", "one", exp=datetime.now(UTC) - HOUR),
    ):
        assert await status(world, text) == 401, text


async def test_keys_that_are_not_for_signing_are_not_taken(keys: tuple[World, Path]) -> None:
    world, file = keys
    symmetric = {"kty": "oct", "kid": "secret", "k": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("=")}
    file.write_text(json.dumps({"keys": [json.loads(public(RSA, kid="enc", use="enc")), symmetric]}))
    assert await status(world, signed(RSA, "RS256", "enc")) == 401
    assert await status(world, signed(SECRET, "HS256", "secret")) == 401


def forget(world: World) -> None:
    """Let the time pass after which an unknown key makes the server read the key set again."""
    verifier = world.api.state.authenticator._verifier
    assert verifier
    assert verifier._set
    verifier._set._read_at -= verifying._AGAIN + 1


async def test_a_new_key_is_found_and_an_old_one_forgotten(keys: tuple[World, Path]) -> None:
    world, file = keys
    assert await status(world, signed(RSA, "RS256", "one")) == 200
    file.write_text(key_set(next=OTHER_RSA))
    assert await status(world, signed(OTHER_RSA, "RS256", "next")) == 401  # the server has just read the file
    forget(world)
    assert await status(world, signed(OTHER_RSA, "RS256", "next")) == 200
    assert await status(world, signed(RSA, "RS256", "one")) == 401


BROKEN = [
    "", "{", "null", "[]", "{}", '{"keys": null}', '{"keys": {}}', '{"keys": [null]}', '{"keys": [7]}',
    '{"keys": ["x"]}', '{"keys": [{"kty": "RSA", "kid": "one"}]}',
    '{"keys": [{"kty": "RSA", "kid": "one", "n": "!", "e": "AQAB"}]}',
    '{"keys": [{"kty": "RSA", "kid": ["a"], "n": "AQAB", "e": "AQAB"}]}',
    '{"keys": [{"kty": "EC", "kid": "one", "crv": "P-256", "x": "AA", "y": "AA"}]}',
    '{"keys": [{"kty": "EC", "kid": "one", "crv": "nothing", "x": "AA", "y": "AA"}]}',
]  # fmt: skip


async def test_a_broken_set_lets_nobody_in_and_breaks_nothing(keys: tuple[World, Path]) -> None:
    world, file = keys
    for text in BROKEN:
        file.write_text(text)
        world.api = world.jobs.asgi(jwt_jwks=str(file))
        assert await status(world, signed(RSA, "RS256", "one")) == 401, text
        assert (await world.get("admin token", ME)).status_code == 200, text


async def test_a_set_that_breaks_later_leaves_the_keys_that_are_known(keys: tuple[World, Path]) -> None:
    world, file = keys
    assert await status(world, signed(RSA, "RS256", "one")) == 200
    for text in BROKEN:
        file.write_text(text)
        forget(world)
        assert await status(world, signed(OTHER_RSA, "RS256", "next")) == 401, text
        assert await status(world, signed(RSA, "RS256", "one")) == 200, text


async def test_a_good_key_beside_a_broken_one_is_taken(keys: tuple[World, Path]) -> None:
    world, file = keys
    good = json.loads(public(RSA, kid="one"))
    for bad in json.loads(
        '[{"kty": "RSA", "kid": "b"}, {"kty": "EC", "kid": "b", "crv": "P-256", "x": "AA", "y": "A"}]'
    ):
        file.write_text(json.dumps({"keys": [bad, good]}))
        world.api = world.jobs.asgi(jwt_jwks=str(file))
        assert await status(world, signed(RSA, "RS256", "one")) == 200


class Answers(http.server.BaseHTTPRequestHandler):
    """`said`: the status and body of the answer. `asked`: all paths that were asked for."""

    said: tuple[int, bytes] = (200, b"")
    asked: list[str]
    held: threading.Event  # the server answers once this is set
    location = ""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.held.wait(30)
        code, body = self.said
        self.send_response(code)
        if self.location and self.path == "/moved":
            self.send_header("Location", self.location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[tuple[str, type[Answers]]]:
    held = threading.Event()
    held.set()
    handler = type("Handler", (Answers,), {"asked": [], "held": held})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler
        finally:
            server.shutdown()
            thread.join()


async def test_a_set_behind_a_url_is_read_once_and_again_for_a_new_key(sqlite_world: World) -> None:
    with serving() as (url, handler):
        handler.said = (200, key_set(one=RSA).encode())
        sqlite_world.api = sqlite_world.jobs.asgi(jwt_jwks=f"{url}/keys")
        for _ in range(5):
            assert await status(sqlite_world, signed(RSA, "RS256", "one")) == 200
        assert handler.asked == ["/keys"]
        for n in range(5):  # made-up names don't make rowlock ask each time
            assert await status(sqlite_world, signed(RSA, "RS256", f"made up {n}")) == 401
        assert handler.asked == ["/keys"]
        handler.said = (200, key_set(next=OTHER_RSA).encode())
        forget(sqlite_world)
        assert await status(sqlite_world, signed(OTHER_RSA, "RS256", "next")) == 200
        assert handler.asked == ["/keys", "/keys"]


async def test_nobody_waits_while_we_look_for_a_made_up_key(sqlite_world: World) -> None:
    with serving() as (url, handler):
        handler.said = (200, key_set(one=RSA).encode())
        sqlite_world.api = sqlite_world.jobs.asgi(jwt_jwks=f"{url}/keys")
        assert await status(sqlite_world, signed(RSA, "RS256", "one")) == 200
        forget(sqlite_world)
        handler.held.clear()
        made_up = asyncio.create_task(status(sqlite_world, signed(RSA, "RS256", "made up")))
        try:
            while len(handler.asked) < 2:  # noqa: ASYNC110 - it is another thread that is asked
                await asyncio.sleep(0.001)
            assert await status(sqlite_world, signed(RSA, "RS256", "one")) == 200
            assert not made_up.done()  # the known key did not wait for the unknown one
        finally:
            handler.held.set()
        assert await made_up == 401


async def test_a_set_that_can_not_be_fetched_lets_nobody_in(sqlite_world: World) -> None:
    with serving() as (url, handler):
        for said in ((500, b""), (404, b"no"), (200, b"<html>"), (204, b"")):
            handler.said = said
            sqlite_world.api = sqlite_world.jobs.asgi(jwt_jwks=f"{url}/keys")
            assert await status(sqlite_world, signed(RSA, "RS256", "one")) == 401, said


async def test_a_set_is_not_fetched_from_where_it_points_to(sqlite_world: World) -> None:
    """A redirect could lead anywhere, even to plain http or into the server's own network."""
    with serving() as (url, handler):
        handler.said, handler.location = (302, key_set(one=RSA).encode()), f"{url}/elsewhere"
        sqlite_world.api = sqlite_world.jobs.asgi(jwt_jwks=f"{url}/moved")
        assert await status(sqlite_world, signed(RSA, "RS256", "one")) == 401
        assert handler.asked == ["/moved"]


@pytest.mark.parametrize(
    "place", ["http://id.example.com/keys", "http://169.254.169.254/", "http://localhost.example.com/"]
)
def test_keys_do_not_come_over_plain_http(place: str) -> None:
    with pytest.raises(InvalidInput):
        KeySet(place)


# ── The application's own hook ──


async def test_the_applications_own_hook_says_who_it_is(world: World) -> None:
    async def hook(request: Any) -> Any:
        name = request.headers.get("x-user")
        return {"id": name, "role": "member"} if name else None

    api = world.another_api(authenticate=hook)
    me = await world.get(ANYONE, ME, api=api, headers={"x-user": "carl"})
    assert me.json()["id"] == "carl"
    is_problem(await world.get(ANYONE, ME, api=api), 401)
    assert (await world.get("admin token", ME, api=api)).json()["kind"] == "token"  # a silent hook leaves tokens valid


async def test_a_hook_may_answer_at_once_and_with_an_identity(sqlite_world: World) -> None:
    def hook(request: Any) -> Identity:
        return Identity(kind="superuser", id="carl", scopes=frozenset({"read"}), read_only=True)

    api = sqlite_world.another_api(authenticate=hook)
    assert (await sqlite_world.get(ANYONE, "/api/jobs", api=api)).status_code == 200
    is_problem(await sqlite_world.post(ANYONE, "/api/jobs/enqueue", {"topic": "x"}, api=api), 403)


async def test_a_hook_that_says_nonsense_lets_nobody_in(sqlite_world: World) -> None:
    await sqlite_world.change_settings(manage_rule="@request.auth.id != ''")
    nonsense: list[Any] = [{}, {"name": "carl"}, {"id": ""}, {"id": None}, {"id": [1]}, 7, "carl", False, True]
    for said in nonsense:
        api = sqlite_world.another_api(authenticate=lambda request, said=said: said)
        answer = await sqlite_world.get(ANYONE, "/api/jobs", api=api)
        assert answer.status_code in (401, 500), said
        assert "items" not in answer.text, said


async def test_a_hook_may_give_a_number_as_the_id(sqlite_world: World) -> None:
    """Rules compare the id with texts."""
    await sqlite_world.change_settings(manage_rule="scope_id = @request.auth.id")
    job_id = await sqlite_world.enqueue("7")
    for user in (7, "7"):
        api = sqlite_world.another_api(authenticate=lambda request, user=user: {"id": user})
        assert (await sqlite_world.get(ANYONE, f"/api/jobs/{job_id}", api=api)).status_code == 200, user


async def test_a_hook_that_fails_lets_nobody_in(sqlite_world: World) -> None:
    await sqlite_world.change_settings(manage_rule="true")

    def hook(request: Any) -> Any:
        raise RuntimeError("canary")

    answer = await sqlite_world.get(ANYONE, "/api/jobs", api=sqlite_world.another_api(authenticate=hook))
    assert answer.status_code == 500
    assert "canary" not in answer.text
