"""What streams show: views of the database, read by one reader for all who look at them.

A view is a question (which jobs, or how many stand where) and its last answer. The reader asks again and again; whoever
looks at the view is told what has changed since they were told last. So nothing is queued for anyone: who reads slowly
gets fewer and larger steps, who comes back gets everything, and all end at the same state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from rowlock.access.redaction import Redaction
from rowlock.core.conditions import Compared, Condition, holds
from rowlock.core.job import LIVE
from rowlock.errors import StoreError
from rowlock.http.shapes import LiveJob, LiveJobs
from rowlock.runtime.patience import Patience
from rowlock.stores.base import Store
from rowlock.stores.listing import given
from rowlock.stores.reading import Filter, State

log = logging.getLogger("rowlock.http")

TICK = 0.25  # seconds between two looks at the database, if none takes longer
COUNTING = 1.0  # seconds between two counts
_SHORTEST = 0.02  # seconds between two looks when somebody new has come
_IDLE = 10.0  # seconds after which is counted again though nothing was written: waiting times grow by themselves
_COUNTED = 0.2  # seconds of one look that are spent with counting
_BUDGET = 1.0  # seconds of one look at lists; those that have not had their turn are first in the next
_LATE = 5.0  # seconds without a look after which a view's watchers are told that it is behind
_TOGETHER = 20  # lists that are looked up in one go, so that others get their turn at the database
_AT_ONCE = 1000  # jobs whose states are read in one go
_LEARNED, _KNOWN = 20, 5000  # jobs that are read whole in one go, and that are remembered
_SETTLED = 1.5  # seconds between two looks at jobs that have completed
_FOLLOWED = 2000  # jobs of a view that are followed to their end when newer ones have taken their place
_REMEMBERED = 5000  # jobs of a view whose end is kept for those who read slowly

_encode = msgspec.json.Encoder().encode
Rows = Mapping[str, LiveJob]
Teller = Callable[[str], str]
Wake = Callable[[], None]


def event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


class Told(Struct, frozen=True):
    """An answer: the last one that somebody was told of a view."""

    generation: int
    rows: Rows = {}


class Run(NamedTuple):
    """Within which nothing is added to a job but what it says of itself."""

    redaction: Redaction
    id: str
    version: int
    has_ended: bool


def _run(redaction: Redaction, state: State) -> Run:
    return Run(redaction, state.id, state.version, state.finished_at is not None)


class Voices:
    """What jobs say of themselves (stage and message), without what is redacted elsewhere in them: so that has to be
    known, for which the whole job is read, once for each of its runs."""

    def __init__(self) -> None:
        self._tellers: dict[Run, Teller] = {}

    def said(self, redaction: Redaction, state: State) -> tuple[str | None, str | None]:
        """Nothing, as long as it is not known what has to be hidden."""
        if not redaction or (state.stage is None and state.message is None):
            return state.stage, state.message
        tell = self._tellers.get(_run(redaction, state))
        if tell is None:
            return None, None
        return state.stage and tell(state.stage), state.message and tell(state.message)

    async def learn(self, store: Store, heard: Iterable[tuple[Redaction, State]]) -> bool:
        """Of whom that is not known yet. False: there are more of them than is done at a time."""
        speaking = ((redaction, state) for redaction, state in heard if redaction and (state.stage or state.message))
        unknown = {run: None for redaction, state in speaking if (run := _run(redaction, state)) not in self._tellers}
        for run in list(unknown)[:_LEARNED]:
            job = (await store.get([run.id])).get(run.id)  # one by one: they may be large
            if job is not None:
                self._tellers[run] = run.redaction.teller(job)
        while len(self._tellers) > _KNOWN:
            del self._tellers[next(iter(self._tellers))]
        return len(unknown) <= _LEARNED


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

    def __init__(self, filter: Filter, condition: Condition, limit: int, redaction: Redaction, voices: Voices) -> None:
        super().__init__()
        self.redaction = redaction
        self._voices = voices
        self.filter = filter
        self.limit = limit
        asked = {name for name in filter.__struct_fields__ if given(filter, name)} - {"where"}
        # With nothing but ids asked for it is known which jobs these are, and those of one scope_id are quickly found:
        # all such views are read together.
        self.is_by_id = {"ids"} <= asked <= {"ids", "scope_id"}
        self.is_by_scope = {"scope_id"} <= asked <= {"scope_id", "topics", "statuses"}
        # Judged job by job, unless the filter has said so already.
        is_known = condition == Compared("scope_id", "=", filter.scope_id)
        self._condition = True if is_known else condition
        self._settled_at = 0.0  # when jobs that don't change any more were looked at last
        self.has_left_out = False  # some of them, in the last look
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
            self._settled_at, self.has_left_out = now, False
            return wanted
        read = {job_id for job_id in wanted if (job := shown.get(job_id)) is None or job.status != "completed"}
        self.has_left_out = len(read) < len(wanted)
        return read

    def is_enough(self, newest: Sequence[str], read: Container[str], states: Mapping[str, State]) -> bool:
        """False if some of these may not be seen, so that older jobs would take their places."""
        if self._condition is True or len(newest) < self.limit:
            return True
        return all(self._may_see(states[job_id]) for job_id in newest if job_id in read and job_id in states)

    def take(self, newest: Iterable[str], read: Container[str], states: Mapping[str, State]) -> None:
        """The next answer. `states` are of those of the newest and of those shown that were `read`."""
        old, rows, followed = self.shown, {}, 0
        for job_id in newest:
            if (job := self._seen(states.get(job_id)) if job_id in read else old[job_id]) is not None:
                rows[job_id] = job
        for job_id, before in old.items():
            if job_id in rows or before.status not in LIVE:
                continue
            job = self._seen(states.get(job_id))
            if job is None:
                continue
            if job.status not in LIVE:
                self._ended[job_id] = job
            elif followed < _FOLLOWED:
                rows[job_id] = job
                followed += 1
        self.read_at, self.is_behind = time.monotonic(), False
        if self.now is None or rows != old:
            for job_id in rows.keys() & self._ended.keys():  # it was requeued
                del self._ended[job_id]
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
            self._answer(rows)

    def _seen(self, state: State | None) -> LiveJob | None:
        if state is None or not self._may_see(state):
            return None
        shown = {name: getattr(state, name) for name in LiveJob.__struct_fields__}
        shown["stage"], shown["message"] = self._voices.said(self.redaction, state)
        return LiveJob(**shown)

    def _may_see(self, state: State) -> bool:
        if self.filter.scope_id not in (None, state.scope_id):
            return False
        return self._condition is True or holds(self._condition, _columns(state))

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


def _columns(state: State) -> dict[str, Any]:
    return {**msgspec.structs.asdict(state), "status": str(state.status)}


class CountsView(View):
    """How many jobs stand where: whatever `ask` answers."""

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self._ask = ask
        self._last = b""
        self.pause = COUNTING

    def is_due(self, is_new: bool, now: float) -> bool:
        return not self.read_at or now - self.read_at >= (self.pause if is_new else max(self.pause, _IDLE))

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
        self._reader: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.voices = Voices()
        self._mark: str | None = None
        self.stopping = False

    # ── Who looks ──

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
                except Exception:  # a mistake must not silence all who look
                    log.exception("the reader for streams failed")
                    self._mark, pause = None, _IDLE
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
        is_all = await self._take(store, by_id, [view.filter.ids for view in by_id])
        lists = [view for view in jobs if not view.is_by_id and not view.is_by_scope]
        by_scope = [view for view in jobs if view.is_by_scope]
        for n in range(0, len(by_scope), _AT_ONCE):
            is_all &= await self._look_up_own(store, by_scope[n : n + _AT_ONCE], lists)
        lists.sort(key=lambda view: view.read_at)
        for n in range(0, len(lists), _TOGETHER):
            if n and time.monotonic() - began > _BUDGET:
                is_all = False  # the rest comes next
                for view in lists[n:]:
                    view.fall_behind(time.monotonic())
                break
            is_all &= await self._look_up(store, lists[n : n + _TOGETHER])
        self._mark = mark if is_all and not any(view.has_left_out for view in jobs) else ""
        await self._count(is_new)

    async def _count(self, is_new: bool) -> None:
        """Those that were counted longest ago first, as far as there is time for it. Who sees only a part has numbers
        of their own, which take longer than anything else here."""
        began = time.monotonic()
        for view in sorted(self._views.values(), key=lambda view: view.read_at):
            if isinstance(view, CountsView) and view.is_due(is_new, began):
                await view.read()
                if time.monotonic() - began > _COUNTED:
                    return

    async def _look_up(self, store: Store, views: Sequence[JobsView]) -> bool:
        is_all = True
        for limit in {view.limit for view in views}:
            some = [view for view in views if view.limit == limit]
            is_all &= await self._take(store, some, await store.newest([view.filter for view in some], limit))
        return is_all

    async def _look_up_own(self, store: Store, views: Sequence[JobsView], rest: list[JobsView]) -> bool:
        """`rest` gets those that have to be looked up by themselves."""
        is_all = True
        for limit in {view.limit for view in views}:
            some = [view for view in views if view.limit == limit]
            newest = await store.newest_of_scopes([view.filter for view in some], limit)
            found = [(view, ids) for view, ids in zip(some, newest, strict=True) if ids is not None]
            rest += [view for view, ids in zip(some, newest, strict=True) if ids is None]
            is_all &= await self._take(store, [view for view, _ in found], [ids for _, ids in found], rest)
        return is_all

    async def _take(
        self,
        store: Store,
        views: Sequence[JobsView],
        newest: Sequence[Sequence[str]],
        rest: list[JobsView] | None = None,
    ) -> bool:
        """False: not everything is known yet that there is to show. `rest`: gets those for which these are not enough;
        without it they always are."""
        now = time.monotonic()
        read = [view.to_read(ids, now) for view, ids in zip(views, newest, strict=True)]
        ids = list(set[str]().union(*read))
        states: dict[str, State] = {}
        for n in range(0, len(ids), _AT_ONCE):
            states |= await store.states(ids[n : n + _AT_ONCE])
        pairs = zip(views, read, strict=True)
        heard = ((view.redaction, states[job_id]) for view, these in pairs for job_id in these & states.keys())
        is_all = await self.voices.learn(store, heard)
        for view, found, these in zip(views, newest, read, strict=True):
            if rest is not None and not view.is_enough(found, these, states):
                rest.append(view)
            else:
                view.take(found, these, states)
        return is_all
