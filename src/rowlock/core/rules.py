"""The rule language: which callers may enqueue jobs, and which may see and manage a job.

    scope_id = @request.auth.id
    @request.auth.roles ?= 'ops' && topic ~ 'report%'    // until the end of the line

A rule is '' (superusers only), 'true' (everyone), or comparisons joined by && and || with parentheses. A rule can't
call anything, loop, or fail. `parse` reads it, and refuses mistakes with their place. `Rule.bind` puts in the caller's
claims and the time, which leaves a condition on the columns of a job. That condition is judged in memory for one job
(`core.conditions.holds`), and in SQL for lists. Both give the same result for every job.

Missing values match nothing. A claim that the caller doesn't have makes its comparison false, whatever the operator. So
does an empty column that is compared with a claim: an anonymous caller does not see the jobs without a scope. Only the
text of a rule may ask for emptiness: `scope_id = ''`, `@request.auth.id != null`, `key != 'a'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from rowlock.core.codec import is_storable
from rowlock.core.conditions import FIELDS, OPS, Condition, Kind
from rowlock.core.rule_binding import (
    MOMENTS,
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
    is_empty,
    read_time,
)
from rowlock.errors import InvalidInput

MAX_CHARS = 2000
MAX_COMPARISONS = 50
MAX_DEPTH = 10

KEYWORDS: dict[bool | None, str] = {True: "true", False: "false", None: "null"}
_CONSTANTS = {word: value for value, word in KEYWORDS.items()}
_AUTH = "@request.auth."
_FACTS = ("status", "result", "error")  # of a node's end, in a condition of a flow
_ENDS = ("completed", "failed", "expired", "cancelled", "deleted")  # what its status can be
MODIFIERS = (":isset", ":changed", ":length", ":each", ":lower", ":excerpt")  # PocketBase's
_TEXT = r"""'(?:[^'\\]|\\['\\])*'|"(?:[^"\\]|\\["\\])*\""""
PLAIN_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[:-]+[A-Za-z0-9_]+)*")  # of a claim's path; others are quoted
_CLAIM_STEP = rf"{PLAIN_STEP.pattern}|{_TEXT}"
_SPACE = re.compile(r"(?:\s|//[^\r\n]*)*")
_STEP = re.compile(rf"\.({_CLAIM_STEP})")
_TOKEN = re.compile(
    rf"""(?P<op>&&|\|\||\??(?:!=|>=|<=|!~|[=><~])|[()])
       |(?P<number>-?\d{{1,15}}(?:\.\d{{1,9}})?(?![\w.]))
       |(?P<text>{_TEXT})
       |(?P<claim>@request\.auth(?:\.(?:{_CLAIM_STEP}))+)
       |(?P<name>@?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)""",
    re.VERBOSE,
)


class Rule(Struct, frozen=True):
    """A rule that `parse` has read."""

    text: str
    expression: Expression

    @property
    def is_empty(self) -> bool:
        """True if the rule has no text, or only a comment."""
        return _SPACE.fullmatch(self.text) is not None

    def bind(self, claims: Mapping[str, Any], now: datetime) -> Condition:
        """Return the condition for a caller with these claims. `now`: the time of @now."""
        return bind(self.expression, claims, now)

    def claims(self) -> Iterator[tuple[str, ...]]:
        """Return the paths of all claims that it names."""
        left: list[Expression] = [self.expression]
        while left:
            match left.pop():
                case All(parts) | Either(parts):
                    left += parts
                case Comparison(one, _, other):
                    yield from (operand.path for operand in (one, other) if isinstance(operand, Claim))
                case _:
                    pass


def parse(text: object, field: str = "rule") -> Rule:
    """Return the rule. Raise InvalidInput, with the place, if it can't be read."""
    if not isinstance(text, str):
        raise InvalidInput(field, "not_text", f"must be text, not {type(text).__name__}")
    if len(text) > MAX_CHARS:
        raise InvalidInput(field, "too_long", f"has {len(text)} characters, at most {MAX_CHARS} are allowed")
    if not is_storable(text):
        place = next(n for n, char in enumerate(text) if not is_storable(char))
        problem = f"at character {place + 1}: {text[place]!r} is a character that no job can have"
        raise InvalidInput(field, "bad_rule", problem)
    return Rule(text, False if _SPACE.fullmatch(text) else _Reader(text, field).read())


