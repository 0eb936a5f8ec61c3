"""The parts of a rule, and how claims and the time turn them into a condition on a job's columns.

A claim that is missing, null, '' or an empty list is empty. It matches only a comparison with emptiness. A list is
compared element by element: with the plain operators all must match, with a ? at least one. Values that can't be
compared (an object, a list in a list, a text that no job can hold, a list that is too long) match nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from rowlock.core.codec import is_storable
from rowlock.core.conditions import COMPARE, FIELDS, Compared, Condition, Every, Kind, Op, Some, Value, like, listed
from rowlock.errors import InvalidInput

MAX_ELEMENTS = 1000  # of a list in the claims; and pairs, if two lists are compared with each other
MAX_TEXT = 10_000  # characters of a text in the claims: SQLite takes no longer patterns
_LARGEST = 1e15  # number in the claims: beyond it, databases and Python round differently

_SWAPPED: dict[Op, Op] = {"=": "=", "!=": "!=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


# ── Parts of a rule ──


class Field(Struct, frozen=True):
    name: str


class Claim(Struct, frozen=True):
    """@request.auth.…: a claim of the caller."""

    path: tuple[str, ...]


class Constant(Struct, frozen=True):
    """None is null, which means the same as ''. True and False mean the same as 'true' and 'false'."""

    value: str | float | bool | None


class Moment(Struct, frozen=True):
    """@now, or a time or number that is derived from it."""

    name: str


Operand = Field | Claim | Constant | Moment


class Comparison(Struct, frozen=True):
    """`some`: the operator has a ?, so one matching element of a list is enough."""

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

# The same as PocketBase's; all in UTC. A week begins with Sunday, which is 0.
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


def read_time(text: str, field: str = "rule") -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(field, "bad_time", f"{text!r:.40} is no time such as '2026-01-31T08:00:00Z'") from None
    if found.tzinfo is None:
        raise InvalidInput(field, "bad_time", f"{text!r:.40} has no time zone: write Z for UTC")
    try:
        return found.astimezone(UTC)
    except OverflowError:  # in UTC it would be in the year 0, or 10000
        raise InvalidInput(field, "bad_time", f"{text!r:.40} is out of range") from None


# ── Binding ──


def bind(expression: Expression, claims: Mapping[str, Any], now: datetime) -> Condition:
    """Return the condition for a caller with these claims, at this time."""
    match expression:
        case bool():
            return expression
        case Comparison():
            return _compare(expression, claims, now)
        case All() | Either():
            is_all = isinstance(expression, All)
            parts = [bind(part, claims, now) for part in expression.parts]
            left = tuple(part for part in parts if not isinstance(part, bool))
            if (not is_all) in parts:  # one part decides
                return not is_all
            if len(left) < 2:
                return left[0] if left else is_all
            return Every(left) if is_all else Some(left)


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
    """Compare a column with the rule's own text, which may ask for emptiness. An empty column is unequal to a text."""
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
    """True if the operand asks for emptiness."""
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
    """Return the values of an operand on the right of `op`: '' is empty, None can't be compared."""
    match operand:
        case Constant(value=bool() | None):
            return ["" if operand.value is None else _bool_text(bool(operand.value))]
        case Constant():
            return [operand.value]
        case Moment():
            return [moment(operand, now)]
        case Claim():
            values = _elements(claim_value(operand, claims))
            # Only the rule's text may have wildcards: a claim % would match everything.
            wild = op in ("~", "!~")
            return [None if wild and isinstance(one, str) and "%" in one else one for one in values]
        case Field():
            raise AssertionError(operand.name)


def claim_value(claim: Claim, claims: Mapping[str, Any]) -> Any:
    """Return the caller's claim; None if it is missing."""
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
    """Return the value in the form of a column of this kind; None if it can't be compared with one."""
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
