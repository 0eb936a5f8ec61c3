"""Give back jobs that a worker holds in the database, although it has no runs of them."""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.core.job import Status
from rowlock.core.lifecycle import Answer, Settlement, Transition
from rowlock.stores.base import Beat, Store


async def give_back(store: Store, held: Sequence[Beat], why: str) -> None:
    """Costs no job a retry. A job with a cancel request becomes cancelled."""
    if not held:
        return
    back = Transition(event="released", status=Status.PENDING, delay=None, reason=why)
    settled = await store.settle([_settlement(beat, back) for beat in held])
    answers = zip(held, settled.verdicts, strict=True)
    cancelled = [beat for beat, verdict in answers if verdict.answer is Answer.CHANGED]
    gone = Transition(event="cancelled", status=Status.CANCELLED, reason=why)
    await store.settle([_settlement(beat, gone) for beat in cancelled])


def _settlement(beat: Beat, to: Transition) -> Settlement:
    return Settlement(beat.id, beat.version, to, beat.worker)
