"""Random rules: as text for the product, and as data for a second implementation in the tests, the judge.

The judge does not use the product's code that reads and binds rules: it compares value by value."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Literal

from msgspec import Struct

from rowlock.core.conditions import FIELDS

TEXTS = [
    "", "a", "A", "ab", "a_b", "a%b", "a*b", "a[b", "a?b", "a\\b", "ä", "😀", "Z", "'", '"', "report.daily", "\ue000",
]  # fmt: skip
PATTERNS = [*TEXTS[1:], "a%", "%b", "%a%", "%", "a%b%", "%%", "report%", "_", "*", "[a]%"]
PLAIN = ["=", "!=", ">", ">=", "<", "<=", "~", "!~"]
OPERATORS = [*PLAIN, *(f"?{op}" for op in PLAIN)]
NAMES = {  # names of claims, and how a rule writes each
    "id": "id", "roles": "roles", "tenant-id": "tenant-id", "cognito:groups": "cognito:groups",
    "https://example.com/a b": "'https://example.com/a b'", "it's": '"it\'s"', "a.b": '"a.b"',
}  # fmt: skip
TIMES = ["now", "yesterday", "tomorrow", "todayStart", "todayEnd", "monthStart", "monthEnd", "yearStart", "yearEnd"]
NUMBERS = ["second", "minute", "hour", "weekday", "day", "month", "year"]
MOST = 1000
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Side(Struct, frozen=True):
    """One side of a comparison. `what`: a column's name, the path of a claim, a constant, or the name of a moment."""

    kind: Literal["field", "claim", "text", "moment"]
    what: Any
    written: str


class One(Struct, frozen=True):
    left: Side
    op: str
    right: Side


class Many(Struct, frozen=True):
    every: bool
    parts: tuple["One | Many", ...]


Rule = One | Many


# ── The judge ──


class Odd:
    """Stands for a value that can't be compared."""


def judge(rule: Rule, claims: Mapping[str, Any], row: Mapping[str, Any], now: datetime) -> bool:
    if isinstance(rule, Many):
        found = [judge(part, claims, row, now) for part in rule.parts]
        return all(found) if rule.every else any(found)
    lefts, rights = (_seen(side, claims, row, now) for side in (rule.left, rule.right))
    if len(lefts) * len(rights) > MOST:
        return False
    some, op = rule.op.startswith("?"), rule.op.lstrip("?")
    found = [_fits(rule, one, op, other) for one in lefts for other in rights]
    return any(found) if some else all(found)


def _seen(side: Side, claims: Mapping[str, Any], row: Mapping[str, Any], now: datetime) -> list[Any]:
    """Return the values of this side. None stands for an empty value."""
    match side.kind:
        case "field":
            return [row[side.what]]
        case "text":
            return [_plain(side.what)]
        case "moment":
            return [_moment(side.what, now)]
        case "claim":
            value: Any = claims
            for name in side.what:
                value = value[name] if isinstance(value, dict) and name in value else None
            if not isinstance(value, list):
                return [_plain(value)]
            if len(value) > MOST:
                return [Odd]
            return [_plain(one) for one in value] if value else [None]


def _plain(value: Any) -> Any:
    if value is None or value == "":
        return None
    if value is True or value is False:
        return str(value).lower()
    if isinstance(value, str):
        return Odd if "\0" in value or len(value) > 10_000 else value
    if isinstance(value, int | float):
        return value if -1e15 <= value <= 1e15 else Odd
    return Odd


def _moment(name: str, now: datetime) -> Any:
    day = datetime(now.year, now.month, now.day, tzinfo=UTC)
    first = datetime(now.year, now.month, 1, tzinfo=UTC)
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    last = timedelta(microseconds=-1)
    return {
        "now": now, "yesterday": now - timedelta(1), "tomorrow": now + timedelta(1),
        "todayStart": day, "todayEnd": day + timedelta(1) + last, "monthStart": first, "monthEnd": following + last,
        "yearStart": datetime(now.year, 1, 1, tzinfo=UTC), "yearEnd": datetime(now.year + 1, 1, 1, tzinfo=UTC) + last,
        "second": now.second, "minute": now.minute, "hour": now.hour, "day": now.day, "month": now.month,
        "year": now.year, "weekday": int(now.strftime("%w")),
    }[name]  # fmt: skip


