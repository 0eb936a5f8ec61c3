"""Routes for signals to jobs, and for ending a wait."""

from __future__ import annotations

from typing import Annotated

from rowlock.client.signals import Key
from rowlock.core.job import MAX_TEXT, Job
from rowlock.core.waits import check_signal_name
from rowlock.http.call import Call, denied, needs
from rowlock.http.parse import read_value
from rowlock.http.problems import Problem, not_found
from rowlock.http.redacting import job_body
from rowlock.http.routes import MANAGE_JOBS, Routes
from rowlock.http.shapes import Asked, JobBody, Reason, ReasonBody, Text, Topic, schema

ROUTES = Routes()


class SignalQuery(Asked, frozen=True, kw_only=True):
    """`id`: a signal with this id counts once per job, so a request can be repeated. `reason` is kept in the audit."""

    id: Annotated[str, schema(minLength=1, maxLength=MAX_TEXT)] | None = None
    reason: Reason | None = None


class KeySignalQuery(SignalQuery, frozen=True, kw_only=True):
    """The live job of this topic and scope that has the key. Without a scope: the job that has none."""

    topic: Topic | None = None
    key: Text | None = None
    scope: Text | None = None
    scope_id: Text | None = None


@ROUTES.add(
    "POST", "/api/jobs/{id}/signals/{name*}", MANAGE_JOBS, "Send a signal: the body is its data", body=None,
    any_body=True, query=SignalQuery, errors=(409, 413),
)  # fmt: skip
async def signal_job(call: Call, asked: SignalQuery) -> JobBody:
    return await _signal(call, await call.job("manage"), asked)


@ROUTES.add(
    "POST", "/api/signals/{name*}", MANAGE_JOBS, "Send a signal to the job that has a key: the body is its data",
    body=None, any_body=True, query=KeySignalQuery, errors=(409, 413),
)  # fmt: skip
async def signal_key(call: Call, asked: KeySignalQuery) -> JobBody:
    for name in ("topic", "key"):
        if getattr(asked, name) is None:
            raise Problem("missing", f"{name}: give it as a parameter, ?topic=…&key=…", field=name)
    key = Key(asked.topic or "", asked.key or "", asked.scope, asked.scope_id)
    job = await call.api.jobs.get(await key.find(await call.store()))
    if not call.may("manage", job):
        if call.may("read", job):
            raise denied(call.identity, f"{needs('manage')}: you may see this job, but no more")
        raise not_found()
    return await _signal(call, job, asked)


async def _signal(call: Call, job: Job, asked: SignalQuery) -> JobBody:
    name = check_signal_name(call.parameters["name"])
    data = await read_value(call.request)
    changed = await call.api.jobs.signal(job.id, name, data, id=asked.id, reason=asked.reason, by=call.by)
    return job_body(call, changed)


@ROUTES.add("POST", "/api/jobs/{id}/wake", MANAGE_JOBS, "End a sleep, or the time of a wait, now", errors=(409,))
async def wake_job(call: Call, asked: ReasonBody) -> JobBody:
    job = await call.job("manage")
    return job_body(call, await call.api.jobs.wake(job.id, reason=asked.reason, by=call.by))
