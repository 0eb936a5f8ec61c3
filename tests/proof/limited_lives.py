"""Random lives of topics that have limits."""

from msgspec import to_builtins
from msgspec.structs import replace

from rowlock.core.job import new_job
from rowlock.core.limits import LIMITED, Concurrency, Limit, Limited, Rate, share_of
from rowlock.stores.records import Write
from tests.proof.random_lives import PlainLives
from tests.proof.witness import Witness

LIMITS: dict[str, tuple[Limit, ...]] = {
    "mail": (Concurrency(2, by="scope_id"), Concurrency(4, name="desk"), Rate(5, per=20.0, burst=2)),
    "bills": (Concurrency(3), Concurrency(4, name="desk"), Rate(3, per=10.0)),
}


class LimitedLives(PlainLives):
    verbs = (
        *("enqueue_some", "enqueue_some", *("claim",) * 6, *("settle",) * 4, *("pass_time",) * 4, "heartbeat"),
        *("maintain", "maintain", "kill", "cancel", "cancel", "requeue", "update", "transaction"),
    )

    async def play_on(self, witness: Witness, steps: int) -> None:
        limited = {topic: to_builtins(Limited(limits)) for topic, limits in LIMITS.items()}
        await self.harness.store.write_records([Write(LIMITED, topic, data) for topic, data in limited.items()])
        await super().play_on(witness, steps)

    async def _enqueue_some(self) -> None:
        """Enqueue jobs of three tenants. In a topic with a limit by tenant, each job has the share of its tenant."""
        number, topic = len(self.history.operations), self.random.choice(list(LIMITS))
        ids = [f"{number % 16:x}193fb1e-0000-7000-8003-{number * 4 + n:012x}" for n in range(3)]
        jobs = [new_job(one, topic, {}, scope_id=self.random.choice("abc"), max_retries=2) for one in ids]
        fields = ["scope_id"] if topic == "mail" else []
        answers = await self.harness.store.insert([replace(one, share=share_of(fields, one, {})) for one in jobs])
        for job, answer in zip(jobs, answers, strict=True):
            detail = {"topic": topic, "key": None, "scope_id": job.scope_id}
            self._note("enqueue", [job.id], answer={"id": answer.id, "existing": answer.existing}, detail=detail)

    async def _pass_time(self) -> None:
        """Advance the clock, but never by more than a rate's window."""
        await self.harness.advance(self.random.choice([0.1, 1.0, 3.0, 10.0]))
