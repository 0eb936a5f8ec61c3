"""The worker protocol, for workers in any language.

Every request after the claim names the run by its id, its version and its worker. A worker that does not hold the run
changes nothing, and the answer says so. Every request may be repeated: the answer is the same as the first time.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from msgspec import UNSET, Struct
from msgspec.structs import replace

from rowlock.core import codec
from rowlock.core.ids import check_id
from rowlock.core.job import HELD, MAX_DELAY, MAX_VERSION, Job, Lane, check_time
from rowlock.core.lifecycle import (
    Answer,
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    StepRetry,
    Transition,
    Waits,
    completion,
    decide,
)
from rowlock.core.retry import Delays, RetryPolicy
from rowlock.core.steps import MAX_STEPS, StepMark, StepState
from rowlock.core.templates import read_lane
from rowlock.core.waits import (
    SLEEP,
    Wait,
    WaitTerms,
    callback_name,
    check_signal_name,
    is_step_name,
    signal_wait,
)
from rowlock.http import worker_shapes as shapes
from rowlock.http.call import Call
from rowlock.http.problems import Problem, check_range
from rowlock.http.request import Gone
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import LONGEST_STEP, copied
from rowlock.schemas import check_schema
from rowlock.stores import reading
from rowlock.stores.base import Beat, Claim, Hold, NewLine, Progress, Store
from rowlock.tracebacks import MAX_ERROR

ROUTES = Routes()

WORKER = scope("worker", bounded=True)
GRACE = 30.0  # seconds past a run's timeout after which its lease is not renewed: the handler is stuck
_TRIES = 4  # for rows that other transactions have locked
_PAUSE = 0.02  # seconds between them
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")
_EXACT = timedelta(milliseconds=1)


# ── Claim ──


@ROUTES.add("POST", "/api/worker/claim", WORKER, "Take jobs to run", errors=(429,))
async def claim(call: Call, asked: shapes.ClaimBody) -> shapes.ClaimAnswer:
    check_range("limit", asked.limit, 1, shapes.MOST_CLAIMED)
    check_range("wait", asked.wait, 0, shapes.LONGEST_WAIT)
    worker, lease = _worker(call, asked.worker), _lease(call, asked.lease)
    wanted = Claim(worker, tuple(_lanes(call, asked.topics)), asked.limit, lease, size=shapes.MOST_BYTES)
    if asked.runs is not None and (unheard := await _unheard(call, wanted, asked.runs)):
        return _claimed(unheard, lease)
    gone = asyncio.ensure_future(call.request.hung_up())
    try:
        jobs = await call.api.state.remote_workers.claim(wanted, asked.wait, call.request.client, gone)
        if jobs and asked.wait:
            await _check_again(call, jobs, worker, gone)
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    return _claimed(jobs, lease)


async def _check_again(call: Call, jobs: list[Job], worker: str, gone: asyncio.Future[None]) -> None:
    """Release the jobs if the worker hung up, or lost its access, while it waited: other workers can claim them."""
    try:
        await call.again()  # its token may have been revoked, or the API switched off
        if gone.done():
            raise Gone
    except (Problem, Gone):
        to = decide(jobs[0], Released("its worker is gone"), datetime.now(UTC))
        await (await call.store()).settle([Settlement(job.id, job.version, to, worker) for job in jobs])
        call.api.state.remote_workers.ring()
        raise


def _claimed(jobs: list[Job], lease: float) -> shapes.ClaimAnswer:
    return shapes.ClaimAnswer(items=[copied(shapes.RunBody, job, lease=lease, status=str(job.status)) for job in jobs])


async def _unheard(call: Call, wanted: Claim, named: tuple[shapes.RunName, ...]) -> list[Job]:
    """Return runs of an earlier claim whose answer this worker did not get. Only once, because this renews the lease. A
    worker that a job kills, and that comes back under the same name, must not get that job for ever."""
    known = {(run.id, run.version) for run in _runs(named, 0, wanted.worker)}
    store = await call.store()
    held = [run for run in await store.held_by([wanted.worker]) if (run.id, run.version) not in known][: wanted.limit]
    if not held:
        return []
    found = await store.read([run.id for run in held], Job)
    runs = [run for run in held if run.id in found and _is_untouched(found[run.id], run, wanted.lease)]
    holds = await store.heartbeat(runs, wanted.lease)
    kept = [found[run.id] for run, hold in zip(runs, holds, strict=True) if hold in (Hold.KEPT, Hold.CANCEL)]
    call.api.state.remote_workers.timeouts.begin(kept)
    return kept


def _is_untouched(job: Job, run: Beat, lease: float) -> bool:
    if (job.version, job.locked_by) != (run.version, run.worker) or job.status not in HELD:
        return False
    if job.locked_until is None or job.claimed_at is None:
        return False
    return job.locked_until <= job.claimed_at + timedelta(seconds=lease) + _EXACT


# ── While it runs ──


@ROUTES.add("POST", "/api/worker/heartbeat", WORKER, "Renew leases; learn of cancels, timeouts and lost runs")
async def heartbeat(call: Call, asked: shapes.HeartbeatBody) -> shapes.HeartbeatAnswer:
    worker, lease = _worker(call, asked.worker), _lease(call, asked.lease)
    runs = _runs(asked.runs, 1, worker)
    store, remote_workers = await call.store(), call.api.state.remote_workers
    overdue = await remote_workers.timeouts.overdue(store, worker, runs)
    holds = await _renewed(store, [run for run, over in zip(runs, overdue, strict=True) if over < GRACE], lease)
    stuck = [run for run, over in zip(runs, overdue, strict=True) if over >= GRACE]
    holds |= dict(zip(stuck, await store.look(stuck), strict=True))
    items = []
    for run, over in zip(runs, overdue, strict=True):
        hold = holds[run]
        if hold is Hold.LOST:
            remote_workers.timeouts.forget(run.id, run.version)
        told = "timeout" if over >= 0 and hold is Hold.KEPT else str(hold)
        items.append(shapes.HoldBody(id=run.id, version=run.version, hold=told))
    if any(hold is not Hold.LOST for hold in holds.values()):
        await remote_workers.renewed(worker, lease)
    return shapes.HeartbeatAnswer(items=items)


async def _renewed(store: Store, runs: list[Beat], lease: float) -> dict[Beat, Hold]:
    """Renew leases. A row that another transaction has locked counts as kept: the next heartbeat comes soon."""
    holds: dict[Beat, Hold] = {}
    todo = runs
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE)
        holds |= dict(zip(todo, await store.heartbeat(todo, lease), strict=True))
        todo = [run for run in todo if holds[run] is Hold.UNSEEN]
        if not todo:
            break
    return holds | dict.fromkeys(todo, Hold.KEPT)


@ROUTES.add("POST", "/api/worker/progress", WORKER, "Report a run's progress")
async def report_progress(call: Call, asked: shapes.ProgressBody) -> shapes.HoldBody:
    if asked.percent is not None:
        check_range("percent", asked.percent, 0, 100)
    run = _run(call, asked)
    return await _report(
        call, Progress(run.id, run.version, asked.percent, asked.stage, asked.message, worker=run.worker)
    )


@ROUTES.add("POST", "/api/worker/log", WORKER, "Add log lines to the job")
async def add_lines(call: Call, asked: shapes.LogBody) -> shapes.HoldBody:
    if not 1 <= len(asked.lines) <= shapes.MOST_LINES:
        raise Problem("out_of_range", f"lines: give 1 to {shapes.MOST_LINES}", field="lines")
    run = _run(call, asked)
    lines = tuple(NewLine(0.0, line.level, line.text) for line in asked.lines)
    return await _report(call, Progress(run.id, run.version, lines=lines, worker=run.worker))


async def _report(call: Call, report: Progress) -> shapes.HoldBody:
    store, hold = await call.store(), Hold.UNSEEN
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE)
        [hold] = await store.progress([report])
        if hold is not Hold.UNSEEN:
            return shapes.HoldBody(id=report.id, version=report.version, hold=str(hold))
    raise Problem("busy", "other requests are changing this job: try again", headers={"retry-after": "1"})


# ── Steps ──


@ROUTES.add("POST", "/api/worker/steps", WORKER, "The stored steps of a run", errors=(409,))
async def get_worker_steps(call: Call, asked: shapes.RunAsked) -> shapes.WorkerStepsAnswer:
    """Return the steps that this job's runs have stored. Only the worker that holds the run gets them."""
    run, store = _run(call, asked), await call.store()
    [hold] = await store.look([run])
    if hold is Hold.LOST:
        raise _lost()
    return shapes.WorkerStepsAnswer(
        items=[copied(shapes.StoredStepBody, one, state=str(one.state)) for one in await reading.steps(store, run.id)]
    )


