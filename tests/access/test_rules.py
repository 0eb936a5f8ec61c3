"""The rule language: what it says, what it refuses, and that it denies whatever it doesn't know."""

import random
import string
from typing import Any

import pytest

from rowlock.access.rules import MAX_CHARS, MAX_COMPARISONS, MAX_DEPTH, parse
from rowlock.core.conditions import Compared, Every, holds, required
from rowlock.errors import InvalidInput

JOB: dict[str, Any] = {"topic": "report.daily", "scope_id": "u1", "scope": None, "priority": 100, "status": "pending"}
ANN = {"id": "u1", "role": "ops", "level": 3, "org": {"id": "o1"}, "staff": True}


def allows(rule: str, claims: dict[str, Any], job: dict[str, Any] | None = None) -> bool:
    return holds(parse(rule).bind(claims), JOB if job is None else job)


@pytest.mark.parametrize(
    "rule",
    [
        "true",
        "scope_id = @request.auth.id",
        "@request.auth.id = scope_id",
        "@request.auth.id != ''",
        "@request.auth.role = 'ops' && topic ~ 'report%'",
        "topic ~ 'daily' || topic = 'x'",
        "(topic = 'x' || priority >= 100) && status != \"failed\"",
        "100 <= priority",
        "@request.auth.level > 2",
        "@request.auth.org.id = 'o1'",
        "@request.auth.staff = 'true'",
        "scope = ''",
        "scope != 'a' && scope !~ 'a%'",
        "finished_at = ''",
        "'a\\'b' = \"a'b\"",
        "topic ~ 'r%d%y' && topic !~ 'x'",
        "'b' > 'a' && 2 > 1",
    ],
)
def test_it_holds(rule: str) -> None:
    assert allows(rule, ANN)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "  ",
        "false",
        "scope_id != @request.auth.id",
        "@request.auth.id = ''",
        "topic ~ 'Report'",
        "topic ~ 'daily%'",
        "topic = 'x' || priority > 100",
        "scope_id = ''",
        "scope = 'a'",
        "@request.auth.level = '3'",
        "@request.auth.level = scope_id",
        "@request.auth.org = 'o1'",
        "finished_at > '2020-01-01T00:00:00Z'",
        "priority = @request.auth.role",
        "created > @request.auth.role",
    ],
)
def test_it_does_not_hold(rule: str) -> None:
    assert not allows(rule, ANN)


@pytest.mark.parametrize("op", ["=", "!=", ">", ">=", "<", "<=", "~", "!~"])
@pytest.mark.parametrize("claims", [{}, {"id": None}, {"id": ""}, {"id": []}, {"id": {"a": 1}}, {"id": "a\0"}])
def test_a_claim_that_is_not_there_matches_nothing(op: str, claims: dict[str, Any]) -> None:
    """Nobody who is not logged in sees the jobs that have no scope."""
    for scope_id in (None, "", "u1"):
        assert not allows(f"scope_id {op} @request.auth.id", claims, {"scope_id": scope_id})
    assert not allows(f"'x' {op} @request.auth.id", claims)


@pytest.mark.parametrize("op", ["=", "!=", ">", "~", "!~"])
def test_an_empty_column_matches_no_claim(op: str) -> None:
    assert not allows(f"scope_id {op} @request.auth.id", ANN, {"scope_id": None})


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("topic", "an operator must follow"),
        ("topic =", "must stand here"),
        ("topik = 'a'", "no field topik"),
        ("payload = 'a'", "no field payload"),
        ("topic.x = 'a'", "no field topic.x"),
        ("__class__ = 'a'", "no field __class__"),
        ("@request.query.a = 'a'", "@request.query.a is unknown"),
        ("@collection.users.id = 'a'", "is unknown"),
        ("priority = 'a'", "is compared with a text"),
        ("topic = 1", "is compared with a number"),
        ("priority ~ 'a'", "is for texts"),
        ("topic ~ 1", "is compared with a number"),
        ("'a%' ~ topic", "must stand on the right"),
        ("created > 'yesterday'", "is no time"),
        ("created > '2026-01-01'", "no time zone"),
        ("topic > ''", "only = and !="),
        ("topic = key", "two fields"),
        ("(topic = 'a'", "closing parenthesis"),
        ("topic = 'a')", "unexpected"),
        ("topic = 'a' 'b'", "unexpected"),
        ("topic = 'a", "not closed"),
        ("topic = 'a' & key = 'b'", "means nothing"),
        ("topic = 'a' and key = 'b'", "unexpected"),
        ("len(topic) = 1", "no field len"),
        ("topic(1) = 1", "an operator must follow"),
        ("topic = 'a'; DROP TABLE _jobs", "means nothing"),
        ("topic = 'a' --", "means nothing"),
        ("priority = 1e9", "means nothing"),
        ("priority = 99999999999999999999", "means nothing"),
        ("topic = '\0'", "no job can have"),
        ("!topic = 'a'", "means nothing"),
        ("(" * (MAX_DEPTH + 1) + "true" + ")" * (MAX_DEPTH + 1), "deeper"),
        (" || ".join(["topic = 'a'"] * (MAX_COMPARISONS + 1)), "more than 50"),
        ("'" + "a" * MAX_CHARS + "' = topic", "at most 2000"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(rule: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(rule, "manage_rule")
    assert caught.value.field == "manage_rule"
    assert said in caught.value.problem


def test_random_text_is_a_rule_or_refused() -> None:
    chance = random.Random(1)
    words = [
        "topic",
        "=",
        "!=",
        "~",
        "&&",
        "||",
        "(",
        ")",
        "'a'",
        "@request.auth.id",
        "1",
        "true",
        " ",
        "priority",
        "''",
    ]
    for _ in range(20_000):
        made = "".join(chance.choices([*words, *string.printable], k=chance.randrange(12)))
        try:
            rule = parse(made)
        except InvalidInput:
            continue
        assert holds(rule.bind(ANN), JOB) in (True, False)


def test_what_an_index_may_know() -> None:
    condition = parse("scope_id = @request.auth.id && (topic = 'a' || topic = 'b') && status = 'failed'").bind(ANN)
    assert required(condition) == {"scope_id": "u1", "status": "failed"}
    assert isinstance(condition, Every)
    assert required(parse("scope_id = @request.auth.id || true").bind(ANN)) == {}
    either = "(scope_id = @request.auth.id && topic = 'a') || (scope_id = @request.auth.id && topic = 'b')"
    assert required(parse(either).bind(ANN)) == {"scope_id": "u1"}
    assert parse("scope_id = @request.auth.id && @request.auth.role = 'ops'").bind(ANN) == Compared(
        "scope_id", "=", "u1"
    )


@pytest.mark.parametrize("op", ["~", "!~"])
@pytest.mark.parametrize("claim", ["%", "a%", "%b"])
def test_a_claim_brings_no_wildcards(op: str, claim: str) -> None:
    for left in ("scope", "'abc'"):
        assert parse(f"{left} {op} @request.auth.team").bind({"team": claim}) is False
    assert parse("'abc' ~ @request.auth.team").bind({"team": "b"}) is True
