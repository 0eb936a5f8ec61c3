"""Options that choose jobs, the same for listing them and for changing many at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.options import Moment, PathOrPayload, PathValue, Whole
from rowlock.core.job import Status
from rowlock.stores.queries import Filter

_PREFIX = "filter_"  # of the parameters' names: after it comes the field of Filter


def _option(name: str, field: str, **options: Any) -> Callable[..., Any]:
    return click.option(name, _PREFIX + field, **options)


_HOLDS = _option(
    "--payload", "payload", type=PathValue(), metavar="PATH=JSON", multiple=True,
    help="A value in the payload: user.id=7, 'user.name=\"ada\"'.",
)  # fmt: skip
_HOLDS_OR_BECOMES = _option(
    "--payload", "payload", type=PathOrPayload(), metavar="PATH=JSON|JSON", multiple=True,
    help="A value in the payload: user.id=7. With ids, the new payload: a JSON object, @file, or - for stdin.",
)  # fmt: skip
_OPTIONS = (
    _option(
        "--topic", "topics", metavar="TOPIC", multiple=True, shell_complete=complete_topic, help="May be repeated."
    ),
    _option(
        "--status",
        "statuses",
        type=click.Choice([status.value for status in Status]),
        multiple=True,
        help="May be repeated.",
    ),
    _option("--key", "keys", metavar="KEY", multiple=True, help="May be repeated."),
    _option("--scope", "scope", metavar="TEXT"),
    _option("--scope-id", "scope_id", metavar="TEXT"),
    _option("--tag", "tags", metavar="TAG", multiple=True, help="If repeated, jobs that have all of them."),
    _option("--fingerprint", "fingerprint", metavar="TEXT", help="Dead letters of a group: see rowlock failures."),
    _option("--error", "error", metavar="TEXT", help="A part of the last error."),
    _HOLDS,
    _option(
        "--since", "created_from", type=Moment(-1), metavar="TIME", help="Created since: 2h, 2026-05-01T14:30:00Z."
    ),
    _option("--until", "created_until", type=Moment(-1), metavar="TIME", help="Created before."),
)


def filters(function: Callable[..., Any], *, or_payload: bool = False) -> Callable[..., Any]:
    """Add all options that choose jobs. The command gets them as one `wanted`. `or_payload`: --payload may also be a
    whole payload, which the command gets as `payload`."""

    @functools.wraps(function)
    def packed(**given: Any) -> Any:
        wanted = {name.removeprefix(_PREFIX): given.pop(name) for name in [*given] if name.startswith(_PREFIX)}
        whole = [one.payload for one in wanted["payload"] if isinstance(one, Whole)]
        if len(whole) > 1:
            raise click.UsageError("give one new --payload")
        if or_payload:
            given["payload"] = whole[0] if whole else None
        wanted["payload"] = tuple(one for one in wanted["payload"] if not isinstance(one, Whole))
        return function(**given, wanted=Filter(**wanted))

    for option in reversed(_OPTIONS):
        packed = (_HOLDS_OR_BECOMES if or_payload and option is _HOLDS else option)(packed)
    return packed
