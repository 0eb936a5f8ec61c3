"""Histories of random lives: random verbs drive the real SQLite store in memory, and the witness watches.

The driver behaves as the runtime would, and keeps the records that clients and handlers would keep. So every history is
valid, unless the store is wrong.
"""

from datetime import timedelta
from random import Random
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rowlock.client.verify import verify
from rowlock.core.codec import encode
from rowlock.core.debounce import Window, debounce_line
from rowlock.core.job import Job, NewJob, new_job
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
    TimedOut,
    decide,
)
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue, Update
from rowlock.core.retry import Delays
from rowlock.core.steps import STEP_ENDS, StepMark, StepState
from rowlock.core.templates import line_of
from rowlock.core.verify import Finding
from rowlock.errors import OnceTaken
from rowlock.stores import reading
from rowlock.stores.base import DAY, Beat, Edit, Hold, NewLine, Progress, Retention
from rowlock.stores.sqlite.store import SqliteStore
from tests.proof.history import Execution, Fault, History, Operation, StepRun
from tests.proof.witness import Witness, lend
from tests.stores.harness import Harness, SqliteHarness, claim_by
from tests.stores.rows import micros

TOPICS = ("mail", "bills")
LEASE = 30.0
CANCEL_GRACE = 7.0
WORKERS = ("host-101-aaaa", "host-102-bbbb", "host-103-cccc")
_VERBS = (
    *("enqueue",) * 5,
    "enqueue_once",
    *("claim",) * 5,
    *("settle",) * 6,
    *("step", "step", "step"),
    *("heartbeat", "progress", "transaction", "maintain", "maintain"),
    *("cancel", "requeue", "requeue", "update", "delete", "pause", "resume", "wait", "wait", "kill", "again", "reuse"),
)


_RUNNING, _SUCCEEDED = StepState.RUNNING, StepState.SUCCEEDED
_STATES = [
    *((_RUNNING, _SUCCEEDED),) * 3,
    (_RUNNING,),
    (_RUNNING,),
    (_RUNNING, StepState.FAILED),
    (_RUNNING, StepState.PENDING),
    (_RUNNING, StepState.CANCELLED),
]


