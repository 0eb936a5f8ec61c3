"""Every exception that rowlock raises on purpose, in one tree.

    RowlockError
    ├── InvalidInput          a value that you passed can't be used; .field and .code say which and why
    ├── JobNotFound           there is no such job, or it was deleted or pruned
    ├── InvalidState          the job's status doesn't allow this; .status
    │   ├── CancelUnsupported the topic's jobs can't be cancelled once a run has started
    │   └── ChildrenWait      other jobs of its flow still wait for its end
    ├── VersionPassed         the job has run again since then; .version is the expected one
    ├── JobFailed             jobs.result: the job failed or expired; .job
    ├── JobCancelled          jobs.result: the job was cancelled; .job
    ├── WrongResult           jobs.result: the result doesn't fit the handler's return annotation; .job and .problem
    ├── KeyTaken              another live job of its scope holds this (topic, key); .holder
    ├── TooManyTokens         the maker of browser tokens has reached a limit; .seconds until one ends
    ├── TemplateNotFound      the topic has no template, or none of this version
    ├── LimitNotFound         no topic of this name has a limit, and no limit has this name
    ├── TemplateExists        the topic has a template of this version already
    ├── TemplateDisabled      an operator has disabled the topic: no job can be enqueued
    ├── TemplateUnreadable    its record in the database is no template to this release; .problem says why
    ├── TemplateFrozen        schema or steps of a published version differ; .changed says how
    ├── ScheduleNotFound      there is no such schedule
    ├── ScheduleExists        the name is taken, or code declares the schedule; .name
    ├── ScheduleChanged       the schedule was changed since you read it; .revision is the current one
    ├── FlowNotFound          there is no such flow, or it was pruned
    ├── FlowRefused           the state of the flow doesn't allow this; .status
    ├── UnknownParent         a flow is to wait for a job that is not there; .parent
    ├── FlowKeyTaken          a live job has the key of a job of the flow; .holder
    ├── OnceTaken             the topic allows one job per key, ever; .first had it
    ├── SignalRefused         the job does not take this signal; .signal, .why and .status
    ├── IdTaken               the same id was enqueued before, with other content
    ├── BulkNotFound          there is no such bulk action, or it was pruned
    ├── BulkRefused           the bulk action's status doesn't allow this; .status
    ├── Final                 raised by a handler: the job has failed, don't retry
    │   ├── StepFailed        a step has failed for the last time; .step and .error
    │   ├── StepLimit         a step, or its result, is beyond a limit
    │   ├── StepChanged       the code does not fit a stored step any more; .step and .problem
    │   ├── WaitTimeout       no signal came in time; .signal and .timeout
    │   └── ChildFailed       a job that ctx.gather has started did not complete; .children
    ├── Snooze                raised by a handler: run the job later; costs no retry
    ├── Interrupted           this run must end; ctx.check() raises one of these
    │   ├── Cancelled         the job was cancelled; a handler may also raise it
    │   ├── TimeLimit         the run has taken longer than the job's timeout
    │   ├── LeaseLost         another worker may have the job now; this run can't write any more
    │   └── WorkerStopping    the worker is stopping; another one runs the job again
    ├── ConnectionRefused     the connection given as conn= can't carry a job; .code and .problem say why
    ├── WrongContext          jobs.sync was used in an event loop, or async code without one
    ├── MissingExtra          a needed package is not installed; the message says how to install it
    └── StoreError            the database refused or failed
        ├── StoreUnavailable  it can't be reached, or closed the connection; safe to try again
        │   ├── OutcomeUnknown    … and the statement may or may not have been carried out
        │   ├── StoreReadOnly     a read-only file, or a standby server; it may be promoted later
        │   └── NoSuchDatabase    the server has no database of this name, or the file's directory doesn't exist
        ├── StoreBusy         other transactions held a lock for too long
        ├── StoreFull         no disk space left
        ├── AccessDenied      wrong password, missing privilege
        ├── UnsafeFilesystem  SQLite on a network file system
        ├── NotMigrated       rowlock's tables are missing or too old: run `rowlock migrate`
        │   └── SchemaDamaged     … although all migrations were applied: a table or column was dropped
        ├── SchemaTooNew      the tables were made by a newer rowlock than this one
        ├── MigrationChanged  an applied migration differs from the one in this code
        ├── StoreClosed       the store was closed, or never opened
        └── ForkedStore       the store was opened before fork(); open a new one in the child

    Suspend                   a BaseException: the run ends here and goes on later; let it pass

Errors carry data, so that no caller has to parse a message. No message ever holds a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowlock.core.job import Job
    from rowlock.core.lifecycle import StepRetry, Waits


class RowlockError(Exception):
    """The base of every error that rowlock raises. It can be pickled, to reach another process unchanged."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[RowlockError], args: tuple[Any, ...], data: dict[str, Any]) -> RowlockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(data)
    return error


