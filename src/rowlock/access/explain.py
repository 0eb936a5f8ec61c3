"""Explain a rule: each of its comparisons, with the values of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from rowlock.core.conditions import Condition, holds
from rowlock.core.rule_binding import (
    All,
    Claim,
    Comparison,
    Constant,
    Either,
    Expression,
    Field,
    Moment,
    Operand,
    bind,
    claim_value,
    moment,
)
from rowlock.core.rules import KEYWORDS, MODIFIERS, PLAIN_STEP, Rule


class Part(Struct, frozen=True):
    """`left`, `right`: the values; None: missing. `holds` None: it depends on the job."""

    text: str
    left: Any
    right: Any
    holds: bool | None


def explain(rule: Rule, claims: Mapping[str, Any], job: Mapping[str, Any] | None, now: datetime) -> list[Part]:
    """Return all comparisons of a rule. `job`: its columns; None: any job."""
    return [_part(one, claims, job, now) for one in _comparisons(rule.expression)]


def _comparisons(expression: Expression) -> Iterator[Comparison]:
    match expression:
        case Comparison():
            yield expression
        case All() | Either():
            for part in expression.parts:
                yield from _comparisons(part)
        case bool():
            return


def _part(one: Comparison, claims: Mapping[str, Any], job: Mapping[str, Any] | None, now: datetime) -> Part:
    known = judge(bind(one, claims, now), job)
    text = f"{_text(one.left)} {'?' if one.some else ''}{one.op} {_text(one.right)}"
    return Part(text, _value(one.left, claims, job, now), _value(one.right, claims, job, now), known)


def judge(condition: Condition, job: Mapping[str, Any] | None) -> bool | None:
    """Return whether the condition holds; None if it depends on the job."""
    return condition if isinstance(condition, bool) else None if job is None else holds(condition, job)


def _text(operand: Operand) -> str:
    match operand:
        case Field() | Moment():
            return operand.name
        case Claim():
            return f"@request.auth.{'.'.join(map(_step, operand.path))}"
        case Constant(value=str() as text):
            return _quoted(text)
        case Constant(value=bool() | None as value):
            return KEYWORDS[value]
        case Constant():
            return repr(operand.value).removesuffix(".0")


def _step(name: str) -> str:
    is_plain = PLAIN_STEP.fullmatch(name) and not name.endswith(MODIFIERS)
    return name if is_plain else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _value(operand: Operand, claims: Mapping[str, Any], job: Mapping[str, Any] | None, now: datetime) -> Any:
    match operand:
        case Field():
            return None if job is None else job.get(operand.name)
        case Claim():
            return claim_value(operand, claims)
        case Constant():
            return operand.value
        case Moment():
            return moment(operand, now)
