"""What of a job is not shown: fields whose names say that they are secret, and the same values wherever else they are.

A pattern is a name, or several with dots between. It fits a field if it fits the end of the field's path: `password`
any field of that name, `user.email` the email of any user, `payload.user.email` that of the payload alone, `headers.*`
all headers. Places in lists are no part of a path; `*` stands for anything within a name; A-Z and a-z are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import is_not
from typing import Any
from urllib.parse import quote, quote_plus

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.codec import check_text
from rowlock.core.job import Event, Job, LogLine
from rowlock.errors import InvalidInput
from rowlock.stores.records import Audited

MARK = "[redacted]"
MOST_PATTERNS = 200
LONGEST_PATTERN = 200
MOST_STEPS = 8

# Names that mean a credential wherever they stand. Not what is private in one application and the whole point of
# another (email, phone, name): who looks after failed mails must see to whom they went. Nor a bare `key`, `auth` or
# `pin`: too many harmless things are called so.
DEFAULTS = (
    "*password*", "passwd", "*passphrase*", "*secret*", "*token", "*api_key", "*apikey", "*api-key", "*private_key",
    "*privatekey", "*access_key", "*accesskey", "credentials", "*authorization", "*cookie", "card_number", "cardnumber",
    "cvv", "cvc",
)  # fmt: skip

_NO_JOBS = ("settings.", "session.", "superuser.", "token.")  # in the audit: they have no secrets, but names of them
_SHORTEST = 4  # characters of a value that is looked for in texts: shorter ones stand in too many words
_MOST_VALUES = 500  # of one job; with more, its texts are hidden as a whole
_MOST_KNOWN = 10_000  # names of fields that are remembered
_MOST_PATHS = 100  # that are told
_LEFT_OUT = re.compile(r"\n… [\d,]+ bytes left out …\n")  # core.codec.clean_text cuts the middle out
_SAME_EVERYWHERE = re.compile(r"[A-Za-z0-9_.~-]+")
_ESCAPES = re.compile(r"""["'\\]""")
_LONGEST_KEY = 16_384
_LINE_LONG = ("cookie", "authorization")  # headers whose value is the rest of the line
# What stands behind a name: its end (a quote, perhaps escaped), a sign, and a value, which may be in quotes. A quote
# that is not closed hides the rest of the line.
_SIGN = rb"""\\?["']?[ \t]{0,4}(?:=>|[=:])[ \t]{0,4}"""
_QUOTES = (
    rb"""\\"[^"]{0,16384}"|\\'[^']{0,16384}'|"(?:[^"\\]|\\.){0,16384}"|'(?:[^'\\]|\\.){0,16384}'|\\?["'][^\r\n]*"""
)
_BARE = rb"""(?:(?:bearer|basic|digest|token)[ \t]+)?[^\s&"'<>]+"""
_BEHIND = re.compile(_SIGN)
_VALUE = re.compile(rb"%b|%b" % (_QUOTES, _BARE), re.IGNORECASE | re.DOTALL)
_REST_OF_LINE = re.compile(rb"%b|[^\r\n]+" % _QUOTES)


class Hidden(Struct, frozen=True):
    """A job as it may be shown, and the paths of what was hidden."""

    job: Job
    paths: list[str]


class _Found(Struct):
    """On a walk through a job's JSON."""

    paths: list[str] = []
    values: set[str] = set()

    def tell(self, path: str) -> None:
        if len(self.paths) < _MOST_PATHS and path not in self.paths:
            self.paths.append(path)


