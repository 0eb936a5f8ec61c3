from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, get_args

import click
from msgspec import structs

from rowlock.cli.app import load_jobs
from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, actor, by, database
from rowlock.cli.groups import Group
from rowlock.cli.options import Json, Moment, Span, priority, together
from rowlock.cli.show import (
    STYLES,
    exact,
    how_many,
    is_fancy,
    items,
    moment,
    note,
    one_line,
    pretty,
    print_fields,
    print_heading,
    print_table,
)
from rowlock.cli.spelling import did_you_mean, guess_topic
from rowlock.client.schedules import MAX_PREVIEW, BackfillTime, Preview, SchedulePage, ScheduleTime, preview
from rowlock.client.why import spell_seconds, spell_time
from rowlock.core.cron import Cron, Every, Gap, Overlap, When, check_when, in_words
from rowlock.core.job import Status, check_time
from rowlock.core.schedules import Definition, Fired, IfLiveJob, Missed, Schedule, State, when_data
from rowlock.errors import InvalidInput, ScheduleNotFound
from rowlock.jobs import Jobs
from rowlock.stores.queries import State as JobState
from rowlock.tasks import Draft, JobOptions

if TYPE_CHECKING:
    from rich.text import Text

_PAGE = 1000  # schedules, or fires
_SHOWN = 10  # times, and fires, of `show`

_WIDE = 100  # columns of a terminal in which the topic has room
_LIMITS = {"name": 40, "topic": 20}  # a longer one goes on in the next line
_NAME_IF_NARROW = 24
_JOB_IF_NARROW = 10  # "processing"
_NARROWEST = 10
_GAP = 2  # between columns
_TIMES_OPTIONS = {  # by the fields of Cron and Every
    "when.expression": "--cron", "when.zone": "--zone", "when.seconds": "--every", "when.anchor": "--anchor",
    "start": "--start", "end": "--end",
}  # fmt: skip
_STATES: dict[State, str] = {"active": "green", "paused": "yellow", "over": "dim"}

Statuses = Mapping[str, Status]
LastJobs = Mapping[str, JobState]


@click.group(cls=Group)
def schedules() -> None:
    """When jobs are made by themselves, and what became of each time."""


one_schedule = together(
    click.argument("name", metavar="NAME|ID"),
    click.option("--scope", metavar="TEXT", help="The scope of the schedule, if it has one."),
    click.option("--scope-id", metavar="TEXT", help="The scope_id of the schedule, if it has one."),
)
times_of = together(
    click.option("--cron", metavar="EXPRESSION", help='minute hour day month weekday: "0 2 * * MON-FRI", or @daily.'),
    click.option("--zone", metavar="ZONE", help="The time zone of --cron: Europe/Berlin. Default: UTC."),
    click.option(
        "--gap", type=click.Choice(get_args(Gap)),
        help="A time that does not exist, because clocks go forward: the next moment (default), or skip it.",
    ),
    click.option(
        "--overlap", type=click.Choice(get_args(Overlap)),
        help="A time that comes twice, because clocks go back: the first one (default), the second, or both.",
    ),
    click.option("--every", type=Span(), metavar="SPAN", help="An interval instead of --cron: 900, 15m, 2h."),
    click.option(
        "--anchor", type=Moment(+1), metavar="TIME", help="--every counts from here. Default: 1970-01-01T00:00:00Z."
    ),
    click.option("--start", type=Moment(+1), metavar="TIME", help="No time before: 2h, 2026-05-01T14:30:00Z."),
    click.option("--end", type=Moment(+1), metavar="TIME", help="No time after."),
)  # fmt: skip


# ── See ──


