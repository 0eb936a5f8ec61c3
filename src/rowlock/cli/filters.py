"""Options that choose jobs, the same for listing them and for steering many at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.options import Moment, PathOrPayload, PathValue, Whole
from rowlock.core.job import Status
from rowlock.stores.reading import Filter

_HOLDS = click.option(
    "--payload",
    type=PathValue(),
    metavar="PATH=JSON",
    multiple=True,
    help="What the payload holds: user.id=7, 'user.name=\"ada\"'.",
)
_HOLDS_OR_BECOMES = click.option(
    "--payload",
    type=PathOrPayload(),
    metavar="PATH=JSON|JSON",
    multiple=True,
    help="What the payload holds: user.id=7. With ids, the new payload: a JSON object, @file, or - for stdin.",
)
_OPTIONS = (
    click.option("--topic", metavar="TOPIC", multiple=True, shell_complete=complete_topic, help="May be repeated."),
    click.option(
        "--status", type=click.Choice([status.value for status in Status]), multiple=True, help="May be repeated."
    ),
    click.option("--key", metavar="KEY", multiple=True, help="May be repeated."),
    click.option("--scope", metavar="TEXT"),
    click.option("--scope-id", metavar="TEXT"),
    click.option("--tag", metavar="TAG", multiple=True, help="If repeated, jobs that have all of them."),
    click.option("--fingerprint", metavar="TEXT", help="Dead letters of a group: see rowlock failures."),
    click.option("--error", metavar="TEXT", help="A part of the last error."),
    _HOLDS,
    click.option("--since", type=Moment(-1), metavar="TIME", help="Created since: 2h, 3d, 2026-05-01T14:30:00Z."),
    click.option("--until", type=Moment(-1), metavar="TIME", help="Created before."),
)


def filters(function: Callable[..., Any], *, or_payload: bool = False) -> Callable[..., Any]:
    """All options that choose jobs, given to the command as one `wanted`. `or_payload`: --payload may also be a whole
    one, which the command is given as `payload`."""

    @functools.wraps(function)
    def packed(
        *args: Any,
        topic: tuple[str, ...],
        status: tuple[Status, ...],
        key: tuple[str, ...],
        scope: str | None,
        scope_id: str | None,
        tag: tuple[str, ...],
        fingerprint: str | None,
        error: str | None,
        payload: tuple[tuple[str, Any] | Whole, ...],
        since: datetime | None,
        until: datetime | None,
        **rest: Any,
    ) -> Any:
        whole = [one.payload for one in payload if isinstance(one, Whole)]
        if len(whole) > 1:
            raise click.UsageError("give one new --payload")
        if or_payload:
            rest["payload"] = whole[0] if whole else None
        wanted = Filter(
            topics=topic,
            statuses=status,
            keys=key,
            scope=scope,
            scope_id=scope_id,
            tags=tag,
            fingerprint=fingerprint,
            error=error,
            payload=tuple(one for one in payload if not isinstance(one, Whole)),
            created_from=since,
            created_until=until,
        )
        return function(*args, wanted=wanted, **rest)

    for option in reversed(_OPTIONS):
        packed = (_HOLDS_OR_BECOMES if or_payload and option is _HOLDS else option)(packed)
    return packed
