"""What redaction hides and what it leaves: patterns, values that also stand elsewhere, and texts of all kinds."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rowlock.access.redaction import DEFAULTS, MARK, MOST_PATTERNS, Redaction, check_patterns, marked
from rowlock.core.codec import clean_text
from rowlock.core.job import Event, Job, LogLine
from rowlock.errors import InvalidInput
from rowlock.stores.records import Audited
from tests.core.test_lifecycle import a_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
USUAL = Redaction(DEFAULTS)
SECRET = "hunter2-äöü/+\"'x"


def a_payload(payload: dict[str, Any], **columns: Any) -> Job:
    return a_job(payload=payload, **columns)


def shown(redaction: Redaction, payload: dict[str, Any]) -> dict[str, Any]:
    return redaction.job(a_payload(payload)).payload


# ── Patterns ──


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("password", "payload.password", True), ("password", "payload.a.b.PassWord", True),
        ("password", "result.password", True), ("password", "payload.password_hint", False),
        ("*password*", "payload.old_password_2", True), ("*_token", "payload.csrf_token", True),
        ("*_token", "payload.max_tokens", False), ("*token", "payload.accessToken", True),
        ("*.card_number", "payload.card_number", True), ("*.card_number", "payload.a.card_number", True),
        ("payload.user.email", "payload.user.email", True), ("payload.user.email", "result.user.email", False),
        ("payload.user.email", "payload.email", False), ("user.email", "result.user.email", True),
        ("headers.*", "payload.headers.X-Any", True), ("headers.*", "payload.headers", False),
        ("headers.x-*", "payload.headers.X-Any", True), ("headers.x-*", "payload.headers.accept", False),
        ("a*b*c", "payload.axxbyyc", True), ("a*b*c", "payload.axxc", False), ("ab*ba", "payload.aba", False),
        ("*", "payload.anything", True), ("ÄRGER", "payload.ärger", True),
    ],
)  # fmt: skip
def test_a_pattern_fits_the_end_of_a_path(pattern: str, path: str, fits: bool) -> None:
    assert Redaction([pattern]).fits(path.split(".")) == fits


HIDDEN = (
    "password", "Passwd", "db_password", "passphrase", "secret", "client_secret", "token", "access_token",
    "refreshToken", "api_key", "apikey", "X-Api-Key", "private_key", "aws_access_key", "Authorization",
    "Proxy-Authorization", "cookie", "Set-Cookie", "credentials", "card_number", "cvv", "tokens", "access_tokens",
    "refreshTokens", "api_tokens", "userAuthTokens", "cookies", "session_cookies", "api_keys", "openaiApiKeys",
    "x-api-keys", "pwd", "db_pwd", "userPwd", "jwt", "user_jwt", "idJwt", "session_id", "sessionId", "JSESSIONID",
    "dsn", "sentry_dsn", "SENTRY_DSN",
)  # fmt: skip
HARMLESS = (
    "email", "name", "key", "user", "author", "cookies_eaten", "keyboard", "path", "pass", "max_tokens", "maxTokens",
    "tokens_used", "token_count", "tokenCount", "token_type", "prompt_tokens", "completion_tokens", "total_tokens",
    "input_tokens", "max_output_tokens", "cached_tokens", "tokens_per_minute", "tokenizer", "api_keys_count", "jwt_ttl",
    "session", "session_id_length", "checkout_session", "pwdx", "dsn_count", "keys", "authors",
)  # fmt: skip


def test_the_usual_names_are_hidden_and_harmless_ones_are_not() -> None:
    assert [name for name in HIDDEN if not USUAL.fits(("payload", name))] == []
    assert [name for name in HARMLESS if USUAL.fits(("payload", name))] == []


def test_what_a_model_was_asked_for_stays_visible() -> None:
    asked = {"model": "m", "max_tokens": 500, "usage": {"prompt_tokens": 12, "total_tokens": 512}, "tokens_used": 512}
    job = a_payload({**asked, "token": "abcdef"}, result=asked, last_error="max_tokens=500, token_count: 512, token=x")
    told = USUAL.job(job)
    assert told.payload == {**asked, "token": MARK}
    assert told.result == asked
    assert told.last_error == f"max_tokens=500, token_count: 512, token={MARK}"


@pytest.mark.parametrize(
    "patterns",
    [
        "password", 7, None, [""], ["a..b"], [".a"], ["a."], [" a"], ["a\n"], ["a\0"], [7], ["x" * 201],
        ["a.b.c.d.e.f.g.h.i"], [f"p{n}" for n in range(MOST_PATTERNS + 1)],
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(patterns: object) -> None:
    with pytest.raises(InvalidInput) as error:
        check_patterns(patterns)
    assert error.value.field == "redact"


def test_patterns_are_kept_as_they_were_written() -> None:
    assert check_patterns(("Password", "a.*", "Password")) == ["Password", "a.*"]
    assert check_patterns([]) == []
    assert check_patterns(DEFAULTS) == list(DEFAULTS)


# ── Fields ──


def test_hidden_fields_are_marked_and_named_and_the_rest_stays() -> None:
    payload: dict[str, Any] = {
        "user": {"name": "ada", "password": SECRET}, "cards": [{"card_number": 4711_0815, "of": "ada"}, {"of": "bob"}],
        "token": {"nested": ["deep-secret", {"x": True}]}, "secret": None, "n": 1,
    }  # fmt: skip
    job = a_payload(payload, result={"access_token": "abcdef"})
    hidden = USUAL.hide(job)
    assert hidden.job.payload == {
        "user": {"name": "ada", "password": MARK}, "cards": [{"card_number": MARK, "of": "ada"}, {"of": "bob"}],
        "token": MARK, "secret": None, "n": 1,
    }  # fmt: skip
    assert hidden.job.result == {"access_token": MARK}
    assert hidden.paths == [
        "payload.user.password", "payload.cards.card_number", "payload.token", "payload.secret", "result.access_token",
    ]  # fmt: skip
    assert job.payload is payload
    assert payload["user"]["password"] == SECRET


def test_where_nothing_is_hidden_the_job_is_the_very_same() -> None:
    job = a_payload({"a": [1, {"b": "c: d"}]}, result=[1, "x=y"], last_error="boom: bang", message="m", stage="s")
    assert USUAL.job(job) is job
    assert Redaction([]).job(a_payload({"password": "x"})).payload == {"password": "x"}
    assert not Redaction([])


def test_a_hidden_value_is_hidden_wherever_it_stands() -> None:
    job = a_payload(
        {"password": SECRET, "card_number": 12345678, "copy": f"is {SECRET}!", "list": [SECRET]},
        result={"echo": f"<{SECRET}>", "n": "card 12345678"},
        last_error=f"ValueError: {SECRET!r} and {json.dumps(SECRET)} and 12345678",
        message=f"trying {SECRET}", stage=f"{SECRET}", cancel_reason=f"{SECRET} leaked",
    )  # fmt: skip
    told = msgspec.json.encode(structs.asdict(USUAL.job(job))).decode()
    assert "hunter2" not in told
    assert "12345678" not in told
    assert USUAL.hide(job).paths[-4:] == ["last_error", "message", "stage", "cancel_reason"]
    event = Event(
        job_id=job.id, seq=1, at=NOW, event="failed", status=None, version=1, by="w", data={"error": job.last_error}
    )
    assert "hunter2" not in str(USUAL.events([event], job)[0].data)
    assert "hunter2" not in USUAL.lines([LogLine(NOW, 1, "info", f"got {SECRET}")], job)[0].text


def test_a_result_hides_what_is_in_the_payload_and_the_other_way_round() -> None:
    job = a_payload({"note": "key-of-the-result"}, result={"token": "key-of-the-result"})
    assert USUAL.job(job).payload == {"note": MARK}


def test_short_values_are_left_alone_elsewhere() -> None:
    job = a_payload({"password": "abc", "cvv": 123}, last_error="abc 123 true")
    assert USUAL.job(job).last_error == "abc 123 true"


def test_of_too_many_values_no_text_is_shown_at_all() -> None:
    job = a_payload({"secrets": [f"value {n}" for n in range(600)]}, last_error="value 7", message="harmless")
    told = USUAL.job(job)
    assert (told.last_error, told.message) == (MARK, MARK)


names = st.sampled_from(["password", "user", "a", "Token", "headers", "secret_thing", "n", "x.y"])
secrets = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=6, max_size=12)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | secrets,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(payload=st.dictionaries(names, trees, max_size=4), secret=secrets, result=trees)
def test_no_value_of_a_hidden_field_is_told(payload: dict[str, Any], secret: str, result: Any) -> None:
    planted = {**payload, "password": {"deep": [secret]}}
    error = f"failed with {secret} and {json.dumps({'it': secret})} and {[secret]!r}"
    told = USUAL.job(a_payload(planted, result=result, last_error=error, message=secret))
    for text in _texts([told.payload, told.result, told.last_error, told.message]):
        assert secret not in text or secret in MARK


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for member in value.values() for text in _texts(member)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


# ── Texts ──


@pytest.mark.parametrize(
    "text",
    [
        "password=S3CRET", "password = S3CRET", "Password: S3CRET", "PASSWORD:S3CRET,rest", 'password="S3CRET x"',
        "password='S3 S3CRET'", '{"password": "S3CRET"}', "{'db_password': 'S3CRET'}", '{\\"password\\": \\"S3CRET\\"}',
        '"{\\"a\\": 1, \\"password\\": \\"S3CRET', 'password="S3CRET', "https://x/?a=1&access_token=S3CRET&b=2",
        "Authorization: Bearer S3CRET", "authorization: Basic S3CRET==", "Cookie: a=S3CRET; b=S3CRET",
        "set-cookie: x; y=S3CRET",
        "token: bearer S3CRET", "password => S3CRET", "x-api-key: S3CRET", "failed for (user=ada, password=S3CRET)",
        'password="a\\"S3CRET"', "a\nb\nclient_secret=S3CRET\nc", "ä password=S3CRET", "İ password: S3CRET",
        "private_key: -----BEGIN RSA PRIVATE KEY-----\nS3CRET\nS3CRET\n-----END RSA PRIVATE KEY-----",
        'headers={"Authorization": "Bearer S3CRET"}', "<password>x</password> token=S3CRET",
        "private_key=-----BEGIN KEY-----\nS3CRET\nS3CRET", "Pwd=S3CRET;Database=x", "jwt: S3CRET", "dsn=S3CRET",
        '{"api_keys": "S3CRET"}', "cookies: a=S3CRET; b=S3CRET", "sessionid=S3CRET", "tokens='S3CRET'",
        "secret = cookie: S3CRET; S3CRET", "password: `S3 S3CRET`", "cookie: `a S3CRET", "password=a`S3CRET",
        "token='a\nPASSWORD': 'S3CRET'",
    ],
)  # fmt: skip
def test_what_stands_behind_a_name_is_hidden(text: str) -> None:
    assert "S3CRET" not in USUAL.text(text)
    assert MARK in USUAL.text(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "no password given", "KeyError: 'password'", "the token is missing", "max_tokens=100",
        "5 tokens. That: ok", "tokens_used: 5", "token_count=5",
        "cookies_eaten = 3", "author: ada", "a: b", "x=1", "passwords:", 'File "/app/token.py", line 3, in password',
    ],
)  # fmt: skip
def test_what_is_harmless_is_told(text: str) -> None:
    assert USUAL.text(text) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://ada:S3CRET@db/jobs", "postgres://ada:#@db/jobs"),
        ("postgresql+asyncpg://ada:S3CRET@db:5432/jobs?a=b", "postgresql+asyncpg://ada:#@db:5432/jobs?a=b"),
        ("redis://:S3CRET@cache:6379/0", "redis://:#@cache:6379/0"),
        ("https://ci:S3CRET@git.example.org/a.git", "https://ci:#@git.example.org/a.git"),
        ("amqp://a:S3CRET@@h/%2F", "amqp://a:#@h/%2F"), ("mysql://a:S3/C?R#S3CRET@h/db", "mysql://a:#@h/db"),
        ("mongodb://a:S3CRET@h1:1,h2:2/db", "mongodb://a:#@h1:1,h2:2/db"), ("ftp://a:12345S3CRET@h", "ftp://a:#@h"),
        ("smtp://a%40b.c:S3CRET@h:587", "smtp://a%40b.c:#@h:587"), ("x://a:S3CRET" + "x" * 5000 + "@h", "x://a:#@h"),
        ("http://a:12345@h", "http://a:#@h"),
    ],
)  # fmt: skip
def test_passwords_in_urls_are_hidden_in_every_text(url: str, shown: str) -> None:
    wanted = shown.replace("#", MARK)
    error = f"OperationalError: could not connect to '{url}' ({url}): no route\n{json.dumps({'url': url})}"
    job = a_payload({"to": {"database": url, "list": [url, "a"]}}, result=f"did {url}", last_error=error, message=url)
    hidden = USUAL.hide(job)
    assert hidden.job.payload == {"to": {"database": wanted, "list": [wanted, "a"]}}
    assert hidden.job.result == f"did {wanted}"
    assert hidden.job.message == wanted
    assert "S3CRET" not in (hidden.job.last_error or "")
    assert (hidden.job.last_error or "").count(wanted) == 3
    assert hidden.paths == ["payload.to.database", "payload.to.list", "result", "last_error", "message"]
    line, event = LogLine(NOW, 1, "info", url), {"error": error}
    assert USUAL.lines([line], job)[0].text == wanted
    assert "S3CRET" not in str(USUAL.data(event, job))
    assert USUAL.job(hidden.job) == hidden.job, "what is hidden is not hidden again"
    assert USUAL.hidden_in(url, ("payload", "to")) == "payload.to", "nor found by guessing"
    assert Redaction(["password"]).job(job) == job, "a setting that was saved is as it was"
    assert Redaction(["*://*:*@*"]).text(url) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8090/queue", "http://localhost:3000/@vite/client", "https://example.org/@ada:x", "a:b@c",
        "https://example.org:443?to=ada@example.org", "http://[::1]:8080/@x", "mailto:ada@example.org", "://", "://:",
        "at http://a:80 and ada@example.org", "sqlite:///jobs.db", "https://ada@example.org/", "git@host:a/b.git",
        '"http://a:1" "b@c"', "https://example.org/a?b=c:d@e", "postgres://ada:@db/jobs", "x://" + "a" * 300 + ":b@c",
    ],
)  # fmt: skip
def test_urls_without_a_password_are_told(text: str) -> None:
    assert USUAL.text(text) == text
    assert USUAL.hidden_in(text, ("payload", "to")) is None


def test_json_in_a_text_stays_json() -> None:
    told = USUAL.text(json.dumps({"password": 'a"b\\c', "user": "ada", "headers": {"cookie": "a=b; c=d"}, "n": 1}))
    assert json.loads(told) == {"password": MARK, "user": "ada", "headers": {"cookie": MARK}, "n": 1}


def test_a_value_that_was_torn_apart_is_hidden_too() -> None:
    """The history keeps the two ends of a long error. A secret may stand at the cut, on either side."""
    secret = "correct-horse-battery-staple"
    job = a_payload({"password": secret})
    for shift in range(40):
        for text in (
            clean_text("x" * (1995 - shift) + secret + "y" * 5000, 4096),
            clean_text("y" * 5000 + secret + "x" * (1995 - shift), 4096),
        ):
            assert "left out" in text
            told = USUAL.text(text, job)
            assert not any(secret[n : n + 5] in told for n in range(len(secret) - 5)), (shift, told)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    [
        "password=", 'password="', "password='\\", 'password="\\"', "a", "token: ", "_token", "-----BEGIN", "=",
        "x://a:", "://", "x://a:b@", "x://a:1/@", "x://a: ", "x://a:\0",
        "cookie:", "private_key: -----BEGIN ", "password", "authorization: \\'", "'", "aaaa",
        "\n… 1 bytes left out …\n",
    ],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    job = a_payload({"password": "aaaa" * 1000, "token": ["aaab" * 3, "password="]})
    USUAL.text(piece * (1_000_000 // len(piece)), job)
    Redaction(["*a*a*a*a*", "a*b", "*"]).text(piece * (200_000 // len(piece)))


WORDS = "passwordsecrettokenapi_keycookieauthorizationcredentialsaccess_keyprivate_keypassphrase"
VALUES = [f"value{n:05}" for n in range(499)]
ENDS = [f"{'a' * (180 * n)}b" for n in range(1, 60)]
CUT = "\n… 1 bytes left out …\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"secrets": VALUES, "texts": ["abc"] * 100_000}, "value00007"),
        ({"secrets": VALUES, "text": "value0000 " * 90_000}, "value00007"),
        ({"secrets": [f"välue {n}\"" for n in range(400)], "text": "väl" * 200_000}, "välue 1\""),
        ({"secrets": ["[redacted]"[a:b] for a in range(10) for b in range(a + 4, 11)]}, "redacted" * 20_000),
        ({"password": ENDS}, f"{'a' * 400_000}{CUT}{'a' * 400_000}"),
        ({"password": ["aaab" * n for n in range(1, 300)]}, f"aaa{CUT}aaa" * 30_000),
        ({"password": "ü " * 300_000}, "x"),
        ({"text": f"{WORDS} = " * 10_000}, f"{WORDS} = " * 10_000),
        ({"text": "token: x " * 100_000}, "x"),
        ({"secrets": {"of": [[1234, 1234]] * 80_000}}, "1234"),
    ],
)  # fmt: skip
def test_no_job_takes_long_and_what_would_is_hidden_as_a_whole(payload: dict[str, Any], error: str) -> None:
    """A client that writes jobs must not decide how long redaction keeps the server from all other work."""
    began = time.process_time()
    told = USUAL.job(a_payload(payload, result=payload, last_error=error))
    assert time.process_time() - began < 5
    assert told.last_error == MARK


def test_log_lines_and_events_are_looked_through_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redaction also looks only once through the job that the lines or events belong to, not once for each of them."""
    job = a_payload({"password": SECRET, "list": [1, 2]})
    walks = 0
    walk = Redaction._walk

    def counted(self: Redaction, value: Any, path: tuple[str, ...], found: Any) -> Any:
        nonlocal walks
        walks += path == ("payload",)
        return walk(self, value, path, found)

    monkeypatch.setattr(Redaction, "_walk", counted)
    lines = [LogLine(NOW, n, "info", f"{n}: {SECRET}") for n in range(50)]
    assert [line.text for line in USUAL.lines(lines, job)] == [f"{n}: {MARK}" for n in range(50)]
    events = [
        Event(job_id=job.id, seq=n, at=NOW, event="failed", status=None, version=1, by="w", data={"error": SECRET})
        for n in range(50)
    ]
    assert [event.data for event in USUAL.events(events, job)] == [{"error": MARK}] * 50
    assert walks == 2


