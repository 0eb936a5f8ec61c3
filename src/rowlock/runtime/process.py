"""Process: one child process, as the worker sees it. Everything here runs in the thread of the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

from msgspec import Struct

from rowlock.context import Interruption, Link
from rowlock.runtime import child_messages as messages
from rowlock.runtime import memory
from rowlock.runtime.periodic import is_set_within

START_TIMEOUT = 60.0  # seconds until a child must have taken its job; usually it takes less than one
FAREWELL = 5.0  # seconds that a dismissed child has to end by itself
_MAX_STACK = 16 << 10  # bytes of a crashed child's stack
_OURS = str(Path(__file__).parent)


class ProcessLink(Link, Protocol):
    """A Link that calls back when the run is to end, because a child process can't ask it."""

    renewed: float  # when the last renewal of the lease was sent, by time.monotonic()

    @property
    def lease_is_over(self) -> bool: ...

    def watch(self, callback: Callable[[Interruption], None]) -> None:
        """Call `callback` in the thread of the event loop when `interruption` is set or changes; at once, if it is set.
        A second call replaces the first."""
        ...


class Death(Struct, frozen=True):
    """The end of a child. `code`: as in subprocess, negative for a signal; None: other code in this process has reaped
    it."""

    code: int | None
    peak: float | None  # MiB
    stack: str  # of a crash, as faulthandler saw it

    @property
    def how(self) -> str:
        if self.code is None:
            return "has ended; other code in this process has waited for it, so its exit code is unknown"
        if self.code == messages.ORPHANED:
            return "had lost its connection to the worker and ended"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            return f"was killed by signal {-self.code}"
        return f"was killed by {name} (signal {-self.code})"


class Conversation:
    """One job that was given to a child. `answer` None: the child died, or was killed, before it gave one."""

    def __init__(self, number: int, link: ProcessLink) -> None:
        self.number = number
        self.link = link
        self.taken = False
        self.answer: messages.Answer | None = None
        self.began = time.monotonic()
        self.ran = 0.0
        self.peak = 0.0  # MiB, the highest that was seen
        self.over = asyncio.Event()

    def end(self, answer: messages.Answer | None = None) -> None:
        if not self.over.is_set():
            self.answer = answer
            self.ran = time.monotonic() - self.began
            self.over.set()