@ROUTES.add("POST", "/api/worker/checkpoint", WORKER, "A step begins, or has ended", errors=(409, 413))
async def checkpoint(call: Call, asked: shapes.CheckpointBody) -> shapes.HoldBody:
    run = _run(call, asked)
    mark = _mark(run, asked)
    store, counts = await call.store(), call.api.state.remote_workers.steps
    if not await counts.knows(store, run):
        raise _lost()
    counts.take(mark)
    [hold] = await store.checkpoint([mark])
    if hold is Hold.LOST:
        counts.forget(run)
        raise _lost()
    return shapes.HoldBody(id=run.id, version=run.version, hold=str(hold))


def _check_place(n: int, position: int) -> None:
    for field, number in (("n", n), ("position", position)):
        if number > MAX_STEPS:
            text = f"{field}: a job may have at most {MAX_STEPS:,} steps: fail it as final"
            raise Problem("too_many_steps", text, field=field)
        check_range(field, number, 1, MAX_STEPS)


def _mark(run: Beat, asked: shapes.CheckpointBody) -> StepMark:
    _check_place(asked.n, asked.position)
    check_range("retries", asked.retries, 0, 1_000_000)
    check_range("ran", asked.ran, 0, MAX_DELAY)
    if asked.percent is not None:
        check_range("percent", asked.percent, 0, 100)
    if asked.result is not None and asked.state != "succeeded":
        raise Problem("both_given", f"result: a step that is {asked.state} has none", field="result")
    if asked.error is not None and asked.state in ("succeeded", "running"):
        raise Problem("both_given", f"error: a step that is {asked.state} has none", field="error")
    name = _step_name(asked.name, "name")
    return StepMark(
        id=run.id, version=run.version, worker=run.worker, name=name, n=asked.n, position=asked.position,
        function=name if asked.function is None else _step_name(asked.function, "function"),
        state=StepState(asked.state),
        result=None if asked.result is None else codec.encode(asked.result, "result"),
        error=None if asked.error is None else codec.clean_text(asked.error, MAX_ERROR),
        retries=asked.retries, cancelable=asked.cancelable, age=asked.ran, percent=asked.percent,
    )  # fmt: skip


