"""Measures how long charts take with full rollups: every topic is busy in every minute, hour and day that is kept.
Prints a Markdown table.

    python -m benchmarks.series                          SQLite, in a temporary file
    python -m benchmarks.series postgresql://…/empty     PostgreSQL, in an empty database, or one filled before

Each call is made --rounds times after one that doesn't count: the median, the fastest and the slowest; and how
much of a core this process took, on PostgreSQL without the server's part. The jobs themselves are not there: charts
don't look at them.
"""

import argparse
import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rowlock.core.sketch import Sketch
from rowlock.core.times import micros, moment
from rowlock.stores import open_store
from rowlock.stores.base import Store
from rowlock.stores.rollups import ALL, COUNTED, KEPT
from rowlock.stores.series import RANGES, window

COLUMNS = ("span", "topic", "at", *COUNTED, "waits", "runs")


def rollups(now: datetime, topics: int, jobs_a_month: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of rollups for so many jobs a month. Every topic has the same counts as all topics together."""
    chance = random.Random(7)
    second = micros(now) // 1_000_000
    for span, kept in KEPT.items():
        jobs = max(1, jobs_a_month * span // (30 * 86_400))
        sketches = [_sketch(chance, min(jobs, 20_000)) for _ in range(20)]
        for n in range(topics + 1):
            topic = ALL if n == 0 else f"topic-{n}"
            for at in range(int(second - kept) // span * span, second, span):
                counts = (jobs, jobs, jobs // 100, 0, 0, jobs // 50, 0, 0, 0)
                yield span, topic, moment(at * 1_000_000), *counts, chance.choice(sketches), chance.choice(sketches)


def _sketch(chance: random.Random, count: int) -> bytes:
    return Sketch.of([round(1e6 * chance.lognormvariate(-2, 1.5)) for _ in range(count)]).pack()


async def fill_postgres(url: str, rows: Iterator[tuple[Any, ...]]) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    if not await connection.fetchval("SELECT count(*) FROM _jobs_rollups"):
        await connection.copy_records_to_table("_jobs_rollups", records=rows, columns=COLUMNS)
        await connection.execute("VACUUM ANALYZE _jobs_rollups")
    await connection.close()


def fill_sqlite(path: str, rows: Iterator[tuple[Any, ...]]) -> None:
    with sqlite3.connect(path) as connection:
        places = ", ".join("?" for _ in COLUMNS)
        connection.executemany(
            f"INSERT INTO _jobs_rollups ({', '.join(COLUMNS)}) VALUES ({places})",
            ((span, topic, micros(at), *rest) for span, topic, at, *rest in rows),
        )
    connection.close()


async def measure(store: Store, rounds: int) -> None:
    print("| | ms (least, most) | CPU ms | points |\n| --- | ---: | ---: | ---: |")
    for topic in (None, "topic-1"):
        for range_ in RANGES:
            took, busy = [], []
            points = 0
            for _ in range(rounds + 1):
                began, busy_before = time.perf_counter(), time.process_time()
                found = await store.series(topic, window(await store.now(), range_, None, None, None))
                took.append(1000 * (time.perf_counter() - began))
                busy.append(1000 * (time.process_time() - busy_before))
                points = len(found.points)
                assert sum(point.completed for point in found.points) > 0
            took = took[1:]
            name = f"{range_} of {topic or 'all'}"
            spread = f"{statistics.median(took):.1f} ({min(took):.1f}, {max(took):.1f})"
            print(f"| {name} | {spread} | {statistics.median(busy[1:]):.1f} | {points} |")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=10_000_000, help="a month")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "jobs.db")
        store = open_store(asked.url or f"sqlite:///{path}")
        await store.migrate()
        await store.open()
        rows = rollups(await store.now(), asked.topics, asked.jobs)
        if asked.url:
            await fill_postgres(asked.url, rows)
        else:
            fill_sqlite(path, rows)
        await measure(store, asked.rounds)
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
