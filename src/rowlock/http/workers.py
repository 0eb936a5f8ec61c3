"""The worker protocol, for workers in any language.

Every request after the claim names the run by its id, its version and the worker who has it; whoever doesn't have it
(any more) changes nothing and is told so. All of them may be repeated: a repeat of what was done is answered as the
first time.
"""

from __future__ import annotations

import asyncio
import random
import re
from datetime import UTC, datetime, timedelta

from rowlock.core import codec
from rowlock.core.ids import check_id
from rowlock.core.job import HELD, MAX_DELAY, MAX_VERSION, Job, Lane, check_topic
from rowlock.core.lifecycle import (
    Answer,
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    decide,
    unfit_result,
)
from rowlock.core.retry import DEFAULT_RETRY, Delays, RetryPolicy
from rowlock.errors import InvalidInput
from rowlock.http import shapes
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem
from rowlock.http.request import Gone
from rowlock.http.response import Response, answer, nothing
from rowlock.http.routes import Route, scope
from rowlock.runtime.handlers import MAX_ERROR
from rowlock.stores.base import Beat, Claim, Hold, NewLine, Progress, Store

WORKER = scope("worker", bounded=True)
GRACE = 30.0  # seconds past a run's timeout after which its lease is not renewed: alive but stuck is not alive
_TRIES = 4  # of what others were in the way of
_PAUSE = 0.02  # seconds before the next
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}\Z")
_EXACT = timedelta(milliseconds=1)


# ── Claim ──


async def claim(call: Call) -> Response:
    asked: shapes.ClaimBody = call.body
    _check_range("limit", asked.limit, 1, shapes.MOST_CLAIMED)
    _check_range("wait", asked.wait, 0, shapes.LONGEST_WAIT)
    worker, lease = _worker(call, asked.worker), _lease(call, asked.lease)
    wanted = Claim(worker, tuple(Lane(topic) for topic in _topics(call, asked.topics)), asked.limit, lease)
    if asked.runs is not None and (unheard := await _unheard(call, wanted, asked.runs)):
        return _claimed(unheard, lease)
    gone = asyncio.ensure_future(call.request.hung_up())
    try:
        jobs = await call.api.desk.claim(wanted, asked.wait, call.request.client, gone)
        if jobs and asked.wait:
            await _check_again(call, jobs, worker, gone)
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    return _claimed(jobs, lease)


async def _check_again(call: Call, jobs: list[Job], worker: str, gone: asyncio.Future[None]) -> None:
    """It has waited. Whoever hung up hears nothing, and whose token was revoked gets nothing: others can have them."""
    try:
        await call.api.admit_again(call)
        if gone.done():
            raise Gone
    except (Problem, Gone):
        to = decide(jobs[0], Released("its worker is gone"), datetime.now(UTC))
        await (await call.store()).settle([Settlement(job.id, job.version, to, worker) for job in jobs])
        call.api.desk.ring()
        raise


def _claimed(jobs: list[Job], lease: float) -> Response:
    return answer(shapes.ClaimAnswer(items=[shapes.run_body(job, lease) for job in jobs]))


async def _unheard(call: Call, wanted: Claim, named: tuple[shapes.RunName, ...]) -> list[Job]:
    """What the answer to an earlier claim gave to this worker, which doesn't know of it. Once: then its lease has been
    renewed. So one that dies of a job and comes back under the same name isn't given it for ever, without paying."""
    known = {(run.id, run.version) for run in _runs(named, 0, wanted.worker)}
    store = await call.store()
    held = [run for run in await store.held_by(wanted.worker) if (run.id, run.version) not in known][: wanted.limit]
    if not held:
        return []
    found = await store.get([run.id for run in held])
    runs = [run for run in held if run.id in found and _is_untouched(found[run.id], run, wanted.lease)]
    holds = await store.heartbeat(runs, wanted.lease)
    kept = [found[run.id] for run, hold in zip(runs, holds, strict=True) if hold in (Hold.KEPT, Hold.CANCEL)]
    call.api.desk.timeouts.begin(kept)
    return kept