# ── Waits ──


@ROUTES.add("POST", "/api/worker/wait", WORKER, "Wait for a signal, or for a time", errors=(409,))
async def wait(call: Call, asked: shapes.WaitAsked) -> shapes.WaitAnswer:
    """Answer how the wait has ended, if it has. Else end the run: the job waits, and holds no worker."""
    run, store = _run(call, asked), await call.store()
    wanted = _wait(run, asked)
    await _count(call, store, _place(run, asked, wanted.name))
    taken = await store.take_signal(wanted)
    told = partial(shapes.WaitAnswer, id=run.id, version=run.version)
    if taken.hold is Hold.LOST:
        if await _repeated(store, run, _WAITS) is None:
            raise _lost()
        return told(state="waiting")
    steps = await reading.steps(store, run.id)
    # Also a run that undoes something gets what earlier runs got: it is cancelled where the job waited, not before.
    stored = next((one for one in steps if (one.name, one.n) == (wanted.name, wanted.n)), None)
    if stored is not None and stored.state is StepState.SUCCEEDED:
        return told(state="ended", data=stored.result)
    if stored is not None and stored.state is StepState.FAILED:
        return told(state="timed_out")
    if taken.hold is Hold.CANCEL:
        return told(state="cancelled")
    if asked.peek:
        return told(state="waiting")
    undoes = any(is_step_name(one.name) and one.state is StepState.SUCCEEDED for one in steps)
    await _settle(call, _End(run, Waits(wanted.waits_for, taken.left, taken.seen, undoes), _ran(asked.ran)))
    return told(state="waiting")


