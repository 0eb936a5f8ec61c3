"""Why is this job not running? Computed from what the database knows: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.flows import NOT_TAKEN, Edge, children_signal, said_of
from rowlock.core.job import Job, Lane, Status
from rowlock.core.steps import StoredStep
from rowlock.core.times import NEVER_AT
from rowlock.core.waits import SLEEP, signal_wait
from rowlock.stores.base import MOST_COUNTED, InLine, Pause, WorkerInfo
from rowlock.stores.flows import StoredEdges

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Why(Struct, frozen=True):
    """`code` is stable, for programs. `answer` is one sentence, `details` are more of them.

    Codes: due_later, backoff, expiring, paused, no_worker, no_worker_version, busy, in_line, limit, rate (pending);
    in_line_of_key,
    parents (of its flow have not ended), held (a person must decide), blocked; waiting (for a signal), children (that
    it has started), sleeping; running, claimed, lease_expired (processing); cancel_requested,
    cancel_undo (a worker has to undo what was done), cancel_outside (the outside has to stop); completed, failed,
    expired, cancelled.
    """

    code: str
    answer: str
    details: list[str]


def explain(
    job: Job,
    now: datetime,
    pause: Pause | None,
    workers: Sequence[WorkerInfo],
    *,
    ready: int = 0,
    place: InLine | None = None,
    wait: StoredStep | None = None,
    edges: Sequence[Edge] = (),
    is_external: bool = False,
    limited: Sequence[tuple[str, str]] = (),
) -> Why:
    """Return why the job is not running. `now`: by the database's clock. `pause`: that of the job's topic, if it is
    paused. `workers`: all registered ones. `ready`: how many jobs of its topic and version are due. `place`: where a
    blocked job stands in its line. `wait`: the wait that is open. `edges`: what it waits for in its flow.
    `is_external`: only remote workers run its topic. `limited`: codes and sentences about limits that are used up."""
    match job.status:
        case Status.PENDING:
            return _pending(job, now, pause, workers, ready, is_external, limited)
        case Status.PROCESSING:
            return _processing(job, now, workers)
        case Status.CANCEL_REQUESTED:
            if job.locked_by is None:
                return _cancel_without_worker(job, now, pause, workers, is_external)
            return _cancel_requested(job, now, workers)
        case Status.BLOCKED:
            return _blocked_in_flow(job, edges) if edges else _blocked(place)
        case Status.WAITING:
            children = [edge for edge in edges if signal_wait(children_signal(edge.call or 0)) == job.waits_for]
            return _waiting_for_children(job, children) if children else _waiting(job, now, wait)
        case Status.COMPLETED | Status.FAILED | Status.EXPIRED | Status.CANCELLED:
            return _ended(job, now)
        case never:
            assert_never(never)


def is_live(worker: WorkerInfo, now: datetime) -> bool:
    """True if the worker has reported within its lease, and is not stopping."""
    return not worker.stopping and not is_silent(worker, now)


def spell_seconds(seconds: float) -> str:
    """Return a length of time in at most two units: 850 ms, 12 s, 3 min 20 s, 2 d 4 h."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    left = round(seconds)
    first = next(n for n, (size, _) in enumerate(_UNITS) if left >= size)
    words = []
    for size, unit in _UNITS[first : first + 2]:
        whole, left = divmod(left, size)
        if whole:
            words.append(f"{whole} {unit}")
    return " ".join(words)


