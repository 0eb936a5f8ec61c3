"""What of a job is not shown: fields whose names say that they are secret, and the same values wherever else they are.

A pattern is a name, or several with dots between. It fits a field if it fits the end of the field's path: `password`
any field of that name, `user.email` the email of any user, `payload.user.email` that of the payload alone, `headers.*`
all headers. Places in lists are no part of a path; `*` stands for anything within a name; A-Z and a-z are the same.
One pattern is about values, not names: `*://*:*@*` hides the passwords in URLs, in whatever text they stand.
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
from rowlock.core.secret_names import SECRET_NAMES, hide_url_passwords
from rowlock.errors import InvalidInput
from rowlock.stores.records import Audited

MARK = "[redacted]"
MOST_PATTERNS = 200
LONGEST_PATTERN = 200
MOST_STEPS = 8

URLS = "*://*:*@*"
DEFAULTS = (*SECRET_NAMES, URLS)

_NO_JOBS = ("settings.", "session.", "superuser.", "token.")  # in the audit: they have no secrets, but names of them
_SHORTEST = 4  # characters of a value that is looked for in texts: shorter ones stand in too many words
# How much work the texts of one job may be, all together: what is more is hidden as a whole. A server has other things
# to do, and who writes jobs must not choose how long they take.
_MOST_VALUES = 500
_MOST_LEAVES = 10_000  # texts and numbers in hidden fields, the same ones too
_MOST_SPELLED = 100_000  # characters of values that are written otherwise in JSON or URLs
_MOST_SEARCHED = 30_000_000  # characters of texts, times values
_MOST_FOUND = 10_000  # times a value stands in texts; and names behind which one may stand
_MOST_TORN = 1_000_000  # characters of values, times places where a text was cut
_MOST_BEGINNINGS = 20  # of a value before such a place
_BETWEEN = "\0"  # texts, when many are looked through at once: no job holds it
_MOST_KNOWN = 10_000  # names of fields that are remembered
_MOST_PATHS = 100  # that are told
_WORDS = ("last_error", "message", "stage", "cancel_reason")  # of a job, in people's words
_LEFT_OUT = re.compile(r"\n… [\d,]+ bytes left out …\n")  # core.codec.clean_text cuts the middle out
_NESTED = frozenset({dict, list})
_TOLD = frozenset({dict, list, str})
_SAME_EVERYWHERE = re.compile(r"[A-Za-z0-9_.~-]+")
_ESCAPES = re.compile(r"""["'\\]""")
_LONGEST_KEY = 16_384
_LINE_LONG = ("cookie", "cookies", "authorization")  # headers whose value is the rest of the line
# What stands behind a name: its end (a quote, perhaps escaped), a sign, and a value, which may be in quotes. A quote
# that is not closed hides the rest of the line.
_SIGN = rb"""\\?["']?[ \t]{0,4}(?:=>|[=:])[ \t]{0,4}"""
_QUOTES = (
    rb"""\\"[^"\0]{0,16384}"|\\'[^'\0]{0,16384}'|"(?:[^"\\\0]|\\[^\0]){0,16384}"|'(?:[^'\\\0]|\\[^\0]){0,16384}'"""
    rb"""|\\?["'][^\r\n\0]*"""
)
_BARE = rb"""(?:(?:bearer|basic|digest|token)[ \t]+)?[^\s&"'<>\0]+"""
_BEHIND = re.compile(_SIGN)
_VALUE = re.compile(rb"%b|%b" % (_QUOTES, _BARE), re.IGNORECASE)
_REST_OF_LINE = re.compile(rb"%b|[^\r\n\0]+" % _QUOTES)
_REST_OF_WORD = re.compile(rb"[-_0-9a-z\x80-\xff]*")  # of lower case
_OF_WORDS = bytes(byte for byte in range(256) if _REST_OF_WORD.fullmatch(bytes([byte])))


class Hidden(Struct, frozen=True):
    """A job as it may be shown, and the paths of what was hidden."""

    job: Job
    paths: list[str]


class _Found(Struct):
    """On a walk through a job's JSON."""

    paths: dict[str, None] = {}
    values: set[str] = set()
    leaves: int = 0
    known: dict[tuple[str, ...], bool] = {}  # by path: is it hidden?

    def tell(self, path: tuple[str, ...]) -> None:
        if len(self.paths) < _MOST_PATHS:
            self.paths[".".join(path)] = None

    def take(self, value: Any) -> None:
        """The texts and numbers in what is hidden, as they may stand elsewhere. One too many is enough to know."""
        left = [value]
        while left and self.leaves <= _MOST_LEAVES:
            one = left.pop()
            self.leaves += 1
            if isinstance(one, dict):
                left += one.values()
            elif isinstance(one, list):
                left += one
            elif isinstance(one, str) and len(one) >= _SHORTEST and one != MARK:
                self.values.add(one)
            elif isinstance(one, int | float) and not isinstance(one, bool) and len(str(one)) >= _SHORTEST:
                self.values.add(str(one))


