from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import cast

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, database
from rowlock.cli.exits import Exit
from rowlock.cli.groups import Group
from rowlock.cli.options import Span, together
from rowlock.cli.show import how_many, is_fancy, items, moment, note, number, print_heading, print_table
from rowlock.cli.spelling import guess_topic
from rowlock.client.limits import Kind, LimitInfo, UsedBy
from rowlock.core.job import Job
from rowlock.core.limits import Concurrency, Fair, Limit, Rate
from rowlock.jobs import Jobs
from rowlock.stores.base import MOST_COUNTED

_HOLDERS = 20
_LONGEST = 24  # characters of a name on a terminal


@click.group(cls=Group)
def limits() -> None:
    """How many jobs may run or start at once, and whose turn it is.

    \b
    rowlock limits list
    rowlock limits put llm.complete --max 20                          20 at once
    rowlock limits put llm.complete --max 500 --per 60 --by scope_id  500 starts a minute for each scope_id
    rowlock limits clear llm.complete                                 the limits of the code hold again
    """


# ── See ──


@limits.command("list")
@database
def list_limits(db: Database) -> None:
    """All limits, and what is used of them."""
    from rowlock.http.limits import limit_body  # the same JSON as over HTTP

    async def look(jobs: Jobs) -> tuple[Sequence[LimitInfo], Sequence[str]]:
        return await jobs.limits.list(), await jobs.limits.misfits()

    found, misfits = db.run(look)
    db.tell(items([limit_body(one) for one in found]) if db.wants_json else None, lambda: _print(found))
    for text in misfits:
        note(f"warning: {text}")


@limits.command()
@click.argument("name", shell_complete=complete_topic)
@database
def show(db: Database, name: str) -> None:
    """The limits of a topic, or of a name that topics share: what each value uses, and which jobs run."""
    from rowlock.http.limits import LimitAnswer, holder_body, limit_body

    async def look(jobs: Jobs) -> tuple[Sequence[LimitInfo], Sequence[Job]]:
        return await jobs.limits.get(name), await jobs.limits.holders(name, limit=_HOLDERS)

    found, holders = db.run(look)
    if db.wants_json:
        db.tell(LimitAnswer(items=[limit_body(one) for one in found], holders=[*map(holder_body, holders)]), "")
        return
    _print(found)
    if values := [(info, value) for info in found for value in _values(info)]:
        print_heading("values")
        rows = [(_name(info.name), spell(info.limit), *_value(info, one)) for info, one in values]
        print_table(("name", "limit", "value", "used", "next"), rows)
    if holders:
        print_heading("running now")
        told = [(job.id, job.topic, str(job.status), job.locked_by or "", moment(job.claimed_at)) for job in holders]
        print_table(("id", "topic", "status", "worker", "since"), told)


def _print(found: Sequence[LimitInfo]) -> None:
    rows = [
        (
            _name(one.name),
            spell(one.limit),
            _used(one),
            number(one.waiting, one.waiting >= MOST_COUNTED),
            one.source if one.code is None or one.source == "code" else f"put, code: {spell(one.code)}",
            ", ".join(one.topics),
        )
        for one in found
    ]
    print_table(("name", "limit", "used", "waiting", "source", "topics"), rows)


def _name(name: str) -> str:
    """Return the name, cut on a terminal, where the other columns need room, too."""
    return f"{name[: _LONGEST - 1]}…" if is_fancy() and len(name) > _LONGEST else name


def spell(limit: Limit) -> str:
    """Return a limit in words: 20 at once; 500 in 60 s by scope_id; turns by scope_id."""
    if isinstance(limit, Fair):
        weights = ", ".join(f"{value}={weight}" for value, weight in sorted(limit.weights.items()))
        return f"turns by {limit.by}{f' ({weights})' if weights else ''}"
    text = f"{limit.max:,} at once" if isinstance(limit, Concurrency) else f"{limit.max:,} in {limit.per:g} s"
    burst = f", {limit.burst:,} at once" if isinstance(limit, Rate) and limit.burst is not None else ""
    return f"{text}{burst}{f' by {limit.by}' if limit.by is not None else ''}"


def _used(info: LimitInfo) -> str:
    if isinstance(info.limit, Fair):
        return ""
    if info.limit.by is None:
        return f"{info.used_by[0].used if info.used_by else 0:,} of {info.limit.max:,}"
    full = sum(one.is_used_up(info.limit) for one in info.used_by)
    return f"{how_many(len(info.used_by), 'value')}{f', {full:,} used up' if full else ''}" if info.used_by else "0"


def _values(info: LimitInfo) -> list[UsedBy]:
    """Return the values of a limit by a field: those in use, and those that have a limit of their own."""
    if info.limit.by is None:
        return []
    used = {one.value for one in info.used_by}
    others = [(value, limit) for value, limit in sorted(info.values.items()) if value not in used]
    return [*info.used_by, *(UsedBy(value=value, used=0, max=getattr(limit, "max", 1)) for value, limit in others)]


def _value(info: LimitInfo, one: UsedBy) -> tuple[str, str, str]:
    unit = "running, weight " if isinstance(info.limit, Fair) else "of "
    return one.value or "(none)", f"{one.used:,} {unit}{one.max:,}", moment(one.free_at)


# ── Change ──

