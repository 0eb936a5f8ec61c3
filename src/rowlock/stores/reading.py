"""Questions of callers about one job, over `Store.read`."""

from __future__ import annotations

from rowlock.core.job import Event, History
from rowlock.core.steps import StoredStep, StoredSteps
from rowlock.stores.base import Store


async def steps(store: Store, job_id: str) -> list[StoredStep]:
    """Return the stored steps of a job, live or archived, by position."""
    found = (await store.read([job_id], StoredSteps)).get(job_id)
    return [] if found is None else found.items


async def events(store: Store, job_id: str) -> list[Event]:
    """Return the history of a job, oldest first."""
    found = (await store.read([job_id], History)).get(job_id)
    return [] if found is None else found.events