@schedules.command("list")
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Only those of this topic.")
@click.option("--scope", metavar="TEXT", help="Only those of this scope.")
@click.option("--scope-id", metavar="TEXT", help="Only those of this scope_id.")
@click.option("--state", type=click.Choice(get_args(State)), help="over: it never fires again.")
@click.option("--text", metavar="TEXT", help="A part of the name, in capitals or not.")
@click.option("--absent", is_flag=True, help="Only those that the code has declared before, and does not any more.")
@click.option("--limit", type=click.IntRange(1, _PAGE), default=50, show_default=True, metavar="N")
@click.option("--cursor", metavar="TEXT", help="Continue after an earlier page (its `next`).")
@database
def list_schedules(db: Database, absent: bool, **wanted: Any) -> None:
    """All schedules by name: when they fire next, and how their last job ended."""

    async def look(jobs: Jobs) -> tuple[SchedulePage, LastJobs]:
        page = await jobs.schedules.list(absent=absent or None, **wanted)
        return page, await _last_jobs(jobs, page.items)

    page, last_jobs = db.run(look)
    documents = [{**_document(one), "last_job": _last_job_document(one, last_jobs)} for one in page.items]
    db.tell({**items(documents), "next": page.next}, lambda: _print(page.items, last_jobs))
    if page.next is not None and not db.wants_json:
        note(f"{how_many(len(page.items), 'schedule')} shown; continue with --cursor {shlex.quote(page.next)}")


async def _last_jobs(jobs: Jobs, found: Sequence[Schedule]) -> LastJobs:
    ids = [one.last_job_id for one in found if one.last_job_id is not None]
    return await (await jobs._store()).read(ids, JobState) if ids else {}


def _last_job_document(schedule: Schedule, last_jobs: LastJobs) -> dict[str, Any] | None:
    """Return the JSON of the last job; None if there was no job yet. The status of a job that was pruned is null."""
    if schedule.last_job_id is None:
        return None
    job = last_jobs.get(schedule.last_job_id)
    ended = {"status": job.status, "finished_at": job.finished_at} if job else {"status": None, "finished_at": None}
    return {"id": schedule.last_job_id, **ended}


def _print(found: Sequence[Schedule], last_jobs: LastJobs) -> None:
    if is_fancy():
        _print_at_terminal(found, last_jobs)
        return
    rows = [
        (
            one.name,
            _scope(one),
            one.topic,
            in_words(one.when),
            "" if one.is_paused else _at(one.next_run_at),
            one.state,
            _at(one.last_run_at),
            _last_job(one, last_jobs),
            _flags(one),
        )
        for one in found
    ]
    print_table(("name", "scope", "topic", "when", "next run", "state", "last run", "last job", "note"), rows)


