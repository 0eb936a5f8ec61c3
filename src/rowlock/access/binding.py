"""What a rule is made of, and what is left of it once it is known who asks, and when: a condition on a job's columns.

A claim is compared value by value. One that is not there, null, '' or an empty list is empty: it matches nothing but a
question for emptiness. A list is compared element by element: by the plain operators all must match, by those with a ?
at least one. What can't be compared (an object, a list in a list, a text that no job can hold, a list that is too long)
matches nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from rowlock.access.identity import is_storable
from rowlock.core.conditions import COMPARE, FIELDS, Compared, Condition, Every, Kind, Op, Some, Value, like, listed
from rowlock.errors import InvalidInput

MAX_ELEMENTS = 1000  # of a list in the claims; and pairs, if two lists are compared with each other
MAX_TEXT = 10_000  # characters of a text in the claims: SQLite takes no longer patterns
_LARGEST = 1e15  # number in the claims: beyond it, databases and Python round differently

_SWAPPED: dict[Op, Op] = {"=": "=", "!=": "!=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


# ── What a rule is made of ──


class Field(Struct, frozen=True):
    name: str


class Claim(Struct, frozen=True):
    """@request.auth.…: of whoever asks."""

    path: tuple[str, ...]


class Constant(Struct, frozen=True):
    """None is null, which means the same as ''. True and False mean the same as 'true' and 'false'."""

    value: str | float | bool | None


class Moment(Struct, frozen=True):
    """@now, or what is derived from it."""

    name: str


Operand = Field | Claim | Constant | Moment


class Comparison(Struct, frozen=True):
    """`some`: its operator has a ?, so that one element of a list is enough."""

    left: Operand
    op: Op
    right: Operand
    some: bool = False


class All(Struct, frozen=True):
    parts: tuple[Expression, ...]


class Either(Struct, frozen=True):
    parts: tuple[Expression, ...]


Expression = Comparison | All | Either | bool


# ── Time ──


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _month(now: datetime) -> datetime:
    return _midnight(now).replace(day=1)


def _next_month(now: datetime) -> datetime:
    return _month(_month(now) + timedelta(days=31))


def _year(now: datetime) -> datetime:
    return _month(now).replace(month=1)


_TICK = timedelta(microseconds=1)
_DAY = timedelta(days=1)

# As PocketBase has them; all in UTC. A week begins with Sunday, which is 0.
MOMENTS: dict[str, tuple[Kind, Callable[[datetime], Value]]] = {
    "@now": ("time", lambda now: now),
    "@yesterday": ("time", lambda now: now - _DAY),
    "@tomorrow": ("time", lambda now: now + _DAY),
    "@todayStart": ("time", _midnight),
    "@todayEnd": ("time", lambda now: _midnight(now) + _DAY - _TICK),
    "@monthStart": ("time", _month),
    "@monthEnd": ("time", lambda now: _next_month(now) - _TICK),
    "@yearStart": ("time", _year),
    "@yearEnd": ("time", lambda now: _year(_year(now) + timedelta(days=366)) - _TICK),
    "@second": ("number", lambda now: now.second),
    "@minute": ("number", lambda now: now.minute),
    "@hour": ("number", lambda now: now.hour),
    "@weekday": ("number", lambda now: now.isoweekday() % 7),
    "@day": ("number", lambda now: now.day),
    "@month": ("number", lambda now: now.month),
    "@year": ("number", lambda now: now.year),
}


def moment(operand: Moment, now: datetime) -> Value:
    return MOMENTS[operand.name][1](now.astimezone(UTC))


def read_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("rule", "bad_time", f"{text!r:.40} is no time such as '2026-01-31T08:00:00Z'") from None
    if found.tzinfo is None:
        raise InvalidInput("rule", "bad_time", f"{text!r:.40} has no time zone: write Z for UTC")
    try:
        return found.astimezone(UTC)
    except OverflowError:  # in UTC it would be in the year 0, or 10000
        raise InvalidInput("rule", "bad_time", f"{text!r:.40} is beyond all time") from None


# ── Binding ──


def bind(expression: Expression, claims: Mapping[str, Any], now: datetime) -> Condition:
    """The condition that is left for whoever has these claims, at this time."""
    match expression:
        case bool():
            return expression
        case Comparison():
            return _compare(expression, claims, now)
        case All():
            parts = [bind(part, claims, now) for part in expression.parts]
            left = tuple(part for part in parts if not isinstance(part, bool))
            if False in parts:
                return False
            return Every(left) if len(left) > 1 else left[0] if left else True
        case Either():
            parts = [bind(part, claims, now) for part in expression.parts]
            left = tuple(part for part in parts if not isinstance(part, bool))
            if True in parts:
                return True
            return Some(left) if len(left) > 1 else left[0] if left else False


def _compare(comparison: Comparison, claims: Mapping[str, Any], now: datetime) -> Condition:
    left, op, right, some = comparison.left, comparison.op, comparison.right, comparison.some
    if isinstance(right, Field):
        left, op, right = right, _SWAPPED[op], left
    values = _values(right, op, claims, now)
    if not isinstance(left, Field):
        return _compare_known(left, _values(left, "=", claims, now), op, right, values, some)
    if isinstance(right, Claim):
        return _with_claim(left.name, op, values, some)
    return _with_text(left.name, op, values[0])


def _with_claim(name: str, op: Op, values: Sequence[Value | None], some: bool) -> Condition:
    found = [_of_kind(FIELDS[name], value) for value in values]
    usable = [value for value in found if value is not None]
    return listed(name, op, usable, some=some) if some or len(usable) == len(found) else False


def _with_text(name: str, op: Op, value: Value | None) -> Condition:
    """What stands in the rule itself may ask for emptiness, and what is empty is not equal to it, either."""
    if value == "":
        return Compared(name, op, None)
    found = _of_kind(FIELDS[name], value)
    return False if found is None else Compared(name, op, found, null=op in ("!=", "!~"))


def _compare_known(
    left: Operand, lefts: Sequence[Value | None], op: Op, right: Operand, rights: Sequence[Value | None], some: bool
) -> bool:
    if len(lefts) * len(rights) > MAX_ELEMENTS:
        return False
    if is_empty(left) or is_empty(right):
        matches = [_is_empty(one, op) for one in (lefts if is_empty(right) else rights)]
    else:
        matches = [_matches(one, op, other) for one in lefts for other in rights]
    return any(matches) if some else all(matches)


def is_empty(operand: Operand) -> bool:
    """Does it ask for emptiness?"""
    return isinstance(operand, Constant) and operand.value in ("", None)


def _is_empty(value: Value | None, op: Op) -> bool:
    return value is not None and op in ("=", "!=") and (value == "") == (op == "=")


def _matches(left: Value | None, op: Op, right: Value | None) -> bool:
    if isinstance(left, datetime) or isinstance(right, datetime):
        left, right = _of_kind("time", left), _of_kind("time", right)
    if left is None or right is None or left == "" or right == "" or isinstance(left, str) != isinstance(right, str):
        return False
    if op in ("~", "!~"):
        return isinstance(left, str) and like(left, str(right)) == (op == "~")
    return COMPARE[op](left, right)


# ── Values ──


def _values(operand: Operand, op: Op, claims: Mapping[str, Any], now: datetime) -> Sequence[Value | None]:
    """The values of an operand on the right of `op`: '' is empty, None can't be compared."""
    match operand:
        case Constant(value=bool() | None):
            return ["" if operand.value is None else _bool_text(bool(operand.value))]
        case Constant():
            return [operand.value]
        case Moment():
            return [moment(operand, now)]
        case Claim():
            values = _elements(claim_value(operand, claims))
            # Wildcards are the rule's to use: a claim that is % would match everything.
            wild = op in ("~", "!~")
            return [None if wild and isinstance(one, str) and "%" in one else one for one in values]
        case Field():
            raise AssertionError(operand.name)


def claim_value(claim: Claim, claims: Mapping[str, Any]) -> Any:
    """As the identity has it; None: it is not there."""
    value: Any = claims
    for name in claim.path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _elements(value: Any) -> Sequence[str | float | None]:
    if not isinstance(value, list | tuple | set | frozenset):
        return [_element(value)]
    if len(value) > MAX_ELEMENTS:
        return [None]
    return [_element(one) for one in value] or [""]


def _element(value: Any) -> str | float | None:
    if value is None:
        return ""
    if isinstance(value, bool):
        return _bool_text(value)
    if isinstance(value, int | float):
        return value if abs(value) <= _LARGEST else None
    return value if isinstance(value, str) and len(value) <= MAX_TEXT and is_storable(value) else None


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _of_kind(kind: Kind, value: Value | None) -> Value | None:
    """As a column of this kind holds it; None: it can't be compared with one."""
    if value is None or value == "":
        return None
    if kind == "time" and isinstance(value, str):
        try:
            return read_time(value)
        except InvalidInput:
            return None
    if isinstance(value, datetime):
        return value if kind == "time" else None
    return value if isinstance(value, str) == (kind == "text") and kind != "time" else None