def test_texts_that_are_looked_through_together_stay_apart() -> None:
    """A quote, a key or a cut hides text only to the end of its own text, whatever text stands next to it."""
    for text in (
        'password="x',
        "password='x",
        "private_key: -----BEGIN KEY-----\nx",
        "cookie: a",
        "token=",
        f"corr{CUT}",
    ):
        payload = {"password": "correct-horse", "list": ["before", text, "behind", 'b"', f"{CUT}orse", "end"]}
        told = shown(USUAL, payload)["list"]
        assert len(told) == 6
        assert (told[0], told[2], told[3], told[4], told[5]) == ("before", "behind", 'b"', f"{CUT}…", "end")
    assert USUAL.text("a\0b") == "a\N{REPLACEMENT CHARACTER}b"


# ── The audit, and what comes back ──


def audited(action: str, data: dict[str, Any], reason: str | None = None) -> Audited:
    return Audited(1, NOW, "ann", action, None, "mail", reason, data)


def test_the_audit_of_a_change_hides_what_was_changed() -> None:
    data = {"before": {"payload": {"password": "old-secret"}}, "after": {"payload": {"password": "new-secret", "n": 1}}}
    told = USUAL.audited(audited("update", data, "was old-secret, token=abc"))
    assert told.data == {"before": {"payload": {"password": MARK}}, "after": {"payload": {"password": MARK, "n": 1}}}
    assert told.reason == f"was {MARK}, token={MARK}"


