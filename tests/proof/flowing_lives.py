"""Random lives in which some jobs wait for other jobs. See random_lives.py."""

from typing import Any

from rowlock.core.flows import NewFlow, ReleaseHold
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome
from rowlock.core.moves import Requeue
from rowlock.errors import FlowKeyTaken, UnknownParent
from tests.proof.flow_world import CONDITIONS
from tests.proof.random_lives import TOPICS, PlainLives
from tests.stores.flow_maker import Node, make, node, only_named

_FLOWS = (
    *("flow",) * 5,
    *("settle",) * 8,
    *("claim",) * 6,
    *("maintain", "requeue_some", "requeue_some", "release_hold", "release_hold", "flow_again"),
)


class FlowingLives(PlainLives):
    verbs = (*(verb for verb in PlainLives.verbs if verb not in ("reuse", "update", "pause", "resume")), *_FLOWS)

    def _outcome(self, job: Job) -> Outcome:
        """Return an outcome that ends the job, mostly: the jobs that wait for it must see its end."""
        if self.random.random() < 0.3:
            return super()._outcome(job)
        ends: list[Outcome] = [
            *(Completed({"n": self.random.randrange(11), "job": job.id, "run": job.version}),) * 4,
            *(Failed("boom", final=True),) * 2,
            GaveUp("no"),
        ]
        return self.random.choice(ends)

    async def _flow(self) -> None:
        chance = self.random
        outside = chance.sample(self._made(), min(1, len(self._made()))) if chance.random() < 0.3 else []
        nodes: dict[str, Node] = {}
        named: dict[str, str] = {}
        for n in range(chance.randint(1, 6)):
            inside = [name for name in nodes if chance.random() < 0.5]
            after = [*inside, *(one for one in outside if chance.random() < 0.5)]
            options: dict[str, Any] = {"topic": chance.choice(TOPICS), "max_retries": chance.randrange(2)}
            options["if_failed"] = chance.choice(["cancel", "cancel", "run", "hold"])
            if inside and chance.random() < 0.3:
                named[f"n{n}"] = chance.choice(inside)
                options["when"] = chance.choice(CONDITIONS)[0].format(named[f"n{n}"])
            elif inside and chance.random() < 0.4:
                options["payload"] = {"x": {"$result": chance.choice(inside)}}
            if chance.random() < 0.1:
                options["key"] = chance.choice(["k1", "k2", "k3"])
            nodes[f"n{n}"] = node(*after, id=self._new_id(n), **options)
        await self._insert(only_named(make(nodes, flow_id=self._new_id(15)), named))

    def _new_id(self, n: int) -> str:
        """Return an id whose time is far from now, as in all random lives. So no partition of the archive is made for
        it."""
        return f"{self.random.randrange(16):x}193fb1e-0000-7000-8002-{len(self.history.operations) * 16 + n:012x}"

    def _made(self) -> list[str]:
        return sorted({one for operation in self.history.operations for one in operation.ids})

    async def _insert(self, flow: NewFlow, *, repeat: bool = False) -> None:
        details = [{"topic": job.topic, "key": job.key, "scope_id": None} for job in flow.jobs]
        try:
            answers = await self.harness.store.insert_flow(flow, repeat=repeat)
        except (FlowKeyTaken, UnknownParent):
            for job, detail in zip(flow.jobs, details, strict=True):
                self._note("enqueue", [job.id], "fail", detail=detail)
            return
        for job, detail, answer in zip(flow.jobs, details, answers, strict=True):
            said = {"id": answer.id, "existing": answer.existing}
            self._note("enqueue", [job.id], answer=said, detail=detail)
        self._last = flow

    _last: NewFlow | None = None

    async def _flow_again(self) -> None:
        if self._last is not None:
            ids = [job.id for job in self._last.jobs]
            if len(await self.harness.store.read(ids, Job)) == len(ids):
                await self._insert(self._last, repeat=True)

    async def _requeue_some(self) -> None:
        await self.harness.store.move(self._some(), Requeue(by="ann"))

    async def _release_hold(self) -> None:
        await self.harness.store.move(self._made(), ReleaseHold(by="ann"))
