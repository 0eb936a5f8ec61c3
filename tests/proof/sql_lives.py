"""Random lives in which some clients use only the SQL functions, and others use the store.

The connections of SQL clients are cut before a COMMIT, which undoes the call, or after it, so that only the answer is
lost. Then the client repeats the call. Calls of runs that ended long ago are repeated, too.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from rowlock.core.job import Job
from tests.proof.random_lives import LEASE, TOPICS, WORKERS, RandomLives
from tests.stores.harness import PostgresHarness
from tests.stores.sql_client import SqlClient, SqlRun


class Write(Protocol):
    def __call__(self, sql: SqlClient, run: SqlRun) -> Awaitable[str]: ...


STRANGER = "host-104-dddd"
_LEASE = timedelta(seconds=LEASE)
_ENDS: tuple[tuple[str | None, Write], ...] = (
    ("boom", lambda sql, run: sql.fail(run, "boom", delay=timedelta(0))),
    ("boom", lambda sql, run: sql.fail(run, "boom", delay=timedelta(seconds=9))),
    ("boom", lambda sql, run: sql.fail(run, "boom")),
    ("never", lambda sql, run: sql.fail(run, "never", final=True)),
    ("Released", lambda sql, run: sql.release(run)),
    *((None, lambda sql, run: sql.complete(run, _output(run))),) * 3,
)


def _output(run: SqlRun) -> dict[str, Any]:
    return {"job": run.id, "run": run.version}


class SqlLives(RandomLives):
    """`wrong`: the wrong answers."""

    # No id is used again: an old call of the same worker about version 1 would then be about the new job.
    verbs = (
        *(verb for verb in RandomLives.verbs if verb != "reuse"),
        *("sql_claim", "sql_settle", "zombie", "stranger") * 4,
        *("sql_enqueue", "sql_enqueue", "sql_again", "sql_heartbeat", "wait", "wait", "maintain", "maintain"),
    )

    def __init__(self, seed: int, harness: PostgresHarness) -> None:
        super().__init__(seed, harness)
        self.wrong: list[str] = []
        self.cuts = self.replays = 0
        self._url = harness.url
        self._client: SqlClient | None = None
        self._over: list[tuple[SqlRun, Write, str]] = []

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _sql(self) -> SqlClient:
        if self._client is None:
            self._client = await SqlClient.connect(self._url, virtual=True)
        return self._client

    async def _cut(self) -> None:
        """Let the server cut the connection, as it does for a client that is gone."""
        assert self._client is not None
        pid = self._client.connection.get_server_pid()
        await self.harness.fetch(f"SELECT pg_terminate_backend({pid})")
        while await self.harness.fetch(f"SELECT FROM pg_stat_activity WHERE pid = {pid}"):
            pass
        self._client.connection.terminate()
        self._client = None
        self.cuts += 1

    async def _call(self, call: Callable[[SqlClient], Awaitable[Any]]) -> tuple[Any, Any]:
        """Return the call's answer. If that answers a repeat because the first answer got lost, return the first
        answer, too, else None."""
        sql = await self._sql()
        fate = self.random.random()
        if fate < 0.15:
            await sql.connection.execute("BEGIN")
            await call(sql)
            await self._cut()
            return await call(await self._sql()), None
        first = await call(sql)
        if fate > 0.3:
            return first, None
        await self._cut()
        return await call(await self._sql()), first

    # ── Clients ──

    async def _sql_enqueue(self) -> None:
        chance = self.random
        own = f"{chance.randrange(16):x}193fb1e-0000-7000-9000-{len(self.history.operations):012x}"
        topic, key = chance.choice(TOPICS), chance.choice([None, "k1", "k2"])
        scope_id = chance.choice([None, None, "t1"])
        options = {
            "delay": timedelta(seconds=chance.choice([0, 0, 5])),
            "max_retries": chance.randrange(3),
            "expires_at": chance.choice([None, None, self.harness.now + timedelta(seconds=20)]),
            "id": own,
            "key": key,
            "scope_id": scope_id,
        }
        answer, first = await self._call(lambda sql: sql.enqueue(topic, {"by": "sql"}, **options))
        if first is not None and answer != first:
            self.wrong.append(f"{own} was enqueued as {first}, then as {answer}")
        said = {"id": answer, "existing": answer != own}
        self._note("enqueue", [own], answer=said, detail={"topic": topic, "key": key, "scope_id": scope_id})

    async def _sql_again(self) -> None:
        """A client that doesn't know whether its job was made enqueues it again, however late."""
        made = [one for one in self.history.operations if one.ids and "-9000-" in one.ids[0] and one.verb == "enqueue"]
        if made:
            one = self.random.choice(made)
            [own], detail = one.ids, one.detail or {}
            if await self.harness.store.read([own], Job):  # not deleted: a deleted job would be made anew
                answer = await (await self._sql()).enqueue(detail["topic"], id=own)
                if answer != own:
                    self.wrong.append(f"{own} was enqueued again as {answer}")
                self._note("enqueue", [own], answer={"id": answer, "existing": True}, detail=detail)

    # ── Workers ──

    async def _sql_claim(self) -> None:
        worker = self.random.choice(WORKERS)
        sql = await self._sql()
        runs = await sql.claim(worker, *TOPICS, n=3, lease=_LEASE)
        if self.random.random() < 0.1:
            await self._cut()  # no worker knows of these runs, so their leases will end
            return
        found = await self.harness.store.read([run.id for run in runs], Job)
        self.running += [(found[run.id], worker) for run in runs]

    async def _sql_settle(self) -> None:
        for job, worker in self.random.sample(self.running, min(len(self.running), 3)):
            run = SqlRun(job.id, job.version, worker)
            error, write = self.random.choice(_ENDS)
            answer, first = await self._call(partial(write, run=run))
            if first is not None and answer != ("already" if first == "applied" else first):
                self.wrong.append(f"{run} was told {first}, then {answer}")
            self._over.append((run, write, first or answer))
            self._end(job, worker, error, lost=(first or answer) == "lost")

    def _end(self, job: Job, worker: str, error: str | None, *, lost: bool) -> None:
        self.running.remove((job, worker))
        result = None if error else {"job": job.id, "run": job.version}
        self._ran(job, worker, ended=self.now, result=result, error=error, told="lost" if lost else None)

    async def _sql_heartbeat(self) -> None:
        for job, worker in list(self.running):
            run = SqlRun(job.id, job.version, worker)
            answer, _ = await self._call(partial(SqlClient.heartbeat, run=run, lease=_LEASE))
            if answer == "lost":
                self._end(job, worker, "LeaseLost", lost=True)

    async def _zombie(self) -> None:
        """Repeat the calls of a run that ended long ago."""
        if self._over:
            run, write, first = self.random.choice(self._over)
            sql = await self._sql()
            await self._told(write(sql, run), ("lost",) if first == "lost" else ("already", "lost"), run)
            await self._told(sql.heartbeat(run, _LEASE), ("lost",), run)
            other = run._replace(worker=STRANGER)
            await self._told(write(sql, other), ("lost",), other)

    async def _stranger(self) -> None:
        """Another worker, or another run, tries to write to a held job."""
        if self.running:
            job, worker = self.random.choice(self.running)
            run = SqlRun(job.id, job.version, worker)
            stranger = self.random.choice([run._replace(worker=STRANGER), run._replace(version=run.version + 1)])
            if stranger in {SqlRun(one.id, one.version, holder) for one, holder in self.running}:
                return  # this run is no stranger: the same worker has claimed the job again
            sql, (_, write) = await self._sql(), self.random.choice(_ENDS)
            await self._told(sql.heartbeat(stranger, 9 * _LEASE), ("lost",), stranger)
            await self._told(write(sql, stranger), ("lost",), stranger)

    async def _told(self, asked: Awaitable[str], allowed: tuple[str, ...], run: SqlRun) -> None:
        self.replays += 1
        if (answer := await asked) not in allowed:
            self.wrong.append(f"{run} was told {answer}, not {' or '.join(allowed)}")

    # ── Maintenance ──

    async def _maintain(self) -> None:
        if self.random.random() < 0.5:
            await (await self._sql()).rescue()
        await super()._maintain()
