"""Limits and fair share: they decide which of the jobs that are due may start now.

A topic can have several limits. Each of them counts the jobs of a topic, or of all topics that name it, together or by
the value of a field (`by`). The values of these fields are fixed on the job's row when it is enqueued: its `share`.

Whether a job may start follows from what is stored: the jobs that are held, and the starts of the last while. So no
counter can leak when a worker dies. `Room` is that decision, `Ring` lets the shares of a topic take turns.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from rowlock.core import codec
from rowlock.core.job import MAX_TEXT, Job, NewJob, check_topic, check_whole
from rowlock.errors import InvalidInput

MAX_LIMIT = 1_000_000
SHORTEST, LONGEST = 0.01, 31 * 86_400.0  # seconds of a rate's window
MAX_WEIGHT = 1000
MAX_WEIGHTS = 1000
MAX_LIMITS = 10  # of one topic
KEPT = 60_000_000  # microseconds for which a start is remembered at least: the window may be made longer
BUCKETS = 1000  # starts are counted by so many parts of a window: more would make a claim read all of them
MAX_VALUE = 200  # characters of a value; a longer one is kept as its digest
OWN_FIELDS = ("scope_id", "scope", "key")  # of a job; any other name is a field of its payload
SECOND = 1_000_000
_MORE = 100  # parts of a window that a claim reads above its limit
LIMITED, PUT = "limited", "limit"  # kinds of records: a topic that has limits; a limit that an operator has put


class Concurrency(Struct, frozen=True, tag_field="kind", tag="concurrency"):
    """At most `max` jobs run at once, in all workers together. `by`: for each value of this field. `name`: all topics
    with a limit of this name share it."""

    max: int
    by: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_count(self.max, "max", "to stop a topic, pause it")
        _check_names(self)


class Rate(Struct, frozen=True, tag_field="kind", tag="rate"):
    """At most `max` jobs start in any `per` seconds, retries and resumed jobs included. `burst`: at most so many of
    them at once; then they are spread evenly. `by` and `name`: as for Concurrency."""

    max: int
    per: float
    by: str | None = None
    name: str | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        _check_count(self.max, "max", "to stop a topic, pause it")
        per: object = self.per
        if isinstance(per, bool) or not isinstance(per, int | float) or not SHORTEST <= per <= LONGEST:
            problem = f"must be a number of seconds, {SHORTEST} to {LONGEST:.0f} (31 days), not {per!r:.40}"
            raise InvalidInput("per", "out_of_range", problem)
        if self.burst is not None:
            check_whole(self.burst, "burst", 1, self.max)
        _check_names(self)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """Pairs of microseconds and starts: at most so many in any time of that length."""
        whole = (round(self.per * SECOND), self.max)
        if self.burst is None or self.burst == self.max:
            return (whole,)
        return (whole, (round(self.per * SECOND * self.burst / self.max), self.burst))


class Fair(Struct, frozen=True, tag_field="kind", tag="fair"):
    """The values of a field take turns. `weights`: how many jobs a value starts in its turn; 1 if it is not named."""

    by: str
    weights: dict[str, int] = {}

    def __post_init__(self) -> None:
        _check_names(self)
        weights: object = self.weights
        if not isinstance(weights, Mapping) or len(weights) > MAX_WEIGHTS:
            raise InvalidInput("weights", "bad_value", f"must be an object with at most {MAX_WEIGHTS} whole numbers")
        for value, weight in self.weights.items():
            if value != "":  # jobs without a value
                codec.check_text(value, "weights", max_chars=len(str(value)))
            check_whole(weight, f"weights.{value}", 1, MAX_WEIGHT)


Limit = Concurrency | Rate | Fair


def _check_count(value: object, field: str, instead: str) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise InvalidInput(field, "out_of_range", f"must be 1 to {MAX_LIMIT}, not {value}: {instead}")
    check_whole(value, field, 1, MAX_LIMIT)


def _check_names(limit: Limit) -> None:
    if limit.by is not None:
        msgspec.structs.force_setattr(limit, "by", check_by(limit.by))
    if not isinstance(limit, Fair) and limit.name is not None:
        check_limit_name(limit.name)


def check_by(name: object, field: str = "by") -> str:
    """Return the name of a field as limits know it: `tenant` for payload.tenant."""
    if not isinstance(name, str) or not name or len(name) > MAX_TEXT or any(not part for part in name.split(".")):
        problem = f"{name!r:.60} names no field: give scope_id, scope, key or a field of the payload, such as payload.a"
        raise InvalidInput(field, "bad_field", problem)
    return _one_spelling(codec.check_text(name, field, max_chars=MAX_TEXT))


def _one_spelling(name: str) -> str:
    short = name.removeprefix("payload.")
    return name if short in OWN_FIELDS or "." in short else short


def check_limit_name(name: object, field: str = "name") -> str:
    try:
        return check_topic(name)
    except InvalidInput as error:
        raise InvalidInput(field, error.code, error.problem) from None


def check_limits(limits: Sequence[Limit], schema: Mapping[str, Any] | None, field: str = "limits") -> tuple[Limit, ...]:
    """Check the limits of one topic beside each other, and their fields by the schema of its payload."""
    if len(limits) > MAX_LIMITS:
        raise InvalidInput(field, "too_many", f"has {len(limits)} entries, at most {MAX_LIMITS} are allowed")
    seen: set[tuple[str, str | None, str | None]] = set()
    for n, limit in enumerate(limits):
        if limit.by is not None:
            _check_field(limit.by, schema, f"{field}[{n}].by")
        name = None if isinstance(limit, Fair) else limit.name
        kind = "fair" if isinstance(limit, Fair) else kind_of(limit)
        one = (kind, None if kind == "fair" else limit.by, name)
        if one in seen:
            raise InvalidInput(f"{field}[{n}]", "twice", _twice(kind))
        seen.add(one)
    _check_fair(limits, field)
    return tuple(limits)


def _twice(kind: str) -> str:
    way_out = "give one of them" if kind == "fair" else "give one of them a name"
    return f"there is another {kind} limit with the same by and name: {way_out}"


def check_rules(topic: str, rules: Sequence[Rule], put: Limit | None, schema: Mapping[str, Any] | None) -> None:
    """Raise InvalidInput if the limits of a topic don't fit together, or `put` does not fit its payload."""
    if put is not None and len(rules) > MAX_LIMITS:
        raise InvalidInput(
            "limit", "too_many", f"{topic} would have {len(rules)} limits, at most {MAX_LIMITS}: clear one"
        )
    if put is not None and put.by is not None:
        _check_field(put.by, schema, "limit.by")
    _check_fair([rule.limit for rule in rules], "limit.by")


