"""A producer of jobs with keys: `python -m tests.faults.liner URL FOLDER SEED CLIENTS COUNT`. Each client has its own
store, and enqueues COUNT jobs under all policies. Some are enqueued in the caller's own transactions, which stay open
for a while. Some of these are rolled back. The producer keeps a record in FOLDER."""

import asyncio
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Literal

from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from tests.closing import connected
from tests.proof.history_app import new_ids
from tests.proof.recorder import Recorder

KEYS = 50  # for each policy
POLICIES: tuple[Literal["reject", "queue", "replace"], ...] = ("reject", "queue", "replace")
KINDS: dict[str, dict[str, Any]] = {"quick": {}, "nap": {"seconds": 0.02}, "flaky": {"good_from": 2}, "hopeless": {}}
IN_TRANSACTIONS = 0.1  # share of enqueues
LONGEST = {"postgres": 2.0, "sqlite": 0.05}  # seconds that a transaction stays open; SQLite has one writer


class RolledBack(Exception):
    """The caller has rolled its transaction back."""


class Client:
    def __init__(self, jobs: Jobs, url: str, record: Recorder, chance: Random) -> None:
        self._jobs = jobs
        self._url = url
        self._record = record
        self._chance = chance

    async def produce(self, count: int) -> None:
        made = 0
        while made < count:
            if self._chance.random() < IN_TRANSACTIONS:
                await self._in_transaction()
                made += 1
            else:
                size = self._chance.choice([1, 1, 1, 5])
                await self._insist(min(size, count - made))
                made += size

    def _draft(self) -> dict[str, Any]:
        topic, policy = self._chance.choice(list(KINDS)), self._chance.choice(POLICIES)
        key = f"{policy} {self._chance.randrange(KEYS)}"
        return {"topic": topic, "payload": KINDS[topic], "id": new_ids.one(), "key": key, "if_live": policy}

    async def _insist(self, count: int) -> None:
        """Enqueue jobs, again and again until the store answers. The ids stay the same, so no job is made twice."""
        drafts = [self._draft() for _ in range(count)]
        while True:
            try:
                with self._record.operation("enqueue", [one["id"] for one in drafts], batch=True) as told:
                    told(await self._jobs.enqueue_many(drafts))
                return
            except StoreError:
                await asyncio.sleep(0.1)

    async def _in_transaction(self) -> None:
        draft = self._draft()
        kind = "sqlite" if self._url.startswith("sqlite") else "postgres"
        seconds, back = self._chance.uniform(0.0, LONGEST[kind]), self._chance.random() < 0.4
        try:
            with self._record.operation("transaction", [draft["id"]]) as told:
                if kind == "sqlite":
                    told(await asyncio.to_thread(self._on_sqlite, draft, seconds, back))
                else:
                    told(await self._on_postgres(draft, seconds, back))
        except (RolledBack, StoreError, sqlite3.OperationalError):
            pass

    async def _on_postgres(self, draft: dict[str, Any], seconds: float, back: bool) -> Any:
        topic, payload, rest = _parts(draft)
        async with connected(self._url) as conn:
            async with conn.transaction():
                answer = await self._jobs.enqueue(topic, payload, conn=conn, **rest)
                await asyncio.sleep(seconds)
                if back:
                    raise RolledBack
            return answer

    def _on_sqlite(self, draft: dict[str, Any], seconds: float, back: bool) -> Any:
        topic, payload, rest = _parts(draft)
        path = self._url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            answer = self._jobs.sync.enqueue(topic, payload, conn=conn, **rest)
            time.sleep(seconds)
            if back:
                conn.execute("ROLLBACK")
                raise RolledBack
            conn.execute("COMMIT")
        return answer


def _parts(draft: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return draft["topic"], draft["payload"], {name: draft[name] for name in ("id", "key", "if_live")}


async def main(url: str, folder: str, seed: int, clients: int, count: int) -> None:
    record = Recorder(Path(folder))
    many = [Jobs(url) for _ in range(clients)]
    await asyncio.gather(
        *(Client(jobs, url, record, Random(seed * 100 + n)).produce(count) for n, jobs in enumerate(many))
    )
    await asyncio.gather(*(jobs.close() for jobs in many))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
