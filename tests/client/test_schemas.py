"""The schema that is made from type hints accepts what the type hints accept, and nothing else."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock.errors import InvalidInput
from rowlock.schemas import Validator, payload_schema
from rowlock.tasks import Arguments


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    a: int
    when: datetime | None = None
    b: list[bytes] = field(default_factory=list)


class Box(msgspec.Struct):
    a: Decimal
    b: "dict[int, Box]" = {}


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: timedelta


class Cat(msgspec.Struct, tag=True):
    a: bytes


class Dog(msgspec.Struct, tag=True):
    a: time


class Row(msgspec.Struct, array_like=True):
    a: int
    b: datetime | None = None


class Pair(NamedTuple):
    a: int
    b: bytes = b""


class Fields(TypedDict):
    a: int
    b: NotRequired[dict[UUID, Decimal]]


class Model(pydantic.BaseModel):
    a: int
    b: str | None = None


class StrictModel(pydantic.BaseModel, strict=True, extra="forbid"):
    a: int


LEAVES: list[Any] = [
    int, float, str, bool, None, bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal, Color, Level, Any,
    Literal["a", 1], Literal[None, "red"], list, dict, set, tuple, Annotated[int, msgspec.Meta(ge=0)],
    Annotated[str, msgspec.Meta(pattern="^a")], Point, Box, Closed, Cat | Dog, Row, Pair, Fields, int | str,
    int | bytes, Cat | Dog | int | None, Box | datetime | None,
]  # fmt: skip
KEYS: list[Any] = [str, int, float, datetime, date, time, timedelta, UUID, Decimal, bytes, Color, Level, Literal["a"]]
# This hides list[…] from mypy, which would take it for an annotation.
GENERIC: Any = SimpleNamespace(list=list, tuple=tuple, dict=dict, optional=Optional)
WRAPPERS: list[Callable[[Any], Any]] = [
    lambda hint: GENERIC.list[hint],
    lambda hint: GENERIC.tuple[hint, int],
    lambda hint: GENERIC.tuple[hint, ...],
    lambda hint: GENERIC.optional[hint],
    *(partial(lambda key, hint: GENERIC.dict[key, hint], key) for key in KEYS),
]
HINTS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.builds(lambda wrap, hint: wrap(hint), st.sampled_from(WRAPPERS), inner),
    max_leaves=3,
)

TEXTS = st.sampled_from(
    [
        "", "a", "b", "ab", "red", "1", "-1", "01", "-0", "1.0", "1.5", "1e5", "NaN", "inf", "0x1", " 1", "1_0", "true",
        "é",
        "2026-01-31", "2026-02-30", "2026-01-31T08:00:00Z", "2026-01-31T08:00:00", "2026-01-31 08:00:00Z",
        "2026-01-31T08:00:00+01:00", "2026-01-31t08:00:00z", "2026-01-31T23:59:60Z", "2026-02-30T08:00:00Z", "08:00",
        "08:00:00", "08:00:00Z", "08:00:00.123456", "24:00:00", "PT1H", "P1D", "P1Y", "P1W", "-PT5S", "PT", "pt1h",
        "PT1.5S", "YQ==", "YQ", "Y Q=", "a-_=", "!!!!", "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "F47AC10B-58CC-4372-A567-0E02B2C3D479", "f47ac10b58cc4372a5670e02b2c3d479", "9" * 25, "Cat", "Dog",
        "urn:uuid:f47ac10b-58cc-4372-a567-0e02b2c3d479",
    ]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 1.0, -0.0, 1.5, 2**53 + 1, 2**63 - 1, -(2**63), 1e300])
SCALARS = TEXTS | NUMBERS | st.none() | st.booleans() | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXTS, inner, max_size=2)
        | st.fixed_dictionaries({"a": inner}, optional={"b": inner, "when": inner, "type": TEXTS, "z": inner})
    ),
    max_leaves=6,
)


def checks(hint: Any, **default: Any) -> tuple[Validator, Arguments]:
    def handler(x: Any) -> None: ...

    handler.__annotations__ = {"x": hint}
    if default:
        handler.__defaults__ = (default["default"],)
    arguments = Arguments(handler)
    schema = payload_schema(arguments.type, is_open=arguments.is_open, defaults=arguments.defaults)
    return Validator(schema), arguments


def accepts(check: Callable[[Any], Any], payload: dict[str, Any]) -> bool:
    try:
        check(payload)
    except InvalidInput:
        return False
    return True


@settings(max_examples=400, deadline=None)
@given(hint=HINTS, values=st.lists(JSON, min_size=1, max_size=8))
def test_schema_and_type_hints_agree(hint: Any, values: list[Any]) -> None:
    validator, arguments = checks(hint)
    for value in values:
        payload = {"x": value}
        assert accepts(validator.check, payload) == accepts(arguments.values, payload), (hint, value)


@pytest.mark.parametrize(
    "hint", [*LEAVES, *(GENERIC.dict[key, int] for key in KEYS), set[int], frozenset[str]], ids=str
)
def test_they_agree_about_every_text_and_number(hint: Any) -> None:
    validator, arguments = checks(hint)
    for value in (*TEXTS.elements, *NUMBERS.elements, None, True, [], [1, 1], {}):  # type: ignore[attr-defined]
        for payload in ({"x": value}, {"x": [value]}, {"x": {"a": value}}, {"x": {str(value): 1}}):
            assert accepts(validator.check, payload) == accepts(arguments.values, payload), payload


@pytest.mark.parametrize("hint", [Model, StrictModel, list[Model], Model | None])
@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_what_the_schema_of_a_pydantic_model_accepts_the_model_accepts(hint: Any, value: Any) -> None:
    """The reverse does not hold: a model may convert a value, such as "1" to 1."""
    validator, arguments = checks(hint)
    for payload in ({"x": value}, {"x": [value]}):
        assert accepts(arguments.values, payload) or not accepts(validator.check, payload)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (datetime, datetime(2026, 1, 31, 8)),  # noqa: DTZ001 - as users write it
        (timedelta, timedelta(seconds=-1.5)),
        (bytes, b"\xff"),
        (Decimal, Decimal("1.50")),
        (dict[int, str], {-7: "x"}),
        (dict[UUID, Level], {UUID(int=5): Level.LOW}),
        (set[int], {1, 2}),
        (Point, Point(1, datetime(2026, 1, 31, 8), [b"x"])),  # noqa: DTZ001
        (Box, Box(Decimal(1), {3: Box(Decimal(2))})),
        (Cat | Dog, Dog(time(8))),
        (Model, Model(a=1)),
    ],
    ids=str,
)
def test_what_a_task_enqueues_fits_its_schema(hint: Any, value: Any) -> None:
    """The value also comes back unchanged. If it is a default, it is in the schema and fits it as well."""
    validator, arguments = checks(hint, default=value)
    payload = arguments.payload([value], {})
    validator.check(payload)
    assert arguments.values(payload) == {"x": value}


def test_a_whole_number_may_have_a_point() -> None:
    def handler(n: int, many: list[int], ratio: float, rest: Any = None) -> None: ...

    values = Arguments(handler).values({"n": 7.0, "many": [1.0, 2], "ratio": 2.5})
    assert values == {"n": 7, "many": [1, 2], "ratio": 2.5}
    assert [type(one) for one in (values["n"], *values["many"])] == [int, int, int]
    with pytest.raises(InvalidInput, match=r"payload\.n: must be a whole number, not a decimal number"):
        Arguments(handler).values({"n": 7.5, "many": [], "ratio": 1})


def choosy(
    to: Fields | None = None,
    pet: Cat | Dog | None = None,
    n: int | str = 1,
    by_number: dict[int, int] = {},  # noqa: B006 - as users write it
    at: datetime | None = None,
    spent: timedelta | None = None,
    data: bytes = b"",
    day: date | None = None,
) -> None: ...


@pytest.mark.parametrize(
    ("payload", "by_hints", "by_schema"),
    [
        ({"to": {}}, "payload.to.a: is missing; it must be a whole number", "payload.to.a: is missing"),
        ({"to": {"a": "x"}}, "payload.to.a: must be a whole number", 'payload.to.a: "x" is not of type "integer"'),
        ({"to": 5}, "payload.to: must be an object", 'payload.to: 5 is not of type "object" or "null"'),
        ({"pet": {"type": "Dog", "a": 5}}, "payload.pet.a: ", 'payload.pet.a: 5 is not of type "string"'),
        ({"pet": {"type": "Fox"}}, "payload.pet.type: ", "payload.pet: "),
        (
            {"n": []},
            "payload.n: must be a whole number or a text",
            'payload.n: [] is not of type "integer" or "string"',
        ),
        ({"by_number": {"1": None}}, "must be a whole number, not null", "payload.by_number[1]: null is not of type"),
        ({"by_number": {"x": 1}}, "payload.by_number: has a key that is not a whole number", '"x" is no whole number'),
        ({"at": "soon"}, "payload.at: must be a time such as", 'payload.at: "soon" is no time such as 2026'),
        ({"spent": "1h"}, "payload.spent: must be a duration such as", 'payload.spent: "1h" is no duration such as'),
        ({"data": "!"}, "payload.data: must be a text in base64", 'payload.data: "!" is no base64'),
        ({"day": "x"}, "payload.day: must be a date such as 2026-01-31", 'payload.day: "x" is not a "date"'),
    ],
)
def test_errors_name_the_field_and_what_is_expected(payload: dict[str, Any], by_hints: str, by_schema: str) -> None:
    arguments = Arguments(choosy)
    schema = payload_schema(arguments.type, is_open=False, defaults=arguments.defaults)
    for check, said in ((arguments.values, by_hints), (Validator(schema).check, by_schema)):
        with pytest.raises(InvalidInput) as refused:
            check(payload)
        assert said in str(refused.value)


DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("\ud800", "lone_surrogate"),
        ({"\ud800": 1}, "lone_surrogate"),
        (datetime(2026, 1, 31), "not_json"),  # noqa: DTZ001 - as users write it
        ({1, 2}, "not_json"),
        (b"x", "not_json"),
        ({1: 2}, "key_not_text"),
        (DEEP, "too_deep"),
    ],
    ids=range(7),
)
def test_what_is_no_json_is_named(value: Any, code: str) -> None:
    """The error names the field, also in a process that has only the schema."""
    with pytest.raises(InvalidInput) as refused:
        Validator({"properties": {"x": {"type": "string", "format": "datetime"}}}).check({"x": value})
    assert (refused.value.code, refused.value.field.startswith("payload.x")) in [(code, True), ("bad_payload", True)]


@pytest.mark.parametrize("hint", [datetime, Decimal, bytes, UUID, dict[int, int], dict[datetime, int]])
def test_a_text_that_is_not_unicode_is_named(hint: Any) -> None:
    validator, arguments = checks(hint)
    for check in (validator.check, arguments.values):
        for value in ("\ud800", {"\ud800": 1}):
            with pytest.raises(InvalidInput):
                check({"x": value})