def last_line(error: str) -> str:
    """Return the exception's own line from the text of a traceback. The drawing of an exception group ends with a rule
    (+--): then it is a line of that drawing."""
    lines = [line for line in error.splitlines() if line.strip()]
    if lines and lines[-1].lstrip().startswith("+--"):
        lines = [line[4:] for line in lines if line.startswith("  | ") and not line[4:5].isspace()]
    return lines[-1].strip() if lines else ""


def plain_number(number: float) -> str:
    """Return the number as people write it: without an exponent, as far as that is readable."""
    return f"{number:,.0f}" if abs(number) >= 100_000 else f"{number:g}"


class InvalidInput(RowlockError, ValueError):
    """A value that can't be used. `field` names it (with a path inside JSON), `code` is stable for programs."""

    def __init__(self, field: str, code: str, problem: str) -> None:
        self.field = field
        self.code = code
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class JobNotFound(RowlockError, LookupError):
    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id} (it may have been deleted or pruned)")


class InvalidState(RowlockError):
    def __init__(self, job_id: str, verb: str, status: str, allowed: tuple[str, ...] = ()) -> None:
        self.job_id = job_id
        self.verb = verb
        self.status = status
        self.allowed = allowed
        needs = f"; {verb} needs {' or '.join(allowed)}" if allowed else ""
        if verb == "delete":
            needs = "; wait until its run has ended" if status == "cancel_requested" else "; cancel it first"
        super().__init__(f"can't {verb} job {job_id}: it is {status}{needs}")


class CancelUnsupported(InvalidState):
    """The topic's template says that a job can't be cancelled once a run has started."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(job_id, "cancel", status, ())
        self.args = (f"can't cancel job {job_id}: its topic doesn't support cancel once a run has started",)


class ChildrenWait(InvalidState):
    """Other jobs of its flow still wait for its end, or are held because of it."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(job_id, "delete", status, ())
        text = f"can't delete job {job_id}: other jobs of its flow wait for it, or are held because of it"
        self.args = (f"{text}. Cancel it, release or cancel the held jobs, or delete the whole flow",)


class VersionPassed(RowlockError):
    def __init__(self, job_id: str, verb: str, version: int) -> None:
        self.job_id = job_id
        self.verb = verb
        self.version = version
        super().__init__(f"can't {verb} job {job_id}: it has run again since version {version}")


class JobFailed(RowlockError):
    """`jobs.result` has no result: the job failed or expired. `job.last_error` has the whole traceback."""

    def __init__(self, job: Job) -> None:
        self.job = job
        why = last_line(job.last_error or "")
        super().__init__(f"job {job.id} ({job.topic}) {job.status}" + (f": {why}" if why else ""))


class JobCancelled(RowlockError):
    """`jobs.result` has no result: the job was cancelled. Not `Cancelled`, which ends a handler's own run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(
            f"job {job.id} ({job.topic}) was cancelled" + (f": {why}" if (why := job.cancel_reason) else "")
        )


class WrongResult(RowlockError):
    """The job is completed, but its result is not of the type that its handler's annotation names."""

    def __init__(self, job: Job, problem: str) -> None:
        self.job = job
        self.problem = problem
        super().__init__(
            f"job {job.id} ({job.topic}) is completed, but {problem}. Correct the handler's return annotation, "
            "or read the plain JSON: (await jobs.get(id)).result"
        )


