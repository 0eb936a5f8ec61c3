"""Why does a rule let someone do something, or not? Each of its comparisons, with what stood on its sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from rowlock.access.rules import All, Claim, Comparison, Constant, Either, Expression, Field, Operand, Rule, bind
from rowlock.core.conditions import holds


class Part(Struct, frozen=True):
    """`left`, `right`: the values; None: nothing is there. `holds` None: it depends on the job."""

    text: str
    left: Any
    right: Any
    holds: bool | None


def explain(rule: Rule, claims: Mapping[str, Any], job: Mapping[str, Any] | None) -> list[Part]:
    """`job`: its columns; None: of any job."""
    return [_part(one, claims, job) for one in _comparisons(rule.expression)]


def _comparisons(expression: Expression) -> Iterator[Comparison]:
    match expression:
        case Comparison():
            yield expression
        case All() | Either():
            for part in expression.parts:
                yield from _comparisons(part)
        case bool():
            return


def _part(one: Comparison, claims: Mapping[str, Any], job: Mapping[str, Any] | None) -> Part:
    condition = bind(one, claims)
    known = condition if isinstance(condition, bool) else None if job is None else holds(condition, job)
    text = f"{_text(one.left)} {one.op} {_text(one.right)}"
    return Part(text, _value(one.left, claims, job), _value(one.right, claims, job), known)


def _text(operand: Operand) -> str:
    match operand:
        case Field():
            return operand.name
        case Claim():
            return f"@request.auth.{'.'.join(operand.path)}"
        case Constant(value=str()):
            return f"'{operand.value}'"
        case Constant():
            return f"{operand.value:g}"


def _value(operand: Operand, claims: Mapping[str, Any], job: Mapping[str, Any] | None) -> Any:
    match operand:
        case Field():
            return None if job is None else job.get(operand.name)
        case Claim():
            value: Any = claims
            for name in operand.path:
                value = value.get(name) if isinstance(value, Mapping) else None
            return value
        case Constant():
            return operand.value
