"""Hide the secrets of a job: fields with secret names, and their values in every other text of the job.

A pattern is a name, or several names with dots between them. It fits a field if it fits the end of the field's path:
`password` fits any field of that name, `user.email` the email of any user, `payload.user.email` that of the payload
alone, `headers.*` all headers. Positions in lists are no part of a path; `*` stands for anything within a name; A-Z and
a-z are the same. One pattern is about values, not names: `*://*:*@*` hides the passwords in URLs, in all texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import is_not
from typing import Any, Protocol
from urllib.parse import quote, quote_plus

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.codec import check_text
from rowlock.core.job import Event, Job, LogLine
from rowlock.core.secrets_in_text import (
    SECRET_NAMES,
    NamedValues,
    Span,
    TooMany,
    any_of,
    glob,
    part_of,
    replaced,
    url_passwords,
)
from rowlock.errors import InvalidInput
from rowlock.stores.records import Audited

MARK = "[redacted]"
MOST_PATTERNS = 200
LONGEST_PATTERN = 200
MOST_STEPS = 8

URLS = "*://*:*@*"
DEFAULTS = (*SECRET_NAMES, URLS)

_NO_JOBS = ("settings.", "session.", "superuser.", "token.")  # audit actions whose data names secrets but holds none
_SHORTEST = 4  # characters of a value that is searched for in texts: shorter ones stand in too many words
# Bounds of the work for the texts of one job. Beyond them, every text is hidden as a whole: the author of a job must
# not decide how long the server is busy with it.
_MOST_VALUES = 500
_MOST_LEAVES = 10_000  # texts and numbers in hidden fields, repetitions included
_MOST_SPELLED = 100_000  # characters of values that are written otherwise in JSON or URLs
_MOST_SEARCHED = 30_000_000  # characters of texts, times values
_MOST_FOUND = 10_000  # places of values in texts; and names that may have a value behind them
_MOST_TORN = 1_000_000  # characters of values, times places where a text was cut
_MOST_BEGINNINGS = 20  # of one value before such a place
_MOST_KNOWN = 10_000  # names of fields that are remembered
_MOST_PATHS = 100  # hidden paths that an answer names
_BETWEEN = "\0"  # joins texts that are searched together, and the names of a path: no job holds it
_WORDS = ("last_error", "message", "stage", "cancel_reason")  # columns of a job that hold text for people
_LEFT_OUT = re.compile(r"\n… [\d,]+ bytes left out …\n")  # core.codec.clean_text cuts the middle out
_STEPS = ("steps", "result")  # the path of each step's result
_NESTED = frozenset({dict, list})
_TOLD = frozenset({dict, list, str})
_SAME_EVERYWHERE = re.compile(r"[A-Za-z0-9_.~-]+")
_ESCAPES = re.compile(r"""["'\\]""")


class TellsOfStep(Protocol):
    """A step of a job, with what may hold secrets."""

    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> str | None: ...


class Hidden(Struct, frozen=True):
    """A job without its secrets, and the paths of what is hidden. `steps`: result and error of each step."""

    job: Job
    paths: list[str]
    steps: list[tuple[Any, str | None]] = []


