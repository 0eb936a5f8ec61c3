"""rowlock: a job system that lives in the database you already have.

Importing it loads no database driver and no web framework; `open_store` imports the one that a URL asks for.
"""

from rowlock.core.ids import IdMaker
from rowlock.core.job import Event, Job, Lane, NewJob, Status, new_job
from rowlock.core.lifecycle import (
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    TimedOut,
    Transition,
    decide,
)
from rowlock.core.retry import FINAL, Delays, Exponential, Quadratic, RetryPolicy
from rowlock.jobs import Jobs
from rowlock.stores import open_store
from rowlock.stores.base import Enqueued
from rowlock.stores.reading import Filter, Page, Stats
from rowlock.tasks import Draft, Task

__version__ = "0.1.0"

__all__ = [
    "FINAL",
    "Completed",
    "Delays",
    "Draft",
    "Enqueued",
    "Event",
    "Exponential",
    "Failed",
    "Filter",
    "GaveUp",
    "IdMaker",
    "Job",
    "Jobs",
    "Lane",
    "NewJob",
    "Outcome",
    "Page",
    "Quadratic",
    "Released",
    "RetryPolicy",
    "Settlement",
    "Snoozed",
    "Stats",
    "Status",
    "Task",
    "TimedOut",
    "Transition",
    "decide",
    "new_job",
    "open_store",
]