_WAITS = Waits(SLEEP, None, 0)


def _wait(run: Beat, asked: shapes.WaitAsked) -> Wait:
    _check_place(asked.n, asked.position)
    given = [name for name in ("signal", "sleep", "until") if getattr(asked, name) is not None]
    if not given:
        raise Problem("missing", "give one of signal, sleep and until", field="signal")
    if len(given) > 1:
        raise Problem("both_given", "give only one of signal, sleep and until", field=given[1])
    is_signal = asked.signal is not None
    for name in ("timeout", "schema", "default"):
        if not is_signal and getattr(asked, name) not in (None, UNSET):
            raise Problem("not_wanted", f"{name}: belongs to a wait for a signal", field=name)
    seconds = asked.timeout if is_signal else asked.sleep
    if seconds is not None:
        check_range("timeout" if is_signal else "sleep", seconds, 0, MAX_DELAY)
    if asked.schema is not None:
        check_schema(asked.schema)
    return Wait(
        id=run.id, version=run.version, worker=run.worker, n=asked.n, position=asked.position,
        waits_for=SLEEP if asked.signal is None else signal_wait(check_signal_name(asked.signal)),
        seconds=seconds, until=None if asked.until is None else check_time(asked.until, "until"),
        default=UNSET if asked.default is UNSET else codec.encode(asked.default, "default"),
        terms=WaitTerms(seconds, asked.schema).text,
    )  # fmt: skip


@ROUTES.add("POST", "/api/worker/callback", WORKER, "An address by which the outside sends a signal", errors=(409,))
async def make_callback(call: Call, asked: shapes.CallbackAsked) -> shapes.CallbackAnswer:
    run, store = _run(call, asked), await call.store()
    _check_place(asked.n, asked.position)
    signal = check_signal_name(asked.signal)
    if asked.timeout is not None:
        check_range("timeout", asked.timeout, 0, MAX_DELAY)
    if asked.schema is not None:
        check_schema(asked.schema)
    terms = WaitTerms(asked.timeout, asked.schema).text
    mark = replace(
        _place(run, asked, callback_name(signal)), state=StepState.SUCCEEDED, result=terms, lasts=asked.timeout
    )
    if not await _count(call, store, mark):
        raise _lost()
    base = call.api.settings.public_url
    url = await call.api.jobs._callbacks.address(run.id, signal, asked.n, base=base)  # first: it may be refused
    [hold] = await store.checkpoint([mark])
    if hold is Hold.LOST:
        raise _lost()
    return shapes.CallbackAnswer(url=url)


def _place(run: Beat, asked: shapes.WaitAsked | shapes.CallbackAsked, name: str) -> StepMark:
    return StepMark(
        id=run.id, version=run.version, worker=run.worker, name=name, n=asked.n, position=asked.position, function=name,
        state=StepState.RUNNING,
    )  # fmt: skip


async def _count(call: Call, store: Store, mark: StepMark) -> bool:
    """Count a wait, or a callback, among the steps. Return False if its worker does not hold the run."""
    counts = call.api.state.remote_workers.steps
    if not await counts.knows(store, Beat(mark.id, mark.version, True, mark.worker)):
        return False
    counts.take(mark)
    return True


# ── Ends of runs ──