def _print_at_terminal(found: Sequence[Schedule], last_jobs: LastJobs) -> None:
    """Print a table in which nothing is cut: a long name and a long phrase go on in the next line. The scope stands
    below the name that it belongs to, and the note below the times."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    console = Console()
    wide = console.width >= _WIDE
    cells: dict[str, list[Text]] = {
        "name": [_cell(one.name, _scope(one)) for one in found],
        "topic": [_cell(one.topic) for one in found],
        "when": [_cell(in_words(one.when), _flags(one)) for one in found],
        "next run": [_cell(_next_run(one)) for one in found],
        "state": [_cell(one.state, style=_STATES[one.state]) for one in found],
        "last job": [_last_job_cell(_last_job(one, last_jobs), wide) for one in found],
    }
    if not wide:
        del cells["topic"]
    widths = {
        title: max(cell_len(line) for text in (title, *column) for line in str(text).split("\n"))
        for title, column in cells.items()
    }
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for title, width in _widths(widths, console.width).items():
        table.add_column(title, width=width, overflow="fold")
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    console.print(table)


def _widths(wanted: Mapping[str, int], columns: int) -> dict[str, int]:
    """Return the widths of the columns: what they want, up to a limit. The times in words get what is left."""
    widths = {title: min(width, _LIMITS.get(title, columns)) for title, width in wanted.items()}
    if columns < _WIDE:
        widths["name"] = min(widths["name"], _NAME_IF_NARROW)
        widths["last job"] = min(widths["last job"], _JOB_IF_NARROW)
    left = columns - sum(width + _GAP for title, width in widths.items() if title != "when")
    return widths | {"when": min(widths["when"], max(left, _NARROWEST))}


def _next_run(schedule: Schedule) -> str:
    at = schedule.next_run_at
    if at is None or schedule.is_paused:
        return ""
    said = moment(at)
    return f"{said.removesuffix(' ago')} late" if said.endswith(" ago") else said  # no process fires schedules


def _cell(text: str, below: str = "", style: str = "") -> Text:
    from rich.text import Text

    cell = Text(one_line(text), style=style)
    return cell.append(f"\n{one_line(below)}", style="dim") if below else cell


def _last_job_cell(said: str, wide: bool) -> Text:
    status, _, ended = said.partition(" ")
    style = STYLES.get(status, "")
    return _cell(said, style=style) if wide else _cell(status, ended, style)


def _last_job(schedule: Schedule, last_jobs: LastJobs) -> str:
    """Return how the last job ended, and when; or its status, if it is not over."""
    if schedule.last_job_id is None:
        return ""
    job = last_jobs.get(schedule.last_job_id)
    if job is None:
        return "pruned"
    return f"{job.status} {moment(job.finished_at)}".rstrip()


def _scope(schedule: Schedule) -> str:
    return " ".join(word for word in (schedule.scope, schedule.scope_id) if word)


def _flags(schedule: Schedule) -> str:
    flags = []
    if schedule.absent:
        flags.append(f"absent: {schedule.owner} does not declare it any more")
    elif schedule.owner is not None:
        flags.append(f"declared by {schedule.owner}")
    if schedule.is_paused and not schedule.absent:
        flags.append(f"paused by {schedule.paused_by}{f': {schedule.pause_reason}' if schedule.pause_reason else ''}")
    return ", ".join(flags)


def _at(at: datetime | None) -> str:
    """Return the exact time, and how far away it is."""
    return "" if at is None else f"{spell_time(at)} ({_away(at)})"


def _away(at: datetime) -> str:
    seconds = (at - datetime.now(UTC)).total_seconds()
    return f"in {spell_seconds(seconds)}" if seconds > 0 else f"{spell_seconds(-seconds)} ago"


def _document(schedule: Schedule) -> dict[str, Any]:
    """Return the JSON of a schedule."""
    fields = {**structs.asdict(schedule), "when": when_data(schedule.when)}
    head = {name: fields.pop(name) for name in ("id", "name", "scope", "scope_id")}
    return {**head, "state": schedule.state, "source": schedule.source, "words": in_words(schedule.when), **fields}


@schedules.command()
@one_schedule
@database
def show(db: Database, name: str, scope: str | None, scope_id: str | None) -> None:
    """Everything about a schedule: its fields, its next times, and what became of the last ones."""

    async def look(jobs: Jobs) -> tuple[Schedule, Preview | None, Sequence[Fired], Statuses]:
        found = await _or_guess(jobs, name, jobs.schedules.get(name, scope=scope, scope_id=scope_id))
        fired = await jobs.schedules.history(found.id, limit=_SHOWN)
        try:
            following = await jobs.schedules.preview(found.id, limit=_SHOWN)
        except InvalidInput:  # this machine does not know the zone
            following = None
        return found, following, fired, await _statuses(jobs, fired)

    found, following, fired, statuses = db.run(look)
    times = [] if following is None else following.times
    document = {**_document(found), "next_times": times, "recent": [_fired_document(one, statuses) for one in fired]}
    db.tell(document, lambda: _print_one(found, times, fired, statuses))


def _print_one(
    found: Schedule, times: Sequence[ScheduleTime], fired: Sequence[Fired], statuses: Statuses
) -> None:  # fmt: skip
    options = ", ".join(f"{name} {value}" for name, value in found.options.items())
    many = f" (at most {found.most}{f' of the last {spell_seconds(found.within)}' if found.within is not None else ''})"
    print_fields(
        [
            ("name", found.name),
            ("id", found.id),
            ("scope", _scope(found)),
            ("when", in_words(found.when)),
            ("expression", f"{found.when.expression} {found.when.zone}" if isinstance(found.when, Cron) else None),
            ("topic", found.topic + (f" (version {found.version})" if found.version is not None else "")),
            ("job options", options),
            ("state", found.state),
            ("note", _flags(found)),
            ("next run", None if found.is_paused else _at(found.next_run_at)),
            ("last run", _at(found.last_run_at)),
            ("last job", found.last_job_id),
            ("start", exact(found.start)),
            ("end", exact(found.end)),
            ("jitter", spell_seconds(found.jitter) if found.jitter else None),
            ("missed", found.missed + (many if found.missed == "all" else "")),
            ("if live", found.if_live),
            ("revision", str(found.revision)),
            ("created", exact(found.created)),
            ("updated", exact(found.updated)),
            ("description", found.description),
        ]
    )
    print_heading("payload")
    click.echo(pretty(found.payload))
    if times:
        print_heading("next times, once it is resumed" if found.is_paused else "next times")
        _print_times(times)
    if fired:
        print_heading("last times")
        _print_fired(fired, statuses)


@schedules.command()
@one_schedule
@click.option("-n", "--limit", type=click.IntRange(1, _PAGE), default=50, show_default=True, metavar="N")
@click.option("--before", type=Moment(-1), metavar="TIME", help="Only times before: 3d, 2026-05-01T14:30:00Z.")
@database
def history(
    db: Database, name: str, scope: str | None, scope_id: str | None, limit: int, before: datetime | None
) -> None:
    """What became of each time, newest first: it made a job, or none, with the reason."""

    async def look(jobs: Jobs) -> tuple[Sequence[Fired], Statuses]:
        reading = jobs.schedules.history(name, scope=scope, scope_id=scope_id, limit=limit, before=before)
        fired = await _or_guess(jobs, name, reading)
        return fired, await _statuses(jobs, fired)

    fired, statuses = db.run(look)
    following = fired[-1].fire_at if len(fired) == limit else None  # for --before
    document = items([_fired_document(one, statuses) for one in fired], total=None, next=following)

    def show() -> None:
        _print_fired(fired, statuses)
        if following is not None:
            click.echo(f"There may be more: --before {following.isoformat()}", err=True)

    db.tell(document, show)


async def _statuses(jobs: Jobs, fired: Sequence[Fired]) -> Statuses:
    ids = [one.job_id for one in fired if one.job_id is not None]
    return await (await jobs._store()).read(ids, Status) if ids else {}


def _fired_document(fired: Fired, statuses: Statuses) -> dict[str, Any]:
    return {**structs.asdict(fired), "status": statuses.get(fired.job_id or "")}


def _print_fired(fired: Sequence[Fired], statuses: Statuses) -> None:
    rows = [
        (
            exact(one.fire_at),
            one.kind,
            one.reason or str(statuses.get(one.job_id or "") or "pruned"),
            one.job_id or "",
            one.detail or "",
        )
        for one in fired
    ]
    print_table(("time", "kind", "outcome", "job", "note"), rows)


# ── Change ──


@schedules.command()
@click.argument("name")
@click.option("--topic", metavar="TOPIC", required=True, shell_complete=complete_topic, help="The topic of its jobs.")
@times_of
@click.option("--payload", type=Json(), default="{}", metavar="JSON", help="A JSON object, @file, or - for stdin.")
@click.option(
    "--template-version", "version", type=click.IntRange(0), metavar="N",
    help="The version of the topic. Default: the newest enabled one when it fires.",
)  # fmt: skip
@click.option("--priority", type=priority, metavar="N", help="Higher first; also explicit, discovered, backfill.")
@click.option("--max-retries", type=int, metavar="N")
@click.option("--timeout", type=Span(), metavar="SPAN", help="Longest time of one run: 30, 15m, 2h.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="May be repeated.")
@click.option("--key", metavar="KEY", help="The key of its jobs.")
@click.option("--scope", metavar="TEXT", help="The kind of its owner: user, account, …")
@click.option("--scope-id", metavar="TEXT", help="The id of its owner.")
@click.option("--jitter", type=Span(), default=0.0, metavar="SPAN", help="Start each job up to so much later.")
@click.option(
    "--missed", type=click.Choice(get_args(Missed)), default="last", show_default=True,
    help="Times at which no worker was there: a job for the last one, for none, or for all.",
)  # fmt: skip
@click.option(
    "--most", type=int, default=100, show_default=True, metavar="N", help="With --missed all: at most so many jobs."
)
@click.option("--within", type=Span(), metavar="SPAN", help="With --missed all: only times of the last 2h, 3d, …")
@click.option(
    "--if-live", type=click.Choice(get_args(IfLiveJob)), default="allow", show_default=True,
    help="If the last job is not over: make another one, none, one that waits, or cancel the last one.",
)  # fmt: skip
@click.option("--description", metavar="TEXT")
@click.option(
    "--revision", type=click.IntRange(0), metavar="N",
    help="Change it only if it has this revision. 0: only make a new one.",
)  # fmt: skip
@actor
@database
def put(
    db: Database, name: str, topic: str, payload: Any, start: datetime | None, end: datetime | None, **given: Any
) -> None:
    """Make a schedule, or change the one with this name.

    The command gives the whole schedule: what you leave out gets its default. Texts in the payload may have blanks:
    {{fire_at}}, {{fire_at_local}}, {{fire_date}}, {{schedule}}, {{scope}}, {{scope_id}}.

    \b
    rowlock schedules put nightly --topic report --cron "0 2 * * *" --zone Europe/Berlin --payload '{"tenant": 7}'
    rowlock schedules put poll --topic poll --every 15m --missed skip --if-live reject
    """
    when = _when(given)
    if when is None:
        raise click.UsageError("give --cron or --every")
    names = ("version", "priority", "max_retries", "timeout", "tags", "key", "scope", "scope_id")
    taken = {name: given.pop(name) for name in names}
    options = cast(JobOptions, {name: value for name, value in taken.items() if value not in (None, ())})

    async def store(jobs: Jobs) -> tuple[Schedule, LastJobs, str | None]:
        guess = await guess_topic(jobs, topic)
        draft = Draft(topic, payload, options)
        found = await jobs.schedules.put(name, draft, when, start=start, end=end, reason=db.reason, **given)
        return found, await _last_jobs(jobs, [found]), guess

    with _named_by(_TIMES_OPTIONS):
        found, last_jobs, guess = db.run(store)
    db.tell(_document(found), lambda: _print([found], last_jobs))
    if guess:
        note(f"rowlock: no job and no worker has the topic {topic!r}.{guess}")


@contextmanager
def _named_by(options: Mapping[str, str]) -> Iterator[None]:
    """Let errors name the options of the command, where they name the fields of Python."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(options.get(error.field, error.field), error.code, error.problem) from error


