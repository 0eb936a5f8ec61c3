from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from rowlock.cli.app import load_jobs
from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, actor, by, database
from rowlock.cli.exits import Exit
from rowlock.cli.groups import Group
from rowlock.cli.options import _Kind, read_json
from rowlock.cli.schedules import published
from rowlock.cli.show import how_many, items, note, pretty, print_fields, print_heading, print_table
from rowlock.cli.spelling import did_you_mean
from rowlock.cli.typescript import types as typescript
from rowlock.client.templates import Change
from rowlock.core.schedules import Schedule
from rowlock.core.templates import Stored, Template, Unreadable, frozen_difference
from rowlock.errors import TemplateNotFound, TemplateUnreadable
from rowlock.jobs import Jobs

_LARGE = ("schema", "result", "steps", "description")  # shown below the other fields


class TopicVersion(_Kind):
    """TOPIC, or TOPIC@VERSION."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | None]:
        if isinstance(value, tuple):
            return value
        topic, at, version = value.partition("@")
        if at and not (version.isascii() and version.isdigit()):
            self.fail(f"{value!r} is not TOPIC or TOPIC@VERSION, such as mail or mail@1", param, ctx)
        return topic, int(version) if at else None


class JsonFile(_Kind):
    """A file with JSON, or - for stdin."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            text = sys.stdin.read() if value == "-" else Path(value).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"{value} can't be read: {error}", param, ctx)
        return read_json(text, lambda problem: self.fail(f"{value} {problem}", param, ctx))


one_topic = click.argument("topic", metavar="TOPIC[@VERSION]", type=TopicVersion(), shell_complete=complete_topic)
application = click.argument("app", metavar="MODULE:JOBS")


@click.group(cls=Group)
def templates() -> None:
    """The stored definitions of topics: schema, policies, versions."""


def document(stored: Stored) -> dict[str, Any]:
    """Return the JSON of a template."""
    fields = msgspec.to_builtins(stored.template)
    head = {"topic": stored.template.topic, "version": stored.template.version}
    return {**head, "enabled": stored.enabled, "source": stored.source, **fields}


def _policy(template: Template) -> str:
    if template.debounce is not None:
        return f"debounce {template.debounce.seconds:g} s"
    throttle = "" if template.throttle is None else f"throttle {template.throttle:g} s"
    return ", ".join(filter(None, [template.if_live, throttle]))


def _print(found: Sequence[Stored]) -> None:
    rows = [
        (
            one.template.topic,
            str(one.template.version),
            "yes" if one.enabled else "no",
            f"{one.source}, external" if one.template.external else one.source,
            "" if one.template.key is None else ", ".join(one.template.key) or "one per scope",
            _policy(one.template),
            "yes" if one.template.once else "",
            one.template.title or "",
        )
        for one in found
    ]
    print_table(("topic", "version", "enabled", "source", "key", "if_live", "once", "title"), rows)


@templates.command("list")
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Only the versions of this topic.")
@database
def list_templates(db: Database, topic: str | None) -> None:
    """All templates by topic, the newest version first."""

    async def read(jobs: Jobs) -> tuple[Sequence[Stored], Sequence[Unreadable]]:
        return await jobs.templates.list(topic), await jobs.templates.unreadable(topic)

    found, unreadable = db.run(read)
    broken = [{"topic": one.topic, "version": one.version, "problem": one.problem} for one in unreadable]
    db.tell(items([document(one) for one in found], unreadable=broken), lambda: _print(found))
    for one in unreadable:
        note(str(TemplateUnreadable(one.topic, one.version, one.problem)))


@templates.command()
@one_topic
@database
def show(db: Database, topic: tuple[str, int | None]) -> None:
    """Everything about a template. Without a version: the newest enabled one."""
    name, version = topic
    found = db.run(lambda jobs: _or_guess(jobs, name, jobs.templates.get(name, version)))
    db.tell(document(found), lambda: _print_one(found))


def _print_one(stored: Stored) -> None:
    fields = document(stored)
    large = {name: fields.pop(name) for name in _LARGE}
    print_fields((name, None if value in (None, [], ()) else _short(value)) for name, value in fields.items())
    for name, value in large.items():
        if value:
            print_heading(name)
            click.echo(value if isinstance(value, str) else pretty(value))


async def _or_guess(jobs: Jobs, topic: str, answer: Any) -> Any:
    """Await the answer. If the topic has no template, name a similar one that has."""
    try:
        return await answer
    except TemplateNotFound as error:
        known = {one.template.topic for one in await jobs.templates.list()}
        guess = "" if topic in known else did_you_mean(topic, known)
        raise click.ClickException(f"{error}.{guess}" if guess else str(error)) from error


# ── Code and database ──


