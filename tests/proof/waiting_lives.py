"""Random lives whose handlers wait: for signals, for times, and for the outside. See random_lives.py."""

from msgspec import UNSET

from rowlock.core.codec import decode, encode
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import GaveUp, Outcome, Waits
from rowlock.core.moves import AcknowledgeCallback, ReportCallback, Resume, Signal, SignalSent, Wake
from rowlock.core.steps import STEP_ENDS, StepMark, StepState, StoredStep
from rowlock.core.waits import Wait, callback_name, is_step_name
from rowlock.stores import reading
from rowlock.stores.base import Hold
from tests.proof.random_lives import PlainLives
from tests.stores.harness import Harness

SIGNALS = ("go", "stop")
# What handlers wait for, one after the other, and the seconds after which each wait ends by itself.
PLANS: tuple[tuple[tuple[str, float | None], ...], ...] = (
    (("signal:go", None), ("sleep", 3.0), ("signal:go", 20.0)),
    (("signal:go", 20.0), ("signal:stop", None)),
    (("sleep", 90.0), ("signal:stop", 4.0), ("signal:stop", 4.0)),
)
_WAITING = (
    *("ask",) * 8,
    *("signal",) * 6,
    *("settle", "claim", "maintain"),
    *("callback", "callback", "step", "report", "report", "cancel_waiting", "cancel_waiting", "cancel_suspended"),
    *("signal_again", "answer", "acknowledge", "acknowledge", "wake"),
)


