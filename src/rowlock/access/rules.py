"""The rule language: who may enqueue, and who may see and manage a job.

    scope_id = @request.auth.id
    @request.auth.role = 'ops' && topic ~ 'report%'

A rule is '' (superusers only), 'true' (everyone), or comparisons joined by && and || with parentheses. It is total: it
can't call anything, loop, or fail. Reading it (`parse`) refuses what makes no sense, with the place of the mistake;
then an identity is put in (`Rule.bind`), which leaves a condition on the columns of a job. That condition is judged in
memory for one job (`core.conditions.holds`), and by the stores in SQL for lists; both say the same for every job.

What is not there matches nothing. A claim that the identity doesn't have makes its comparison false, whatever the
operator, and so does an empty column that is compared with a claim: nobody who is not logged in sees the jobs that have
no scope. Only the text of a rule may ask for emptiness: `scope_id = ''`, `@request.auth.id != ''`, `key != 'a'`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from rowlock.access.identity import is_storable
from rowlock.core.conditions import COMPARE, FIELDS, OPS, Compared, Condition, Every, Kind, Op, Some, Value, like
from rowlock.errors import InvalidInput

MAX_CHARS = 2000
MAX_COMPARISONS = 50
MAX_DEPTH = 10

_SWAPPED: dict[Op, Op] = {"=": "=", "!=": "!=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_AUTH = "@request.auth."
_TOKEN = re.compile(
    r"""\s*(?:(?P<op>&&|\|\||!=|>=|<=|!~|[=><~()])
           |(?P<number>-?\d{1,15}(?:\.\d{1,9})?(?![\w.]))
           |'(?P<single>(?:[^'\\]|\\['\\])*)'
           |"(?P<double>(?:[^"\\]|\\["\\])*)"
           |(?P<name>@?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*))""",
    re.VERBOSE,
)


# ── What a rule is made of ──


class Field(Struct, frozen=True):
    name: str


class Claim(Struct, frozen=True):
    """@request.auth.…: of whoever asks."""

    path: tuple[str, ...]


class Constant(Struct, frozen=True):
    value: str | float


Operand = Field | Claim | Constant


class Comparison(Struct, frozen=True):
    left: Operand
    op: Op
    right: Operand


class All(Struct, frozen=True):
    parts: tuple[Expression, ...]


class Either(Struct, frozen=True):
    parts: tuple[Expression, ...]


Expression = Comparison | All | Either | bool


class Rule(Struct, frozen=True):
    """Made by `parse`."""

    text: str
    expression: Expression

    def bind(self, claims: Mapping[str, Any]) -> Condition:
        """For whoever has these claims."""
        return bind(self.expression, claims)


# ── Binding ──


def bind(expression: Expression, claims: Mapping[str, Any]) -> Condition:
    """The condition that is left for whoever has these claims."""
    match expression:
        case bool():
            return expression
        case Comparison():
            return _compare(expression, claims)
        case All():
            parts = [bind(part, claims) for part in expression.parts]
            left = tuple(part for part in parts if not isinstance(part, bool))
            if False in parts:
                return False
            return Every(left) if len(left) > 1 else left[0] if left else True
        case Either():
            parts = [bind(part, claims) for part in expression.parts]
            left = tuple(part for part in parts if not isinstance(part, bool))
            if True in parts:
                return True
            return Some(left) if len(left) > 1 else left[0] if left else False


def _compare(comparison: Comparison, claims: Mapping[str, Any]) -> Condition:
    left, op, right = comparison.left, comparison.op, comparison.right
    if op in ("~", "!~") and isinstance(right, Claim) and "%" in str(_claim(right, claims)):
        return False  # wildcards are the rule's to use: a claim that is % would match everything
    if isinstance(right, Field) and not isinstance(left, Field):
        left, op, right = right, _SWAPPED[op], left
    if isinstance(left, Field):
        if isinstance(right, Constant):
            return _with_text(left.name, op, right.value)
        value = _claim(right, claims) if isinstance(right, Claim) else None
        return False if value is None else _with_claim(left.name, op, value)
    return _constant(_known(left, claims), op, _known(right, claims))


def _with_text(name: str, op: Op, value: str | float) -> Condition:
    if value == "":
        return Compared(name, op, None)
    found = read_time(str(value)) if FIELDS[name] == "time" else value
    return Compared(name, op, found, null=op in ("!=", "!~"))  # what is empty is not equal to it, either


def _with_claim(name: str, op: Op, value: Value) -> Condition:
    kind = FIELDS[name]
    if kind == "time":
        try:
            return Compared(name, op, read_time(value)) if isinstance(value, str) else False
        except InvalidInput:
            return False
    return Compared(name, op, value) if isinstance(value, str) == (kind == "text") else False


def _claim(claim: Claim, claims: Mapping[str, Any]) -> str | float | None:
    """None: it is not there, or nothing that can be compared."""
    value: Any = claims
    for name in claim.path:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value if abs(value) <= 1e15 else None
    return value if isinstance(value, str) and value and is_storable(value) else None


def _known(operand: Operand, claims: Mapping[str, Any]) -> str | float | None:
    if isinstance(operand, Claim):
        return _claim(operand, claims)
    assert isinstance(operand, Constant)  # noqa: S101 - narrows the type: fields stand elsewhere
    return operand.value


def _constant(left: str | float | None, op: Op, right: str | float | None) -> bool:
    if left == "" or right == "":  # asks whether there is anything
        other = right if left == "" else left
        return (other is None or other == "") == (op == "=") if op in ("=", "!=") else False
    if left is None or right is None or isinstance(left, str) != isinstance(right, str):
        return False
    if op in ("~", "!~"):
        return isinstance(left, str) and like(left, str(right)) == (op == "~")
    return COMPARE[op](left, right)


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


# ── Reading ──


def parse(text: object, field: str = "rule") -> Rule:
    """InvalidInput says what is wrong, and where."""
    if not isinstance(text, str):
        raise InvalidInput(field, "not_text", f"must be text, not {type(text).__name__}")
    if len(text) > MAX_CHARS:
        raise InvalidInput(field, "too_long", f"has {len(text)} characters, at most {MAX_CHARS} are allowed")
    if not text.strip():
        return Rule(text, False)
    return Rule(text, _Reader(text, field).read())


class _Reader:
    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._at = 0
        self._comparisons = 0
        self._depth = 0
        self._next()

    def read(self) -> Expression:
        found = self._any()
        if self._kind is not None:
            raise self._wrong(f"{self._said()} is unexpected here")
        return found

    def _any(self) -> Expression:
        parts = [self._all()]
        while self._word == "||" and self._kind == "op":
            self._next()
            parts.append(self._all())
        return Either(tuple(parts)) if len(parts) > 1 else parts[0]

    def _all(self) -> Expression:
        parts = [self._one()]
        while self._word == "&&" and self._kind == "op":
            self._next()
            parts.append(self._one())
        return All(tuple(parts)) if len(parts) > 1 else parts[0]

    def _one(self) -> Expression:
        if self._kind == "op" and self._word == "(":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._wrong(f"parentheses stand deeper than {MAX_DEPTH}")
            self._next()
            found = self._any()
            if self._kind != "op" or self._word != ")":
                raise self._wrong("a closing parenthesis is missing")
            self._depth -= 1
            self._next()
            return found
        if self._kind == "name" and self._word in ("true", "false"):
            value = self._word == "true"
            self._next()
            return value
        return self._comparison()

    def _comparison(self) -> Expression:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise self._wrong(f"there are more than {MAX_COMPARISONS} comparisons")
        began = self._began
        left = self._operand()
        if self._kind != "op" or self._word not in OPS:
            raise self._wrong("an operator must follow: = != > >= < <= ~ !~")
        op: Any = self._word
        self._next()
        right = self._operand()
        self._check(left, op, right, began)
        return Comparison(left, op, right)

    def _operand(self) -> Operand:
        kind, word = self._kind, self._word
        if kind == "text":
            if not is_storable(word):
                raise self._wrong("the text has characters that no job can have")
            self._next()
            return Constant(word)
        if kind == "number":
            self._next()
            return Constant(float(word))
        if kind != "name":
            raise self._wrong("a field, @request.auth.…, a text in quotes or a number must stand here")
        if word.startswith("@"):
            if not word.startswith(_AUTH):
                raise self._wrong(f"{word} is unknown; there is {_AUTH}id, and other claims of whoever asks")
            self._next()
            return Claim(tuple(word.removeprefix(_AUTH).split(".")))
        if word not in FIELDS:
            raise self._wrong(f"there is no field {word}; there are {', '.join(FIELDS)}")
        self._next()
        return Field(word)

    def _check(self, left: Operand, op: str, right: Operand, began: int) -> None:
        """What can be seen to make no sense before it is known who asks."""
        if isinstance(left, Field) and isinstance(right, Field):
            raise self._wrong("two fields can't be compared with each other", began)
        pattern = op in ("~", "!~")
        if pattern and not isinstance(right, Constant | Claim):
            raise self._wrong(f"the pattern must stand on the right of {op}", began)
        for one, other in ((left, right), (right, left)):
            if not isinstance(one, Field):
                continue
            kind = FIELDS[one.name]
            if pattern and kind != "text":
                raise self._wrong(f"{one.name} is a {kind}: {op} is for texts", began)
            if isinstance(other, Constant):
                self._check_literal(one.name, kind, op, other.value, began)
        if pattern and isinstance(right, Constant) and not isinstance(right.value, str):
            raise self._wrong("a pattern is a text in quotes", began)

    def _check_literal(self, name: str, kind: Kind, op: str, value: str | float, began: int) -> None:
        if value == "":
            if op not in ("=", "!="):
                raise self._wrong("with an empty text there is only = and !=", began)
        elif isinstance(value, str) == (kind == "number"):
            other = "text" if kind == "number" else "number"
            raise self._wrong(f"{name} is a {kind}, and is compared with a {other}", began)
        elif kind == "time":
            try:
                read_time(str(value))
            except InvalidInput as error:
                raise self._wrong(error.problem, began) from None

    def _next(self) -> None:
        rest = self._text[self._at :]
        self._began = self._at + len(rest) - len(rest.lstrip())
        if not rest.strip():
            self._kind: str | None = None
            self._word = ""
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            char = self._text[self._began]
            raise self._wrong("a text is not closed" if char in "'\"" else f"{char!r} means nothing here")
        self._at = found.end()
        kind = str(found.lastgroup)
        word = found[kind]
        if kind in ("single", "double"):
            kind, word = "text", re.sub(r"\\(.)", r"\1", word)
        self._kind, self._word = kind, word

    def _said(self) -> str:
        return f"{self._word!r:.40}" if self._word else "an empty text"

    def _wrong(self, what: str, at: int | None = None) -> InvalidInput:
        place = self._began if at is None else at
        return InvalidInput(self._field, "bad_rule", f"at character {place + 1}: {what}")
