"""The rule language: what a rule means, which rules are refused, and that a rule denies everything it doesn't know."""

import random
import string
from datetime import UTC, datetime
from typing import Any

import pytest

from rowlock.core.conditions import OPS, Compared, Every, Listed, holds, one_of, required
from rowlock.core.rule_binding import MAX_ELEMENTS
from rowlock.core.rules import MAX_CHARS, MAX_COMPARISONS, MAX_DEPTH, parse
from rowlock.errors import InvalidInput

JOB: dict[str, Any] = {"topic": "report.daily", "scope_id": "u1", "scope": None, "priority": 100, "status": "pending"}
JOB |= {"created": datetime(2026, 11, 17, 8, tzinfo=UTC), "finished_at": None}
NOW = datetime(2026, 11, 17, 12, 30, tzinfo=UTC)  # a Tuesday
ANN: dict[str, Any] = {
    "id": "u1", "role": "ops", "level": 3, "org": {"id": "o1"}, "staff": True, "guest": False, "flag": "true",
    "roles": ["ops", "devs"], "levels": [3, 7], "teams": ["u2", "u1"], "numbers": [1, 100.0], "one": ["a"], "none": [],
    "mixed": ["a", 7, True, {}, None], "holes": ["a", ""], "deep": [["a"]], "tenant-id": "t1", "cognito:groups": ["g1"],
    "https://acme.com/roles": ["ops"], "a.b": {"c": "d"}, "until": "2026-11-17T14:30:00+01:00",
}  # fmt: skip


def allows(rule: str, claims: dict[str, Any], job: dict[str, Any] | None = None) -> bool:
    return holds(parse(rule).bind(claims, NOW), JOB if job is None else job)


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
        "@request.auth.roles ?= 'ops'",
        "'ops' ?= @request.auth.roles && @request.auth.role ?= 'ops'",
        "@request.auth.roles != 'dev' && @request.auth.roles ~ '%s'",
        "@request.auth.roles ?~ 'op%' && @request.auth.roles ?!~ 'op%'",
        "@request.auth.levels ?> 6 && @request.auth.levels >= 3 && 8 > @request.auth.levels",
        "scope_id ?= @request.auth.teams && @request.auth.teams ?= scope_id",
        "priority ?<= @request.auth.numbers",
        "@request.auth.one = 'a' && @request.auth.one ?= 'a'",
        "@request.auth.teams ?= @request.auth.id",
        "@request.auth.mixed ?= 'a' && @request.auth.mixed ?= 7 && @request.auth.mixed ?= true",
        "@request.auth.staff = true && @request.auth.staff != false && true = @request.auth.staff",
        "@request.auth.guest = false && @request.auth.guest = 'false'",
        "@request.auth.flag = true",
        "true = true && (true) && 'true' = true",
        "scope = null && scope_id != null && @request.auth.id != null && @request.auth.nothing = null",
        "@request.auth.none = null && @request.auth.none = '' && @request.auth.none ?= null",
        "@request.auth.roles != null && @request.auth.holes ?= null && @request.auth.holes ?!= ''",
        "@request.auth.tenant-id = 't1' && @request.auth.cognito:groups ?= 'g1'",
        "@request.auth.'https://acme.com/roles' ?= 'ops'",
        "@request.auth.\"a.b\".c = 'd' && @request.auth.org.id = 'o1'",
        "created < @now && created > @yesterday && @now > created",
        "finished_at != @now",
        "@now > '2026-01-01T00:00:00Z' && @now < @request.auth.until && @hour = 12 && @weekday = 2 && priority > @hour",
        "@todayStart <= @now && @todayEnd > @now && @monthEnd > @todayEnd && @yearStart < @monthStart",
        "topic = 'report.daily' // && false",
        "// who\n  true // everyone",
        "topic != '// x' && 'a//b' = \"a//b\"",
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
        "@request.auth.roles = 'ops'",
        "@request.auth.roles ?= 'boss' || @request.auth.roles ?= 'op'",
        "@request.auth.levels > 3",
        "scope_id = @request.auth.teams",
        "scope_id != @request.auth.teams",
        "scope ?= @request.auth.teams || scope ?!= @request.auth.teams",
        "@request.auth.mixed = 'a' || @request.auth.mixed != 'x' || @request.auth.mixed ?= 'true ' ",
        "@request.auth.staff = false || @request.auth.staff = 1 || @request.auth.nothing = false",
        "@request.auth.nothing != true || @request.auth.nothing ?!= true",
        "@request.auth.one > @request.auth.none",
        "@request.auth.org = '' || @request.auth.org != '' || @request.auth.org = null",
        "@request.auth.deep ?= 'a' || @request.auth.deep != 'x' || @request.auth.deep = ''",
        "@request.auth.none ?= 'a' || @request.auth.none != 'a' || @request.auth.none != ''",
        "@request.auth.holes != '' || @request.auth.holes = ''",
        "@request.auth.tenant = 't1' || @request.auth.cognito.groups ?= 'g1'",
        "created > @now || @now > @request.auth.level || @now = @request.auth.role || @hour = @request.auth.role",
        "@request.auth.nothing = @request.auth.none",
        "// true",
        "false // || true",
    ],
)
def test_it_does_not_hold(rule: str) -> None:
    assert not allows(rule, ANN)


