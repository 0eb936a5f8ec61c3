"""Processes: runs handlers in child processes. They can be killed, are limited in memory, and may crash.

A child is a new interpreter, never a fork, so it shares no threads and connections with the worker. It imports the
application, runs one job at a time, and is used again. child.py is the program that it runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Protocol

from rowlock.core import codec
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, CutOff, Died, Failed, GaveUp, Outcome, Released, Snoozed, StepRetry, Waits
from rowlock.runtime import find_handler, memory
from rowlock.runtime.child_messages import (
    Answer,
    Away,
    Later,
    Load,
    Missing,
    Raised,
    Returned,
    Setup,
    Start,
    Stopped,
    Suspended,
    TooLate,
    Waiting,
)
from rowlock.runtime.process import Conversation, Process, ProcessLink
from rowlock.tasks import Task

TOO_LATE = Released("its lease ran out before it started")
_TRIES = 3  # children that may die before they have taken the job
_IDLE = 60.0  # seconds until an idle child is ended
_PATIENCE = 10.0  # seconds to wait for the end of a killed child; only the kernel can keep it longer
_GOODBYE = 0.5  # seconds that idle children have for the application's exit functions, when the worker closes


def refusal(task: Task[..., Any], app: str | None) -> str | None:
    """Return why this task can't run in a child process; None if it can."""
    module, qualname = find_handler.name_of(task.function)
    where = f"{task.topic} ({module}.{qualname}) can't run in a child process"
    if sys.platform == "win32":
        return f"{where}: process=True is not supported on Windows"
    if not sys.executable or getattr(sys, "frozen", False):
        return f"{where}: there is no Python interpreter to start"
    if app is not None:
        return None  # importing it makes the same tasks again, wherever their functions come from
    if "<lambda>" in qualname or "<locals>" in qualname:
        return f"{where}: a child can't import what is made inside a function; move it to the top level of a module"
    if module == find_handler.MAIN and find_handler.started_as() == (None, None):
        return f"{where}: a child can't import an interactive session or a package's __main__; move it to a module"
    return None


class Settles(Protocol):
    """A run that calls `when_settled` when its outcome is stored."""

    when_settled: Callable[[], None] | None


