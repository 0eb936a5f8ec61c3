"""A client that uses only a connection and the SQL functions."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import asyncpg

LEASE = timedelta(seconds=30)


class SqlRun(NamedTuple):
    """What names a run: a claim gives it to the worker."""

    id: str
    version: int
    worker: str


class SqlClient:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, url: str, *, virtual: bool = False, **settings: str) -> "SqlClient":
        """Return a connected client. `virtual`: it uses the test's clock (see TEST_CLOCK)."""
        if virtual:
            settings["search_path"] = "testclock, pg_catalog, public"
        return cls(await asyncpg.connect(url, server_settings=settings))

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, topic: str | None = "mail", payload: Any = None, **options: Any) -> str:
        """Enqueue a job and return its id. The SQL function names the options; None gives one its default."""
        given = {"topic": topic, **options}
        if payload is not None:
            given["payload"] = payload if isinstance(payload, str) else json.dumps(payload)
        return str(await self._call("enqueue_job", given))

    async def claim_rows(self, worker: str, *topics: str, **wishes: Any) -> Sequence[asyncpg.Record]:
        given = {"worker": worker, "topics": list(topics or ("mail",)), **wishes}
        named, values = _named(given)
        return await self.connection.fetch(f"SELECT * FROM claim_job_batch({named})", *values)

    async def claim(self, worker: str = "w1", *topics: str, **wishes: Any) -> list[SqlRun]:
        return [
            SqlRun(str(row["id"]), row["version"], worker) for row in await self.claim_rows(worker, *topics, **wishes)
        ]

    async def claimed(self, worker: str = "w1", topic: str = "mail", **options: Any) -> SqlRun:
        """Return the run of a new job that `worker` has claimed."""
        job_id = await self.enqueue(topic, **options)
        [run] = await self.claim(worker, topic, n=1)
        assert run.id == job_id
        return run

    async def heartbeat(self, run: SqlRun, lease: timedelta = LEASE) -> str:
        return str(await self._call("heartbeat_job", run._asdict() | {"lease": lease}))

    async def complete(self, run: SqlRun, result: Any = None) -> str:
        given = {} if result is None else {"result": result if isinstance(result, str) else json.dumps(result)}
        return str(await self._call("complete_job", run._asdict() | given))

    async def fail(self, run: SqlRun, error: str | None = "boom", **wishes: Any) -> str:
        return str(await self._call("fail_job", run._asdict() | {"error": error} | wishes))

    async def release(self, run: SqlRun, **wishes: Any) -> str:
        return str(await self._call("release_job", run._asdict() | wishes))

    async def rescue(self, **wishes: Any) -> int:
        count: int = await self._call("rescue_jobs", {"by": "m1", "grace": timedelta(0)} | wishes)
        return count

    async def _call(self, function: str, given: dict[str, Any]) -> Any:
        named, values = _named(given)
        return await self.connection.fetchval(f"SELECT {function}({named})", *values)


def _named(given: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return the arguments as SQL text, by name as in the documentation, and their values."""
    return ", ".join(f"{name} => ${n}" for n, name in enumerate(given, 1)), list(given.values())
