"""The same mistake has the same fingerprint, and another mistake has another. No text takes long to read."""

import traceback
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.core.fingerprint import GAP, HALF, WHOLE, Cause, cause, check_fingerprint, ends, fingerprint
from rowlock.core.job import Status
from rowlock.core.lifecycle import CRASH_ERROR, CRASH_UNSEEN, Completed, Failed, TimedOut, decide
from rowlock.errors import InvalidInput
from tests.core.test_lifecycle import NOW, a_job

LIBRARIES = [
    "/usr/lib/python3.12/json/decoder.py", "/srv/.venv/lib/python3.12/site-packages/httpx/_client.py",
    "<frozen importlib._bootstrap>", r"C:\Python312\Lib\asyncio\runners.py", "/usr/lib/python3/dist-packages/yaml/x.py",
    "/srv/src/rowlock/runtime/handlers.py", "/srv/src/rowlock/context.py", r"C:\src\rowlock\stores\base.py",
]  # fmt: skip
PLACES = [
    "/srv/shop",
    "/home/ada/work/shop",
    r"C:\shop",
    "/app/releases/2026-01-31T08",
    "",
    "/srv/rowlock",
    "/opt/python/app",
]


def trace(*frames: tuple[str, int, str], said: str = "ValueError: no") -> str:
    lines = [
        f'  File "{path}", line {line}, in {function}\n    go({line})\n    ~~^^^' for path, line, function in frames
    ]
    return "\n".join(["Traceback (most recent call last):", *lines, said])


def raised(act: Callable[[], object]) -> str:
    try:
        act()
    except BaseException:
        return traceback.format_exc()
    raise AssertionError("it did not raise")


# ── Python ──


@given(
    places=st.lists(st.sampled_from(PLACES), min_size=2, max_size=2),
    lines=st.lists(st.integers(1, 9999), min_size=2, max_size=2),
    messages=st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=2, max_size=2),
    outer=st.lists(st.sampled_from(LIBRARIES), max_size=2),
    inner=st.lists(st.lists(st.sampled_from(LIBRARIES), max_size=3), min_size=2, max_size=2),
    final=st.lists(st.booleans(), min_size=2, max_size=2),
)
def test_the_same_mistake_is_the_same_wherever_and_whatever_it_says(
    places: list[str],
    lines: list[int],
    messages: list[str],
    outer: list[str],
    inner: list[list[str]],
    final: list[bool],
) -> None:
    found = set()
    for place, line, message, library, last in zip(places, lines, messages, inner, final, strict=True):
        sign = "\\" if ":" in place else "/"
        text = trace(
            *((path, 5, "run") for path in outer),
            (f"{place}{sign}tasks.py", line, "send"),
            *((path, line, "helper") for path in library),
            said=f"shop.errors.Refused: {message}",
        )
        found.add(fingerprint("mail", f"Max retries exceeded: {text}" if last else text))
        assert (cause(text).type, cause(text).frame) == ("shop.errors.Refused", "tasks.py:send")
    assert len(found) == 1


@given(st.text(st.characters(codec="utf-8"), max_size=300), st.text(max_size=30))
def test_any_text_has_a_fingerprint(error: str, topic: str) -> None:
    assert check_fingerprint(fingerprint(topic, error)) == fingerprint(topic, error)
    found = cause(error)
    assert "\n" not in found.title
    assert all(len(part) <= 200 for part in (found.type, found.frame, found.title))


def test_another_topic_type_or_place_is_another_failure() -> None:
    usual = trace(("/a/tasks.py", 1, "send"))
    others = [
        trace(("/a/tasks.py", 1, "send"), said="KeyError: no"),
        trace(("/a/tasks.py", 1, "fetch")),
        trace(("/a/other.py", 1, "send")),
        trace(("/a/tasks.py", 1, "send"), ("/a/tasks.py", 9, "connect")),
        "ValueError: no",
    ]
    found = {fingerprint("mail", text) for text in (usual, *others)} | {fingerprint("bills", usual)}
    assert len(found) == 7


