"""Views of the database for streams. One task reads them for all streams.

A view is a question (which jobs, or how many with which status) and its last answer. The task reads the database again
and again; each stream sends the changes since it sent last. So nothing is queued: a slow reader gets fewer and larger
changes, a reader that comes back gets everything, and all end at the same state.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from rowlock.access.redaction import Redaction
from rowlock.core.conditions import Compared, Condition, holds
from rowlock.core.job import LIVE, Job
from rowlock.http.call import columns
from rowlock.http.shapes import Time, copied
from rowlock.runtime.periodic import Loop
from rowlock.stores.base import Store
from rowlock.stores.listing import given
from rowlock.stores.queries import Filter, State

TICK = 0.25  # seconds between two reads of the database
COUNTING = 1.0  # seconds between two counts
_SHORTEST = 0.02  # seconds between two reads when a new stream has come
_IDLE = 10.0  # seconds until jobs are counted again although nothing was written: waiting times grow
_COUNTED = 0.2  # seconds of one read that are spent on counting
_BUDGET = 1.0  # seconds for lists in one read; the lists that are left come first in the next
_LATE = 5.0  # seconds without a read after which a view's streams say that it is behind
_TOGETHER = 20  # lists that are read in one statement, so that other requests get their turn
_AT_ONCE = 1000  # jobs whose states are read in one statement
_LEARNED, _KNOWN = 20, 5000  # whole jobs that are read at a time, and that are remembered
_SETTLED = 1.5  # seconds between two reads of completed jobs
_FOLLOWED = 2000  # jobs of a view that are followed to their end when newer ones have taken their place
_REMEMBERED = 5000  # jobs of a view whose end is kept for slow readers

_encode = msgspec.json.Encoder().encode
Teller = Callable[[str], str]
Wake = Callable[[], None]


class LiveJob(Struct, frozen=True, kw_only=True):
    """The state of a job, in short."""

    id: str
    topic: str
    status: str
    version: int
    progress: float
    stage: str | None
    message: str | None
    step: str | None
    waits_for: str | None
    priority: int
    retries: int
    max_retries: int
    created: Time
    run_at: Time
    started_at: Time | None
    finished_at: Time | None


class LiveJobs(Struct, kw_only=True):
    """Jobs as they are now. `reset`: these are all; forget earlier ones. `gone`: jobs that are not reported any more.
    They are no longer among the newest and have ended (then `items` has their end), were deleted, or may no longer be
    seen."""

    items: list[LiveJob]
    gone: list[str]
    reset: bool = False


Rows = Mapping[str, LiveJob]


def event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


class Told(Struct, frozen=True):
    """An answer of a view: the last one that a stream has sent."""

    generation: int
    rows: Rows = {}


class Run(NamedTuple):
    """One run of a job. During a run, only its stage and message change: its secrets stay the same."""

    redaction: Redaction
    id: str
    version: int
    has_ended: bool


def _run(redaction: Redaction, state: State) -> Run:
    return Run(redaction, state.id, state.version, state.finished_at is not None)


class Voices:
    """Stages and messages of jobs, without secrets. To know the secrets, the whole job is read once for each run."""

    def __init__(self) -> None:
        self._tellers: dict[Run, Teller] = {}

    def said(self, redaction: Redaction, state: State) -> tuple[str | None, str | None]:
        """Return stage and message; nothing while the job's secrets are not known yet."""
        if not redaction or (state.stage is None and state.message is None):
            return state.stage, state.message
        tell = self._tellers.get(_run(redaction, state))
        if tell is None:
            return None, None
        return state.stage and tell(state.stage), state.message and tell(state.message)

    async def learn(self, store: Store, heard: Iterable[tuple[Redaction, State]]) -> bool:
        """Read jobs whose secrets are not known yet. Return False if some are left for the next time."""
        speaking = ((redaction, state) for redaction, state in heard if redaction and (state.stage or state.message))
        unknown = {run: None for redaction, state in speaking if (run := _run(redaction, state)) not in self._tellers}
        for run in list(unknown)[:_LEARNED]:
            job = (await store.read([run.id], Job)).get(run.id)  # one by one: they may be large
            if job is not None:
                self._tellers[run] = run.redaction.teller(job)
        while len(self._tellers) > _KNOWN:
            del self._tellers[next(iter(self._tellers))]
        return len(unknown) <= _LEARNED


