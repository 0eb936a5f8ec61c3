"""Conditions on the columns of a job: judged in memory for one, and by the stores in SQL for many. Both agree.

There is no negation, so SQL's "unknown" may stand for false.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["text", "number", "time"]
FIELDS: dict[str, Kind] = {
    "id": "text", "topic": "text", "status": "text", "key": "text", "scope": "text", "scope_id": "text",
    "flow_id": "text", "step": "text", "stage": "text", "locked_by": "text",
    "priority": "number", "retries": "number", "max_retries": "number", "crashes": "number", "version": "number",
    "progress": "number", "timeout": "number",
    "created": "time", "updated": "time", "run_at": "time", "expires_at": "time", "started_at": "time",
    "finished_at": "time",
}  # fmt: skip
Op = Literal["=", "!=", ">", ">=", "<", "<=", "~", "!~"]
Value = str | float | datetime

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
OPS = (*COMPARE, "~", "!~")


class Compared(Struct, frozen=True):
    """A column compared with a value; `null` is the answer if the column is NULL. A `value` of None asks whether it is
    empty (=) or not (!=), NULL or ''."""

    field: str
    op: Op
    value: Value | None
    null: bool = False


class Listed(Struct, frozen=True):
    """A column compared with several values: with at least one (`some`), or with every one. False if it is NULL.

    Made by `listed`, which says what needs no list in a simpler way: the values are of one kind, distinct and in order;
    = comes with `some` only, != without it, and texts behind ~ and !~ hold no wildcard.
    """

    field: str
    op: Literal["=", "!=", "~", "!~"]
    values: tuple[Value, ...]
    some: bool


class Every(Struct, frozen=True):
    parts: tuple[Condition, ...]


class Some(Struct, frozen=True):
    parts: tuple[Condition, ...]


Condition = Compared | Listed | Every | Some | bool


def listed(field: str, op: Op, values: Iterable[Value], *, some: bool) -> Condition:
    """Compare a column with at least one of these values (`some`), or with every one. No value matches nothing."""
    ordered: tuple[Any, ...] = tuple(sorted(set(values)))
    if not ordered:
        return False
    low, high = ordered[0], ordered[-1]
    if len(ordered) == 1:
        return Compared(field, op, low)
    match op:
        case ">" | ">=":
            return Compared(field, op, low if some else high)
        case "<" | "<=":
            return Compared(field, op, high if some else low)
        case "=" if not some:
            return False  # nothing is equal to two values
        case "!=" if some:
            return Some((Compared(field, op, low), Compared(field, op, high)))  # … and everything unequal to one of two
        case _:
            return Listed(field, op, ordered, some)


def holds(condition: Condition, job: Mapping[str, Any]) -> bool:
    """True if the condition holds for one job, given its columns. A missing column is empty."""
    match condition:
        case bool():
            return condition
        case Every():
            return all(holds(part, job) for part in condition.parts)
        case Some():
            return any(holds(part, job) for part in condition.parts)
        case Compared():
            return _test(condition, job.get(condition.field))
        case Listed():
            return _test_list(condition, job.get(condition.field))


def _test(test: Compared, value: Any) -> bool:
    if test.value is None:
        return (value is None or value == "") == (test.op == "=")
    if value is None:
        return test.null
    if test.op in ("~", "!~"):
        return like(str(value), str(test.value)) == (test.op == "~")
    return COMPARE[test.op](value, test.value)


def _test_list(test: Listed, value: Any) -> bool:
    if value is None:
        return False
    if test.op in ("=", "!="):
        return (value in test.values) == (test.op == "=")
    matches = (like(str(value), str(one)) == (test.op == "~") for one in test.values)
    return any(matches) if test.some else all(matches)


def like(text: str, pattern: str) -> bool:
    """True if the text matches: % stands for anything. A pattern without % may stand anywhere. Case counts."""
    parts = pattern.split("%") if "%" in pattern else ["", pattern, ""]
    first, *middle, last = parts
    if not text.startswith(first):
        return False
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last) and len(text) - len(last) >= at


def required(condition: Condition) -> dict[str, str]:
    """Return the texts that columns must be equal to in any case. An index may find them."""
    found = {field: one_of(condition, field) or () for field, kind in FIELDS.items() if kind == "text"}
    return {field: values[0] for field, values in found.items() if len(values) == 1}


def one_of(condition: Condition, field: str) -> tuple[str, ...] | None:
    """Return the texts of which a column must have one in any case; None: it may have others."""
    match condition:
        case Compared(op="=", value=str() as value, null=False) if condition.field == field:
            return (value,)
        case Listed(op="=") if condition.field == field and isinstance(condition.values[0], str):
            return tuple(map(str, condition.values))
        case Every():
            known = [values for part in condition.parts if (values := one_of(part, field)) is not None]
            return min(known, key=len, default=None)
        case Some():
            known = [values for part in condition.parts if (values := one_of(part, field)) is not None]
            return tuple(sorted({*chain(*known)})) if len(known) == len(condition.parts) else None
        case _:
            return None