def _when(given: dict[str, Any]) -> When | None:
    """Return the times that --cron or --every give, and take their options out of `given`. None: neither is there."""
    names = ("cron", "zone", "gap", "overlap", "every", "anchor")
    said = {name: value for name in names if (value := given.pop(name)) is not None}
    if "cron" in said and "every" in said:
        raise click.UsageError("give --cron or --every, not both")
    own = ("every", "anchor") if "every" in said else ("cron", "zone", "gap", "overlap")
    wrong = [name for name in said if name not in own]
    if wrong or (said and "cron" not in said and "every" not in said):
        name = wrong[0] if wrong else next(iter(said))
        raise click.UsageError(f"--{name} goes with {'--every' if name == 'anchor' else '--cron'}")
    if "every" in said:
        return Every(said["every"], said.get("anchor"))
    return Cron(said.pop("cron"), **said) if said else None


@schedules.command()
@one_schedule
@actor
@database
def delete(db: Database, name: str, scope: str | None, scope_id: str | None) -> None:
    """Delete a schedule and its history. Its jobs stay."""

    async def remove(jobs: Jobs) -> Schedule | None:
        deleting = jobs.schedules.delete(name, scope=scope, scope_id=scope_id, reason=db.reason)
        found: Schedule | None = await _or_guess(jobs, name, deleting)
        return found

    found = db.run(remove)
    if found is None:
        given = {"name": name, "scope": scope, "scope_id": scope_id, "unreadable": True}
        db.tell(given, f"{name} is deleted; this release could not read it")
    else:
        db.tell(_document(found), f"{found.name} is deleted")