@templates.command()
@application
@by
@database
def publish(db: Database, app: str) -> None:
    """Store the definitions and the schedules of all tasks of an application, as a worker does when it starts.

    Nothing is written if the schema or the steps of a published version from 1 on would change.
    """

    async def store(jobs: Jobs) -> tuple[Sequence[Change], Sequence[Schedule]]:
        return await jobs.templates.publish(), await jobs.schedules.publish()

    changes, schedules = db.run(store, tasks_of=load_jobs(app))
    db.tell({**_diff_document(changes), "schedules": [one.name for one in schedules]}, lambda: _print_changes(changes))
    said = [f"{how_many(len(changes), 'template')} published"] if changes else []
    note(", ".join([*said, *filter(None, [published(schedules)])]) or "nothing has changed")


@templates.command()
@application
@database
def diff(db: Database, app: str) -> None:
    """What `publish` would change, field by field. Exit code 1: publish would be refused."""
    changes = db.run(lambda jobs: jobs.templates.diff(), tasks_of=load_jobs(app))
    db.tell(_diff_document(changes), lambda: _print_changes(changes))
    refused = [change.template for change in changes if _frozen(change)]
    if not changes:
        note("publish would change nothing")
    for template in refused:
        note(
            f"publish would be refused: version {template.version} of {template.topic} is frozen. "
            f"Give the task version={template.version + 1}, or restore it"
        )
    if refused:
        sys.exit(Exit.REFUSED)


def _frozen(change: Change) -> Mapping[str, Any]:
    return {} if change.before is None else frozen_difference(change.before, change.template)


def _diff_document(changes: Sequence[Change]) -> dict[str, Any]:
    documents = []
    for change in changes:
        frozen = _frozen(change)
        fields = {
            name: {"before": before, "after": after, "frozen": name in frozen}
            for name, (before, after) in change.fields.items()
        }
        head = {"topic": change.template.topic, "version": change.template.version}
        documents.append({**head, "new": change.before is None, "fields": fields})
    return items(documents, refused=any(_frozen(change) for change in changes))


def _print_changes(changes: Sequence[Change]) -> None:
    rows = []
    for change in changes:
        frozen = _frozen(change)
        head = (change.template.topic, str(change.template.version))
        if change.before is None:
            rows.append((*head, "", "", "", "new"))
        for name, (before, after) in change.fields.items():
            mark = "frozen" if name in frozen else ""
            rows += [(*head, path, old, new, mark) for path, old, new in _leaves(name, before, after)]
    if rows:
        print_table(("topic", "version", "field", "before", "after", "note"), rows)


def _leaves(path: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the innermost members that differ, each with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from _leaves(f"{path}.{name}", before.get(name, _Missing), after.get(name, _Missing))
    elif before != after:
        yield path, _short(before), _short(after)


class _Missing:
    pass


def _short(value: Any) -> str:
    if value is _Missing:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# ── Operators ──


@templates.command()
@one_topic
@actor
@database
def enable(db: Database, topic: tuple[str, int | None]) -> None:
    """Let jobs be enqueued again: of one version, or of all."""
    _switch(db, topic, True)


@templates.command()
@one_topic
@actor
@database
def disable(db: Database, topic: tuple[str, int | None]) -> None:
    """Refuse new jobs: of one version, or of all. Jobs that are there still run; `topics pause` stops them."""
    _switch(db, topic, False)


def _switch(db: Database, topic: tuple[str, int | None], on: bool) -> None:
    name, version = topic

    async def switch(jobs: Jobs) -> Sequence[Stored]:
        verb = jobs.templates.enable if on else jobs.templates.disable
        found: Sequence[Stored] = await _or_guess(jobs, name, verb(name, version, reason=db.reason))
        return found

    found = db.run(switch)
    db.tell(items([document(one) for one in found]), lambda: _print(found))


@templates.command()
@click.argument("definition", metavar="FILE|-", type=JsonFile())
@actor
@database
def create(db: Database, definition: Any) -> None:
    """Store a template from a JSON file, for workers in other languages.

    \b
    echo '{"topic": "gpu.render", "version": 1, "timeout": 600}' | rowlock templates create -
    """
    stored = db.run(lambda jobs: jobs.templates.create(definition, reason=db.reason))
    db.tell(document(stored), lambda: _print([stored]))


@templates.command()
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write to this file, not to stdout.")
@database
def types(db: Database, out: str | None) -> None:
    """Print TypeScript types of all topics, from the stored schemas."""
    found = db.run(lambda jobs: jobs.templates.list())
    text = typescript(found)
    if out is not None:
        try:
            Path(out).write_text(text, "utf-8")
        except OSError as error:
            raise click.ClickException(f"{out} can't be written: {error}") from error
        db.tell({"file": out, "templates": len(found)}, f"{how_many(len(found), 'template')} in {out}")
    else:
        db.tell({"typescript": text}, text.rstrip("\n"))
