"""The worker protocol: claim, heartbeat, progress, complete, fail, snooze, release, give up. For workers in any language.

Every request after the claim names the run by its id, its version and the worker who has it; whoever doesn't have it
(any more) changes nothing and is told so. All of them may be repeated: a repeat of what was done is answered like the
first time.
"""

from __future__ import annotations

import asyncio
import random

from rowlock.core.ids import check_id
from rowlock.core.job import Lane, check_topic
from rowlock.core.lifecycle import Answer, Completed, Failed, GaveUp, Outcome, Released, Settlement, Snoozed, decide
from rowlock.core.retry import DEFAULT_RETRY
from rowlock.http import shapes
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem
from rowlock.http.response import Response, answer
from rowlock.http.routes import Access, Route
from rowlock.stores.base import Beat, Claim, Hold, NewLine, Progress

WORKER = Access("scope", "worker", bounded=True)
MOST_CLAIMED = 100
MOST_TOPICS = 100
SHORTEST_LEASE, LONGEST_LEASE = 2.0, 3600.0
LONGEST_WAIT = 30.0
MOST_BEATS = 1000
MOST_LINES = 100


async def claim(call: Call) -> Response:
    """At most `limit` jobs, for `lease` seconds; waits up to `wait` seconds for the first one."""
    asked: shapes.ClaimBody = call.body
    _check_range("limit", asked.limit, 1, MOST_CLAIMED)
    _check_range("lease", asked.lease, SHORTEST_LEASE, LONGEST_LEASE)
    _check_range("wait", asked.wait, 0, LONGEST_WAIT)
    lanes = tuple(Lane(topic) for topic in _topics(call, asked.topics))
    worker = _worker(call, asked.worker)
    desk = call.api.desk
    await desk.seen(worker, call.request.client, [lane.topic for lane in lanes], asked.limit, asked.lease)
    wanted = Claim(worker, lanes, asked.limit, asked.lease)
    gone = asyncio.ensure_future(call.request.hung_up()) if asked.wait else None
    try:
        jobs = await desk.claim(wanted, asked.wait, gone)
    finally:
        if gone is not None:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
    items = [shapes.RunBody(id=job.id, version=job.version, topic=job.topic, payload=job.payload, retries=job.retries,
                            max_retries=job.max_retries, timeout=job.timeout, lease=asked.lease, tags=job.tags,
                            trace=job.trace) for job in jobs]  # fmt: skip
    return answer(shapes.ClaimAnswer(items=items))


async def heartbeat(call: Call) -> Response:
    asked: shapes.HeartbeatBody = call.body
    _check_range("lease", asked.lease, SHORTEST_LEASE, LONGEST_LEASE)
    if not 1 <= len(asked.runs) <= MOST_BEATS:
        raise Problem(400, "out_of_range", f"runs: give 1 to {MOST_BEATS}", field="runs")
    worker = _worker(call, asked.worker)
    beats = [Beat(check_id(run.id), _version(run.version), True, worker) for run in asked.runs]
    store = await call.store()
    holds = await store.heartbeat(beats, asked.lease)
    for _ in range(3):  # someone had the row locked for a moment
        again = [n for n, hold in enumerate(holds) if hold is Hold.UNSEEN]
        if not again:
            break
        for n, hold in zip(again, await store.heartbeat([beats[n] for n in again], asked.lease), strict=True):
            holds[n] = hold
    items = [shapes.HoldBody(id=beat.id, version=beat.version, hold=_told(hold))
             for beat, hold in zip(beats, holds, strict=True)]  # fmt: skip
    return answer(shapes.HeartbeatAnswer(items=items))


async def report_progress(call: Call) -> Response:
    asked: shapes.ProgressBody = call.body
    if len(asked.lines) > MOST_LINES:
        raise Problem(400, "too_many", f"lines: at most {MOST_LINES} at once", field="lines")
    lines = tuple(NewLine(0.0, line.level, line.text) for line in asked.lines)
    report = Progress(
        check_id(asked.id), _version(asked.version), asked.percent, asked.stage, asked.message, lines,
        _worker(call, asked.worker),
    )  # fmt: skip
    store = await call.store()
    for _ in range(4):
        [hold] = await store.progress([report])
        if hold is not Hold.UNSEEN:
            break
    return answer(shapes.HoldBody(id=report.id, version=report.version, hold=_told(hold)))


