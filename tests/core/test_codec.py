"""The canonical JSON codec: each limit has its own code and names the path."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.core.codec import (
    INT_MAX,
    INT_MIN,
    MAX_BYTES,
    MAX_DEPTH,
    check_text,
    clean_text,
    decode,
    encode,
    encode_payload,
)
from rowlock.errors import InvalidInput

SURROGATE = "\ud800"


def nested(depth: int) -> Any:
    """Return `depth` containers, one inside the other."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


REFUSED: list[tuple[Any, str, str]] = [  # payload, field, code
    ([1], "payload", "not_an_object"),
    ([], "payload", "not_an_object"),
    ("text", "payload", "not_an_object"),
    ("", "payload", "not_an_object"),
    (0, "payload", "not_an_object"),
    (1.5, "payload", "not_an_object"),
    (False, "payload", "not_an_object"),
    (b"{}", "payload", "not_an_object"),
    ({"a": math.nan}, "payload.a", "not_finite"),
    ({"a": [1, {"b": math.inf}]}, "payload.a[1].b", "not_finite"),
    ({"a": -math.inf}, "payload.a", "not_finite"),
    ({"a": "x\0y"}, "payload.a", "nul"),
    ({"a\0": 1}, "payload", "nul"),
    ({"a": {"b\0": 1}}, "payload.a", "nul"),
    ({"a": [SURROGATE]}, "payload.a[0]", "lone_surrogate"),
    ({SURROGATE: 1}, "payload", "lone_surrogate"),
    ({"a": {"b": {SURROGATE: 1}}}, "payload.a.b", "lone_surrogate"),
    ({"a": 2**63}, "payload.a", "integer_range"),
    ({"a": -(2**63) - 1}, "payload.a", "integer_range"),
    ({"a": [10**400]}, "payload.a[0]", "integer_range"),
    ({"a": {1: 2}}, "payload.a", "key_not_text"),
    ({None: 2}, "payload", "key_not_text"),
    ({"a": b"bytes"}, "payload.a", "not_json"),
    ({"a": {1, 2}}, "payload.a", "not_json"),
    ({"a": object()}, "payload.a", "not_json"),
    ({"a": 1j}, "payload.a", "not_json"),
    ({"a": nested(MAX_DEPTH)}, "payload.a" + "[0]" * 4, "too_deep"),
    ({"a": "x" * (MAX_BYTES - 7)}, "payload", "too_large"),
]


@pytest.mark.parametrize(
    ("payload", "field", "code"), REFUSED, ids=[f"{code} {i}" for i, (_, _, code) in enumerate(REFUSED)]
)
def test_refused(payload: Any, field: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        encode_payload(payload)
    assert caught.value.code == code
    if code == "too_deep":
        assert caught.value.field.startswith(field)
        assert "64" in caught.value.problem
    else:
        assert caught.value.field == field
    assert str(caught.value).startswith(caught.value.field + ": ")


def test_an_oversized_payload_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="references, not blobs"):
        encode_payload({"a": "x" * MAX_BYTES})


@pytest.mark.parametrize("payload", [None, {}])
def test_nothing_is_an_empty_object(payload: dict[str, Any] | None) -> None:
    assert encode_payload(payload) == "{}"