def test_a_real_traceback_is_read() -> None:
    def parse() -> None:
        import json

        json.loads("{")

    found = cause(raised(parse))
    assert found.type == "json.decoder.JSONDecodeError"
    assert found.frame == "test_fingerprint.py:parse"
    assert found.title.startswith("json.decoder.JSONDecodeError: Expecting property name")


def test_of_a_chain_the_last_one_counts() -> None:
    def send() -> None:
        try:
            raise OSError("down")
        except OSError as error:
            raise RuntimeError("no mail") from error

    assert cause(raised(send)) == Cause("RuntimeError", "test_fingerprint.py:send", "RuntimeError: no mail")


def test_of_a_group_the_first_one_counts() -> None:
    def deep() -> Exception:
        try:
            raise LookupError("deep")
        except LookupError as error:
            return error

    def gather() -> None:
        raise ExceptionGroup("some", [ExceptionGroup("inner", [deep(), KeyError(1)]), ValueError(2)])

    assert cause(raised(gather)) == Cause("LookupError", "test_fingerprint.py:deep", "LookupError: deep")

    def bare() -> None:
        raise ExceptionGroup("some", [ValueError("never raised")])

    assert cause(raised(bare)) == Cause("ValueError", "", "ValueError: never raised")


def test_where_nothing_is_the_applications_own_the_innermost_frame_counts() -> None:
    text = trace((LIBRARIES[0], 1, "outer"), (LIBRARIES[1], 2, "inner"))
    assert cause(text).frame == "_client.py:inner"


def test_a_package_is_known_by_its_name() -> None:
    assert cause(trace(("/srv/shop/mail/__init__.py", 1, "send"))).frame == "mail/__init__.py:send"


def test_an_application_may_be_called_as_it_likes() -> None:
    for path in ("/srv/rowlock/app.py", "/home/rowlock/tasks/x.py", "/srv/python/lib.py", "/lib/app/python.py"):
        text = trace((path, 1, "mine"), (LIBRARIES[0], 1, "theirs"))
        assert cause(text).frame.endswith(":mine"), path


def test_notes_carets_and_several_lines_are_no_part_of_the_type() -> None:
    text = trace(("/a/tasks.py", 1, "send"), said="ValueError: first\n  second: line\nKeyError: not this\na note")
    assert cause(text) == Cause("ValueError", "tasks.py:send", "ValueError: first")


def test_a_syntax_error_has_a_place_without_a_function() -> None:
    text = raised(lambda: compile("a b", "x.py", "exec"))
    assert cause(text).type == "SyntaxError"
    assert cause(text).frame == "test_fingerprint.py:<lambda>"


# ── Other languages, and no language at all ──

NODE = """TypeError: Cannot read properties of undefined (reading 'x')
    at JSON.parse (<anonymous>)
    at Client.get (/app/node_modules/got/index.js:3:4)
    at async send (file:///{}/mail.js?v={}:{}:5)
    at node:internal/main/run:1:2"""
JAVA = """Exception in thread "main" java.lang.RuntimeException: outer {}
\tat com.shop.Main.main(Main.java:{})
Caused by: java.io.IOException: {}
\tat java.base.Files.open(Files.java:1)
\tat com.shop.Mail.send(Mail.java:{})
\t... 3 more"""
GO = """panic: runtime error: index out of range [{}] with length 3

goroutine {} [running]:
panic(0x{})
\t/usr/local/go/src/runtime/panic.go:1
main.send(0x1400{}, 0x3)
\t/app/{}/mail.go:{} +0x1d
main.main()
\t/app/main.go:3 +0x1d
exit status 2"""


