"""The program of a child process: `python -m rowlock.runtime.child SOCKET STACK PARENT`.

Handlers run in the main thread, one at a time. A second thread receives interruptions and notices the worker's end.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue

from rowlock.context import Context, Interruption
from rowlock.core import codec
from rowlock.core.lifecycle import (
    Completed,
    CutOff,
    Failed,
    GaveUp,
    Outcome,
    Snoozed,
    StepRetry,
    Waits,
    unfit_result,
    unfit_snooze,
)
from rowlock.core.steps import StepMark
from rowlock.errors import InvalidInput
from rowlock.runtime import child_messages as messages
from rowlock.runtime import find_handler
from rowlock.runtime.handlers import call_async, call_sync, outcome_of

PAUSE = 0.05  # seconds between two reports of progress
FAREWELL = 3.0  # seconds for the application's exit functions
MAX_LINE = 64 << 10  # bytes of a log line
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500  # of 1000: when memory is short, the kernel takes a child before the worker


class Sender:
    """Sends messages to the worker, from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._turn = threading.Lock()
        self._pid = os.getpid()

    def say(self, message: messages.FromChild) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # the handler has forked, and the fork has returned from it: only one of the two may send
        data = messages.frame(message)
        with self._turn:
            try:
                self._sock.sendall(data)
            except OSError:
                os._exit(messages.ORPHANED)


