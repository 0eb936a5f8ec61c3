"""From a command, which has no event loop, to the verbs of Jobs."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rowlock import config
from rowlock.jobs import Jobs

T = TypeVar("T")


def run(url: str | None, work: Callable[[Jobs], Awaitable[T]], *, by: str | None = None, create: bool = False) -> T:
    """Connect, do the work, let go of the connections.

    Only `create` may make tables: a mistyped path must not become an empty database that has no jobs in it.
    """

    async def connected() -> T:
        async with Jobs(url, by=by or _operator(url), migrate=None if create else False) as jobs:
            return await work(jobs)

    return asyncio.run(connected())


def _operator(url: str | None) -> str:
    """Who sits here, unless the settings say it: an audit that names a programming language helps nobody."""
    configured = config.load({"url": url}).by
    if configured != config.Settings("").by:
        return configured
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError, ImportError):  # a user id without a name
        return "cli"
