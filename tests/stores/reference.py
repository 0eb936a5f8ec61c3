"""The contract in plain Python: what every verb does to the rows, step by step. Tests compare stores with it.

One dict of rows, live and archived together, changed by one function that asserts MOVES. Policy comes from the core.
Where a store may choose (which of many jobs, in what order), the tests do not compare.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec import UNSET, structs

from rowlock.core import codec
from rowlock.core.job import HELD, LIVE, Event, Job, LiveKey, Log, LogLine, NewJob, Status
from rowlock.core.lifecycle import (
    APPLIED,
    CRASH_ERROR,
    CRASH_UNSEEN,
    EXPIRED_ERROR,
    MAX_HISTORY,
    MOVES,
    Settlement,
    Standing,
    Verdict,
    ended_by,
    judge,
)
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    CancelTimeout,
    Due,
    Expire,
    Order,
    ReportCallback,
    Requeue,
    Rescue,
    Resume,
    Signal,
    Update,
    Wake,
)
from rowlock.core.steps import STEP_ENDS, StepMark, StepState, StoredStep, with_step_events
from rowlock.core.times import NEVER_AT
from rowlock.core.waits import MAX_UNREAD, WAIT_TIMED_OUT, Wait
from rowlock.stores.base import (
    MAX_LOG_LINES,
    MIN_RETENTION,
    PROMOTER,
    Awaited,
    Beat,
    Changed,
    Claim,
    Claimed,
    Edit,
    Enqueued,
    Hold,
    Moved,
    Pause,
    Progress,
    Retention,
    Settled,
    TopicSteering,
    WorkerInfo,
)
from rowlock.stores.queries import Ended, Stats, Tally, make_stats
from tests.stores.rows import Audit, Row, SignalRow, known, moment, plain, timeline

Run = TypeVar("Run", Beat, Progress, StepMark)
MOVE_OF_EVENT = {  # the move that a settlement makes, by its event
    "completed": "complete",
    "retried": "fail",
    "failed": "fail",
    "step_retried": "retry_step",
    "snoozed": "snooze",
    "released": "release",
    "waited": "wait",
    "wait_cancelled": "cancel_wait",
    "cancelled": "acknowledge_cancel",
}


def _key(job: Job | NewJob) -> LiveKey:
    return LiveKey(job.topic, job.scope, job.scope_id, job.key)


class Reference:
    def __init__(self, now: datetime) -> None:
        self.now = now
        self.rows: dict[str, Row] = {}
        self.audit: list[Audit] = []
        self.pauses: dict[str, Pause] = {}
        self.ended: dict[str, Ended] = {}
        self.register: dict[str, WorkerInfo] = {}
        self.backoff: dict[str, Sequence[float] | None] = {}

    def _after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def _where(self, wanted: Callable[[Job], bool]) -> list[Job]:
        return [row.job for _, row in sorted(self.rows.items()) if wanted(row.job)]

    def _change(
        self, move: str, job: Job, entry: dict[str, Any] | None = None, *, ready: bool = False, **columns: Any
    ) -> Job:
        """Change the row by this move and return the job. No other code changes a row."""
        row, legal = self.rows[job.id], MOVES[move]
        assert row.job.status in legal.sources
        after = structs.replace(row.job, **columns)
        assert after.status in legal.targets
        history = row.history
        if entry is not None:
            assert entry["event"] in legal.events
            history = (*history, known(at=self.now, status=after.status, version=after.version) | entry)
        kept = history[-MAX_HISTORY:]
        self._count(move, row.job, after)
        return self._put(
            after, ready, structs.replace(row, history=kept, dropped=row.dropped + len(history) - len(kept))
        )

    def _count(self, move: str, before: Job, after: Job) -> None:
        """Count the ends of jobs (a requeue takes one back), and the runs that were lost or are retried."""
        status = before.status if move == "requeue" else after.status
        retried = move in ("fail", "rescue") and after.retries > before.retries
        lost = move == "rescue"
        if status in LIVE and not retried and not lost:
            return
        for topic in ("", after.topic):
            ended = self.ended.setdefault(topic, Ended())
            ended.retried += retried
            ended.lost += lost
            if status in LIVE:
                continue
            setattr(ended, status, getattr(ended, status) + (-1 if move == "requeue" else 1))
            if move == "requeue":
                setattr(ended, f"requeued_{status}", getattr(ended, f"requeued_{status}") + 1)
            if status is Status.COMPLETED and after.started_at is not None:
                ended.executions += 1
                ended.execution_us += (self.now - after.started_at) // timedelta(microseconds=1)

    def _put(self, job: Job, ready: bool, kept: Row | None = None) -> Job:
        """Store the job and return it. `kept`: the row with what else is kept of the job."""
        row = kept or Row(job, ready)
        events_count = 1 + job.version + len(row.history) + row.dropped + (job.status is Status.COMPLETED)
        job = structs.replace(job, events_count=events_count)
        cancelling = job.status is Status.CANCEL_REQUESTED and job.locked_until is None  # a waiting job
        assert (job.locked_until is not None) == (job.status in HELD and not cancelling)
        assert not ready or job.status is Status.PENDING or cancelling
        self.rows[job.id] = structs.replace(row, job=job, ready=ready)
        return job

    # ── Clients ──

    def insert(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        answers = []
        for new in jobs:
            existing = self.rows[new.id].job if new.id in self.rows else self._holder(new)
            job = existing or self._put(*self._born(new))
            answers.append(Enqueued(job.id, existing is not None, job.status, job.run_at, job.created))
        return answers

    def _holder(self, of: Job | NewJob) -> Job | None:
        live = self._where(lambda job: job.status in LIVE and of.key is not None and _key(job) == _key(of))
        return live[0] if live else None

    def _born(self, new: NewJob) -> tuple[Job, bool]:
        same = (
            "id", "topic", "template_version", "priority", "expires_at", "key", "scope", "scope_id", "tags", "trace",
            "max_retries", "timeout",
        )  # fmt: skip
        given: dict[str, Any] = {name: getattr(new, name) for name in same}
        blank: dict[str, Any] = dict.fromkeys(Job.__struct_fields__)
        run_at = self._after(new.delay) if new.run_at is None else new.run_at
        counts: dict[str, Any] = {"progress": 0.0, "retries": 0, "crashes": 0, "version": 0, "events_count": 1}
        times: dict[str, Any] = {"run_at": run_at, "created": self.now, "updated": self.now}
        columns = blank | given | counts | times | {"payload": codec.decode(new.payload), "status": Status.PENDING}
        return Job(**columns), run_at <= self.now

    # ── Workers ──

    def claim(self, claim: Claim) -> Claimed:
        lanes = {(lane.topic, lane.template_version) for lane in claim.lanes}
        stopped = {pause.topic for pause in self.paused()}
        due = self._where(
            lambda job: (
                self.rows[job.id].ready
                and (job.topic, job.template_version) in lanes
                and job.topic not in stopped
                and (job.expires_at is None or job.expires_at > self.now)
            )
        )
        due.sort(key=lambda job: (-job.priority, job.run_at, job.id))
        jobs = [
            self._change(
                "claim",
                job,
                status=Status.PROCESSING if job.status is Status.PENDING else job.status,
                version=job.version + 1,
                locked_by=claim.worker,
                locked_until=self._after(claim.lease),
                claimed_at=self.now,
                started_at=self.now if claim.start else None,
                progress=0.0 if job.step is None else job.progress,
                stage=None,
                message=None,
                updated=self.now,
            )
            for job in due[: claim.limit]
        ]
        ends = [job.run_at for job in self._where(lambda job: job.status is Status.WAITING) if job.run_at != NEVER_AT]
        later = [job.run_at for job in self._where(lambda j: j.status is Status.PENDING and not self.rows[j.id].ready)]
        later += ends
        next_due = max(0.0, (min(later) - self.now).total_seconds()) if later else None
        return Claimed(jobs, contended=False, next_due=next_due)

    def heartbeat(self, beats: Sequence[Beat], lease: float) -> list[Hold]:
        def longer(job: Job, beat: Beat) -> dict[str, Any]:
            assert job.locked_until
            started = (job.started_at or self.now) if beat.started else job.started_at
            return {"locked_until": max(job.locked_until, self._after(lease)), "started_at": started}

        return [self._held("heartbeat", beat, longer) for beat in beats]

    def progress(self, reports: Sequence[Progress]) -> list[Hold]:
        def nearer(job: Job, report: Progress) -> dict[str, Any]:
            return {
                "progress": job.progress if report.percent is None else min(max(report.percent, 0.0), 100.0),
                "stage": job.stage if report.stage is None else report.stage,
                "message": job.message if report.message is None else report.message,
                "updated": self.now,
            }

        holds = []
        for report in reports:
            holds.append(self._held("progress", report, nearer))
            if holds[-1] is not Hold.LOST or self._has_completed(report):
                self._say(report)
        return holds

    def _has_completed(self, report: Progress) -> bool:
        """Return True if this very run has completed the job."""
        row = self.rows.get(report.id)
        if row is None or row.job.status is not Status.COMPLETED or row.job.version != report.version:
            return False
        return report.worker is None or report.worker == row.job.locked_by

    def _say(self, report: Progress) -> None:
        row = self.rows[report.id]
        lines = row.log + tuple(
            known(at=self._after(-line.age), version=report.version, level=line.level, text=line.text)
            for line in report.lines
        )
        kept = lines[-MAX_LOG_LINES:]
        self.rows[report.id] = structs.replace(row, log=kept, log_dropped=row.log_dropped + len(lines) - len(kept))

    def checkpoint(self, marks: Sequence[StepMark]) -> list[Hold]:
        return [self._checkpoint(mark) for mark in marks]

    def _checkpoint(self, mark: StepMark) -> Hold:
        def marked(job: Job, mark: StepMark) -> dict[str, Any]:
            return {
                "step": mark.name,
                "progress": job.progress if mark.percent is None else mark.percent,
                "updated": self.now,
            }

        hold = self._held("checkpoint", mark, marked)
        if hold is Hold.LOST:
            return hold
        row = self.rows[mark.id]
        steps = {(step.name, step.n): step for step in row.steps}
        before = steps.get((mark.name, mark.n))
        if before is not None and before.state in STEP_ENDS:
            return hold
        if before is not None and before.version == mark.version and mark.state is StepState.RUNNING:
            return hold
        began = self._after(-mark.age)
        if before is not None and (before.version, before.retries) == (mark.version, mark.retries):
            began = before.started_at
        steps[mark.name, mark.n] = StoredStep(
            job_id=mark.id,
            name=mark.name,
            n=mark.n,
            position=mark.position,
            function=mark.function,
            state=mark.state,
            result=None if mark.result is None else codec.decode(mark.result),
            error=mark.error,
            retries=mark.retries,
            cancelable=mark.cancelable,
            version=mark.version,
            started_at=began,
            finished_at=None if mark.state in (StepState.PENDING, StepState.RUNNING) else self.now,
            deadline=None if mark.lasts is None else self._after(mark.lasts),
        )
        self._keep_steps(mark.id, steps.values())
        return hold

    def take_signal(self, wait: Wait) -> Awaited:
        [hold] = self.look([Beat(wait.id, wait.version, worker=wait.worker)])
        if hold is not Hold.KEPT:
            return Awaited(hold)
        row = self.rows[wait.id]
        name, steps = f"@{wait.waits_for}", {(step.name, step.n): step for step in row.steps}
        before = steps.get((name, wait.n))
        if before is not None and before.state in STEP_ENDS:
            return Awaited(hold, before.state, _ended(before), seen=row.got)
        deadline = wait.until if wait.seconds is None else self._after(wait.seconds)
        if before is not None:
            deadline = before.deadline
        state, result, error = StepState.RUNNING, wait.terms, None
        unread = [one for one in row.signals if one.wait is None and f"signal:{one.name}" == wait.waits_for]
        if unread:
            state, result = StepState.SUCCEEDED, codec.encode(unread[0].data, "data")
            read = structs.replace(unread[0], wait=name, wait_n=wait.n)
            signals = tuple(read if one.seq == read.seq else one for one in row.signals)
            self.rows[wait.id] = structs.replace(row, signals=signals)
        elif deadline is not None and deadline <= self.now:
            state, result = StepState.SUCCEEDED, "null"
            if wait.default is not UNSET:
                result = wait.default or "null"
            elif wait.waits_for != "sleep":
                state, result, error = StepState.FAILED, "null", WAIT_TIMED_OUT
        steps[name, wait.n] = step = StoredStep(
            job_id=wait.id,
            name=name,
            n=wait.n,
            position=wait.position,
            function=name,
            state=state,
            result=codec.decode(result),
            error=error,
            version=wait.version,
            started_at=self.now if before is None else before.started_at,
            finished_at=None if state is StepState.RUNNING else self.now,
            deadline=deadline,
        )
        self._change("checkpoint", self.rows[wait.id].job, step=name, updated=self.now)
        self._keep_steps(wait.id, steps.values())
        if state is not StepState.RUNNING:
            return Awaited(hold, state, _ended(step), seen=row.got)
        left = None if deadline is None else (deadline - self.now).total_seconds()
        return Awaited(hold, state, None, left, row.got)

    def _keep_steps(self, job_id: str, steps: Iterable[StoredStep]) -> None:
        """Store these steps of the job. If a wait is dropped, the signals that it has read are dropped too."""
        row, kept = self.rows[job_id], tuple(sorted(steps, key=lambda step: (step.position, step.name, step.n)))
        gone = {(step.name, step.n) for step in row.steps} - {(step.name, step.n) for step in kept}
        signals = tuple(one for one in row.signals if (one.wait, one.wait_n) not in gone)
        self.rows[job_id] = structs.replace(row, steps=kept, signals=signals)

    def steps(self, job_id: str) -> list[StoredStep]:
        return list(self.rows[job_id].steps) if job_id in self.rows else []

    def look(self, runs: Sequence[Beat]) -> list[Hold]:
        holds = []
        for run in runs:
            row = self.rows.get(run.id)
            ours = row is not None and _is_of(row.job, run) and row.job.locked_until is not None
            asked = row is not None and row.job.status is Status.CANCEL_REQUESTED
            holds.append((Hold.CANCEL if asked else Hold.KEPT) if ours else Hold.LOST)
        return holds

    def held_by(self, workers: list[str], limit: int | None = None) -> list[Beat]:
        held = self._where(lambda job: job.locked_until is not None and job.locked_by in workers)
        held = sorted(held, key=lambda job: job.locked_until or self.now)[:limit]
        return [Beat(job.id, job.version, job.started_at is not None, job.locked_by) for job in held]

    def report(self, worker: WorkerInfo) -> datetime:
        before = self.register.get(worker.name)
        started = self.now if before is None else before.started
        self.register[worker.name] = structs.replace(worker, started=started, seen=self.now)
        return self.now

    def retire(self, names: Sequence[str]) -> int:
        return sum(self.register.pop(name, None) is not None for name in names)

    def workers(self) -> list[WorkerInfo]:
        return [worker for _, worker in sorted(self.register.items())]

    def _held(self, move: str, run: Run, columns: Callable[[Job, Run], dict[str, Any]]) -> Hold:
        row = self.rows.get(run.id)
        if row is None or not _is_of(row.job, run) or row.job.locked_until is None:
            return Hold.LOST
        self._change(move, row.job, **columns(row.job, run))
        return Hold.CANCEL if row.job.status is Status.CANCEL_REQUESTED else Hold.KEPT

    def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        verdicts = [self._settle(settlement) for settlement in settlements]
        return Settled(verdicts, None if claim is None else self.claim(claim))

    def _settle(self, wish: Settlement) -> Verdict:
        to, move = wish.transition, MOVE_OF_EVENT[wish.transition.event]
        row = self.rows.get(wish.id)
        if row is None:
            return judge(wish.version, to.event, None)
        job = row.job
        if not _is_of(job, wish) or job.locked_until is None or job.status not in MOVES[move].sources:
            ended = ended_by(wish.version, job.status, job.version, list(row.history), wish.worker, job.locked_by)
            return judge(wish.version, to.event, Standing(job.status, job.version, ended, job.locked_by), wish.worker)
        assert job.claimed_at
        started_at = job.started_at if to.ran is None else max(job.claimed_at, self._after(-to.ran))
        common: dict[str, Any] = {
            "status": to.status,
            "started_at": started_at,
            "locked_until": None,
            "updated": self.now,
        }
        if to.status is Status.COMPLETED:
            result = None if to.result is None else codec.decode(to.result)
            self._change(move, job, **common, progress=100.0, result=result, finished_at=self.now)
            self.rows[job.id] = structs.replace(self.rows[job.id], got=0)  # the archive does not count signals
            return APPLIED
        status, delay = to.status, to.delay
        if status is Status.WAITING and row.got > to.seen:
            status, delay = Status.PENDING, 0.0
        run_at = job.run_at
        if status in LIVE and delay is not None:
            run_at = self._after(delay)
        elif status is Status.WAITING:
            run_at = NEVER_AT
        ends = status in (Status.FAILED, Status.CANCELLED)
        told = to.entry(job.version) | {"status": status}
        self._change(
            move,
            job,
            told | known(by=job.locked_by, claimed_at=job.claimed_at, started_at=started_at),
            ready=status in (Status.PENDING, Status.CANCEL_REQUESTED) and not delay,
            **common | {"status": status},
            waits_for=to.waits_for if status is Status.WAITING else None,
            locked_by=None,
            last_error=to.error if to.error is not None else job.last_error,
            retries=to.retries if to.retries is not None else job.retries,
            finished_at=self.now if ends else None,
            run_at=run_at,
            expires_at=job.expires_at if ends or started_at is None else None,
            cancel_reason=to.reason
            if job.cancel_reason is None and to.status is Status.CANCELLED
            else job.cancel_reason,
        )
        return APPLIED

    # ── Maintenance ──

    def promote(self) -> int:
        due = self._where(
            lambda job: job.status is Status.PENDING and not self.rows[job.id].ready and job.run_at <= self.now
        )
        for job in due:
            self._change("promote", job, ready=True)
        return len(due) + len(self.move_due(Resume(by=PROMOTER)))

    def move_due(self, order: Due) -> list[Moved]:
        match order:
            case Rescue():
                return self._rescue_all(order)
            case Expire():
                return self._expire(order)
            case CancelTimeout():
                return self._cancel_timeout(order)
            case Resume():
                over = self._where(lambda job: job.status is Status.WAITING and job.run_at <= self.now)
                for job in over:
                    self._resume(order, job)
                return [self._moved(job.id) for job in over]

    def _resume(self, order: Order, job: Job, **told: Any) -> Changed:
        entry = known(event="resumed", by=order.by, reason=order.reason, waits_for=job.waits_for, **told)
        self._change(
            order.verb,
            job,
            entry,
            ready=True,
            status=Status.PENDING,
            run_at=self.now,
            waits_for=None,
            updated=self.now,
        )
        return Changed(job.id, done=True, status=Status.PENDING)

    def _rescue_all(self, order: Rescue) -> list[Moved]:
        workers = order.workers

        def gone(job: Job) -> bool:
            if job.locked_until is None:
                return False
            expired = self.now if order.before is None else min(self.now, order.before)
            return job.locked_until < expired if workers is None else job.locked_by in workers

        how = f", {order.detail}" if order.detail else ""
        how += CRASH_UNSEEN if workers is None else ""
        return [
            self._rescue(job, order.by, self.backoff.get(job.topic) or order.backoff, how, named=workers is not None)
            for job in self._where(gone)
        ]

    def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        self.backoff |= tables

    def _rescue(self, job: Job, by: str, backoff: Sequence[float], how: str, *, named: bool) -> Moved:
        error = f"{CRASH_ERROR}: worker {job.locked_by}{how}"
        delay = 0.0
        columns: dict[str, Any] = {}
        charged = False
        if job.status is Status.CANCEL_REQUESTED:
            columns = {"status": Status.CANCELLED, "finished_at": self.now}
        elif job.started_at is None:
            columns = {"status": Status.PENDING}
        elif job.retries >= job.max_retries:
            columns = {"status": Status.EXPIRED, "finished_at": self.now, "last_error": error}
        else:
            charged = True
            columns = {"status": Status.PENDING, "retries": job.retries + 1, "last_error": error, "expires_at": None}
            if job.crashes:
                delay = backoff[min(job.retries + 1, len(backoff)) - 1]
                columns["run_at"] = self._after(delay)
        entry = known(
            event="rescued",
            by=by,
            worker=job.locked_by,
            claimed_at=job.claimed_at,
            started_at=job.started_at,
            delay=delay or None,
            error=columns.get("last_error"),
        )
        suspect = not named or job.started_at is not None
        columns |= {"locked_by": None, "locked_until": None, "updated": self.now, "crashes": job.crashes + suspect}
        after = self._change("rescue", job, entry, ready=columns["status"] is Status.PENDING and not delay, **columns)
        return Moved(job.id, job.topic, job.version, after.status, charged)

    def _expire(self, order: Expire) -> list[Moved]:
        late = self._where(
            lambda job: job.status is Status.PENDING and job.expires_at is not None and job.expires_at <= self.now
        )
        for job in late:
            self._change(
                "expire",
                job,
                known(event="expired", by=order.by),
                status=Status.EXPIRED,
                finished_at=self.now,
                updated=self.now,
                last_error=EXPIRED_ERROR,
            )
        return [self._moved(job.id) for job in late]

    def _cancel_timeout(self, order: CancelTimeout) -> list[Moved]:
        late = self._where(
            lambda job: (
                job.status is Status.CANCEL_REQUESTED
                and job.cancel_requested_at is not None
                and job.cancel_requested_at < self._after(-order.grace)
                and not self._is_shielded(job)
            )
        )
        for job in late:
            run = known(worker=job.locked_by, claimed_at=job.claimed_at, started_at=job.started_at)
            if job.locked_by is None:
                run = {}
            self._change(
                "cancel_timeout",
                job,
                known(event="cancel_timed_out", by=order.by) | run,
                status=Status.CANCELLED,
                finished_at=self.now,
                updated=self.now,
                locked_by=None,
                locked_until=None,
                waits_for=None,
            )
        return [self._moved(job.id) for job in late]

    def _is_shielded(self, job: Job) -> bool:
        """Return True if the job is in a step that is not cancelable, and its lease has not expired."""
        running = [
            step
            for step in self.rows[job.id].steps
            if step.state is StepState.RUNNING and not step.cancelable and step.version == job.version
        ]
        return bool(running) and job.locked_until is not None and job.locked_until >= self.now

    def _moved(self, job_id: str) -> Moved:
        job = self.rows[job_id].job
        return Moved(job.id, job.topic, job.version, job.status, charged=False)

    def prune(self, retention: Retention) -> int:
        keep = structs.asdict(retention)
        if keep["completed"] is not None:
            keep["completed"] = max(keep["completed"], MIN_RETENTION)

        def old(job: Job) -> bool:
            seconds = keep.get(job.status)
            return seconds is not None and job.finished_at is not None and job.finished_at <= self._after(-seconds)

        gone = self._where(old)
        for job in gone:
            assert job.status in MOVES["prune"].sources
            del self.rows[job.id]
        return len(gone)

    # ── Operators ──

    def move(self, ids: Sequence[str], order: Order) -> list[Changed]:
        match order:
            case Cancel():
                return self._cancel(ids, order)
            case Requeue():  # before Update, of which it is a subclass
                return self._requeue(ids, order)
            case Update():
                return self._update(ids, order)
            case Wake():  # before Resume, of which it is a subclass
                return self._wake(ids, order)
            case Signal():
                return self._signal(ids, order)
            case ReportCallback():
                return self._report_callback(ids, order)
            case AcknowledgeCallback():
                return self._acknowledge_callback(ids, order)
            case _:
                return self._delete(ids, order)

    def _operate(self, order: Order, ids: Sequence[str], act: Callable[[Job], Changed]) -> list[Changed]:
        verb = order.verb
        answers: dict[str, Changed] = {}
        for job_id in sorted(set(ids)):
            row = self.rows.get(job_id)
            if row is None:
                answers[job_id] = Changed(job_id, done=False, status=None)
            elif row.job.status not in MOVES[verb].sources:
                answers[job_id] = Changed(job_id, done=False, status=row.job.status)
            else:
                data = {"status": row.job.status.value} if verb == "delete" else {}
                answers[job_id] = act(row.job)
                if answers[job_id].done and order.is_audited:
                    told = data or self._diff(order, row)
                    self._note(verb, order.by, order.reason, told, job_id=job_id, topic=row.job.topic)
        return [answers[job_id] for job_id in ids]

    def _note(self, action: str, by: str, reason: str | None, data: dict[str, Any], **where: str | None) -> None:
        job_id, topic = where.get("job_id"), where.get("topic")
        self.audit.append(
            Audit(at=self.now, by=by, action=action, job_id=job_id, topic=topic, reason=reason, data=data)
        )

    def _diff(self, order: Order, before: Row) -> dict[str, Any]:
        if isinstance(order, Cancel | Wake):
            return {}
        if isinstance(order, Signal):
            return known(signal=order.sent.name, id=order.sent.id)
        after = self.rows[before.job.id]
        changed = after.history[-1].get("changed")
        left = {(step.name, step.n) for step in after.steps}
        gone = [step for step in before.steps if (step.name, step.n) not in left]
        dropped = [step.name if step.n == 1 else f"{step.name}#{step.n}" for step in gone]
        told = {"dropped_steps": dropped} if dropped else {}
        if changed is None:
            return told

        def values(job: Job) -> dict[str, Any]:
            return {name: plain(getattr(job, name)) for name in changed}

        return {"before": values(before.job), "after": values(after.job)} | told

    def _cancel(self, ids: Sequence[str], order: Cancel) -> list[Changed]:
        def act(job: Job) -> Changed:
            waits = job.status is Status.WAITING
            steps = self.rows[job.id].steps
            undoes = waits and any(s.state is StepState.SUCCEEDED and not s.name.startswith("@") for s in steps)
            address = f"@callback:{(job.waits_for or '').removeprefix('signal:')}"
            answered = {signal.signal_id for signal in self.rows[job.id].signals}
            outside = waits and any(
                step.name == address and not self._is_over(step) and f"{step.name}#{step.n}" not in answered
                for step in steps
            )
            ends = job.status is not Status.PROCESSING and not undoes and not outside
            status, event = (Status.CANCELLED, "cancelled") if ends else (Status.CANCEL_REQUESTED, "cancel_requested")
            self._change(
                "cancel",
                job,
                known(event=event, by=order.by, reason=order.reason),
                ready=undoes,
                status=status,
                finished_at=self.now if ends else None,
                run_at=self.now if waits else job.run_at,
                waits_for=None if undoes or ends else job.waits_for,
                cancel_requested_at=self.now,
                cancel_reason=order.reason,
                updated=self.now,
            )
            return Changed(job.id, done=True, status=status)

        return self._operate(order, ids, act)

    def _is_over(self, step: StoredStep) -> bool:
        return step.deadline is not None and step.deadline <= self.now

    def _wake(self, ids: Sequence[str], order: Wake) -> list[Changed]:
        def act(job: Job) -> Changed:
            self._end_waits(job.id, f"@{job.waits_for}", self.now)
            return self._resume(order, job)

        return self._operate(order, ids, act)

    def _end_waits(self, job_id: str, name: str, deadline: datetime | None) -> None:
        self._keep_steps(
            job_id,
            [
                structs.replace(step, deadline=deadline)
                if step.name == name and step.state is StepState.RUNNING
                else step
                for step in self.rows[job_id].steps
            ],
        )

    def _signal(self, ids: Sequence[str], order: Signal) -> list[Changed]:
        sent = order.sent

        def act(job: Job) -> Changed:
            row = self.rows[job.id]
            if why := self._why_not(row, order):
                return Changed(job.id, done=False, status=job.status, why=why)
            new = SignalRow(
                seq=row.got + 1,
                name=sent.name,
                signal_id=sent.id,
                data=codec.decode(sent.data),
                at=self.now,
                by=order.by,
            )
            self.rows[job.id] = structs.replace(row, signals=(*row.signals, new), got=row.got + 1)
            if job.status is Status.WAITING and job.waits_for == f"signal:{sent.name}":
                return self._resume(order, job, signal=sent.name, id=sent.id)
            entry = known(event="signalled", by=order.by, reason=order.reason, signal=sent.name, id=sent.id)
            self._change("signal", job, entry, ready=row.ready, updated=self.now)
            return Changed(job.id, done=True, status=job.status)

        return self._operate(order, ids, act)

    def _why_not(self, row: Row, order: Signal) -> str | None:
        if order.sent.id is not None and order.sent.id in {one.signal_id for one in row.signals}:
            return "known"
        if order.number is not None and (why := self._is_gone(row, order.sent.name, order.number)):
            return why
        return "full" if sum(one.wait is None for one in row.signals) >= MAX_UNREAD else None

    def _is_gone(self, row: Row, signal: str, number: int) -> str | None:
        """Return why the callback can no longer be answered: "gone" or "late"; None if it can."""
        found = [step for step in row.steps if (step.name, step.n) == (f"@callback:{signal}", number)]
        if not found:
            return "gone"
        return "late" if self._is_over(found[0]) else None

    def _report_callback(self, ids: Sequence[str], order: ReportCallback) -> list[Changed]:
        def act(job: Job) -> Changed:
            row = self.rows[job.id]
            if why := self._is_gone(row, order.signal, order.number):
                return Changed(job.id, done=False, status=job.status, why=why)
            said = {"progress": order.percent, "stage": order.stage, "message": order.message}
            columns: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
            steps = {(step.name, step.n): step for step in row.steps}
            address = f"@callback:{order.signal}", order.number
            if order.timeout is not None:
                steps[address] = structs.replace(steps[address], deadline=self._after(order.timeout))
                self._keep_steps(job.id, steps.values())
            waits = [s for s in row.steps if s.name == f"@signal:{order.signal}" and s.state is StepState.RUNNING]
            newest = max(waits, key=lambda step: step.n, default=None)
            timeout = None if newest is None else (newest.result or {}).get("timeout")
            if job.waits_for == f"signal:{order.signal}" and timeout is not None:
                columns["run_at"] = self._after(timeout)
                self._end_waits(job.id, waits[0].name, columns["run_at"])
            self._change("report_callback", job, **columns, updated=self.now)
            return Changed(job.id, done=True, status=job.status)

        return self._operate(order, ids, act)

    def _acknowledge_callback(self, ids: Sequence[str], order: AcknowledgeCallback) -> list[Changed]:
        def act(job: Job) -> Changed:
            if self._is_gone(self.rows[job.id], order.signal, order.number) == "gone":
                return Changed(job.id, done=False, status=job.status, why="gone")
            if job.waits_for is None:
                return Changed(job.id, done=False, status=job.status)
            entry = known(event="cancelled", by=order.by, reason=order.reason)
            ended: dict[str, Any] = {"status": Status.CANCELLED, "finished_at": self.now, "updated": self.now}
            self._change("acknowledge_callback", job, entry, **ended, waits_for=None)
            return Changed(job.id, done=True, status=Status.CANCELLED)

        return self._operate(order, ids, act)

    def _requeue(self, ids: Sequence[str], order: Requeue) -> list[Changed]:
        wanted = self._columns(order.edit)

        def act(job: Job) -> Changed:
            if order.version not in (None, job.version):
                return Changed(job.id, done=False, status=job.status)
            if holder := self._holder(job):
                return Changed(job.id, done=False, status=job.status, holder=holder.id)
            steps = self.rows[job.id].steps
            names = {f"{step.name}#{step.n}": step.position for step in steps}
            names |= {step.name: step.position for step in steps if step.n == 1}
            if order.from_step is not None and order.from_step not in names:
                known_names = tuple(dict.fromkeys(step.name for step in steps))
                return Changed(job.id, done=False, status=job.status, steps=known_names)
            kept = [step for step in steps if step.state is StepState.SUCCEEDED and order.keep_steps]
            if order.from_step is not None:
                kept = [step for step in kept if step.position < names[order.from_step]]
            if wanted.get("payload", job.payload) != job.payload:
                kept = []
            if order.undo:
                kept = list(steps)
            dropped = [step for step in steps if step not in kept]
            stays = ("run_at", "retries", "crashes", "expires_at")
            reset: dict[str, Any] = {"retries": 0, "crashes": 0, "run_at": self.now, "expires_at": None}
            if order.undo:
                reset = {name: getattr(job, name) for name in stays}
            if not kept:
                reset |= {"step": None, "progress": 0.0}
            elif not order.undo:
                reset["step"] = kept[-1].name
            cleared = ("stage", "message", "result", "finished_at", "cancel_requested_at", "cancel_reason", "waits_for")
            run_at = wanted.get("run_at", reset["run_at"])
            self._change(
                "requeue",
                job,
                known(
                    event="requeued",
                    by=order.by,
                    reason=order.reason,
                    changed=sorted(wanted) or None,
                    from_step=order.from_step,
                    dropped_steps=len(dropped) or None,
                    keep_steps=False if dropped and not order.keep_steps else None,
                ),
                ready=run_at <= self.now,
                status=Status.PENDING,
                updated=self.now,
                **dict.fromkeys(cleared) | reset | wanted,
            )
            self._keep_steps(job.id, kept)
            return Changed(job.id, done=True, status=Status.PENDING)

        return self._operate(order, ids, act)

    def _columns(self, edit: Edit) -> dict[str, Any]:
        wanted = {name: value for name, value in structs.asdict(edit).items() if value is not UNSET}
        if "payload" in wanted:
            wanted["payload"] = codec.decode(wanted["payload"])
        if "delay" in wanted:
            wanted["run_at"] = self._after(wanted.pop("delay"))
        return wanted

    def _update(self, ids: Sequence[str], order: Update) -> list[Changed]:
        wanted = self._columns(order.edit)

        def act(job: Job) -> Changed:
            ready = wanted["run_at"] <= self.now if "run_at" in wanted else self.rows[job.id].ready
            other = wanted.get("payload", job.payload) != job.payload
            dropped = self.rows[job.id].steps if other else ()
            entry = known(
                event="updated",
                by=order.by,
                reason=order.reason,
                changed=sorted(wanted),
                dropped_steps=len(dropped) or None,
            )
            rest = {"step": None, "progress": 0.0} if dropped else {}
            self._change("update", job, entry, ready=ready, **wanted, **rest, updated=self.now)
            if dropped:
                self._keep_steps(job.id, ())
            return Changed(job.id, done=True, status=Status.PENDING)

        return self._operate(order, ids, act)

    def _delete(self, ids: Sequence[str], order: Order) -> list[Changed]:
        def act(job: Job) -> Changed:
            del self.rows[job.id]
            return Changed(job.id, done=True, status=job.status)

        return self._operate(order, ids, act)

    def steer_topic(
        self, topic: str, to: TopicSteering, *, by: str, reason: str | None = None, until: datetime | None = None
    ) -> bool:
        if to == "pause":
            self.pauses[topic] = Pause(topic, self.now, until, reason, by)
        elif topic in {pause.topic for pause in self.paused()}:  # an expired pause counts as none
            del self.pauses[topic]
        else:
            return False
        self._note(to, by, reason, known(until=until), topic=topic)
        return True

    def paused(self) -> list[Pause]:
        return [p for _, p in sorted(self.pauses.items()) if p.until is None or p.until > self.now]

    # ── Reading ──

    def stats(self) -> Stats:
        live = [
            Tally(
                "",
                row.job.topic,
                row.job.status,
                1,
                self._waited(row),
            )
            for row in self.rows.values()
            if row.job.status in LIVE
        ]
        return make_stats(None, live, [(topic, structs.astuple(ended)) for topic, ended in self.ended.items()])

    def _waited(self, row: Row) -> float | None:
        job = row.job
        if not row.ready or job.status is not Status.PENDING:
            return None
        return max((self.now - max(job.run_at, job.created)).total_seconds(), 0.0)

    def events(self, job_id: str) -> list[Event]:
        row = self.rows.get(job_id)
        if row is None:
            return []
        return with_step_events(sorted(timeline(row), key=lambda event: event.seq), row.steps)

    def logs(self, job_id: str) -> Log:
        row = self.rows.get(job_id)
        if row is None:
            return Log([])
        lines = [LogLine(moment(line["at"]), line["version"], line["level"], line["text"]) for line in row.log]
        return Log(lines, row.log_dropped)


def _ended(step: StoredStep) -> str | None:
    """Return what a run gets from a wait that has ended, as JSON text."""
    return None if step.state is StepState.FAILED else codec.encode(step.result, "result")


def _is_of(job: Job, run: Beat | Progress | StepMark | Settlement) -> bool:
    """Return True if the job is held by this very run: the fence."""
    return job.version == run.version and run.worker in (None, job.locked_by)