class _End(Struct, frozen=True):
    """The end of a run. `retry`: as its worker wants it, if this server has no policy for the topic. `done`: the
    transition of a success, which is the same for every job."""

    run: Beat
    outcome: Outcome
    ran: float | None = None
    retry: RetryPolicy | None = None
    done: Transition | None = None


@ROUTES.add("POST", "/api/worker/complete", WORKER, "A run has succeeded", errors=(409,))
async def complete(call: Call, asked: shapes.CompleteBody) -> shapes.SettledBody:
    return await _settle(call, _completed(_run(call, asked), asked))


@ROUTES.add("POST", "/api/worker/fail", WORKER, "A run has failed", errors=(409,))
async def fail(call: Call, asked: shapes.FailBody) -> shapes.SettledBody:
    """Record a failure. The job is retried if it has retries left, unless the failure is final."""
    return await _settle(call, _failed(_run(call, asked), asked))


@ROUTES.add("POST", "/api/worker/snooze", WORKER, "Run it again later; costs no retry", errors=(409,))
async def snooze(call: Call, asked: shapes.SnoozeBody) -> shapes.SettledBody:
    return await _settle(call, _snoozed(_run(call, asked), asked))


@ROUTES.add("POST", "/api/worker/retry-step", WORKER, "A step failed that has its own retries", errors=(409,))
async def retry_step(call: Call, asked: shapes.RetryStepBody) -> shapes.SettledBody:
    """End the run; the job runs again after the delay, and no retry of the job is charged. Store the step before, as
    pending and with its count of retries."""
    return await _settle(call, _step_failed(_run(call, asked), asked))


@ROUTES.add("POST", "/api/worker/release", WORKER, "Give it back; costs no retry", errors=(409,))
async def release(call: Call, asked: shapes.ReleaseBody) -> shapes.SettledBody:
    return await _settle(call, _released(_run(call, asked), asked))


@ROUTES.add("POST", "/api/worker/give-up", WORKER, "A run has stopped after a cancel", errors=(409,))
async def give_up(call: Call, asked: shapes.ReleaseBody) -> shapes.SettledBody:
    """End a run as cancelled: after a heartbeat said cancel, or on the handler's own decision."""
    return await _settle(call, _gave_up(_run(call, asked), asked))


@ROUTES.add("POST", "/api/worker/settle", WORKER, "Many runs have ended, each in its own way")
async def settle(call: Call, asked: shapes.SettleBody) -> shapes.SettleAnswer:
    """Settle many runs in one request, and in one transaction. A run that is lost doesn't stop the others."""
    if not 1 <= len(asked.ends) <= shapes.MOST_ENDS:
        raise Problem("out_of_range", f"ends: give 1 to {shapes.MOST_ENDS}", field="ends")
    worker = _worker(call, asked.worker)
    ends = []
    for n, one in enumerate(asked.ends):
        path = f"ends[{n}]."
        for name in _NEEDED.get(one.end, ()):
            if getattr(one, name) is None:
                raise Problem("missing", f"{path}{name}: {one.end} needs it", field=f"{path}{name}")
        ends.append(_READ[one.end](_beat(one, worker, path), one, path))
    statuses = await _settle_all(call, ends)
    return shapes.SettleAnswer(
        items=[
            shapes.EndedBody(id=end.run.id, version=end.run.version, status=status or "lost")
            for end, status in zip(ends, statuses, strict=True)
        ]
    )


def _completed(run: Beat, asked: shapes.CompleteBody | shapes.EndBody, path: str = "") -> _End:
    outcome, ran = Completed(asked.result), _ran(asked.ran, path)
    done = completion(outcome, ran)
    return _End(run, outcome, ran, done=done) if isinstance(done, Transition) else _End(run, done, ran)


def _failed(run: Beat, asked: shapes.FailBody | shapes.EndBody, path: str = "") -> _End:
    retry = None if asked.delay is None else Delays((_seconds(asked.delay, f"{path}delay"),))
    return _End(run, Failed(_error(asked), final=asked.final), _ran(asked.ran, path), retry)


