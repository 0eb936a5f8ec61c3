"""The definitions of topics for enqueue: the tasks of this process, and the templates that the database has.

Every way to enqueue follows the same rule. A task object uses its own version. By name, the newest enabled stored
version counts, unless the caller names a version. A topic that was never published is free-form.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

from msgspec import Struct, convert, structs

from rowlock.client.portal import running_loop
from rowlock.core import codec
from rowlock.core.debounce import (
    DEBOUNCE,
    Throttle,
    Window,
    check_alone,
    check_debounce,
    check_window,
    debounce_line,
)
from rowlock.core.flows import has_results
from rowlock.core.ids import check_id
from rowlock.core.job import Job, NewJob, check_topic, new_job
from rowlock.core.limits import LIMITED, PUT, Limited, Put, fields_of, misfits, rules_of, share_of
from rowlock.core.retry import DEFAULT_RETRY, RetryPolicy
from rowlock.core.templates import (
    Stored,
    Template,
    Unreadable,
    check_if_live,
    check_template_version,
    from_data,
    key_of,
    line_of,
)
from rowlock.errors import InvalidInput, TemplateDisabled, TemplateUnreadable
from rowlock.schemas import BadSchema, Validator
from rowlock.stores.base import Store
from rowlock.tasks import Draft, JobOptions, Task

LIFE = 1.0  # seconds for which definitions are used without a look at the database
KIND = "template"  # of the records that hold definitions …
REVISION = ("templates", "revision")  # … and the record that changes with each of them

Tasks = Mapping[str, Mapping[int, Task[Any, Any, Any]]]  # by topic and version


class Rule(Protocol):
    """The checks and defaults of a topic, in one version, for a job that is enqueued."""

    version: int

    def check(self, payload: Mapping[str, Any], blanks: Collection[str] = ()) -> None:
        """Raise InvalidInput if the payload doesn't fit. `blanks`: fields that are filled in later."""

    def plain(self, job_id: str, payload: Mapping[str, Any] | None) -> NewJob:
        """Return a checked job without options."""
        ...

    def job(self, draft: Draft, job_id: str, blanks: Collection[str] = ()) -> NewJob:
        """Return the checked job of a draft. `blanks`: fields of the payload that are filled in later."""
        ...


class FreeRule:
    """A topic that was never published. `fields`: those by which its jobs are limited."""

    version = 0

    def __init__(self, topic: str, fields: tuple[str, ...] = ()) -> None:
        self._topic = topic
        self._fields = fields

    def check(self, payload: Mapping[str, Any], blanks: Collection[str] = ()) -> None:
        pass

    def plain(self, job_id: str, payload: Mapping[str, Any] | None) -> NewJob:
        job = NewJob(job_id, self._topic, codec.encode_payload(payload))  # the defaults need no check
        return self._shared(job, payload or {}) if self._fields else job

    def job(self, draft: Draft, job_id: str, blanks: Collection[str] = ()) -> NewJob:
        self.check(draft.payload)
        return self._shared(_job(draft, job_id, None), draft.payload)

    def _shared(self, job: NewJob, payload: Mapping[str, Any]) -> NewJob:
        return structs.replace(job, share=share_of(self._fields, job, payload)) if self._fields else job


class TemplateRule(FreeRule):
    """A topic that has a template. `task`: it checks payloads, which is faster than the schema."""

    def __init__(self, template: Template, task: Task[Any, Any, Any] | None, fields: tuple[str, ...] = ()) -> None:
        super().__init__(template.topic, fields)
        self.template = template
        self.version = template.version
        self._task = task
        self._validator = Validator(template.schema) if task is None and template.schema is not None else None
        self._defaults = template.priority, template.max_retries, template.timeout
        self._is_plain = template.key is None and not template.has_window and not fields

    def check(self, payload: Mapping[str, Any], blanks: Collection[str] = ()) -> None:
        try:
            if blanks:
                self._check_rest(payload, blanks)
            elif self._task is not None:
                self._task.arguments.values(payload)
            elif self._validator is not None:
                self._validator.check(payload)
        except InvalidInput:
            if has_results(payload):
                codec.encode_payload(payload)  # raises an error that says so, and what to do
            raise

    def plain(self, job_id: str, payload: Mapping[str, Any] | None) -> NewJob:
        codec.check_object(payload)
        if not self._is_plain:
            return self.job(Draft(self._topic, dict(payload or {}), {}), job_id)
        self.check(payload or {})
        priority, retries, timeout = self._defaults
        text = codec.encode_payload(payload)
        return NewJob(
            job_id,
            self._topic,
            text,
            priority,
            template_version=self.version,
            max_retries=retries,
            timeout=timeout,
        )

    def job(self, draft: Draft, job_id: str, blanks: Collection[str] = ()) -> NewJob:
        self.check(draft.payload, blanks)
        return self._shared(_job(draft, job_id, self.template), draft.payload)

    def _check_rest(self, payload: Mapping[str, Any], blanks: Collection[str]) -> None:
        """Check the fields that are there by the schema. The handler checks all of them when it starts."""
        schema = self.template.schema
        if schema is None:
            return
        fields = schema.get("properties", {})
        for name in blanks:
            if schema.get("additionalProperties") is False and name not in fields:
                raise InvalidInput(f"payload.{name}", "bad_payload", "there is no such field")
        required = [name for name in schema.get("required", ()) if name not in blanks]
        rest = {name: value for name, value in payload.items() if name not in blanks}
        Validator({**schema, "required": required}).check(rest)
        for paths, what in ((self.template.key or (), "makes the key of the job"), (self._fields, "limits the job")):
            if used := sorted({path.removeprefix("payload.").split(".")[0] for path in paths} & set(blanks)):
                problem = f"{what}, so it can't be the result of another job"
                raise InvalidInput(f"payload.{used[0]}", "blank_key", problem)


