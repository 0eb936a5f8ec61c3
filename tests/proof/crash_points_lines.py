"""Crash points of lines: a job comes, a head ends, the next job is unblocked, a job goes to the end. Whichever process
is killed, the survivor's claims find the jobs that it left, and no job is blocked for ever."""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from rowlock.client.enqueue import safe_insert
from rowlock.core.debounce import Throttle, Window, debounce_line
from rowlock.core.job import Job, Lane, NewJob, new_job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Cancel, Delete, Requeue
from rowlock.core.templates import line_of
from tests.proof.crash_case import Act, Actor, case, simply, steps
from tests.proof.crash_stage import ACTOR, TOPIC, Facts, Stage, claim_by, new_ids, output, settlement
from tests.proof.history import History
from tests.proof.lives import World

KEY = "k"
LINE = line_of(TOPIC, None, None, KEY)


def _lined(job_id: str, if_live: str) -> NewJob:
    return replace(new_job(job_id, TOPIC, {}, key=KEY, max_retries=3), if_live=if_live, line=LINE)


async def _add(stage: Stage, if_live: str = "queue") -> str:
    job_id = new_ids.one()
    await stage.store.insert([_lined(job_id, if_live)])
    stage.asked("enqueue", [job_id], "ok")
    return job_id


async def _head(stage: Stage, *, fails: bool = False) -> Job:
    """Return a claimed job that leads its line. Another job stands behind it."""
    head = await _add(stage)
    [job] = (await stage.store.claim(claim_by(ACTOR))).jobs
    assert job.id == head
    stage.ran(job, fails=fails)
    await _add(stage)
    return job


async def _new(stage: Stage) -> Facts:
    await _add(stage)
    ids = [new_ids.one(), new_ids.one()]
    return {"id": ids[0], "ids": ids}


def _inserting(if_live: str) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        jobs = [_lined(job_id, if_live) for job_id in actor.facts["ids"]]
        return lambda: safe_insert(actor.store)(jobs)

    return ready


async def _new_once(stage: Stage) -> Facts:
    job_id = new_ids.one()
    return {"id": job_id, "ids": [job_id]}


async def _inserting_once(actor: Actor) -> Act:
    job = replace(new_job(actor.facts["id"], TOPIC, {}, key=KEY), once=LINE)
    return lambda: safe_insert(actor.store)([job])


def _debounced(job_id: str, n: int = 0) -> NewJob:
    new = new_job(job_id, TOPIC, {"n": n}, key=KEY, max_retries=3, delay=0.001)
    return replace(new, if_live="debounce", line=debounce_line(TOPIC, None, None, KEY), debounce=Window(0.001))


async def _inserting_debounced(actor: Actor) -> Act:
    return lambda: safe_insert(actor.store)([_debounced(actor.facts["id"])])


async def _waiting_debounced(stage: Stage) -> Facts:
    job_id = new_ids.one()
    await stage.store.insert([_debounced(job_id)])
    stage.asked("enqueue", [job_id], "ok")
    return {"id": job_id, "new": new_ids.one()}


async def _replacing(actor: Actor) -> Act:
    return lambda: safe_insert(actor.store)([_debounced(actor.facts["new"], 1)])


async def _inserting_throttled(actor: Actor) -> Act:
    job = replace(new_job(actor.facts["id"], TOPIC, {}, key=KEY), throttle=Throttle(LINE, 3600.0))
    return lambda: safe_insert(actor.store)([job])


async def _running_head(stage: Stage) -> Facts:
    job = await _head(stage)
    return {"id": job.id, "version": job.version}


async def _failing_head(stage: Stage) -> Facts:
    job = await _head(stage, fails=True)
    return {"id": job.id, "version": job.version}


def _settling(*, fails: bool = False) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
        one = settlement(job, Failed("boom", final=True) if fails else Completed(output(job)))
        return lambda: actor.store.settle([one])

    return ready


async def _dead_letter_of_a_line(stage: Stage) -> Facts:
    job = await _head(stage, fails=True)
    await stage.store.settle([settlement(job, Failed("boom", final=True))])
    return {"id": job.id}


async def _waiting_head(stage: Stage) -> Facts:
    head = await _add(stage)
    await _add(stage)
    return {"id": head}


async def _advancing(actor: Actor) -> Act:
    """A claim of another topic finds the note, too. It gets no job, so the survivor claims what it unblocks."""
    wish = replace(claim_by(ACTOR), lanes=(Lane("other"),))
    return lambda: actor.store.claim(wish)


def _next_of_line(history: History, facts: Facts) -> int:
    """Return how often any process unblocked the job behind the head."""
    lives = World(history).by_id[facts["next"]]
    return sum(step.move == "unblock" for life in lives for step in life.steps)


def _took_the_payload(history: History, facts: Facts) -> int:
    """Return how often the payload went to the waiting job, or to a new job if a worker had claimed the waiting one."""
    lives = [life for one in (facts["id"], facts["new"]) for life in World(history).by_id.get(one, ())]
    return sum(
        step.move in ("enqueue", "debounce") and step.new["payload"] == {"n": 1}
        for life in lives
        for step in life.steps
    )


async def _noted(stage: Stage) -> Facts:
    """The head has ended, and no process has read the note of it. On SQLite there is nothing left to do."""
    job = await _head(stage)
    await stage.store.settle([settlement(job, Completed(output(job)))])
    return {"id": job.id, "next": stage.operations[-1].ids[0]}


case("insert into a line", _new, _inserting("queue"), steps("enqueue"), asks="enqueue")
case("insert what replaces others", _new, _inserting("replace"), steps("enqueue"), asks="enqueue")
case("insert with a key that counts once", _new_once, _inserting_once, steps("enqueue"), asks="enqueue")
case("insert with debounce", _new_once, _inserting_debounced, steps("enqueue"), asks="enqueue")
case("replace a payload by debounce", _waiting_debounced, _replacing, _took_the_payload, once=False)
case("insert with throttle", _new_once, _inserting_throttled, steps("enqueue"), asks="enqueue")
case("complete the head of a line", _running_head, _settling(), steps("complete"))
case("fail the head of a line", _failing_head, _settling(fails=True), steps("fail"))
case(
    "cancel the head of a line", _waiting_head, simply(lambda s, one: s.move([one], Cancel(by=ACTOR))), steps("cancel")
)
case(
    "delete the head of a line", _waiting_head, simply(lambda s, one: s.move([one], Delete(by=ACTOR))), steps("delete")
)
case(
    "requeue into a line", _dead_letter_of_a_line, simply(lambda s, one: s.move([one], Requeue(by=ACTOR))),
    steps("requeue"),
)  # fmt: skip
case("advance a line", _noted, _advancing, _next_of_line, once=False)