def _error(asked: shapes.FailBody | shapes.EndBody) -> str:
    """Return the error as for a local handler: the traceback, ending with type and message."""
    line = (asked.error or "") if not asked.type else f"{asked.type}: {asked.error}"
    trace = (asked.traceback or "").rstrip()
    return codec.clean_text(trace if line in trace else f"{trace}\n{line}".lstrip(), MAX_ERROR)


def _snoozed(run: Beat, asked: shapes.SnoozeBody | shapes.EndBody, path: str = "") -> _End:
    return _End(run, Snoozed(_seconds(asked.seconds or 0.0, f"{path}seconds")))


def _step_failed(run: Beat, asked: shapes.RetryStepBody | shapes.EndBody, path: str = "") -> _End:
    delay = _seconds(asked.delay or 0.0, f"{path}delay")
    step, error = _step_name(asked.step or "", f"{path}step"), codec.clean_text(asked.error or "", MAX_ERROR)
    return _End(run, StepRetry(delay, error, step), _ran(asked.ran, path))


def _released(run: Beat, asked: shapes.ReleaseBody | shapes.EndBody, path: str = "") -> _End:
    return _End(run, Released(_reason(asked, path) or "given back"))


def _gave_up(run: Beat, asked: shapes.ReleaseBody | shapes.EndBody, path: str = "") -> _End:
    return _End(run, GaveUp(_reason(asked, path)))


_READ: dict[str, Callable[[Beat, shapes.EndBody, str], _End]] = {
    "complete": _completed, "fail": _failed, "snooze": _snoozed, "retry-step": _step_failed, "release": _released,
    "give-up": _gave_up,
}  # fmt: skip
_NEEDED = {"fail": ("error",), "snooze": ("seconds",), "retry-step": ("step", "delay", "error")}


async def _settle(call: Call, end: _End) -> shapes.SettledBody:
    [status] = await _settle_all(call, [end])
    if status is None:
        raise _lost()
    return shapes.SettledBody(id=end.run.id, version=end.run.version, status=status)


async def _settle_all(call: Call, ends: Sequence[_End]) -> list[str | None]:
    """Settle runs in one statement. Return the new status of each job; None: the worker does not hold the run."""
    store, workers = await call.store(), call.api.state.remote_workers
    found: dict[int, str | None] = {}
    todo = list(range(len(ends)))
    for _ in range(_TRIES):  # if a cancel comes in between, decide again
        transitions = await _decide(call, store, {n: ends[n] for n in todo})
        settlements = [
            Settlement(ends[n].run.id, ends[n].run.version, to, ends[n].run.worker) for n, to in transitions.items()
        ]
        verdicts = (await store.settle(settlements)).verdicts
        workers.have_ended()
        todo = []
        for (n, to), verdict in zip(transitions.items(), verdicts, strict=True):
            run = ends[n].run
            if verdict.answer is Answer.CHANGED:
                todo.append(n)
                continue
            workers.timeouts.forget(run.id, run.version)
            workers.steps.forget(run)
            is_applied = verdict.answer is Answer.APPLIED
            found[n] = str(to.status) if is_applied else await _repeated(store, run, ends[n].outcome)
        if not todo:
            break
    return [found.get(n) for n in range(len(ends))]


async def _decide(call: Call, store: Store, ends: Mapping[int, _End]) -> dict[int, Transition]:
    """Return what the ends mean for their jobs, without those of jobs that are gone."""
    ids = [end.run.id for end in ends.values() if end.done is None]
    jobs = await store.read(ids, Job) if ids else {}
    decided = dict[int, Transition]()
    for n, end in ends.items():
        if end.done is not None:
            decided[n] = end.done
        elif (job := jobs.get(end.run.id)) is not None:
            policy = await call.api.jobs.definitions.retry_policy(job.topic, job.template_version, end.retry)
            chance = random.random()  # noqa: S311 - jitter
            decided[n] = decide(job, end.outcome, datetime.now(UTC), retry=policy, chance=chance, ran=end.ran)
    return decided