class _Texts:
    """The texts of one thing that leaves, looked through at once: first all are taken, then they are given back in the
    same order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, text: str) -> str:
        self.taken.append(text)
        return text


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
        self._urls = URLS in patterns
        split = [tuple(pattern.casefold().split(".")) for pattern in patterns if pattern != URLS]
        self._names = [_matcher(steps[0]) for steps in split if len(steps) == 1]
        self._patterns = [tuple(map(_matcher, steps)) for steps in split if len(steps) > 1]
        self._words = _Words({steps[-1] for steps in split})
        self._some_part = _some_part({steps[-1] for steps in split})
        self._known: dict[str, bool | None] = {}  # by name: is a field of this name hidden? None: that depends

    def __bool__(self) -> bool:
        return bool(self._names or self._patterns or self._urls)

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
            if self._some_part(folded) is None:
                self._known[name] = False
                return False
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
        if self._urls:
            _each_text(value, _without_url_passwords, path, found)
        return next(iter(found.paths), None)

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
        words = {name: getattr(job, name) for name in _WORDS if getattr(job, name) is not None}
        told = self._told({"payload": payload, "result": result, **words}, found)
        changes = {name: value for name, value in told.items() if value is not getattr(job, name)}
        return Hidden(replace(job, **changes) if changes else job, list(found.paths))

    def event(self, event: Event, job: Job) -> Event:
        """`job`: whose it is. What is hidden there is hidden here."""
        return replace(event, data=self.data(event.data, job)) if self and event.data else event

    def events(self, events: Sequence[Event], job: Job) -> list[Event]:
        told = self.data([event.data for event in events], job)
        return [replace(event, data=data) for event, data in zip(events, told, strict=True)]

    def line(self, line: LogLine, job: Job) -> LogLine:
        return self.lines([line], job)[0]

    def lines(self, lines: Sequence[LogLine], job: Job) -> list[LogLine]:
        told = self.texts([line.text for line in lines], job)
        return [replace(line, text=text) for line, text in zip(lines, told, strict=True)]

    def audited(self, entry: Audited, job: Job | None = None) -> Audited:
        """`job`: that it is about, if it is still there."""
        if not self or entry.action.startswith(_NO_JOBS):
            return entry
        found = self._found(job)
        data = self._walk(entry.data, (), found)
        if entry.action.startswith("bulk_") and isinstance(data.get("filter"), dict):
            data = {**data, "filter": self._filter(data["filter"], found)}
        told = self._told({"data": data, "reason": entry.reason}, found)
        return replace(entry, **told)

    def filter(self, filter: dict[str, Any]) -> dict[str, Any]:
        """What jobs were chosen by. Who may reveal a value may look for it; who looks on sees neither."""
        found = _Found()
        told: dict[str, Any] = self._told(self._filter(filter, found), found)
        return told

    def data(self, data: Any, job: Job | None = None) -> Any:
        """Any JSON that tells of a job."""
        if not self:
            return data
        found = self._found(job)
        return self._told(self._walk(data, (), found), found)

    def text(self, text: str, job: Job | None = None) -> str:
        """Any text that tells of a job."""
        return self._say([text], self._found(job))[0] if self else text

    def texts(self, texts: Sequence[str], job: Job | None = None) -> list[str]:
        return self._say(texts, self._found(job)) if self else list(texts)

    def teller(self, job: Job) -> Callable[[str], str]:
        """The same for all that a job is going to say."""
        found = self._found(job)
        return lambda text: self._say([text], found)[0]

    def said(self, text: str | None) -> str | None:
        """The same of what somebody may have said, or not."""
        return text and self.text(text)

    # ── Inside ──

    def _found(self, job: Job | None) -> _Found:
        found = _Found()
        if job is not None:
            self._walk(job.payload, ("payload",), found)
            self._walk(job.result, ("result",), found)
        return found

    def _walk(self, value: Any, path: tuple[str, ...], found: _Found) -> Any:
        """The same without what is hidden; the very same if nothing is."""
        if type(value) is dict:
            changed, known = None, self._known
            for name, member in value.items():
                if known.get(name) is not False and self._fits((*path, name), found):
                    told: Any = MARK if member is not None else None
                    if len(found.paths) < _MOST_PATHS:
                        found.tell((*path, name))
                    if found.leaves <= _MOST_LEAVES:
                        found.take(member)
                elif member and type(member) in _NESTED:
                    told = self._walk(member, (*path, name), found)
                else:
                    continue
                if told is not member:
                    changed = dict(value) if changed is None else changed
                    changed[name] = told
            return value if changed is None else changed
        if type(value) is list:
            items = [self._walk(item, path, found) if item and type(item) in _NESTED else item for item in value]
            return items if any(map(is_not, items, value)) else value
        return value

    def _filter(self, filter: dict[str, Any], found: _Found) -> dict[str, Any]:
        """Without what is asked of hidden fields, whose paths are written in one there."""
        asked = dict(filter.get("payload", ()))
        hidden = [path for path in asked if self.hidden_in(asked[path], ("payload", *path.split("."))) is not None]
        for path in hidden:
            found.take(asked[path])
            asked[path] = MARK
        return {**filter, "payload": asked} if hidden else filter

    def _fits(self, path: tuple[str, ...], found: _Found) -> bool:
        if path not in found.known:
            found.known[path] = self.fits(path)
        return found.known[path]

    def _told(self, value: Any, found: _Found) -> Any:
        """JSON with its texts as they may be told; the very same if all may."""
        texts = _Texts()
        _each_text(value, texts.take, (), _Found())
        told = self._say(texts.taken, found)
        if told == texts.taken:
            return value
        given = iter(told)
        return _each_text(value, lambda _: next(given), (), found)

    def _say(self, texts: Sequence[str], found: _Found) -> list[str]:
        """Hides in texts what was found, and what stands behind the names of hidden fields. All together: there
        may be a hundred thousand of them."""
        everything = _BETWEEN.join(texts)
        if everything.count(_BETWEEN) >= max(len(texts), 1):
            everything = _BETWEEN.join(text.replace(_BETWEEN, "\N{REPLACEMENT CHARACTER}") for text in texts)
        try:
            if found.values:
                everything = _without(everything, found)
            if self._urls:
                everything = _without_url_passwords(everything)
            return self._words.hide(everything).split(_BETWEEN) if texts else []
        except _TooMuch:
            return [text and MARK for text in texts]


class _TooMuch(Exception):
    """To look for."""


class _Words:
    """Finds name=value, name: value and "name": "value" in texts."""

    def __init__(self, names: set[str]) -> None:
        # Looked for is the longest part of a name; then the whole word must fit. A * alone would be every word.
        self._names = [(part.encode(), _matcher(name)) for name in sorted(names) if (part := _longest_part(name))]

    def hide(self, text: str) -> str:
        if "=" not in text and ":" not in text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        lower = data.lower()  # A-Z alone: every place stays where it is
        spans: list[tuple[int, int]] = []
        looked = 0
        for part, fits in self._names:
            for span in _spans(data, lower, part, fits):
                looked += 1
                if looked > _MOST_FOUND:
                    raise _TooMuch
                if span is not None:
                    spans.append(span)
        if not spans:
            return text
        told, done = [], 0
        for begin, end in sorted(spans):
            if begin >= done:
                told += [data[done:begin], MARK.encode()]
            done = max(done, end)
        return b"".join([*told, data[done:]]).decode("utf-8", "surrogatepass")


def _spans(data: bytes, lower: bytes, part: bytes, fits: Callable[[str], bool]) -> Iterator[tuple[int, int] | None]:
    """Where values stand behind words that have this part, and fit; None for a word that has no such value."""
    at = lower.find(part)
    while at >= 0:
        before = lower[max(at - LONGEST_PATTERN, 0) : at]
        begin, end = at - len(before) + len(before.rstrip(_OF_WORDS)), _end_of_word(lower, at + len(part))
        span = None
        word = lower[begin:end].decode("utf-8", "replace") if end - begin <= LONGEST_PATTERN else ""
        sign = _BEHIND.match(data, end) if word and fits(word) else None
        if sign is not None:
            value = (_REST_OF_LINE if word.endswith(_LINE_LONG) else _VALUE).match(data, sign.end())
            if value is not None:
                end = _end_of_key(data, sign.end()) or value.end()
                span = _unquoted(data, sign.end(), end)
        yield span
        at = lower.find(part, end)


def _end_of_word(lower: bytes, at: int) -> int:
    rest = _REST_OF_WORD.match(lower, at)
    return at if rest is None else rest.end()


def _end_of_key(data: bytes, begin: int) -> int | None:
    """Of a key in PEM, which has many lines."""
    if not data.startswith(b"-----BEGIN", begin):
        return None
    end_of_text = data.find(b"\0", begin, begin + _LONGEST_KEY)
    longest = min(begin + _LONGEST_KEY, len(data)) if end_of_text < 0 else end_of_text
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


def _longest_part(name: str) -> str:
    return max(name.split("*"), key=len)


def _without_url_passwords(text: str) -> str:
    return hide_url_passwords(text, MARK)


def _some_part(names: set[str]) -> Callable[[str], object]:
    """Finds what every name has that one of these fits: most names have none of it, and are known at once."""
    return re.compile("|".join(sorted(re.escape(_longest_part(name)) for name in names))).search


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
                found.tell((*path, name))
            elif member and type(member) in _NESTED:
                told = _each_text(member, say, (*path, name), found)
                if told is member:
                    continue
            else:
                continue
            changed = dict(value) if changed is None else changed
            changed[name] = told
        return value if changed is None else changed
    if type(value) is list:
        items = [_each_text(item, say, path, found) if item and type(item) in _TOLD else item for item in value]
        return items if any(map(is_not, items, value)) else value
    if type(value) is str and (told := say(value)) != value:
        found.tell(path)
        return told
    return value


def _without(everything: str, found: _Found) -> str:
    """Texts without these values, in whatever way they are written there."""
    values = found.values
    if len(values) > _MOST_VALUES or found.leaves > _MOST_LEAVES:
        raise _TooMuch
    if sum(len(value) for value in values if not _SAME_EVERYWHERE.fullmatch(value)) > _MOST_SPELLED:
        raise _TooMuch
    spelled = sorted({word for value in values for word in _spelled(value)})
    if len(spelled) * len(everything) > _MOST_SEARCHED:
        raise _TooMuch
    spans: list[tuple[int, int]] = []
    for word in spelled:
        at = everything.find(word)
        while at >= 0:
            spans.append((at, at + len(word)))
            at = everything.find(word, at + len(word))
            if len(spans) > _MOST_FOUND:
                raise _TooMuch
    everything = _marked(everything, spans)
    return _without_torn(everything, spelled) if "left out" in everything else everything


def _marked(text: str, spans: list[tuple[int, int]]) -> str:
    """With the mark instead of these parts, which may overlap."""
    told, done = [], 0
    for begin, end in sorted(spans):
        if begin >= done:
            told += [text[done:begin], MARK]
        done = max(done, end)
    return "".join([*told, text[done:]])


def _without_torn(everything: str, words: Sequence[str]) -> str:
    """Where the middle of a text was cut out, a value may have lost an end."""
    parts, gaps = _LEFT_OUT.split(everything), _LEFT_OUT.findall(everything)
    if len(gaps) * sum(len(word) + 100 for word in words) > _MOST_TORN:
        raise _TooMuch
    for n in range(len(gaps)):
        for word in words:
            parts[n] = _without_beginning(parts[n], word)
            parts[n + 1] = _without_end(parts[n + 1], word)
    return parts[0] + "".join(f"{gap}{part}" for gap, part in zip(gaps, parts[1:], strict=True))


def _without_beginning(text: str, value: str) -> str:
    """Without the beginning of the value, if the text ends with it. Where too much looks like it, without all that."""
    at = text.find(value[:_SHORTEST], max(text.rfind(_BETWEEN, -len(value)) + 1, len(text) - len(value) + 1))
    for _ in range(_MOST_BEGINNINGS):
        if at < 0:
            return text
        if value.startswith(text[at:]):
            break
        at = text.find(value[:_SHORTEST], at + 1)
    return text if at < 0 else f"{text[:at]}…"


def _without_end(text: str, value: str) -> str:
    """The other way round: without its end, if the text begins with it."""
    end = text.find(_BETWEEN, 0, len(value))
    at = text.rfind(value[-_SHORTEST:], 0, len(value) - 1 if end < 0 else min(end, len(value) - 1))
    for _ in range(_MOST_BEGINNINGS):
        if at < 0:
            return text
        if value.endswith(text[: at + _SHORTEST]):
            break
        at = text.rfind(value[-_SHORTEST:], 0, at + _SHORTEST - 1)
    return text if at < 0 else f"…{text[at + _SHORTEST :]}"


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
