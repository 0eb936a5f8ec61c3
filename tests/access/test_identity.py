"""The caller's identity: which names and claims are accepted, and what becomes of them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from rowlock.access.identity import LONGEST_NAME, user, with_implied
from rowlock.core.codec import is_storable
from rowlock.core.conditions import holds
from rowlock.core.rules import parse
from rowlock.errors import InvalidInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOME = UUID("0193fb1e-0000-7000-8000-000000000000")


@pytest.mark.parametrize(("given", "name"), [("ann", "ann"), (7, "7"), (SOME, str(SOME)), ("é😀", "é😀")])
def test_an_id_becomes_a_text_for_rules_as_well(given: Any, name: str) -> None:
    somebody = user({"id": given, "role": "ops"})
    assert (somebody.id, somebody.claims["id"], somebody.claims["role"]) == (name, name, "ops")
    assert holds(parse("scope_id = @request.auth.id").bind(somebody.claims, NOW), {"scope_id": name})


@pytest.mark.parametrize(
    "given", [None, "", True, False, [], {}, 1.5, b"ann", "a\0b", "\ud800", "x" * (LONGEST_NAME + 1)]
)
def test_what_names_nobody_is_an_error_and_not_a_user(given: Any) -> None:
    with pytest.raises(TypeError):
        user({"id": given})
    with pytest.raises(TypeError):
        user({})


@pytest.mark.parametrize(
    ("text", "good"), [("", True), ("é", True), ("a\0", False), ("é\0", False), ("a\udfff", False)]
)
def test_a_text_that_no_database_keeps_is_told(text: str, good: bool) -> None:
    assert is_storable(text) is good


def test_scopes_bring_what_they_include_and_no_more() -> None:
    assert with_implied(frozenset({"manage"})) == {"manage", "read", "cancel"}
    assert with_implied(frozenset({"enqueue"})) == {"enqueue"}
    everything = {
        "read", "enqueue", "cancel", "manage", "worker", "templates", "schedules", "flows", "limits", "tokens", "admin",
    }  # fmt: skip
    assert with_implied(frozenset({"admin"})) == everything


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_beyond_all_time_is_refused_in_a_rule_and_matches_nothing_as_a_claim(time: str) -> None:
    with pytest.raises(InvalidInput):
        parse(f"created > '{time}'")
    assert parse("created > @request.auth.since").bind({"since": time}, NOW) is False
