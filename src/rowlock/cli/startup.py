"""Start something that needs the database, and wait for the database if it is not there yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from rowlock.errors import NoSuchDatabase, StoreBusy, StoreFull, StoreUnavailable
from rowlock.runtime.backoff import Backoff

log = logging.getLogger("rowlock")

_LONGEST = 2.0  # seconds between tries
_REMINDER = 60.0  # seconds between log lines while it waits


async def when_it_is_there(
    start: Callable[[], Awaitable[None]], *, proven: bool = False, on_failure: Callable[[], None] = lambda: None
) -> None:
    """Call `start` until the database answers and has disk space. Raise certain mistakes at once: a bad URL, a wrong
    password, no tables. `proven`: it has worked before, so a database that is missing may come back."""
    backoff = Backoff("the database is not there yet", _LONGEST)
    began = said = time.monotonic()
    while True:
        try:
            await start()
        except (StoreUnavailable, StoreBusy, StoreFull) as error:
            if isinstance(error, NoSuchDatabase) and not proven:
                raise
            on_failure()
            pause = backoff.failed(error)  # logs the first failure
            if time.monotonic() - said >= _REMINDER:
                said = time.monotonic()
                log.warning("still waiting for the database, for %.0f s: %s", said - began, error)
            await asyncio.sleep(pause)
        else:
            if backoff.in_trouble:
                log.warning("the database is there, after %.0f s", time.monotonic() - began)
            return