async def _repeated(store: Store, run: Beat, outcome: Outcome) -> str | None:
    """Return the answer of the first request if this run has ended in the same way before: only that answer was lost. A
    new decision could differ, because the first one has used a retry."""
    for event in reversed(await reading.events(store, run.id)):
        if (event.version, event.by) == (run.version, run.worker) and event.event in _ENDS[type(outcome)]:
            return str(event.status)
    return None


_ENDS: dict[type[Outcome], tuple[str, ...]] = {
    Completed: ("completed",),
    Failed: ("retried", "failed", "cancelled"),
    Snoozed: ("snoozed", "cancelled"),
    Released: ("released", "cancelled"),
    StepRetry: ("step_retried", "cancelled"),
    GaveUp: ("cancelled",),
    Waits: ("waited", "wait_cancelled", "cancelled"),
}


def _lost() -> Problem:
    return Problem("lost", "this worker does not hold the run (any more): nothing was stored")


@ROUTES.add("POST", "/api/worker/goodbye", WORKER, "Take a worker off the register")
async def say_goodbye(call: Call, asked: shapes.GoodbyeBody) -> None:
    """Remove the worker from the register. Runs that it still holds end by `release`, or with their leases."""
    await call.api.state.remote_workers.leave(_worker(call, asked.worker))


# ── Checks ──


def _worker(call: Call, name: str) -> str:
    """Return the worker's full name, which has its owner in it: no caller can use the name of another's worker."""
    if not _NAME.match(name):
        raise Problem("bad_name", "worker: must be 1 to 100 of A-Z a-z 0-9 - _ . :", field="worker")
    return f"{name}@{call.identity.kind}:{call.identity.id}"


def _lease(call: Call, asked: float | None) -> float:
    if asked is None:  # the setting may be longer than a remote worker's lease may be
        return min(max(call.settings.settings.lock_duration, shapes.SHORTEST_LEASE), shapes.LONGEST_LEASE)
    check_range("lease", asked, shapes.SHORTEST_LEASE, shapes.LONGEST_LEASE)
    return asked


def _lanes(call: Call, asked: tuple[str, ...]) -> list[Lane]:
    if not 1 <= len(asked) <= shapes.MOST_TOPICS:
        raise Problem("out_of_range", f"topics: name 1 to {shapes.MOST_TOPICS}", field="topics")
    lanes = sorted({read_lane(name) for name in asked})
    call.check_topics((lane.topic for lane in lanes), "topics")
    return lanes


def _run(call: Call, asked: shapes.RunAsked) -> Beat:
    return _beat(asked, _worker(call, asked.worker))


def _beat(run: shapes.RunName, worker: str, path: str = "") -> Beat:
    job_id = check_id(run.id, f"{path}id")
    if not 1 <= run.version <= MAX_VERSION:
        field = f"{path}version"
        raise Problem("out_of_range", f"{field}: must be the one that the claim gave", field=field)
    return Beat(job_id, run.version, True, worker)


def _runs(asked: tuple[shapes.RunName, ...], least: int, worker: str) -> list[Beat]:
    if not least <= len(asked) <= shapes.MOST_RUNS:
        raise Problem("out_of_range", f"runs: give {least} to {shapes.MOST_RUNS}", field="runs")
    return [_beat(run, worker, f"runs[{n}].") for n, run in enumerate(asked)]


def _step_name(name: str, field: str) -> str:
    text = codec.check_text(name, field, max_chars=LONGEST_STEP)
    if not is_step_name(text):
        raise Problem("bad_name", f"{field}: names that begin with @ are those of waits", field=field)
    return text


def _reason(asked: shapes.ReleaseBody | shapes.EndBody, path: str = "") -> str | None:
    return None if asked.reason is None else codec.check_text(asked.reason, f"{path}reason", max_chars=2000)


def _seconds(given: float, field: str) -> float:
    check_range(field, given, 0, MAX_DELAY)
    return given


def _ran(given: float | None, path: str = "") -> float | None:
    return None if given is None else _seconds(given, f"{path}ran")