class RandomLives:
    """`play` drives the store; `history` is the record of it. `lines`: some jobs stand in lines or count once."""

    verbs: tuple[str, ...] = _VERBS
    lines = True

    def __init__(self, seed: int, harness: Harness | None = None) -> None:
        self.random = Random(seed)  # the same seed gives the same lives
        self.harness = harness or SqliteHarness(None, virtual=True)
        self.running: list[tuple[Job, str]] = []
        kept = {f"keep_{status}": DAY for status in ("completed", "cancelled", "failed", "expired")}
        known = {"lease": LEASE, "cancel_grace": CANCEL_GRACE, "monotonic_offset": 0, "maintenance": 5.0}
        self.history = History(self.harness.kind, known | kept)
        self.findings: list[Finding] = []  # findings of `verify` at the end
        self._numbers = 0

    async def play(self, steps: int) -> History:
        harness = self.harness
        await harness.open()
        try:
            lent = {}
            if isinstance(harness.store, SqliteStore) and harness.store._opened is not None:
                lent = await harness.store._opened.writer.call(lambda db: lend(db.conn, lambda: micros(harness.now)))
            await self.play_on(await Witness(harness).install(**lent), steps)
        finally:
            await harness.close()
        return self.history

    async def play_on(self, witness: Witness, steps: int) -> None:
        """Play on an open store, in a database that the witness watches."""
        for _ in range(steps):
            await getattr(self, f"_{self.random.choice(self.verbs)}")()
            await self.harness.at_rest()
        for job, worker in self.running:
            self._ran(job, worker, ended=None)
        await witness.collect(self.history)
        self.history.settings["now"] = self.now
        report = await verify(self.harness.store, limit=10_000, seconds=60.0)
        self.findings = [found for found in report.findings if found.check != "overdue"]  # no worker is here

    @property
    def now(self) -> int:
        return micros(self.harness.now)

    # ── Clients ──

    def _note(self, verb: str, ids: list[str], outcome: str = "ok", **facts: Any) -> None:
        self._numbers += 1
        now = self.now
        self.history.operations.append(
            Operation(
                "c1", self._numbers, verb, now, now, outcome, tuple(ids), facts.get("answer"), facts.get("detail")
            )
        )

    async def _enqueue(self) -> None:
        chance = self.random
        new = [
            new_job(
                f"{chance.randrange(16):x}193fb1e-0000-7000-8000-{len(self.history.operations) * 4 + n:012x}",
                chance.choice(TOPICS),
                {"n": n},
                key=chance.choice([None, None, "k1", "k2"]),
                scope_id="t1" if n == 2 else None,
                delay=chance.choice([0.0, 0.0, 5.0, 60.0]),
                expires_at=chance.choice([None, None, None, self.harness.now + timedelta(seconds=20)]),
                max_retries=chance.randrange(3),
            )
            for n in range(chance.randint(1, 3))
        ]
        if_live = chance.choice([None, None, "queue", "queue", "replace"]) if self.lines else None
        if if_live is not None:
            new = [self._lined(one, if_live) for one in new]
        if chance.random() < 0.05:
            self._note("enqueue", [one.id for one in new], "fail", detail={"topic": new[0].topic, "key": None})
            return
        answers = await self.harness.store.insert(new)
        lost = chance.random() < 0.1
        for one, answer in zip(new, answers, strict=True):
            said = None if lost else {"id": answer.id, "existing": answer.existing}
            detail = {"topic": one.topic, "key": one.key, "scope_id": one.scope_id}
            self._note("enqueue", [one.id], "unknown" if lost else "ok", answer=said, detail=detail)

    def _lined(self, new: NewJob, if_live: str) -> NewJob:
        key = f"{if_live} {self.random.randrange(2)}"
        line = line_of(new.topic, new.scope, new.scope_id, key)
        return replace(new, key=key, if_live=if_live, line=line, expires_at=None)

    async def _enqueue_once(self) -> None:
        """Enqueue a job whose key counts once."""
        number, topic = len(self.history.operations), self.random.choice(TOPICS)
        new = new_job(f"{number % 16:x}193fb1e-0000-7000-8001-{number:012x}", topic, {}, key=f"o{number % 5}")
        new = replace(new, once=line_of(new.topic, new.scope, new.scope_id, str(new.key)))
        detail = {"topic": topic, "key": new.key, "scope_id": None, "once": True}
        try:
            [answer] = await self.harness.store.insert([new])
        except OnceTaken:
            self._note("enqueue", [new.id], "fail", detail=detail)
        else:
            self._note("enqueue", [new.id], answer={"id": answer.id, "existing": answer.existing}, detail=detail)

    async def _again(self) -> None:
        """Repeat an enqueue whose outcome is unknown."""
        lost = [one for one in self.history.operations if one.outcome == "unknown" and one.verb == "enqueue"]
        if lost:
            one = self.random.choice(lost)
            detail = one.detail or {}
            if len(await self.harness.store.read([one.ids[0]], Job)) == 1:
                again = new_job(one.ids[0], detail["topic"], {}, key=detail["key"], scope_id=detail["scope_id"])
                [answer] = await self.harness.store.insert([again], repeat=True)
                said = {"id": answer.id, "existing": answer.existing}
                self._note("enqueue", [again.id], answer=said, detail=detail)

    async def _reuse(self) -> None:
        """Enqueue another job with the id of a deleted or pruned job."""
        await self.harness.advance(0.1)  # otherwise no record would tell which of the two jobs was running
        ids = sorted({one.ids[0] for one in self.history.operations if one.verb == "enqueue"})
        there = (await self.harness.store.read(ids, Job)).keys() | {job.id for job, _ in self.running}
        gone = [one for one in ids if one not in there]
        if gone:
            new = new_job(self.random.choice(gone), self.random.choice(TOPICS), {"again": True})
            [answer] = await self.harness.store.insert([new], repeat=True)
            said = {"id": answer.id, "existing": answer.existing}
            self._note("enqueue", [new.id], answer=said, detail={"topic": new.topic, "key": None})

    # ── Workers ──

    async def _claim(self) -> None:
        worker = self.random.choice(WORKERS)
        start = self.random.random() < 0.8
        claimed = await self.harness.store.claim(claim_by(worker, *TOPICS, limit=3, lease=LEASE, start=start))
        # A worker marks a suspect before it starts it, because the next crash must be charged.
        suspects = [Beat(job.id, job.version, True, worker) for job in claimed.jobs if job.crashes and not start]
        await self.harness.store.heartbeat(suspects, LEASE)
        self.running += [(job, worker) for job in claimed.jobs]

    def _ran(self, job: Job, worker: str, *, ended: int | None, **facts: Any) -> None:
        assert job.claimed_at is not None
        begun = micros(job.claimed_at)
        self.history.executions.append(Execution(worker, job.id, job.version, begun, ended, **facts))

    async def _settle(self) -> None:
        store = self.harness.store
        for job, worker in self.random.sample(self.running, min(len(self.running), 3)):
            outcome = self._outcome(job)
            current = (await store.read([job.id], Job)).get(job.id)
            seen = current if current and current.version == job.version else job
            ran = 0.0 if job.started_at or not isinstance(outcome, Released) else None
            to = decide(seen, outcome, self.harness.now, retry=Delays((0.0, 9.0)), ran=ran)
            claim = claim_by(worker, *TOPICS, limit=1, lease=LEASE) if self.random.random() < 0.3 else None
            settled = await store.settle([Settlement(job.id, job.version, to, worker)], claim)
            self.running.remove((job, worker))
            self.running += [(one, worker) for one in (settled.claimed.jobs if settled.claimed else ())]
            told = "lost" if settled.verdicts[0].answer is Answer.LOST else None
            if ran is not None:
                result = outcome.result if isinstance(outcome, Completed) else None
                error = None if isinstance(outcome, Completed) else type(outcome).__name__
                self._ran(job, worker, ended=self.now, result=result, error=error, told=told)

    def _outcome(self, job: Job) -> Outcome:
        outcomes: list[Outcome] = [
            *(Completed({"job": job.id, "run": job.version}),) * 3,
            *(Failed("boom"),) * 3,
            Failed("never", final=True),
            TimedOut(600.0),
            Snoozed(3.0),
            StepRetry(2.0, "no answer", "fetch"),
            Released(),
            GaveUp("no longer wanted"),
        ]
        return self.random.choice(outcomes)

    async def _transaction(self) -> None:
        """A handler completes its job in its own transaction, and dies before it returns."""
        if not self.running:
            return
        job, worker = self.random.choice(self.running)
        result = {"own": job.id, "run": job.version}
        to = decide(job, Completed(result), self.harness.now, ran=0.0)
        assert to.result == encode(result, "result")
        settled = await self.harness.store.settle([Settlement(job.id, job.version, to, worker)])
        done = settled.verdicts[0].answer is Answer.APPLIED
        self.running.remove((job, worker))
        self._ran(job, worker, ended=None)
        detail = {"version": job.version, "result": result, "row_visible": done}
        self._note("complete", [job.id], "ok" if done else "fail", detail=detail)

    async def _heartbeat(self) -> None:
        beats = [Beat(job.id, job.version, self.random.random() < 0.5, worker) for job, worker in self.running]
        holds = await self.harness.store.heartbeat(beats, LEASE)
        for (job, worker), hold in zip(list(self.running), holds, strict=True):
            if hold is Hold.LOST:
                self.running.remove((job, worker))
                self._ran(job, worker, ended=self.now, error="LeaseLost", told="lost")

    async def _progress(self) -> None:
        line = NewLine(0.0, "info", "so far, so good")
        reports = [
            Progress(job.id, job.version, self.random.random() * 100, lines=(line,), worker=worker)
            for job, worker in self.running
        ]
        await self.harness.store.progress(reports)

    async def _step(self) -> None:
        """Some runs go on with their steps, as handlers do: they don't run a step again that has ended."""
        marks = []
        for job, worker in self.random.sample(self.running, min(len(self.running), 3)):
            stored = {step.name: step for step in await reading.steps(self.harness.store, job.id)}
            over = {name for name, step in stored.items() if step.state in STEP_ENDS}
            left = [name for name in ("fetch", "check", "send") if name not in over]
            if over:  # the worker writes the mark of a running step lazily, so it may come late
                marks.append(self._mark(job, worker, min(over), _RUNNING))
            if not left:
                continue
            name, retries = left[0], stored[left[0]].retries if left[0] in stored else 0
            for state in self.random.choice(_STATES):
                if state is StepState.RUNNING:
                    self.history.step_runs.append(StepRun(job.id, job.version, name, 1, self.now))
                tried = retries + (state is StepState.PENDING)
                marks.append(self._mark(job, worker, name, state, position=4 - len(left), retries=tried))
        await self.harness.advance(0.001)  # otherwise no record would tell what came first
        await self.harness.store.checkpoint(marks)
        await self.harness.advance(0.001)

    def _mark(
        self, job: Job, worker: str, name: str, state: StepState, position: int = 1, retries: int = 0
    ) -> StepMark:
        return StepMark(
            id=job.id,
            version=job.version,
            worker=worker,
            name=name,
            n=1,
            position=position,
            function=name,
            state=state,
            result=encode([job.id, job.version], "result") if state is _SUCCEEDED else None,
            retries=retries,
            cancelable=name != "send",
            percent=self.random.choice([None, 30.0 * position]),
        )

    async def _kill(self) -> None:
        worker = self.random.choice(WORKERS)
        if self.random.random() < 0.5:  # a supervisor marks the started runs before it rescues the jobs
            beats = [Beat(job.id, job.version, True, worker) for job, by in self.running if by == worker]
            await self.harness.store.heartbeat(beats, 0.001)
            self.history.faults.append(Fault(self.now, "kill", worker))
            await self.harness.store.move_due(
                Rescue(by="supervisor", backoff=(7.0,), workers=[worker], detail="killed")
            )
        else:
            self.history.faults.append(Fault(self.now, "kill", worker.split("-")[1]))
        for job, by in [run for run in self.running if run[1] == worker]:
            self.running.remove((job, by))
            if job.started_at is not None:
                self._ran(job, by, ended=None)

    # ── Time and maintenance ──

    async def _wait(self) -> None:
        await self.harness.advance(self.random.choice([0.5, 4.0, 11.0, 31.0, 90.0, 90_000.0]))

    async def _maintain(self) -> None:
        store = self.harness.store
        await store.promote()
        await store.move_due(CancelTimeout(by="m1", grace=CANCEL_GRACE))
        await store.move_due(Rescue(by="m1", backoff=(7.0, 60.0)))
        await store.move_due(Expire(by="m1"))
        if self.random.random() < 0.2:
            await store.prune(Retention(completed=DAY, cancelled=DAY, failed=DAY, expired=DAY))

    # ── Operators ──

    def _some(self) -> list[str]:
        known = sorted({one for operation in self.history.operations for one in operation.ids})
        return self.random.sample(known, min(len(known), 4))

    async def _cancel(self) -> None:
        running = [job.id for job, _ in self.running][:2]
        await self._cancel_these(running or self._some())

    async def _cancel_these(self, ids: list[str]) -> None:
        await self.harness.store.move(ids, Cancel(by="ann", reason="not today"))

    async def _requeue(self) -> None:
        from_step = self.random.choice([None, None, "check"])
        keep_steps = self.random.random() < 0.8
        edit = Edit(payload='{"n":"new"}') if self.random.random() < 0.2 else Edit()
        await self.harness.store.move(
            self._some(), Requeue(by="ann", from_step=from_step, keep_steps=keep_steps, edit=edit)
        )

    async def _update(self) -> None:
        await self.harness.store.move(
            self._some(),
            Update(
                by="bob",
                edit=Edit(
                    priority=7,
                    delay=self.random.choice([0.0, 3.0]),
                    payload='{"n":"other"}' if self.random.random() < 0.5 else UNSET,
                ),
            ),
        )

    async def _delete(self) -> None:
        await self.harness.store.move(self._some()[:1], Delete(by="bob"))

    async def _pause(self) -> None:
        until = self.random.choice([None, self.harness.now + timedelta(seconds=5)])
        await self.harness.store.steer_topic(self.random.choice(TOPICS), "pause", by="ann", until=until)

    async def _resume(self) -> None:
        await self.harness.store.steer_topic(self.random.choice(TOPICS), "resume", by="ann")