def _job(draft: Draft, job_id: str, template: Template | None) -> NewJob:
    """Return the job with checked options. An option that is not given comes from the template."""
    rest = cast(dict[str, Any], {**draft.options})
    own = rest.pop("id", None)
    version = rest.pop("version", None)
    if_live = rest.pop("if_live", None)
    window, throttle = _windows(rest, template)
    if unknown := sorted(rest.keys() - JobOptions.__annotations__.keys()):
        raise InvalidInput(unknown[0], "unknown_option", f"is none of {', '.join(JobOptions.__annotations__)}")
    once = False
    if template is not None:
        defaults = {name: getattr(template, name) for name in ("priority", "max_retries", "timeout")}
        rest = {**defaults, **rest, "template_version": template.version}
        if_live = template.if_live if if_live is None else if_live
        once = template.once
        if rest.get("key") is None and template.key is not None:
            rest["key"] = key_of(template.key, draft.payload)
    elif version is not None:
        rest["template_version"] = check_template_version(version)
    if window is not None or throttle is not None:
        check_alone(window, throttle, if_live=if_live, once=once, topic=draft.topic)
    if window is not None:
        for name in ("run_at", "delay"):
            if rest.pop(name, None) is not None:
                raise InvalidInput(name, "with_debounce", "does not go with debounce, which says when the job runs")
        rest["delay"] = window.seconds
    job = new_job(job_id if own is None else check_id(own), draft.topic, draft.payload, **rest)
    if window is not None:
        line = debounce_line(job.topic, job.scope, job.scope_id, _key_for(DEBOUNCE, job))
        return structs.replace(job, if_live=DEBOUNCE, line=line, debounce=window)
    if throttle is not None:
        line = line_of(job.topic, job.scope, job.scope_id, _key_for("throttle", job))
        job = structs.replace(job, throttle=Throttle(line, throttle))
    if if_live is not None:
        check_if_live(if_live)
        if if_live == "replace" and template is not None and not template.cancel.supported:
            raise InvalidInput(
                "if_live", "needs_cancel", f"{job.topic} doesn't support cancel: nothing can be replaced"
            )
        if job.key is None and "if_live" in draft.options:
            raise InvalidInput("if_live", "needs_key", "says what happens to jobs with the same key: give a key, too")
    if job.key is None or (if_live in (None, "reject") and not once):
        return job
    line = line_of(job.topic, job.scope, job.scope_id, job.key)
    if once:
        return structs.replace(job, once=line)
    return structs.replace(job, if_live=if_live, line=line)


def _windows(options: dict[str, Any], template: Template | None) -> tuple[Window | None, float | None]:
    """Take debounce and throttle out of the options, and return them. The template's are used if none is given."""
    window, throttle = options.pop(DEBOUNCE, None), options.pop("throttle", None)
    if window is not None:
        window = check_debounce(window)
    elif template is not None:
        window = template.debounce
    if throttle is not None:
        throttle = check_window(throttle, "throttle")
    elif template is not None:
        throttle = template.throttle
    return window, throttle


def _key_for(policy: str, job: NewJob) -> str:
    if job.key is None:
        raise InvalidInput(policy, "needs_key", "is about jobs with the same key: give a key, too")
    return job.key


def refuse_windows(job: NewJob, where: str) -> None:
    """Raise InvalidInput if a job with debounce or throttle is made where another job can't stand in for it."""
    if job.debounce is not None or job.throttle is not None:
        name = DEBOUNCE if job.debounce is not None else "throttle"
        problem = f"does not go with {where}: another job may answer in place of this one. Enqueue it by itself"
        raise InvalidInput(name, "in_flow", problem)