class KeyTaken(RowlockError):
    """A live job has the key of a job that is to run again. `flow_id`: the whole flow was to be requeued."""

    def __init__(self, job_id: str, key: str, holder: str, flow_id: str | None = None) -> None:
        self.job_id = job_id
        self.key = key
        self.holder = holder
        self.flow_id = flow_id
        if flow_id is None:
            text = f"can't requeue job {job_id}: job {holder} is live with the same key {key!r}"
        else:
            text = f"can't requeue flow {flow_id}: job {holder} is live with the key {key!r} of its job {job_id}"
            text += ". Nothing was requeued: wait until that job has ended, or cancel it"
        super().__init__(text)


class TooManyTokens(RowlockError):
    """The maker has `most` valid tokens, in all or for this job or scope (`for_one`). `seconds`: until the first of
    them ends."""

    def __init__(self, most: int, seconds: float, *, for_one: bool) -> None:
        self.most = most
        self.seconds = ceil(seconds)
        self.for_one = for_one
        of = " for this job or scope" if for_one else ""
        super().__init__(f"{most} tokens{of} are still good: use one of them, or wait {self.seconds} s")


class ScheduleNotFound(RowlockError):
    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no schedule {name!r}. `rowlock schedules list` shows all of them, with their scopes"
        )


class ScheduleExists(RowlockError):
    """`owner`: the module whose code declares it; None: it was put."""

    def __init__(self, name: str, owner: str | None, what_to_do: str) -> None:
        self.name = name
        self.owner = owner
        there = f"there is a schedule {name!r} already" if owner is None else f"the code of {owner} declares {name!r}"
        super().__init__(f"{there}: {what_to_do}")


class ScheduleChanged(RowlockError):
    """`revision`: the current one."""

    def __init__(self, name: str, expected: int, revision: int) -> None:
        self.name = name
        self.expected = expected
        self.revision = revision
        super().__init__(
            f"the schedule {name!r} has revision {revision}, not {expected}: read it again, then change it"
        )


class OnceTaken(RowlockError):
    """The topic allows one job per key, ever (`once`)."""

    def __init__(self, topic: str, key: str, first: str) -> None:
        self.topic = topic
        self.key = key
        self.first = first
        super().__init__(f"the topic {topic} allows one job per key, and job {first} had the key {key!r}")


class FlowNotFound(RowlockError):
    def __init__(self, flow_id: str) -> None:
        self.flow_id = flow_id
        super().__init__(f"there is no flow {flow_id}, or it was pruned")


class FlowRefused(RowlockError):
    """The state of the flow, or of its jobs, doesn't allow this."""

    def __init__(self, flow_id: str, verb: str, status: str, why: str) -> None:
        self.flow_id = flow_id
        self.verb = verb
        self.status = status
        super().__init__(f"can't {verb} flow {flow_id}: {why}")


class UnknownParent(RowlockError):
    """A flow is to wait for a job that is not there. `field`: the entry that is to wait, such as jobs[2].after."""

    def __init__(self, parent: str, field: str = "after") -> None:
        self.parent = parent
        self.field = field
        super().__init__(f"the flow can't wait for job {parent}: there is no such job, or it was deleted or pruned")


class FlowKeyTaken(RowlockError):
    """A live job has the key of a job of the flow. Nothing of the flow is written. `field`: of the job of the flow.
    `holder` None: an earlier job of the same flow has the key, `sibling`."""

    def __init__(
        self, topic: str, key: str, holder: str | None, field: str = "key", sibling: str | None = None
    ) -> None:
        self.topic = topic
        self.key = key
        self.holder = holder
        self.field = field
        self.sibling = sibling
        if holder is None:
            text = f"{sibling} and {field} of the topic {topic} are the same, {key!r}: give each job another key"
        else:
            text = f"job {holder} of the topic {topic} has the key {key!r}"
        super().__init__(f"the flow can't be enqueued: {text}")


class TemplateNotFound(RowlockError):
    def __init__(self, topic: str, version: int | None) -> None:
        self.topic = topic
        self.version = version
        which = "no template" if version is None else f"no template of version {version}"
        super().__init__(f"the topic {topic} has {which}")


class LimitNotFound(RowlockError):
    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} has no limits")


class TemplateExists(RowlockError):
    def __init__(self, topic: str, version: int) -> None:
        self.topic = topic
        self.version = version
        super().__init__(
            f"the topic {topic} has a template of version {version} already: change it, or raise the version"
        )


class TemplateDisabled(RowlockError):
    def __init__(self, topic: str, version: int) -> None:
        self.topic = topic
        self.version = version
        super().__init__(f"version {version} of the topic {topic} is disabled: an operator must enable it first")