@pytest.mark.parametrize("op", [*OPS, *(f"?{op}" for op in OPS)])
@pytest.mark.parametrize(
    "claims",
    [
        {}, {"id": None}, {"id": ""}, {"id": []}, {"id": {"a": 1}}, {"id": "a\0"}, {"id": [[]]}, {"id": [{"u1": "u1"}]},
        {"id": [["u1"]]}, {"id": [None, ""]}, {"id": ["a\0"]}, {"id": "u1" * 5001}, {"id": float("nan")},
        {"id": ["u1"] * (MAX_ELEMENTS + 1)},
    ],
)  # fmt: skip
def test_a_claim_that_is_not_there_matches_nothing(op: str, claims: dict[str, Any]) -> None:
    """A caller that is not logged in doesn't see the jobs that have no scope."""
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
        ("priority ?~ 'a'", "is for texts"),
        ("@now ~ 'a'", "is for texts"),
        ("topic ~ @now", "must stand on the right"),
        ("topic = @now", "topic is a text, and is compared with a time"),
        ("created > @hour", "created is a time, and is compared with a number"),
        ("@now > 1", "is compared with a number"),
        ("@now > 'soon'", "is no time"),
        ("@noon > created", "@noon is unknown; there are @request.auth.id and other claims of the caller, @now"),
        ("topic = true", "topic is a text, and is compared with a boolean"),
        ("@request.auth.staff > true", "with true there is only = and !="),
        ("@request.auth.id ?> null", "with null there is only = and !="),
        ("topic > null", "only = and !="),
        ("null", "an operator must follow"),
        ("topic ? 'a'", "'?' means nothing here"),
        ("topic ?&& 'a'", "'?' means nothing here"),
        ("topic / 'a'", "'/' means nothing here"),
        (
            "@request.auth.https://acme.com/roles ?= 'a'",
            "':' can't stand in the name of a claim; put the name in quotes",
        ),
        ("@request.auth.a- = 'a'", "'-' can't stand in the name of a claim"),
        ("@request.auth.roles:each ?= 'a'", "no modifier :each"),
        ("@request.auth.'a = 1", "@request.auth is unknown"),
        ("topic = 'a' // &&\n&&", "must stand here"),
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
        ("topic = '\0'", "at character 10: '\\x00' is a character that no job can have"),
        ("true // \0", "at character 9: '\\x00' is a character that no job can have"),
        ("@request.auth.'\ud800' = 'a'", "at character 16: '\\ud800' is a character that no job can have"),
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
        "topic", "priority", "created", "=", "!=", "~", "?=", "?!~", "&&", "||", "(", ")", " ", "// ", "'a'", "''", "1",
        "true", "null", "@now", "@request.auth.id", "@request.auth.roles", "@request.auth.'a b'",
    ]  # fmt: skip
    for _ in range(20_000):
        made = "".join(chance.choices([*words, *string.printable], k=chance.randrange(12)))
        try:
            rule = parse(made)
        except InvalidInput:
            continue
        assert holds(rule.bind(ANN, NOW), JOB) in (True, False)


