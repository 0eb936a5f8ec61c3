"""The route of server-sent events: the jobs and numbers that the reader may see, now and at every change."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated

from msgspec import Struct

from rowlock.core.conditions import Condition
from rowlock.errors import RowlockError
from rowlock.http.call import Call
from rowlock.http.filters import JobFilter, asked_filter, visible
from rowlock.http.live import CountsView, JobsView, LiveJobs, Told, View, event
from rowlock.http.problems import Problem, check_range
from rowlock.http.redacting import check_guesses
from rowlock.http.response import Response
from rowlock.http.routes import SEE_JOBS, Routes
from rowlock.http.shapes import schema
from rowlock.http.stats import StatsAnswer, read_stats
from rowlock.runtime.periodic import is_set_within
from rowlock.stores.queries import MAX_LIMIT, Filter

ROUTES = Routes()

_QUIET = 15.0  # seconds of silence after which a comment is sent, so that no proxy closes the connection
_RECHECK = 5.0  # seconds between two checks whether the reader may still see the jobs
_RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser comes back
_LONGEST = 86_400.0
MEDIA = "text/event-stream"

MOST = 1000  # streams of this process
RESERVED = 100  # of them for superusers, who must get in when all others are taken
MOST_OF_ONE = 200  # of one token or superuser
MOST_BY_RULE = 50  # of one user, one anonymous address, one scope of browser tokens, or one token for one job
_AGAIN = {"retry-after": "5"}


class LiveQuery(JobFilter, frozen=True, kw_only=True):
    """`limit`: how many of the newest jobs that meet the filter are shown; 0: none. `stats`: send numbers as well.
    `seconds`: when to end; 0: after everything was sent once."""

    limit: Annotated[int, schema(minimum=0, maximum=MAX_LIMIT)] = 50
    stats: bool = True
    seconds: Annotated[float, schema(minimum=0, maximum=86_400)] | None = None


class Behind(Struct, kw_only=True):
    """The server can't keep up: it last read these jobs `since` seconds ago. The next `jobs` ends this."""

    since: float


class StreamEnd(Struct, kw_only=True):
    """`reason`: stopping (the server stops; connect again), or the code of the problem that a new request would get."""

    reason: str


EVENTS = {"jobs": LiveJobs, "stats": StatsAnswer, "behind": Behind, "end": StreamEnd}


@ROUTES.add(
    "GET", "/api/events", SEE_JOBS, "Jobs and numbers, now and at each change, as server-sent events",
    answers=tuple(EVENTS.values()), media=MEDIA, errors=(429,),
)  # fmt: skip
async def stream_events(call: Call, asked: LiveQuery) -> Response:
    check_range("limit", asked.limit, 0, MAX_LIMIT)
    check_range("seconds", asked.seconds or 0.0, 0, _LONGEST)
    if not asked.limit and not asked.stats:
        raise Problem("nothing_asked", "limit: 0 without stats leaves nothing to tell", field="limit")
    stream = Stream(call, asked)
    # Taken before anything is awaited, so that concurrent requests can't pass the limit.
    stream.leave = call.api.state.stream_limits.take(call)
    return Response(media=MEDIA, headers=[("x-accel-buffering", "no")], stream=stream.run, ended=stream.leave)