class TemplateUnreadable(RowlockError):
    def __init__(self, topic: str, version: int | None, problem: str) -> None:
        self.topic = topic
        self.version = version
        self.problem = problem
        which = "the template" if version is None else f"version {version} of the template"
        super().__init__(f"{which} of {topic} in the database can't be read: {problem}. Publish or create it again")


class TemplateFrozen(RowlockError):
    """From version 1 on, schema and steps don't change. `.changed` has the fields, with both values."""

    def __init__(self, topic: str, version: int, changed: dict[str, tuple[Any, Any]]) -> None:
        self.topic = topic
        self.version = version
        self.changed = changed
        fields = "".join(
            f"\n  {name}: {before!r} is stored, {after!r} is new" for name, (before, after) in changed.items()
        )
        super().__init__(
            f"version {version} of the topic {topic} has another {' and other '.join(changed)} in the database. Give "
            f"the task the next version (version={version + 1}), or restore it:{fields}"
        )


class IdTaken(RowlockError):
    def __init__(self, job_id: str, field: str) -> None:
        self.job_id = job_id
        self.field = field
        super().__init__(f"id: job {job_id} exists already, with another {field}")


class BulkNotFound(RowlockError, LookupError):
    def __init__(self, bulk_id: str) -> None:
        self.bulk_id = bulk_id
        super().__init__(f"no bulk action {bulk_id} (a preview is kept for an hour, a started one for a week)")


class BulkRefused(RowlockError):
    def __init__(self, bulk_id: str, verb: str, status: str, problem: str) -> None:
        self.bulk_id = bulk_id
        self.verb = verb
        self.status = status
        super().__init__(f"can't {verb} bulk action {bulk_id} ({status}): {problem}")


class ConnectionRefused(RowlockError):
    """The caller's connection (`conn=`) can't carry a job; nothing was written on it. `kind` says what it is, `code` is
    stable for programs: closed, autocommit, failed_transaction, read_only, no_transaction, no_tables, no_permission,
    another_database, wrong_dialect, in_memory, too_old."""

    def __init__(self, kind: str, code: str, problem: str) -> None:
        self.kind = kind
        self.code = code
        self.problem = problem
        super().__init__(f"conn ({kind}): {problem}")


class Final(RowlockError):
    """`raise Final("no such customer")`: the job has failed and is not retried."""


class StepFailed(Final):
    """A step with a retry policy of its own has failed for the last time. Catch it to undo what other steps have done.
    If it leaves the handler, the job fails for good. `error` is the text of the step's error, with its traceback."""

    def __init__(self, step: str, error: str) -> None:
        self.step = step
        self.error = error
        why = last_line(error)
        super().__init__(f"the step {step} has failed for good" + (f": {why}" if why else ""))


class StepLimit(Final):
    """A step, or its result, is beyond a limit: docs/steps.md has them."""


class StepChanged(Final):
    """The stored data of a step does not fit the code that runs now."""

    def __init__(self, step: str, problem: str, way_out: str) -> None:
        self.step = step
        self.problem = problem
        super().__init__(
            f"the step {step} has changed: {problem}. {way_out}, or give the task a new version=. For this job alone, "
            "an operator can requeue it without its stored steps: jobs.requeue(id, keep_steps=False)"
        )


class WaitTimeout(Final):
    """`ctx.wait_for` has no default, and no signal came in time. Catch it to go on without. If it leaves the handler,
    the job fails for good."""

    def __init__(self, signal: str, timeout: float | None) -> None:
        self.signal = signal
        self.timeout = timeout
        within = "" if timeout is None else f" (its timeout is {plain_number(timeout)} s)"
        super().__init__(f"the signal {signal} had not come when the wait ended{within}")


class ChildFailed(Final):
    """Jobs that `ctx.gather` or `ctx.run` has started did not complete. It is raised when all have ended. `children`:
    the id, the status and the error of each that did not complete. If it leaves the handler, the job fails for good; a
    requeue of the job also requeues these."""

    def __init__(self, children: Sequence[tuple[str, str, str | None]], total: int) -> None:
        self.children = tuple(children)
        job_id, status, error = self.children[0]
        last = (error or "").strip().splitlines()[-1:]
        said = f": {last[0][:500]}" if last else ""
        rest = "" if len(self.children) == 1 else f", and {len(self.children) - 1} more of {total}"
        super().__init__(f"job {job_id}, which this job has started, is {status}{said}{rest}")


