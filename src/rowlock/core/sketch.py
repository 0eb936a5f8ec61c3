"""How long things took, in a few bytes: counts of durations in buckets that grow by a tenth (the idea of DDSketch).

Two sketches add up to the sketch of both, in any order, and a percentile is off by less than 5 %.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import ceil, log

import msgspec

GROWTH = 1.1  # from one bucket's upper end to the next
SHORTEST, LONGEST = 1e-6, 1e9  # seconds; what is shorter or longer counts as this
_PER_BUCKET = log(GROWTH)
_MIDDLE = 2 / (1 + GROWTH)  # of a bucket, by its upper end: as far from both ends, in proportion

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[int]).decode


def bucket(seconds: float) -> int:
    """Bucket n holds what is longer than GROWTH ** (n - 1), up to GROWTH ** n."""
    return ceil(log(min(max(seconds, SHORTEST), LONGEST)) / _PER_BUCKET)


class Sketch:
    """`buckets`: how many durations are in which bucket."""

    __slots__ = ("buckets",)

    def __init__(self, buckets: Iterable[tuple[int, int]] = ()) -> None:
        self.buckets = dict(buckets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and self.buckets == other.buckets

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Sketch({sorted(self.buckets.items())})"

    def __len__(self) -> int:
        """How many durations are in it."""
        return sum(self.buckets.values())

    @classmethod
    def of(cls, microseconds: Sequence[int]) -> Sketch:
        """Many at once, in a small part of the time: the ends of buckets are looked up among the durations."""
        sketch, ordered, at = cls(), sorted(microseconds), 0
        while at < len(ordered):
            n = bucket(ordered[at] / 1e6)
            end = max(bisect_right(ordered, GROWTH**n * 1e6, at), at + 1)  # a rounding error must not stop it
            sketch.buckets[n] = sketch.buckets.get(n, 0) + end - at
            at = end
        return sketch

    def merge(self, other: Sketch) -> None:
        mine = self.buckets
        for n, count in other.buckets.items():
            mine[n] = mine.get(n, 0) + count

    def quantiles(self, shares: Iterable[float]) -> list[float | None]:
        """Seconds within which such a share of the durations was over; `shares` rise. None: there are no durations."""
        total = len(self)
        if not total:
            return [None for _ in shares]
        found: list[float | None] = []
        ordered = iter(sorted(self.buckets.items()))
        seen, n = 0, 0
        for share in shares:
            while seen < max(1, ceil(share * total)):
                n, count = next(ordered)
                seen += count
            found.append(_MIDDLE * GROWTH**n)
        return found

    def pack(self) -> bytes:
        """MessagePack: the first bucket and its count, then how many buckets further on and the count, and so on."""
        flat: list[int] = []
        last = 0
        for n, count in sorted(self.buckets.items()):
            flat += (n - last, count)
            last = n
        return _pack(flat)

    @classmethod
    def unpack(cls, data: bytes | None) -> Sketch:
        sketch, at = cls(), 0
        if data:
            flat = _unpack(data)
            for step, count in zip(flat[::2], flat[1::2], strict=True):
                at += step
                sketch.buckets[at] = count
        return sketch