@schedules.command()
@one_schedule
@actor
@database
def pause(db: Database, name: str, scope: str | None, scope_id: str | None) -> None:
    """Make no jobs until `resume`. The times that pass meanwhile are recorded, and never caught up."""

    async def stop(jobs: Jobs) -> Schedule:
        pausing = jobs.schedules.pause(name, scope=scope, scope_id=scope_id, reason=db.reason)
        found: Schedule = await _or_guess(jobs, name, pausing)
        return found

    found = db.run(stop)
    db.tell(_document(found), f"{found.name} is paused")


@schedules.command()
@one_schedule
@actor
@database
def resume(db: Database, name: str, scope: str | None, scope_id: str | None) -> None:
    """Make jobs again, from the next time on."""

    async def go_on(jobs: Jobs) -> Schedule:
        resuming = jobs.schedules.resume(name, scope=scope, scope_id=scope_id, reason=db.reason)
        found: Schedule = await _or_guess(jobs, name, resuming)
        return found

    found = db.run(go_on)
    following = f"; the next run is at {_at(found.next_run_at)}" if found.next_run_at else ""
    db.tell(_document(found), f"{found.name} is {found.state}{following}")


@schedules.command()
@one_schedule
@actor
@database
def run(db: Database, name: str, scope: str | None, scope_id: str | None) -> None:
    """Make a job now, beside the schedule's own times, and print its id. --if-live of the schedule holds."""

    async def make(jobs: Jobs) -> tuple[Fired, Statuses]:
        making = jobs.schedules.run_now(name, scope=scope, scope_id=scope_id, reason=db.reason)
        fired = await _or_guess(jobs, name, making)
        return fired, await _statuses(jobs, [fired])

    fired, statuses = db.run(make)
    db.tell(_fired_document(fired, statuses), fired.job_id or f"no job: {fired.reason}")
    if fired.job_id is None:
        note(f"it made no job: {fired.detail or fired.reason}")