def misfits(topic: str, rules: Sequence[Rule], schema: Mapping[str, Any] | None) -> list[str]:
    """Return what is wrong with the limits of a topic. Limits can be put before its code is known."""
    found = []
    for rule in rules:
        if rule.source == "put" and rule.limit.by is not None:
            try:
                _check_field(rule.limit.by, schema, "by")
            except InvalidInput:
                what = f"the {kind_of(rule.limit)} limit of {rule.name} by {rule.limit.by}, which was put"
                found.append(f"{topic} has no field for {what}: its jobs count as one value")
    if len(rules) > MAX_LIMITS:
        found.append(
            f"{topic} has {len(rules)} limits together with those that were put, at most {MAX_LIMITS} are meant"
        )
    try:
        _check_fair([rule.limit for rule in rules], "fair")
    except InvalidInput as error:
        found.append(f"the fair share of {topic} {error.problem}")
    return [f"{text}. See rowlock limits show {topic}, and clear what does not fit" for text in found]


def _check_fair(limits: Iterable[Limit], field: str) -> None:
    fair = {limit.by for limit in limits if isinstance(limit, Fair)}
    others = {limit.by for limit in limits if limit.by is not None} - fair
    if fair and others:
        problem = f"is by {fair.pop()}, but a limit is by {others.pop()}: they must name the same field"
        raise InvalidInput("fair" if field == "limits" else field, "other_field", problem)


