"""LongPolls: remote workers that wait for work. Of those that wait for the same topics, one looks at a time. When it
has found work, it wakes the next one. So a thousand of them cost the database as much as one, and a job wakes only
one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rowlock.core.job import Lane

Lanes = tuple[Lane, ...]
_Line = deque[asyncio.Future[None]]


class LongPolls:
    """The long polls of one event loop."""

    def __init__(self) -> None:
        self._lines: dict[Lanes, _Line] = {}
        self.rings = 0  # a claim that was under way at a ring may have come too early

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    async def wait(self, lanes: Lanes, timeout: float, gone: asyncio.Future[Any]) -> bool:
        """Return True when it is this caller's turn to look. False: the time is over, or the client is `gone`."""
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
                self.next(lanes)  # give the turn to a client that is still here
        return taken

    def next(self, lanes: Lanes) -> None:
        """Wake the first caller that waits for these lanes."""
        line = self._lines.get(lanes)
        if line:
            turn = line[0]
            self._leave(lanes, turn)
            turn.set_result(None)

    def ring(self) -> None:
        """Wake one caller of each group of lanes: there may be work for any lane."""
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