class Found(Struct):
    """The templates and limits of a database. A template that can't be read counts for its own topic only."""

    stored: dict[str, dict[int, Stored]] = {}  # by topic and version
    unreadable: dict[str, dict[int | None, Unreadable]] = {}
    limited: dict[str, Limited] = {}
    puts: list[Put] = []
    put_records: dict[str, list[str]] = {}  # the ids of their records: an older release spelled some of them otherwise

    def fields(self, topic: str) -> tuple[str, ...]:
        """Return the fields by which jobs of a topic are limited."""
        limited = self.limited.get(topic)
        return () if limited is None else fields_of(rules_of(topic, limited, self.puts))

    def misfits(self, templates: Iterable[Template] = ()) -> dict[str, list[str]]:
        """Return by topic the limits that were put and don't fit. `templates`: only of these topics, as if the
        templates were stored; none: of all topics."""
        newest = {topic: versions[max(versions)].template for topic, versions in self.stored.items()}
        given = sorted(templates, key=lambda one: one.version)
        newest |= {one.topic: one for one in given if one.version >= newest.get(one.topic, one).version}
        topics = {one.topic for one in given} if given else self.limited.keys()
        found = {}
        for topic in sorted(topics):
            template = newest.get(topic)
            limited = self.limited.get(topic, Limited()) if template is None else Limited(template.limits)
            schema = None if template is None else template.schema
            found[topic] = misfits(topic, rules_of(topic, limited, self.puts), schema)
        return {topic: texts for topic, texts in found.items() if texts}

    def schema(self, topic: str) -> dict[str, Any] | None:
        """Return the schema of the payloads of a topic, by its newest version; None: anything goes."""
        versions = self.stored.get(topic, {})
        return versions[max(versions)].template.schema if versions else None

    def check(self, topic: str, version: int) -> None:
        """Raise if this template can't be read."""
        if (one := self.unreadable.get(topic, {}).get(version)) is not None:
            raise TemplateUnreadable(topic, version, one.problem)

    def check_any(self, topic: str, version: int | None = None) -> None:
        """Raise if this version can't be read; None: if any version of the topic can't be read."""
        for one in self.unreadable.get(topic, {}).values():
            if version is None or one.version == version:
                raise TemplateUnreadable(topic, one.version, one.problem)

    def is_enabled(self, topic: str, version: int) -> bool:
        """True unless an operator has disabled the template, readable or not."""
        found = self.stored.get(topic, {}).get(version) or self.unreadable.get(topic, {}).get(version)
        return found is None or found.enabled


class Known(Struct):
    """The templates as they were at one time, and the rules that follow."""

    revision: int
    until: float  # by time.monotonic()
    found: Found
    rules: dict[str, Rule] = {}  # by topic, for enqueues by name
    exact: dict[tuple[str, int], Rule] = {}  # by topic and version