def check_patterns(value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInput("redact", "not_a_list", f"must be a list of field patterns, not {type(value).__name__}")
    if len(value) > MOST_PATTERNS:
        raise InvalidInput("redact", "too_many", f"has {len(value)} patterns, at most {MOST_PATTERNS} are allowed")
    return list(dict.fromkeys(_check_pattern(one) for one in value))


def _check_pattern(pattern: object) -> str:
    text = check_text(pattern, "redact", max_chars=LONGEST_PATTERN)
    steps = text.split(".")
    if len(steps) > MOST_STEPS or any(not step or step != step.strip() for step in steps) or not text.isprintable():
        raise InvalidInput("redact", "bad_pattern", f"{text!r:.80} is no name, nor several with dots between")
    return text


@lru_cache(64)
def redaction(patterns: tuple[str, ...]) -> Redaction:
    return Redaction(patterns)


class Redaction:
    """For everything that leaves the server, to whomever it goes. `job`, `hide`, `event`, `line`, `audited` are for
    what they say, `text` for anything else that may tell of a job."""

    def __init__(self, patterns: Sequence[str]) -> None:
        split = [tuple(pattern.casefold().split(".")) for pattern in patterns]
        self._names = [_matcher(steps[0]) for steps in split if len(steps) == 1]
        self._patterns = [tuple(map(_matcher, steps)) for steps in split if len(steps) > 1]
        self._words = _Words({steps[-1] for steps in split})
        self._known: dict[str, bool | None] = {}  # by name: is a field of this name hidden? None: that depends

    def __bool__(self) -> bool:
        return bool(self._names or self._patterns)

    # ── Fields ──

    def fits(self, path: Sequence[str]) -> bool:
        """Is this field hidden? Of a path that goes on below a hidden field, ask for its beginnings as well."""
        known = self._by_name(path[-1])
        return any(_ends_with(path, pattern) for pattern in self._patterns) if known is None else known

    def _by_name(self, name: str) -> bool | None:
        if name not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            folded = name.casefold()
            depends = any(pattern[-1](folded) for pattern in self._patterns)
            self._known[name] = True if any(fits(folded) for fits in self._names) else None if depends else False
        return self._known[name]

    def hides(self, path: Sequence[str]) -> bool:
        """Is it hidden, or part of what is?"""
        return any(self.fits(path[: n + 1]) for n in range(len(path)))

    def hidden_in(self, value: Any, path: tuple[str, ...]) -> str | None:
        """The first hidden field in a value that stands at `path`, itself included."""
        found = _Found()
        if self.hides(path):
            return ".".join(path)
        self._walk(value, path, found)
        return found.paths[0] if found.paths else None

    def marked(self, value: Any, path: tuple[str, ...] = ("payload",)) -> str | None:
        """The first hidden field whose value is the mark."""
        members = value.items() if isinstance(value, dict) else ()
        items = value if isinstance(value, list) else ()
        for name, member in members:
            at = (*path, name)
            if member == MARK and self.fits(at):
                return ".".join(at)
            if (found := self.marked(member, at)) is not None:
                return found
        return next((found for item in items if (found := self.marked(item, path)) is not None), None)

    # ── What leaves ──

    def job(self, job: Job) -> Job:
        return self.hide(job).job

    def hide(self, job: Job) -> Hidden:
        if not self:
            return Hidden(job, [])
        found = _Found()
        payload = self._walk(job.payload, ("payload",), found)
        result = self._walk(job.result, ("result",), found)
        say = self._texts(found.values)
        changes: dict[str, Any] = {}
        for name, value, was in (("payload", payload, job.payload), ("result", result, job.result)):
            if (told := _each_text(value, say, (name,), found)) is not was:
                changes[name] = told
        for name in ("last_error", "message", "stage", "cancel_reason"):
            was = getattr(job, name)
            if was is not None and (told := say(was)) != was:
                changes[name] = told
                found.tell(name)
        return Hidden(replace(job, **changes) if changes else job, found.paths)

    def event(self, event: Event, job: Job) -> Event:
        """`job`: whose it is. What is hidden there is hidden here."""
        return replace(event, data=self.data(event.data, job)) if self and event.data else event

    def line(self, line: LogLine, job: Job) -> LogLine:
        return replace(line, text=self.text(line.text, job))

    def audited(self, entry: Audited, job: Job | None = None) -> Audited:
        """`job`: that it is about, if it is still there."""
        if not self or entry.action.startswith(_NO_JOBS):
            return entry
        found = _Found()
        data = self._walk(entry.data, (), found)
        say = self._texts(found.values | self._values(job))
        reason = None if entry.reason is None else say(entry.reason)
        return replace(entry, data=_each_text(data, say, (), found), reason=reason)

    def data(self, data: Any, job: Job | None = None) -> Any:
        """Any JSON that tells of a job."""
        if not self:
            return data
        found = _Found()
        told = self._walk(data, (), found)
        return _each_text(told, self._texts(found.values | self._values(job)), (), found)

    def text(self, text: str, job: Job | None = None) -> str:
        """Any text that tells of a job."""
        return self._texts(self._values(job))(text) if self else text

    def teller(self, job: Job) -> Callable[[str], str]:
        """The same for all that a job is going to say."""
        return self._texts(self._values(job))

    def said(self, text: str | None) -> str | None:
        """The same of what somebody may have said, or not."""
        return text and self.text(text)

    # ── Inside ──

    def _values(self, job: Job | None) -> set[str]:
        found = _Found()
        if job is not None:
            self._walk(job.payload, ("payload",), found)
            self._walk(job.result, ("result",), found)
        return found.values

    def _walk(self, value: Any, path: tuple[str, ...], found: _Found) -> Any:
        """The same without what is hidden; the very same if nothing is."""
        if type(value) is dict:
            changed, known = None, self._known
            for name, member in value.items():
                if known.get(name) is not False and self.fits((*path, name)):
                    told: Any = MARK if member is not None else None
                    found.tell(".".join((*path, name)))
                    found.values.update(_leaves(member))
                elif type(member) is dict or type(member) is list:
                    told = self._walk(member, (*path, name), found)
                else:
                    continue
                if told is not member:
                    changed = dict(value) if changed is None else changed
                    changed[name] = told
            return value if changed is None else changed
        if type(value) is list:
            items = [self._walk(item, path, found) for item in value]
            return items if any(map(is_not, items, value)) else value
        return value

    def _texts(self, values: set[str]) -> Callable[[str], str]:
        """Hides in a text what the values are, and what stands behind the names of hidden fields."""
        if len(values) > _MOST_VALUES:
            return lambda text: MARK if text else text
        spelled = sorted({word for value in values for word in _spelled(value)}, key=len, reverse=True)

        if not spelled:
            return self._words.hide

        def say(text: str) -> str:
            for word in spelled:
                if word in text:
                    text = text.replace(word, MARK)
            if "left out" in text:
                text = _without_torn(text, spelled)
            return self._words.hide(text)

        return say


class _Words:
    """Finds name=value, name: value and "name": "value" in texts."""

    def __init__(self, names: set[str]) -> None:
        # Looked for is the longest part of a name; then the whole word must fit. A * alone would be every word.
        parts = {name: max(name.split("*"), key=len) for name in names}
        self._names = [(part.encode(), _matcher(name)) for name, part in sorted(parts.items()) if part]

    def hide(self, text: str) -> str:
        if "=" not in text and ":" not in text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        lower = data.lower()  # A-Z alone: every place stays where it is
        spans = sorted(span for part, fits in self._names if part in lower for span in _spans(data, lower, part, fits))
        if not spans:
            return text
        told, done = [], 0
        for begin, end in spans:
            if begin >= done:
                told += [data[done:begin], MARK.encode()]
            done = max(done, end)
        return b"".join([*told, data[done:]]).decode("utf-8", "surrogatepass")


def _spans(data: bytes, lower: bytes, part: bytes, fits: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """Where values stand behind words that have this part, and fit."""
    at = lower.find(part)
    while at >= 0:
        end = at + len(part)
        while at and _is_word(lower[at - 1]):
            at -= 1
        while end < len(lower) and _is_word(lower[end]):
            end += 1
        word = lower[at:end].decode("utf-8", "replace")
        sign = _BEHIND.match(data, end) if len(word) <= LONGEST_PATTERN and fits(word) else None
        if sign is not None:
            value = (_REST_OF_LINE if word.endswith(_LINE_LONG) else _VALUE).match(data, sign.end())
            if value is not None:
                end = _end_of_key(data, sign.end()) or value.end()
                yield _unquoted(data, sign.end(), end)
        at = lower.find(part, end)


def _end_of_key(data: bytes, begin: int) -> int | None:
    """Of a key in PEM, which has many lines."""
    if not data.startswith(b"-----BEGIN", begin):
        return None
    longest = min(begin + _LONGEST_KEY, len(data))
    footer = data.find(b"-----END", begin, longest)
    end = -1 if footer < 0 else data.find(b"\n", footer, longest)
    return longest if end < 0 else end


def _unquoted(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Quotes stay, so that what was JSON is JSON still."""
    begin += data[begin : begin + 1] == b"\\"
    if data[begin : begin + 1] in (b'"', b"'") and end - begin >= 2 and data[end - 1] == data[begin]:
        begin, end = begin + 1, end - 1
        end -= data[end - 1 : end] == b"\\"
    return begin, max(begin, end)


def _is_word(byte: int) -> bool:
    return byte in (45, 95) or 48 <= byte <= 57 or 97 <= byte <= 122 or byte >= 128  # of lower case


def _matcher(step: str) -> Callable[[str], bool]:
    if "*" not in step:
        return step.__eq__
    first, *middle, last = step.split("*")
    parts = [part for part in middle if part]

    def fits(name: str) -> bool:
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return False
        at, end = len(first), len(name) - len(last)
        for part in parts:
            at = name.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return fits


def _ends_with(path: Sequence[str], pattern: tuple[Callable[[str], bool], ...]) -> bool:
    if len(path) < len(pattern):
        return False
    return all(fits(name.casefold()) for name, fits in zip(path[-len(pattern) :], pattern, strict=True))


def _leaves(value: Any) -> Iterator[str]:
    """The texts and numbers in it, as they may stand elsewhere."""
    if isinstance(value, dict):
        for member in value.values():
            yield from _leaves(member)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str) and len(value) >= _SHORTEST and value != MARK:
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool) and len(str(value)) >= _SHORTEST:
        yield str(value)


def _spelled(value: str) -> set[str]:
    """As it is, and as JSON, Python and URLs write it."""
    if _SAME_EVERYWHERE.fullmatch(value):
        return {value}
    in_urls = {value, quote(value, safe=""), quote(value), quote_plus(value)}
    if value.isascii() and value.isprintable() and not _ESCAPES.search(value):
        return in_urls
    return {*in_urls, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}


def _each_text(value: Any, say: Callable[[str], str], path: tuple[str, ...], found: _Found) -> Any:
    """JSON with its texts said so; the very same if nothing is said otherwise."""
    if type(value) is dict:
        changed = None
        for name, member in value.items():
            if type(member) is str:
                told: Any = say(member)
                if told == member:
                    continue
                found.tell(".".join((*path, name)))
            elif type(member) is dict or type(member) is list:
                told = _each_text(member, say, (*path, name), found)
                if told is member:
                    continue
            else:
                continue
            changed = dict(value) if changed is None else changed
            changed[name] = told
        return value if changed is None else changed
    if type(value) is list:
        items = [_each_text(item, say, path, found) for item in value]
        return items if any(map(is_not, items, value)) else value
    if type(value) is str and (told := say(value)) != value:
        found.tell(".".join(path))
        return told
    return value


def _without_torn(text: str, values: Sequence[str]) -> str:
    """Where the middle of a text was cut out, a value may have lost an end."""
    parts = _LEFT_OUT.split(text)
    gaps = _LEFT_OUT.findall(text)
    for n, part in enumerate(parts):
        for value in values:
            if n < len(gaps):
                part = _without_end(part, value)
            if n:
                part = _without_end(part[::-1], value[::-1])[::-1]
        parts[n] = part
    return parts[0] + "".join(f"{gap}{part}" for gap, part in zip(gaps, parts[1:], strict=True))


def _without_end(text: str, value: str) -> str:
    """Without the beginning of the value, if the text ends with it."""
    at = text.find(value[:_SHORTEST], max(0, len(text) - len(value) + 1))
    while at >= 0:
        if value.startswith(text[at:]):
            return f"{text[:at]}…"
        at = text.find(value[:_SHORTEST], at + 1)
    return text


def marked(value: Any, path: str = "payload") -> str | None:
    """Where a text holds the mark."""
    if isinstance(value, str):
        return path if MARK in value else None
    items: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        items = [(f"{path}.{name}", member) for name, member in value.items()]
    elif isinstance(value, list):
        items = [(path, item) for item in value]
    return next((found for at, member in items if (found := marked(member, at)) is not None), None)
