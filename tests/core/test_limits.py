"""Limits and fair share: `choose`, `Room` and `Ring` against an oracle that goes through every start."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from rowlock.core.job import NewJob
from rowlock.core.limits import (
    BUCKETS,
    KEPT,
    MAX_LIMITS,
    MAX_VALUE,
    SECOND,
    Asked,
    Candidate,
    Concurrency,
    Fair,
    Limit,
    Limited,
    Pick,
    Put,
    Rate,
    Ring,
    Room,
    Row,
    Rule,
    Start,
    Turn,
    check_limits,
    choose,
    fields_of,
    rules_of,
    share_of,
    value_in,
    value_text,
)
from rowlock.errors import InvalidInput

T = "mail"
ENORMOUS = 10**30
NAN = float("nan")


def refused(make: Any, field: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert (caught.value.field, caught.value.code) == (field, code)


# ── Which limits are valid ──


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (0, "out_of_range"),
        (-1, "out_of_range"),
        (-ENORMOUS, "out_of_range"),
        (1_000_001, "out_of_range"),
        (ENORMOUS, "out_of_range"),
        (1.0, "not_an_integer"),
        (0.5, "not_an_integer"),
        (NAN, "not_an_integer"),
        (True, "not_an_integer"),
        ("3", "not_an_integer"),
        (None, "not_an_integer"),
    ],
)
def test_counts_are_whole_numbers_from_1_on(wrong: Any, code: str) -> None:
    refused(lambda: Concurrency(wrong), "max", code)
    refused(lambda: Rate(wrong, per=1), "max", code)
    if wrong is not None:
        refused(lambda: Rate(10, per=1, burst=wrong), "burst", code)
    refused(lambda: Fair("scope", weights={"a": wrong}), "weights.a", code)


@pytest.mark.parametrize("wrong", [0, 0.0, -1, NAN, math.inf, -math.inf, True, "60", None, ENORMOUS, 0.009, 2_678_401])
def test_a_window_is_a_hundredth_of_a_second_to_31_days_long(wrong: Any) -> None:
    refused(lambda: Rate(1, per=wrong), "per", "out_of_range")


def test_a_burst_is_at_most_the_rate() -> None:
    refused(lambda: Rate(5, per=1, burst=6), "burst", "out_of_range")
    assert Rate(5, per=1, burst=5).windows == ((SECOND, 5),)
    assert Rate(5, per=1, burst=1).windows == ((SECOND, 5), (SECOND // 5, 1))


@pytest.mark.parametrize("wrong", ["", ".", "a.", ".a", "payload.", "a..b", "x" * 513, 7, True, b"a"])
def test_a_field_has_a_name(wrong: Any) -> None:
    for make in (lambda: Concurrency(1, by=wrong), lambda: Rate(1, per=1, by=wrong), lambda: Fair(wrong)):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.field == "by"


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 129, 7])
def test_a_limit_has_a_name_like_a_topic(wrong: Any) -> None:
    for make in (lambda: Concurrency(1, name=wrong), lambda: Rate(1, per=1, name=wrong)):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.field == "name"


def test_weights_are_an_object_of_bounded_size() -> None:
    refused(lambda: Fair("scope", weights=[1]), "weights", "bad_value")  # type: ignore[arg-type]
    refused(lambda: Fair("scope", weights={str(n): 1 for n in range(1001)}), "weights", "bad_value")
    refused(lambda: Fair("scope", weights={"a": 1001}), "weights.a", "out_of_range")
    for value, code in (("a\0", "nul"), ("\ud800", "lone_surrogate"), (7, "not_text")):
        refused(lambda value=value: Fair("scope", weights={value: 1}), "weights", code)


SCHEMA = {
    "properties": {"doc": {"properties": {"id": {}}}, "free": {}, "other": {"$ref": "#/x"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("by", ["nope", "payload.nope", "doc.id", "payload.doc.nope"])
def test_a_field_that_the_schema_does_not_have_is_refused(by: str) -> None:
    refused(lambda: check_limits([Concurrency(1, by=by)], SCHEMA), "limits[0].by", "unknown_field")
    refused(lambda: check_limits([Fair(by)], SCHEMA), "limits[0].by", "unknown_field")
    check_limits([Concurrency(1, by=by)], None)


@pytest.mark.parametrize(
    "by", ["scope", "scope_id", "key", "doc", "payload.doc.id", "payload.free.x", "payload.other.x"]
)
def test_a_field_that_the_schema_has_or_does_not_exclude_is_taken(by: str) -> None:
    check_limits([Concurrency(1, by=by)], SCHEMA)


def test_limits_of_a_topic_must_fit_together() -> None:
    many = [Concurrency(1, name=f"n{n}") for n in range(MAX_LIMITS + 1)]
    refused(lambda: check_limits(many, None), "limits", "too_many")
    check_limits(many[:-1], None)
    refused(lambda: check_limits([Concurrency(1), Concurrency(2)], None), "limits[1]", "twice")
    refused(lambda: check_limits([Fair("scope"), Fair("key")], None), "limits[1]", "twice")
    twice: list[Limit] = [Rate(1, per=1, by="key"), Concurrency(1, by="key"), Rate(9, per=9, by="key")]
    refused(lambda: check_limits(twice, None), "limits[2]", "twice")
    with pytest.raises(InvalidInput, match="give one of them a name"):
        check_limits(twice, None)
    check_limits([Concurrency(1), Concurrency(2, by="key"), Concurrency(3, name="x"), Rate(1, per=1)], None)
    refused(lambda: check_limits([Fair("scope"), Concurrency(1, by="key")], None), "fair", "other_field")
    check_limits([Fair("key"), Concurrency(1, by="key"), Concurrency(9)], None)


# ── Values ──


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), ("", ""), (7, "7"), ("7", "7"), (7.0, "7"), (7.5, "7.5"), (True, "true"), ([1], "[1]"), ({}, "{}")],
)
def test_values_as_texts(value: Any, text: str) -> None:
    assert value_text(value) == text


def test_a_long_value_is_kept_as_its_digest() -> None:
    assert value_text("x" * MAX_VALUE) == "x" * MAX_VALUE
    long, other = value_text("x" * (MAX_VALUE + 1)), value_text("x" * (MAX_VALUE + 2))
    assert long.startswith("sha256:")
    assert len(long) < MAX_VALUE
    assert long != other


def test_the_share_of_a_job() -> None:
    job = NewJob("0193fb1e-0000-7000-8000-000000000000", T, "{}", key="k", scope_id="s")
    payload = {"doc": {"id": 3}, "scope": "of the payload", "text": "a"}
    assert share_of((), job, payload) is None
    share = share_of(("key", "payload.doc.id", "payload.scope", "payload.text.x", "scope"), job, payload)
    assert share == ('{"key":"k","payload.doc.id":"3","payload.scope":"of the payload","payload.text.x":"","scope":""}')
    assert [value_in(share, by) for by in ("payload.doc.id", "scope", "nope", None)] == ["3", "", "", ""]
    assert value_in(None, "key") == ""


def test_a_field_of_the_payload_has_one_spelling() -> None:
    for make in (lambda by: Concurrency(1, by=by), lambda by: Rate(1, per=1, by=by), Fair):
        assert make("payload.tenant") == make("tenant")
        stored = to_builtins(make("tenant")) | {"by": "payload.tenant"}
        assert convert({"name": T, "limit": stored}, Put).id == Put(T, make("tenant")).id
        for kept in ("payload.scope_id", "payload.scope", "payload.key", "payload.a.b", "scope_id", "payload", "a.b"):
            assert make(kept).by == kept
    assert value_in('{"payload.tenant":"a"}', "tenant") == "a", "a job of an older release"


# ── Which limits apply ──


def test_what_was_put_takes_the_place_of_the_code() -> None:
    code = Limited((Concurrency(5), Concurrency(3, by="key"), Rate(9, per=1, name="api"), Fair("key")))
    puts = [
        Put(T, Concurrency(7)),
        Put(T, Concurrency(1, by="key"), "big"),
        Put("api", Rate(2, per=1)),
        Put("other", Concurrency(1)),
        Put(T, Fair("key", weights={"a": 2})),
        Put(T, Rate(4, per=2)),
        Put(T, Rate(1, per=1, by="key"), "no such limit"),
    ]
    rules = rules_of(T, code, puts)
    assert [(rule.name, rule.limit, rule.source, rule.values) for rule in rules] == [
        (T, Concurrency(7), "put", {}),
        (T, Concurrency(3, by="key"), "code", {"big": Concurrency(1, by="key")}),
        ("api", Rate(2, per=1), "put", {}),
        (T, Fair("key", weights={"a": 2}), "put", {}),
        (T, Rate(4, per=2), "put", {}),
    ]
    assert fields_of(rules) == ("key",)


def test_topics_share_a_limit_by_its_name() -> None:
    one, two = (rules_of(topic, Limited((Concurrency(5, name="api"),)), ()) for topic in "ab")
    assert one[0].id == two[0].id
    assert rules_of("api", Limited((Concurrency(1),)), ())[0].id == one[0].id


# ── An oracle ──


class Oracle:
    """Keep each held job and each start one by one, without sums."""

    def __init__(self, rules: Mapping[str, Sequence[Rule]]) -> None:
        self.rules = rules
        self.held: list[tuple[str, str | None]] = []
        self.starts: list[tuple[int, str, str | None]] = []

    def may_start(self, topic: str, share: str | None, now: int) -> bool:
        self.starts.append((now, topic, share))
        self.held.append((topic, share))
        fits = all(self._holds(rule, topic, share, now) for rule in self.rules[topic])
        self.starts.pop()
        self.held.pop()
        return fits

    def _holds(self, rule: Rule, topic: str, share: str | None, now: int) -> bool:
        value = value_in(share, rule.limit.by)
        limit = rule.of(value)
        if isinstance(limit, Concurrency):
            return sum(self._counts(rule, value, *one) for one in self.held) <= limit.max
        if isinstance(limit, Rate):
            times = [at for at, topic_, share_ in self.starts if self._counts(rule, value, topic_, share_)]
            return all(sum(now - length < at for at in times) <= most for length, most in limit.windows)
        return True

    def _counts(self, rule: Rule, value: str, topic: str, share: str | None) -> bool:
        same = [one for one in self.rules[topic] if one.id == rule.id]
        return any(value_in(share, one.limit.by) == value for one in same)

    def check(self) -> None:
        """Check that no limit was ever exceeded: look at every window that ends at a start."""
        for topic, rules in self.rules.items():
            for rule in rules:
                for _, other, share in self.starts:
                    if other == topic:
                        self._check(rule, value_in(share, rule.limit.by))

    def _check(self, rule: Rule, value: str) -> None:
        limit = rule.of(value)
        if isinstance(limit, Concurrency):
            assert sum(self._counts(rule, value, *one) for one in self.held) <= limit.max
        if isinstance(limit, Rate):
            times = sorted(at for at, topic_, share_ in self.starts if self._counts(rule, value, topic_, share_))
            for length, most in limit.windows:
                for first, past in zip(times, times[most:], strict=False):
                    assert past - first >= length


class Stored:
    """The starts as a store keeps them: counted per part of a window."""

    def __init__(self) -> None:
        self.starts: dict[tuple[str, str, int], list[int]] = {}

    def read(self, asked: Sequence[Asked]) -> list[Start]:
        found = []
        for one in asked:
            mine = [(key[2], at, n) for key, (at, n, _) in self.starts.items() if key[:2] == (one.rule, one.value)]
            near = sorted((bucket, at, n) for bucket, at, n in mine if one.after < at <= one.before)
            assert all(bucket > one.after for bucket, _, _ in near), "a store looks for them by the bucket"
            found += [Start(one.rule, one.value, at, n) for _, at, n in near[-one.most :]]
        return found

    def count(self, room: Room, picks: Sequence[Pick], now: int) -> None:
        for one in room.counted(picks):
            key = (one.rule, one.value, (now // one.width + 1) * one.width - 1)
            _, n, until = self.starts.get(key, [0, 0, 0])
            self.starts[key] = [now, n + one.n, max(until, now + one.length)]


VALUES = ["a", "b", "c", "d"]


@st.composite
def some_limits(draw: st.DrawFn, name: str | None) -> tuple[Limit, ...]:
    few = st.integers(1, 4)
    limits: list[Limit] = []
    if draw(st.booleans()):
        limits.append(Concurrency(draw(few), name=name))
    if draw(st.booleans()):
        limits.append(Concurrency(draw(few), by="key"))
    for by in (None, "key"):
        if draw(st.booleans()):
            most = draw(few)
            burst = draw(st.none() | st.integers(1, most))
            limits.append(Rate(most, per=draw(st.sampled_from([0.01, 0.1, 1.0])), by=by, name=name, burst=burst))
    if draw(st.booleans()):
        limits.append(Fair("key", weights={"a": draw(few)}))
    return tuple(limits) or (Concurrency(1),)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, tuple[Rule, ...]], list[tuple[Any, ...]]]:
    name = draw(st.sampled_from([None, "api"]))
    first = Limited(draw(some_limits(name)))
    limited = {"x": first, "y": first if name is not None else Limited(draw(some_limits(name)))}
    puts = [Put("x", Concurrency(2, by="key"), "b")] if draw(st.booleans()) else []
    rules = {topic: rules_of(topic, one, puts) for topic, one in limited.items()}
    step = st.tuples(
        st.sampled_from(["claim", "claim", "claim", "end", "wait"]),
        st.integers(1, 6),
        st.sampled_from([0, 1, 900, 5_000, 10_000, 60_000, 100_000, 400_000, 1_000_000]),
    )
    return rules, draw(st.lists(step, min_size=3, max_size=25))


@settings(max_examples=100, deadline=None)
@given(worlds(), st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from(VALUES), st.integers(0, 2)), max_size=40))
def test_limits_hold_and_nothing_is_left_that_may_start(
    world: tuple[dict[str, tuple[Rule, ...]], list[tuple[Any, ...]]], jobs: list[tuple[str, str, int]]
) -> None:
    rules, steps = world
    oracle, stored, now = Oracle(rules), Stored(), 1_800_000_000 * SECOND
    waiting: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for n, (topic, value, priority) in enumerate(jobs):
        waiting[topic, _share(rules[topic], value)].append(Candidate(-priority, n // 3, f"{n:03}"))
    for line in waiting.values():
        line.sort()
    for what, count, passed in steps:
        now += passed
        if what == "end":
            del oracle.held[:count]
        if what != "claim":
            continue
        counted = Counter(oracle.held)
        room = Room(rules, [(topic, share, n) for (topic, share), n in counted.items()], now)
        queues = [queue for topic in rules if (queue := _queue(room, topic, waiting, stored)) is not None]
        picks = choose(room, queues, [], count)
        stored.count(room, picks, now)
        seen: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
        for topic, share, job in picks:
            assert oracle.may_start(topic, share, now), "a limit is exceeded"
            oracle.held.append((topic, share))
            oracle.starts.append((now, topic, share))
            waiting[topic, share or ""].remove(job)
            seen[topic, share or ""].append(job)
        oracle.check()
        for key, line in seen.items():
            assert line == sorted(line), "priority, then age, within a share"
            assert not waiting[key] or line[-1] < waiting[key][0]
        left = [key for key, line in waiting.items() if line and oracle.may_start(key[0], key[1] or None, now)]
        if len(picks) < count:
            # All starts of a part of a window count until the last one leaves the window. So some room may be hidden.
            exact = [key for key in left if not _is_near_a_part(rules, key, oracle, now)]
            assert not exact, "work is left although there is room"


def _share(rules: Sequence[Rule], value: str) -> str:
    job = NewJob("0193fb1e-0000-7000-8000-000000000000", T, "{}", key=value)
    return share_of(fields_of(rules), job, {}) or ""


def _queue(
    room: Room, topic: str, waiting: Mapping[tuple[str, str], list[Candidate]], stored: Stored
) -> Ring | Row | None:
    shares = sorted((share, jobs) for (other, share), jobs in waiting.items() if other == topic and jobs)
    asked = room.unknown(topic, [share or None for share, _ in shares])
    room.learn(asked, stored.read(asked))
    if not shares:
        return None
    if not fields_of(room._rules[topic]):
        return Row(room, topic, shares[0][1])
    fair = next((rule.limit for rule in room._rules[topic] if isinstance(rule.limit, Fair)), None)
    return Ring(room, topic, shares, Turn(), fair)


def _is_near_a_part(rules: Mapping[str, Sequence[Rule]], key: tuple[str, str], oracle: Oracle, now: int) -> bool:
    """Return True if a start left a window so shortly ago that it may still count with a later start of its part."""
    windows = {
        window for all_ in rules.values() for rule in all_ for one in (rule.limit, *rule.values.values())
        if isinstance(one, Rate) for window in one.windows
    }  # fmt: skip
    lengths = [length for length, _ in windows]
    return any(0 <= now - at - length <= max(lengths) // BUCKETS for at, *_ in oracle.starts for length in lengths)


# ── Rates ──


def room_of(*limits: Limit, now: int = 0, starts: Sequence[tuple[int, int]] = ()) -> tuple[Room, tuple[Rule, ...]]:
    rules = rules_of(T, Limited(limits), ())
    room = Room({T: rules}, [], now)
    asked = room.unknown(T, [None])
    room.learn(asked, [Start(one.rule, one.value, at, n) for one in asked for at, n in starts])
    return room, rules


def test_the_next_start_is_when_enough_starts_have_left_all_windows() -> None:
    room, _ = room_of(Rate(4, per=10), now=12 * SECOND, starts=[(1 * SECOND, 9), (3 * SECOND, 3), (5 * SECOND, 2)])
    assert room.free(T, None) == 0  # 5 of 4: the limit was lowered
    assert room.next_at == 13 * SECOND
    room, _ = room_of(Rate(4, per=10, burst=1), now=5 * SECOND, starts=[(1 * SECOND, 3), (5 * SECOND, 1)])
    assert room.free(T, None) == 0
    assert room.next_at == 11 * SECOND  # the window ends later than the burst
    room, _ = room_of(Rate(4, per=10, burst=1), now=5 * SECOND, starts=[(5 * SECOND, 1)])
    assert room.free(T, None) == 0
    assert room.next_at == 5 * SECOND + 2_500_000
    room, _ = room_of(Rate(9, per=1), Rate(1, per=60, name="api"), starts=[(0, 1)])
    assert room.free(T, None) == 0
    assert room.next_at == 60 * SECOND


def test_no_next_start_is_known_while_a_job_must_end_first() -> None:
    rules = rules_of(T, Limited((Rate(1, per=1), Concurrency(1))), ())
    room = Room({T: rules}, [(T, None, 1)], 0)
    room.learn(room.unknown(T, [None]), [Start(rules[0].id, "", 0, 1)])
    assert room.free(T, None) == 0
    assert room.next_at is None


def test_a_start_counts_for_the_whole_window_and_no_longer() -> None:
    for now, free in ((10 * SECOND - 1, 0), (10 * SECOND, 1)):
        assert room_of(Rate(1, per=10), now=now, starts=[(0, 1)])[0].free(T, None) == free


def test_a_clock_that_was_set_back_does_not_stop_a_topic() -> None:
    assert room_of(Rate(1, per=10), now=0, starts=[(11 * SECOND, 1)])[0].free(T, None) == 1
    assert room_of(Rate(1, per=10), now=0, starts=[(9 * SECOND, 1)])[0].free(T, None) == 0


def test_topics_that_share_a_rate_may_have_different_windows_in_their_code() -> None:
    """This happens while a new version is deployed."""
    shared = {"x": Rate(5, per=1, name="api", burst=2), "y": Rate(2, per=60, name="api")}
    rules = {topic: rules_of(topic, Limited((one,)), ()) for topic, one in shared.items()}
    room = Room(rules, [], 0)
    for topic in rules:
        asked = room.unknown(topic, [None])
        room.learn(asked, [])
        assert room.free(topic, None) == 2
    room.take("x", None)
    assert [room.free(topic, None) for topic in rules] == [1, 1]
    [counted] = room.counted([Pick("x", None, Candidate(0, 0, "1"))])
    assert (counted.n, counted.width, counted.length) == (1, 400, 60 * SECOND)


@pytest.mark.parametrize(
    ("code", "put", "one", "length"),
    [(1, None, None, KEPT), (600, 1, None, 600 * SECOND), (1, 600, 2, 600 * SECOND), (1, 2, 600, 600 * SECOND)],
)
def test_starts_are_kept_for_the_longest_window_that_a_clear_may_bring_back(
    code: float, put: float | None, one: float | None, length: int
) -> None:
    puts = [Put(T, Rate(5, per=put, by="key"))] if put else []
    puts += [Put(T, Rate(5, per=one, by="key"), "a")] if one else []
    rules = {T: rules_of(T, Limited((Rate(5, per=code, by="key"),)), puts)}
    room = Room(rules, [], 0)
    share = _share(rules[T], "a")
    asked = room.unknown(T, [share])
    room.learn(asked, [])
    [counted] = room.counted([Pick(T, share, Candidate(0, 0, "1"))])
    held = round((one or put or code) * SECOND)
    assert (counted.width, counted.length) == (held // BUCKETS, length)
    assert [(each.after, each.before) for each in asked] == [(-held, held)], "a claim reads no more than it needs"


# ── Turns ──


def jobs(count: int, *, priority: int = 0, at: int = 0) -> list[Candidate]:
    return [Candidate(-priority, at + n, f"{at + n:06}") for n in range(count)]


class Claims:
    """Claim jobs of one topic as stores do: the ring begins after the last turn, and the turn is kept."""

    def __init__(self, lines: dict[str, list[Candidate]], weights: Mapping[str, int] | None = None) -> None:
        self.lines = lines
        self.rules = rules_of(T, Limited((Fair("key", weights=dict(weights or {})),)), ())
        self.turn = Turn()

    def claim(self, limit: int) -> list[str]:
        shares = sorted(share for share, line in self.lines.items() if line)
        last = self.turn.share
        order = shares
        if last is not None:
            order = [one for one in shares if one > last] + [one for one in shares if one <= last]
            if self.turn.left > 0 and last in order:
                order = [last, *(one for one in order if one != last)]
        room = Room({T: self.rules}, [], 0)
        fair = self.rules[0].limit
        assert isinstance(fair, Fair)
        ring = Ring(room, T, [(share, self.lines[share]) for share in order], self.turn, fair)
        picks = choose(room, [ring], [], limit)
        self.turn = ring.turn
        for _, share, job in picks:
            self.lines[share or ""].remove(job)
        return [value_in(share, "key") for _, share, _ in picks]


def lines(**counts: int) -> dict[str, list[Candidate]]:
    return {_share(rules_of(T, Limited((Fair("key"),)), ()), value): jobs(n) for value, n in counts.items()}


@settings(max_examples=20, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9), min_size=2),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_weights_are_met_within_5_percent(weights: dict[str, int], sizes: list[int]) -> None:
    claims = Claims(lines(**dict.fromkeys(weights, 1000)), weights)
    started: Counter[str] = Counter()
    while started.total() < 1000:
        started.update(claims.claim(sizes[started.total() % len(sizes)]))
    for value, weight in weights.items():
        fair = started.total() * weight / sum(weights.values())
        assert abs(started[value] - fair) <= max(0.05 * fair, sum(weights.values()))


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_a_lone_tenant_gets_everything(limit: int) -> None:
    claims = Claims(lines(a=100), {"a": 3, "b": 50})
    assert sum(len(claims.claim(limit)) for _ in range(math.ceil(100 / limit))) == 100


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_a_small_tenant_is_not_delayed_by_a_big_one(limit: int) -> None:
    claims = Claims(lines(big=1000, small=10))
    started: list[str] = []
    while "small" in {value_in(share, "key") for share, line in claims.lines.items() if line}:
        started += claims.claim(limit)
    assert len(started) <= 20 + limit


def test_a_turn_that_is_not_over_goes_on_with_the_next_claim() -> None:
    claims = Claims(lines(a=9, b=9, c=1), {"a": 3})
    assert [claims.claim(2) for _ in range(5)] == [["a", "a"], ["a", "b"], ["c", "a"], ["a", "a"], ["b", "a"]]


def test_jobs_without_a_share_have_their_turn_and_no_more() -> None:
    claims = Claims({"": jobs(9)} | lines(a=9, b=9))
    assert [claims.claim(1) for _ in range(6)] == [[""], ["a"], ["b"], [""], ["a"], ["b"]]


def test_priority_and_age_count_between_topics_but_turns_within_one() -> None:
    rules = {T: rules_of(T, Limited((Fair("key"),)), ())}
    room = Room(rules, [], 0)
    a, b = sorted(lines(a=0, b=0))
    ring = Ring(room, T, [(a, jobs(2, at=10)), (b, jobs(2, priority=5, at=20))], Turn(), None)
    others = [Candidate(-9, 0, "z"), Candidate(0, 10, "y")]
    picks = choose(room, [ring], others, 4)
    # `z` goes first. Then comes a's first job at the head of the ring, which is older than `y`. Then it is b's turn.
    assert [pick.job.run_at for pick in picks] == [10, 20]
    assert choose(room, [ring], [Candidate(-9, n, "z") for n in range(4)], 4) == []