class WaitingLives(PlainLives):
    """Random lives with waits. The driver asks for the first wait that has not ended, as a run does that replays."""

    verbs = (*PlainLives.verbs, *_WAITING)

    def __init__(self, seed: int, harness: Harness | None = None) -> None:
        super().__init__(seed, harness)
        self._suspended: dict[tuple[str, int], Waits] = {}
        self._stored: set[tuple[str, SignalSent]] = set()

    async def _reuse(self) -> None:
        """Forget the runs of removed jobs before another job gets one of their ids."""
        running = {job.id for job, _ in self.running}
        self._suspended = {run: waits for run, waits in self._suspended.items() if run[0] in running}
        await super()._reuse()

    # ── Runs ──

    async def _ask(self) -> None:
        for job, worker in self.random.sample(self.running, min(len(self.running), 3)):
            if (job.id, job.version) not in self._suspended:
                await self._reach_a_wait(job, worker)

    async def _reach_a_wait(self, job: Job, worker: str) -> None:
        stored = {(step.name, step.n): step for step in await reading.steps(self.harness.store, job.id)}
        wait = self._next_wait(job, worker, stored)
        if wait is None:
            return
        answer = await self.harness.store.take_signal(wait)
        if self.random.random() < 0.1:  # the reply was lost: the repeat gets the same answer
            assert await self.harness.store.take_signal(wait) == answer
        if answer.hold is Hold.LOST:
            self.running.remove((job, worker))
            self._ran(job, worker, ended=self.now, error="LeaseLost", told="lost")
        elif answer.hold is Hold.KEPT and answer.state is StepState.RUNNING:
            undoes = any(is_step_name(name) and one.state is StepState.SUCCEEDED for (name, _), one in stored.items())
            self._suspended[job.id, job.version] = Waits(wait.waits_for, answer.left, answer.seen, undoes)

    def _next_wait(self, job: Job, worker: str, stored: dict[tuple[str, int], StoredStep]) -> Wait | None:
        number = int(job.id[-2:], 16)
        counted: dict[str, int] = {}
        for place, (waits_for, seconds) in enumerate(PLANS[number % len(PLANS)]):
            n = counted[waits_for] = counted.get(waits_for, 0) + 1
            wait = Wait(
                id=job.id,
                version=job.version,
                waits_for=waits_for,
                n=n,
                position=10 + place,
                seconds=seconds,
                default='"nothing"' if number % 2 and waits_for != "sleep" else UNSET,
                worker=worker,
            )
            known = stored.get((wait.name, n))
            if known is None or known.state not in STEP_ENDS:
                return wait
        return None

    def _outcome(self, job: Job) -> Outcome:
        if job.status is Status.CANCEL_REQUESTED:  # the run has undone its steps
            return GaveUp()
        return self._suspended.pop((job.id, job.version), None) or super()._outcome(job)

    # ── Signals ──

    async def _candidates(self) -> list[str]:
        """Return waiting jobs, running jobs, or any jobs."""
        waiting = [str(one) for (one,) in await self.harness.fetch("SELECT id FROM _jobs WHERE status = 'waiting'")]
        running = [job.id for job, _ in self.running]
        return self.random.choice([sorted(waiting), sorted(waiting), running]) or self._some()

    async def _signal(self) -> None:
        chance = self.random
        ids = await self._candidates()
        if ids:
            number = len(self.history.operations)
            data = encode({"signal": number, "text": "é"}, "data")
            sent = SignalSent(chance.choice(SIGNALS), data, chance.choice([None, f"s{number}", f"s{number % 4}"]))
            await self._send(chance.choice(ids), sent, lost=chance.random() < 0.2)

    async def _send(self, job_id: str, sent: SignalSent, *, number: int | None = None, lost: bool = False) -> None:
        by = "ann" if number is None else "the outside"
        [changed] = await self.harness.store.move([job_id], Signal(by=by, sent=sent, number=number))
        # Another signal may have this id. Then the store knows that signal, and refuses this one.
        known = changed.why == "known" and (job_id, sent) in self._stored
        if changed.done:
            self._stored.add((job_id, sent))
        outcome = "unknown" if lost else "ok" if changed.done or known else "fail"
        detail = {"name": sent.name, "id": sent.id, "data": decode(sent.data), "number": number}
        self._note("signal", [job_id], outcome, answer={"known": known}, detail=detail)

    async def _signal_again(self) -> None:
        """Repeat a signal whose reply was lost, with the same id."""
        lost = [one for one in self.history.operations if one.verb == "signal" and one.outcome == "unknown"]
        lost = [one for one in lost if one.detail and one.detail["id"] is not None]
        if lost:
            one = self.random.choice(lost)
            assert one.detail is not None
            sent = SignalSent(one.detail["name"], encode(one.detail["data"], "data"), one.detail["id"])
            await self._send(one.ids[0], sent, number=one.detail["number"])

    # ── The outside ──

    async def _callback(self) -> None:
        marks = [
            StepMark(
                id=job.id,
                version=job.version,
                worker=worker,
                name=callback_name("go"),
                n=1,
                position=9,
                function="",
                state=StepState.SUCCEEDED,
                result='{"timeout":30}',
                lasts=self.random.choice([None, 30.0]),
            )
            for job, worker in self.running[:3]
        ]
        await self.harness.store.checkpoint(marks)

    async def _answer(self) -> None:
        for job_id in (await self._candidates())[:2]:
            data = encode({"answer": len(self.history.operations)}, "data")
            await self._send(job_id, SignalSent("go", data, "@callback:go#1"), number=1)

    async def _report(self) -> None:
        order = ReportCallback(by="the outside", signal="go", number=1, timeout=30.0, percent=40.0, message="on it")
        for job_id in (await self._candidates())[:2]:
            await self.harness.store.move([job_id], order)

    async def _acknowledge(self) -> None:
        """Let the outside acknowledge a cancel."""
        told = "SELECT id FROM _jobs WHERE status = 'cancel_requested' ORDER BY id"
        if not await self.harness.fetch(told):
            called = "SELECT job_id FROM _jobs_steps WHERE name = '@callback:go' ORDER BY job_id"
            await self._cancel_these([str(job_id) for (job_id,) in await self.harness.fetch(called)])
        for (job_id,) in await self.harness.fetch(told):
            order = AcknowledgeCallback(by="the outside", signal="go", number=1)
            await self.harness.store.move([str(job_id)], order)

    # ── Time and operators ──

    async def _maintain(self) -> None:
        await self.harness.store.move_due(Resume(by="m1"))
        await super()._maintain()

    async def _wake(self) -> None:
        await self.harness.store.move((await self._candidates())[:2], Wake(by="ann"))

    async def _cancel_waiting(self) -> None:
        await self._cancel_these((await self._candidates())[:2])

    async def _cancel_suspended(self) -> None:
        """Cancel runs that are about to wait."""
        await self._cancel_these([job_id for job_id, _ in self._suspended][:2])
