"""Redaction over HTTP: every job that an answer shows passes here; and the route that reveals a job."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from rowlock.access import redaction
from rowlock.client.step_list import StepStatus
from rowlock.core.codec import check_text
from rowlock.core.flows import RESULT, blank_path
from rowlock.core.job import Event, Job, Log, LogLine
from rowlock.core.schedules import Schedule
from rowlock.core.steps import StoredStep
from rowlock.errors import InvalidInput
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import Asked, JobBody, Reason, StepBody, WaitBody, copied, unredacted_body
from rowlock.stores import reading
from rowlock.stores.queries import Filter, Page, check_place, make_cursor
from rowlock.stores.records import Entry

ROUTES = Routes()

_LOOKED_AT = 2000  # jobs whose errors one search reads
_AT_ONCE = 40  # jobs in memory: each may have some MB


class RevealBody(Asked, frozen=True, kw_only=True):
    """`reason` stands in the audit."""

    reason: Reason


class RevealAnswer(Struct, kw_only=True):
    """The job, its history and its log, with nothing hidden."""

    job: JobBody
    events: list[Event]
    logs: list[LogLine]


def job_body(call: Call, job: Job, steps: Sequence[StepStatus] = (), **more: Any) -> JobBody:
    hidden = call.redaction.hide(job, steps)
    told = [step_body(step, *said) for step, said in zip(steps, hidden.steps, strict=True)]
    return unredacted_body(
        hidden.job, redacted=hidden.paths or UNSET, steps=told or UNSET, wait=_wait(job, steps), **more
    )


def _wait(job: Job, steps: Sequence[StepStatus]) -> WaitBody | UnsetType:
    found = next((step for step in steps if step.is_open_wait and step.waits_for == job.waits_for), None)
    if found is None:
        return UNSET
    signal = None if found.kind == "sleep" else found.name
    return copied(WaitBody, found, signal=signal, until=found.deadline)


def step_body(step: StepStatus, result: Any, error: str | None) -> StepBody:
    return copied(StepBody, step, state=str(step.state), result=result, error=error)


async def stored_steps(call: Call, job: Job) -> Sequence[StoredStep]:
    """Return the steps whose secrets must be hidden in other texts of the job."""
    return await reading.steps(await call.store(), job.id) if call.redaction and job.step is not None else ()


def may_reveal(call: Call) -> bool:
    return call.identity.has("admin") and not call.identity.read_only and not call.api.settings.read_only


# ── Ways around redaction ──


def check_filter(call: Call, wanted: Filter) -> None:
    """Refuse a filter on a hidden field: the caller could find its value guess by guess."""
    pairs: Any = wanted.payload
    for path, value in pairs:
        hidden = call.redaction.hidden_in(value, ("payload", *path.split(".")))
        if hidden is not None and not may_reveal(call):
            raise denied(
                call.identity, f"{hidden} is redacted: only callers who may reveal it may filter by it", field="payload"
            )


def check_guesses(call: Call, wanted: Filter) -> None:
    """Refuse the same, and a filter by a part of the error, where jobs are counted or changed but not shown."""
    check_filter(call, wanted)
    if wanted.error is not None and call.redaction and not may_reveal(call):
        text = "error: only callers who may reveal jobs may filter by it; use fingerprint"
        raise denied(call.identity, text, field="error")


def check_unmarked(call: Call, payload: Any, before: Job | Schedule | None = None) -> None:
    """Refuse the mark as the value of a hidden field. If the caller edits the job or schedule `before`, also refuse it
    in any other text, unless that one held it already."""
    path = call.redaction.marked(payload)
    if path is None and before is not None and call.redaction and redaction.marked(before.payload) is None:
        path = redaction.marked(payload)
    if path is not None:
        raise InvalidInput(path, "redacted", f"holds {redaction.MARK}, which stands for a value that was not shown")


def check_results(call: Call, payload: Any, asked: Iterable[tuple[str, ...]], outside: Container[str]) -> None:
    """Refuse a job of a flow that would show what is hidden: its payload puts a hidden field of a result where it is
    not hidden, or its condition asks for one. `asked`: what the condition asks for. `outside`: names of jobs that were
    there before: their errors could be guessed letter by letter."""
    if not call.redaction or may_reveal(call):
        return
    for source, target in _moved(payload, ("payload",)):
        if call.redaction.shows(source, target):
            raise _redacted(call, ".".join(source), ".".join(target))
    for node, fact, *path in asked:
        hidden = fact == "result" and call.redaction.hides(("result", *path))
        if hidden or (fact == "error" and node in outside):
            raise _redacted(call, ".".join((node, fact, *path)), "when")


def _moved(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the paths of results that a payload asks for, and where they go. Positions in lists are no part of a
    path."""
    if isinstance(value, dict) and RESULT in value:
        _, *path = blank_path(value, ".".join(at))
        yield ("result", *(str(step) for step in path if not str(step).isdecimal())), at
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _moved(member, (*at, name))
    elif isinstance(value, list):
        for item in value:
            yield from _moved(item, at)


def _redacted(call: Call, hidden: str, field: str) -> Problem:
    return denied(call.identity, f"{hidden} is redacted: only callers who may reveal it may use it here", field=field)


async def search(call: Call, wanted: Filter, *, limit: int, offset: int, cursor: str | None) -> Page:
    """List jobs by a part of the error. A job counts only if its redacted error has that part: else a caller could
    guess a secret letter by letter. So `total` is only what was found on the way."""
    jobs = call.api.jobs
    if wanted.error is None or not call.redaction or may_reveal(call):
        return await jobs.list(wanted, limit=limit, offset=offset, cursor=cursor)
    place, part = check_place(limit, offset, cursor), wanted.error.lower()
    enough, found = place.offset + place.limit + 1, list[str]()
    for _ in range(_LOOKED_AT // _AT_ONCE):
        page = await jobs.list(wanted, limit=_AT_ONCE, cursor=cursor)
        cursor = page.next
        found += [job.id for job in page.items if part in (call.redaction.job(job).last_error or "").lower()]
        del page  # before the next one comes
        if cursor is None or len(found) >= enough:
            break
    shown, more = found[place.offset :][: place.limit], len(found) >= enough
    jobs_by_id = await (await call.store()).read(shown, Job)
    return Page(
        items=[jobs_by_id[job_id] for job_id in shown if job_id in jobs_by_id],
        total=len(found),
        total_capped=more or cursor is not None or place.after is not None,
        partial=not more and cursor is not None,
        next=make_cursor(shown[-1]) if more else cursor,
        limit=place.limit,
        offset=place.offset,
    )


# ── Reveal ──


@ROUTES.add(
    "POST", "/api/jobs/{id}/reveal", scope("admin"),
    "Show a job without redaction; the audit records who asked, and why",
)  # fmt: skip
async def reveal_job(call: Call, asked: RevealBody) -> RevealAnswer:
    """Show a whole job to a caller who gives a reason. The audit is written before the answer is sent."""
    reason = check_text(asked.reason, "reason", max_chars=2000)
    if not reason.strip():
        raise Problem("bad_length", "reason: say why", field="reason")
    job = await call.job("read")
    store = await call.store()
    events, log = await reading.events(store, job.id), (await store.read([job.id], Log)).get(job.id, Log([]))
    await store.write_records([], Entry(call.by, "reveal", job.topic, reason, job_id=job.id))
    found = await call.api.jobs.steps(job.id)
    steps = [step_body(step, step.result, step.error) for step in found]
    body = unredacted_body(job, steps=steps or UNSET, wait=_wait(job, found))
    return RevealAnswer(job=body, events=events, logs=log.lines)
