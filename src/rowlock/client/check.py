"""Compare new code with the database before a deploy: `rowlock check app:jobs`. It only reads, within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from rowlock.client.definitions import read_templates
from rowlock.core.job import Job, Lane, Status
from rowlock.core.steps import StoredStep
from rowlock.core.templates import Stored, frozen_difference
from rowlock.core.waits import is_step_name
from rowlock.errors import InvalidInput
from rowlock.steps import step_of
from rowlock.stores import reading
from rowlock.stores.base import Store
from rowlock.stores.queries import MAX_LIMIT, Filter
from rowlock.tasks import Task

Check = Literal["payload", "version", "topic", "frozen", "disabled", "step"]
Lanes = Mapping[Lane, Task[Any, Any, Any]]

_STATUSES = (Status.PENDING, Status.BLOCKED, Status.WAITING)  # the new code will run them
_RUNNING = (Status.PROCESSING, Status.CANCEL_REQUESTED)  # it will, if they are released or fail
_SAMPLES = 5


class Misfit(Struct):
    """Something that the new code can't do. `count` jobs are affected; `jobs` are the ids of some of them."""

    check: Check
    topic: str
    version: int
    text: str
    count: int = 0
    jobs: list[str] = []


Misfits = dict[tuple[str, ...], Misfit]  # by what is wrong, and where


class Comparison(Struct, frozen=True):
    """`checked`: how many jobs were read. `partial`: there are more jobs than that."""

    checked: int
    partial: bool
    findings: list[Misfit]


async def compare(store: Store, lanes: Lanes, *, limit: int) -> Comparison:
    """Return what the tasks in `lanes` can't do with the jobs and templates that are there. Read the newest `limit`
    jobs; of running jobs, as many, and only their steps."""
    stored = (await read_templates(store)).stored
    findings = _templates(lanes, stored)
    own = {lane.topic for lane in lanes}
    # A worker that shares no topic with the code belongs to another application.
    elsewhere = {topic for worker in await store.workers() if own.isdisjoint(worker.topics) for topic in worker.topics}
    misfits: Misfits = {}
    checked, partial = 0, False
    for statuses in (_STATUSES, _RUNNING):
        read, cursor = 0, None
        while read < limit:
            page = await store.list(Filter(statuses=statuses), limit=min(MAX_LIMIT, limit - read), cursor=cursor)
            read += len(page.items)
            for job in page.items:
                if statuses is _STATUSES:
                    _job(job, lanes, elsewhere, misfits)
                task = lanes.get(Lane(job.topic, job.template_version))
                if job.step is not None and task is not None and not task.is_external:
                    published = stored.get(job.topic, {}).get(job.template_version)
                    _steps(job, task, published, await reading.steps(store, job.id), misfits)
            cursor = page.next
            if cursor is None:
                break
        checked += read
        partial = partial or cursor is not None
    return Comparison(checked, partial, [*findings, *misfits.values()])


def _templates(lanes: Lanes, stored: Mapping[str, Mapping[int, Stored]]) -> list[Misfit]:
    found = []
    own = {(task.topic, task.version): task for task in lanes.values()}
    for (topic, version), task in sorted(own.items()):
        before = stored.get(topic, {}).get(version)
        if before is None:
            continue
        if frozen := frozen_difference(before.template, task.template):
            what = f"another {' and other '.join(frozen)} was published"
            text = f"{what} under this version; give the task version={version + 1}, or restore it"
            found.append(Misfit("frozen", topic, version, text))
        if not before.enabled:
            text = f"it is disabled, so enqueue is refused; rowlock templates enable {topic}@{version} allows it"
            found.append(Misfit("disabled", topic, version, text))
    return found


def _job(job: Job, lanes: Lanes, elsewhere: set[str], misfits: Misfits) -> None:
    version = job.template_version
    task = lanes.get(Lane(job.topic, version))
    if task is not None:
        try:
            task.arguments.values(job.payload)
        except InvalidInput as error:
            _add(misfits, job, "payload", error.field, str(error))
        return
    if any(other.is_external for lane, other in lanes.items() if lane.topic == job.topic):
        return  # which versions are run is known to the workers elsewhere only
    known = _versions(lanes, job.topic)
    if known:
        there = ", ".join(map(str, known))
        _add(
            misfits,
            job,
            "version",
            "",
            f"the code runs the versions {there}, not this one; add runs=[{version}] to a task",
        )
    elif job.topic not in elsewhere:  # else it belongs to another application
        _add(misfits, job, "topic", "", "no task of the code and no worker of another application has this topic")


def _steps(
    job: Job, task: Task[Any, Any, Any], published: Stored | None, found: Sequence[StoredStep], misfits: Misfits
) -> None:
    """Compare what is stored of a job's steps with those that the new code declares. A step that was not declared
    before, beside others that were, is one that the handler names itself: it can't be compared."""
    declared = [step_of(function) for function in task.policy.steps]
    names = {name: step for step in declared for name in (step.name, *step.was)}
    functions = {name for step in declared for name in (step.function_name, *step.was)}
    before = {info.name for info in published.template.steps} if published is not None else set()
    for row in {row.name: row for row in found if is_step_name(row.name)}.values():  # once for all calls of a name
        step = names.get(row.name)
        if step is not None and row.function not in (step.function_name, *step.was):
            text = (
                f"{row.name}: {row.function!r} has stored it, and the code calls {step.function_name!r} under this name"
            )
            way_out = f'{_freely(task, job)}add was="{row.function}" if it does the same'
            _add(misfits, job, "step", row.name, f"{text}; {way_out}")
        elif step is None and row.function not in functions and (row.name in before or (declared and not before)):
            text = f"{row.name}: it is stored, but not among the steps of the code"
            way_out = f'if it was renamed, {_freely(task, job)}add was="{row.name}" to the new one'
            _add(misfits, job, "step", row.name, f"{text}; {way_out}")


def _freely(task: Task[Any, Any, Any], job: Job) -> str:
    """Return what is needed beside was=: from version 1 on, the names of a version's steps are frozen."""
    version = job.template_version
    return (
        f"give the task version={version + 1} and runs=[{version}], and " if version and task.version == version else ""
    )


def _versions(lanes: Iterable[Lane], topic: str) -> Sequence[int]:
    return sorted(lane.template_version for lane in lanes if lane.topic == topic)


def _add(misfits: Misfits, job: Job, check: Check, place: str, text: str) -> None:
    key = (check, job.topic, str(job.template_version), place)
    found = misfits.setdefault(key, Misfit(check, job.topic, job.template_version, text))
    found.count += 1
    if len(found.jobs) < _SAMPLES:
        found.jobs.append(job.id)
