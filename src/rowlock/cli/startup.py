"""Start what needs the database, or wait for the database as a running worker does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from rowlock.errors import NoSuchDatabase, StoreBusy, StoreFull, StoreUnavailable
from rowlock.runtime.patience import Patience

log = logging.getLogger("rowlock")

_LONGEST = 2.0  # seconds between tries
_REMINDER = 60.0  # seconds between lines that say what it still waits for


async def when_it_is_there(
    start: Callable[[], Awaitable[None]], *, proven: bool = False, on_failure: Callable[[], None] = lambda: None
) -> None:
    """Call `start` until the database answers and has room. What is certainly a mistake (a bad URL, a wrong password,
    no tables) is raised at once. `proven`: it has worked before, so a database that doesn't exist may come back."""
    patience = Patience("the database is not there yet", _LONGEST)
    began = said = time.monotonic()
    while True:
        try:
            await start()
        except (StoreUnavailable, StoreBusy, StoreFull) as error:
            if isinstance(error, NoSuchDatabase) and not proven:
                raise
            on_failure()
            pause = patience.failed(error)  # says the first one
            if time.monotonic() - said >= _REMINDER:
                said = time.monotonic()
                log.warning("still waiting for the database, for %.0f s: %s", said - began, error)
            await asyncio.sleep(pause)
        else:
            if patience.in_trouble:
                log.warning("the database is there, after %.0f s", time.monotonic() - began)
            return
