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
from rowlock.stores import open_store

__version__ = "0.1.0"

__all__ = [
    "FINAL",
    "Completed",
    "Delays",
    "Event",
    "Exponential",
    "Failed",
    "GaveUp",
    "IdMaker",
    "Job",
    "Lane",
    "NewJob",
    "Outcome",
    "Quadratic",
    "Released",
    "RetryPolicy",
    "Settlement",
    "Snoozed",
    "Status",
    "TimedOut",
    "Transition",
    "decide",
    "new_job",
    "open_store",
]