def test_exactly_a_mebibyte_is_accepted() -> None:
    for filling in ("x", "é", "\N{GRINNING FACE}", '"'):
        size = len(filling.encode()) if filling != '"' else 2  # because it is escaped
        room = MAX_BYTES - len('{"a":""}')
        text = filling * (room // size) + "x" * (room % size)
        assert len(encode_payload({"a": text}).encode()) == MAX_BYTES
        with pytest.raises(InvalidInput) as caught:
            encode_payload({"a": text + "x"})
        assert caught.value.code == "too_large"


def test_depth_64_is_accepted_and_65_is_not() -> None:
    assert decode(encode_payload({"a": nested(MAX_DEPTH - 1)})) == {"a": nested(MAX_DEPTH - 1)}
    assert decode(encode(nested(MAX_DEPTH), "result")) == nested(MAX_DEPTH)
    for mixed in (nested(MAX_DEPTH + 1), {"a": nested(MAX_DEPTH)}):
        with pytest.raises(InvalidInput) as caught:
            encode(mixed, "result")
        assert caught.value.code == "too_deep"


def test_absurd_depth_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(InvalidInput) as caught:
        encode(nested(100_000), "result")
    assert caught.value.code == "too_deep"


def test_a_value_that_holds_itself_is_too_deep() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(InvalidInput) as caught:
        encode_payload(loop)
    assert caught.value.code == "too_deep"


def test_the_edges_of_integers() -> None:
    assert decode(encode_payload({"a": INT_MAX, "b": INT_MIN})) == {"a": 2**63 - 1, "b": -(2**63)}


def test_paths_are_short_and_plain() -> None:
    deep: Any = math.nan
    for _ in range(30):
        deep = {"a very long name, too long to repeat": deep}
    with pytest.raises(InvalidInput) as caught:
        encode_payload(deep)
    assert len(caught.value.field) <= 120
    with pytest.raises(InvalidInput) as caught:
        encode_payload({SURROGATE + "ü": math.nan})
    caught.value.field.encode("ascii")


CODES = {code for _, _, code in REFUSED}


def _encoded(value: Any) -> Any:
    """Return the encoded and decoded value, or the code of the refusal. Any other exception is a bug."""
    try:
        return decode(encode(value, "result"))
    except InvalidInput as refused:
        return refused.code if refused.field.startswith("result") else refused.field


@pytest.mark.parametrize("kind", ["str", "int", "float", "dict", "list"])
def test_subclasses_never_crash(kind: str) -> None:
    """A subclass is encoded as its base or refused as not_json. It never raises another exception."""
    base: dict[str, Any] = {"str": "x", "int": 1, "float": 1.5, "dict": {"a": 1}, "list": [1]}
    mine = type("Mine", (type(base[kind]),), {})(base[kind])
    assert _encoded({"a": mine}) in ({"a": base[kind]}, "not_json")


def test_tuples_are_lists() -> None:
    assert decode(encode_payload({"a": (1, (2,))})) == {"a": [1, [2]]}


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(texts, values, max_size=4))
def test_what_is_accepted_comes_back_exactly(payload: dict[str, Any]) -> None:
    text = encode_payload(payload)
    back = decode(text)
    assert repr(back) == repr(payload)  # repr also tells 1 from 1.0, and 0.0 from -0.0
    assert encode_payload(back) == text
    assert repr(json.loads(text)) == repr(payload)  # other JSON parsers read the same


anything = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(st.characters(categories=["L", "Cs", "Cc"])) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=10,
)


@given(anything)
def test_anything_is_encoded_or_refused(value: Any) -> None:
    back = _encoded(value)
    if not isinstance(back, str) or back not in CODES:
        assert _encoded(back) == back


# ── Texts ──


@given(st.text(st.characters() | st.characters(categories=["Cs", "Cc"])), st.integers(0, 200))
def test_any_text_can_be_cleaned(text: str, limit: int) -> None:
    clean = clean_text(text, limit)
    assert "\0" not in clean
    clean.encode()
    assert clean_text(clean) == clean
    if limit >= 128:
        assert len(clean.encode()) <= limit


def test_clean_text_leaves_good_text_alone() -> None:
    for text in ("", "plain", "ü👩‍👩‍👧\n\t\x01", "x" * MAX_BYTES):
        assert clean_text(text) == text


def test_clean_text_replaces_and_cuts_the_middle() -> None:
    assert clean_text("a\0b" + SURROGATE) == "a\N{REPLACEMENT CHARACTER}b?"
    long = "begin" + "é" * MAX_BYTES + "end"
    clean = clean_text(long)
    assert len(clean.encode()) <= MAX_BYTES
    assert clean.startswith("begin")
    assert clean.endswith("end")
    assert "bytes left out" in clean


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1, "not_text"),
        (None, "not_text"),
        ("", "bad_length"),
        ("x" * 11, "bad_length"),
        ("a\0", "nul"),
        (SURROGATE, "lone_surrogate"),
    ],
)
def test_check_text_refuses(value: object, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_text(value, "key", max_chars=10)
    assert (caught.value.field, caught.value.code) == ("key", code)


def test_check_text_accepts() -> None:
    for text in ("x", "é" * 10, " ", "\n"):
        assert check_text(text, "key", max_chars=10) == text