class Process(asyncio.Protocol):
    """It is started, gets jobs one after the other, and is reaped. `lost`: called when it ends while it has no job."""

    def __init__(self, lost: Callable[[Process], None]) -> None:
        self.jobs = 0
        self.idle_since = 0.0
        self.used = 0.0  # MiB, at the last look
        self.started = False
        self.reason: str | None = None  # why the worker has killed it
        self.death: Death | None = None
        self._lost = lost
        self._inbox: messages.Inbox[messages.FromChild] = messages.Inbox(messages.FromChild)
        self._talk: Conversation | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._sock: socket.socket
        self._popen: subprocess.Popen[bytes]
        self._stack: int  # where faulthandler writes
        self._floor: float

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def start(self, setup: messages.Setup, load: messages.Load | None = None) -> None:
        """Raise OSError if it can't be started. `load`: what it imports before its first job comes."""
        self._sock = self._spawn()
        self.started = True
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self._sock)
        except BaseException:
            self._sock.close()
            raise
        self._tell(setup)
        if load is not None:
            self._tell(load)

    def _spawn(self) -> socket.socket:
        # The kernel lets a child begin with the peak of its parent: only a higher peak is its own.
        self._floor = memory.own_peak()
        ours, theirs = socket.socketpair()
        self._stack, stack = os.pipe()
        os.set_blocking(self._stack, False)
        os.set_blocking(stack, False)  # a crash with a stack that is larger than the pipe must not wait for a reader
        try:
            ours.setblocking(False)
            argv = [sys.executable, "-P", *_interpreter_options(), "-m", "rowlock.runtime.child"]
            argv += map(str, (theirs.fileno(), stack, os.getpid()))
            self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter
                argv,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), stack),
                process_group=0,  # to be killed with everything it has started, and left alone by Ctrl-C
            )
        except BaseException:
            ours.close()
            os.close(self._stack)
            raise
        finally:
            theirs.close()
            os.close(stack)
        return ours

    # ── Talk ──

    async def run(self, start: messages.Start, link: ProcessLink, limit: float) -> Conversation:
        """Return when there is an answer, or never will be one: then reap it. `limit`: MiB."""
        self.jobs += 1
        start.number = self.jobs
        self._talk = talk = Conversation(self.jobs, link)
        talk.peak = self.used
        try:
            if self.is_lost:
                talk.end()
            self._tell(start)
            link.watch(lambda why: self._interrupt(talk, why))
            while not talk.over.is_set():
                await is_set_within(talk.over, memory.LOOK_EVERY)
                await self._look(talk, limit)
            return talk
        finally:
            self._talk = None

    async def _look(self, talk: Conversation, limit: float) -> None:
        """Check its memory, and whether it lives: its own children may hold the socket open after its death."""
        used = await memory.resident(self.pid)
        if used is not None:
            self.used = used
            talk.peak = max(talk.peak, used)
        if talk.over.is_set():
            return
        if self.is_dead():
            asyncio.get_running_loop().call_later(memory.LOOK_EVERY, talk.end)  # its answer may be on the way
        elif used is not None and used > limit:
            self.kill(f"it used {used:.0f} MiB, more than its limit of {limit:g} MiB (memory= of the task)")
            talk.end()
        elif not talk.taken and time.monotonic() - talk.began > START_TIMEOUT:
            self.kill(f"it did not start within {START_TIMEOUT:g} s")
            talk.end()

    def _interrupt(self, talk: Conversation, why: Interruption) -> None:
        if self._talk is talk:
            self._tell(messages.Interrupt(why))

    def _tell(self, message: messages.ToChild) -> None:
        if self._transport is not None and not self.is_lost:
            self._transport.write(messages.frame(message))

    @property
    def is_lost(self) -> bool:
        """True if the connection is closed: it is dead, or will soon be."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's has no such base class

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._inbox.feed(data):
                self._hear(message)
        except ValueError as error:
            self.kill(f"something has written into the socket of its worker: {error}")
            self._gone()

    def connection_lost(self, error: Exception | None) -> None:
        # If a write has failed, asyncio has not read the child's earlier messages. It may have taken a job.
        with suppress(OSError):
            while data := self._sock.recv(1 << 16):
                self.data_received(data)
        self._gone()

    def _gone(self) -> None:
        if self._talk is not None:
            self._talk.end()
        else:
            self._lost(self)

    def _hear(self, message: messages.FromChild) -> None:
        talk = self._talk
        if talk is None:
            return  # from a thread that the handler has left behind
        if isinstance(message, messages.Taken):
            talk.taken = True
            talk.began = time.monotonic()
        elif isinstance(message, messages.FromHandler):
            if message.number == talk.number:
                _pass_on(message, talk.link)
        else:
            talk.end(message)

    # ── End ──

    def is_dead(self) -> bool:
        """True if it has ended. It is reaped only here, in the thread that also kills: so no signal reaches a process
        that got the same pid later."""
        if self.death is None:
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._ended(None, 0.0)
            else:
                if pid:
                    self._ended(os.waitstatus_to_exitcode(status), memory.highest(usage.ru_maxrss))
        return self.death is not None

    def _ended(self, code: int | None, peak: float) -> None:
        self.death = Death(code, peak if peak > self._floor else None, self._last_stack())
        self._popen.returncode = code or 0  # Popen must not wait for it too
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # processes that the handler has started

    def kill(self, reason: str) -> None:
        if not self.is_dead():
            self.reason = self.reason or reason
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)  # it may have left its group

    def dismiss(self) -> None:
        """Let it run its exit functions and end. Then `reap` it."""
        if self._transport is not None:
            self._transport.close()

    async def reap(self) -> Death:
        """Wait for its end, and kill it if it does not end in time."""
        deadline = time.monotonic() + FAREWELL
        pause = 0.001
        while not self.is_dead():
            if time.monotonic() > deadline:
                self.kill("it did not end when it was told to")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        if self._transport is not None:
            self._transport.abort()
        assert self.death is not None  # noqa: S101 - narrows the type
        return self.death

    def _last_stack(self) -> str:
        """Return the stack of a crash, without the frames of this package."""
        try:
            raw = os.read(self._stack, _MAX_STACK)
        except OSError:
            raw = b""
        os.close(self._stack)
        lines = raw.decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if _OURS not in line and "<frozen runpy>" not in line).strip()


def _pass_on(message: messages.FromHandler, link: ProcessLink) -> None:
    match message:
        case messages.Looks():
            link.looks = True
        case messages.Committed():
            link.completed = True
        case messages.Line(_, level, text):
            link.log(level, text)
        case messages.Marked(_, mark):
            link.mark(mark)
        case messages.Unmarked(_, name, n):
            link.unmark(name, n)
        case messages.Shielded(_, change):
            link.shield(change)
        case messages.CancelHeard():
            link.hear_cancel()
        case messages.Said(_, percent, stage, text, beat):
            if (percent, stage, text) != (None, None, None):
                link.report(percent, stage, text)
            if beat:
                link.beat()


def _interpreter_options() -> list[str]:
    """Return -O, -W, -X …, so that a handler runs as in the worker. multiprocessing uses the same function."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [option for option in options if option != "-P"]
