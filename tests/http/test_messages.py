"""Messages about bad requests use plain words, not those of the library that reads the request."""

import re
from typing import Any

import msgspec
import pytest

from rowlock.http.app import ROUTES
from rowlock.http.enqueue import EnqueueBody
from rowlock.http.examples import EXAMPLES
from rowlock.http.jobs import ListQuery
from rowlock.http.parse import read_body, read_query
from rowlock.http.problems import Problem
from rowlock.http.streams import LiveQuery

BODIES = {route.body.__name__: route.body for route in ROUTES if route.body is not None}
WRONG: list[Any] = [None, True, 7, 1.5, "x", [], [[]], {}, [{}], ["x"], [7]]
LIBRARY = re.compile(
    r"`|expected|\bgot\b|\b(str|int|float|bool|array)\b|datetime|RFC ?3339|enum|msgspec|malformed|truncated",
    re.IGNORECASE,
)


def refused(read: Any, *arguments: Any) -> Problem | None:
    try:
        read(*arguments)
    except Problem as problem:
        return problem
    return None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"priority": []}, "priority: must be a whole number or one of explicit, discovered, backfill, not a list"),
        ({"version": 1.5}, "version: must be a whole number, not a decimal number"),
        ({"max_retries": 1.5}, "max_retries: must be a whole number, not a decimal number"),
        ({"max_retries": "3"}, "max_retries: must be a whole number, not a text"),
        ({"maxRetries": "3"}, "max_retries: must be a whole number, not a text"),
        ({"run_at": "soon"}, "run_at: must be a time such as 2026-01-31T08:00:00Z"),
        ({"run_at": 7}, "run_at: must be a time such as 2026-01-31T08:00:00Z, not a whole number"),
        ({"id": 7}, "id: must be a UUID, not a whole number"),
        ({"delay": True}, "delay: must be a number, not a boolean"),
        ({"tags": "a"}, "tags: must be a list, each entry a text, not a text"),
        ({"tags": [{}]}, "tags[0]: must be a text, not an object"),
        ({"payload": None}, "payload: must be an object, not null"),
        ({"attempts": 3}, "attempts: there is no such field"),
        ({"topic": None}, "topic: must be a text, not null"),
    ],
)  # fmt: skip
def test_it_says_what_was_given_and_what_is_expected(given: dict[str, Any], says: str) -> None:
    problem = refused(read_body, EnqueueBody, msgspec.json.encode({"topic": "a", **given}))
    assert problem is not None
    assert problem.detail == says


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{}", "topic: is missing; it must be a text"),
        (b"[]", "body: must be an object, not a list"),
        (b"", "the body is not JSON: it ends too early"),
        (b'{"topic"', "the body is not JSON: it ends too early"),
        (b'{"topic" "a"}', "the body is not JSON: it goes wrong near byte 9"),
        (b'{"topic": "a"} x', "the body is not JSON: it goes wrong near byte 16"),
        (b'{"topic": "a", "delay": 1e999}', "the body holds a number that is out of range"),
        (b'{"topic": "a", "payload": {"x": {"y": 1, "y": 2}}}', "payload.x.y: this key is there twice"),
    ],
)  # fmt: skip
def test_it_says_what_is_wrong_with_a_body(body: bytes, says: str) -> None:
    problem = refused(read_body, EnqueueBody, body)
    assert problem is not None
    assert problem.detail == says


@pytest.mark.parametrize(
    ("kind", "pair", "says"),
    [
        (ListQuery, ("limit", "ten"), "limit: must be a whole number"),
        (ListQuery, ("created_from", "12:00"), "created_from: must be a time such as 2026-01-31T08:00:00Z"),
        (LiveQuery, ("stats", "maybe"), "stats: must be true or false"),
        (LiveQuery, ("seconds", "x"), "seconds: must be a number"),
        (ListQuery, ("colour", "red"), "colour: there is no such field"),
    ],
)  # fmt: skip
def test_it_says_what_a_parameter_must_be(kind: Any, pair: tuple[str, str], says: str) -> None:
    problem = refused(read_query, kind, [pair])
    assert problem is not None
    assert problem.detail == says


@pytest.mark.parametrize("name", BODIES)
def test_no_message_has_the_words_of_the_library(name: str) -> None:
    """Every field of every body is tried with a value of every kind."""
    kind, example = BODIES[name], EXAMPLES[name]
    for field in kind.__struct_encode_fields__:
        for value in WRONG:
            problem = refused(read_body, kind, msgspec.json.encode({**example, field: value}))
            if problem is not None:
                assert problem.detail.startswith(field), problem.detail
                assert not LIBRARY.search(problem.detail), problem.detail
                assert "another value" not in problem.detail, problem.detail
