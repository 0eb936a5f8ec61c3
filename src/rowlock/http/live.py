"""What streams show: views of the database, read by one reader for all who look at them.

A view is a question (which jobs, or how many stand where) and its last answer. The reader asks again and again; whoever
looks at the view is told what has changed since they were told last. So nothing is queued for anyone: who reads slowly
gets fewer and larger steps, who comes back gets everything, and all end at the same state.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rowlock.access.redaction import Redaction
from rowlock.core.conditions import Compared, Condition, holds
from rowlock.core.job import LIVE, Job
from rowlock.errors import StoreError
from rowlock.http.shapes import LiveJob, LiveJobs
from rowlock.runtime.patience import Patience
from rowlock.stores.base import Store
from rowlock.stores.listing import given
from rowlock.stores.reading import Filter, State

TICK = 0.25  # seconds between two looks at the database, if none takes longer
COUNTING = 1.0  # seconds between two counts
_SHORTEST = 0.02  # seconds between two looks when somebody new has come
_IDLE = 10.0  # seconds after which is counted again though nothing was written: waiting times grow by themselves
_BUDGET = 1.0  # seconds of one look at lists; those that have not had their turn are first in the next
_LATE = 5.0  # seconds without a look after which a view's watchers are told that it is behind
_TOGETHER = 20  # lists that are looked up in one go, so that others get their turn at the database
_AT_ONCE = 1000  # jobs whose states are read in one go
_JOBS_AT_ONCE = 100  # jobs that are read whole in one go
_SETTLED = 1.5  # seconds between two looks at jobs that have completed
_FOLLOWED = 2000  # jobs of a view that are followed to their end when newer ones have taken their place
_REMEMBERED = 5000  # jobs of a view whose end is kept for those who read slowly
MOST, MOST_BY_RULE = 1000, 50  # streams at once: in this process, and of one who is let in by a rule alone

_encode = msgspec.json.Encoder().encode
Rows = Mapping[str, LiveJob]
Said = tuple[str | None, str | None]
Wake = Callable[[], None]


def event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


class Told(Struct, frozen=True):
    """An answer: the last one that somebody was told of a view."""

    generation: int
    rows: Rows = {}


class View:
    """`watchers`: how to wake who looks at it."""

    def __init__(self) -> None:
        self.watchers: set[Wake] = set()
        self.now: Told | None = None  # the last answer
        self.read_at = 0.0  # 0: never
        self.is_behind = False
        self._frames: dict[int, bytes] = {}  # by the generation that they lead on from

    def frame(self, told: Told | None) -> bytes:
        """The event that leads from there to the last answer."""
        before = 0 if told is None else told.generation
        if before not in self._frames:
            self._frames[before] = self._render(told)
        return self._frames[before]

    def _render(self, told: Told | None) -> bytes:
        raise NotImplementedError

    def _answer(self, rows: Rows) -> None:
        self.now = Told(1 if self.now is None else self.now.generation + 1, rows)
        self._frames.clear()
        self.wake()

    def wake(self) -> None:
        for wake in self.watchers:
            wake()

    def fall_behind(self, now: float) -> None:
        if not self.is_behind and self.read_at and now - self.read_at > _LATE:
            self.is_behind = True
            self.wake()


class JobsView(View):
    """The newest jobs that meet a filter, or those with given ids; and each that was shown, until it has ended.

    `condition`: which jobs may be seen; a list's filter has it too, in `where`.
    """

    def __init__(self, filter: Filter, condition: Condition, limit: int, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction
        self._said: dict[str, tuple[Said, Said]] = {}  # what jobs say of themselves, and what of it is shown
        self.filter = filter
        self.limit = limit
        asked = {name for name in filter.__struct_fields__ if given(filter, name)} - {"where"}
        # With nothing but ids asked for it is known which jobs these are, and with nothing but one's own asked for they
        # are quickly found: all such views are read together.
        self.is_by_id = {"ids"} <= asked <= {"ids", "scope_id"}
        own = condition is True or condition == Compared("scope_id", "=", filter.scope_id)
        self.is_by_scope = asked == {"scope_id"} and own
        self._condition = condition
        self._settled_at = 0.0  # when jobs that don't change any more were looked at last
        self._ended: dict[str, LiveJob] = {}  # how jobs that are not shown any more have ended

    @property
    def shown(self) -> Rows:
        return {} if self.now is None else self.now.rows

    def to_read(self, newest: Iterable[str], now: float) -> set[str]:
        """The newest, and what was shown and has not ended; but those that have completed only now and then: they
        can't change any more, only be deleted."""
        shown = self.shown
        wanted = {*newest, *(job_id for job_id, job in shown.items() if job.status in LIVE)}
        if now - self._settled_at >= _SETTLED:
            self._settled_at = now
            return wanted
        return {job_id for job_id in wanted if (job := shown.get(job_id)) is None or job.status != "completed"}

    def take(
        self, newest: Iterable[str], read: Container[str], states: Mapping[str, State], jobs: Mapping[str, Job]
    ) -> None:
        """The next answer. `states` are of those of the newest and of those shown that were `read`, `jobs` those that
        were `unheard`."""
        old, rows, followed = self.shown, {}, 0
        for job_id in newest:
            if (job := self._seen(states.get(job_id), jobs) if job_id in read else old[job_id]) is not None:
                rows[job_id] = job
        for job_id, before in old.items():
            if job_id in rows or before.status not in LIVE:
                continue
            job = self._seen(states.get(job_id), jobs)
            if job is None:
                continue
            if job.status not in LIVE:
                self._ended[job_id] = job
            elif followed < _FOLLOWED:
                rows[job_id] = job
                followed += 1
        self.read_at, self.is_behind = time.monotonic(), False
        if self.now is None or rows != old:
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
            self._said = {job_id: said for job_id, said in self._said.items() if job_id in rows}
            self._answer(rows)

    def _seen(self, state: State | None, jobs: Mapping[str, Job]) -> LiveJob | None:
        if state is None or self.filter.scope_id not in (None, state.scope_id):
            return None
        if self._condition is not True and not holds(self._condition, _columns(state)):
            return None
        shown = {name: getattr(state, name) for name in LiveJob.__struct_fields__}
        shown["stage"], shown["message"] = self._texts(state, jobs)
        return LiveJob(**shown)

    def unheard(self, read: Iterable[str], states: Mapping[str, State]) -> list[str]:
        """Jobs that say something new, in which there may be what is hidden elsewhere in them."""
        if not self._redaction:
            return []
        speaking = [state for job_id in read if (state := states.get(job_id)) is not None and any(_said(state))]
        return [state.id for state in speaking if state.id not in self._said or self._said[state.id][0] != _said(state)]

    def _texts(self, state: State, jobs: Mapping[str, Job]) -> Said:
        """What a job says of itself, as far as it is shown."""
        said = _said(state)
        if not self._redaction or not any(said):
            return said
        known = self._said.get(state.id)
        if known is None or known[0] != said:
            job = jobs.get(state.id)  # None: it has gone since
            shown = None if job is None else self._redaction.job(replace(job, stage=said[0], message=said[1]))
            known = self._said[state.id] = said, (None, None) if shown is None else (shown.stage, shown.message)
        return known[1]

    def _render(self, told: Told | None) -> bytes:
        new = self.shown
        if told is None:
            missing = [job_id for job_id in self.filter.ids if job_id not in new] if self.is_by_id else []
            return event("jobs", LiveJobs(items=list(new.values()), gone=missing, reset=True))
        old = told.rows
        gone = [job_id for job_id in old if job_id not in new]
        items = [job for job_id, job in new.items() if old.get(job_id) != job]
        items += [self._ended[job_id] for job_id in gone if job_id in self._ended and old[job_id].status in LIVE]
        return event("jobs", LiveJobs(items=items, gone=gone))


