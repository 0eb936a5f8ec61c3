"""Routes of templates: the stored definitions of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from rowlock.client.why import is_live
from rowlock.core.codec import check_text
from rowlock.core.debounce import Window
from rowlock.core.job import Lane, check_topic
from rowlock.core.limits import Limit
from rowlock.core.steps import MAX_STEPS
from rowlock.core.templates import (
    MAX_DESCRIPTION,
    MAX_TITLE,
    Cancel,
    IfLive,
    RetryData,
    Stored,
    check_template_version,
)
from rowlock.errors import TemplateNotFound
from rowlock.http.call import Call
from rowlock.http.problems import Problem
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import (
    Asked,
    DebounceAsked,
    Priority,
    Reason,
    Retries,
    Seconds,
    TemplateVersion,
    Timeout,
    Topic,
    WindowSeconds,
    copied,
    schema,
)
from rowlock.stores.base import MOST_COUNTED

ROUTES = Routes()

READ = scope("read", bounded=True, or_scope="templates")
WRITE = scope("templates", bounded=True)

Title = Annotated[str, schema(minLength=1, maxLength=MAX_TITLE)]
Description = Annotated[str, schema(minLength=1, maxLength=MAX_DESCRIPTION)]


class StepAsked(Asked, frozen=True, kw_only=True):
    name: Title
    title: Title | None = None
    timeout: Seconds | None = None
    weight: Annotated[float, schema(minimum=0, maximum=1_000_000)] = 1.0
    cancelable: bool = True


class CancelAsked(Asked, frozen=True, kw_only=True):
    supported: bool = True
    grace: Seconds | None = None
    mode: Literal["cooperative", "kill"] = "cooperative"


class TemplatePatch(Asked, frozen=True, kw_only=True):
    """The fields to change. `schema` and `result`: JSON Schemas of payload and result. `retry`: a list of seconds,
    {"quadratic": {"unit": 60}} or {"exponential": {…}}. `key`: the fields of the payload that make the job's key.
    `external`: only workers of the worker protocol run its jobs."""

    enabled: bool | UnsetType = UNSET
    title: Title | UnsetType | None = UNSET
    description: Description | UnsetType | None = UNSET
    schema: dict[str, Any] | UnsetType | None = UNSET
    result: dict[str, Any] | UnsetType | None = UNSET
    steps: Annotated[tuple[StepAsked, ...], schema(maxItems=MAX_STEPS)] | UnsetType = UNSET
    max_retries: Retries | UnsetType = UNSET
    retry: RetryData | UnsetType = UNSET
    timeout: Timeout | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    cancel: CancelAsked | UnsetType = UNSET
    key: tuple[str, ...] | UnsetType | None = UNSET
    if_live: IfLive | UnsetType | None = UNSET
    once: bool | UnsetType = UNSET
    debounce: DebounceAsked | UnsetType | None = UNSET
    throttle: WindowSeconds | UnsetType | None = UNSET
    schedulable: bool | UnsetType = UNSET
    retention: Seconds | UnsetType | None = UNSET
    limits: tuple[Limit, ...] | UnsetType = UNSET
    external: bool | UnsetType = UNSET
    reason: Reason | None = None


class TemplateCreateBody(TemplatePatch, frozen=True, kw_only=True):
    """A definition. Names of other systems are understood as well: type, name, timeoutSeconds, repeatable, dedupeKeys,
    concurrencyPolicy, retryPolicy, cancelPolicy."""

    topic: Topic
    version: TemplateVersion | UnsetType = UNSET


class SwitchBody(Asked, frozen=True, kw_only=True):
    """`version`: only this one; default: all versions of the topic."""

    version: TemplateVersion | None = None
    reason: Reason | None = None


class StepBody(Struct, kw_only=True):
    name: str
    title: str | None
    timeout: float | None
    weight: float
    cancelable: bool


class TemplateBody(Struct, kw_only=True):
    """The definition of a topic in one version. `source`: a worker has published it (code), or a caller of this API has
    created it (api). `ready`: jobs of this version that are due and wait for a worker; with `ready_capped`, at least so
    many. `workers`: live workers that have this version."""

    topic: str
    version: int
    enabled: bool
    source: Literal["code", "api"]
    title: str | None
    description: str | None
    schema: dict[str, Any] | None
    result: dict[str, Any] | None
    steps: list[StepBody]
    max_retries: int
    retry: RetryData
    timeout: float
    priority: int
    cancel: Cancel
    key: tuple[str, ...] | None
    if_live: IfLive | None
    once: bool
    debounce: Window | None
    throttle: float | None
    schedulable: bool
    retention: float | None
    limits: tuple[Limit, ...]
    external: bool
    ready: int
    ready_capped: bool
    workers: list[str]


class UnreadableBody(Struct, kw_only=True):
    """A record that should hold a template, and can't be read by this release. Jobs of its topic are refused, unless
    the client has the task. Publish or create the template again."""

    topic: str
    version: int | None
    problem: str


class TemplatesAnswer(Struct, kw_only=True):
    items: list[TemplateBody]
    unreadable: list[UnreadableBody] = []


class TemplatesQuery(Asked, frozen=True, kw_only=True):
    topic: Topic | None = None


async def _bodies(call: Call, found: Sequence[Stored]) -> list[TemplateBody]:
    store = await call.store()
    lanes = [Lane(one.template.topic, one.template.version) for one in found]
    ready = await store.count_ready(lanes, MOST_COUNTED + 1)
    now = await store.now()
    live = [worker for worker in await store.workers() if is_live(worker, now)]
    return [
        copied(
            TemplateBody,
            one.template,
            enabled=one.enabled,
            source=one.source,
            steps=[copied(StepBody, step) for step in one.template.steps],
            ready=min(count, MOST_COUNTED),
            ready_capped=count > MOST_COUNTED,
            workers=[worker.name for worker in live if str(lane) in worker.topics],
        )
        for one, lane, count in zip(found, lanes, ready, strict=True)
    ]


@ROUTES.add("GET", "/api/templates", READ, "Templates by topic, the newest version first")
async def list_templates(call: Call, asked: TemplatesQuery) -> TemplatesAnswer:
    if asked.topic is not None:
        call.check_topics([check_topic(asked.topic)])
    own = call.identity.topics
    found = await call.api.jobs.templates.list(asked.topic)
    return TemplatesAnswer(
        items=await _bodies(call, [one for one in found if own is None or one.template.topic in own]),
        unreadable=[one for one in await _unreadable(call, asked.topic) if own is None or one.topic in own],
    )


async def _unreadable(call: Call, topic: str | None) -> list[UnreadableBody]:
    return [copied(UnreadableBody, one) for one in await call.api.jobs.templates.unreadable(topic)]


@ROUTES.add(
    "POST", "/api/templates", WRITE, "Store a template", body=TemplateCreateBody, raw_body=True, status=201,
    errors=(409,),
)  # fmt: skip
async def create_template(call: Call, asked: dict[str, Any]) -> TemplateBody:
    definition, reason = _reason(asked)
    topic = definition.get("topic", definition.get("type"))
    if isinstance(topic, str):
        call.check_topics([topic])
    stored = await call.api.jobs.templates.create(definition, reason=reason, by=call.by)
    return await _body(call, stored)


@ROUTES.add("GET", "/api/templates/{topic*}/{version#}", READ, "One version of a template")
async def get_template(call: Call) -> TemplateBody:
    return await _body(call, await call.api.jobs.templates.get(_topic(call), _version(call)))


@ROUTES.add(
    "PATCH", "/api/templates/{topic*}/{version#}", WRITE, "Change a template", body=TemplatePatch, raw_body=True,
    errors=(409,),
)  # fmt: skip
async def update_template(call: Call, asked: dict[str, Any]) -> TemplateBody:
    topic, version = _topic(call), _version(call)
    changes, reason = _reason(asked)
    for name in ("topic", "type", "version"):
        if name in changes:
            raise Problem("unknown_field", f"{name}: stands in the path, and can't be changed", field=name)
    if not changes:
        raise Problem("nothing_given", "give the fields to change", field="body")
    return await _body(call, await call.api.jobs.templates.update(topic, version, changes, reason=reason, by=call.by))


@ROUTES.add("POST", "/api/templates/{topic*}/enable", WRITE, "Let jobs of a topic be enqueued again")
async def enable_template(call: Call, asked: SwitchBody) -> TemplatesAnswer:
    enable = call.api.jobs.templates.enable
    found = await enable(_topic(call), asked.version, reason=_checked(asked.reason), by=call.by)
    return TemplatesAnswer(items=await _bodies(call, _newest_first(found)))


@ROUTES.add("POST", "/api/templates/{topic*}/disable", WRITE, "Refuse new jobs of a topic")
async def disable_template(call: Call, asked: SwitchBody) -> TemplatesAnswer:
    disable = call.api.jobs.templates.disable
    found = await disable(_topic(call), asked.version, reason=_checked(asked.reason), by=call.by)
    return TemplatesAnswer(items=await _bodies(call, _newest_first(found)))


# The last of these paths: a topic may have any number of steps.
@ROUTES.add("GET", "/api/templates/{topic*}", READ, "All versions of a template, the newest first")
async def get_templates(call: Call) -> TemplatesAnswer:
    topic = _topic(call)
    found = await call.api.jobs.templates.list(topic)
    unreadable = await _unreadable(call, topic)
    if not found and not unreadable:
        raise TemplateNotFound(topic, None)
    return TemplatesAnswer(items=await _bodies(call, found), unreadable=unreadable)


async def _body(call: Call, stored: Stored) -> TemplateBody:
    [body] = await _bodies(call, [stored])
    return body


def _newest_first(found: Sequence[Stored]) -> list[Stored]:
    return sorted(found, key=lambda one: -one.template.version)


def _topic(call: Call) -> str:
    topic = check_topic(call.parameters["topic"])
    call.check_topics([topic])
    return topic


def _version(call: Call) -> int:
    return check_template_version(int(call.parameters["version"]))


def _reason(asked: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the definition, and the reason that came with it."""
    rest = dict(asked)
    reason = rest.pop("reason", None)
    if reason is not None and not isinstance(reason, str):
        raise Problem("not_text", "reason: must be a text", field="reason")
    return rest, _checked(reason)


def _checked(reason: str | None) -> str | None:
    return None if reason is None else check_text(reason, "reason", max_chars=2000)