def _check_field(name: str, schema: Mapping[str, Any] | None, field: str) -> None:
    if name in OWN_FIELDS:
        return
    inner: Any = schema
    for part in _path(name):
        if not isinstance(inner, Mapping) or "$ref" in inner or "properties" not in inner:
            return  # nothing is known about it
        if part not in inner["properties"]:
            known = ", ".join((*OWN_FIELDS, *sorted(inner["properties"])))
            raise InvalidInput(field, "unknown_field", f"{name!r} names no field; there are: {known}")
        inner = inner["properties"][part]


def _path(name: str) -> list[str]:
    return name.split(".")[1:] if name.startswith("payload.") else [name]


def kind_of(limit: Limit) -> str:
    return type(limit).__name__.lower()


# ── What is stored ──


class Put(Struct, frozen=True):
    """A limit that an operator has set. It takes the place of the limit in the code with the same name, kind and `by`,
    or is one more. `value`: it holds for this value of `by` only."""

    name: str
    limit: Limit
    value: str | None = None

    @property
    def id(self) -> str:
        """Return the id of its record. A topic has one fair share, by whatever field: the newest holds."""
        by = None if isinstance(self.limit, Fair) else self.limit.by
        return codec.encode([self.name, kind_of(self.limit), by, self.value], "id")


class Limited(Struct, frozen=True):
    """The record of a limited topic: the limits of its code."""

    limits: tuple[Limit, ...] = ()

    def names(self, topic: str) -> set[str]:
        return {topic, *(one.name for one in self.limits if not isinstance(one, Fair) and one.name is not None)}


class Rule(Struct, frozen=True):
    """A limit as it holds for a topic. `id`: what it counts by; the same for all topics that share it. `values`: what
    holds for certain values instead. `code`: the limit in the code that it takes the place of. `source`: code, or put
    at run time."""

    id: str
    name: str
    limit: Limit
    values: dict[str, Limit] = {}
    source: str = "code"
    code: Limit | None = None

    def of(self, value: str) -> Limit:
        return self.values.get(value, self.limit)


def rules_of(topic: str, limited: Limited, puts: Iterable[Put]) -> tuple[Rule, ...]:
    """Return the limits that hold for a topic."""
    names = limited.names(topic)
    found: dict[str, Rule] = {}
    for limit in limited.limits:
        name = topic if isinstance(limit, Fair) else limit.name or topic
        found[_rule_id(name, limit)] = Rule(_rule_id(name, limit), name, limit)
    mine = [put for put in puts if put.name in names]
    for put in mine:
        if put.value is None:
            id_ = _rule_id(put.name, put.limit)
            code = found[id_].limit if id_ in found else None
            found[id_] = Rule(id_, put.name, put.limit, source="put", code=code)
    for put in mine:
        rule = found.get(_rule_id(put.name, put.limit))
        if put.value is not None and rule is not None:
            found[rule.id] = msgspec.structs.replace(rule, values={**rule.values, put.value: put.limit})
    return tuple(found.values())


def _rule_id(name: str, limit: Limit) -> str:
    """Return the id of a rule. All fair shares of a topic have the same: only one of them can hold."""
    return codec.encode([name, kind_of(limit), None if isinstance(limit, Fair) else limit.by], "id")


def fields_of(rules: Iterable[Rule]) -> tuple[str, ...]:
    """Return the fields whose values make the share of a job."""
    return tuple(sorted({rule.limit.by for rule in rules if rule.limit.by is not None}))


# ── Shares ──


def share_of(fields: Sequence[str], job: NewJob | Job, payload: Mapping[str, Any]) -> str | None:
    """Return the values of these fields, as JSON; None: there are no fields."""
    if not fields:
        return None
    return codec.encode({name: value_text(_value(name, job, payload)) for name in fields}, "share")


