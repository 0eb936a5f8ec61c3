"""A primary and a standby that follows it, on one machine, and a look at what a killed primary has left behind."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import asyncpg

from tests.closing import connected
from tests.guard import processes
from tests.servers import PostgresServer, ServerError, find_postgres
from tests.waiting import until

NEEDED = ("pg_basebackup", "pg_waldump")
NAME = "standby"  # the name by which the primary knows the standby
LSN = re.compile(r"[0-9A-F]+/[0-9A-F]+")
_COMMIT = re.compile(r"tx: +(\d+), lsn: ([0-9A-F]+/[0-9A-F]+).* desc: COMMIT")


def missing() -> str | None:
    """Return why there is no replication on this machine; None if there is."""
    folder = find_postgres()
    absent = [name for name in NEEDED if not (folder / name).exists()]
    return f"{folder} lacks {', '.join(absent)}" if absent else None


def position(lsn: str) -> int:
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


class Server(PostgresServer):
    """A PostgreSQL server that can become a standby of another one, and be promoted."""

    def follow(self, primary: "Server") -> None:
        """Start again as a standby of the primary, with a copy of its data. The port stays the same."""
        if self._guard is None:
            self._create()
        self._password = primary._password  # the copy has the primary's passwords
        shutil.rmtree(self._data)
        words = ["-d", f"{primary.url()}?application_name={NAME}", "-D", self._data, "-R", "-X", "stream", "-c", "fast"]
        argv = [str(word) for word in (self._bin / "pg_basebackup", *words, "--no-sync")]
        if self._running_guard("run", argv, self._env):
            raise ServerError(f"pg_basebackup failed:\n{self._log()}")
        with (self._data / "postgresql.auto.conf").open("a") as conf:
            conf.write("synchronous_standby_names = ''\n")  # once it is promoted, it has no standby yet
        self.start()

    async def promote(self) -> None:
        """Promote the standby. Return when it can be written to."""
        await self.execute("SELECT pg_promote(true, 60)")

    async def wait_for_standby(self, *, synchronous: bool) -> None:
        """Make every commit wait for the standby, or none."""
        names = f"'{NAME}'" if synchronous else "''"
        await self.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}", "SELECT pg_reload_conf()")
        wanted = "sync" if synchronous else "async"

        async def found() -> bool:
            return (NAME, "streaming", wanted) in await self._standbys()

        await until(found, what=f"a standby that is {wanted}")

    async def _standbys(self) -> set[tuple[str, str, str]]:
        rows = await self.fetch("SELECT application_name, state, sync_state FROM pg_stat_replication")
        return {(row[0], row[1], row[2]) for row in rows}

    async def position(self) -> str:
        """Return the position (LSN) of the end of its log."""
        [row] = await self.fetch("SELECT pg_current_wal_lsn()::text")
        return str(row[0])

    async def replayed(self, lsn: str) -> None:
        """Wait until the standby has replayed the log up to there."""
        query = f"SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= '{lsn}'"
        await until(lambda: self.fetch(query), what="the standby to follow")

    def freeze(self) -> None:
        """Freeze the server's processes, as if its host hung: connections stay open, unanswered. kill9() ends that."""
        postmaster = self.pid
        assert postmaster is not None
        os.kill(postmaster, signal.SIGSTOP)
        for pid in [pid for pid, parent, _ in processes() if parent == postmaster]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def demote(self) -> None:
        """Make the running server read-only, as it then reports to clients."""
        statements = ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        asyncio.run(self.execute(*statements))

    async def cut_off(self) -> None:
        """Freeze replication: nothing more reaches the standby, and neither server notices for a minute."""
        for (pid,) in await self.fetch("SELECT pid FROM pg_stat_replication"):
            os.kill(pid, signal.SIGSTOP)

    def came_from(self) -> str:
        """Return the position in the old primary's log at which this server was promoted."""
        history = max((self._data / "pg_wal").glob("*.history"))
        found = LSN.findall(history.read_text().splitlines()[-1])
        return str(found[0])

    def committed_since(self, lsn: str) -> dict[int, int]:
        """Return transactions, and the positions of their commits in the log. The server must be down."""
        timeline = max(file.name[:8] for file in (self._data / "pg_wal").glob("[0-9A-F]" * 24))
        words = ["-p", self._data / "pg_wal", "-t", str(int(timeline, 16)), "-r", "Transaction", "-s", lsn]
        said = subprocess.run(
            [str(word) for word in (self._bin / "pg_waldump", *words)], capture_output=True, text=True, check=False
        )  # pg_waldump fails at the end of the log, where there is no record
        found = {int(tx): position(at) for tx, at in _COMMIT.findall(said.stdout)}
        if not found:
            raise ServerError(f"pg_waldump found no commits:\n{said.stderr}")
        return found

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Start the server on another port, where no client finds it, to read its tables."""
        port, self.port = self.port, 0
        try:
            await asyncio.to_thread(self.start)
            yield
        finally:
            await asyncio.to_thread(self.kill9)
            self.port = port

    async def fetch(self, query: str) -> list[asyncpg.Record]:
        async with connected(self.url()) as connection:
            rows: list[asyncpg.Record] = await connection.fetch(query)
            return rows


class Pair:
    """A primary and its standby. `url` names both, and leads clients to the one that can be written to."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary = primary
        self.standby = standby
        login = primary.url().partition("@")[0]
        hosts = ",".join(f"{one.host}:{one.port}" for one in (primary, standby))
        self.url = f"{login}@{hosts}/postgres?target_session_attrs=read-write"

    async def fail_over(self, how: Callable[[Server], None] = Server.kill9) -> Server:
        """Kill the primary, and promote the standby. Return the dead server: `renew` makes it a standby again."""
        dead = self.primary
        await asyncio.to_thread(how, dead)
        await self.standby.promote()
        self.primary = self.standby
        return dead

    async def renew(self, dead: Server) -> None:
        await asyncio.to_thread(dead.follow, self.primary)
        self.standby = dead


@contextmanager
def paired() -> Iterator[Pair]:
    with Server(durable=True) as primary:
        standby = Server(durable=True)
        try:
            standby.follow(primary)
            yield Pair(primary, standby)
        finally:
            with suppress(ServerError):
                standby.close()
