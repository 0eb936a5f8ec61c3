"""Fold notes into rollups, and read rollups for charts. One process folds at a time, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rowlock.core.sketch import Sketch
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.rollups import COUNTED, KEPT, Key, Rollup, packed, roll_up


async def fold(connection: Any, sql: Statements, lock: int, limit: int) -> int:
    """Return how many notes were folded; 0 also if another process is folding. The commit deletes and counts them."""
    async with connection.transaction(isolation="read_committed"):
        if not await connection.fetchval(sql.fold_lock, lock):
            return 0
        found = await connection.fetch(sql.fold_counts, limit)
        rollups = roll_up(
            (topic, second, Rollup(counts, _sketch(waits, waits_n), _sketch(runs, runs_n)))
            for _, topic, second, counts, waits, waits_n, runs, runs_n in found
        )
        if rollups:
            await _add(connection, sql, rollups)
    return int(found[0][0]) if found else 0


async def _add(connection: Any, sql: Statements, rollups: dict[Key, Rollup]) -> None:
    measured = [key for key, rollup in rollups.items() if rollup.runs]
    for span, topic, at, waits, runs in await connection.fetch(sql.rollup_sketches, *_keys(measured)):
        rollup = rollups[Key(span, topic, at)]
        rollup.waits.merge(Sketch.unpack(waits))
        rollup.runs.merge(Sketch.unpack(runs))
    values = list(rollups.values())
    await connection.execute(
        sql.rollup_add,
        *_keys(list(rollups)),
        *([rollup.counts[n] for rollup in values] for n in range(len(COUNTED))),
        [packed(rollup.waits) for rollup in values],
        [packed(rollup.runs) for rollup in values],
    )


def _keys(keys: list[Key]) -> tuple[list[int], list[str], list[datetime]]:
    return [key.span for key in keys], [key.topic for key in keys], [key.time for key in keys]


def _sketch(buckets: list[int] | None, counts: list[int] | None) -> Sketch:
    return Sketch(zip(buckets or (), counts or (), strict=True))


def read(found: list[Any]) -> Iterator[tuple[int, Rollup]]:
    """Yield the rollups in the rows of series.sql."""
    for second, counts, waits_packed, runs_packed, waits, waits_n, runs, runs_n in found:
        if waits is None and runs is None:
            yield second, Rollup(counts, Sketch.unpack(waits_packed), Sketch.unpack(runs_packed))
        else:
            yield second, Rollup(counts, _sketch(waits, waits_n), _sketch(runs, runs_n))


async def sweep(connection: Any, sql: Statements, limit: int) -> str:
    tag: str = await connection.execute(sql.rollup_sweep, list(KEPT), list(KEPT.values()), limit)
    return tag
