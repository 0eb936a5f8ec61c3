"""`jobs.templates`: the stored definitions of topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from rowlock.client.connections import Stores
from rowlock.client.definitions import KIND, REVISION, Definitions, Found, Tasks, read_templates
from rowlock.client.shares import give_shares
from rowlock.core.job import check_topic
from rowlock.core.limits import LIMITED, Limited, Put
from rowlock.core.retry import kept_table
from rowlock.core.templates import (
    Stored,
    Template,
    Unreadable,
    check_template_version,
    difference,
    frozen_difference,
    read_definition,
    template_of,
    to_data,
)
from rowlock.errors import AccessDenied, StoreBusy, TemplateExists, TemplateFrozen, TemplateNotFound
from rowlock.schemas import check_schema
from rowlock.stores.base import Store
from rowlock.stores.records import Entry, Write

log = logging.getLogger("rowlock")

_TRIES = 16  # writes that other processes may get ahead of


class Change(Struct, frozen=True):
    """A change by a publish: the fields with their values before and after. `before` None: the template is new."""

    template: Template
    before: Template | None
    fields: dict[str, tuple[Any, Any]]


class Templates:
    def __init__(
        self, stores: Stores, actor: Callable[[str | None], str], tasks: Tasks, definitions: Definitions
    ) -> None:
        self._stores = stores
        self._actor = actor
        self._tasks = tasks
        self._definitions = definitions

    async def get(self, topic: str, version: int | None = None) -> Stored:
        """Return a stored template; without `version`, the newest enabled one. Raise TemplateNotFound."""
        found = await read_templates(await self._store())
        versions = found.stored.get(check_topic(topic), {})
        if version is not None:
            found.check(topic, check_template_version(version))
            if version not in versions:
                raise TemplateNotFound(topic, version)
            return versions[version]
        if not versions:
            found.check_any(topic)
            raise TemplateNotFound(topic, None)
        return versions[max([number for number, one in versions.items() if one.enabled] or versions)]

    async def diff(self) -> Sequence[Change]:
        """Return what `publish` would change."""
        return _changes(self._own(), (await read_templates(await self._store())).stored)

    async def publish(self, *, by: str | None = None) -> Sequence[Change]:
        """Store the definitions of all tasks of this process. Return what has changed.

        Raise TemplateFrozen, and write nothing, if a task with a version from 1 on has another schema or other steps
        than the stored ones. Workers call it when they start.
        """
        return await self._publish(self._own(), self._actor(by))

    def _own(self) -> list[Template]:
        return [task.template for versions in self._tasks.values() for task in versions.values()]

    async def _publish(self, templates: Sequence[Template], by: str) -> Sequence[Change]:
        store = await self._store()
        for _ in range(_TRIES):
            revision, found = await self._read(store)
            stored = found.stored
            changes = _changes(templates, stored)
            for change in changes:
                frozen = change.before and frozen_difference(change.before, change.template)
                if frozen:
                    raise TemplateFrozen(change.template.topic, change.template.version, frozen)
            for texts in found.misfits(templates).values() if templates and found.puts else ():
                log.warning("%s", "; ".join(texts))
            if not changes:
                return []
            new = [
                Stored(template=one.template, enabled=found.is_enabled(one.template.topic, one.template.version))
                for one in changes
            ]
            entries = [
                Entry(
                    by,
                    "template.publish",
                    change.template.topic,
                    data={"version": change.template.version, "changed": _said(change)},
                )
                for change in changes
            ]
            if await self._write(store, revision, found, new, entries):
                return changes
        raise _busy()

    async def create(
        self, definition: Mapping[str, Any], *, reason: str | None = None, by: str | None = None
    ) -> Stored:
        """Store a template for a topic whose workers are not written with rowlock's Python library. Raise
        TemplateExists if there is one with this topic and version: `update` changes it. One that can't be read is
        replaced."""
        given = read_definition(definition)
        template = template_of(given)
        _check(template)
        enabled = given.enabled if isinstance(given.enabled, bool) else True
        stored = Stored(template=template, enabled=enabled, source="api")
        actor, store = self._actor(by), await self._store()
        for _ in range(_TRIES):
            revision, there = await self._read(store)
            if template.version in there.stored.get(template.topic, {}):
                raise TemplateExists(template.topic, template.version)
            entry = Entry(actor, "template.create", template.topic, reason, {"version": template.version})
            if await self._write(store, revision, there, [stored], [entry]):
                return stored
        raise _busy()

    async def update(
        self,
        topic: str,
        version: int,
        definition: Mapping[str, Any],
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Stored:
        """Change the given fields of a stored template. Raise TemplateFrozen if schema or steps of a version from 1 on
        would change: create the next version instead."""
        given = read_definition({**definition, "topic": topic, "version": version})

        def change(old: Stored) -> Stored:
            template = template_of(given, old.template)
            _check(template)
            if frozen := frozen_difference(old.template, template):
                raise TemplateFrozen(topic, version, frozen)
            enabled = given.enabled if isinstance(given.enabled, bool) else old.enabled
            return Stored(template=template, enabled=enabled, source=old.source)

        [stored] = await self._edit(topic, version, "template.update", change, reason, by)
        return stored

    async def enable(
        self, topic: str, version: int | None = None, *, reason: str | None = None, by: str | None = None
    ) -> Sequence[Stored]:
        """Let jobs be enqueued again: of one version, or of all."""
        return await self._switch(topic, version, True, reason, by)

    async def disable(
        self, topic: str, version: int | None = None, *, reason: str | None = None, by: str | None = None
    ) -> Sequence[Stored]:
        """Refuse new jobs: of one version, or of all. Jobs that are there still run; `jobs.topics.pause` stops them."""
        return await self._switch(topic, version, False, reason, by)

    async def _switch(
        self, topic: str, version: int | None, enabled: bool, reason: str | None, by: str | None
    ) -> Sequence[Stored]:
        def change(old: Stored) -> Stored:
            return Stored(template=old.template, enabled=enabled, source=old.source)

        return await self._edit(
            topic, version, "template.enable" if enabled else "template.disable", change, reason, by
        )

    async def _edit(
        self,
        topic: str,
        version: int | None,
        action: str,
        change: Callable[[Stored], Stored],
        reason: str | None,
        by: str | None,
    ) -> Sequence[Stored]:
        name = check_topic(topic)
        only = None if version is None else check_template_version(version)
        actor, store = self._actor(by), await self._store()
        for _ in range(_TRIES):
            revision, there = await self._read(store)
            chosen = [one for number, one in there.stored.get(name, {}).items() if only is None or number == only]
            if not chosen:
                there.check_any(name, only)
                raise TemplateNotFound(name, only)
            new = [change(old) for old in chosen]
            entries = []
            for old, one in zip(chosen, new, strict=True):
                changed: dict[str, Any] = {
                    field: {"before": before, "after": after}
                    for field, (before, after) in difference(old.template, one.template).items()
                }
                if old.enabled != one.enabled:
                    changed["enabled"] = {"before": old.enabled, "after": one.enabled}
                if changed:
                    data = {"version": one.template.version, "changed": changed}
                    entries.append(Entry(actor, action, name, reason, data))
            if not entries or await self._write(store, revision, there, new, entries):
                return new
        raise _busy()

    async def unreadable(self, topic: str | None = None) -> Sequence[Unreadable]:
        """Return what should be templates, and can't be read by this release; of one topic, or of all. Only
        processes that have the task can enqueue jobs of these topics. `publish` and `create` replace them."""
        found = (await read_templates(await self._store())).unreadable
        chosen = sorted(found) if topic is None else [check_topic(topic)]
        return [one for name in chosen for one in found.get(name, {}).values()]

    # ── The database. `list` is a verb from here on ──

    async def _store(self) -> Store:
        return (await self._stores.handle()).store

    async def _read(self, store: Store) -> tuple[int, Found]:
        """Return the revision and the templates. The revision is read first, so that `_write` notices a write between
        the two reads."""
        kind, name = REVISION
        revision = next((record.revision for record in await store.records(kind, [name])), 0)
        return revision, await read_templates(store)

    async def _write(
        self, store: Store, revision: int, found: Found, stored: Sequence[Stored], entries: Sequence[Entry]
    ) -> bool:
        """Return False if another process has written templates, or limits, meanwhile."""
        kind, name = REVISION
        writes = [Write(KIND, one.template.id, to_data(one)) for one in stored]
        writes += _limit_writes(found, stored)
        written = await store.write_records([Write(kind, name, {}, revision), *writes], *entries)
        if written:
            self._definitions.forget()
            try:
                await store.set_backoff({one.template.topic: kept_table(one.template.policy) for one in stored})
            except AccessDenied as error:
                log.warning("after a crash, its jobs wait as by default: %s", error)
            await self._give_shares(store, found, {one.id for one in writes if one.kind == LIMITED})
        return written

    async def _give_shares(self, store: Store, before: Found, topics: Collection[str]) -> None:
        """Give values of new fields to jobs that wait already: without them, they would all count as one."""
        if not topics:
            return
        now = await read_templates(store)
        try:
            for topic in sorted(topics):
                if now.fields(topic) != before.fields(topic):
                    await give_shares(store, topic, now.fields(topic))
        except AccessDenied as error:
            log.warning("jobs that wait already count together, as those without a value: %s", error)

    async def list(self, topic: str | None = None) -> Sequence[Stored]:
        """Return the stored templates by topic and version, the newest version first; of one topic, or of all."""
        found = (await read_templates(await self._store())).stored
        chosen = sorted(found) if topic is None else [check_topic(topic)]
        return [found[name][version] for name in chosen for version in sorted(found.get(name, ()), reverse=True)]


def _limit_writes(found: Found, stored: Sequence[Stored]) -> list[Write]:
    """Return the writes for the limits of topics: those of their newest versions hold."""
    writes = []
    for topic in dict.fromkeys(one.template.topic for one in stored):
        versions = {**found.stored.get(topic, {})}
        versions |= {one.template.version: one for one in stored if one.template.topic == topic}
        limits = versions[max(versions)].template.limits
        writes += limited_writes(found, topic, Limited(limits), found.puts)
    return writes


def limited_writes(found: Found, topic: str, limited: Limited, puts: Sequence[Put]) -> list[Write]:
    """Return the writes for the record of a topic that has these limits in its code. `puts`: all limits that operators
    have put."""
    is_limited = bool(limited.limits) or any(put.name == topic for put in puts)
    before = found.limited.get(topic)
    if is_limited and before != limited:
        return [Write(LIMITED, topic, to_builtins(limited))]
    return [Write(LIMITED, topic, None)] if before is not None and not is_limited else []


def _check(template: Template) -> None:
    for field in ("schema", "result"):
        if (schema := getattr(template, field)) is not None:
            check_schema(schema, field)


def _changes(templates: Sequence[Template], stored: Mapping[str, Mapping[int, Stored]]) -> list[Change]:
    changes = []
    for template in templates:
        old = stored.get(template.topic, {}).get(template.version)
        if old is None:
            changes.append(Change(template, None, {}))
        elif fields := difference(old.template, template):
            changes.append(Change(template, old.template, fields))
    return changes


def _said(change: Change) -> Any:
    """Return the change as data for the audit."""
    if change.before is None:
        return "new"
    return {name: {"before": before, "after": after} for name, (before, after) in change.fields.items()}


def _busy() -> StoreBusy:
    return StoreBusy("other processes are writing templates all the time: try again")
