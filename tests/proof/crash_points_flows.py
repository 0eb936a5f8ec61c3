"""Crash points of flows: a flow is made, parents end, a process looks at their children, a run starts children.
Whichever process is killed, the survivor's claims find the jobs that it left, and no job is blocked for ever."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from rowlock.client.enqueue import insert_flow
from rowlock.core.flows import NewFlow
from rowlock.core.job import Job, Lane
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Cancel, Requeue
from tests.proof.crash_case import Act, Actor, case, simply, steps
from tests.proof.crash_stage import ACTOR, TOPIC, Facts, Stage, claim_by, new_ids, output, settlement
from tests.proof.history import History
from tests.proof.lives import World
from tests.proof.witness import EDGES
from tests.stores.flow_maker import children_of, make, node

COUNT = 3  # children that a run starts


def _flow(ids: list[str], flow_id: str) -> NewFlow:
    """Return a flow of two parents, a child that joins them, and a job that runs after the join, however it ends."""
    left, right, join, last = ids
    options: dict[str, Any] = {"max_retries": 3}
    nodes = {
        "left": node(id=left, **options),
        "right": node(id=right, **options),
        "join": node("left", "right", id=join, payload={"x": {"$result": "left"}}, **options),
        "last": node("join", if_failed="run", id=last, **options),
    }
    return make(nodes, topic=TOPIC, flow_id=flow_id)


async def _new(stage: Stage) -> Facts:
    ids = [new_ids.one() for _ in range(4)]
    return {"id": ids[0], "ids": ids, "flow": new_ids.one()}


async def _inserting(actor: Actor) -> Act:
    flow = _flow(actor.facts["ids"], actor.facts["flow"])
    return lambda: insert_flow(actor.store, flow, named=False)


async def _there(stage: Stage) -> Facts:
    facts = await _new(stage)
    await stage.store.insert_flow(_flow(facts["ids"], facts["flow"]))
    stage.asked("enqueue", facts["ids"], "ok")
    return facts


async def _runs(stage: Stage, *, fails: bool = False) -> tuple[Facts, list[Job]]:
    """Make a flow and claim both parents. Return the facts and the claimed jobs."""
    facts = await _there(stage)
    jobs = sorted((await stage.store.claim(claim_by(ACTOR))).jobs, key=lambda job: facts["ids"].index(job.id))
    assert len(jobs) == 2
    stage.ran(jobs[0], fails=fails)
    stage.ran(jobs[1])
    return facts, jobs


def _last_parent(*, fails: bool = False) -> Callable[[Stage], Awaitable[Facts]]:
    async def prepare(stage: Stage) -> Facts:
        facts, (left, right) = await _runs(stage, fails=fails)
        await stage.store.settle([settlement(right, Completed(output(right)))])
        return {"id": left.id, "version": left.version, "next": facts["ids"][2]}

    return prepare


def _settling(*, fails: bool = False) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
        one = settlement(job, Failed("boom", final=True) if fails else Completed(output(job)))
        return lambda: actor.store.settle([one])

    return ready


async def _ended(stage: Stage) -> Facts:
    """Both parents have ended. On PostgreSQL no process may have looked at the second end yet."""
    facts, jobs = await _runs(stage)
    await stage.store.settle([settlement(job, Completed(output(job))) for job in jobs])
    return {"id": facts["id"], "next": facts["ids"][2]}


async def _looking(actor: Actor) -> Act:
    """A claim of another topic looks at ended parents, too. It gets no job, so the survivor claims what it unblocks."""
    wish = replace(claim_by(ACTOR), lanes=(Lane("other"),))
    return lambda: actor.store.claim(wish)


def _joined(history: History, facts: Facts) -> int:
    """Return how often any process unblocked the join."""
    lives = World(history).by_id[facts["next"]]
    return sum(step.move == "unblock" for life in lives for step in life.steps)


async def _failed(stage: Stage) -> Facts:
    facts, (left, right) = await _runs(stage, fails=True)
    await stage.store.settle([settlement(left, Failed("boom", final=True))])
    await stage.store.settle([settlement(right, Completed(output(right)))])
    return {"id": facts["id"]}


async def _starter(stage: Stage) -> Facts:
    job = await stage.claimed()
    return {"id": job.id, "version": job.version}


async def _starting(actor: Actor) -> Act:
    job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
    children = children_of(job, 1, COUNT, topic=TOPIC)
    return lambda: actor.store.start_children(children)


def _children(history: History, facts: Facts) -> int:
    made = [one.after for one in history.changes if one.table == EDGES and one.op == "insert" and one.after]
    count = len([edge for edge in made if edge["child"] == facts["id"]])
    assert count % COUNT == 0, "some of them were started"
    return count // COUNT


case("insert a flow", _new, _inserting, steps("enqueue"), asks="enqueue")
case("complete the last parent of a join", _last_parent(), _settling(), steps("complete"))
case("fail a parent of a join", _last_parent(fails=True), _settling(fails=True), steps("fail"))
case("look at the ends of parents", _ended, _looking, _joined, once=False)
case("cancel a parent", _there, simply(lambda store, one: store.move([one], Cancel(by=ACTOR))), steps("cancel"))
case("requeue a parent", _failed, simply(lambda store, one: store.move([one], Requeue(by=ACTOR))), steps("requeue"))
case("start children", _starter, _starting, _children)