class View:
    """`watchers`: functions that wake the streams of this view."""

    def __init__(self) -> None:
        self.watchers: set[Wake] = set()
        self.now: Told | None = None  # the last answer
        self.read_at = 0.0  # 0: never
        self.is_behind = False
        self._frames: dict[int, bytes] = {}  # by the generation that they continue

    def frame(self, told: Told | None) -> bytes:
        """Return the event with the changes from that answer to the last one."""
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
        """Return the ids to read: the newest jobs, and shown jobs that have not ended. Completed jobs only now and
        then: they can't change any more, only be deleted."""
        shown = self.shown
        wanted = {*newest, *(job_id for job_id, job in shown.items() if job.status in LIVE)}
        if now - self._settled_at >= _SETTLED:
            self._settled_at, self.has_left_out = now, False
            return wanted
        read = {job_id for job_id in wanted if (job := shown.get(job_id)) is None or job.status != "completed"}
        self.has_left_out = len(read) < len(wanted)
        return read

    def is_enough(self, newest: Sequence[str], read: Container[str], states: Mapping[str, State]) -> bool:
        """Return False if some of these may not be seen, so that older jobs would take their places."""
        if self._condition is True or len(newest) < self.limit:
            return True
        return all(self._may_see(states[job_id]) for job_id in newest if job_id in read and job_id in states)

    def take(self, newest: Iterable[str], read: Container[str], states: Mapping[str, State]) -> None:
        """Take the next answer. `states`: those of the newest and the shown jobs that were `read`."""
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
        stage, message = self._voices.said(self.redaction, state)
        return copied(LiveJob, state, stage=stage, message=message)

    def _may_see(self, state: State) -> bool:
        if self.filter.scope_id not in (None, state.scope_id):
            return False
        return self._condition is True or holds(self._condition, columns(state))

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


class CountsView(View):
    """The number of jobs by status, as `ask` returns it."""

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
        self.pause = max(COUNTING, 10 * (self.read_at - began))  # a slow count is repeated less often
        if frame != self._last:
            self._last = frame
            self._answer({})

    def _render(self, told: Told | None) -> bytes:
        return self._last


class Live:
    """The views of one event loop, and the task that reads them while streams are open."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._views: dict[str, View] = {}
        self._reader = Loop("the reader for streams", self._read, shortest=_SHORTEST)
        self.voices = Voices()
        self._mark: str | None = None
        self.stopping = False

    # ── Streams ──

    def watch(self, key: str, make: Callable[[], View], wake: Wake) -> View:
        """Return the view with this key; make it for its first stream."""
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = make()
            self._reader.wake()
        view.watchers.add(wake)
        self._reader.start()
        return view

    def unwatch(self, key: str, wake: Wake) -> None:
        view = self._views[key]
        view.watchers.discard(wake)
        if not view.watchers:
            del self._views[key]

    def stop(self) -> None:
        """End all streams."""
        self.stopping = True
        for view in list(self._views.values()):
            view.wake()

    # ── The reader ──

    async def _read(self) -> float | None:
        if not self._views:
            return None
        began = time.monotonic()
        try:
            await self._look(await self._store(), began)
        except Exception:
            self._mark = None
            raise
        return max(TICK, time.monotonic() - began)  # it reads for half of the time, at most

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
            is_all &= await self._look_up(store, by_scope[n : n + _AT_ONCE], lists)
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
        """Count for the views that were counted longest ago first, as far as time allows. A reader who sees only some
        jobs has numbers of its own, which take longer than anything else here."""
        began = time.monotonic()
        for view in sorted(self._views.values(), key=lambda view: view.read_at):
            if isinstance(view, CountsView) and view.is_due(is_new, began):
                await view.read()
                if time.monotonic() - began > _COUNTED:
                    return

    async def _look_up(self, store: Store, views: Sequence[JobsView], rest: list[JobsView] | None = None) -> bool:
        """Read these views together. Return False if some secrets are not known yet. `rest`: the views are of one
        scope_id each; it gets those that must be read one by one."""
        ask = store.newest if rest is None else store.newest_of_scopes
        is_all = True
        for limit in {view.limit for view in views}:
            some = [view for view in views if view.limit == limit]
            newest = dict(zip(some, await ask([view.filter for view in some], limit), strict=True))
            found = {view: ids for view, ids in newest.items() if ids is not None}
            if rest is not None:
                rest += [view for view in newest if view not in found]
            is_all &= await self._take(store, list(found), list(found.values()), rest)
        return is_all

    async def _take(
        self,
        store: Store,
        views: Sequence[JobsView],
        newest: Sequence[Sequence[str]],
        rest: list[JobsView] | None = None,
    ) -> bool:
        """Read states for views. Return False if some secrets are not known yet. `rest` gets views for which these jobs
        are not enough; without it they always are."""
        now = time.monotonic()
        read = [view.to_read(ids, now) for view, ids in zip(views, newest, strict=True)]
        ids = list(set[str]().union(*read))
        states: dict[str, State] = {}
        for n in range(0, len(ids), _AT_ONCE):
            states |= await store.read(ids[n : n + _AT_ONCE], State)
        pairs = zip(views, read, strict=True)
        heard = ((view.redaction, states[job_id]) for view, these in pairs for job_id in these & states.keys())
        is_all = await self.voices.learn(store, heard)
        for view, found, these in zip(views, newest, read, strict=True):
            if rest is not None and not view.is_enough(found, these, states):
                rest.append(view)
            else:
                view.take(found, these, states)
        return is_all
