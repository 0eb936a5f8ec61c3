"""A worker process. Only the supervisor starts it: `python -m rowlock.cli.service OPTIONS`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Struct

from rowlock import logs
from rowlock.cli.app import load_jobs
from rowlock.cli.groups import tell
from rowlock.cli.startup import when_it_is_there
from rowlock.errors import RowlockError
from rowlock.jobs import Jobs
from rowlock.runtime.running_board import RunningBoard
from rowlock.runtime.supervisor import LEFT_JOBS, MISUSED, REFUSED, REPLACE, Ready
from rowlock.runtime.worker import Worker

log = logging.getLogger("rowlock")

_STUCK = 0.3  # seconds: an event loop that does not answer for so long is stuck
_CLOSE = 0.3  # seconds to close the connections


class Options(Struct, frozen=True, kw_only=True):
    app: str
    settings: dict[str, Any]  # what was given, of Jobs.make_worker
    loop: str  # auto, asyncio or uvloop
    verbose: bool
    restarted: bool
    control: int
    status: int
    board: int


class Service:
    """Any thread may call `stop`. If a handler blocks the event loop, a watchdog thread gives back the jobs and ends
    the process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = new_loop(options.loop)
        self._running_board = RunningBoard.inherited(options.board)
        self._stopping = threading.Event()
        self._asked = asyncio.Event()
        self._worker: Worker | None = None
        self._exit_code = 0

    def run(self) -> int:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the supervisor decides
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        threading.Thread(target=self._obey, name="rowlock-control", daemon=True).start()
        try:
            jobs = load_jobs(self._options.app)
            worker = jobs.make_worker(
                **self._options.settings, app=self._options.app, board=self._running_board, replace=self._replace
            )
        except (RowlockError, click.ClickException) as error:
            return _refuse(error)
        calm_collector()
        main = self._loop.create_task(self._serve(jobs, worker))
        while True:
            try:
                return self._loop.run_until_complete(main)
            except (SystemExit, KeyboardInterrupt) as error:
                if main.done():
                    raise
                # A handler, or a task of a handler, raised it. asyncio raises it again here.
                log.error("a handler raised %r in the event loop: ignored", error)
            except asyncio.CancelledError:
                log.error("a handler has cancelled the tasks of its worker: this process ends")
                return 1

    async def _serve(self, jobs: Jobs, worker: Worker) -> int:
        try:
            await self._start(jobs, worker)
        except RowlockError as error:
            return _refuse(error)
        self._worker = worker
        ready = Ready(worker.name, jobs.settings.url, worker.settings.grace)
        os.write(self._options.status, msgspec.json.encode(ready) + b"\n")
        log.info(
            "worker %s: %d slots for %s; %r",
            worker.name,
            worker.settings.concurrency,
            ", ".join(map(str, sorted(worker.slots.lanes))),
            jobs,
        )
        await self._asked.wait()
        await worker.stop()
        with suppress(TimeoutError):  # all jobs are settled, or can't be: don't wait for a database that is away
            async with asyncio.timeout(_CLOSE):
                await jobs.close()
        log.info("worker %s has stopped", worker.name)
        return LEFT_JOBS if worker.has_left_jobs else self._exit_code

    async def _start(self, jobs: Jobs, worker: Worker) -> None:
        proven = self._options.restarted
        # An earlier worker process has used the database: a file that is missing now must not be created again.
        jobs._stores.creates = not proven

        def waits() -> None:
            if proven:  # during an outage the process counts as alive; one that has never worked is not ready yet
                self._running_board.tick(0, 0)

        await when_it_is_there(lambda: jobs._run(worker), proven=proven, on_failure=waits)

    # ── The end ──

    def stop(self) -> None:
        """Stop the worker. Safe to call from any thread, more than once."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._watch, name="rowlock-watchdog", daemon=True).start()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._asked.set)

    def _obey(self) -> None:
        """Stop when the supervisor says so, or when it has died."""
        with suppress(OSError):
            os.read(self._options.control, 1)
        self.stop()

    def _watch(self) -> None:
        if self._worker is None:
            os._exit(self._exit_code)  # it has claimed nothing yet
        time.sleep(self._worker.settings.grace)
        turned = threading.Event()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(turned.set)
        if not turned.wait(_STUCK):
            log.error("worker %s: its event loop is blocked; its jobs are given back", self._worker.name)
            try:
                self._worker.evacuate(0.5)
            except Exception:
                os._exit(LEFT_JOBS)
            os._exit(self._exit_code)

    def _replace(self, *, at_once: bool) -> None:
        self._exit_code = REPLACE
        if at_once:
            os._exit(REPLACE)
        self.stop()


def calm_collector() -> None:
    """Run the garbage collector less often. By default it runs after every 700 new objects, which takes a tenth of a
    busy worker's time. Objects that are loaded by now are not collected any more."""
    young, *older = gc.get_threshold()
    if 0 < young <= 2000:  # Python's default; else the application has set it
        gc.set_threshold(10_000, *older)
    gc.freeze()


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop if it is installed, which saves a seventh of the worker's time per job."""
    if kind != "asyncio":
        try:
            import uvloop

            return uvloop.new_event_loop()
        except ImportError:
            if kind == "uvloop":
                raise click.ClickException("--loop uvloop needs uvloop: pip install 'rowlock[fast]'") from None
    return asyncio.new_event_loop()


def _refuse(error: RowlockError | click.ClickException) -> int:
    tell(error)
    return MISUSED if isinstance(error, click.ClickException) else REFUSED


def main() -> None:
    options = msgspec.json.decode(sys.argv[1], type=Options)
    logs.set_up(verbose=options.verbose)
    try:
        service = Service(options)
    except click.ClickException as error:
        os._exit(_refuse(error))
    code = service.run()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)  # handler threads that can't be stopped must not keep the process alive


if __name__ == "__main__":
    main()
