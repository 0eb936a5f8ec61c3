"""Measures list and stats beside many jobs. Prints a Markdown table.

    python benchmarks/reading.py                          SQLite, in a temporary file
    python benchmarks/reading.py postgresql://…/empty     PostgreSQL, in an empty database, or one filled before

Each call is made once without being counted, then --rounds times. The table shows the median, the fastest and the
slowest.
"""

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rowlock.stores import open_store
from rowlock.stores.base import Store
from rowlock.stores.queries import Filter

DAYS = 7  # over which the archive is spread
DAY_MS = 86_400_000

# n counts up from 1. One job in ten has a key, one in two a scope, one in twenty a tag.
ARCHIVE = """
INSERT INTO _jobs_archive (id, topic, template_version, priority, version, retries, max_retries, crashes, timeout,
    created, updated, run_at, claimed_at, started_at, finished_at, locked_by, history_dropped, key, scope, scope_id,
    tags, payload, result)
SELECT {id}, {topic}, 0, 100, 1, 0, 3, 0, 600, {at}, {at}, {at}, {at}, {at}, {at}, 'w1', 0,
    CASE WHEN n % 10 = 0 THEN 'key ' || (n % 5000) END, CASE WHEN n % 2 = 0 THEN 'user' END,
    CASE WHEN n % 2 = 0 THEN 'u' || (n % 20000) END, CASE WHEN n % 20 = 0 THEN '["red","blue"]' END{json},
    {payload}, '{{"ok":true}}'{to_json}
FROM n"""
LIVE = """
INSERT INTO _jobs (id, topic, status, ready, priority, max_retries, timeout, created, updated, run_at, key, scope_id,
    tags, payload, locked_by, locked_until, claimed_at, version, finished_at, last_error)
SELECT {id}, {topic}, s, s = 'pending' AND n % 8 > 0, 100, 3, 600, {at}, {at}, {at},
    CASE WHEN n % 10 = 0 THEN 'live ' || n END, CASE WHEN n % 2 = 0 THEN 'u' || (n % 20000) END,
    CASE WHEN n % 20 = 0 THEN '["red","blue"]' END{json}, {payload}, CASE WHEN s = 'processing' THEN 'w1' END,
    CASE WHEN s = 'processing' THEN {at} END, {at}, 1, CASE WHEN s IN ('failed', 'cancelled') THEN {at} END,
    CASE WHEN s = 'failed' THEN 'Traceback: ' || (n % 7) || ' is not enough' END
FROM (SELECT n, CASE WHEN n % 100 < 5 THEN 'processing' WHEN n % 100 < 15 THEN 'failed'
    WHEN n % 100 < 17 THEN 'cancelled' WHEN n % 100 < 18 THEN 'waiting' ELSE 'pending' END AS s FROM n) n"""
TOPIC = "CASE WHEN n % 10 < 6 THEN 'mail' WHEN n % 10 < 9 THEN 'bills' ELSE 'rare_' || (n % 1000 / 10) END"
PAYLOAD = """'{"n":' || n || ',"user":{"id":' || (n % 1000) || '},"text":"' || '""" + "x" * 150 + """' || '"}'"""


def begin(now_ms: int) -> int:
    return now_ms - DAYS * DAY_MS


