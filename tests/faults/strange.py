"""Random strange values that break other programs, and the verdict on each, computed without rowlock's own code."""

import datetime
import decimal
import enum
import json
import math
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Any

REFUSED, EITHER, KEPT = "refused", "either", "kept"
"""What must be said no to; what may be refused or kept as it is; what must come back equal."""

MOST_BYTES, MOST_DEPTH = 1 << 20, 64

SNIPPETS = [
    *("", "a", "plain text", "naïve café", "Ⅷ½ﬁ", "e\u0301\u0302\u0303", "日本語テキスト", "한국어", "ไทย"),
    *("مرحبا بالعالم", "שלום עולם", "\u202eright to left\u202c", "\u2066isolate\u2069", "\u200f\u200e"),
    *("😀", "👩‍👩‍👧‍👦", "🇦🇶", "𝒳𝟘", "\U0010ffff", "\U0001f600" * 30, "\ufeffbom", "\ufffe\uffff", "\ufffd"),
    *(
        "\x00",
        "a\x00b",
        "\\u0000",
        "\ud800",
        "x\udfff",
        "\udc80\ud800",
        "\x01\x02\x1f\x7f\x80\x9f",
        "\x1b[31mred\x1b[0m",
    ),
    *("\n", "a\r\nb", "\t", "\v\f", "\u2028\u2029", "\x85", " ", "\u3000", "  both  ", "a" * 127, "a" * 128, "a" * 129),
    *(
        "ü" * 511,
        "ü" * 512,
        "ü" * 513,
        "'; DROP TABLE _jobs; --",
        '"quoted" `ticks` $$ $1 ?1 :name @v',
        "%s %(a)s {} {0}",
    ),
    *("\\", "\\\\n", "\\x00", "/", "null", "NaN", "1e400", "{}", "[1,2", '{"a":1,"a":2}', "<script>alert(1)</script>"),
    *(
        "a,b;c",
        "../../etc/passwd",
        "C:\\con\\nul",
        "İı",
        "ß",
        "ǆ",
        "%",
        "_",
        "*",
        "a.b[0]",
        "-- ",
        "/* */",
        "\N{SNOWMAN}" * 700,
    ),
]
NUMBERS = [
    *(
        0,
        1,
        -1,
        7,
        255,
        2**31 - 1,
        2**31,
        -(2**31) - 1,
        2**53,
        2**53 + 1,
        2**63 - 1,
        -(2**63),
        2**63,
        -(2**63) - 1,
        10**30,
    ),
    *(0.0, -0.0, 0.1, 1.0, -1.5, 1e15, 1e16, 1e22, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 1 / 3),
    *(float("nan"), float("inf"), float("-inf"), float("1e400"), 123456789.123456789, 1e-7),
]


class Colour(enum.IntEnum):
    RED = 1


class Word(str):
    __slots__ = ()


def text(chance: Random) -> str:
    way = chance.randrange(10)
    if way < 6:
        return chance.choice(SNIPPETS)
    if way < 8:
        return "".join(chance.choice(SNIPPETS)[:20] for _ in range(chance.randrange(1, 5)))
    top = chance.choice([0x7F, 0x7FF, 0xFFFF, 0x10FFFF])
    return "".join(chr(chance.randint(1, top)) for _ in range(chance.randrange(1, 30)))


def value(chance: Random, depth: int = 4) -> Any:
    way = chance.randrange(20)
    if way < 5 and depth:
        return {text(chance): value(chance, depth - 1) for _ in range(chance.randrange(4))}
    if way < 8 and depth:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if way < 9 and depth:
        return tuple(value(chance, depth - 1) for _ in range(chance.randrange(3)))
    if way < 13:
        return text(chance)
    if way < 16:
        return chance.choice(NUMBERS)
    if way < 18:
        return chance.choice([None, True, False])
    if way < 19:
        return tame(chance, depth)
    return odd(chance)


def tame(chance: Random, depth: int = 4) -> Any:
    """Return a random JSON value that must not be refused."""
    way = chance.randrange(6)
    if way < 2 and depth:
        return {f"k{n}": tame(chance, depth - 1) for n in range(chance.randrange(4))}
    if way < 3 and depth:
        return [tame(chance, depth - 1) for _ in range(chance.randrange(4))]
    return chance.choice([None, True, 7, -(2**63), 2**63 - 1, 0.1, -0.0, 1e300, *chance.choices(_GOOD, k=4)])


def odd(chance: Random) -> Any:
    """Return a value that is no JSON, is too much JSON, or only looks like JSON."""
    return chance.choice(_ODD)()


def knot() -> Any:
    found: dict[str, Any] = {}
    found["again"] = [found]
    return found