@pytest.mark.parametrize(
    ("text", "kind", "frame"),
    [
        (NODE, "TypeError", "mail.js:send"),
        (JAVA, "java.io.IOException", "Mail.java:com.shop.Mail.send"),
        (GO, "panic: runtime error: index out of range # with length #", "mail.go:main.send"),
        ("Error [ERR_TLS]: x\n    at /srv/{}/a.mjs:{}:{}", "ERR_TLS", "a.mjs:<anonymous>"),
        (
            "Shop.Bad: no {}\n   at System.Linq.First(Object)\n   at Shop.Mail.Send(String to) in /x/{}.cs:line {}",
            "Shop.Bad", "Shop.Mail.Send",
        ),
    ],
)  # fmt: skip
def test_stacks_of_other_languages_are_read(text: str, kind: str, frame: str) -> None:
    one, other = (text.format(*([n] * text.count("{}"))) for n in (7, 991))
    assert one != other
    assert (cause(one).type, cause(one).frame) == (kind, frame)
    assert fingerprint("mail", one) == fingerprint("mail", other)


@pytest.mark.parametrize(
    "text",
    [
        "Timed out: the handler ran for more than {} s",
        "Task timed out (worker crashed?): worker host-{}-abcdef12, killed by SIGKILL, {} MB",
        "HTTPError: {} from https://example.org/{}",
        "curl: ({}) can't resolve host 'x{}.example.org'",
        "no row with id 0193fb1e-0000-7000-8000-00000000000{}",
        "cannot open /home/user{}/file: permission denied",
        "Error: order {} of ada{}@example.org is gone",
        "checksum deadbeef{} differs",
    ],
)
def test_words_are_the_same_whatever_they_are_about(text: str) -> None:
    one, other = (text.replace("{}", str(n)) for n in (7, 4))
    assert fingerprint("mail", one) == fingerprint("mail", other)


@pytest.mark.parametrize(
    "text",
    [
        "login failed: password={}", "login failed with db_password = {} for ada", 'refused: {"password": "{}"}',
        "refused: {'api_key': '{} {}', 'a': b}", "bad token: {}", "got Authorization: Bearer {}",
        "Cookie: a={}; b={} {}",
        "no: access_token=>{}", "password: {}", "can't log in (user=ada, password={})",
        'broken \\"secret\\": \\"{}\\" here',
        "key {}{}{}{}{} is wrong", "unclosed password='{} and", "set-cookie={} {}",
        'no such user: "{}"', "x-api-key:{}",
    ],
)  # fmt: skip
def test_what_may_be_secret_is_no_part_of_it(text: str) -> None:
    """Otherwise a reader of a fingerprint could try passwords until one fits, and each password would make a group."""
    words = ("hunter", "letmein", "correcthorse", "qwertz")
    found = {fingerprint("mail", text.replace("{}", word)) for word in words}
    assert len(found) == 1
    assert not any(word in cause(text.replace("{}", word)).type for word in words)
    assert fingerprint("mail", text.replace("{}", words[0]) + " x") != fingerprint("mail", "something else")


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("login failed: password=hunter for ada", "54cac73dfa7995ee"),
        ('refused: {"password": "a b", "user": "ada"} again', "aadde5a8f4ffc255"),
        ('refused: {"password": "a\\"b c"} again', "845c7dd36d7aa86f"),
        ("Cookie: a=b; c=d", "8723ff2ded56c2b6"),
        ("got Authorization: Bearer abc and more", "7c476d611bda159c"),
        ('broken \\"cookie\\": \\"x y\\" here', "df05d8f6e90a9987"),
        ("bad token     =    abc here", "629a1630f1347747"),
        ("no `api_key`: `x y` in it", "bc0544bdc395d74f"),
        ("secret = cookie: x; y=z", "c6822a7b320a6c0e"),
        ("max_tokens=500 is too much", "da3c33e458a57b63"),
        ("password=token=abc rest", "ca1a02885ef797f7"),
    ],
)
def test_fingerprints_in_databases_stay_valid(text: str, stored: str) -> None:
    """A change of how secrets are found must not move dead letters to other groups."""
    assert fingerprint("mail", text) == stored


def test_a_traceback_without_a_type_keeps_its_secrets_too() -> None:
    one, other = (trace(("/a/tasks.py", 1, "send"), said=f"it said password={word}") for word in ("abc", "xyz"))
    assert fingerprint("mail", one) == fingerprint("mail", other)


