"""Supervisor: starts worker processes, replaces those that die, and has their jobs rescued at once.

It is small on purpose: it loads no application, no driver and no event loop, so no job can break it. After a death, a
short-lived process (rescue.py) uses the database.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from rowlock.runtime.health import Health
from rowlock.runtime.running_board import RunningBoard

log = logging.getLogger("rowlock")

REFUSED = 78  # exit code of a child that can't start and has logged why; another try won't help
MISUSED = 64  # exit code of a child that was called in a wrong way
REPLACE = 75  # exit code of a child that asks to be replaced
LEFT_JOBS = 76  # exit code of a child that stopped as it should, but could not give back everything in time
STOP = b"s"  # sent to a child

_LONGEST_DELAY = 30.0
_STEADY = 60.0  # seconds after which a child counts as working
_LATE = 0.7  # seconds that a child gets beyond the grace …
_GONE = 1.0  # … and the supervisor itself
_ECHO = 0.2  # seconds in which the same signal does not count twice: it may be sent to the process and to its group
_NO_ROOM = 5.0  # seconds between two tries to start a process while the system has no resources for it
_RESCUE = 3.0  # seconds, at most, that the supervisor waits for rescues at its end; they go on without it
_SPARED_VERSIONS = 10  # up to this version, a job in a child process is not accused when its worker dies
_PATIENCE = 60.0  # seconds after which a rescue gives up: then the leases run out …
_LAST_PATIENCE = 5.0  # … and the same while the supervisor ends: it must not be left behind for long


class Ready(Struct, frozen=True):
    """The message of a child that works. The URL is for rescues; it may hold a password, and is never logged."""

    name: str
    url: str
    grace: float


class Rescue(Struct, frozen=True):
    """For rescue.py, on its stdin. `accused`: runs that may be the cause of the death; they are charged. `apart`: runs
    in child processes, which are not. `blameless`: the worker was told to end, so no job is charged. `seconds`: after
    which it gives up."""

    url: str
    worker: str
    accused: list[tuple[str, int]]
    apart: list[tuple[str, int]]
    detail: str
    blameless: bool
    seconds: float


class Child:
    """A worker process, and its connections: a pipe by which it receives `STOP` (or notices the supervisor's end), a
    pipe by which it sends `Ready`, and the board with its runs."""

    def __init__(self, command: Callable[[int, int, int, bool], Sequence[str]], restarted: bool) -> None:
        self.running_board, board = RunningBoard.shared()
        hears, self._control = os.pipe()
        self.status, says = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
                command(hears, says, board, restarted), pass_fds=(hears, says, board)
            )
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in (hears, says, board):
                os.close(descriptor)
        self.began = time.monotonic()
        self.ready: Ready | None = None
        self.killed = False  # by the supervisor
        self._said = b""

    def read_status(self) -> None:
        self._said += os.read(self.status, 65_536)
        if self.ready is None and self._said.endswith(b"\n"):
            self.ready = msgspec.json.decode(self._said, type=Ready)

    def tell_to_stop(self) -> None:
        with suppress(BrokenPipeError):  # it has ended already
            os.write(self._control, STOP)

    def kill(self) -> None:
        self.killed = True
        # Not Popen.kill(), which may reap it: then its exit code and memory would be unknown.
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)

    def reap(self) -> str | None:
        """Return how it ended, as text; None if it lives."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if not pid:
            return None
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        self._close()
        peak = usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}, peak memory {peak:.0f} MiB"

    def _close(self) -> None:
        for descriptor in (self._control, self.status):
            os.close(descriptor)