def _fits(rule: One, left: Any, op: str, right: Any) -> bool:
    if left is Odd or right is Odd:
        return False
    if _asks(rule.left) or _asks(rule.right):
        other = left if _asks(rule.right) else right
        return {"=": other in (None, ""), "!=": other not in (None, "")}.get(op, False)
    sides = {rule.left.kind, rule.right.kind}
    if left is None or right is None:  # an empty column is unequal to a constant in the rule, but not to a claim
        return op in ("!=", "!~") and "field" in sides and "claim" not in sides
    fields = [side.what for side in (rule.left, rule.right) if side.kind == "field"]
    times = isinstance(left, datetime) or isinstance(right, datetime) or any(FIELDS[name] == "time" for name in fields)
    if times:
        left, right = _time(left), _time(right)
    if (isinstance(left, str), left is None) != (isinstance(right, str), right is None) or left is None:
        return False
    if op in ("~", "!~"):
        if not isinstance(left, str) or (rule.right.kind == "claim" and "%" in right):
            return False
        pattern = right if "%" in right else f"%{right}%"
        return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("%"))), left, re.DOTALL)) == (op == "~")
    order = (left > right) - (left < right)
    return order in {"=": (0,), "!=": (-1, 1), ">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0)}[op]


def _asks(side: Side) -> bool:
    return side.kind == "text" and side.what in (None, "")


def _time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found


# ── At random ──


def some_case(chance: random.Random, rows: Sequence[Mapping[str, Any]], depth: int = 2) -> tuple[Rule, dict[str, Any]]:
    """Return a random rule, and claims that may meet it."""
    claims: dict[str, Any] = {}
    return _some_rule(chance, rows, claims, depth), claims


def every_case(chance: random.Random, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Rule, dict[str, Any]]]:
    """Yield rules that compare columns of every kind with lists of values that they hold, by every operator."""
    for field in ("topic", "status", "scope_id", "priority", "max_retries", "run_at", "id"):
        held = sorted({row[field] for row in rows if row[field] is not None})
        for op, size in product(OPERATORS, (1, 2, 3)):
            values = chance.sample(held, min(size, len(held)))
            told = [value.isoformat() if isinstance(value, datetime) else value for value in values]
            sides = Side("field", field, field), Side("claim", ("roles",), "@request.auth.roles")
            if not _is_refused(FIELDS[field], sides[0], op.lstrip("?"), sides[1]):
                yield One(sides[0], op, sides[1]), {"roles": told}
    for size in (MOST, MOST + 1):
        claims = {"roles": [rows[0]["topic"], *(f"{n}" for n in range(size - 1))]}
        for op in ("?=", "!="):
            yield One(Side("field", "topic", "topic"), op, Side("claim", ("roles",), "@request.auth.roles")), claims


def _some_rule(chance: random.Random, rows: Sequence[Mapping[str, Any]], claims: dict[str, Any], depth: int) -> Rule:
    if depth == 0 or chance.random() < 0.5:
        return _some_comparison(chance, rows, claims)
    parts = tuple(_some_rule(chance, rows, claims, depth - 1) for _ in range(chance.choice([2, 2, 3])))
    return Many(chance.random() < 0.5, parts)


def written(rule: Rule, chance: random.Random) -> str:
    space = chance.choice([" ", "  ", "\n", ' // it\'s a "comment" && (\n', "\t"])
    if isinstance(rule, One):
        return f"{rule.left.written}{space}{rule.op}{chance.choice([' ', ''])}{rule.right.written}"
    between = f"{space}{'&&' if rule.every else '||'} "
    return f"({between.join(written(part, chance) for part in rule.parts)})"


