"""The demo's invented past: charts of a shop that has been open for a month. It writes rollups, no jobs."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rowlock.core.sketch import Sketch
from rowlock.stores.queries import DAY
from rowlock.stores.rollups import ALL, COUNTED, HOUR, MINUTE

_OPEN = 30 * int(DAY)  # seconds
_IN_MINUTES = int(DAY)  # seconds of it that have rollups by the minute
_OUTAGE = range(5 * HOUR, 5 * HOUR - 20 * MINUTE, -MINUTE)  # seconds ago: the bank did not answer
_MADE_UP = tuple(map(COUNTED.index, ("enqueued", "completed", "failed", "cancelled", "retried")))
_RISE = 0.8  # radians: the time of day at the start, so that the charts continue without a jump


class _Kind(NamedTuple):
    """`rate`: jobs a minute, as cli/sample.py enqueues them. `failed`, `cancelled`: shares of them. `retried`: retries
    per job. `wait`, `run`: typical seconds."""

    rate: float
    failed: float = 0.0
    cancelled: float = 0.0
    retried: float = 0.0
    wait: float = 0.01
    run: float = 0.06


_SHOP = {
    "mail.send": _Kind(280),
    "payment.check": _Kind(47, failed=0.25, retried=2.25, run=0.2),
    "report.render": _Kind(28, wait=0.2, run=4.1),
    "stock.sync": _Kind(20, failed=1.0, retried=1.0, run=0.001),
    "video.encode": _Kind(8, cancelled=0.33, run=15.0),
    "invoice.remind": _Kind(35, run=0.1),
    "order.express": _Kind(23, run=0.3),
}

_Counts = list[int]
_Rollups = dict[tuple[int, int], _Counts]  # by span and beginning


def make_up(database: Path, now: float) -> None:
    """Write the rollups until `now`, in seconds since the epoch, which may be in the middle of a minute."""
    chance = random.Random(7)  # noqa: S311 - a demo
    end = int(now)
    every: _Rollups = defaultdict(lambda: [0] * len(COUNTED))
    rows: list[tuple[object, ...]] = []
    for topic, kind in _SHOP.items():
        rollups: _Rollups = defaultdict(lambda: [0] * len(COUNTED))
        for at, counts in _steps(chance, topic, kind, end):
            longer = (MINUTE, HOUR, int(DAY)) if end - at <= _IN_MINUTES else (HOUR, int(DAY))
            for span in longer:
                for rollup in (rollups[span, at // span * span], every[span, at // span * span]):
                    for column, count in zip(_MADE_UP, counts, strict=True):
                        rollup[column] += count
        rows += _rows(chance, topic, rollups, _sketches(chance, [kind]))
    rows += _rows(chance, ALL, every, _sketches(chance, list(_SHOP.values())))
    names = ("span", "topic", "at", *COUNTED, "waits", "runs")
    places = ", ".join("?" * len(names))
    with sqlite3.connect(database, timeout=30) as connection:
        connection.executemany(f"INSERT INTO _jobs_rollups ({', '.join(names)}) VALUES ({places})", rows)  # noqa: S608
    connection.close()


def _steps(chance: random.Random, topic: str, kind: _Kind, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the begin of each step, and its numbers: enqueued, completed, failed, cancelled, retried. Steps are hours,
    at the end minutes."""
    late = 0
    edge = (end - _IN_MINUTES) // HOUR * HOUR
    for at in [*range(edge - _OPEN + _IN_MINUTES, edge, HOUR), *range(edge, end, MINUTE)]:
        long = min(HOUR if at < edge else MINUTE, end - at)
        evening = 0.75 + 0.35 * math.sin((at - end) / DAY * math.tau + _RISE)  # fewer jobs at night
        came = max(0, round(kind.rate * long / MINUTE * evening * chance.gauss(1, 0.08)))
        late += came
        is_out = topic == "payment.check" and (end - at) // MINUTE * MINUTE in _OUTAGE
        left = 0 if at + long >= end else chance.randrange(came // 20 + 1)  # for the next step
        ended = came // 10 if is_out else min(late - left, came * 2)
        late -= ended
        failed, cancelled = round(ended * kind.failed), round(ended * kind.cancelled)
        yield at, (came, ended - failed - cancelled, failed, cancelled, round(ended * kind.retried))


def _sketches(chance: random.Random, kinds: list[_Kind]) -> list[tuple[bytes, bytes]]:
    """Return some samples of how long jobs of these kinds waited and ran."""
    rates = [kind.rate for kind in kinds]

    def durations(of: str) -> bytes:
        mixed = chance.choices(kinds, rates, k=300)
        return Sketch.of([round(1e6 * getattr(kind, of) * chance.lognormvariate(0, 0.5)) for kind in mixed]).pack()

    return [(durations("wait"), durations("run")) for _ in range(50)]


def _rows(
    chance: random.Random, topic: str, rollups: _Rollups, sketches: list[tuple[bytes, bytes]]
) -> Iterator[tuple[object, ...]]:
    for (span, at), counts in sorted(rollups.items()):
        yield span, topic, at * 1_000_000, *counts, *chance.choice(sketches)