# --by names the field of a limit here, so the operator's name has another option than elsewhere.
_actor = together(
    click.option("--reason", metavar="TEXT", help="Why, for the audit."),
    click.option(
        "--as",
        "by",
        metavar="NAME",
        help="Who does this, for the audit. Default: `by` of the settings, or your user name.",
    ),
)


@limits.command()
@click.argument("name", shell_complete=complete_topic)
@click.option("--max", "most", type=int, metavar="N", help="At most N jobs: at once, or with --per in that time.")
@click.option("--per", type=Span(), metavar="TIME", help="Makes it a rate: N starts in any such time: 60, 90s, 1h.")
@click.option(
    "--burst", type=int, metavar="N", help="Of a rate: at most N starts at once, then they are spread evenly."
)
@click.option("--by", "field", metavar="FIELD", help="For each value of scope_id, scope, key or payload.NAME.")
@click.option("--value", metavar="TEXT", help="Only for this value of the field.")
@click.option("--fair", metavar="FIELD", help="The values of this field take turns. Instead of --max.")
@click.option(
    "--weight", "weights", multiple=True, metavar="VALUE=N", help="N jobs of this value in its turn; may be repeated."
)
@_actor
@database
def put(
    db: Database,
    name: str,
    most: int | None,
    per: float | None,
    burst: int | None,
    field: str | None,
    value: str | None,
    fair: str | None,
    weights: tuple[str, ...],
) -> None:
    """Set a limit of a topic, or of a name that topics share.

    It takes the place of the limit in the code with the same kind and field until it is cleared. Workers obey within a
    second; running jobs are not stopped.

    \b
    rowlock limits put llm --max 5                                            5 at once
    rowlock limits put llm --max 500 --per 60 --by scope_id                   500 starts a minute for each scope_id
    rowlock limits put llm --max 1000 --per 60 --by scope_id --value acme     more for one of them
    rowlock limits put llm.complete --fair scope_id --weight acme=3           scope_ids take turns, acme with 3 jobs
    """
    limit = _limit(most, per, burst, field, fair, weights)

    async def go(jobs: Jobs) -> list[LimitInfo]:
        names = {one.name for one in await jobs.limits.list()}
        await jobs.limits.put(name, limit, value=value, reason=db.reason)
        if name not in names and (guess := await guess_topic(jobs, name, names)) is not None:
            note(f"rowlock: no job, no worker and no other limit has the name {name!r}. It is put all the same.{guess}")
        return [one for one in await jobs.limits.get(name) if one.name != name]

    others = db.run(go)
    whose = "" if value is None else f" for {field} {value}"
    also = [f"{name} also has the limit {one.name}: {spell(one.limit)}" for one in others]
    document = {"name": name, "limit": limit, "value": value, "also": [one.name for one in others]}
    db.tell(document, "\n".join([f"{name}{whose}: {spell(limit)}", *also]))


def _limit(
    most: int | None, per: float | None, burst: int | None, field: str | None, fair: str | None, weights: Sequence[str]
) -> Limit:
    if fair is not None:
        if most is not None or per is not None or burst is not None or field is not None:
            raise click.UsageError("--fair FIELD takes no --max, --per, --burst and --by: put these as another limit.")
        pairs = list(map(_weight, weights))
        if len(dict(pairs)) < len(pairs):
            raise click.UsageError("--weight names a value twice: give each value one weight.")
        return Fair(fair, dict(pairs))
    if weights:
        raise click.UsageError("--weight needs --fair FIELD.")
    if most is None:
        raise click.UsageError("Give --max N, or --fair FIELD.")
    if per is None:
        if burst is not None:
            raise click.UsageError("--burst needs --per TIME.")
        return Concurrency(most, field)
    return Rate(most, per, field, burst=burst)


def _weight(text: str) -> tuple[str, int]:
    value, _, weight = text.rpartition("=")
    if not value or not weight.isascii() or not weight.isdigit():
        raise click.BadParameter(f"{text!r} is not VALUE=N, such as acme=3.", param_hint="--weight")
    return value, int(weight)


@limits.command()
@click.argument("name", shell_complete=complete_topic)
@click.option("--kind", type=click.Choice(["concurrency", "rate", "fair"]), help="Only limits of this kind.")
@click.option("--field", metavar="FIELD", help="Only limits by this field. '': by no field.")
@click.option("--value", metavar="TEXT", help="Only what was put for this value.")
@_actor
@database
def clear(db: Database, name: str, kind: str | None, field: str | None, value: str | None) -> None:
    """Remove limits that were put, so that those of the code hold again. Exit code 1: no such limit was put.

    \b
    rowlock limits clear llm
    rowlock limits clear llm --kind rate --value acme
    rowlock limits clear llm --kind rate --field ''      only the rate of all values together
    """

    async def go(jobs: Jobs) -> int:
        meant = cast(Kind | None, kind)
        return await jobs.limits.clear(name, kind=meant, field=field, value=value, reason=db.reason)

    cleared = db.run(go)
    if cleared or db.wants_json:
        db.tell({"name": name, "cleared": cleared}, f"{how_many(cleared, 'limit')} of {name} cleared")
    if not cleared:
        note(f"{name}: no such limit was put, so none was cleared; rowlock limits list has all limits")
        sys.exit(Exit.REFUSED)