def _always(*values: Any) -> list[Callable[[], Any]]:
    return [lambda one=one: one for one in values]  # type: ignore[misc]


def nested(levels: int) -> Any:
    found: Any = []
    for _ in range(levels - 1):
        found = [found]
    return found


def nested_objects(levels: int) -> Any:
    found: Any = {}
    for _ in range(levels - 1):
        found = {"o": found}
    return found


_ODD: list[Callable[[], Any]] = [
    *_always(
        b"bytes", bytearray(b"x"), {1, 2}, frozenset(), object(), object, len, 1j, ..., range(3), math, [object()]
    ),
    *_always(decimal.Decimal("1.5"), datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), datetime.date(2030, 1, 1)),
    *_always(uuid.UUID(int=7), Colour.RED, Word("w"), OrderedDict(a=1), ValueError("an error"), list(range(2000))),
    *_always({1: "a"}, {None: 1}, {(1, 2): 3}, {True: 1}, {1.5: 2}, {b"k": 1}, {Word("k"): 1}, {"a": {"b": {2: 3}}}),
    *(knot, lambda: nested(63), lambda: nested(64), lambda: nested(65), lambda: nested(1000), lambda: nested(100_000)),
    *(lambda: nested_objects(64), lambda: nested_objects(65), lambda: ["y" * 600_000] * 2, lambda: iter([1])),
    *(lambda: "x" * (MOST_BYTES - 2), lambda: "x" * (MOST_BYTES - 1)),
]


# ── Verdicts: what rowlock must do with a value ──

_TOPIC = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_PLAIN = (str, int, float, bool, type(None))


def text_verdict(one: object, most: int) -> str:
    if not isinstance(one, str) or not 1 <= len(one) <= most or "\0" in one or _has_surrogate(one):
        return REFUSED
    return KEPT


def topic_verdict(one: object) -> str:
    return KEPT if isinstance(one, str) and _TOPIC.fullmatch(one) else REFUSED


def tags_verdict(tags: object) -> str:
    if not isinstance(tags, list | tuple) or len(tags) > 32:
        return REFUSED
    return KEPT if all(text_verdict(tag, 128) is KEPT for tag in tags) else REFUSED


def json_verdict(one: Any) -> str:
    """Return the verdict on a JSON value. There is no recursion, so deep nesting can't break it."""
    verdict = KEPT
    todo = [(one, 1)]
    while todo:
        item, depth = todo.pop()
        kind = type(item)
        if isinstance(item, dict | list | tuple):
            if depth > MOST_DEPTH:
                return REFUSED
            if isinstance(item, dict):
                for key in item:
                    if type(key) is not str:
                        return REFUSED
                    todo.append((key, depth + 1))
                todo += [(inner, depth + 1) for inner in item.values()]
            else:
                todo += [(inner, depth + 1) for inner in item]
            if kind not in (dict, list, tuple):
                verdict = EITHER
        elif not isinstance(item, _PLAIN):
            return REFUSED
        elif kind not in _PLAIN:
            verdict = EITHER
        elif not _keepable(item):
            return REFUSED
    if len(json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode()) > MOST_BYTES:
        return REFUSED
    return verdict


def _keepable(item: Any) -> bool:
    if isinstance(item, str):
        return "\0" not in item and not _has_surrogate(item)
    if isinstance(item, float):
        return math.isfinite(item)
    return item is None or -(2**63) <= item < 2**63


def _has_surrogate(one: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in one)


_GOOD = [one for one in SNIPPETS if text_verdict(one, 10_000) is KEPT]


def exact(one: Any) -> Any:
    """Return a form for comparing. 1, 1.0 and True differ, and so do 0.0 and -0.0. A tuple equals a list, and a value
    of a subclass equals one of its JSON type."""
    if isinstance(one, dict):
        return {"object": sorted((key, exact(inner)) for key, inner in one.items())} if _sortable(one) else repr(one)
    if isinstance(one, list | tuple):
        return [exact(inner) for inner in one]
    for kind in (bool, int, float, str):
        if isinstance(one, kind):
            return (kind.__name__, repr(kind(one)))
    return (type(one).__name__, repr(one))


def _sortable(one: dict[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in one)


def harmless(one: str) -> str:
    """Return the text as rowlock stores a text that it must not refuse: with replacements for what can't be stored."""
    return one.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def shown(one: Any) -> str:
    """Return a short form for messages."""
    try:
        said = repr(one)
    except RecursionError:
        said = f"a {type(one).__name__}, nested deeply"
    return said if len(said) < 200 else f"{said[:150]}… ({len(said)} characters)"