class Definitions:
    """The rules of this process. `store`: opens the database when it is first needed."""

    def __init__(self, store: Callable[[], Awaitable[Store]], tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._known = Known(-1, 0.0, Found())
        self._reading: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    @property
    def is_stale(self) -> bool:
        return time.monotonic() >= self._known.until

    def forget(self) -> None:
        """Forget the templates: the next enqueue reads them again."""
        self._known = Known(-1, 0.0, Found())

    def forget_rules(self) -> None:
        """Forget the rules, because tasks were added."""
        self._known.rules.clear()
        self._known.exact.clear()

    async def refresh(self) -> None:
        """Look whether templates have changed, if the last look was a while ago. Concurrent calls share one look."""
        loop = running_loop()
        if loop is None or not self.is_stale:  # without a loop: jobs.sync has looked a moment ago
            return
        reading = self._reading.get(loop)
        if reading is None:
            self._reading[loop] = reading = loop.create_task(self._read())
            reading.add_done_callback(lambda _: self._reading.pop(loop, None))
        await asyncio.shield(reading)

    async def _read(self) -> None:
        store = await self._store()
        asked = time.monotonic()
        kind, name = REVISION
        revision = next((record.revision for record in await store.records(kind, [name])), 0)
        if revision == self._known.revision:
            self._known.until = asked + LIFE
            return
        self._known = Known(revision, asked + LIFE, await read_templates(store))

    def published(self, topic: str, version: int) -> Template | None:
        """Return the stored template, by the last look."""
        stored = self._known.found.stored.get(topic, {}).get(version)
        return None if stored is None else stored.template

    def share(self, job: Job, payload: Mapping[str, Any]) -> str | None:
        """Return the share that a job gets with another payload, by the last look."""
        return share_of(self._known.found.fields(job.topic), job, payload)

    def knows(self, topic: str, version: int) -> bool:
        return version in self._known.found.stored.get(topic, {}) or version in self._tasks.get(topic, {})

    def template(self, topic: str, version: int | None) -> Template | None:
        """Return the template that `rule` uses; None if there is no such template, or it is disabled."""
        with suppress(InvalidInput, TemplateDisabled, TemplateUnreadable):
            return getattr(self.rule(topic, version), "template", None)
        return None

    def defaults(self, topic: str, version: int | None) -> dict[str, Any]:
        """Return the options that a job gets if its enqueuer doesn't give them; by the last look."""
        template = self.template(topic, version)
        names = ("priority", "max_retries", "timeout") if template is not None else ()
        return {name: getattr(template, name) for name in names}

    async def retry_policy(self, topic: str, version: int, asked: RetryPolicy | None = None) -> RetryPolicy:
        """Return the retry policy of a failed job: that of its task if the task is here, else the one that its worker
        has `asked` for, else that of the stored template."""
        own = self._tasks.get(topic, {})
        task = own.get(version) or next((one for one in own.values() if version in one.runs or version == 0), None)
        if task is not None:
            return task.retry
        if asked is not None:
            return asked
        await self.refresh()
        template = self.published(topic, version)
        return DEFAULT_RETRY if template is None else template.policy

    def rule(self, topic: str, version: int | None = None) -> Rule:
        """Return the rule of the topic, by the last look. Raise TemplateDisabled, TemplateUnreadable, or
        InvalidInput for a version that does not exist."""
        if version is None:
            found = self._known.rules.get(topic)
            if found is None:
                found = self._known.rules[topic] = self._by_name(check_topic(topic))
            return found
        found = self._known.exact.get((topic, version))
        if found is None:
            found = self._known.exact[topic, version] = self._by_version(check_topic(topic), version)
        return found

    def _by_name(self, topic: str) -> Rule:
        stored, own = self._known.found.stored.get(topic, {}), self._tasks.get(topic)
        unreadable = self._known.found.unreadable.get(topic, {})
        enabled = [version for version, one in stored.items() if one.enabled]
        enabled += [version for version, one in unreadable.items() if version is not None and one.enabled]
        if enabled:
            newest = max(enabled)
            if newest in unreadable and newest in (own or ()):
                return self._own_rule((own or {})[newest])
            self._known.found.check(topic, newest)
            return self._stored_rule(stored[newest].template)
        if stored or unreadable:
            raise TemplateDisabled(topic, max(version or 0 for version in [*stored, *unreadable]))
        return self._own_rule(own[max(own)]) if own else FreeRule(topic, self._known.found.fields(topic))

    def _by_version(self, topic: str, version: int) -> Rule:
        stored = self._known.found.stored.get(topic, {}).get(check_template_version(version))
        if stored is not None and not stored.enabled:
            raise TemplateDisabled(topic, version)
        if (task := self._tasks.get(topic, {}).get(version)) is not None:
            return self._own_rule(task)
        if stored is not None:
            return self._stored_rule(stored.template)
        self._known.found.check(topic, version)
        known = sorted({*self._known.found.stored.get(topic, {}), *self._tasks.get(topic, {})})
        there = f"there are: {', '.join(map(str, known))}" if known else "the topic was never published"
        raise InvalidInput("version", "unknown_version", f"{topic} has no version {version}; {there}")

    def _own_rule(self, task: Task[Any, Any, Any]) -> Rule:
        return TemplateRule(task.template, task, self._fields(task.template))

    def _fields(self, template: Template) -> tuple[str, ...]:
        """Return the fields of the topic's limits: by the template itself, if its limits are not stored yet."""
        found = self._known.found
        if template.topic in found.limited or not template.limits:
            return found.fields(template.topic)
        return fields_of(rules_of(template.topic, Limited(template.limits), found.puts))

    def _stored_rule(self, template: Template) -> Rule:
        task = self._tasks.get(template.topic, {}).get(template.version)
        same = task is not None and task.template == template
        try:
            return TemplateRule(template, task if same else None, self._fields(template))
        except BadSchema as error:
            raise TemplateUnreadable(template.topic, template.version, f"schema: {error}") from None


async def read_templates(store: Store) -> Found:
    found = Found()
    for record in await store.records(KIND):
        match from_data(record.id, record.data):
            case Stored() as stored:
                found.stored.setdefault(stored.template.topic, {})[stored.template.version] = stored
            case unreadable:
                found.unreadable.setdefault(unreadable.topic, {})[unreadable.version] = unreadable
    found.limited = {record.id: convert(record.data, Limited) for record in await store.records(LIMITED)}
    for record in await store.records(PUT):
        put = convert(record.data, Put)
        found.puts.append(put)
        found.put_records.setdefault(put.id, []).append(record.id)
    return found