def _is_untouched(job: Job, run: Beat, lease: float) -> bool:
    if (job.version, job.locked_by) != (run.version, run.worker) or job.status not in HELD:
        return False
    if job.locked_until is None or job.claimed_at is None:
        return False
    return job.locked_until <= job.claimed_at + timedelta(seconds=lease) + _EXACT


# ── While it runs ──


async def heartbeat(call: Call) -> Response:
    asked: shapes.HeartbeatBody = call.body
    worker, lease = _worker(call, asked.worker), _lease(call, asked.lease)
    runs = _runs(asked.runs, 1, worker)
    store, desk = await call.store(), call.api.desk
    overdue = await desk.timeouts.overdue(store, worker, runs)
    holds = await _renewed(store, [run for run, over in zip(runs, overdue, strict=True) if over < GRACE], lease)
    holds |= await _looked_at(store, [run for run, over in zip(runs, overdue, strict=True) if over >= GRACE])
    items = []
    for run, over in zip(runs, overdue, strict=True):
        hold = holds[run]
        if hold is Hold.LOST:
            desk.timeouts.forget(run.id, run.version)
        told = "timeout" if over >= 0 and hold is Hold.KEPT else str(hold)
        items.append(shapes.HoldBody(id=run.id, version=run.version, hold=told))
    if any(hold is not Hold.LOST for hold in holds.values()):
        await desk.renewed(worker, lease)
    return answer(shapes.HeartbeatAnswer(items=items))


async def _renewed(store: Store, runs: list[Beat], lease: float) -> dict[Beat, Hold]:
    """Whoever has locked one for a moment is at work on it: it is ours still, and the next heartbeat comes soon."""
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


async def _looked_at(store: Store, runs: list[Beat]) -> dict[Beat, Hold]:
    return dict(zip(runs, await store.look(runs), strict=True))


async def report_progress(call: Call) -> Response:
    asked: shapes.ProgressBody = call.body
    if asked.percent is not None:
        _check_range("percent", asked.percent, 0, 100)
    run = _run(call, asked)
    return await _report(
        call, Progress(run.id, run.version, asked.percent, asked.stage, asked.message, worker=run.worker)
    )


async def add_lines(call: Call) -> Response:
    asked: shapes.LogBody = call.body
    if not 1 <= len(asked.lines) <= shapes.MOST_LINES:
        raise Problem("out_of_range", f"lines: give 1 to {shapes.MOST_LINES}", field="lines")
    run = _run(call, asked)
    lines = tuple(NewLine(0.0, line.level, line.text) for line in asked.lines)
    return await _report(call, Progress(run.id, run.version, lines=lines, worker=run.worker))


async def _report(call: Call, report: Progress) -> Response:
    store, hold = await call.store(), Hold.UNSEEN
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE)
        [hold] = await store.progress([report])
        if hold is not Hold.UNSEEN:
            return answer(shapes.HoldBody(id=report.id, version=report.version, hold=str(hold)))
    raise Problem("busy", "others are at work on this job: ask again", headers={"retry-after": "1"})


# ── How it ended ──


async def complete(call: Call) -> Response:
    asked: shapes.CompleteBody = call.body
    outcome: Outcome = Completed(asked.result)
    try:
        codec.encode(asked.result, "result")
    except InvalidInput as unfit:
        outcome = unfit_result(unfit)
    return await _settle(call, asked, outcome, ran=asked.ran)


async def fail(call: Call) -> Response:
    """It is tried again, by the retries that are left, unless it is final."""
    asked: shapes.FailBody = call.body
    if asked.delay is not None:
        _check_range("delay", asked.delay, 0, MAX_DELAY)
    retry = None if asked.delay is None else Delays((asked.delay,))
    return await _settle(call, asked, Failed(_error(asked), final=asked.final), ran=asked.ran, retry=retry)