def parse_condition(text: object, nodes: Collection[str], field: str = "when") -> Rule:
    """Return the condition of an edge of a flow: a rule about the ends of these nodes. Each has a status, a result and
    an error: `pay.status = 'completed' && pay.result.amount > 100`. They stand in the place of claims."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(field, "bad_rule", "must be a condition, such as pay.result.amount > 100")
    if len(text) > MAX_CHARS:
        raise InvalidInput(field, "too_long", f"has {len(text)} characters, at most {MAX_CHARS} are allowed")
    return Rule(text, _Reader(text, field, nodes).read())


class _Reader:
    """`nodes`: of a flow, whose ends the text is about; None: it is about a job."""

    def __init__(self, text: str, field: str, nodes: Collection[str] | None = None) -> None:
        self._text = text
        self._field = field
        self._nodes = nodes
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
        return self._joined("||", self._all, Either)

    def _all(self) -> Expression:
        return self._joined("&&", self._one, All)

    def _joined(self, sign: str, read: Callable[[], Expression], kind: type[All | Either]) -> Expression:
        parts = [read()]
        while self._word == sign and self._kind == "op":
            self._next()
            parts.append(read())
        return kind(tuple(parts)) if len(parts) > 1 else parts[0]

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
        return self._comparison()

    def _comparison(self) -> Expression:
        began = self._began
        left = self._operand()
        word = self._word if self._kind == "op" else ""
        some = word.startswith("?")
        op: Any = word.removeprefix("?")
        if op not in OPS:
            if isinstance(left, Constant) and isinstance(left.value, bool):
                return left.value
            raise self._wrong("an operator must follow: = != > >= < <= ~ !~, or one of them behind a ?")
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise self._wrong(f"there are more than {MAX_COMPARISONS} comparisons", began)
        self._next()
        right = self._operand()
        self._check(left, op, right, began)
        return Comparison(left, op, right, some)

    def _operand(self) -> Operand:
        kind, word = self._kind, self._word
        found: Operand
        if kind == "text":
            found = Constant(word)
        elif kind == "number":
            found = Constant(float(word))
        elif kind == "claim":
            found = self._claim(word)
        elif kind != "name":
            first = "a field, @request.auth.…" if self._nodes is None else "the status, result or error of a parent"
            hint = ". One = compares" if word.startswith("=") else ""
            raise self._wrong(f"{first}, @now, a text in quotes, a number, true, false or null must stand here{hint}")
        elif word in _CONSTANTS:
            found = Constant(_CONSTANTS[word])
        elif word in MOMENTS:
            found = Moment(word)
        elif word.startswith("@"):
            known = f"{_AUTH}id and other claims of the caller, {', '.join(MOMENTS)}"
            raise self._wrong(f"{word} is unknown; there are {known}")
        elif self._nodes is not None:
            found = self._end_of_node(word, self._nodes)
        elif word in FIELDS:
            found = Field(word)
        else:
            raise self._wrong(f"there is no field {word}; there are {', '.join(FIELDS)}")
        self._next()
        return found

    def _end_of_node(self, word: str, nodes: Collection[str]) -> Claim:
        node, *path = word.split(".")
        if node not in nodes:
            raise self._wrong(f"{node} is no parent of this job; there are {', '.join(sorted(nodes)) or 'none'}")
        if not path or path[0] not in _FACTS or (len(path) > 1 and path[0] != "result"):
            raise self._wrong(f"of {node} there are {node}.status, {node}.result and {node}.error, not {word}")
        return Claim((node, *path))

    def _claim(self, word: str) -> Claim:
        if self._nodes is not None:
            raise self._wrong("a flow has no caller: there is no @request.auth")
        if word.endswith(MODIFIERS):
            name, _, modifier = word.rpartition(":")
            raise self._wrong(
                f"there is no modifier :{modifier}; if {name}:{modifier} is a claim, put its name in quotes"
            )
        steps = _STEP.findall(word, len(_AUTH) - 1)
        return Claim(tuple(_unquoted(step) if step[0] in "'\"" else step for step in steps))

    def _check(self, left: Operand, op: str, right: Operand, began: int) -> None:
        """Refuse comparisons that make no sense for any caller."""
        if isinstance(left, Field) and isinstance(right, Field):
            raise self._wrong("two fields can't be compared with each other", began)
        pattern = op in ("~", "!~")
        if pattern and not isinstance(right, Constant | Claim):
            raise self._wrong(f"the pattern must stand on the right of {op}", began)
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Constant) and isinstance(one.value, bool | None) and op not in ("=", "!="):
                raise self._wrong(f"with {KEYWORDS[one.value]} there is only = and !=", began)
            if isinstance(one, Field | Moment):
                self._check_kind(one.name, _kind(one), op, other, began)
            if self._nodes is not None and not pattern and isinstance(one, Claim) and one.path[1:] == ("status",):
                self._check_end(other, began)
        if pattern and isinstance(right, Constant) and not isinstance(right.value, str):
            raise self._wrong("a pattern is a text in quotes", began)

    def _check_end(self, other: Operand, began: int) -> None:
        """Refuse a status with which no job ends: the comparison would always have the same answer."""
        if isinstance(other, Constant) and other.value not in _ENDS:
            given = "null" if other.value is None else repr(other.value)
            raise self._wrong(f"no job ends as {given:.40}; there are {', '.join(_ENDS)}", began)

    def _check_kind(self, name: str, kind: str, op: str, other: Operand, began: int) -> None:
        """`name` is a column or a moment of this kind."""
        if op in ("~", "!~") and kind != "text":
            raise self._wrong(f"{name} is a {kind}: {op} is for texts", began)
        if is_empty(other):
            if op not in ("=", "!="):
                raise self._wrong("with an empty text there is only = and !=", began)
        elif kind == "time" and isinstance(other, Constant) and isinstance(other.value, str):
            try:
                read_time(other.value)
            except InvalidInput as error:
                raise self._wrong(error.problem, began) from None
        elif not isinstance(other, Claim) and kind != _kind(other):
            raise self._wrong(f"{name} is a {kind}, and is compared with a {_kind(other)}", began)

    def _next(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._began = self._at if space is None else space.end()
        if self._began == len(self._text):
            self._kind: str | None = None
            self._word = ""
            return
        found = _TOKEN.match(self._text, self._began)
        if found is None:
            raise self._wrong(self._meaningless(self._text[self._began]))
        self._at = found.end()
        kind = str(found.lastgroup)
        self._kind, self._word = kind, _unquoted(found[kind]) if kind == "text" else found[kind]

    def _meaningless(self, char: str) -> str:
        if char in "'\"":
            return "a text is not closed"
        if self._at == self._began and self._at and self._kind == "claim":
            return f"{char!r} can't stand in the name of a claim; put the name in quotes: {_AUTH}'https://…'"
        return f"{char!r} means nothing here"

    def _said(self) -> str:
        return f"{self._word!r:.40}" if self._word else "an empty text"

    def _wrong(self, what: str, at: int | None = None) -> InvalidInput:
        place = self._began if at is None else at
        return InvalidInput(self._field, "bad_rule", f"at character {place + 1}: {what}")


def _kind(operand: Operand) -> Kind | str:
    """Return the kind of an operand; a claim, which may be anything, counts as text."""
    match operand:
        case Field():
            return FIELDS[operand.name]
        case Moment():
            return MOMENTS[operand.name][0]
        case Constant(value=bool()):
            return "boolean"
        case Constant(value=float()):
            return "number"
        case _:
            return "text"


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])
