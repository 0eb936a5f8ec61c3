"""What is not shown, and how it is: every job that leaves does so through here."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from rowlock.access import redaction
from rowlock.core.codec import check_text
from rowlock.core.job import Job
from rowlock.errors import InvalidInput
from rowlock.http import shapes
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem
from rowlock.http.response import Response, answer
from rowlock.http.routes import Route, scope
from rowlock.stores.reading import Filter, Page, check_place, make_cursor
from rowlock.stores.records import Entry

_LOOKED_AT = 2000  # jobs in which an error is looked for
_AT_ONCE = 40  # of them: a job may have some MB, and only its id is kept


def job_body(call: Call, job: Job, **more: Any) -> shapes.JobBody:
    hidden = call.redaction.hide(job)
    return shapes.job_body(hidden.job, redacted=hidden.paths or UNSET, **more)


def may_reveal(call: Call) -> bool:
    return call.identity.has("admin") and not call.identity.read_only and not call.api.settings.read_only


# ── What would tell it otherwise ──


def check_filter(call: Call, wanted: Filter) -> None:
    """A filter on what is hidden would tell it, guess by guess."""
    pairs: Any = wanted.payload
    for path, value in pairs:
        hidden = call.redaction.hidden_in(value, ("payload", *path.split(".")))
        if hidden is not None and not may_reveal(call):
            raise denied(call.identity, f"{hidden} is redacted: who may reveal it may look for it", field="payload")


def check_guesses(call: Call, wanted: Filter) -> None:
    """The same where it is told what is found, but not shown: so also by a part of the error (see `search`)."""
    check_filter(call, wanted)
    if wanted.error is not None and call.redaction and not may_reveal(call):
        text = "error: only who may reveal jobs may choose them by it; fingerprint is for everyone"
        raise denied(call.identity, text, field="error")


def check_unmarked(call: Call, payload: Any, before: Job | None = None) -> None:
    """What was shown instead of a value must not become the value: of a hidden field, or, if `before` was shown to be
    edited, of any other in which it did not stand."""
    path = call.redaction.marked(payload)
    if path is None and before is not None and call.redaction and redaction.marked(before.payload) is None:
        path = redaction.marked(payload)
    if path is not None:
        raise InvalidInput(path, "redacted", f"holds {redaction.MARK}, which stands for a value that was not shown")


async def search(call: Call, wanted: Filter, *, limit: int, offset: int, cursor: str | None) -> Page:
    """A list by a part of the error, which is found in what is kept, and told only where it is shown as well: else one
    could guess a secret letter by letter. So `total` is what was found on the way, and at least so much behind a
    cursor."""
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
    jobs_by_id = await (await call.store()).get(shown)
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


async def reveal_job(call: Call) -> Response:
    """All of a job, to who says why. The audit has it before the answer leaves."""
    asked: shapes.RevealBody = call.body
    reason = check_text(asked.reason, "reason", max_chars=2000)
    if not reason.strip():
        raise Problem("bad_length", "reason: say why", field="reason")
    job = await call.job("read")
    store = await call.store()
    events, log = await store.events(job.id), await store.logs(job.id)
    await store.write_records([], Entry(call.by, "reveal", job.topic, reason, job_id=job.id))
    return answer(shapes.RevealAnswer(job=shapes.job_body(job), events=events, logs=log.lines))


ROUTES = [
    Route(
        method="POST", path="/api/jobs/{id}/reveal", access=scope("admin"), handler=reveal_job,
        summary="A job with what is redacted; who asked, and why, stands in the audit", body=shapes.RevealBody,
        answers=(shapes.RevealAnswer,), errors=(404,),
    ),
]  # fmt: skip