def test_the_audit_of_bulk_actions_hides_what_they_chose_by() -> None:
    """The filter of a bulk action has a payload path as one name with dots."""
    redaction = Redaction(["user.email", "password"])
    filter = {
        "topics": ["mail"], "payload": {"user.email": "ada@example.org", "user": {"email": "bob@x"}, "n": 1},
        "error": "password=abc",
    }  # fmt: skip
    shown = {
        "topics": ["mail"], "payload": {"user.email": MARK, "user": MARK, "n": 1}, "error": f"password={MARK}",
    }  # fmt: skip
    for action in ("bulk_create", "bulk_start", "bulk_stop"):
        told = redaction.audited(audited(action, {"filter": filter, "count": 3}, "for ada@example.org, password=abc"))
        assert told.data == {"filter": shown, "count": 3}
        assert told.reason == f"for {MARK}, password={MARK}"
    assert redaction.filter(filter) == shown
    assert redaction.filter({"topics": ["mail"]}) == {"topics": ["mail"]}
    assert filter["payload"] == {"user.email": "ada@example.org", "user": {"email": "bob@x"}, "n": 1}


def test_the_audit_of_tokens_and_accounts_is_told_whole() -> None:
    entry = audited("token.revoke", {"token": "0123456789abcdef"})
    assert USUAL.audited(entry) == entry


def test_where_the_mark_stands() -> None:
    assert marked({"a": [{"b": f"x {MARK}"}]}) == "payload.a.b"
    assert marked({"a": MARK}) == "payload.a"
    assert marked({"a": [1, None, "redacted", {}]}) is None


def test_a_filter_on_what_is_hidden_is_known() -> None:
    for path, value in (
        (("payload", "password"), "x"), (("payload", "user"), {"password": "x"}), (("payload", "token", "inner"), 1),
        (("payload", "list"), [{"secret": 1}]),
    ):  # fmt: skip
        assert USUAL.hidden_in(value, path)
    assert USUAL.hidden_in({"name": "password"}, ("payload", "user")) is None