def _value(name: str, job: NewJob | Job, payload: Mapping[str, Any]) -> Any:
    if name in OWN_FIELDS:
        return getattr(job, name)
    value: Any = payload
    for part in _path(name):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def value_text(value: Any) -> str:
    """Return a value as limits know it. A missing one is the empty text; 7 and "7" are the same."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and codec.INT_MIN <= value <= codec.INT_MAX:
        value = int(value)
    text = value if isinstance(value, str) else codec.encode(value, "value")
    return text if len(text) <= MAX_VALUE else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@lru_cache(4096)
def _values(share: str) -> Mapping[str, str]:
    """Return the values of a share by field. Jobs of older releases may have a name as it was written, such as
    payload.tenant."""
    found: dict[str, str] = codec.decode(share)
    return {_one_spelling(name): value for name, value in found.items()}


def value_in(share: str | None, by: str | None) -> str:
    """Return the value that counts for a limit. Jobs that were enqueued before there was a limit by this field have
    none: the empty text."""
    return "" if by is None or not share else _values(share).get(by, "")


# ── Deciding ──


class Candidate(NamedTuple):
    """A job that is due. They are ordered by `rank`, which is -priority, then `run_at` in microseconds, then `id`."""

    rank: int
    run_at: int
    id: str


class Pick(NamedTuple):
    topic: str
    share: str | None
    job: Candidate


Counted = tuple[str, str]  # the id of a rule, and a value


class Asked(NamedTuple):
    """Starts that must be known: of a rule and value, from `after` to `before`, the newest `most` parts of a window."""

    rule: str
    value: str
    after: int
    before: int
    most: int


class Start(NamedTuple):
    """Jobs that have started: `n` of them, the last one at `at`."""

    rule: str
    value: str
    at: int
    n: int


class Counting(NamedTuple):
    """Jobs that start now. They are counted in parts of `width` microseconds, and count for `length` microseconds."""

    rule: str
    value: str
    n: int
    width: int
    length: int


class Room:
    """Decides how many jobs may start now. `rules`: of every topic that shares a limit with one that is asked for.
    `held`: how many jobs of a topic and share are held by workers. `now` in microseconds."""

    def __init__(self, rules: Mapping[str, Sequence[Rule]], held: Iterable[tuple[str, str | None, int]], now: int):
        self._rules = rules
        self._now = now
        self._held: defaultdict[Counted, int] = defaultdict(int)
        self._starts: dict[Counted, list[tuple[int, int]]] = {}
        self._used: defaultdict[Counted, dict[int, int]] = defaultdict(dict)  # starts, by the length of the window
        self.next_at: int | None = None  # when a rate lets the next job start
        for topic, share, count in held:
            for rule in rules.get(topic, ()):
                if isinstance(rule.limit, Concurrency):
                    self._held[rule.id, value_in(share, rule.limit.by)] += count

    def unknown(self, topic: str, shares: Iterable[str | None], *, fields: bool = True) -> list[Asked]:
        """Return which starts must be known before `free` is called."""
        rates = [rule for rule in self._holding(topic, fields) if isinstance(rule.limit, Rate)]
        asked = {(rule.id, value_in(share, rule.limit.by)) for rule in rates for share in shares}
        return [self._asked(*counted) for counted in sorted(asked - self._starts.keys())]

    def _asked(self, rule_id: str, value: str) -> Asked:
        windows = [window for limit in self._same(rule_id, value) for window in limit.windows]
        longest = max(length for length, _ in windows)
        # The newest starts decide. Parts of different widths may be stored in another order than they ended: some more.
        most = max(most for _, most in windows) + _MORE
        return Asked(rule_id, value, self._now - longest, self._now + longest, most)

    def learn(self, asked: Iterable[Asked | Counted], starts: Iterable[Start]) -> None:
        """Take in the stored starts that were asked for."""
        for rule, value, *_ in asked:
            self._starts[rule, value] = []
        for start in starts:
            self._starts[start.rule, start.value].append((start.at, start.n))

    def free(self, topic: str, share: str | None, *, fields: bool = True) -> int:
        """Return how many more jobs of this topic and share may start now. `fields` False: by those limits alone that
        are by no field."""
        free = MAX_LIMIT
        at: int | None = None
        for rule in self._holding(topic, fields):
            value = value_in(share, rule.limit.by)
            limit = rule.of(value)
            if isinstance(limit, Concurrency):
                free = min(free, limit.max - self._held[rule.id, value])
                if free <= 0:
                    return 0  # no time is known: a job must end first
        for rule in self._holding(topic, fields):
            value = value_in(share, rule.limit.by)
            limit = rule.of(value)
            if isinstance(limit, Rate):
                some, when = self._free_of_rate((rule.id, value), limit)
                free = min(free, some)
                at = when if at is None or (when is not None and when > at) else at
        if at is not None:
            self.next_at = at if self.next_at is None else min(self.next_at, at)
        return max(0, free)

    def _holding(self, topic: str, fields: bool) -> list[Rule]:
        return [rule for rule in self._rules.get(topic, ()) if fields or rule.limit.by is None]

    def _free_of_rate(self, counted: Counted, rate: Rate) -> tuple[int, int | None]:
        """Return how many more jobs may start now, and when the next one may; None: now."""
        free = MAX_LIMIT
        at: int | None = None
        used = self._used[counted]
        for length, most in rate.windows:
            if length not in used:
                used[length] = sum(n for _, n in self._within(counted, length))
            free = min(free, most - used[length])
            if used[length] >= most:
                over = _over_at(self._within(counted, length), most) + length
                at = over if at is None else max(at, over)
        return max(0, free), at

    def _within(self, counted: Counted, length: int) -> list[tuple[int, int]]:
        """Return the starts of the last while. One in the far future doesn't count: the clock was set back, and it must
        not stop the topic until that time."""
        return [(at, n) for at, n in self._starts[counted] if self._now - length < at <= self._now + length]

    def held(self, rule: Rule, value: str) -> int:
        """Return how many jobs that count for a concurrency limit are held."""
        return self._held[rule.id, value]

    def used(self, rule: Rule, value: str) -> tuple[int, int | None]:
        """Return how many starts of a rate count now, and when the next one is possible; None: now."""
        limit = rule.of(value)
        assert isinstance(limit, Rate)  # noqa: S101 - narrows the type
        _, at = self._free_of_rate((rule.id, value), limit)
        return self._used[rule.id, value][limit.windows[0][0]], at

    def take(self, topic: str, share: str | None) -> None:
        """Count the start of a job of this topic and share."""
        for rule in self._rules.get(topic, ()):
            counted = (rule.id, value_in(share, rule.limit.by))
            if isinstance(rule.limit, Concurrency):
                self._held[counted] += 1
            elif isinstance(rule.limit, Rate):
                self._starts[counted].append((self._now, 1))
                self._used[counted] = {length: count + 1 for length, count in self._used[counted].items()}

    def counted(self, picks: Iterable[Pick]) -> list[Counting]:
        """Return what must be stored of these starts."""
        numbers: defaultdict[Counted, int] = defaultdict(int)
        for topic, share, _ in picks:
            for rule in self._rules.get(topic, ()):
                if isinstance(rule.limit, Rate):
                    numbers[rule.id, value_in(share, rule.limit.by)] += 1
        found = []
        for (rule_id, value), n in sorted(numbers.items()):
            shortest = min(length for limit in self._same(rule_id, value) for length, _ in limit.windows)
            # What was put may be cleared: then the limit behind it counts the starts of its own window.
            longest = max(limit.windows[0][0] for limit in self._same(rule_id, value, hidden=True))
            found.append(Counting(rule_id, value, n, max(1, shortest // BUCKETS), max(KEPT, longest)))
        return found

    def _same(self, rule_id: str, value: str, *, hidden: bool = False) -> list[Rate]:
        """Return the rates that hold for a value. Topics that share one may have different ones in their code.
        `hidden`: also those that another one takes the place of."""
        same = [rule for rules in self._rules.values() for rule in rules if rule.id == rule_id]
        limits = [limit for rule in same for limit in (rule.of(value), *([rule.limit, rule.code] if hidden else []))]
        return [limit for limit in limits if isinstance(limit, Rate)]


def _over_at(counted: list[tuple[int, int]], most: int) -> int:
    """Return the time of the start that must leave the window before another one may come."""
    surplus = sum(n for _, n in counted) - most + 1
    for at, n in sorted(counted):
        surplus -= n
        if surplus <= 0:
            return at
    raise AssertionError("a window that is full has enough starts")


class Queue(Protocol):
    """Jobs of one topic, in the order in which they may start."""

    topic: str

    def peek(self) -> tuple[str | None, Candidate] | None:
        """Return the share and the job that would start next; None: none may start."""
        ...

    def pop(self) -> None: ...


class Row:
    """A topic whose limits are by no field: its jobs start by priority and age."""

    def __init__(self, room: Room, topic: str, jobs: Iterable[Candidate]) -> None:
        self.topic = topic
        self._room = room
        self._jobs = deque(jobs)

    def peek(self) -> tuple[str | None, Candidate] | None:
        return (None, self._jobs[0]) if self._jobs and self._room.free(self.topic, None) > 0 else None

    def pop(self) -> None:
        self._jobs.popleft()


class Turn(Struct, frozen=True):
    """The last turn: that of this share, which may start so many more jobs before the next share comes. The empty text:
    jobs that have no share. None: no share had a turn yet."""

    share: str | None = None
    left: int = 0


class Ring:
    """A topic whose shares take turns. Within a share, jobs start by priority and age.

    `shares`: in the order of their turns, with their jobs. The first one is the share behind `turn`, or that one itself
    if it may start some more."""

    def __init__(
        self, room: Room, topic: str, shares: Iterable[tuple[str, Iterable[Candidate]]], turn: Turn, fair: Fair | None
    ) -> None:
        self.topic = topic
        self.turn = turn
        self._room = room
        self._fair = fair
        self._shares = deque((share, deque(jobs)) for share, jobs in shares)
        goes_on = self._shares and turn.left > 0 and self._shares[0][0] == turn.share
        self._left = turn.left if goes_on else self._weight()

    def _weight(self) -> int:
        """Return how many jobs the next share may start in its turn."""
        if self._fair is None or not self._shares:
            return 1
        return self._fair.weights.get(value_in(self._shares[0][0], self._fair.by), 1)

    def peek(self) -> tuple[str | None, Candidate] | None:
        while self._shares:
            share, jobs = self._shares[0]
            if jobs and self._room.free(self.topic, share or None) > 0:
                return share or None, jobs[0]
            self._shares.popleft()
            self._left = self._weight()
        return None

    def pop(self) -> None:
        share, jobs = self._shares[0]
        jobs.popleft()
        self._left -= 1
        self.turn = Turn(share, self._left)
        if self._left == 0:
            self._shares.rotate(-1)
            self._left = self._weight()


def choose(room: Room, queues: Sequence[Queue], others: Sequence[Candidate], limit: int) -> list[Pick]:
    """Return the jobs that start, at most `limit` together with `others`: jobs without limits, in their order. Those
    of the highest priority come first, then the oldest; but within a topic, as its queue says."""
    picks: list[Pick] = []
    place = 0
    while len(picks) + place < limit:
        heads = [(head[1], n, head[0]) for n, queue in enumerate(queues) if (head := queue.peek()) is not None]
        if not heads:
            break
        job, n, share = min(heads)
        if place < len(others) and others[place] < job:
            place += 1
            continue
        queues[n].pop()
        room.take(queues[n].topic, share)
        picks.append(Pick(queues[n].topic, share, job))
    return picks