def _some_comparison(chance: random.Random, rows: Sequence[Mapping[str, Any]], claims: dict[str, Any]) -> One:
    kind = chance.choice(["text", "text", "number", "time"])
    field = chance.choice([name for name, known in FIELDS.items() if known == kind])
    while True:
        near = chance.choice(rows)[field] if chance.random() < 0.6 else None
        sides = [_of(chance, kind, field, near), _of(chance, kind, None, near)]
        op = chance.choice(OPERATORS)
        if not op.endswith("~"):
            chance.shuffle(sides)
        if not _is_refused(kind, sides[0], op.lstrip("?"), sides[1]):
            break
    for side in sides:
        if side.kind == "claim" and side.what[0] not in claims and chance.random() < 0.9:
            claims[side.what[0]] = _some_value(chance, rows, field)
    return One(sides[0], op, sides[1])


def _is_refused(kind: str, left: Side, op: str, right: Side) -> bool:
    """Return True if the product refuses this comparison as meaningless. The tests of the reader check that."""
    constants = [side.what for side in (left, right) if side.kind == "text"]
    words = [what for what in constants if what in ("", None) or isinstance(what, bool)]
    flags = any(isinstance(what, bool) for what in words)
    if flags and {"field", "moment"} & {left.kind, right.kind}:
        return True
    if op in ("~", "!~"):
        return kind != "text" or right.kind == "moment" or not isinstance(right.what, str | tuple) or bool(words)
    return bool(words) and op not in ("=", "!=")


def _of(chance: random.Random, kind: str, field: str | None, near: Any) -> Side:
    """Return a side: mostly the column, if `field` names one; otherwise something to compare with a column."""
    if field is not None and chance.random() < 0.8:
        return Side("field", field, field)
    if chance.random() < 0.55:
        name = chance.choice(list(NAMES))
        return Side("claim", (name,), f"@request.auth.{NAMES[name]}")
    if chance.random() < 0.12:
        word, value = chance.choice([("null", None), ("''", ""), ("true", True), ("false", False)])
        return Side("text", value, word)
    if kind == "text":
        text = near or chance.choice(PATTERNS)
        return Side("text", text, _quoted(text, chance))
    if kind == "number":
        if chance.random() < 0.2:
            name = chance.choice(NUMBERS)
            return Side("moment", name, f"@{name}")
        number = chance.choice([-5, 0, 1, 3, 4, 12, 100, 2026, 0.5]) if near is None else near
        return Side("text", number, f"{number:.9f}" if isinstance(number, float) else str(number))
    if chance.random() < 0.5:
        name = chance.choice(TIMES)
        return Side("moment", name, f"@{name}")
    time = (near or START) + timedelta(microseconds=chance.choice([-1, 0, 1]))
    return Side("text", time.isoformat(), _quoted(time.isoformat(), chance))


def _quoted(text: str, chance: random.Random) -> str:
    quote = chance.choice("'\"")
    return quote + text.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote


def _some_value(chance: random.Random, rows: Sequence[Mapping[str, Any]], field: str) -> Any:
    """Return a random value for a claim that is compared with this column."""
    if chance.random() < 0.4:
        return _some_element(chance, rows, field)
    size = chance.choice([0, 1, 2, 2, 3, 5, *([MOST - 1, MOST] if chance.random() < 0.05 else [])])
    many = [f"{n}" for n in range(size)] if size >= MOST - 1 else []
    if many and FIELDS[field] == "text":
        return [*many, _some_element(chance, rows, field)]
    return [_some_element(chance, rows, field, odd=0.05) for _ in range(size)]


ODD = [
    None, "", True, False, "true", {}, {"a": "a"}, [], ["a"], "a\0", 1e16, float("nan"), 1, "a", "a%",
    START.isoformat(),
]  # fmt: skip


def _some_element(chance: random.Random, rows: Sequence[Mapping[str, Any]], field: str, odd: float = 0.15) -> Any:
    if chance.random() < odd:
        return chance.choice(ODD)
    value = chance.choice(rows)[field] if chance.random() < 0.7 else None
    match FIELDS[field]:
        case "text":
            return value or chance.choice(TEXTS[1:])
        case "number":
            return chance.choice([-5, 0, 1, 1.0, 3, 4, 12, 100, 2026, 0.5, 0.1]) if value is None else value
        case "time":
            return ((value or START) + timedelta(microseconds=chance.choice([-1, 0, 1]))).isoformat()