@schedules.command()
@one_schedule
@click.option("--from", "first", type=Moment(-1), metavar="TIME", required=True, help="3d, 2026-05-01T00:00:00Z.")
@click.option("--to", "last", type=Moment(-1), metavar="TIME", help="Up to this time. Default: now.")
@click.option("--priority", type=priority, default="backfill", show_default=True, metavar="N", help="Of the jobs.")
@click.option("--yes", "-y", is_flag=True, help="Make the jobs. Without it, the times are only shown.")
@actor
@database
def backfill(
    db: Database,
    name: str,
    scope: str | None,
    scope_id: str | None,
    first: datetime,
    last: datetime | None,
    priority: int | str,
    yes: bool,
) -> None:
    """Make the jobs of past times that have none. Without --yes it only shows the times.

    \b
    rowlock schedules backfill nightly --from 2026-05-01T00:00:00Z --to 2026-05-08T00:00:00Z
    """

    async def fill(jobs: Jobs) -> Sequence[BackfillTime]:
        until = await (await jobs._store()).now() if last is None else last
        filling = jobs.schedules.backfill(
            name, first, until, scope=scope, scope_id=scope_id, dry_run=not yes, priority=priority, reason=db.reason
        )
        found: Sequence[BackfillTime] = await _or_guess(jobs, name, filling)
        return found

    with _named_by({"start": "--from", "end": "--to"}):
        found = db.run(fill)
    db.tell(items(found, dry_run=not yes), lambda: _print_backfill(found, made=yes))
    new = sum(one.new for one in found)
    there = f"{how_many(len(found), 'time')}, {len(found) - new:,} with a job already"
    if yes:
        note(f"{there}: {how_many(new)} made")
    else:
        note(f"{there}: {how_many(new)} would be made{'. Add --yes to make them' if new else ''}")


def _print_backfill(found: Sequence[BackfillTime], *, made: bool) -> None:
    rows = [
        (exact(one.fire_at), ("made" if made else "to be made") if one.new else "there", one.job_id or "")
        for one in found
    ]
    print_table(("time", "job is", "job"), rows)


# ── Times ──