class Reports:
    """Sends progress, at most every 50 ms, however often the handler reports it."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._turn = threading.Lock()
        self._next = messages.Said(0)
        self._news = threading.Event()
        threading.Thread(target=self._tell, name="rowlock-reports", daemon=True).start()

    def begin(self, number: int) -> None:
        with self._turn:
            self._next = messages.Said(number)

    def add(self, said: messages.Said) -> None:
        with self._turn:
            last = self._next
            if said.number != last.number:
                return  # from a thread that an earlier handler has left behind
            self._next = messages.Said(
                said.number,
                last.percent if said.percent is None else said.percent,
                last.stage if said.stage is None else said.stage,
                last.message if said.message is None else said.message,
                last.beat or said.beat,
            )
        self._news.set()

    def flush(self) -> None:
        with self._turn:  # held while sending, so that nothing is sent after the end of its run
            said, self._next = self._next, messages.Said(self._next.number)
            if said != self._next:
                self._sender.say(said)

    def _tell(self) -> None:
        while self._news.wait():
            self._news.clear()
            self.flush()
            time.sleep(PAUSE)


class ChildLink:
    """Implements rowlock.context.Link over the socket."""

    def __init__(self, sender: Sender, reports: Reports, start: messages.Start) -> None:
        self.interruption: Interruption | None = None
        self.began = start.began
        self.lease = start.lease
        self._number = start.number
        self._sender = sender
        self._reports = reports
        self._looks = False
        self._completed = False

    @property
    def looks(self) -> bool:
        return self._looks

    @looks.setter
    def looks(self, value: bool) -> None:
        if value and not self._looks:
            self._looks = True
            self._sender.say(messages.Looks(self._number))

    @property
    def completed(self) -> bool:
        return self._completed

    @completed.setter
    def completed(self, value: bool) -> None:
        if value and not self._completed:  # sent at once: the next line of the handler may kill this process
            self._completed = True
            self._sender.say(messages.Committed(self._number))

    def report(self, percent: float | None, stage: str | None, message: str | None) -> None:
        bounded = None if percent is None else float(min(max(percent, 0), 100))  # an int may be beyond any float
        self._reports.add(messages.Said(self._number, bounded, _text(stage), _text(message)))

    def log(self, level: str, text: str) -> None:
        self._sender.say(messages.Line(self._number, _text(level) or "", codec.clean_text(text, MAX_LINE)))

    def mark(self, mark: StepMark) -> None:
        self._sender.say(messages.Marked(self._number, mark))

    def unmark(self, name: str, n: int) -> None:
        self._sender.say(messages.Unmarked(self._number, name, n))

    def shield(self, change: int) -> None:
        self._sender.say(messages.Shielded(self._number, change))

    def hear_cancel(self) -> None:
        if self.interruption is None:
            self.interruption = Interruption.CANCELLED
            self._sender.say(messages.CancelHeard(self._number))

    def beat(self) -> None:
        self._reports.add(messages.Said(self._number, beat=True))


def _text(value: object) -> str | None:
    return None if value is None else codec.clean_text(str(value), MAX_LINE)


class Child:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sender = Sender(sock)
        self._reports = Reports(self._sender)
        self._work: SimpleQueue[tuple[messages.Start, ChildLink] | messages.Load | None] = SimpleQueue()
        self._setup = messages.Setup([], [])
        self._busy = False
        self._link: ChildLink | None = None
        self._runner: asyncio.Runner | None = None

    def serve(self) -> None:
        """Run jobs until the worker closes the socket."""
        threading.Thread(target=self._listen, name="rowlock-worker-link", daemon=True).start()
        while (work := self._work.get()) is not None:
            if isinstance(work, messages.Load):
                if not find_handler.load_first(self._setup, work.module):
                    return  # only a part of the application is loaded. The child of the first job reports the error
                continue
            start, link = work
            self._sender.say(messages.Taken())
            self._reports.begin(start.number)
            answer = self._run(start, link)
            del work, start, link  # or the handler's objects would live until the next job
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # the handler may have closed or replaced it
                    stream.flush()
            self._reports.flush()
            self._busy = False
            self._sender.say(answer)
        if self._runner is not None:
            self._runner.close()

    def _listen(self) -> None:
        inbox: messages.Inbox[messages.ToChild] = messages.Inbox(messages.ToChild)
        try:
            while data := self._sock.recv(1 << 16):
                for message in inbox.feed(data):
                    self._hear(message)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._busy:
            os._exit(messages.ORPHANED)  # the lease is gone with the worker: another one may have the job already
        self._work.put(None)
        time.sleep(FAREWELL)
        os._exit(messages.ORPHANED)

    def _hear(self, message: messages.ToChild) -> None:
        match message:
            case messages.Setup():
                self._setup = message
                sys.path[:] = map(os.fsdecode, message.path)
                sys.argv[:] = map(os.fsdecode, message.argv)
            case messages.Load():
                self._work.put(message)
            case messages.Start():
                self._busy = True
                self._link = ChildLink(self._sender, self._reports, message)
                self._work.put((message, self._link))
            case messages.Interrupt():
                if self._link is not None:
                    self._link.interruption = message.why

    def _run(self, start: messages.Start, link: ChildLink) -> messages.Answer:
        try:
            owner, task = find_handler.find(self._setup, start)
        except find_handler.NotFound as error:
            return messages.Missing(codec.clean_text(str(error)))
        if link.interruption is Interruption.LOST:  # while this process started: another worker runs the job by now
            return messages.Stopped(None)
        if time.monotonic() >= start.until:  # a worker that is frozen can't interrupt it
            return messages.TooLate()
        try:
            context = Context(start.job, link, owner.context_host(in_child=True))
            fresh = contextvars.copy_context()  # the next run does not see what this one sets
            if task.is_async:
                self._runner = self._runner or asyncio.Runner()
                outcome = self._runner.run(call_async(task, context, owner.run_middleware), context=fresh)
            else:
                outcome = fresh.run(call_sync, task, context, owner.run_middleware)
        except BaseException as error:  # CancelledError, if the handler cancelled itself; KeyboardInterrupt
            outcome = outcome_of(error)
        return answer_of(outcome)


def answer_of(outcome: Outcome) -> messages.Answer:
    """Return the outcome as a message. Never raises, whatever the handler returned."""
    try:
        match outcome:
            case Completed(result):
                return messages.Returned(None if result is None else codec.encode(result, "result"))
            case Snoozed(until):
                return _later(until)
            case StepRetry(delay, error, step):
                return messages.Suspended(delay, codec.clean_text(error), codec.clean_text(step))
            case Waits(waits_for, seconds, seen, undoes):
                return messages.Waiting(waits_for, seconds, seen, undoes)
            case CutOff(error):
                return messages.Away(codec.clean_text(error))
            case GaveUp(reason):
                return messages.Stopped(_text(reason))
            case Failed():
                return messages.Raised(codec.clean_text(outcome.error), outcome.final)
            case _:
                raise TypeError(f"no handler can bring about {outcome!r:.80}")
    except InvalidInput as unfit:
        return answer_of(unfit_result(unfit))
    except BaseException as error:  # an object of the handler that raises when it is read
        return answer_of(outcome_of(error))


def _later(until: float | timedelta | datetime) -> messages.Answer:
    try:
        if isinstance(until, datetime):
            return messages.Later((until if until.tzinfo else until.replace(tzinfo=UTC)).astimezone(UTC))
        return messages.Later(until.total_seconds() if isinstance(until, timedelta) else float(until))
    except (TypeError, ValueError, OverflowError):
        return answer_of(unfit_snooze(until))


def _die_with(parent: int) -> None:
    """End this process with the worker, also if the worker is killed while a handler never lets another thread run."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # the worker has ended before
        os._exit(messages.ORPHANED)


def _go_first_when_memory_is_short() -> None:
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        score.write_text(str(max(int(score.read_text()), _OOM_SCORE)))


def main(sock_fd: int, stack_fd: int, parent: int) -> None:
    _die_with(parent)
    for fd in (sock_fd, stack_fd):
        os.set_inheritable(fd, False)
    faulthandler.enable(file=stack_fd, all_threads=False)
    # Ctrl-C reaches the whole group, and systemd's SIGTERM every process of the service. Both are for the worker, which
    # decides what happens to the job. Not SIG_IGN: programs that a handler starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _go_first_when_memory_is_short()
    with socket.socket(fileno=sock_fd) as sock:
        Child(sock).serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