def test_what_an_index_may_know() -> None:
    condition = parse("scope_id = @request.auth.id && (topic = 'a' || topic = 'b') && status = 'failed'").bind(ANN, NOW)
    assert required(condition) == {"scope_id": "u1", "status": "failed"}
    assert isinstance(condition, Every)
    assert required(parse("scope_id = @request.auth.id || true").bind(ANN, NOW)) == {}
    either = "(scope_id = @request.auth.id && topic = 'a') || (scope_id = @request.auth.id && topic = 'b')"
    assert required(parse(either).bind(ANN, NOW)) == {"scope_id": "u1"}
    assert parse("scope_id = @request.auth.id && @request.auth.role = 'ops'").bind(ANN, NOW) == Compared(
        "scope_id", "=", "u1"
    )
    assert required(parse("scope_id ?= @request.auth.teams").bind(ANN, NOW)) == {}
    assert required(parse("scope_id ?= @request.auth.one && topic = @request.auth.one").bind(ANN, NOW)) == {
        "scope_id": "a",
        "topic": "a",
    }
    assert required(parse("scope_id != @request.auth.one").bind(ANN, NOW)) == {}


@pytest.mark.parametrize(
    ("rule", "known"),
    [
        ("scope_id ?= @request.auth.teams", ("u1", "u2")),
        ("scope_id = @request.auth.id || scope_id ?= @request.auth.roles", ("devs", "ops", "u1")),
        ("scope_id ?= @request.auth.teams && (scope_id = 'a' || topic = 'b')", ("u1", "u2")),
        ("scope_id ?= @request.auth.teams && scope_id = 'u2'", ("u2",)),
        ("scope_id ?= @request.auth.teams || topic = 'b'", None),
        ("scope_id != @request.auth.teams", None),
        ("scope_id ?~ @request.auth.teams", None),
        ("scope_id = null || scope_id = 'a'", None),
        ("topic ?= @request.auth.teams", None),
    ],
)
def test_whose_jobs_a_rule_lets_through(rule: str, known: tuple[str, ...] | None) -> None:
    """The store reads a list of jobs along these scope_ids; None: the rule doesn't limit them."""
    assert one_of(parse(rule).bind(ANN, NOW), "scope_id") == known


def test_lists_stay_short_conditions() -> None:
    """An index can serve a list of values, and no list makes a statement long."""
    assert parse("scope_id ?= @request.auth.teams").bind(ANN, NOW) == Listed("scope_id", "=", ("u1", "u2"), True)
    assert parse("scope_id != @request.auth.teams").bind(ANN, NOW) == Listed("scope_id", "!=", ("u1", "u2"), False)
    assert parse("priority ?> @request.auth.levels").bind(ANN, NOW) == Compared("priority", ">", 3)
    assert parse("priority > @request.auth.levels").bind(ANN, NOW) == Compared("priority", ">", 7)
    assert parse("scope_id = @request.auth.teams").bind(ANN, NOW) is False


def test_a_list_is_bounded() -> None:
    numbers = [str(n) for n in range(MAX_ELEMENTS)]
    assert allows("'7' ?= @request.auth.many && @request.auth.many != 'x'", {"many": numbers})
    assert not allows("'7' ?= @request.auth.many || @request.auth.many != 'x'", {"many": [*numbers, "more"]})
    assert not allows("@request.auth.many ?= @request.auth.two", {"many": numbers, "two": ["7", "8"]})


def test_sets_and_tuples_of_an_application_are_lists() -> None:
    for roles in (("ops", "dev"), {"ops", "dev"}, frozenset({"ops", "dev"})):
        assert allows("@request.auth.roles ?= 'ops' && @request.auth.roles != 'boss'", {"roles": roles})


@pytest.mark.parametrize("op", ["~", "!~"])
@pytest.mark.parametrize("claim", ["%", "a%", "%b"])
def test_a_claim_brings_no_wildcards(op: str, claim: str) -> None:
    for left in ("scope", "'abc'"):
        assert parse(f"{left} {op} @request.auth.team").bind({"team": claim}, NOW) is False
    assert parse("'abc' ~ @request.auth.team").bind({"team": "b"}, NOW) is True
