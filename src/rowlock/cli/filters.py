"""Options that choose jobs, the same for listing them and for steering many at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.options import Moment, PathValue
from rowlock.core.job import Status
from rowlock.stores.reading import Filter

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
    click.option(
        "--payload",
        type=PathValue(),
        metavar="PATH=JSON",
        multiple=True,
        help="What the payload holds: user.id=7, 'user.name=\"ada\"'.",
    ),
    click.option("--since", type=Moment(-1), metavar="TIME", help="Created since: 2h, 3d, 2026-05-01T14:30:00Z."),
    click.option("--until", type=Moment(-1), metavar="TIME", help="Created before."),
)


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """All options that choose jobs, given to the command as one `wanted`."""

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
        payload: tuple[tuple[str, Any], ...],
        since: datetime | None,
        until: datetime | None,
        **rest: Any,
    ) -> Any:
        wanted = Filter(
            topics=topic,
            statuses=status,
            keys=key,
            scope=scope,
            scope_id=scope_id,
            tags=tag,
            fingerprint=fingerprint,
            error=error,
            payload=payload,
            created_from=since,
            created_until=until,
        )
        return function(*args, wanted=wanted, **rest)

    for option in reversed(_OPTIONS):
        packed = option(packed)
    return packed
