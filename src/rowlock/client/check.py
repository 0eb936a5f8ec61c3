"""Compare new code with the database before a deploy: `rowlock check app:jobs`. It only reads, within bounds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo
from typing import Any, Literal

from msgspec import Struct

from rowlock.client.definitions import read_templates
from rowlock.client.firing import zone_of
from rowlock.core.job import Job, Lane, Status
from rowlock.core.schedules import Schedule, ScheduleName, blanks_of, fill
from rowlock.core.steps import StoredStep
from rowlock.core.templates import Stored, frozen_difference
from rowlock.core.waits import is_step_name
from rowlock.errors import InvalidInput
from rowlock.steps import step_of
from rowlock.stores import reading
from rowlock.stores.base import Store
from rowlock.stores.queries import MAX_LIMIT, Filter
from rowlock.stores.schedules import ScheduleFilter
from rowlock.tasks import Task

Check = Literal["payload", "version", "topic", "frozen", "disabled", "step", "schedule", "limit"]
Lanes = Mapping[Lane, Task[Any, Any, Any]]
StoredTemplates = Mapping[str, Mapping[int, Stored]]

_STATUSES = (Status.PENDING, Status.BLOCKED, Status.WAITING)  # the new code will run them
_RUNNING = (Status.PROCESSING, Status.CANCEL_REQUESTED)  # it will, if they are released or fail
_SAMPLES = 5
_SCHEDULES = 1000  # read at once


class Misfit(Struct):
    """Something that the new code can't do. `count` jobs are affected; `jobs` are the ids of some of them. `schedule`:
    the name of the schedule whose jobs would be refused."""

    check: Check
    topic: str
    version: int
    text: str
    count: int = 0
    jobs: list[str] = []
    schedule: str | None = None


Misfits = dict[tuple[str, ...], Misfit]  # by what is wrong, and where


class Comparison(Struct, frozen=True):
    """`checked`: how many jobs were read. `partial`: there are more jobs, or more schedules, than were read."""

    checked: int
    partial: bool
    findings: list[Misfit]


async def compare(
    store: Store, lanes: Lanes, *, limit: int, declared: Container[ScheduleName] = (), owner: str | None = None
) -> Comparison:
    """Return what the tasks in `lanes` can't do with the jobs, templates and schedules that are there. Read the newest
    `limit` jobs, the steps of as many running jobs, and as many schedules. `declared`: the schedules of the new code,
    whose module is `owner`. They replace the stored ones."""
    there = await read_templates(store)
    stored = there.stored
    findings = _templates(lanes, stored)
    new = {(task.topic, task.version): task.template for task in lanes.values()}
    for topic, texts in there.misfits(new.values()).items() if new else ():
        version = max(version for name, version in new if name == topic)
        findings += [Misfit("limit", topic, version, text) for text in texts]
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
    of_schedules, all_of_them = await _schedules(store, lanes, stored, declared, owner, limit)
    return Comparison(checked, partial or not all_of_them, [*findings, *misfits.values(), *of_schedules])


def _templates(lanes: Lanes, stored: StoredTemplates) -> list[Misfit]:
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
        return  # only the workers elsewhere know which versions they run
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
    """Return the advice that comes before was=: from version 1 on, the names of a version's steps are frozen."""
    version = job.template_version
    return (
        f"give the task version={version + 1} and runs=[{version}], and " if version and task.version == version else ""
    )


async def _schedules(
    store: Store,
    lanes: Lanes,
    stored: StoredTemplates,
    declared: Container[ScheduleName],
    owner: str | None,
    limit: int,
) -> tuple[list[Misfit], bool]:
    """Return the schedules whose jobs the new code would refuse, and whether all schedules were read."""
    own = {lane.topic for lane in lanes}
    found: list[Misfit] = []
    after, read = None, 0
    while read < limit:
        page = await store.schedules(ScheduleFilter(), after=after, limit=min(_SCHEDULES, limit - read))
        if not page:
            return found, True
        read += len(page)
        after = page[-1].name, page[-1].id
        for one in page:
            replaced = ScheduleName(one.name, one.scope, one.scope_id) in declared
            gone = one.absent or (owner is not None and one.owner == owner)
            if one.topic in own and one.next_run_at is not None and not replaced and not gone:
                found += _schedule(one, lanes, stored.get(one.topic, {}))
    return found, not await store.schedules(ScheduleFilter(), after=after, limit=1)


def _schedule(schedule: Schedule, lanes: Lanes, stored: Mapping[int, Stored]) -> list[Misfit]:
    version = schedule.version
    if version is None:  # the newest one after the deploy
        tasks = {task.version for lane, task in lanes.items() if lane.topic == schedule.topic}
        disabled = {number for number, one in stored.items() if not one.enabled}
        version = max((tasks | stored.keys()) - disabled, default=max(tasks))
    task = lanes.get(Lane(schedule.topic, version))
    if task is None:
        if any(other.is_external for lane, other in lanes.items() if lane.topic == schedule.topic):
            return []
        problem = f"its jobs have version {version}, and the code runs {_numbers(lanes, schedule.topic)}"
        return [_misfit(schedule, version, f"{problem}; add runs=[{version}] to a task, or change the schedule")]
    template = task.template
    problems = []
    if not template.schedulable:
        problems.append("the task says schedulable=False")
    if template.has_window:
        problems.append("the task has debounce or throttle, which a schedule can't keep")
    if schedule.if_live != "allow" and (template.key is not None or template.once):
        problems.append('if_live: the task has a key of its own; change the schedule to if_live="allow"')
    try:
        task.arguments.values(fill(schedule.payload, _blanks(schedule)))
    except InvalidInput as error:
        problems.append(str(error))
    return [_misfit(schedule, version, problem) for problem in problems]


def _misfit(schedule: Schedule, version: int, problem: str) -> Misfit:
    text = f"the schedule {schedule.name!r}: {problem}"
    return Misfit("schedule", schedule.topic, version, text, schedule=schedule.name)


def _blanks(schedule: Schedule) -> Mapping[str, str]:
    """Return the blanks of the schedule's next time."""
    local: tzinfo = UTC
    with suppress(InvalidInput):  # this machine does not know the zone
        local = zone_of(schedule)
    return blanks_of(schedule, schedule.next_run_at or schedule.upto, local)


def _numbers(lanes: Lanes, topic: str) -> str:
    known = _versions(lanes, topic)
    return f"version{'' if len(known) == 1 else 's'} {', '.join(map(str, known))}"


def _versions(lanes: Iterable[Lane], topic: str) -> Sequence[int]:
    return sorted(lane.template_version for lane in lanes if lane.topic == topic)


def _add(misfits: Misfits, job: Job, check: Check, place: str, text: str) -> None:
    key = (check, job.topic, str(job.template_version), place)
    found = misfits.setdefault(key, Misfit(check, job.topic, job.template_version, text))
    found.count += 1
    if len(found.jobs) < _SAMPLES:
        found.jobs.append(job.id)
