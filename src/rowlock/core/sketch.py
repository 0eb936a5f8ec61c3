"""Sketches of durations in a few bytes: counts of durations in buckets that grow by a tenth (the idea of DDSketch).

Two sketches add up to the sketch of both, in any order, and a percentile is off by less than 5 %.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, log
from operator import add

import msgspec

GROWTH = 1.1  # from one bucket's upper end to the next
SHORTEST, LONGEST = 1e-6, 1e9  # seconds; what is shorter or longer counts as this
_PER_BUCKET = log(GROWTH)
_MIDDLE = 2 / (1 + GROWTH)  # of a bucket, by its upper end: as far from both ends, in proportion

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[int]).decode


def bucket(seconds: float) -> int:
    """Return the number of the bucket. Bucket n holds durations of more than GROWTH ** (n - 1), up to GROWTH ** n."""
    return ceil(log(min(max(seconds, SHORTEST), LONGEST)) / _PER_BUCKET)


class Sketch:
    """`counts`: how many durations are in each bucket from `first` on, up to the last that has any. A list, not a
    dict by bucket: charts add up hundreds of sketches, and the addition of lists runs in C."""

    __slots__ = ("counts", "first")

    def __init__(self, buckets: Iterable[tuple[int, int]] = ()) -> None:
        found = dict(buckets)
        self.first = min(found, default=0)
        self.counts = [found.get(n, 0) for n in range(self.first, max(found, default=-1) + 1)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and (self.first, self.counts) == (other.first, other.counts)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Sketch({list(enumerate(self.counts, self.first))})"

    def __len__(self) -> int:
        """Return the number of durations."""
        return sum(self.counts)

    @classmethod
    def of(cls, microseconds: Sequence[int]) -> Sketch:
        """Make a sketch of many durations at once. To be fast it looks up the ends of buckets among the durations."""
        buckets: dict[int, int] = {}
        ordered, at = sorted(microseconds), 0
        while at < len(ordered):
            n = bucket(ordered[at] / 1e6)
            end = max(bisect_right(ordered, GROWTH**n * 1e6, at), at + 1)  # a rounding error must not stop it
            buckets[n] = buckets.get(n, 0) + end - at
            at = end
        return cls(buckets.items())

    def merge(self, other: Sketch) -> None:
        if not other.counts:
            return
        if not self.counts:
            self.first, self.counts = other.first, other.counts.copy()
            return
        if (before := self.first - other.first) > 0:
            self.counts[:0] = [0] * before
            self.first = other.first
        at = other.first - self.first
        end = at + len(other.counts)
        self.counts += [0] * (end - len(self.counts))
        self.counts[at:end] = map(add, self.counts[at:end], other.counts)

    def quantiles(self, shares: Iterable[float]) -> list[float | None]:
        """Return the seconds within which such a share of the durations was over. None: there are no durations."""
        upto = list(accumulate(self.counts))
        if not upto:
            return [None for _ in shares]
        places = (bisect_left(upto, max(1, ceil(share * upto[-1]))) for share in shares)
        return [_MIDDLE * GROWTH ** (self.first + place) for place in places]

    def pack(self) -> bytes:
        """Return MessagePack: the first bucket, and the counts."""
        return _pack([self.first, *self.counts])

    @classmethod
    def unpack(cls, data: bytes | None) -> Sketch:
        sketch = cls.__new__(cls)  # without a check of its content
        sketch.first, *sketch.counts = _unpack(data) if data else (0,)
        return sketch
