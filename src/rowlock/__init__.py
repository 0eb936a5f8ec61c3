"""rowlock: a job system that lives in the database you already have.

A name is imported when it is first asked for: the command line and the supervisor of workers need only a few of them.
No database driver is loaded before a URL asks for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowlock.client.flows import EnqueuedFlow, Flow, Node
    from rowlock.client.schedules import Preview
    from rowlock.client.signals import Key
    from rowlock.client.step_list import StepStatus
    from rowlock.client.why import Why
    from rowlock.context import Context, SyncContext
    from rowlock.core.cron import Cron, Every
    from rowlock.core.debounce import Debounce
    from rowlock.core.ids import IdMaker
    from rowlock.core.job import Event, Job, Lane, Log, LogLine, NewJob, Status, new_job
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
        Waits,
        decide,
    )
    from rowlock.core.limits import Concurrency, Fair, Rate
    from rowlock.core.retry import FINAL, Delays, Exponential, Quadratic, RetryPolicy
    from rowlock.core.schedules import Fired, Schedule
    from rowlock.core.steps import StepState
    from rowlock.core.templates import Cancel
    from rowlock.errors import (
        AccessDenied,
        BulkNotFound,
        BulkRefused,
        Cancelled,
        CancelUnsupported,
        ChildFailed,
        ChildrenWait,
        ConnectionRefused,
        Final,
        FlowKeyTaken,
        FlowNotFound,
        FlowRefused,
        ForkedStore,
        IdTaken,
        Interrupted,
        InvalidInput,
        InvalidState,
        JobCancelled,
        JobFailed,
        JobNotFound,
        KeyTaken,
        LeaseLost,
        LimitNotFound,
        MigrationChanged,
        MissingExtra,
        NoSuchDatabase,
        NotMigrated,
        OnceTaken,
        OutcomeUnknown,
        RowlockError,
        ScheduleChanged,
        ScheduleExists,
        ScheduleNotFound,
        SchemaDamaged,
        SchemaTooNew,
        SignalRefused,
        Snooze,
        StepChanged,
        StepFailed,
        StepLimit,
        StoreBusy,
        StoreClosed,
        StoreError,
        StoreFull,
        StoreReadOnly,
        StoreUnavailable,
        Suspend,
        TemplateDisabled,
        TemplateExists,
        TemplateFrozen,
        TemplateNotFound,
        TemplateUnreadable,
        TimeLimit,
        TooManyTokens,
        UnknownParent,
        UnsafeFilesystem,
        VersionPassed,
        WaitTimeout,
        WorkerStopping,
        WrongContext,
        WrongResult,
    )
    from rowlock.jobs import Jobs
    from rowlock.signals import Callback, Signal
    from rowlock.steps import Step, step
    from rowlock.stores import open_store
    from rowlock.stores.base import Enqueued, WorkerInfo
    from rowlock.stores.bulk import Bulk, BulkItem
    from rowlock.stores.failures import Failure, Failures
    from rowlock.stores.queries import Filter, Page, Stats
    from rowlock.tasks import INJECTED, Draft, Recurring, Task

__version__ = "0.1.0"

__all__ = [
    "FINAL",
    "INJECTED",
    "AccessDenied",
    "Bulk",
    "BulkItem",
    "BulkNotFound",
    "BulkRefused",
    "Callback",
    "Cancel",
    "CancelUnsupported",
    "Cancelled",
    "ChildFailed",
    "ChildrenWait",
    "Completed",
    "Concurrency",
    "ConnectionRefused",
    "Context",
    "Cron",
    "Debounce",
    "Delays",
    "Draft",
    "Enqueued",
    "EnqueuedFlow",
    "Event",
    "Every",
    "Exponential",
    "Failed",
    "Failure",
    "Failures",
    "Fair",
    "Filter",
    "Final",
    "Fired",
    "Flow",
    "FlowKeyTaken",
    "FlowNotFound",
    "FlowRefused",
    "ForkedStore",
    "GaveUp",
    "IdMaker",
    "IdTaken",
    "Interrupted",
    "InvalidInput",
    "InvalidState",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "Jobs",
    "Key",
    "KeyTaken",
    "Lane",
    "LeaseLost",
    "LimitNotFound",
    "Log",
    "LogLine",
    "MigrationChanged",
    "MissingExtra",
    "NewJob",
    "NoSuchDatabase",
    "Node",
    "NotMigrated",
    "OnceTaken",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "Preview",
    "Quadratic",
    "Rate",
    "Recurring",
    "Released",
    "RetryPolicy",
    "RowlockError",
    "Schedule",
    "ScheduleChanged",
    "ScheduleExists",
    "ScheduleNotFound",
    "SchemaDamaged",
    "SchemaTooNew",
    "Settlement",
    "Signal",
    "SignalRefused",
    "Snooze",
    "Snoozed",
    "Stats",
    "Status",
    "Step",
    "StepChanged",
    "StepFailed",
    "StepLimit",
    "StepState",
    "StepStatus",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "Suspend",
    "SyncContext",
    "Task",
    "TemplateDisabled",
    "TemplateExists",
    "TemplateFrozen",
    "TemplateNotFound",
    "TemplateUnreadable",
    "TimeLimit",
    "TimedOut",
    "TooManyTokens",
    "Transition",
    "UnknownParent",
    "UnsafeFilesystem",
    "VersionPassed",
    "WaitTimeout",
    "Waits",
    "Why",
    "WorkerInfo",
    "WorkerStopping",
    "WrongContext",
    "WrongResult",
    "decide",
    "new_job",
    "open_store",
    "step",
]

_HOMES = {
    "rowlock.client.flows": "EnqueuedFlow Flow Node",
    "rowlock.client.schedules": "Preview",
    "rowlock.client.signals": "Key",
    "rowlock.core.cron": "Cron Every",
    "rowlock.core.debounce": "Debounce",
    "rowlock.core.schedules": "Fired Schedule",
    "rowlock.client.step_list": "StepStatus",
    "rowlock.core.steps": "StepState",
    "rowlock.client.why": "Why",
    "rowlock.context": "Context SyncContext",
    "rowlock.core.ids": "IdMaker",
    "rowlock.core.job": "Event Job Lane Log LogLine NewJob Status new_job",
    "rowlock.core.lifecycle": (
        "Completed Failed GaveUp Outcome Released Settlement Snoozed TimedOut Transition Waits decide"
    ),
    "rowlock.core.limits": "Concurrency Fair Rate",
    "rowlock.core.retry": "FINAL Delays Exponential Quadratic RetryPolicy",
    "rowlock.core.templates": "Cancel",
    "rowlock.errors": (
        "AccessDenied BulkNotFound BulkRefused CancelUnsupported Cancelled ChildFailed ChildrenWait ConnectionRefused "
        "Final FlowKeyTaken FlowNotFound FlowRefused ForkedStore IdTaken Interrupted InvalidInput InvalidState "
        "JobCancelled JobFailed JobNotFound KeyTaken LeaseLost LimitNotFound MigrationChanged MissingExtra "
        "NoSuchDatabase NotMigrated OnceTaken OutcomeUnknown RowlockError ScheduleChanged ScheduleExists "
        "ScheduleNotFound SchemaDamaged SchemaTooNew SignalRefused Snooze StepChanged StepFailed StepLimit StoreBusy "
        "StoreClosed StoreError StoreFull StoreReadOnly StoreUnavailable Suspend TemplateDisabled TemplateExists "
        "TemplateFrozen TemplateNotFound TemplateUnreadable TimeLimit TooManyTokens UnknownParent UnsafeFilesystem "
        "VersionPassed WaitTimeout WorkerStopping WrongContext WrongResult"
    ),
    "rowlock.jobs": "Jobs",
    "rowlock.signals": "Callback Signal",
    "rowlock.steps": "Step step",
    "rowlock.stores": "open_store",
    "rowlock.stores.base": "Enqueued WorkerInfo",
    "rowlock.stores.failures": "Failure Failures",
    "rowlock.stores.bulk": "Bulk BulkItem",
    "rowlock.stores.queries": "Filter Page Stats",
    "rowlock.tasks": "INJECTED Draft Recurring Task",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
