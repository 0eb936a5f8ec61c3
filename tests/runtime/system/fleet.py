"""Start real workers for tests (`rowlock worker app:jobs` in their own processes), and check what they leave behind."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from rowlock import Job, Jobs
from tests.closing import connected
from tests.guard import processes, running
from tests.waiting import PATIENCE, until

APP = Path(__file__).with_name("app.py")
MARK = "ROWLOCK_SYSTEM_TEST"  # in the environment of every process that a test starts
SLACK = 15.0  # seconds by which a busy machine may be late; waits for jobs and answers take up to PATIENCE
SHORT = ("--lease", "2s", "--poll", "200ms", "--grace", "1s")


class Noted(NamedTuple):
    """A line that a handler wrote: see app.py."""

    word: str
    id: str
    version: int
    pid: int


class WorkerProcess:
    """A `rowlock worker`: its supervisor process and its output."""

    def __init__(self, folder: Path, options: Sequence[str], env: dict[str, str], app: str) -> None:
        self._output = folder / f"worker-{uuid4().hex[:6]}.log"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rowlock", "worker", app, *options],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def children(self) -> set[int]:
        return {pid for pid, parent, state in processes() if parent == self.pid and state != "Z"}

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait until the worker has ended. Return its exit code."""
        await until(lambda: self.process.poll() is not None, what="the worker to end")
        return self.process.returncode

    async def stopped(self) -> int:
        """Send SIGTERM and wait until the worker has ended. Return its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()


class Fleet:
    """Workers on one database."""

    def __init__(self, url: str, folder: Path, jobs: Jobs) -> None:
        self.url = url
        self.folder = folder
        self.jobs = jobs
        self.workers: list[WorkerProcess] = []
        self._mark = uuid4().hex
        (folder / "runs").mkdir()
        shutil.copy(APP, folder / "app.py")

    # ── Processes ──

    def launch(self, *options: str, app: str = "app:jobs", **env: str) -> WorkerProcess:
        """Start a worker without waiting for it. Return the worker."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("ROWLOCK_", "COV_"))}
        environ |= {"ROWLOCK_URL": self.url, MARK: self._mark, **env}
        worker = WorkerProcess(self.folder, options, environ, app)
        self.workers.append(worker)
        return worker

    async def start(self, *options: str, processes: int = 1, app: str = "app:jobs", **env: str) -> WorkerProcess:
        """Start a worker, and wait until each of its processes has reported to the database. Return the worker."""
        worker = self.launch(*(options or SHORT), "--processes", str(processes), app=app, **env)
        await self.working(worker, processes)
        return worker

    async def working(self, worker: WorkerProcess, count: int = 1, *, without: Set[int] = frozenset()) -> set[int]:
        """Wait until `count` processes of the worker work. Return their pids. `without`: pids that don't count."""

        async def found() -> set[int] | None:
            assert worker.process.poll() is None, "the worker has ended"
            known = {info.pid for info in await self.jobs.workers.list()}
            at_work = (worker.children() & known) - without
            return at_work if len(at_work) >= count else None

        pids: set[int] = await self.until(found, what=f"{count} processes to work")
        return pids

    def marked(self) -> set[int]:
        """Return the pids of all processes that descend from a process that this fleet has started."""
        if Path("/proc/self/environ").exists():
            found = set()
            wanted = f"{MARK}={self._mark}".encode()
            for environ in Path("/proc").glob("[0-9]*/environ"):
                with suppress(OSError):
                    if wanted in environ.read_bytes().split(b"\0"):
                        found.add(int(environ.parent.name))
            return running(found)
        said = subprocess.check_output(["ps", "-axEww", "-o", "pid=,command="], text=True)
        return running({int(line.split()[0]) for line in said.splitlines() if f"{MARK}={self._mark}" in line})

    async def nobody_left(self) -> None:
        await self.until(lambda: not self.marked(), what="every process to end")

    def kill_all(self) -> set[int]:
        """Kill the processes that still run. Return their pids."""
        killed: set[int] = set()
        while left := self.marked():
            killed |= left
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for worker in self.workers:
            worker.process.wait()
        return killed

    async def healthy(self, port: int, status: int = 200) -> None:
        """Wait until --health-port answers with this status."""

        async def asked() -> bool:
            return await health(port) == status

        await self.until(asked, what=f"the answer {status}")

    # ── Jobs ──

    async def enqueue(self, topic: str, payload: dict[str, Any] | None = None, **options: Any) -> str:
        return (await self.jobs.enqueue(topic, payload, **options)).id

    async def enqueue_many(self, count: int, topic: str, payload: dict[str, Any] | None = None) -> set[str]:
        ids: set[str] = set()
        while len(ids) < count:
            drafts = [(topic, payload or {})] * min(1000, count - len(ids))
            ids |= {one.id for one in await self.jobs.enqueue_many(drafts)}
        return ids

    async def ended(self, *ids: str) -> list[Job]:
        """Wait until all these jobs have ended. Return them."""

        async def found() -> list[Job] | None:
            jobs = [await self.jobs.get(one) for one in ids]
            return None if any(job.is_live for job in jobs) else jobs

        ended: list[Job] = await self.until(found, what="jobs to end")
        return ended

    async def live(self) -> int:
        """Return the number of jobs that have not ended."""
        [(count,)] = await self.fetch(
            "SELECT count(*) FROM _jobs WHERE status NOT IN ('failed', 'expired', 'cancelled')"
        )
        return int(count)

    async def drained(self) -> None:
        async def empty() -> bool:
            return not await self.live()

        await self.until(empty, what="the queue to be empty")

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        if self.url.startswith("sqlite"):
            with sqlite3.connect(self.url.removeprefix("sqlite:///")) as connection:
                rows = connection.execute(query).fetchall()
            connection.close()
            return rows
        async with connected(self.url) as pg:
            return [tuple(row) for row in await pg.fetch(query)]

    async def events(self, job_id: str) -> list[str]:
        return [event.event for event in await self.jobs.events(job_id)]

    # ── What handlers did ──

    def noted(self, word: str = "began") -> list[Noted]:
        found = []
        for file in (self.folder / "runs").iterdir():
            for line in file.read_text().splitlines():
                said, job_id, version = line.split()
                if said == word:
                    found.append(Noted(said, job_id, int(version), int(file.name)))
        return found

    def runs_of(self, job_id: str, word: str = "began") -> list[Noted]:
        return sorted((one for one in self.noted(word) if one.id == job_id), key=lambda one: one.version)

    async def begun(self, *ids: str, version: int = 1) -> None:
        """Wait until the handlers of these jobs have begun, in this version or a later one."""
        wanted = set(ids)
        await self.until(
            lambda: wanted <= {one.id for one in self.noted() if one.version >= version}, what="handlers to begin"
        )

    def executions(self) -> Counter[str]:
        return Counter(one.id for one in self.noted())

    # ── Waiting ──

    async def until(self, condition: Callable[[], Any], *, what: str, patience: float = PATIENCE) -> Any:
        try:
            return await until(condition, what, patience=patience, every=0.05)
        except AssertionError as error:
            said = "\n".join(f"--- worker {worker.pid}\n{worker.output}" for worker in self.workers)
            raise AssertionError(f"{error}\n{said}") from None


async def health(port: int) -> int:
    """Return the HTTP status of --health-port, or 0 while no process answers."""

    def ask() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
                assert json.load(response)["live"] is True
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    return await asyncio.to_thread(ask)


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Fleet]:
    """Yield a fleet. At the end, stop its workers: if the test has passed, a process that does not end is a failure."""
    async with Jobs(url) as jobs:
        fleet = Fleet(url, folder, jobs)
        try:
            yield fleet
            for worker in fleet.workers:
                if worker.process.poll() is None:
                    worker.signal(signal.SIGTERM)
            await fleet.nobody_left()
        finally:
            fleet.kill_all()