def _error(asked: shapes.FailBody) -> str:
    """As a handler's own would be kept: the trace, and what it was about in its last line if nowhere else."""
    line = asked.error if not asked.type else f"{asked.type}: {asked.error}"
    trace = (asked.traceback or "").rstrip()
    return codec.clean_text(trace if line in trace else f"{trace}\n{line}".lstrip(), MAX_ERROR)


async def snooze(call: Call) -> Response:
    asked: shapes.SnoozeBody = call.body
    _check_range("seconds", asked.seconds, 0, MAX_DELAY)
    return await _settle(call, asked, Snoozed(asked.seconds))


async def release(call: Call) -> Response:
    asked: shapes.ReleaseBody = call.body
    return await _settle(call, asked, Released(_reason(asked) or "given back"))


async def give_up(call: Call) -> Response:
    """After a heartbeat said cancel; or by itself."""
    asked: shapes.ReleaseBody = call.body
    return await _settle(call, asked, GaveUp(_reason(asked)))


async def _settle(
    call: Call, asked: shapes.RunAsked, outcome: Outcome, *, ran: float | None = None, retry: RetryPolicy | None = None
) -> Response:
    run = _run(call, asked)
    if ran is not None:
        _check_range("ran", ran, 0, MAX_DELAY)
    store = await call.store()
    for _ in range(_TRIES):  # a cancel may come in between: then it is decided again
        job = (await store.get([run.id])).get(run.id)
        if job is None or (call.identity.topics is not None and job.topic not in call.identity.topics):
            break
        task = call.api.jobs._tasks.get(job.topic)
        policy = task.policy.retry if task is not None else retry or DEFAULT_RETRY
        chance = random.random()  # noqa: S311 - jitter
        to = decide(job, outcome, datetime.now(UTC), retry=policy, chance=chance, ran=ran)
        [verdict] = (await store.settle([Settlement(run.id, run.version, to, run.worker)])).verdicts
        if verdict.answer is Answer.CHANGED:
            continue
        call.api.desk.timeouts.forget(run.id, run.version)
        if verdict.answer is Answer.APPLIED:
            return _settled(run, str(to.status))
        return await _repeated(store, run, outcome)
    raise _lost()


async def _repeated(store: Store, run: Beat, outcome: Outcome) -> Response:
    """Has this very run ended so before? Then its first request was heard, and only the answer was lost. What would be
    decided now may be something else: the first one has used up a retry, or there had been a cancel."""
    for event in reversed(await store.events(run.id)):
        if (event.version, event.by) == (run.version, run.worker) and event.event in _ENDS[type(outcome)]:
            return _settled(run, str(event.status))
    raise _lost()


_ENDS: dict[type[Outcome], tuple[str, ...]] = {
    Completed: ("completed",),
    Failed: ("retried", "failed", "cancelled"),
    Snoozed: ("snoozed", "cancelled"),
    Released: ("released", "cancelled"),
    GaveUp: ("cancelled",),
}


def _settled(run: Beat, status: str) -> Response:
    return answer(shapes.SettledBody(id=run.id, version=run.version, status=status))


def _lost() -> Problem:
    return Problem("lost", "this run is not yours (any more): what came of it was not kept")


async def say_goodbye(call: Call) -> Response:
    """What it has still is given back by `release`, or when the leases end."""
    asked: shapes.GoodbyeBody = call.body
    await call.api.desk.leave(_worker(call, asked.worker))
    return nothing()


# ── What was asked ──


def _worker(call: Call, name: str) -> str:
    """Nobody can take the name of another's worker: each has its owner in it."""
    if not _NAME.match(name):
        raise Problem("bad_name", "worker: must be 1 to 100 of A-Z a-z 0-9 - _ . :", field="worker")
    return f"{name}@{call.identity.kind}:{call.identity.id}"


def _lease(call: Call, asked: float | None) -> float:
    if asked is None:  # by the setting, which may be longer than is good for those who can't be asked
        return min(max(call.settings.settings.lock_duration, shapes.SHORTEST_LEASE), shapes.LONGEST_LEASE)
    _check_range("lease", asked, shapes.SHORTEST_LEASE, shapes.LONGEST_LEASE)
    return asked


