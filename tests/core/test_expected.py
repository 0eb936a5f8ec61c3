"""Say in words what a value must be, for types of every kind, including types without a schema."""

import enum
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta, Struct

from rowlock.core.expected import explain


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Own:
    """A class without a schema."""


class Inner(Struct, forbid_unknown_fields=True):
    n: int = 0


class Loose(Struct):
    """A struct without a schema, because one field has none."""

    own: Own
    n: int | None = None
    when: datetime | None = None


def decode(kind: type, value: Any) -> Any:
    raise ValueError("the colour of a car is red")


@pytest.mark.parametrize(
    ("kind", "value", "path", "what", "problem"),
    [
        (int, "x", "", "wrong", "must be a whole number, not a text"),
        (int | None, [], "", "wrong", "must be a whole number, not a list"),
        (list[int], [1, "x"], "[1]", "wrong", "must be a whole number, not a text"),
        (list[Inner], [{"n": {}}], "[0].n", "wrong", "must be a whole number, not an object"),
        (Inner, {"m": 1}, "m", "unknown", "there is no such field"),
        (dict[str, Inner], {"a": {"m": 1}}, "[...].m", "unknown", "there is no such field"),
        (Loose, {}, "own", "missing", "is missing; it must be there"),
        (Loose, {"own": 1, "n": "x"}, "own", "wrong", "the colour of a car is red"),
        (Loose, {"n": "x"}, "n", "wrong", "must be a whole number, not a text"),
        (Loose, {"when": []}, "when", "wrong", "must be a time such as 2026-01-31T08:00:00Z, not a list"),
        (Loose, {"when": "x"}, "when", "wrong", "must be a time such as 2026-01-31T08:00:00Z"),
        (datetime, "x", "", "wrong", "must be a time such as 2026-01-31T08:00:00Z"),
        (UUID, "x", "", "wrong", "must be a UUID"),
        (Colour, "green", "", "wrong", "must be one of blue, red"),
        (Literal[1, 2], 3, "", "wrong", "must be one of 1, 2"),
        (Annotated[int, Meta(ge=3)], 1, "", "wrong", "must be a whole number >= 3"),
        (Annotated[str, Meta(max_length=3)], "abcd", "", "wrong", "must be a text of length <= 3"),
    ],
)  # fmt: skip
def test_it_is_said_in_words(kind: Any, value: Any, path: str, what: str, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(value, kind, dec_hook=decode)
    assert explain(error.value, kind) == (path, what, problem)
