"""Make jobs that wait, without a worker: the store's own methods leave them as a run would."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rowlock.core import codec
from rowlock.core.job import Job, Lane
from rowlock.core.lifecycle import Settlement, Waits, decide
from rowlock.core.steps import StepMark, StepState
from rowlock.core.waits import SLEEP, Wait, WaitTerms, callback_name, is_step_name, signal_wait
from rowlock.stores import reading
from rowlock.stores.base import Awaited, Claim, Hold, Store

WORKER = "w-waits"
DECISION = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


async def run_of(store: Store, job_id: str, *, worker: str = WORKER, lease: float = 30.0) -> Job:
    """Claim the job and return its run. No other job of its topic may be due."""
    job = (await store.read([job_id], Job))[job_id]
    [claimed] = (await store.claim(Claim(worker, (Lane(job.topic, job.template_version),), 1, lease))).jobs
    assert claimed.id == job_id
    return claimed


async def mark(store: Store, run: Job, name: str, position: int, result: Any, **fields: Any) -> None:
    """Store a successful step, or a callback."""
    told = StepMark(
        id=run.id, version=run.version, worker=run.locked_by, name=name, position=position, function=name,
        state=StepState.SUCCEEDED, result=codec.encode(result, "result"), **{"n": 1, **fields},
    )  # fmt: skip
    assert await store.checkpoint([told]) != [Hold.LOST]


async def take(
    store: Store,
    run: Job,
    *,
    signal: str | None = "decision",
    n: int = 1,
    position: int = 10,
    seconds: float | None = None,
    until: datetime | None = None,
    schema: dict[str, Any] | None = None,
) -> Awaited:
    """Ask the store whether the run must wait. Return its answer."""
    return await store.take_signal(
        Wait(
            id=run.id,
            version=run.version,
            waits_for=SLEEP if signal is None else signal_wait(signal),
            n=n,
            position=position,
            seconds=seconds,
            until=until,
            terms=WaitTerms(seconds, schema).text,
            worker=run.locked_by,
        )
    )


async def suspend(store: Store, run: Job, taken: Awaited, signal: str | None = "decision") -> None:
    """End the run, so that its job waits."""
    steps = await reading.steps(store, run.id)
    undoes = any(is_step_name(one.name) and one.state is StepState.SUCCEEDED for one in steps)
    waits = Waits(SLEEP if signal is None else signal_wait(signal), taken.left, taken.seen, undoes)
    to = decide(run, waits, await store.now(), ran=0.0)
    [verdict] = (await store.settle([Settlement(run.id, run.version, to, run.locked_by)])).verdicts
    assert str(verdict.answer) == "applied"


async def waiting(
    store: Store,
    job_id: str,
    *,
    signal: str | None = "decision",
    seconds: float | None = None,
    schema: dict[str, Any] | None = None,
    steps: Sequence[str] = (),
    callback: float | bool = False,
) -> Job:
    """Make the job wait after these steps, and return it. `callback`: also give the signal an address that is valid for
    so many seconds, or forever if True."""
    run = await run_of(store, job_id)
    for position, name in enumerate(steps, 1):
        await mark(store, run, name, position, {"done": name})
    if callback is not False and signal is not None:
        lasts = None if callback is True else callback
        await mark(store, run, callback_name(signal), 9, {"timeout": lasts}, lasts=lasts)
    taken = await take(store, run, signal=signal, seconds=seconds, schema=schema)
    assert taken.state is StepState.RUNNING
    await suspend(store, run, taken, signal)
    return (await store.read([job_id], Job))[job_id]