class DebouncedLives(RandomLives):
    """Random lives in which some jobs are enqueued with debounce."""

    verbs = (*RandomLives.verbs, *("debounce",) * 12)

    async def _debounce(self) -> None:
        chance, number = self.random, len(self.history.operations)
        window = chance.choice([Window(1.0), Window(10.0, 30.0)])
        new = new_job(
            f"{chance.randrange(16):x}193fb1e-0000-7000-8002-{number:012x}",
            chance.choice(TOPICS),
            {"number": number},
            key=f"d{chance.randrange(2)}",
            delay=window.seconds,
            priority=chance.choice([50, 100]),
            max_retries=chance.randrange(3),
        )
        line = debounce_line(new.topic, new.scope, new.scope_id, str(new.key))
        new = replace(new, if_live="debounce", line=line, debounce=window)
        [answer] = await self.harness.store.insert([new])
        said = {"id": answer.id, "existing": answer.existing}
        detail = {"topic": new.topic, "key": new.key, "scope_id": None, "debounce": {"number": number}}
        self._note("enqueue", [new.id], answer=said, detail=detail)


class PlainLives(RandomLives):
    """Random lives without lines, and without keys that count once."""

    verbs = tuple(verb for verb in _VERBS if verb != "enqueue_once")
    lines = False