def _said(state: State) -> Said:
    return state.stage, state.message


def _columns(state: State) -> dict[str, Any]:
    return {**msgspec.structs.asdict(state), "status": str(state.status)}


class CountsView(View):
    """How many jobs stand where: whatever `ask` answers."""

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self._ask = ask
        self._last = b""
        self.pause = COUNTING

    async def read(self) -> None:
        began = time.monotonic()
        frame = event("stats", await self._ask())
        self.read_at = time.monotonic()
        self.pause = max(COUNTING, 10 * (self.read_at - began))  # what takes long to count is counted less often
        if frame != self._last:
            self._last = frame
            self._answer({})

    def _render(self, told: Told | None) -> bytes:
        return self._last


class Live:
    """The views of one event loop and their reader, who works while somebody looks."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._views: dict[str, View] = {}
        self._of: Counter[str] = Counter()
        self._reader: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._mark: str | None = None
        self.stopping = False

    # ── Who looks ──

    def is_full(self, who: str, *, by_rule: bool) -> bool:
        """Are all places taken, or all that one may have?"""
        return self._of.total() >= MOST or (by_rule and self._of[who] >= MOST_BY_RULE)

    def enter(self, who: str) -> None:
        self._of[who] += 1

    def leave(self, who: str) -> None:
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]

    def __len__(self) -> int:
        return self._of.total()

    def watch(self, key: str, make: Callable[[], View], wake: Wake) -> View:
        """The view of this name, which is made if nobody looks at it yet."""
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = make()
            self._hurry.set()
        view.watchers.add(wake)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        return view

    def unwatch(self, key: str, wake: Wake) -> None:
        view = self._views[key]
        view.watchers.discard(wake)
        if not view.watchers:
            del self._views[key]

    def stop(self) -> None:
        """Everyone is told to go."""
        self.stopping = True
        for view in list(self._views.values()):
            view.wake()

    # ── The reader ──

    async def _read(self) -> None:
        patience = Patience("the reader for streams", 2.0)
        try:
            while self._views:
                began = time.monotonic()
                self._hurry.clear()
                try:
                    await self._look(await self._store(), began)
                    patience.worked()
                    pause = TICK
                except StoreError as error:
                    self._mark = None
                    pause = patience.failed(error)
                await self._rest(max(pause, time.monotonic() - began))  # half of the time, at most
        finally:
            self._reader = None

    async def _rest(self, seconds: float) -> None:
        """Less if somebody new has come."""
        await asyncio.sleep(_SHORTEST)
        try:
            async with asyncio.timeout(max(seconds - _SHORTEST, 0.0)):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _look(self, store: Store, began: float) -> None:
        mark = await store.mark()
        is_new = mark != self._mark
        views = [view for view in self._views.values() if is_new or not view.read_at]
        jobs = [view for view in views if isinstance(view, JobsView)]
        by_id = [view for view in jobs if view.is_by_id]
        await _take(store, by_id, [view.filter.ids for view in by_id])
        by_scope = [view for view in jobs if view.is_by_scope]
        for n in range(0, len(by_scope), _AT_ONCE):
            await _look_up_own(store, by_scope[n : n + _AT_ONCE])
        await self._count(is_new, began)
        others = (view for view in jobs if not view.is_by_id and not view.is_by_scope)
        lists = sorted(others, key=lambda view: view.read_at)
        for n in range(0, len(lists), _TOGETHER):
            if n and time.monotonic() - began > _BUDGET:
                mark = ""  # the rest comes next
                for view in lists[n:]:
                    view.fall_behind(time.monotonic())
                break
            await _look_up(store, lists[n : n + _TOGETHER])
        self._mark = mark

    async def _count(self, is_new: bool, now: float) -> None:
        for view in list(self._views.values()):
            if isinstance(view, CountsView):
                pause = view.pause if is_new or now - view.read_at > _IDLE else _IDLE
                if not view.read_at or now - view.read_at >= pause:
                    await view.read()


async def _look_up(store: Store, views: Sequence[JobsView]) -> None:
    for limit in {view.limit for view in views}:
        some = [view for view in views if view.limit == limit]
        await _take(store, some, await store.newest([view.filter for view in some], limit))


async def _look_up_own(store: Store, views: Sequence[JobsView]) -> None:
    for limit in {view.limit for view in views}:
        some = [view for view in views if view.limit == limit]
        await _take(store, some, await store.newest_of_scopes([view.filter.scope_id or "" for view in some], limit))


async def _take(store: Store, views: Sequence[JobsView], newest: Sequence[Sequence[str]]) -> None:
    now = time.monotonic()
    read = [view.to_read(ids, now) for view, ids in zip(views, newest, strict=True)]
    ids = list(set[str]().union(*read))
    states: dict[str, State] = {}
    for n in range(0, len(ids), _AT_ONCE):
        states |= await store.states(ids[n : n + _AT_ONCE])
    unheard = list({job_id for view, these in zip(views, read, strict=True) for job_id in view.unheard(these, states)})
    jobs: dict[str, Job] = {}
    for n in range(0, len(unheard), _JOBS_AT_ONCE):
        jobs |= await store.get(unheard[n : n + _JOBS_AT_ONCE])
    for view, found, these in zip(views, newest, read, strict=True):
        view.take(found, these, states, jobs)