def _topics(call: Call, asked: tuple[str, ...]) -> list[str]:
    if not 1 <= len(asked) <= shapes.MOST_TOPICS:
        raise Problem("out_of_range", f"topics: name 1 to {shapes.MOST_TOPICS}", field="topics")
    topics = sorted({check_topic(topic) for topic in asked})
    own = call.identity.topics
    if own is not None and any(topic not in own for topic in topics):
        raise denied(call.identity, "this token is for other topics", field="topics")
    return topics


def _run(call: Call, asked: shapes.RunAsked) -> Beat:
    worker = _worker(call, asked.worker)
    return Beat(check_id(asked.id), _version(asked.version, "version"), True, worker)


def _runs(asked: tuple[shapes.RunName, ...], least: int, worker: str) -> list[Beat]:
    if not least <= len(asked) <= shapes.MOST_RUNS:
        raise Problem("out_of_range", f"runs: give {least} to {shapes.MOST_RUNS}", field="runs")
    runs = []
    for n, run in enumerate(asked):
        try:
            job_id = check_id(run.id)
        except InvalidInput as error:
            raise InvalidInput(f"runs[{n}].id", error.code, error.problem) from None
        runs.append(Beat(job_id, _version(run.version, f"runs[{n}].version"), True, worker))
    return runs


def _version(version: int, field: str) -> int:
    if not 1 <= version <= MAX_VERSION:
        raise Problem("out_of_range", f"{field}: must be the one that the claim gave", field=field)
    return version


def _reason(asked: shapes.ReleaseBody) -> str | None:
    return None if asked.reason is None else codec.check_text(asked.reason, "reason", max_chars=2000)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Problem("out_of_range", f"{name}: must be {low:g} to {high:g}", field=name)


ROUTES = [
    Route(
        method="POST", path="/api/worker/claim", access=WORKER, handler=claim, summary="Take jobs to run",
        body=shapes.ClaimBody, answers=(shapes.ClaimAnswer,), errors=(429,),
    ),
    Route(
        method="POST", path="/api/worker/heartbeat", access=WORKER, handler=heartbeat,
        summary="Keep runs; are they still mine, and wanted?", body=shapes.HeartbeatBody,
        answers=(shapes.HeartbeatAnswer,),
    ),
    Route(
        method="POST", path="/api/worker/progress", access=WORKER, handler=report_progress,
        summary="Say how far a run is", body=shapes.ProgressBody, answers=(shapes.HoldBody,),
    ),
    Route(
        method="POST", path="/api/worker/log", access=WORKER, handler=add_lines, summary="Log lines with the job",
        body=shapes.LogBody, answers=(shapes.HoldBody,),
    ),
    Route(
        method="POST", path="/api/worker/complete", access=WORKER, handler=complete, summary="A run has succeeded",
        body=shapes.CompleteBody, answers=(shapes.SettledBody,), errors=(409,),
    ),
    Route(
        method="POST", path="/api/worker/fail", access=WORKER, handler=fail, summary="A run has failed",
        body=shapes.FailBody, answers=(shapes.SettledBody,), errors=(409,),
    ),
    Route(
        method="POST", path="/api/worker/snooze", access=WORKER, handler=snooze,
        summary="Run it again later, at no cost", body=shapes.SnoozeBody, answers=(shapes.SettledBody,), errors=(409,),
    ),
    Route(
        method="POST", path="/api/worker/release", access=WORKER, handler=release, summary="Give it back, at no cost",
        body=shapes.ReleaseBody, answers=(shapes.SettledBody,), errors=(409,),
    ),
    Route(
        method="POST", path="/api/worker/give-up", access=WORKER, handler=give_up, summary="It was cancelled",
        body=shapes.ReleaseBody, answers=(shapes.SettledBody,), errors=(409,),
    ),
    Route(
        method="POST", path="/api/worker/goodbye", access=WORKER, handler=say_goodbye,
        summary="A worker stops: off the register", body=shapes.GoodbyeBody, status=204,
    ),
]  # fmt: skip
