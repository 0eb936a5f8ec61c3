"""A fleet that uses only the SQL functions: producers, workers and a rescuer, all at once, in real time.

The test cuts their connections all the time, in the middle of transactions too. Workers die without a word, or freeze
for longer than their lease and then try to settle. Every client repeats its call until there is an answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, TypeVar

import asyncpg

from rowlock.core.moves import Cancel
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import opening
from tests.proof.history import Execution, History, Operation
from tests.proof.history_app import new_ids
from tests.proof.recorder import now
from tests.proof.witness import TablesAt, Witness
from tests.stores.sql_client import SqlClient, SqlRun

T = TypeVar("T")

LEASE = 1.0
TOPICS = ("mail", "bills")
NAME = "sql fleet"
# The last one: if asyncpg is cut off between two messages, its internal state may be wrong.
CUT = (
    OSError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,
)
_SOON = timedelta(milliseconds=20)


class Line:
    """A connection that is made anew after each cut."""

    def __init__(self, url: str, chance: Random) -> None:
        self._url = url
        self._chance = chance
        self._client: SqlClient | None = None

    async def once(self, call: Callable[[SqlClient], Awaitable[T]]) -> T:
        """Make the call once. If the connection is cut, the call may have happened or not."""
        client = self._client or await SqlClient.connect(self._url, application_name=NAME)
        self._client = None
        try:
            if self._chance.random() < 0.5:
                answer = await call(client)
            else:
                async with client.connection.transaction():
                    answer = await call(client)
                    await client.connection.execute("SELECT pg_sleep(0.005)")  # time to cut the connection
        except BaseException:
            client.connection.terminate()
            raise
        self._client = client
        return answer

    async def insist(self, call: Callable[[SqlClient], Awaitable[T]]) -> tuple[T, bool]:
        """Repeat the call until there is an answer. Return the answer, and whether it answers a repeat."""
        repeated = False
        while True:
            with suppress(*CUT):
                return await self.once(call), repeated
            repeated = True

    async def close(self) -> None:
        if self._client is not None:
            with suppress(*CUT):
                await self._client.close()


class SqlFleet:
    """`history` is the record. `wrong` has the answers that no client should have got."""

    def __init__(self, url: str, seed: int, jobs: int) -> None:
        self.random = Random(seed)
        self.history = History("postgres", {"lease": LEASE, "monotonic_offset": time.time_ns() // 1000 - now()})
        self.wrong: list[str] = []
        self.cuts = 0
        self._url = url
        self._jobs = jobs
        self._producing = 2
        self._over = False
        self._ids: list[str] = []

    async def run(self) -> History:
        tables = TablesAt(self._url)
        witness = await Witness(tables).install()
        others = [asyncio.create_task(one) for one in (self._cut(), self._rescue(), self._operate())]
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(self._producing):
                    group.create_task(self._produce(n))
                for n in range(5):
                    group.create_task(self._work(f"host-{n}-{self.random.randrange(1 << 32):08x}"))
        finally:
            self._over = True  # not a cancel: a driver that is cut off at that moment would swallow it
            await asyncio.gather(*others)
        self.history.at_rest = True
        return await witness.collect(self.history)

    # ── Clients ──

    async def _produce(self, number: int) -> None:
        line = Line(self._url, self.random)
        for n in range(self._jobs // 2):
            own, topic, key = new_ids.one(), self.random.choice(TOPICS), self.random.choice([None, None, f"k{n % 3}"])
            options: dict[str, Any] = {"id": own, "key": key, "max_retries": self.random.randrange(2), "delay": _SOON}
            begun = now()
            answer, _ = await line.insist(partial(SqlClient.enqueue, topic=topic, **options))
            self._ids.append(answer)
            detail, said = {"topic": topic, "key": key}, {"id": answer, "existing": answer != own}
            self.history.operations.append(
                Operation(f"c{number}", n, "enqueue", begun, now(), "ok", (own,), said, detail)
            )
        self._producing -= 1
        await line.close()

    async def _operate(self) -> None:
        async with opening(PostgresStore(self._url)) as store:
            while not self._over:
                await asyncio.sleep(0.1)
                if self._ids:
                    await store.move([self.random.choice(self._ids)], Cancel(by="ann"))

    # ── Workers ──

    async def _work(self, worker: str) -> None:
        line = Line(self._url, self.random)
        while self._producing or await self._live(line):
            try:
                runs = await line.once(lambda sql: sql.claim(worker, *TOPICS, n=2, lease=timedelta(seconds=LEASE)))
            except CUT:
                continue  # the rescuer takes back the claimed jobs, if there are any
            for run in runs:
                await self._handle(line, run)
            if not runs:
                await asyncio.sleep(0.02)
        await line.close()

    async def _live(self, line: Line) -> bool:
        live = "SELECT EXISTS (SELECT FROM _jobs WHERE status NOT IN ('failed', 'expired', 'cancelled'))"
        answer, _ = await line.insist(lambda sql: sql.connection.fetchval(live))
        return bool(answer)

    async def _handle(self, line: Line, run: SqlRun) -> None:
        lease = timedelta(seconds=LEASE)
        if (await line.insist(lambda sql: sql.heartbeat(run, lease)))[0] == "lost":
            return  # the run has not begun: it waited too long behind another run of this worker
        begun, fate = now(), self.random.random()
        if fate < 0.06:  # the worker dies
            self._ran(run, begun, None)
            return
        if fate < 0.12:  # the worker freezes
            await asyncio.sleep(1.3 * LEASE)
        error, write = self._end(run)
        self._ran(run, begun, now(), result=None if error else _output(run), error=error)
        answer, repeated = await line.insist(write)
        if answer not in ("applied", "lost") and not (repeated and answer == "already"):
            self.wrong.append(f"{run} was told {answer}")
        if self.random.random() < 0.2:  # the worker repeats its call, although it had an answer
            again, _ = await line.insist(write)
            if again != ("lost" if answer == "lost" else "already"):
                self.wrong.append(f"{run} was told {answer}, then {again}")

    def _end(self, run: SqlRun) -> tuple[str | None, Callable[[SqlClient], Awaitable[str]]]:
        fate = self.random.random()
        if fate < 0.7:
            return None, lambda sql: sql.complete(run, _output(run))
        if fate < 0.85:
            return "boom", lambda sql: sql.fail(run, "boom", delay=_SOON)
        if fate < 0.9:
            return "never", lambda sql: sql.fail(run, "never", final=True)
        return "Released", lambda sql: sql.release(run)

    def _ran(self, run: SqlRun, begun: int, ended: int | None, **facts: Any) -> None:
        self.history.executions.append(Execution(run.worker, run.id, run.version, begun, ended, **facts))

    # ── Rescues, and cut connections ──

    async def _rescue(self) -> None:
        line = Line(self._url, self.random)
        while not self._over:
            await line.insist(lambda sql: sql.rescue())
            await asyncio.sleep(0.05)
        await line.close()

    async def _cut(self) -> None:
        tables = TablesAt(self._url)
        mine = f"application_name = '{NAME}' AND datname = current_database()"
        while not self._over:
            await asyncio.sleep(self.random.uniform(0.0, 0.06))
            cut = await tables.fetch(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine} ORDER BY random() LIMIT 1"
            )
            self.cuts += len(cut)


def _output(run: SqlRun) -> dict[str, Any]:
    return {"job": run.id, "run": run.version}