class _Found(Struct):
    """The result of a walk through a job's JSON: paths of hidden fields, and their values."""

    paths: dict[str, None] = {}
    values: set[str] = set()
    leaves: int = 0

    def tell(self, path: tuple[str, ...]) -> None:
        if len(self.paths) < _MOST_PATHS:
            self.paths[".".join(path)] = None

    def take(self, value: Any) -> None:
        """Add the texts and numbers of a hidden value, until the limit on their number is exceeded."""
        left = [value]
        while left and self.leaves <= _MOST_LEAVES:
            one = left.pop()
            self.leaves += 1
            if isinstance(one, dict):
                left += one.values()
            elif isinstance(one, list):
                left += one
            elif one is not None and not isinstance(one, bool) and len(str(one)) >= _SHORTEST and one != MARK:
                self.values.add(str(one))


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
    """Hides secrets in everything that leaves the server, from every caller. `job`: its secrets are hidden in other
    things as well."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._urls = URLS in patterns
        paths = [pattern.casefold().split(".") for pattern in patterns if pattern != URLS]
        names = {path[-1] for path in paths}
        self._named_values = NamedValues(names)
        self._part, self._name = part_of(names), any_of(names)
        self._path = _ending(paths)  # there may be no paths: `fits` checks the name first
        self._above = [_ending([path[:n]]) for path in paths for n in range(1, len(path))]
        self._known: dict[str, bool] = {}  # by name: can a field of this name be hidden?
        self._is_on = bool(patterns)

    def __bool__(self) -> bool:
        return self._is_on

    # ── Fields ──

    def fits(self, path: Sequence[str]) -> bool:
        """True if a pattern fits this field. A field below a hidden one is hidden as well: see `hides`."""
        return self._may_fit(path[-1]) and self._path.search(_BETWEEN.join(path).casefold()) is not None

    def _may_fit(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            folded = name.casefold()
            known = self._part.search(folded) is not None and self._name.match(folded) is not None
            self._known[name] = known
        return known

    def hides(self, path: Sequence[str]) -> bool:
        """True if this field, or one that it is part of, is hidden."""
        return any(self.fits(path[: n + 1]) for n in range(len(path)))

    def shows(self, source: Sequence[str], target: Sequence[str]) -> bool:
        """True if a value may be hidden at `source`, it or a part of it, and not at `target`. A pattern of several
        names hides a field by the names above it."""
        if self.hides(target):
            return False
        here, there = (_BETWEEN.join(path).casefold() for path in (source, target))
        return self.hides(source) or any(above.search(here) and not above.search(there) for above in self._above)

    def hidden_in(self, value: Any, path: tuple[str, ...]) -> str | None:
        """Return the path of the first hidden field in a value at `path`, which may be `path` itself."""
        if self.hides(path):
            return ".".join(path)
        found = _Found()
        self._walk(value, path, found)
        if self._urls:
            _each_text(value, _without_url_passwords, path, found)
        return next(iter(found.paths), None)

    def marked(self, value: Any, path: tuple[str, ...] = ("payload",)) -> str | None:
        """Return the path of the first hidden field whose value is the mark."""
        below: list[tuple[tuple[str, ...], Any]] = []
        if isinstance(value, dict):
            below = [((*path, name), member) for name, member in value.items()]
        elif isinstance(value, list):
            below = [(path, item) for item in value if type(item) in _NESTED]
        for at, member in below:
            if member == MARK and self.fits(at):
                return ".".join(at)
            if (found := self.marked(member, at)) is not None:
                return found
        return None

    # ── What leaves the server ──

    def job(self, job: Job) -> Job:
        return self.hide(job).job

    def hide(self, job: Job, steps: Sequence[TellsOfStep] = ()) -> Hidden:
        """Hide the secrets of a job and of its steps, also those of one in the texts of the other."""
        if not self:
            return Hidden(job, [], [(step.result, step.error) for step in steps])
        found = _Found()
        payload = self._walk(job.payload, ("payload",), found)
        result = self._walk(job.result, ("result",), found)
        results = [self._walk(step.result, _STEPS, found) for step in steps]
        words = {name: getattr(job, name) for name in _WORDS if getattr(job, name) is not None}
        told = self._told({"payload": payload, "result": result, **words}, found)
        changes = {name: value for name, value in told.items() if value is not getattr(job, name)}
        of_steps = []
        for step, walked in zip(steps, results, strict=True):  # one by one: a large result must not hide the others
            said = self._told({"steps": {"result": walked, "error": step.error}}, found)["steps"]
            of_steps.append((said["result"], said["error"]))
        return Hidden(replace(job, **changes) if changes else job, list(found.paths), of_steps)

    def events(self, events: Sequence[Event], job: Job, steps: Sequence[TellsOfStep] = ()) -> list[Event]:
        told = self.data([event.data for event in events], job, steps)
        return [replace(event, data=data) for event, data in zip(events, told, strict=True)]

    def lines(self, lines: Sequence[LogLine], job: Job, steps: Sequence[TellsOfStep] = ()) -> list[LogLine]:
        told = self.texts([line.text for line in lines], job, steps)
        return [replace(line, text=text) for line, text in zip(lines, told, strict=True)]

    def audited(self, entry: Audited, job: Job | None = None) -> Audited:
        """`job`: the one that the entry is about, if it still exists."""
        if not self or entry.action.startswith(_NO_JOBS):
            return entry
        found = self._found(job)
        data = self._walk(entry.data, (), found)
        if entry.action.startswith("bulk_") and isinstance(data.get("filter"), dict):
            data = {**data, "filter": self._filter(data["filter"], found)}
        return replace(entry, **self._told({"data": data, "reason": entry.reason}, found))

    def filter(self, filter: dict[str, Any]) -> dict[str, Any]:
        """Return a bulk action's filter without secrets. A caller who may reveal a value may filter by it; other
        callers see the filter."""
        found = _Found()
        told: dict[str, Any] = self._told(self._filter(filter, found), found)
        return told

    def data(self, data: Any, job: Job | None = None, steps: Sequence[TellsOfStep] = ()) -> Any:
        """Hide secrets in JSON."""
        if not self:
            return data
        found = self._found(job, steps)
        return self._told(self._walk(data, (), found), found)

    def text(self, text: str, job: Job | None = None) -> str:
        return self.texts([text], job)[0]

    def texts(self, texts: Sequence[str], job: Job | None = None, steps: Sequence[TellsOfStep] = ()) -> list[str]:
        return self._say(texts, self._found(job, steps)) if self else list(texts)

    def teller(self, job: Job) -> Callable[[str], str]:
        """Return a function that hides secrets in each text that this job is going to report."""
        found = self._found(job)
        return lambda text: self._say([text], found)[0]

    def said(self, text: str | None) -> str | None:
        return text and self.text(text)

    # ── Inside ──

    def _found(self, job: Job | None, steps: Sequence[TellsOfStep] = ()) -> _Found:
        found = _Found()
        if job is not None:
            self._walk(job.payload, ("payload",), found)
            self._walk(job.result, ("result",), found)
        for step in steps:
            self._walk(step.result, _STEPS, found)
        return found

    def _walk(self, value: Any, path: tuple[str, ...], found: _Found) -> Any:
        """Return the value with the mark in hidden fields; the same object if it has none."""
        if type(value) is list:
            items = [self._walk(item, path, found) if type(item) in _NESTED else item for item in value]
            return items if any(map(is_not, items, value)) else value
        changed, known = {}, self._known
        for name, member in value.items() if type(value) is dict else ():
            if known.get(name) is not False and self.fits((*path, name)):
                found.tell((*path, name))
                found.take(member)
                changed[name] = MARK if member is not None else None
            elif type(member) in _NESTED and (inner := self._walk(member, (*path, name), found)) is not member:
                changed[name] = inner
        return {**value, **changed} if changed else value

    def _filter(self, filter: dict[str, Any], found: _Found) -> dict[str, Any]:
        """Return a filter with the mark for values of hidden fields. Its payload has whole paths as names."""
        asked = dict(filter.get("payload", ()))
        hidden = [path for path in asked if self.hidden_in(asked[path], ("payload", *path.split("."))) is not None]
        for path in hidden:
            found.take(asked[path])
            asked[path] = MARK
        return {**filter, "payload": asked} if hidden else filter

    def _told(self, value: Any, found: _Found) -> Any:
        """Return JSON without secrets in its texts; the same object if they have none."""
        texts: list[str] = []

        def take(text: str) -> str:
            texts.append(text)
            return text

        _each_text(value, take, (), _Found())
        told = self._say(texts, found)
        if told == texts:
            return value
        given = iter(told)
        return _each_text(value, lambda _: next(given), (), found)

    def _say(self, texts: Sequence[str], found: _Found) -> list[str]:
        """Return texts without the values that were found, and without those behind names of hidden fields. All texts
        are searched together: there may be a hundred thousand of them."""
        everything = _BETWEEN.join(texts)
        if everything.count(_BETWEEN) >= max(len(texts), 1):
            everything = _BETWEEN.join(text.replace(_BETWEEN, "\N{REPLACEMENT CHARACTER}") for text in texts)
        try:
            if found.values:
                everything = _without(everything, found)
            if self._urls:
                everything = _without_url_passwords(everything)
            return self._without_named(everything).split(_BETWEEN) if texts else []
        except TooMany:
            return [text and MARK for text in texts]

    def _without_named(self, text: str) -> str:
        return replaced(text, (span for _, span in self._named_values.find(text, most=_MOST_FOUND)), MARK)


def _ending(paths: Sequence[Sequence[str]]) -> re.Pattern[str]:
    """Return an expression that finds paths that end like one of these."""
    ends = "|".join(_BETWEEN.join(map(glob, path)) for path in paths)
    return re.compile(rf"(?:\A|\0)(?:{ends})\Z")


def _without_url_passwords(text: str) -> str:
    return replaced(text, url_passwords(text), MARK)


def _each_text(value: Any, say: Callable[[str], str], path: tuple[str, ...], found: _Found) -> Any:
    """Return JSON with each text as `say` returns it; the same object if none changes."""
    if type(value) is str:
        if (told := say(value)) == value:
            return value
        found.tell(path)
        return told
    if type(value) is list:
        items = [_each_text(item, say, path, found) if type(item) in _TOLD else item for item in value]
        return items if any(map(is_not, items, value)) else value
    changed = {
        name: told
        for name, member in (value.items() if type(value) is dict else ())
        if type(member) in _TOLD and (told := _each_text(member, say, (*path, name), found)) is not member
    }
    return {**value, **changed} if changed else value


def _spelled(value: str) -> set[str]:
    """Return a value as it is, and as JSON, Python and URLs write it."""
    if _SAME_EVERYWHERE.fullmatch(value):
        return {value}
    in_urls = {value, quote(value, safe=""), quote(value), quote_plus(value)}
    if value.isascii() and value.isprintable() and not _ESCAPES.search(value):
        return in_urls
    return {*in_urls, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}


def _without(everything: str, found: _Found) -> str:
    """Return texts without these values, in every spelling."""
    values = found.values
    if len(values) > _MOST_VALUES or found.leaves > _MOST_LEAVES:
        raise TooMany
    if sum(len(value) for value in values if not _SAME_EVERYWHERE.fullmatch(value)) > _MOST_SPELLED:
        raise TooMany
    spelled = sorted({word for value in values for word in _spelled(value)})
    if len(spelled) * len(everything) > _MOST_SEARCHED:
        raise TooMany
    spans: list[Span] = []
    for word in spelled:
        at = everything.find(word)
        while at >= 0:
            spans.append((at, at + len(word)))
            at = everything.find(word, at + len(word))
            if len(spans) > _MOST_FOUND:
                raise TooMany
    return _without_torn(replaced(everything, spans, MARK), spelled)


def _without_torn(everything: str, words: Sequence[str]) -> str:
    """Return texts without values that have lost an end where the middle of a text was cut out."""
    parts, gaps = _LEFT_OUT.split(everything), _LEFT_OUT.findall(everything)
    if len(gaps) * sum(len(word) + 100 for word in words) > _MOST_TORN:
        raise TooMany
    for n in range(len(gaps)):
        backwards = parts[n + 1][::-1]
        for word in words:
            parts[n] = _without_beginning(parts[n], word)
            backwards = _without_beginning(backwards, word[::-1])
        parts[n + 1] = backwards[::-1]
    return parts[0] + "".join(f"{gap}{part}" for gap, part in zip(gaps, parts[1:], strict=True))


def _without_beginning(text: str, value: str) -> str:
    """Return the text without the beginning of the value that it ends with. If too many places look like that
    beginning, it ends before the last of those that were looked at."""
    at = text.find(value[:_SHORTEST], max(text.rfind(_BETWEEN, -len(value)) + 1, len(text) - len(value) + 1))
    for _ in range(_MOST_BEGINNINGS):
        if at < 0 or value.startswith(text[at:]):
            break
        at = text.find(value[:_SHORTEST], at + 1)
    return text if at < 0 else f"{text[:at]}…"


def marked(value: Any) -> str | None:
    """Return the path of the first text in a payload that holds the mark."""
    found = _Found()
    _each_text(value, lambda text: text.replace(MARK, ""), ("payload",), found)
    return next(iter(found.paths), None)