class Processes:
    """As many children as there are jobs at once; the caller limits their number. Belongs to an event loop.

    `app`: what a child imports to find its tasks, "module:attribute"; None: the modules of their functions. A child is
    replaced after `recycle_jobs` jobs, or when it holds more than `recycle_mib` MiB after one.
    """

    def __init__(self, *, app: str | None = None, recycle_jobs: int = 1000, recycle_mib: float = 1024.0) -> None:
        find_handler.refuse_while_loading()
        self._app = app
        self._recycle_jobs = recycle_jobs
        self._recycle_mib = recycle_mib
        self._idle: list[Process] = []  # the last one is used next, so that the first ones can age
        self._busy: set[Process] = set()
        self._reserved: set[Process] = set()  # have answered, and wait until the answer is settled
        self._burials: dict[Process, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._warming: asyncio.Task[None] | None = None
        self._kept = 0  # idle children that are never ended
        self._closed = False

    def warm_up(self, module: str) -> None:
        """Start a child now, and keep one from then on: the first job must not wait until an interpreter has imported
        the application. Returns at once. `module`: of the handler that is likely to be needed."""
        self._kept = 1
        self._warming = asyncio.get_running_loop().create_task(self._warm_up(Load(module)))

    async def _warm_up(self, load: Load) -> None:
        process = Process(self._lost)
        try:
            await process.start(self._setup(), load)
        except BaseException as error:
            if process.started:
                process.kill("the worker could not talk to it")
                self._begin_burial(process)
            if isinstance(error, OSError):
                return  # the first job tries again, and fails with the error
            raise
        self._rest(process)

    async def run(self, job: Job, task: Task[..., Any], link: ProcessLink, *, alone: Settles | None = None) -> Outcome:
        """Raise nothing but CancelledError; then the child has been killed. `alone`: the child gets no other job before
        this one is settled, because threads of its handler may kill the child after it has answered."""
        limit = self._half_of_memory if task.policy.memory is None else task.policy.memory
        handler, url = find_handler.name_of(task.function), find_handler.url_of(task._jobs)
        how = "was not needed any more"
        tries = 0
        if self._warming is not None:
            await asyncio.wait({self._warming})  # until it is started, not until it has loaded
        while tries < _TRIES and not self._closed:
            process = self._rested()
            if process is None:
                tries += 1
                process = Process(self._lost)
            start = Start(0, job, *handler, url, link.began, link.lease, link.renewed + link.lease)
            try:
                talk = await self._talk(process, start, link, limit)
            except OSError as error:
                return Failed(f"A child process can't be started: {error}")
            if talk.answer is not None:
                if alone is None or isinstance(talk.answer, TooLate):
                    self._keep(process, talk)
                else:
                    self._reserved.add(process)
                    alone.when_settled = partial(self._keep, process, talk)
                if isinstance(talk.answer, TooLate) and not link.lease_is_over:
                    continue  # it was renewed while the child started
                return _outcome(talk.answer)
            await self._bury(process)
            if talk.taken:
                return Died(_death_text(process, talk))
            how = _end_of(process)
        return Failed(f"A child process can't be started: the last of {_TRIES} {how}. Its stderr may say more")

    async def close(self) -> None:
        """Kill busy children, end idle ones, and reap all."""
        self._closed = True
        if self._warming is not None:
            await asyncio.wait({self._warming})
        if self._timer is not None:
            self._timer.cancel()
        for process in self._busy:
            process.kill("the worker was closed")
        for process in (*self._idle, *self._busy, *self._reserved):
            self._begin_burial(process)
        self._idle.clear()
        if self._burials:
            await asyncio.wait(self._burials.values(), timeout=_GOODBYE)
        for process in (*self._burials,):
            process.kill("the worker was closed")
            await self._bury(process)

    async def _talk(self, process: Process, start: Start, link: ProcessLink, limit: float) -> Conversation:
        self._busy.add(process)
        try:
            if not process.started:
                await process.start(self._setup())
            return await process.run(start, link, limit)
        except BaseException:
            if process.started:
                process.kill("the run was cancelled")
                await self._bury(process)
            raise
        finally:
            self._busy.discard(process)

    def _setup(self) -> Setup:
        path, name = find_handler.started_as()
        return Setup(
            [os.fsencode(place) for place in sys.path],
            [os.fsencode(word) for word in sys.argv],
            self._app,
            None if path is None else os.fsencode(path),
            name,
        )

    @cached_property
    def _half_of_memory(self) -> float:
        return memory.available() / 2

    # ── Between jobs ──

    def _rested(self) -> Process | None:
        """Return an idle child, if there is one."""
        while self._idle:
            process = self._idle.pop()
            if not process.is_dead():
                return process
            self._begin_burial(process)
        return None

    def _keep(self, process: Process, talk: Conversation) -> None:
        self._reserved.discard(process)
        spent = process.jobs >= self._recycle_jobs or process.used > self._recycle_mib
        if spent or self._closed or process.is_lost or isinstance(talk.answer, Missing):
            self._begin_burial(process)
            return
        self._rest(process)

    def _rest(self, process: Process) -> None:
        process.idle_since = time.monotonic()
        self._idle.append(process)
        if self._timer is None:
            self._set_timer(_IDLE)

    def _set_timer(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._end_idle)

    def _end_idle(self) -> None:
        """End children that were idle for long. They stand in the order in which they became idle."""
        self._timer = None
        now = time.monotonic()
        while len(self._idle) > self._kept and now - self._idle[0].idle_since >= _IDLE:
            self._begin_burial(self._idle.pop(0))
        if len(self._idle) > self._kept:
            self._set_timer(self._idle[0].idle_since + _IDLE - now)

    # ── The end ──

    def _lost(self, process: Process) -> None:
        """A child died while it was idle: no job is affected."""
        if process in self._idle:
            self._idle.remove(process)
            self._begin_burial(process)

    def _begin_burial(self, process: Process) -> asyncio.Task[None]:
        """Return a task that reaps the child. An idle child has time for its exit functions."""
        process.dismiss()
        if process not in self._burials:
            self._burials[process] = asyncio.get_running_loop().create_task(self._burial(process))
        return self._burials[process]

    async def _burial(self, process: Process) -> None:
        try:
            await process.reap()
        finally:
            del self._burials[process]

    async def _bury(self, process: Process) -> None:
        await asyncio.wait({self._begin_burial(process)}, timeout=_PATIENCE)


def _outcome(answer: Answer) -> Outcome:
    match answer:
        case Returned(result):
            return Completed(None if result is None else codec.decode(result))
        case Raised(error, final):
            return Failed(error, final=final)
        case Away(error):
            return CutOff(error)
        case Suspended(delay, error, step):
            return StepRetry(delay, error, step)
        case Waiting(waits_for, seconds, seen, undoes):
            return Waits(waits_for, seconds, seen, undoes)
        case Later(until):
            return Snoozed(until)
        case Stopped(reason):
            return GaveUp(reason)
        case Missing(error):
            return Failed(error)
        case TooLate():
            return TOO_LATE


def _end_of(process: Process) -> str:
    if process.reason is not None:
        return f"was killed: {process.reason}"
    return "does not die" if process.death is None else process.death.how


def _death_text(process: Process, talk: Conversation) -> str:
    """Return the error text for a job whose child process died."""
    death = process.death
    peak = (death and death.peak) or talk.peak
    text = f"The child process that ran the job {_end_of(process)}. It ran for {talk.ran:.3g} s"
    text += f"; its peak memory was {peak:.0f} MiB." if peak else "."
    if death and death.code == -signal.SIGKILL and process.reason is None:
        text += " rowlock did not do that. It may have been the kernel, out of memory: see its log (dmesg)."
    if death and death.stack:
        text += f"\n\n{death.stack}"
    return codec.clean_text(text)
