"""Long polls for work. Of those who wait for the same topics one looks at a time: it sends the next one when it has
found something. So a thousand who wait cost the database no more than one does, and one job wakes one of them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rowlock.core.job import Lane

Lanes = tuple[Lane, ...]
_Line = deque[asyncio.Future[None]]


class Turns:
    """For one event loop."""

    def __init__(self) -> None:
        self._lines: dict[Lanes, _Line] = {}
        self.rings = 0  # who was looking when it rang may have looked too early

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    async def wait(self, lanes: Lanes, timeout: float, gone: asyncio.Future[Any]) -> bool:
        """Is it their turn to look? False: the time is over, or they are `gone`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(lanes, deque()).append(turn)
        taken = False
        try:
            await asyncio.wait([turn, gone], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            taken = turn.done() and not gone.done()
        finally:
            if not turn.done():
                self._leave(lanes, turn)
            elif not taken:
                self.next(lanes)  # it rang for somebody who is here
        return taken

    def next(self, lanes: Lanes) -> None:
        """The first of those who wait for the same."""
        line = self._lines.get(lanes)
        if line:
            turn = line[0]
            self._leave(lanes, turn)
            turn.set_result(None)

    def ring(self) -> None:
        """There may be work, nobody knows of what kind."""
        self.rings += 1
        for lanes in list(self._lines):
            self.next(lanes)

    def dismiss(self) -> None:
        while self._lines:
            self.ring()

    def _leave(self, lanes: Lanes, turn: asyncio.Future[None]) -> None:
        line = self._lines[lanes]
        line.remove(turn)
        if not line:
            del self._lines[lanes]