async def complete(call: Call) -> Response:
    asked: shapes.CompleteBody = call.body
    return await _settle(call, asked, Completed(asked.result))


async def fail(call: Call) -> Response:
    """It is tried again, by the retries that are left, unless it is final."""
    asked: shapes.FailBody = call.body
    return await _settle(call, asked, Failed(asked.error, final=asked.final))


async def snooze(call: Call) -> Response:
    asked: shapes.SnoozeBody = call.body
    _check_range("seconds", asked.seconds, 0, 10 * 366 * 86_400.0)
    return await _settle(call, asked, Snoozed(asked.seconds))


async def release(call: Call) -> Response:
    asked: shapes.ReleaseBody = call.body
    return await _settle(call, asked, Released(asked.reason or "given back"))


async def give_up(call: Call) -> Response:
    """After a heartbeat said cancel; or by itself."""
    asked: shapes.ReleaseBody = call.body
    return await _settle(call, asked, GaveUp(asked.reason))


async def _settle(call: Call, asked: shapes.RunAsked, outcome: Outcome) -> Response:
    job_id, version, worker = check_id(asked.id), _version(asked.version), _worker(call, asked.worker)
    store = await call.store()
    for _ in range(5):  # a cancel may come in between: then it is decided again
        found = (await store.get([job_id])).get(job_id)
        if found is None:
            raise _lost()
        task = call.api.jobs._tasks.get(found.topic)
        transition = decide(
            found,
            outcome,
            await store.now(),
            retry=DEFAULT_RETRY if task is None else task.policy.retry,
            chance=random.random(),  # noqa: S311 - jitter
            ran=None if isinstance(outcome, Released) else asked.ran,
        )
        [verdict] = (await store.settle([Settlement(job_id, version, transition, worker)])).verdicts
        if verdict.answer is Answer.APPLIED:
            return answer(shapes.SettledBody(id=job_id, version=version, status=str(transition.status)))
        if verdict.answer is not Answer.CHANGED:
            break
    return await _repeated(call, job_id, version, worker, outcome)


async def _repeated(call: Call, job_id: str, version: int, worker: str, outcome: Outcome) -> Response:
    """Has this very run ended so before? Then its first request was heard, and only the answer was lost. Its event may be
    another than a new decision would give: the first one has used up a retry."""
    ends = _ENDS[type(outcome)]
    for event in reversed(await (await call.store()).events(job_id)):
        if (event.version, event.by) == (version, worker) and event.event in ends:
            return answer(shapes.SettledBody(id=job_id, version=version, status=str(event.status)))
    raise _lost()


_ENDS: dict[type[Outcome], tuple[str, ...]] = {
    Completed: ("completed",),
    Failed: ("retried", "failed", "cancelled"),
    Snoozed: ("snoozed", "cancelled"),
    Released: ("released", "cancelled"),
    GaveUp: ("cancelled",),
}


def _lost() -> Problem:
    return Problem(409, "lost", "this run is not yours (any more): what came of it was not kept")


def _told(hold: Hold) -> str:
    return str(Hold.KEPT if hold is Hold.UNSEEN else hold)  # asked several times: who locks it is at work on it


def _topics(call: Call, asked: tuple[str, ...]) -> list[str]:
    if not 1 <= len(asked) <= MOST_TOPICS:
        raise Problem(400, "out_of_range", f"topics: name 1 to {MOST_TOPICS}", field="topics")
    topics = list(dict.fromkeys(check_topic(topic) for topic in asked))
    own = call.identity.topics
    if own is not None and any(topic not in own for topic in topics):
        raise denied(call.identity, "this token is for other topics", field="topics")
    return topics


def _worker(call: Call, name: str) -> str:
    """Nobody can take the name of another's worker: each has its token in it."""
    if not 1 <= len(name) <= 100 or not all(char.isalnum() or char in "-_.:" for char in name):
        text = "worker: must be 1 to 100 letters, digits, and - _ . :"
        raise Problem(400, "bad_name", text, field="worker")
    return f"{name}@{call.identity.id or 'anonymous'}"


def _version(version: int) -> int:
    if not 1 <= version < 1 << 31:
        raise Problem(400, "out_of_range", "version: must be the one that the claim gave", field="version")
    return version


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Problem(400, "out_of_range", f"{name}: must be {low:g} to {high:g}", field=name)


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
        summary="Say how far a run is, and log lines", body=shapes.ProgressBody, answers=(shapes.HoldBody,),
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
]  # fmt: skip
