"""Rollups: notes, added up by minute, hour and day, for each topic and for all topics together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from rowlock.core.sketch import Sketch
from rowlock.core.times import moment
from rowlock.stores.queries import DAY

MINUTE, HOUR = 60, 3600
SPANS = (MINUTE, HOUR, int(DAY))  # seconds; each begins where UTC's does
KEPT = {MINUTE: 3 * DAY, HOUR: 40 * DAY, int(DAY): 400 * DAY}  # seconds that rollups of a span are kept
COUNTED = ("enqueued", "completed", "failed", "expired", "cancelled", "retried", "lost", "requeued", "deleted")
ALL = ""  # the topic that stands for all topics


class Rollup(Struct):
    """The events of a span of time. `counts`: in the order of COUNTED."""

    counts: list[int]
    waits: Sketch
    runs: Sketch

    def add(self, other: Rollup) -> None:
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.waits.merge(other.waits)
        self.runs.merge(other.runs)


def packed(sketch: Sketch) -> bytes | None:
    """Return the sketch as it is stored; NULL if it is empty."""
    return sketch.pack() if sketch else None


def nothing() -> Rollup:
    return Rollup([0] * len(COUNTED), Sketch(), Sketch())


class Key(Struct, frozen=True, order=True):
    """`at`: seconds since the epoch at which it begins."""

    span: int
    topic: str
    at: int

    @property
    def time(self) -> datetime:
        return moment(self.at * 1_000_000)


def roll_up(noted: Iterable[tuple[str, int, Rollup]]) -> dict[Key, Rollup]:
    """Return the sums of the notes: rollups per minute, hour and day, for each topic and for all topics. `noted`: the
    topic, a second of the minute (since the epoch), and the note. The rollups are sorted, so that two processes that
    write them in this order don't deadlock."""
    rollups: dict[Key, Rollup] = {}
    for topic, second, rollup in noted:
        for span in SPANS:
            for name in (topic, ALL):
                key = Key(span, name, second // span * span)
                if key not in rollups:
                    rollups[key] = nothing()
                rollups[key].add(rollup)
    return dict(sorted(rollups.items()))
