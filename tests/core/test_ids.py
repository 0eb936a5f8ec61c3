"""UUIDv7: layout, order, uniqueness."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from rowlock.core.ids import IdMaker, check_id, time_in
from rowlock.errors import InvalidInput

MS = 1_000_000  # in ns
AT = 1_767_268_800_123 * MS


def test_the_layout_is_version_7() -> None:
    maker = IdMaker(lambda: AT, os.urandom)
    for text in maker.many(5000):
        parsed = UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (7, "specified in RFC 4122")
    assert UUID(IdMaker(lambda: AT, os.urandom).one()).int >> 80 == AT // MS


def test_the_clock_is_in_milliseconds() -> None:
    maker = IdMaker(lambda: AT + 999_999, os.urandom)
    assert maker.one()[:13] == f"{AT // MS:012x}"[:8] + "-" + f"{AT // MS:012x}"[8:]


@pytest.mark.parametrize("count", [1, 2, 4095, 4096, 4097, 20_000])
def test_ids_grow_strictly_also_beyond_4096_in_a_millisecond(count: int) -> None:
    maker = IdMaker(lambda: AT, os.urandom)
    ids = maker.many(count) + [maker.one() for _ in range(3)] + maker.many(count)
    assert len(ids) == 2 * count + 3
    assert ids == sorted(set(ids))


def test_ids_grow_when_the_clock_goes_back() -> None:
    times = iter([AT, AT - 3600 * 1000 * MS, AT - 1, AT + MS, 0])
    maker = IdMaker(lambda: next(times), os.urandom)
    ids = [maker.one() for _ in range(5)]
    assert ids == sorted(set(ids))


def test_the_clock_is_followed_again_after_a_burst() -> None:
    now = [AT]
    maker = IdMaker(lambda: now[0], os.urandom)
    maker.many(10_000)
    now[0] = AT + 1000 * MS
    assert UUID(maker.one()).int >> 80 == AT // MS + 1000


def test_the_random_part_is_random() -> None:
    """The 60 random bits differ between two makers at the same time."""
    one, two = (IdMaker(lambda: AT, os.urandom).many(1000) for _ in range(2))
    assert not set(one) & set(two)
    assert {a[:18] for a in one} == {b[:18] for b in two}
    bits = [(int(i.replace("-", ""), 16) & (1 << 60) - 1).bit_count() for i in one]
    assert 28 < sum(bits) / len(bits) < 32


def test_no_ids() -> None:
    maker = IdMaker(lambda: AT, os.urandom)
    assert maker.many(0) == []
    assert maker.one() < maker.one()


def test_unique_over_threads() -> None:
    maker = IdMaker(lambda: AT, os.urandom)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda n: maker.many(n % 7 + 1), range(4000)))
    ids = [i for batch in batches for i in batch]
    assert len(set(ids)) == len(ids) == sum(n % 7 + 1 for n in range(4000))


def test_check_id_accepts_any_uuid_in_any_spelling() -> None:
    mine = uuid4()
    for spelling in (mine, str(mine), str(mine).upper(), mine.hex, f"{{{mine}}}", mine.urn):
        assert check_id(spelling) == str(mine)


@pytest.mark.parametrize("value", ["", "x", "1234", 7, None, b"0" * 16, "g" * 32, "0" * 31, ["a"]])
def test_check_id_refuses(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_id(value)
    assert (caught.value.field, caught.value.code) == ("id", "bad_id")


def test_an_id_says_when_it_was_made() -> None:
    made = time_in(IdMaker(lambda: AT, os.urandom).one())
    assert made == datetime.fromtimestamp(AT // MS / 1000, UTC)
    assert time_in("ffffffff-ffff-7fff-bfff-ffffffffffff") is None  # no datetime goes that far