def test_different_words_are_different() -> None:
    texts = [
        "Timed out: the handler ran for more than 5 s",
        "Error: no money",
        "Error: no mail",
        "Expired: x",
        "",
        "out of disk",
    ]
    assert len({fingerprint("mail", text) for text in texts}) == len(texts)
    assert fingerprint("mail", None) == fingerprint("mail", "")
    died = "Task timed out (worker crashed?): worker w1, killed by {}"
    assert fingerprint("mail", died.format("SIGKILL")) != fingerprint("mail", died.format("SIGSEGV"))


def test_what_nobody_knows_about_a_crash_is_no_part_of_it() -> None:
    """Earlier releases did not say that nothing is known of the crash. Their dead letters stay in the same group."""
    found = {fingerprint("mail", f"{CRASH_ERROR}: worker {one}") for one in ("w1", "w1.local", "host-7-ab12")}
    found |= {fingerprint("mail", f"{CRASH_ERROR}: worker {one}{CRASH_UNSEEN}") for one in ("w2", "host-8-cd34")}
    assert len(found) == 1
    assert cause(f"{CRASH_ERROR}: worker w1{CRASH_UNSEEN}").type == f"{CRASH_ERROR}: worker"


# ── Long ones ──


def test_of_a_long_error_both_ends_are_looked_at() -> None:
    assert ends("x" * WHOLE) == "x" * WHOLE
    cut = ends("a" * HALF + "b" * HALF + "c" * HALF)
    assert cut == "a" * HALF + GAP + "c" * HALF
    assert ends(cut) == cut
    long = "x" * (2 * WHOLE)
    usual = trace(("/a/tasks.py", 1, "send"))
    assert fingerprint("m", usual + long) == fingerprint("m", usual)
    assert fingerprint("m", f"{long}\n{usual}") == fingerprint("m", usual)
    deep = trace(*[("/a/tasks.py", n, "send") for n in range(5000)])
    assert fingerprint("m", deep) == fingerprint("m", usual)


NASTY = [
    "a", "'", '"', "(", "?", ":", ":1", "\t", "\n", " at ", "\n at (", "\n at a:1", "\n at ??:1", 'File "', "+-+-",
    '  File "x", line 3, in y\n', "Traceback (most recent call last):\n", "\n  +-+--- 1 ---\n", "goroutine 1 [r]:\n",
    "… ", "worker ", ": worker ", "Caused by: ", "0", "/", "a.", "| ", "`'`", "\n… left out …\n",
    "password", "password=",
]  # fmt: skip


@pytest.mark.timeout(20)  # the worst text takes some 10 ms; a runaway search took a minute and a half
@pytest.mark.parametrize("piece", NASTY)
def test_no_text_takes_long(piece: str) -> None:
    for text in (piece * (1_000_000 // len(piece)), f"x {piece * 60_000}", f"\n at {piece * 20_000}:1:"):
        fingerprint("mail", text)


# ── Which jobs have a fingerprint ──


def test_only_what_fails_for_good_has_one() -> None:
    job = a_job(topic="mail", retries=0, max_retries=1)
    last = a_job(topic="mail", retries=1, max_retries=1)
    text = trace(("/a/tasks.py", 1, "send"))
    assert decide(job, Failed(text), NOW).fingerprint is None
    assert decide(job, Completed(), NOW).fingerprint is None
    assert decide(job, Failed(text, final=True), NOW).fingerprint == fingerprint("mail", text)
    assert decide(last, Failed(text), NOW).fingerprint == fingerprint("mail", text)
    assert decide(last, TimedOut(5.0), NOW).fingerprint == fingerprint(
        "mail", "Timed out: the handler ran for more than 6 s"
    )
    cancelled = decide(a_job(status=Status.CANCEL_REQUESTED), Failed(text), NOW)
    assert (cancelled.status, cancelled.fingerprint) == (Status.CANCELLED, None)


@pytest.mark.parametrize("value", ["", "x" * 16, "A" * 16, "0" * 15, "0" * 17, "0" * 15 + "\n", 7, None])
def test_what_is_no_fingerprint(value: object) -> None:
    with pytest.raises(InvalidInput, match="fingerprint"):
        check_fingerprint(value)
