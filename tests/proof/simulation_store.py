"""A store at the far end of an unreliable line. The database is real. Requests and replies take time, and get lost.

A request that has left its process is carried out even if that process dies before the reply comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from random import Random
from typing import Any

from msgspec import Struct

from rowlock.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from rowlock.stores.base import Chore, Guard, Traits
from rowlock.stores.sqlite.connection import rollback
from tests.proof.simulation_database import SimulatedDatabase
from tests.proof.simulation_loop import Handle, VirtualLoop

READS = frozenset({"look", "held_by", "workers", "now", "paused", "read", "records"})
WRITES = frozenset(
    {
        "insert", "claim", "settle", "heartbeat", "progress", "checkpoint", "take_signal", "report", "retire",
        "promote", "move_due", "prune", "move", "steer_topic", "set_backoff", "tidy", "run_bulk",
    }
)  # fmt: skip
# Calls that may be carried out after their client was told that the line broke. An insert may not: its repeat may have
# made the job, the job may be completed by now, and the insert would make it anew. A claim may not either: no worker
# would know of it. Both are open, and happen only in haunted weather.
GHOSTS = WRITES - {"insert", "claim"}
_NOBODY = Context()  # the network belongs to no process
_MOST_WAIT = 0.4  # seconds until a client notices a dead line, at most


class Call(Struct):
    """One call, as the trace shows it."""

    at: float
    who: str
    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fate: str
    done_at: float | None = None
    answer: Any = None


class Weather(Struct):
    """The chance of each kind of trouble for a call; 0 means never. `calm`: there is no trouble any more."""

    refused: float = 0.0
    unsent: float = 0.0
    unheard: float = 0.0
    busy: float = 0.0
    late: float = 0.0
    ghost: float = 0.0
    latency: float = 0.01  # seconds, one way, at most
    lateness: float = 3.0  # seconds by which a request or reply is late, at most
    deaf: float = 0.3  # chance that a waiting process does not hear a ring
    haunted: bool = False
    calm: bool = False

    @property
    def longest(self) -> float:
        """The seconds after which every request that was sent has been carried out."""
        return 2 * self.latency + (self.lateness if self.late or self.ghost else 0.0)


class Network:
    """The state that all lines share."""

    def __init__(self, loop: VirtualLoop, database: SimulatedDatabase, weather: Weather, chance: Random) -> None:
        self.loop = loop
        self.database = database
        self.weather = weather
        self.chance = chance
        self.trace: list[Call] = []
        self.down_until = 0.0
        self.outages: list[tuple[float, float]] = []
        self.on_commit: Callable[[Guard], None] = lambda guard: None  # called when a handler has committed
        self.waiting: list[tuple[asyncio.Future[bool], Handle]] = []

    @property
    def is_down(self) -> bool:
        return self.loop.time() < self.down_until

    def go_down(self, seconds: float) -> None:
        now = self.loop.time()
        self.down_until = max(self.down_until, now + seconds)
        self.outages.append((now, now + seconds))

    def heal(self) -> None:
        now = self.down_until = self.loop.time()
        self.outages = [(start, min(end, now)) for start, end in self.outages]

    def ring(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future, timer in waiting:
            if future.done():
                continue
            if self.chance.random() < self.weather.deaf:
                self.waiting.append((future, timer))
            else:
                timer.cancel()
                self.loop.call_later(self.chance.random() * 0.01, _set, future, True, context=_NOBODY)


class Line:
    """Implements rowlock.stores.base.Store for one process, as far as workers and clients use it.

    `script`: the fates of the next calls, whatever the weather. `disturbances`: the spans in which something went wrong
    on this line alone. They excuse a lease that was not renewed."""

    traits = Traits(any_loop=True, is_private=True, watches_commits=True)
    owes_ring = False

    def __init__(self, network: Network, who: str) -> None:
        self.who = who
        self.cut_until = 0.0
        self.script: list[str] = []
        self.disturbances: list[tuple[float, float]] = []
        self._network = network
        self._loop = network.loop

    def __getattr__(self, verb: str) -> Any:
        if verb not in READS and verb not in WRITES:
            raise AttributeError(verb)

        def remote(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:
            return self._send(verb, args, kwargs)

        self.__dict__[verb] = remote
        return remote

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ring(self) -> None:
        self._network.ring()

    async def tidy(self, chore: Chore, limit: int) -> int:
        if chore in ("fold_counts", "sweep_rollups"):
            return 0
        done: int = await self._send("tidy", (chore, limit), {})
        return done

    async def next_fire(self, *, skip: Sequence[str] = (), later: bool = False) -> None:
        """There are no schedules here: see schedule_world.py."""

    async def wait_for_work(self, timeout: float) -> bool:
        if self._is_down:
            raise StoreUnavailable("the line is down")
        future: asyncio.Future[bool] = self._loop.create_future()
        timer = self._loop.call_later(timeout, _set, future, False, context=_NOBODY)
        self._network.waiting.append((future, timer))
        return await future

    @asynccontextmanager
    async def transaction(self, guard: Guard, *, longest: float) -> AsyncIterator[Any]:
        """The caller must not wait inside: there is one connection for all lines."""
        await self._send("now", (), {})
        call = self._note("transaction", (guard,), {}, self._fate())
        if call.fate in ("refused", "unsent", "busy", "down", "cut"):
            self._disturbed()
            raise StoreUnavailable(call.fate)
        connection = self._network.database.connection
        connection.begin()
        try:
            yield connection.conn
            connection.commit(guard)
            call.done_at, call.answer = self._loop.time(), "committed"
            self._network.on_commit(guard)
        finally:
            rollback(connection.conn)
        if call.fate != "ok" or self._is_down:
            self._disturbed()
            raise OutcomeUnknown("the reply to COMMIT was lost")

    # ── A call ──

    @property
    def _is_down(self) -> bool:
        return self._network.is_down or self._loop.time() < self.cut_until

    @property
    def _trouble(self) -> str:
        return "down" if self._network.is_down else "cut"

    def _disturbed(self, seconds: float = 0.0) -> None:
        now = self._loop.time()
        self.disturbances.append((now, now + seconds))

    def _note(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any], fate: str) -> Call:
        call = Call(self._loop.time(), self.who, verb, args, kwargs, fate)
        self._network.trace.append(call)
        return call

    def _may_haunt(self, verb: str, args: tuple[Any, ...]) -> bool:
        """Return True if the call may be a ghost. A `settle` that also claims counts as a claim."""
        return self._network.weather.haunted or (verb in GHOSTS and (verb != "settle" or args[1:] in ((), (None,))))

    def _fate(self) -> str:
        if self.script:
            return self.script.pop(0)
        if self._is_down:
            return self._trouble
        weather = self._network.weather
        if weather.calm:
            return "ok"
        draw = self._network.chance.random()
        for fate in ("refused", "unsent", "unheard", "busy", "late", "ghost"):
            draw -= getattr(weather, fate)
            if draw < 0:
                return fate
        return "ok"

    def _send(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        chance, weather = self._network.chance, self._network.weather
        fate = self._fate()
        if fate == "ghost" and not self._may_haunt(verb, args):
            fate = "ok"
        call = self._note(verb, args, kwargs, fate)
        reply: asyncio.Future[Any] = self._loop.create_future()
        there, back = (weather.latency * chance.random() ** 3 for _ in range(2))
        if call.fate not in ("ok", "down"):
            self._disturbed()
        match call.fate:
            case "ok" | "unheard":
                self._later(there, self._arrive, call, reply, back)
            case "late":
                lateness = weather.lateness * chance.random()
                self._disturbed(there + back + lateness)
                if chance.random() < 0.5:
                    there += lateness
                else:
                    back += lateness
                self._later(there, self._arrive, call, reply, back)
            case "ghost":
                self._later(there, self._fail, call, reply, OutcomeUnknown("hung up, and the statement goes on"))
                self._later(there + weather.lateness * chance.random(), self._arrive, call, None, back)
            case "unsent" if verb in WRITES:
                self._later(there + back, self._fail, call, reply, OutcomeUnknown("hung up"))
            case "busy":
                self._later(there + back, self._fail, call, reply, StoreBusy("locked by others"))
            case _:
                wait = _MOST_WAIT * chance.random()
                self._later(wait, self._fail, call, reply, StoreUnavailable("can't be reached"))
        return reply

    def _later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        self._loop.call_later(seconds, function, *args, context=_NOBODY)

    def _arrive(self, call: Call, reply: asyncio.Future[Any] | None, back: float) -> None:
        if self._is_down and reply is not None:
            self._fail(call, reply, StoreUnavailable("can't be reached"))
            return
        call.done_at = self._loop.time()
        try:
            call.answer = getattr(self._network.database, call.verb)(*call.args, **call.kwargs)
        except StoreError as error:
            call.answer = error
        if call.verb in ("insert", "requeue") or (call.verb == "steer_topic" and call.args[1] == "resume"):
            self._network.ring()
        if reply is not None:
            self._later(back, self._reply, call, reply)

    def _reply(self, call: Call, reply: asyncio.Future[Any]) -> None:
        if call.fate == "unheard" or self._is_down:
            kind = OutcomeUnknown if call.verb in WRITES else StoreUnavailable
            self._fail(call, reply, kind("the reply was lost"))
        elif not reply.done():
            if isinstance(call.answer, StoreError):
                _refuse(reply, call.answer)
            else:
                reply.set_result(call.answer)

    def _fail(self, call: Call, reply: asyncio.Future[Any], error: StoreError) -> None:
        if call.fate == "ok":
            call.fate = self._trouble
        if call.fate != "down":
            self._disturbed()
        _refuse(reply, error)


def _refuse(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # otherwise asyncio complains if the process that waits for the reply is dead


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