class Supervisor:
    """`command`: returns the command of a child. It gets the file descriptors (control, status, board), and whether a
    child has worked before. If so, the new child takes a missing database for an outage, and waits."""

    def __init__(
        self,
        command: Callable[[int, int, int, bool], Sequence[str]],
        *,
        processes: int,
        grace: float,
        health: Health | None = None,
    ) -> None:
        self._command = command
        self._processes = processes
        self._grace = grace
        self._health = health
        self._children: list[Child] = []
        self._rescues: list[subprocess.Popen[bytes]] = []
        self._starts: list[float] = []  # when to start the next ones
        self._failures = 0
        self._proven = False  # a child has worked
        self._signals: list[int] = []  # not handled yet
        self._told: tuple[int, float] | None = None  # the signal that asked for the stop, and when it came
        self._deadline: float | None = None  # when children that were told to stop must have ended …
        self._end: float | None = None  # … and the supervisor
        self._exit_code = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run until a signal ends it. Return the exit code."""
        wakes, self._alarm = socket.socketpair()
        for end in (wakes, self._alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Only noted: in the middle of a start, a stop would miss the child that is being started.
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the select
        self._selector.register(wakes, selectors.EVENT_READ)
        self._start()  # one first: if it can't start, the others don't try
        try:
            while self._children or self._starts:
                self._wait(wakes)
                self._heed_signals()
                self._reap()
                self._start_due()
                self._enforce()
                if self._health is not None:
                    self._health.update([child.running_board.ticked for child in self._children], self._processes)
        finally:
            for child in self._children:
                child.kill()
            self._finish_rescues()
            if self._health is not None:
                self._health.close()
        return self._exit_code

    def _heed_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._told is None:
                self._told = (number, time.monotonic())
                log.info("%s: stopping, running jobs get %g s", signal.Signals(number).name, self._grace)
                self._stop()
            elif number != self._told[0] or time.monotonic() - self._told[1] > _ECHO:  # at once
                for child in self._children:
                    child.kill()

    def _stop(self) -> None:
        graces = [child.ready.grace for child in self._children if child.ready is not None]
        grace = time.monotonic() + max(graces, default=self._grace)
        self._deadline, self._end = grace + _LATE, grace + _GONE
        self._starts.clear()
        for child in self._children:
            child.tell_to_stop()

    def _wait(self, wakes: socket.socket) -> None:
        for key, _ in self._selector.select(timeout=self._next_event()):
            if key.fileobj is wakes:
                wakes.recv(4096)
            else:
                self._hear(key.data)

    def _next_event(self) -> float:
        times = [*self._starts, *([] if self._deadline is None else [self._deadline])]
        soon = min((at - time.monotonic() for at in times), default=60.0)
        return max(0.0, min(soon, 60.0 if self._health is None else 1.0))

    def _hear(self, child: Child) -> None:
        child.read_status()
        self._selector.unregister(child.status)
        self._proven = self._proven or child.ready is not None
        if child.ready is not None and self._deadline is None:
            missing = self._processes - len(self._children) - len(self._starts)
            self._starts += [0.0] * missing

    # ── Births ──

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [at for at in self._starts if at <= now]
        self._starts = [at for at in self._starts if at > now]
        for _ in due:
            self._start()

    def _start(self) -> None:
        try:
            child = Child(self._command, self._proven)
        except OSError as error:  # no memory, too many processes, …: the running children go on
            if not self._proven:
                raise
            log.error("a process can't be started: %s; trying again%s", error, _in(_NO_ROOM))
            self._starts.append(time.monotonic() + _NO_ROOM)
            return
        self._children.append(child)
        self._selector.register(child.status, selectors.EVENT_READ, child)

    # ── Deaths ──

    def _reap(self) -> None:
        for child in list(self._children):
            if (how := child.reap()) is not None:
                self._children.remove(child)
                self._bury(child, how)
        self._rescues = [rescue for rescue in self._rescues if rescue.poll() is None]

    def _bury(self, child: Child, how: str) -> None:
        code = child.process.returncode
        if child.status in self._selector.get_map():
            self._selector.unregister(child.status)
        if code in (REFUSED, MISUSED) and not self._proven and self._deadline is None:
            self._exit_code = 1 if code == REFUSED else 2
            self._stop()
            return
        # A handler may have called os._exit(0).
        if child.ready is not None and (code not in (0, REPLACE) or child.running_board.running()):
            self._rescue(child, child.ready, how, blameless=child.killed or code == LEFT_JOBS)
        if self._deadline is not None:
            return
        lived = time.monotonic() - child.began
        as_wanted = code in (REPLACE, LEFT_JOBS)
        self._failures = 0 if lived >= _STEADY or as_wanted else self._failures + 1
        delay = 0.0 if self._failures <= 1 else min(_LONGEST_DELAY, 0.5 * 2.0 ** (self._failures - 2))
        level = logging.INFO if as_wanted else logging.ERROR
        who = child.ready.name if child.ready else f"process {child.process.pid}"
        log.log(level, "worker %s ended after %.0f s: %s; starting another%s", who, lived, how, _in(delay))
        self._starts.append(time.monotonic() + delay)

    def _rescue(self, child: Child, dead: Ready, how: str, *, blameless: bool) -> None:
        seconds = _PATIENCE if self._end is None else _LAST_PATIENCE
        order = msgspec.json.encode(Rescue(dead.url, dead.name, *accuse(child.running_board), how, blameless, seconds))
        try:
            rescue = subprocess.Popen([sys.executable, "-m", "rowlock.runtime.rescue"], stdin=subprocess.PIPE)
        except OSError as error:
            log.error("the jobs of worker %s wait for their leases to run out: %s", dead.name, error)
            return
        assert rescue.stdin is not None  # noqa: S101 - narrows the type
        with suppress(BrokenPipeError):  # it has ended, and logged why
            rescue.stdin.write(order)
            rescue.stdin.close()
        self._rescues.append(rescue)

    def _enforce(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            for child in self._children:
                log.error("process %d did not stop in time: killed", child.process.pid)
                child.kill()
            self._deadline = float("inf")

    def _finish_rescues(self) -> None:
        """Wait for rescues, but not beyond the end of the grace: the service manager expects this process to end
        then."""
        end = min(time.monotonic() + _RESCUE, float("inf") if self._end is None else self._end)
        for rescue in self._rescues:
            with suppress(subprocess.TimeoutExpired):
                rescue.wait(max(0.0, end - time.monotonic()))


def accuse(board: RunningBoard) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the runs that may be the cause of a worker's death, and the runs in child processes, which are spared.

    Runs in child processes are accused, too, if there was no other run: a child may kill its parent. So is a run with a
    high version: a job that kills its parent every time, beside other runs, must come to an end."""
    running, apart = board.running(), set(board.apart())
    inside = [run for run in running if run not in apart]
    spared = {(job_id, version) for job_id, version in apart if inside and version <= _SPARED_VERSIONS}
    return [run for run in running if run not in spared], sorted(spared)


def _in(delay: float) -> str:
    return f" in {delay:g} s" if delay else ""
