"""Random flows on a real store, beside an oracle that knows what must become of every job.

The oracle shares nothing with core/flows.py. It keeps no edges, only the state of each job. It goes through all jobs,
and changes what follows from the states, until nothing follows any more. The test sets the clock.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct, field

from rowlock.core.flows import ReleaseHold
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Requeue, Rescue
from rowlock.errors import FlowKeyTaken, UnknownParent
from tests.stores.flow_maker import Node, claim, end, make, node, only_named, tick
from tests.stores.harness import LEASE, Harness

LIVE = ("pending", "blocked", "processing", "cancel_requested")
BAD = ("failed", "cancelled", "expired")
CONDITIONS = (
    ("{}.status = 'completed'", lambda status, n: status == "completed"),
    ("{}.status != 'completed'", lambda status, n: status != "completed"),
    ("{}.result.n > 5", lambda status, n: status == "completed" and n is not None and n > 5),
)
_VERBS = (
    *("make",) * 5,
    *("claim",) * 8,
    *("settle",) * 12,
    *("cancel", "cancel", "requeue", "requeue", "requeue_many", "release", "release", "delete", "crash"),
    *("cancel_flow", "repeat", "unknown", "taken"),
)
_OUTCOMES = (*("complete",) * 6, *("fail",) * 4, "give_up", "retry", "release")


class Known(Struct):
    """A job, as the oracle sees it. `parents`: by id, with the policy and the condition. `forgiven`: parents whose bad
    end an operator accepts. `stopped`: its parents have cancelled it. `untaken`: they did because no condition was
    true. `last`: how a removed job had ended. `blank`: the parent whose result goes into its payload."""

    id: str
    name: str
    flow: str
    parents: dict[str, tuple[str, int | None]]
    status: str
    blank: str | None = None
    forgiven: set[str] = field(default_factory=set)
    stopped: bool = False
    untaken: bool = False
    last: str = ""
    n: int | None = None
    filled: bool = False
    expects: Any = None
    starts: int = 0

    @property
    def end(self) -> str | None:
        """How the job has ended, or None if it has not."""
        return None if self.status in LIVE else self.status if self.status != "gone" else self.last


class FlowWorld:
    def __init__(self, harness: Harness, seed: int, *, largest: int = 12) -> None:
        self.harness = harness
        self.store = harness.store
        self.random = Random(seed)
        self.jobs: dict[str, Known] = {}
        self.runs: list[Job] = []
        self.flows: list[Any] = []
        self.count = Counter[str]()
        self._largest = largest

    async def play(self, steps: int) -> None:
        """Do random things, and compare after each. At the end run all jobs: none may stay blocked."""
        await self.harness.reset()
        for _ in range(steps):
            verb = self.random.choice(_VERBS)
            await getattr(self, f"_{verb}")()
            await self._compare(verb)
        await self._drain()

    # ── The oracle's conclusions ──

    def _follow(self) -> None:
        """Change the jobs' states until nothing follows from them any more."""
        while any([self._follows(one) for one in self.jobs.values()]):  # noqa: C419 - each of them is asked
            pass

    def _follows(self, one: Known) -> bool:
        if not one.parents or one.status not in ("blocked", "cancelled"):
            return False
        ends = {parent: self.jobs[parent].end for parent in one.parents}
        bad = any(
            ends[parent] in BAD and policy == "cancel" and condition is None and parent not in one.forgiven
            for parent, (policy, condition) in one.parents.items()
        )
        if one.status == "cancelled":
            return self._comes_back(one, ends, bad)
        if bad:
            return self._stop(one)
        if None in ends.values():
            return False
        asked = [parent for parent, (_, condition) in one.parents.items() if condition is not None]
        if asked and not any(parent in one.forgiven or self._holds(one, parent) for parent in asked):
            one.untaken = True
            return self._stop(one)
        held = [
            parent
            for parent, (policy, condition) in one.parents.items()
            if policy == "hold" and condition is None and ends[parent] in BAD and parent not in one.forgiven
        ]
        if held:
            return False
        one.status = "pending"
        one.starts += 1
        if one.blank is not None and not one.filled:
            parent = self.jobs[one.blank]
            one.expects = {"n": parent.n} if parent.end == "completed" else None
            one.filled = True
        return True

    def _stop(self, one: Known) -> bool:
        one.status, one.stopped = "cancelled", True
        return True

    def _comes_back(self, one: Known, ends: dict[str, str | None], bad: bool) -> bool:
        """A job that its parents have stopped is blocked again when they are live and none of them stops it any more.
        Return True if it is."""
        if not one.stopped or bad:
            return False
        if one.untaken and all(
            ends[parent] is not None for parent, (_, condition) in one.parents.items() if condition is not None
        ):
            return False
        one.status, one.stopped, one.untaken = "blocked", False, False
        self._live_again(one)
        return True

    def _holds(self, one: Known, parent: str) -> bool:
        _, condition = one.parents[parent]
        known = self.jobs[parent]
        assert condition is not None
        return bool(CONDITIONS[condition][1](known.end, known.n))

    def _live_again(self, one: Known) -> None:
        """Forget that an operator accepted the job's end: the job will end anew."""
        for child in self._children(one):
            child.forgiven.discard(one.id)

    def _children(self, one: Known) -> Iterator[Known]:
        return (child for child in self.jobs.values() if one.id in child.parents)

    # ── Compare ──

    async def _compare(self, verb: str) -> None:
        await tick(self.store)
        self._follow()
        self.count[verb] += 1
        found = await self.store.read(list(self.jobs), Status)
        actual = {job_id: found[job_id].value if job_id in found else "gone" for job_id in self.jobs}
        expected = {job_id: one.status for job_id, one in self.jobs.items()}
        if actual != expected:
            wrong = [
                f"{one.name} of {one.flow} is {actual[one.id]}, not {one.status}: {one}"
                for one in self.jobs.values()
                if actual[one.id] != one.status
            ]
            raise AssertionError(f"after {verb} (step {sum(self.count.values())}):\n" + "\n".join(wrong))

    # ── Verbs ──

    async def _make(self) -> None:
        chance = self.random
        names: list[str] = []
        nodes: dict[str, Node] = {}
        conditions: dict[str, tuple[str, int]] = {}
        outside = [one for one in self.jobs if chance.random() < 0.1]
        for n in range(chance.randint(1, self._largest)):
            after = [name for name in names if chance.random() < 0.35] if chance.random() < 0.8 else []
            after += [one for one in outside if chance.random() < 0.2]
            inside = [name for name in after if name in names]
            policy, when, blank = chance.choice(["cancel", "cancel", "run", "hold"]), None, None
            name = f"n{n}"
            if inside and chance.random() < 0.3:
                parent, condition = chance.choice(inside), chance.randrange(len(CONDITIONS))
                when, conditions[name] = CONDITIONS[condition][0].format(parent), (parent, condition)
            elif inside and chance.random() < 0.4:
                blank = chance.choice(inside)
            payload = {"x": {"$result": blank}} if blank else {}
            nodes[name] = node(*after, if_failed=policy, payload=payload)
            if when is not None:
                nodes[name] = node(*after, if_failed=policy, payload=payload, when=when)
            names.append(name)
        flow = make(nodes)
        flow = only_named(flow, {nodes_: parent for nodes_, (parent, _) in conditions.items()})
        gone = [one for one in flow.outside if self.jobs[one].status == "gone"]
        try:
            await self.store.insert_flow(flow)
        except UnknownParent as error:
            if error.parent not in gone:
                raise
            return
        assert not gone
        self.flows.append(flow)
        ids = dict(zip(flow.nodes, (job.id for job in flow.jobs), strict=True))
        for name, made in nodes.items():
            asked = conditions.get(name)
            blank_of = (made.payload or {}).get("x", {}).get("$result")
            parents = {
                ids.get(parent, parent): (
                    made.if_failed,
                    asked[1] if asked is not None and parent == asked[0] else None,
                )
                for parent in made.after
            }
            status = "blocked" if parents else "pending"
            blank = ids[blank_of] if blank_of else None
            self.jobs[ids[name]] = Known(ids[name], name, flow.id[-4:], parents, status, blank)

    async def _claim(self) -> None:
        for job in await claim(self.store, limit=self.random.randint(1, 5)):
            known = self.jobs[job.id]
            assert known.status == "pending", f"{known} runs"
            known.status = "processing"
            if known.blank is not None:
                assert job.payload == {"x": known.expects}, f"{known} got {job.payload}"
            self.runs.append(job)

    async def _settle(self) -> None:
        if self.runs:
            await self._end(self.runs.pop(self.random.randrange(len(self.runs))), self.random.choice(_OUTCOMES))

    async def _end(self, run: Job, how: str) -> None:
        known = self.jobs[run.id]
        n = self.random.randrange(11)
        outcomes: dict[str, tuple[Outcome, str]] = {
            "complete": (Completed({"n": n}), "completed"),
            "fail": (Failed("boom", final=True), "failed"),
            "give_up": (GaveUp("no"), "cancelled"),
            "retry": (Failed("boom"), "pending"),
            "release": (Released(), "pending"),
        }
        if known.status == "cancel_requested" and how != "complete":
            how = "give_up"
        if how == "retry":  # a retried job would have to wait for its time
            how = "release"
        outcome, known.status = outcomes[how]
        known.n = n if how == "complete" else None
        run = (await self.store.read([run.id], Job))[run.id]
        await end(self.store, run, outcome)

    def _some(self, *statuses: str) -> list[Known]:
        return [one for one in self.jobs.values() if one.status in statuses]

    async def _cancel(self) -> None:
        if found := self._some("pending", "blocked", "processing"):
            await self._cancel_all(self.random.sample(found, min(len(found), self.random.randint(1, 3))))

    async def _cancel_flow(self) -> None:
        if self.flows and self.random.random() < 0.3:
            ids = {job.id for job in self.random.choice(self.flows).jobs}
            await self._cancel_all([one for one in self._some("pending", "blocked", "processing") if one.id in ids])

    async def _cancel_all(self, chosen: list[Known]) -> None:
        if chosen:
            await self.store.move([one.id for one in chosen], Cancel(by="ann"))
        for one in chosen:
            one.status = "cancel_requested" if one.status == "processing" else "cancelled"

    async def _requeue(self) -> None:
        if found := self._some(*BAD):
            await self._requeue_all([self.random.choice(found)])

    async def _requeue_many(self) -> None:
        if found := self._some(*BAD):
            await self._requeue_all(self.random.sample(found, self.random.randint(1, len(found))))

    async def _requeue_all(self, chosen: list[Known]) -> None:
        done = await self.store.move([one.id for one in chosen], Requeue(by="ann"))
        assert all(one.done for one in done)
        ended = {one: known.end for one, known in self.jobs.items()}
        for one in chosen:
            one.forgiven = {parent for parent in one.parents if ended[parent] is not None}
            one.status, one.stopped, one.untaken, one.n = "blocked", False, False, None
        for one in chosen:
            self._live_again(one)
            if not one.parents:
                one.status = "pending"
        for one in chosen:  # each job waits for parents that are live now, not for those that come back by this requeue
            self._follows(one)

    def _is_held(self, one: Known) -> bool:
        """Return True if the job is held: after `_follow`, it is blocked and has no live parent."""
        return one.status == "blocked" and all(self.jobs[parent].end is not None for parent in one.parents)

    def _is_held_by(self, child: Known, parent: Known) -> bool:
        holds = child.parents[parent.id] == ("hold", None) and parent.end in BAD and parent.id not in child.forgiven
        return holds and child.status == "blocked"

    async def _release(self) -> None:
        blocked = self._some("blocked")
        held = [one for one in blocked if self._is_held(one)]
        if self.random.random() < 0.7 and held:
            blocked = held
        if blocked:
            one = self.random.choice(blocked)
            [answer] = await self.store.move([one.id], ReleaseHold(by="ann"))
            assert answer.done == self._is_held(one), f"{one}: {answer}"
            if answer.done:
                one.forgiven = set(one.parents)

    async def _delete(self) -> None:
        found = self._some("pending", *BAD, "completed")
        if not found:
            return
        one = self.random.choice(found)
        [answer] = await self.store.move([one.id], Delete(by="ann"))
        children = [child for child in self._children(one) if child.status != "gone"]
        awaited = bool(children) if one.end is None else any(self._is_held_by(child, one) for child in children)
        assert answer.done != awaited, f"{one}: {answer}"
        if answer.done:
            one.last, one.status = one.end or "deleted", "gone"

    async def _crash(self) -> None:
        """A worker dies. Its jobs run again; those with a cancel request are cancelled."""
        if not self.runs or self.random.random() < 0.5:
            return
        await self.harness.advance(LEASE + 1)
        if self.random.random() < 0.5:
            for one in await self.store.move_due(CancelTimeout(by="m", grace=1.0)):
                self.jobs[one.id].status = "cancelled"
                self.runs = [run for run in self.runs if run.id != one.id]
        for one in await self.store.move_due(Rescue(by="m", backoff=[0.0])):
            assert one.status is not None
            self.jobs[one.id].status = one.status.value
        self.runs = []
        await self.harness.advance(1)
        await self.store.promote()

    async def _repeat(self) -> None:
        """A client that got no answer enqueues its flow again."""
        if self.flows:
            flow = self.random.choice(self.flows)
            if any(self.jobs[job.id].status == "gone" for job in flow.jobs):
                return  # the insert would make the removed job again
            try:
                answers = await self.store.insert_flow(flow, repeat=True)
            except UnknownParent:
                assert any(self.jobs[one].status == "gone" for one in flow.outside)
                return
            assert all(one.existing for one in answers)

    async def _unknown(self) -> None:
        nobody = make({"a": node()}).jobs[0].id
        flow = make({"a": node(), "b": node("a", nobody)})
        try:
            await self.store.insert_flow(flow)
        except UnknownParent:
            assert await self.store.read([job.id for job in flow.jobs], Status) == {}
            return
        raise AssertionError("a flow waits for nobody")

    async def _taken(self) -> None:
        flow = make({"a": node(key="same"), "b": node("a", key="same")})
        try:
            await self.store.insert_flow(flow)
        except FlowKeyTaken:
            assert await self.store.read([job.id for job in flow.jobs], Status) == {}
            return
        raise AssertionError("two jobs have one key")

    # ── The end ──

    async def _drain(self) -> None:
        """Complete every job that can run, and release every held job. Then no job is blocked."""
        for _ in range(10_000):
            await self._claim()
            for run in self.runs:
                await self._end(run, "complete")
            self.runs = []
            await self._compare("drain")
            if not self._some("pending", "processing", "cancel_requested"):
                held = [one for one in self._some("blocked") if self._is_held(one)]
                if not held:
                    break
                [answer] = await self.store.move([held[0].id], ReleaseHold(by="ann"))
                assert answer.done
                held[0].forgiven = set(held[0].parents)
                await self._compare("drain")
        assert self._some("blocked") == []
        await self._joins_fire_once()

    async def _joins_fire_once(self) -> None:
        """Each job was unblocked as often as the oracle says, which counts every start."""
        fired = "SELECT job_id, count(*) FROM _jobs_events WHERE event = 'unblocked' GROUP BY job_id"
        found = {str(job_id): count for job_id, count in await self.harness.fetch(fired)}
        for one in self.jobs.values():
            if one.parents and one.status != "gone":
                assert found.get(one.id, 0) == one.starts, f"{one} was unblocked {found.get(one.id, 0)} times"
        self.count["starts"] = sum(one.starts for one in self.jobs.values())