@schedules.command("preview")
@click.argument("name", metavar="[NAME|ID]", required=False)
@click.option("--scope", metavar="TEXT", help="The scope of the schedule, if it has one.")
@click.option("--scope-id", metavar="TEXT", help="The scope_id of the schedule, if it has one.")
@times_of
@click.option("-n", "--limit", type=click.IntRange(1, MAX_PREVIEW), default=5, show_default=True, metavar="N")
@click.option("--after", type=Moment(+1), metavar="TIME", help="The times after this one. Default: now.")
@database
def show_preview(
    db: Database,
    name: str | None,
    scope: str | None,
    scope_id: str | None,
    limit: int,
    after: datetime | None,
    start: datetime | None,
    end: datetime | None,
    **given: Any,
) -> None:
    """The next times of a stored schedule, or of --cron or --every, which needs no database.

    It tells what changes of the clocks do to them.

    \b
    rowlock schedules preview --cron "30 2 * * *" --zone Europe/Berlin -n 10
    rowlock schedules preview nightly
    """
    when = _when(given)
    if (name is None) == (when is None):
        raise click.UsageError("give the name of a schedule, or --cron, or --every")
    lonely = {"--start": start, "--end": end} if when is None else {"--scope": scope, "--scope-id": scope_id}
    for option, value in lonely.items():
        if value is not None:
            raise click.UsageError(f"{option} goes with {'--cron or --every' if when is None else 'a NAME'}")
    if when is not None:
        with _named_by(_TIMES_OPTIONS):
            shown = _preview(when, limit, after, start, end)
    else:
        known: str = name or ""

        async def look(jobs: Jobs) -> Preview:
            reading = jobs.schedules.preview(known, scope=scope, scope_id=scope_id, limit=limit, after=after)
            found: Preview = await _or_guess(jobs, known, reading)
            return found

        shown = db.run(look)
    db.tell(shown, lambda: _print_preview(shown))
    if not shown.times:
        note("it never fires again")


def _preview(
    when: When, limit: int, after: datetime | None, start: datetime | None, end: datetime | None
) -> Preview:  # fmt: skip
    """Return the times by this machine's clock."""
    definition = Definition(
        topic="preview",
        when=check_when(when),
        start=None if start is None else check_time(start, "start"),
        end=None if end is None else check_time(end, "end"),
    )
    return preview(definition, datetime.now(UTC) if after is None else check_time(after, "after"), limit)


def _print_preview(shown: Preview) -> None:
    click.echo(shown.words)
    if shown.times:
        print_heading("next times")
        _print_times(shown.times)


def _print_times(times: Sequence[ScheduleTime]) -> None:
    rows = [
        (
            f"{one.local:%a %Y-%m-%d %H:%M:%S %Z}",
            spell_time(one.at),
            "skipped" if one.skipped else _away(one.at),
            _note(one),
        )
        for one in times
    ]
    print_table(("local", "UTC", "away", "note"), rows)


def _note(time: ScheduleTime) -> str:
    return time.note or ""


# ── Code and database ──


@schedules.command()
@click.argument("app", metavar="MODULE:JOBS")
@by
@database
def publish(db: Database, app: str) -> None:
    """Store the schedules that the tasks of an application declare, as a worker does when it starts.

    Those that it has declared before, and does not any more, are paused and marked as absent. `rowlock templates
    publish` stores the schedules, too.
    """

    async def store(jobs: Jobs) -> tuple[Sequence[Schedule], LastJobs]:
        changed = await jobs.schedules.publish()
        return changed, await _last_jobs(jobs, changed)

    changed, last_jobs = db.run(store, tasks_of=load_jobs(app))
    db.tell(items([_document(one) for one in changed]), lambda: _print(changed, last_jobs) if changed else None)
    note(published(changed) or "nothing has changed")


def published(changed: Sequence[Schedule]) -> str:
    """Return in words the changes that `publish` has made; empty if it has changed nothing."""
    absent = sum(one.absent for one in changed)
    stored = len(changed) - absent
    said = [f"{how_many(stored, 'schedule')} published"] if stored else []
    if absent:
        said.append(f"{how_many(absent, 'schedule')} paused, because the code does not declare them any more")
    return ", ".join(said)


async def _or_guess(jobs: Jobs, name: str, answer: Any) -> Any:
    """Await the answer. If there is no such schedule, name the scopes of those with this name, or a similar name."""
    try:
        return await answer
    except ScheduleNotFound as error:
        known = (await jobs.schedules.list(limit=_PAGE)).items
        same = [one for one in known if one.name == name]
        if same:
            one = same[0]
            scopes = {"--scope": one.scope, "--scope-id": one.scope_id}
            options = " ".join(
                f"{option} {shlex.quote(value)}" for option, value in scopes.items() if value is not None
            )
            guess = f" Add {options}." if options else " The one with this name has no scope."
        else:
            guess = did_you_mean(name, {one.name for one in known})
        raise click.ClickException(f"{error}.{guess}" if guess else str(error)) from error
