"""Executor: starts handlers and makes sure that each of them ends: by itself, when it is told to, or by force.

Every run ends in exactly one call of `done`, with its outcome, whatever the handler does.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from rowlock.context import Context, Host, Interruption
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released, StepRetry, TimedOut, Waits
from rowlock.runtime import find_handler
from rowlock.runtime.deadlines import Deadlines
from rowlock.runtime.handlers import RunMiddleware, call_async, call_sync, outcome_of
from rowlock.runtime.outcomes import UNDO_LATER
from rowlock.runtime.processes import TOO_LATE, Processes, refusal
from rowlock.runtime.run import Run
from rowlock.runtime.slots import Slots
from rowlock.runtime.threads import Threads
from rowlock.tasks import Kind, Task

log = logging.getLogger("rowlock")

_TIME_TO_ASK = 1.0  # seconds in which a cancelled async handler may ask ctx whether it was cancelled
_BETWEEN_STEPS = 0.1  # seconds
_TURN = 0.002  # seconds that a chain may take before other tasks of the event loop have their turn
_UNWIND = 0.25  # seconds for a handler to clean up when the worker has no more time


class Executor:
    """Belongs to the worker's event loop. `done`: called once per run, with its outcome; None if the run is settled, or
    lost. `fill`: called when there may be a free slot. `following`: returns the run that is to start next, or None.
    `abandoned`: True if the event loop ends without a stop.

    An async handler runs in a task. A handler that ends without ever waiting leaves nothing behind in its task, so the
    next run may use the same task. Such a chain saves a quarter of the worker's time per job. A handler that waits
    keeps its task, and the runs behind it get another one.
    """

    def __init__(
        self,
        slots: Slots,
        host: Host,
        middleware: Sequence[RunMiddleware],
        done: Callable[[Run, Outcome | None], None],
        fill: Callable[[], None],
        following: Callable[[], Run | None],
        abandoned: Callable[[], bool],
        *,
        app: str | None = None,
    ) -> None:
        self._slots = slots
        self._settings = settings = slots.settings
        self._host = host
        self._middleware = middleware
        self._begins = slots.begin
        self._done = done
        self._app = app
        self._fill = fill
        self._following = following
        self._abandoned = abandoned
        self._threads = Threads(self._leaks)
        self._processes = Processes(app=app, recycle_jobs=settings.recycle_jobs, recycle_mib=settings.recycle_mib)
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()  # each run starts with these
        self._untouched = tuple(self._variables.items())
        self._chain: asyncio.Task[None] | None = None
        self._waiting: set[str] = set()  # topics whose last handler has waited for something
        self._deadlines = Deadlines(self._loop, lambda run: self.interrupt(run, Interruption.TIMED_OUT))

    def warm_up(self, tasks: Iterable[Task[..., Any]]) -> None:
        """Start a child process if one of these tasks needs one. Returns at once."""
        for task in tasks:
            if task.kind == "process" and refusal(task, self._app) is None:
                self._processes.warm_up(find_handler.name_of(task.function)[0])
                return

    def _leaks(self, change: int) -> None:
        """Count a handler that can't be stopped and keeps its slot (1), or that has ended at last (-1)."""
        self._slots.leaked += change
        if change < 0:
            self._fill()

    def start(self, run: Run) -> None:
        run.began = time.monotonic()
        run.kind = self._kind(run)
        run.fiber = self._loop.create_task(self._fiber(run), context=self._variables.copy())
        if self._chain is None and run.kind == "async" and run.job.topic not in self._waiting:
            self._chain = run.fiber
            self._slots.chaining = True
            self._chain.add_done_callback(self._unchain)

    def comes_to(self, run: Run) -> bool:
        """True if a chain is under way that this run may be part of."""
        return self._chain is not None and run.kind == "async" and run.job.topic not in self._waiting

    async def _fiber(self, run: Run) -> None:
        await self._execute(run)
        fiber = run.fiber
        turn = time.monotonic()
        while fiber is not None and fiber is self._chain and self._is_clean(fiber):
            if time.monotonic() - turn > _TURN:
                await asyncio.sleep(0)
                turn = time.monotonic()
            following = self._following()
            if following is None:
                break
            following.fiber = fiber
            if following.job.crashes:  # a suspect
                following.kind = self._kind(following)
            if following.kind != "async":
                self._unchain(fiber)
            await self._execute(following)

    def _is_clean(self, fiber: asyncio.Task[None]) -> bool:
        """True if the handler has left nothing behind in this task."""
        if fiber.cancelling():
            return False
        now = contextvars.copy_context()
        if len(now) != len(self._untouched):
            return False
        for name, value in self._untouched:  # noqa: SIM110 - there are hardly ever any: all() would take longer
            if now.get(name, self) is not value:
                return False
        return True

    def _waits(self, run: Run) -> None:
        """Set the run's deadline when its handler waits for the first time. Before that nothing could interrupt the
        handler, so it needs a deadline only now."""
        run.waited = True
        self._deadlines.set(run, run.began + run.job.timeout - time.monotonic())
        self._waiting.add(run.job.topic)
        if run.fiber is self._chain:
            self._unchain(self._chain)

    def _unchain(self, fiber: asyncio.Task[None] | None) -> None:
        if fiber is self._chain:
            self._chain = None
            self._slots.chaining = False
            self._fill()

    def _kind(self, run: Run) -> Kind:
        """Return how the run is executed. A suspect runs in a child process, whatever its kind, so that it can kill
        only itself. Not if the child would have to run the main program to find the handler: only tasks with
        process=True have agreed to that."""
        if not run.is_suspect:
            return run.task.kind
        importable = self._app is not None or getattr(run.task.function, "__module__", None) != "__main__"
        if importable and refusal(run.task, self._app) is None:
            return "process"
        return run.task.kind

    async def _execute(self, run: Run) -> None:
        outcome: Outcome | None = None
        try:
            run.began = time.monotonic()  # again: another handler may have blocked the loop since
            if run.lease_is_over:  # … or this process was frozen: another worker may have the job by now
                self._conclude(run, TOO_LATE)
                return
            self._begins(run)
            if run.kind != "async":
                self._deadlines.set(run, run.job.timeout)
            match run.kind:
                case "async":
                    context = Context(run.job, run, self._host)
                    outcome = await call_async(run.task, context, self._middleware, partial(self._waits, run))
                    if self._waiting and not run.waited:
                        self._waiting.discard(run.job.topic)
                case "thread":
                    context = Context(run.job, run, self._host)
                    outcome = await self._threads.run(lambda: self._call_in_thread(run, context))
                case "process":
                    outcome = await self._processes.run(run.job, run.task, run, alone=run if run.is_suspect else None)
            if outcome is TOO_LATE:
                self._slots.clear(run)  # its handler was not called: it is not to blame if this process dies now
        except asyncio.CancelledError:
            pass  # _force has cancelled it; run.interruption says why
        except KeyboardInterrupt as error:  # Ctrl-C, or the handler raised it: the event loop ends with it
            self._conclude(run, outcome_of(error))
            raise
        except Exception as error:  # rowlock's mistake, not the handler's: the slot must not be lost
            log.exception("running %r failed", run)
            outcome = Failed(f"rowlock could not run the handler: {error!r}")
        self._conclude(run, outcome)

    def _call_in_thread(self, run: Run, context: Context) -> Outcome:
        """Check the lease again: this process may have been frozen before the thread had its turn."""
        return TOO_LATE if run.lease_is_over else call_sync(run.task, context, self._middleware)

    # ── The end ──

    def interrupt(self, run: Run, why: Interruption) -> None:
        """Tell the handler to end, and make sure that it does."""
        if run.interrupt(why):
            self.enforce(run)
        elif why is Interruption.TIMED_OUT and self._is_shielded(run, self._force):
            run.no_shield = True  # it was cancelled before, in a step that can't be cancelled. That is bounded here
            self._force(run)

    def enforce(self, run: Run) -> None:
        """Make sure that the handler ends. Called after run.interrupt(), which any thread may have called."""
        if run.concluded or not run.began:
            return
        run.announce()
        match run.interruption:
            case Interruption.CANCELLED:
                own = run.task.template.cancel.grace
                grace = self._settings.cancel_grace if own is None else own
                self._later(run, grace, self._force)
                if run.kind == "async" and not run.looks:
                    # It may never ask ctx. CancelledError reaches it at its next await.
                    self._later(run, min(_TIME_TO_ASK, grace), self._cancel_if_it_never_asked)
            case Interruption.TIMED_OUT | Interruption.LOST if run.kind == "async":
                self._force(run)
            case Interruption.TIMED_OUT | Interruption.LOST:
                self._later(run, self._settings.notice, self._force)
            case Interruption.STOPPING | None:
                pass

    def end(self, run: Run) -> None:
        """End the handler now: the worker has no more time."""
        if run.began and not run.concluded:
            run.interrupt(Interruption.STOPPING)
            run.announce()
            run.no_shield = run.is_cut_short = True
            self._force(run, _UNWIND)

    def _cancel_if_it_never_asked(self, run: Run) -> None:
        if not run.looks:
            self._force(run)

    def _force(self, run: Run, patience: float | None = None) -> None:
        """Raise CancelledError in an async handler, kill a child process, leave a thread behind."""
        if run.concluded or run.fiber is None or self._is_shielded(run, self._force):
            return
        run.fiber.cancel()
        self._later(run, self._settings.notice if patience is None else patience, self._abandon)

    def _abandon(self, run: Run) -> None:
        """Conclude the run although its async handler goes on after CancelledError."""
        if run.concluded or self._is_shielded(run, self._abandon):
            return
        assert run.fiber is not None  # noqa: S101 - narrows the type
        if run.fiber.done():  # it was cancelled before its first step
            self._conclude(run, None)
            return
        log.error("%r goes on after it was cancelled: it is left behind", run)
        self._leaks(1)
        run.fiber.add_done_callback(lambda _: self._leaks(-1))
        self._conclude(run, None)

    def _is_shielded(self, run: Run, then: Callable[[Run], None]) -> bool:
        """True if a step runs that a cancel must not end. `then` follows when it has ended. The handler has a moment to
        begin another such step: it may take several to undo what was done."""

        def again() -> None:
            self._loop.call_soon_threadsafe(self._later, run, _BETWEEN_STEPS, then)

        return run.is_shielded(again)

    def _later(self, run: Run, seconds: float, then: Callable[[Run], None]) -> None:
        self._loop.call_later(seconds, then, run)

    def _conclude(self, run: Run, outcome: Outcome | None) -> None:
        if run.concluded:
            return
        run.concluded = True
        run.ran = time.monotonic() - run.began
        if run.deadline:
            self._deadlines.clear(run)
        if run.completed or run.interruption is Interruption.LOST:
            self._done(run, None)
        else:
            self._done(run, outcome if isinstance(outcome, Completed) else self._meaning(run, outcome))

    def _meaning(self, run: Run, outcome: Outcome | None) -> Outcome:
        """Return the outcome of a handler that has not completed. If it was told to end, the reason is its outcome."""
        match run.interruption:
            case Interruption.TIMED_OUT:
                return TimedOut(run.job.timeout)
            case Interruption.CANCELLED if outcome is None and run.is_cut_short and run.is_undo:
                return UNDO_LATER  # in the middle of it
            case Interruption.CANCELLED:
                return outcome if isinstance(outcome, Failed | GaveUp | Waits) else GaveUp()
            case Interruption.STOPPING:
                # The step has counted its failure; and a run that waits has ended by itself.
                return outcome if isinstance(outcome, StepRetry | Waits) else Released()
            case _ if outcome is not None:
                return outcome
            case _ if self._abandoned():
                return Released("the event loop has ended")
            case _:
                return Failed("The handler cancelled its own task")

    async def close(self) -> None:
        """Kill child processes; leave threads behind."""
        await self._processes.close()
        self._threads.close()
