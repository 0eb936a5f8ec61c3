"""A key that an object has twice is found, and nothing else is reported."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.core.repeated import repeated_key

KEYS = st.text(st.sampled_from('ab:"\\u3é\n'), max_size=3)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


class Pairs(list[tuple[str, Any]]):
    """An object that may have a key twice."""


TREES = st.recursive(
    LEAVES | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(Pairs),
    max_leaves=20,
)


def write(tree: Any, draw: Any) -> str:
    """Return the tree as JSON, with spaces and escapes where JSON allows them."""
    space = draw(st.sampled_from(["", "", " ", "\n"]))
    if isinstance(tree, Pairs):
        inner = ",".join(f"{space}{text(key, draw)}{space}:{write(value, draw)}" for key, value in tree)
        return f"{{{inner}{space}}}"
    if isinstance(tree, list):
        return f"[{','.join(write(one, draw) for one in tree)}]"
    return text(tree, draw) if isinstance(tree, str) else json.dumps(tree)


def text(value: str, draw: Any) -> str:
    if value.isascii() and draw(st.booleans()):
        return '"' + "".join(f"\\u{ord(char):04x}" for char in value) + '"'
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


def has_repeated(tree: Any) -> bool:
    if isinstance(tree, Pairs):
        keys = [key for key, _ in tree]
        return len(set(keys)) < len(keys) or any(has_repeated(value) for _, value in tree)
    return isinstance(tree, list) and any(map(has_repeated, tree))


@given(tree=TREES, data=st.data())
def test_it_finds_what_is_there_twice_and_nothing_else(tree: Any, data: st.DataObject) -> None:
    written = write(tree, data.draw).encode()
    found = repeated_key(written, msgspec.json.decode(written))
    assert (found is not None) == has_repeated(tree)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": 1, "b": {"c": [{}, {"d": 1, "e": 2, "d": 3}]}}', "b.c[1].d"),
        ('[{"a": 1, "a": 1}]', "[0].a"),
        (r'{"a": 1, "\u0061": 2}', "a"),
        (r'{"a": 1, "a": "\u003a"}', "a"),
        (r'{"a": "\u003A", "b": {"x": 1, "x": 2}}', "b.x"),
        ('{"a": {"b": 1}, "a": {"c": {"d": ":::"}}}', "a"),
        ('{"": 1, "": 2}', ""),
        ('{"a": ' + "9" * 5000 + ', "a": 1}', "a"),
        ('{"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}', None),
        (r'{"a": "\u003a", "b": "12:30"}', None),
        ('{"a" : ": : :", "b":[]}', None),
        ("[]", None),
    ],
)
def test_the_path_of_the_first_one_is_told(written: str, path: str | None) -> None:
    assert repeated_key(written.encode(), json.loads(written, parse_int=float)) == path


def test_what_can_not_be_written_again_is_read_again() -> None:
    written = r'{"a": "\ud800", "b": 1, "b": 2}'
    assert repeated_key(written.encode(), json.loads(written)) == "b"