def spell_time(at: datetime) -> str:
    """Return the time as RFC 3339 in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ── Pending ──


def lane_of(job: Job) -> Lane:
    return Lane(job.topic, job.template_version)


def has_live_worker(lane: Lane, now: datetime, workers: Sequence[WorkerInfo]) -> bool:
    """True if a live worker claims jobs of this topic and version."""
    return any(str(lane) in worker.topics and is_live(worker, now) for worker in workers)


def _pending(
    job: Job,
    now: datetime,
    pause: Pause | None,
    workers: Sequence[WorkerInfo],
    ready: int,
    is_external: bool,
    limited: Sequence[tuple[str, str]],
) -> Why:
    """Explain a pending job. The first hindrance is the answer; the other hindrances become details."""
    hindrances = [
        *_of_time(job, now),
        *_of_pause(pause, now),
        *limited,
        *_of_workers(lane_of(job), now, workers, ready, is_external),
    ]
    code, answer = hindrances[0]
    # Every pending job is in line: that is no news for one that can't start anyway.
    also = [f"Also: {text}" for other, text in hindrances[1:] if other not in ("in_line", "busy")]
    return Why(code, answer, [*also, *_past(job)])


def _of_time(job: Job, now: datetime) -> list[tuple[str, str]]:
    if job.expires_at is not None and job.expires_at <= now:
        return [("expiring", f"It was not started before {_when(job.expires_at, now)}, and is about to expire.")]
    if job.run_at <= now:
        return []
    if job.retries and job.last_error:
        retry = f"retry {job.retries} of {job.max_retries}"
        return [("backoff", f"Its last run failed; {retry} is due at {_when(job.run_at, now)}.")]
    return [("due_later", f"It is not due before {_when(job.run_at, now)}.")]


def _of_pause(pause: Pause | None, now: datetime) -> list[tuple[str, str]]:
    if pause is None or (pause.until is not None and pause.until <= now):
        return []
    until = f" until {_when(pause.until, now)}" if pause.until else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return [("paused", f"Topic {pause.topic} was paused by {pause.by} at {_when(pause.at, now)}{until}{reason}.")]


def _of_workers(
    lane: Lane, now: datetime, workers: Sequence[WorkerInfo], ready: int, is_external: bool
) -> list[tuple[str, str]]:
    knowing = [worker for worker in workers if str(lane) in worker.topics]
    able = [worker for worker in knowing if is_live(worker, now)]
    if not able:
        others = _other_versions(lane, now, workers)
        if is_external and not others:
            claim = "a worker has to claim it over HTTP (see docs/worker-protocol.md)"
            return [("no_worker", f"No live remote worker knows {lane}, which is an external topic: {claim}.")]
        if lane.template_version or others:
            return [("no_worker_version", _no_worker_version(lane, others, ready))]
        return [("no_worker", _no_worker(lane.topic, now, workers, knowing))]
    slots = sum(worker.concurrency for worker in able)
    free = sum(max(worker.concurrency - worker.running, 0) for worker in able)
    who = f"{_count(len(able), 'live worker')} {'knows' if len(able) == 1 else 'know'} {lane}"
    if free:
        return [("in_line", f"It waits in line: {who}, with {free} of {_count(slots, 'slot')} free.")]
    busy = f"all {slots} slots are busy" if slots != 1 else "its one slot is busy"
    return [("busy", f"It waits in line: {who}, and {busy}.")]


def _other_versions(lane: Lane, now: datetime, workers: Sequence[WorkerInfo]) -> list[int]:
    """Return the other versions of the topic that live workers have."""
    named = {name for worker in workers if is_live(worker, now) for name in worker.topics}
    split = (name.partition("@") for name in named)
    return sorted(int(version or 0) for topic, _, version in split if topic == lane.topic)


def _no_worker_version(lane: Lane, others: Sequence[int], ready: int) -> str:
    waiting = ""
    if ready:
        number = f"at least {ready}" if ready >= MOST_COUNTED else str(ready)
        waiting = f"; {number} {'job waits' if ready == 1 else 'jobs wait'} for one"
    have = f" Live workers have {_listed_versions(others)}." if others else ""
    return f"No live worker has version {lane.template_version} of {lane.topic}{waiting}.{have}"


def _listed_versions(versions: Sequence[int]) -> str:
    listed = ", ".join(map(str, versions[:10])) + (", …" if len(versions) > 10 else "")
    return f"version{'' if len(versions) == 1 else 's'} {listed}"


def _no_worker(topic: str, now: datetime, workers: Sequence[WorkerInfo], knowing: Sequence[WorkerInfo]) -> str:
    if knowing:
        return f"No live worker knows {topic}: {'; '.join(_absence(worker, now) for worker in knowing[:5])}."
    live = [worker for worker in workers if is_live(worker, now)]
    if not live:
        return "No worker is running: start one with `rowlock worker module:jobs`."
    known = sorted({name for worker in live for name in worker.topics})
    listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
    return f"No live worker knows {topic}; those that live run {listed or 'no topic at all'}."


def _past(job: Job) -> list[str]:
    details = []
    if job.retries:
        details.append(f"It has used {job.retries} of {_count(job.max_retries, 'retry', 'retries')}.")
    if job.crashes:
        details.append(f"{_count(job.crashes, 'worker')} died or vanished while holding it, so it is run alone.")
    if job.last_error:
        details.append(f"Its last error: {last_line(job.last_error)}")
    return details


# ── Blocked ──


def _blocked(place: InLine | None) -> Why:
    if place is None:
        return Why("blocked", "It waits for other jobs to finish first.", [])
    if place.before is None:
        return Why("in_line_of_key", "It is the next in the line of its key, and is about to be ready.", [])
    number = f"at least {place.ahead}" if place.ahead_capped else str(place.ahead)
    ahead = f"{number} {'job' if place.ahead == 1 else 'jobs'} ahead of it"
    details = [] if place.head in (None, place.before) else [f"The job at the head of the line is {place.head}."]
    return Why("in_line_of_key", f"It is behind job {place.before} in the line of its key, with {ahead}.", details)


def _blocked_in_flow(job: Job, edges: Sequence[Edge]) -> Why:
    parents = [edge for edge in edges if edge.call is None]
    left = [edge for edge in parents if edge.is_open]
    if left:
        answer = f"It waits for {_named(left)} of its flow."
        return Why("parents", answer, [f"Ended: {len(parents) - len(left)} of {_count(len(parents), 'parent')}."])
    if holding := [edge for edge in parents if edge.verdict == "hold"]:
        ways = [
            f"To let it run: rowlock flows release {job.id}",
            f"To give up: rowlock jobs cancel {job.id}",
            f"To run the parent again: rowlock jobs requeue {holding[0].parent}",
        ]
        ended = "; ".join(map(said_of, holding[:5]))
        return Why("held", f"It is held until a person decides: {ended}.", ways)
    return Why("parents", "Its parents have ended, and it is about to be ready.", [])


def name_untaken(edges: Sequence[Edge], above: Mapping[str, StoredEdges]) -> list[Edge]:
    """Return the edges. Those from parents that were not taken say so. `above`: the edges that lead to the parents."""
    untaken = {one for one, found in above.items() if any(edge.verdict == "untaken" for edge in found.items)}
    return [replace(edge, ended=NOT_TAKEN) if edge.parent in untaken else edge for edge in edges]


def _waiting_for_children(job: Job, children: Sequence[Edge]) -> Why:
    left = [edge for edge in children if edge.is_open]
    if not left:
        return Why("children", "The jobs that it has started have ended, and it is about to be ready.", [])
    answer = f"It waits for {len(left)} of the {_count(len(children), 'job')} that it has started, and holds no slot."
    return Why("children", answer, [*_progress(job), f"Not ended: {_named(left)}."])


def _named(edges: Sequence[Edge]) -> str:
    listed = ", ".join(f"{edge.name} ({edge.parent})" for edge in edges[:5])
    return listed if len(edges) <= 5 else f"{listed} and {len(edges) - 5} more"


# ── Waiting ──


def _waiting(job: Job, now: datetime, wait: StoredStep | None) -> Why:
    until = wait.deadline if wait is not None else job.run_at if job.run_at < NEVER_AT else None
    kind, _, signal = (job.waits_for or SLEEP).partition(":")
    details = [f"To end it now: rowlock jobs wake {job.id}"]
    if kind == SLEEP:
        ends = "" if until is None else f" until {_when(until, now)}"
        return Why("sleeping", f"It sleeps{ends}, and holds no slot.", details)
    ends = "without end" if until is None else f"until {_when(until, now)}"
    details = [
        *_progress(job),
        f"To send it: rowlock jobs signal {job.id} {signal} JSON",
        *(details if until is not None else []),
    ]
    return Why("waiting", f"It waits for the signal {signal} {ends}, and holds no slot.", details)


# ── Held by a worker ──


def _processing(job: Job, now: datetime, workers: Sequence[WorkerInfo]) -> Why:
    details = _holder(job, now, workers)
    if job.locked_until is not None and job.locked_until <= now:
        lease = f"the lease of {job.locked_by} ran out at {_when(job.locked_until, now)}"
        will = "another worker will take it back"
        if not any(is_live(worker, now) for worker in workers):
            will = "no live worker is there to take it back: start one"
        return Why("lease_expired", f"Its worker seems to be gone: {lease}; {will}.", details)
    if job.started_at is None:
        since = f" since {_when(job.claimed_at, now)}" if job.claimed_at else ""
        return Why("claimed", f"Worker {job.locked_by} holds it{since} and has not started it yet.", details)
    ran = (now - job.started_at).total_seconds()
    if ran > job.timeout:
        details.append(f"It is past its timeout of {spell_seconds(job.timeout)}.")
    return Why("running", f"It is running on {job.locked_by} since {_when(job.started_at, now)}.", details)


def _cancel_requested(job: Job, now: datetime, workers: Sequence[WorkerInfo]) -> Why:
    return Why(
        "cancel_requested",
        f"{_asked(job, now)}; worker {job.locked_by} has to acknowledge it, or the grace runs out.",
        _holder(job, now, workers),
    )


def _cancel_without_worker(
    job: Job, now: datetime, pause: Pause | None, workers: Sequence[WorkerInfo], is_external: bool
) -> Why:
    """Explain a job that was waiting when the cancel came."""
    if job.waits_for is not None:
        signal = job.waits_for.partition(":")[2]
        outside = f"the outside, which has a callback for the signal {signal}, has to say that it has stopped"
        return Why("cancel_outside", f"{_asked(job, now)}; {outside}, or the grace runs out.", _progress(job))
    hindrances = [*_of_pause(pause, now), *_of_workers(lane_of(job), now, workers, 0, is_external)]
    undo = "a worker has to run its handler once more, which may undo what was done"
    return Why(
        "cancel_undo",
        f"{_asked(job, now)}; {undo}, or the grace runs out.",
        [text for code, text in hindrances if code != "in_line"],
    )


def _asked(job: Job, now: datetime) -> str:
    asked = f" at {_when(job.cancel_requested_at, now)}" if job.cancel_requested_at else ""
    return f"A cancel was requested{asked}{f' ({job.cancel_reason})' if job.cancel_reason else ''}"


def _progress(job: Job) -> list[str]:
    if not (job.progress or job.stage or job.message):
        return []
    words = [f"{job.progress:.0f} %", job.stage, job.message]
    return [f"Its progress: {', '.join(word for word in words if word)}."]


def _holder(job: Job, now: datetime, workers: Sequence[WorkerInfo]) -> list[str]:
    details = []
    if job.locked_until is not None and job.locked_until > now:
        details.append(f"The lease of {job.locked_by} holds until {_when(job.locked_until, now)}, and is renewed.")
    details += _progress(job)
    worker = next((one for one in workers if one.name == job.locked_by), None)
    if worker is None:
        details.append(f"Worker {job.locked_by} is not in the register of workers.")
    elif not is_live(worker, now):
        details.append(f"Worker {_absence(worker, now)}.")
    return details


# ── Ended ──


def _ended(job: Job, now: datetime) -> Why:
    at = f" at {_when(job.finished_at, now)}" if job.finished_at else ""
    details = []
    match job.status:
        case Status.COMPLETED:
            answer = f"It has completed{at}."
        case Status.CANCELLED:
            answer = f"It was cancelled{at}{f': {job.cancel_reason}' if job.cancel_reason else ''}."
        case _:
            answer = f"It has {job.status}{at}."
    if job.status is not Status.COMPLETED:
        details = [*_past(job), f"To run it again: rowlock jobs requeue {job.id}"]
    return Why(job.status.value, answer, details)


# ── Words ──


def last_line(error: str) -> str:
    """Return the last line of a traceback: the exception itself."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def is_silent(worker: WorkerInfo, now: datetime) -> bool:
    return worker.seen is None or (now - worker.seen).total_seconds() > worker.lease


def _absence(worker: WorkerInfo, now: datetime) -> str:
    if worker.seen is None:
        return f"{worker.name} was never seen"
    if is_silent(worker, now):
        return f"{worker.name} was last seen at {_when(worker.seen, now)}"
    return f"{worker.name} is stopping"


def _when(at: datetime, now: datetime) -> str:
    seconds = (at - now).total_seconds()
    distance = f"in {spell_seconds(seconds)}" if seconds > 0 else f"{spell_seconds(-seconds)} ago"
    return f"{spell_time(at)} ({distance})"


def _count(number: int, word: str, words: str | None = None) -> str:
    return f"{number} {word if number == 1 else words or word + 's'}"