class Stream:
    """The stream of one reader. Only what was sent last is kept for it."""

    def __init__(self, call: Call, asked: LiveQuery) -> None:
        self._call = call
        self._asked = asked
        self._live = call.api.state.live
        self._wake = asyncio.Event()
        self._wakes = self._wake.set  # one object: views compare it by identity
        self._views: dict[str, View] = {}
        self._told: dict[str, Told] = {}
        self._behind: set[str] = set()
        self._condition = visible(call)
        self._filter = self._asked_filter()  # refused before the stream begins
        self.leave: Callable[[], None] = lambda: None

    async def run(self) -> AsyncGenerator[bytes, None]:
        gone = asyncio.ensure_future(self._call.request.hung_up())
        gone.add_done_callback(lambda _: self._hung_up())
        try:
            self._look(self._condition)
            async with aclosing(self._tell(gone)) as parts:
                async for part in parts:
                    yield part
        finally:
            gone.cancel()
            self._look_away()
            self.leave()

    def _hung_up(self) -> None:
        self.leave()  # even if a write is still stuck
        self._wakes()

    async def _tell(self, gone: asyncio.Future[None]) -> AsyncGenerator[bytes, None]:
        began = checked = time.monotonic()
        seconds = self._asked.seconds
        ends = None if seconds is None else began + seconds
        yield _RETRY
        while not gone.done():
            self._wake.clear()
            if parts := self._news():
                yield parts
            now = time.monotonic()
            if self._live.stopping:
                yield event("end", StreamEnd(reason="stopping"))
                return
            if ends is not None and now >= ends and len(self._told) == len(self._views):
                return
            if now - checked >= _RECHECK:
                checked = now
                if (why := await self._check()) is not None:
                    yield event("end", StreamEnd(reason=why))
                    return
            due = [checked + _RECHECK, now + _QUIET, *([] if ends is None or now >= ends else [ends])]
            if not parts and now - began >= _QUIET:
                began = now
                yield b": still here\n\n"
            await is_set_within(self._wake, min(due) - now)

    def _news(self) -> bytes:
        parts = []
        for key, view in self._views.items():
            if view.is_behind and key not in self._behind:
                self._behind.add(key)
                parts.append(event("behind", Behind(since=time.monotonic() - view.read_at)))
            told = self._told.get(key)
            if view.now is not None and (told is None or view.now.generation != told.generation):
                parts.append(view.frame(told))
                self._told[key] = view.now
                self._behind.discard(key)
        return b"".join(parts)

    # ── Views ──

    def _look(self, condition: Condition) -> None:
        asked, call = self._asked, self._call
        if asked.limit:
            make = partial(JobsView, self._filter, condition, asked.limit, call.redaction, self._live.voices)
            self._join(f"jobs {asked.limit} {self._filter!r} {condition!r} {call.settings.revision}", make)
        if asked.stats:
            topic = asked.topic[0] if len(asked.topic) == 1 else None
            ask = partial(read_stats, call.api, condition, topic)
            self._join(f"stats {topic} {condition!r}", partial(CountsView, ask))

    def _join(self, key: str, make: Callable[[], View]) -> None:
        self._views[key] = self._live.watch(key, make, self._wakes)

    def _look_away(self) -> None:
        for key in self._views:
            self._live.unwatch(key, self._wakes)
        self._views.clear()
        self._told.clear()
        self._behind.clear()

    async def _check(self) -> str | None:
        """Return why the stream must end, such as a logout. Else look at what the reader may see now."""
        try:
            call = await self._call.again()
        except Problem as problem:
            return problem.code
        except RowlockError:
            return None  # the database is away: nothing is sent until it is back
        before = self._condition, self._call.settings.revision
        self._call, self._condition = call, visible(call)
        try:
            self._filter = self._asked_filter()
        except Problem as problem:
            return problem.code
        if (self._condition, call.settings.revision) != before:
            self._look_away()
            self._look(self._condition)
            self._wakes()
        return None

    def _asked_filter(self) -> Filter:
        wanted = asked_filter(self._asked, self._condition)
        check_guesses(self._call, wanted)
        return wanted


class StreamLimits:
    """Limits for open streams, so that no caller takes all of them. For one event loop."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def take(self, call: Call) -> Callable[[], None]:
        """Take a place, and return a function that gives it back, once. Raise a 429 if there is none."""
        who, identity = call.place, call.identity
        own = MOST_OF_ONE if identity.has("read") and not identity.is_narrow else MOST_BY_RULE
        if self._of[who] >= own:
            text = f"you have {own} streams open: close one, or watch more by one stream (several topic=… or id=…)"
            raise Problem("too_many_streams", text, headers=_AGAIN)
        most = MOST if identity.kind == "superuser" else MOST - RESERVED
        if self._of.total() >= most:
            text = f"all {most} streams of this server are taken: try again later, or ask another server"
            raise Problem("streams_taken", text, headers=_AGAIN)
        self._of[who] += 1
        is_taken = True

        def give_back() -> None:
            nonlocal is_taken
            if is_taken:
                is_taken = False
                self._of -= Counter([who])  # forgets the name at 0

        return give_back

    def __len__(self) -> int:
        return self._of.total()