async def fill_postgres(url: str, archived: int, live: int, now_ms: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    for statement, count, first in ((ARCHIVE, archived, 0), (LIVE, live, archived)):
        span = DAYS * DAY_MS
        ms = f"({begin(now_ms)} + n::bigint * {span} / {archived + live})"
        text = statement.format(
            id=f"rpad(lpad(to_hex({ms}), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8', 32, '0')::uuid",
            at=f"to_timestamp({ms} / 1000.0)",
            topic=TOPIC,
            payload=f"({PAYLOAD})::json",
            json="::jsonb",
            to_json="::json",
        )
        await connection.execute(f"WITH n AS (SELECT n FROM generate_series({first + 1}, {first + count}) n) {text}")
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def fill_sqlite(path: str, archived: int, live: int, now_ms: int) -> None:
    connection = sqlite3.connect(path)
    for statement, count, first in ((ARCHIVE, archived, 0), (LIVE, live, archived)):
        span = DAYS * DAY_MS
        ms = f"({begin(now_ms)} + n * {span} / {archived + live})"
        clock = f"printf('%012x', {ms})"
        text = statement.format(
            id=f"substr({clock}, 1, 8) || '-' || substr({clock}, 9) || printf('-7%03x-8000-%012x', n % 4096, n)",
            at=f"({ms} * 1000)",
            topic=TOPIC,
            payload=PAYLOAD,
            json="",
            to_json="",
        )
        series = f"WITH RECURSIVE n (n) AS (SELECT {first + 1} UNION ALL SELECT n + 1 FROM n LIMIT {count}) "
        insert, select = text.strip().split("\nSELECT", 1)
        connection.execute(f"{insert}\n{series} SELECT{select}")
    connection.commit()
    connection.close()


Call = Callable[[], Awaitable[Any]]


def calls(store: Store, now: datetime) -> dict[str, Call]:
    def listed(**filter: Any) -> Call:
        return lambda: store.list(Filter(**filter))

    hour, day = timedelta(hours=1), timedelta(days=1)
    return {
        "stats()": store.stats,
        "stats('mail')": lambda: store.stats("mail"),
        "list()": listed(),
        "list(), offset 9,980": lambda: store.list(Filter(), offset=9980),
        "topic, most jobs": listed(topics=["mail"]),
        "topic, 0.1 % of the jobs": listed(topics=["rare_9"]),
        "10 topics": listed(topics=[f"rare_{n}" for n in range(9, 100, 10)]),
        "topic and completed": listed(topics=["mail"], statuses=["completed"]),
        "pending": listed(statuses=["pending"]),
        "pending of a rare topic": listed(statuses=["pending"], topics=["rare_9"]),
        "pending of no topic": listed(statuses=["pending"], topics=["none"]),
        "processing": listed(statuses=["processing"]),
        "failed": listed(statuses=["failed"]),
        "failed of a topic": listed(statuses=["failed"], topics=["bills"]),
        "failed, expired, completed": listed(statuses=["failed", "expired", "completed"]),
        "key": listed(keys=["key 10"]),
        "topic and key": listed(topics=["mail"], keys=["key 10"]),
        "scope_id": listed(scope_id="u10"),
        "scope": listed(scope="user"),
        "created in an hour, three days ago": listed(created_from=now - 3 * day, created_until=now - 3 * day + hour),
        "topic, created in the last day": listed(topics=["bills"], created_from=now - day),
        "finished in an hour, three days ago": listed(finished_from=now - 3 * day, finished_until=now - 3 * day + hour),
        "tag": listed(tags=["red"]),
        "payload": listed(payload={"user.id": 7}),
        "payload that nobody has": listed(payload={"user.id": -1}),
        "error": listed(error="3 is not"),
    }


async def measure(url: str, options: argparse.Namespace) -> None:
    store = open_store(url)
    await store.migrate()
    await store.open()
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)
    if (await store.list(Filter(), limit=1)).items:
        pass  # filled before
    elif url.startswith("sqlite"):
        await asyncio.to_thread(fill_sqlite, url.removeprefix("sqlite:///"), options.archived, options.live, now_ms)
    else:
        await fill_postgres(url, options.archived, options.live, now_ms)
    print(f"| {url.split(':')[0]}, {options.archived:,} archived, {options.live:,} live | ms | least | most | answer |")
    print("| --- | ---: | ---: | ---: | --- |")
    for name, call in calls(store, now).items():
        answer = await call()
        times = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            answer = await call()
            times.append(1000 * (time.perf_counter() - start))
        figures = f"{statistics.median(times):.1f} | {min(times):.1f} | {max(times):.1f}"
        print(f"| {name} | {figures} | {tell(answer)} |", flush=True)
    await store.close()


def tell(answer: Any) -> str:
    if hasattr(answer, "topics"):
        return f"{answer.pending:,} pending"
    more = "+" if answer.total_capped else ", partial" if answer.partial else ""
    return f"{len(answer.items)} of {answer.total:,}{more}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?")
    parser.add_argument("--archived", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.url:
        asyncio.run(measure(options.url, options))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(f"sqlite:///{Path(folder) / 'jobs.db'}", options))


if __name__ == "__main__":
    main()
