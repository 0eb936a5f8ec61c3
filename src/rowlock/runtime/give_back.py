"""Give back jobs that a worker holds in the database, although it has no runs of them."""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Settlement, Transition
from rowlock.stores.base import Beat, Store


async def give_back(store: Store, held: Sequence[Beat], why: str) -> None:
    """Give back these jobs, at no cost of a retry. A job with a cancel request becomes cancelled. If it was claimed to
    undo something, another run undoes it."""
    if not held:
        return
    back = Transition(event="released", status=Status.PENDING, delay=None, reason=why)
    settled = await store.settle([_settlement(beat, back) for beat in held])
    answers = zip(held, settled.verdicts, strict=True)
    changed = [beat for beat, verdict in answers if verdict.answer is Answer.CHANGED]
    if not changed:
        return
    jobs = await store.read([beat.id for beat in changed], Job)
    gone = Transition(event="cancelled", status=Status.CANCELLED, reason=why)
    later = Transition(event="wait_cancelled", status=Status.CANCEL_REQUESTED, reason=why)
    await store.settle([_settlement(beat, later if _undoes(jobs.get(beat.id)) else gone) for beat in changed])


def _undoes(job: Job | None) -> bool:
    """True if the job was cancelled before it was claimed. Only jobs with something to undo are claimed after that."""
    if job is None or job.cancel_requested_at is None or job.claimed_at is None:
        return False
    return job.cancel_requested_at <= job.claimed_at


def _settlement(beat: Beat, to: Transition) -> Settlement:
    return Settlement(beat.id, beat.version, to, beat.worker)