class SignalRefused(RowlockError):
    """Nothing was stored. `why` is stable for programs: known (a signal with this id has come before), full (the job
    has too many unread signals), late (the callback's time is over), gone (there is no such callback any more)."""

    def __init__(self, job_id: str, signal: str, why: str, status: str) -> None:
        self.job_id = job_id
        self.signal = signal
        self.why = why
        self.status = status
        problem = {
            "known": "a signal with this id has come before",
            "full": "it has 1,000 signals that it has not read",
            "late": "the time for an answer is over",
        }.get(why, "it does not ask for this answer any more")
        super().__init__(f"job {job_id} does not take the signal {signal}: {problem}")


class Suspend(BaseException):
    """Raised by ctx.step, ctx.sleep and ctx.wait_for through the handler: the run ends here, and the job goes on later.
    Let it pass. `outcome`: what the run has come to. `text`: which call ends the run."""

    def __init__(self, outcome: StepRetry | Waits, text: str) -> None:
        self.outcome = outcome
        self.text = text
        super().__init__(f"{text} ends the run here, and the job goes on later: let this pass")


def suspension(error: BaseException) -> Suspend | None:
    """Return the Suspend that ended a handler: alone, or in a group of nothing else, as task groups raise it."""
    if isinstance(error, Suspend):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [suspension(one) for one in error.exceptions]
        if all(found):
            return found[0]
    return None


class Snooze(RowlockError):
    """`raise Snooze(30)`: run the job again after so many seconds, a timedelta, or at a time. Costs no retry."""

    def __init__(self, until: float | timedelta | datetime) -> None:
        self.until = until
        super().__init__(f"snoozed until {until}" if isinstance(until, datetime) else f"snoozed for {until}")


class Interrupted(RowlockError):
    """This run must end. Don't catch it: catching it only delays the end."""


class Cancelled(Interrupted):
    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__("cancelled" if reason is None else f"cancelled: {reason}")


class TimeLimit(Interrupted):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the run has taken longer than its timeout of {plain_number(seconds)} s")


class WorkerStopping(Interrupted):
    def __init__(self) -> None:
        super().__init__("the worker is stopping; another one runs the job again, and it keeps its retries")


class LeaseLost(Interrupted):
    def __init__(self, job_id: str, version: int) -> None:
        self.job_id = job_id
        self.version = version
        super().__init__(f"run {version} of job {job_id} lost its lease; nothing was written")


class WrongContext(RowlockError, RuntimeError):
    """Sync code where an event loop runs, or async code where none does. The message says what to call instead."""


class MissingExtra(RowlockError, ImportError):
    """An optional part of rowlock is not installed."""

    def __init__(self, extra: str, package: str) -> None:
        self.extra = extra
        self.package = package
        super().__init__(f"{package} is not installed: pip install 'rowlock[{extra}]'")


class StoreError(RowlockError):
    """The database refused or failed. The driver's own exception is the __cause__."""


class StoreUnavailable(StoreError):
    pass


class OutcomeUnknown(StoreUnavailable):
    """The connection broke, or the Jobs were closed, after the statement was sent. It may or may not be committed.

    Every verb may be repeated safely: a job keeps its id, and a worker's writes carry the version.
    """


class StoreReadOnly(StoreUnavailable):
    """Nothing was written. The server is a standby now; it may become the primary again."""


class NoSuchDatabase(StoreUnavailable):
    """The URL is probably wrong. Or the database is being restored."""


class StoreBusy(StoreError):
    pass


class StoreFull(StoreError):
    pass


class AccessDenied(StoreError):
    pass


class UnsafeFilesystem(StoreError):
    pass


class NotMigrated(StoreError):
    pass


class SchemaDamaged(NotMigrated):
    """Migrations can't repair it: they have been applied. `rowlock migrate` names what is missing, and what to do."""


class SchemaTooNew(StoreError):
    pass


class MigrationChanged(StoreError):
    pass


class StoreClosed(StoreError):
    pass


class ForkedStore(StoreError):
    pass
