"""Ways to misuse rowlock. Each is tried on a stage under load, and may be refused. The caller judges the refusal."""

# mypy: disable-error-code="no-untyped-call, arg-type, misc"
# The calls are wrong on purpose.

import asyncio
import math
import os
import select
import signal
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from rowlock import Context
from rowlock.errors import Interrupted, RowlockError, StoreError, WrongContext
from rowlock.jobs import Jobs
from rowlock.stores.queries import Filter
from tests.faults import strange
from tests.faults.stage import Stage
from tests.proof.history_app import app, new_ids

Do = Callable[[], Awaitable[object]]

REFUSALS = (RowlockError, TypeError, ValueError)
GARBAGE: list[Any] = [
    *(None, "", "x", "x" * 10_000, "\0", "\ud800", 0, -1, 7, 2**70, True, 0.5, -0.5, math.nan, math.inf, 1j, b"x", ...),
    *([], [None], {}, {"a": 1}, (), ("quick", {}), {1}, object(), object, len, "quick", "0" * 32, UUID(int=7)),
    *(
        datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        datetime.max.replace(tzinfo=UTC),
        datetime.now(UTC),
        timedelta(-1),
        timedelta.max,
    ),
    *(Filter(), Filter(topics=["quick"]), Exception("x"), asyncio.sleep, [["quick", {}]], [("quick", {}, {})]),
]
OPTIONS = ("run_at", "delay", "expires_at", "priority", "key", "scope", "scope_id", "max_retries", "timeout", "tags")
READS = ("get", "events", "logs", "why")
STEERS = ("cancel", "requeue", "delete")
THREADS = 5
NOWHERE = [
    *("nonsense://x", 7, "", "sqlite:///nowhere/at/all/jobs.db", "sqlite:////dev/null", "sqlite:///a\0b", "sqlite://"),
    *("postgresql://127.0.0.1:1/x?connect_timeout=1", "postgresql://x?pool_size=-1", "postgresql://[/x"),
]


class Unseen(Exception):
    """rowlock did not refuse something that it must refuse."""


class Misuses:
    """All misuses share `jobs`. `made` holds the ids that were used for enqueues, whether these succeeded or not."""

    def __init__(self, stage: Stage, jobs: Jobs, url: str) -> None:
        self._stage = stage
        self._url = url
        self._jobs = jobs
        self._chance = stage.chance
        self._contexts: list[Context] = []
        self.made: list[str] = []
        self.all: list[Do] = [
            *[self.wrong_types] * 6,
            *[self.wrong_state] * 4,
            *[self.cancelled_in_the_middle] * 4,
            self.used_again,
            *(self.closed, self.closed_by_several, self.many_threads, self.another_loop, self.sync_in_a_loop),
            *(self.forked, self.never_awaited, self.started_twice, self.started_and_cancelled, self.kept_context),
            *(self.foreign_connection, self.bad_registration, self.nowhere, self.stopped_from_elsewhere),
        ]

    # ── Values and states ──

    async def wrong_types(self) -> None:
        chance = self._chance
        verb = chance.choice(
            ["enqueue", "enqueue", "enqueue_many", "update", "steer", "read", "list", "other", "filter"]
        )

        def junk() -> Any:
            return chance.choice(GARBAGE)

        one = self._some_id() if chance.random() < 0.5 else junk()
        match verb:
            case "enqueue":
                options = {name: junk() for name in chance.sample(OPTIONS, 2)}
                topic = chance.choice(["quick", "nobody", junk()])
                await self._enqueue(self._jobs, topic, chance.choice([{}, junk()]), **options)
            case "enqueue_many":
                entries = chance.choice([junk(), [junk()], [("quick", {}), junk()]])
                answers = await self._jobs.enqueue_many(entries, notify=junk())
                with self._stage.record.operation("enqueue", [one.id for one in answers], batch=True) as told:
                    told(answers)  # recorded only now: a refused enqueue must leave no job
            case "update":
                given = {name: junk() for name in chance.sample(["priority", "run_at", "delay", "payload", "tags"], 2)}
                await self._jobs.update(one, **given, reason=junk(), by=junk())
            case "steer":
                await getattr(self._jobs, chance.choice(STEERS))(one, reason=junk(), by=junk())
            case "read":
                await getattr(self._jobs, chance.choice(READS))(one)
            case "list":
                await self._jobs.list(junk(), limit=junk(), offset=junk(), cursor=junk())
            case "filter":
                names = chance.sample(
                    ["ids", "topics", "statuses", "keys", "scope", "created_from", "tags", "payload", "error"], 2
                )
                await self._jobs.list(Filter(**{name: junk() for name in names}))
            case _:
                soon: Any = chance.choice([0, -1, 0.01, "x", object()])
                others: list[Do] = [
                    lambda: self._jobs.stats(junk()),
                    lambda: self._jobs.verify(limit=junk(), seconds=0.5),
                    lambda: self._jobs.wait(one, timeout=soon),
                    lambda: self._jobs.topics.pause("nobody", until=junk(), reason=junk()),
                    lambda: self._jobs.topics.resume(junk(), reason=junk()),
                    lambda: self._jobs.stop(grace=junk()),
                ]
                await chance.choice(others)()

    async def wrong_state(self) -> None:
        verb = self._chance.choice([*STEERS, "update", "again"])
        one = self._some_id()
        if verb == "again":
            await self._enqueue(self._jobs, "nap", {"seconds": 7}, job_id=one)
        elif verb == "update":
            await self._jobs.update(one, priority=self._chance.randrange(200))
        else:
            with self._stage.record.operation(verb, [one]):
                await getattr(self._jobs, verb)(one)

    async def used_again(self) -> None:
        """Enqueue with the id of a job that was completed and deleted. That makes a new job, which is completed too."""
        one = await self._enqueue(self._jobs, "quick", {})
        await self._jobs.wait(one, timeout=50)
        with self._stage.record.operation("delete", [one]):
            await self._jobs.delete(one)
        await self._enqueue(self._jobs, "nap", {"seconds": 2}, job_id=one)

    # ── In the middle ──

    async def cancelled_in_the_middle(self) -> None:
        chance, one = self._chance, self._some_id()
        other = Jobs(self._url)
        doing: list[Do] = [
            lambda: self._enqueue(self._jobs, "quick", {}),
            lambda: self._enqueue(other, "quick", {}),
            lambda: self._enqueue_many(self._jobs, 20),
            lambda: self._jobs.cancel(one),
            lambda: self._jobs.requeue(one),
            lambda: self._jobs.list(),
            lambda: other.open(),
            lambda: self._open_and_close(other),
        ]
        task = asyncio.ensure_future(chance.choice(doing)())
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.0005, 0.002, 0.01]))
        task.cancel()
        with suppress(asyncio.CancelledError, *REFUSALS):
            await task
        with suppress(*REFUSALS):
            await other.list()  # whatever was cancelled, the client can still be used
        await other.close()

    async def _open_and_close(self, jobs: Jobs) -> None:
        await jobs.open()
        await jobs.close()

    async def never_awaited(self) -> None:
        """A call that is never awaited does nothing. (If begun by hand and left, asyncio forgets its awaiter.)"""
        job_id = self._new_id()
        with suppress(ZeroDivisionError), self._stage.record.operation("enqueue", [job_id]):
            self._jobs.enqueue("quick", id=job_id).close()
            raise ZeroDivisionError

    # ── Closed ──

    async def closed(self) -> None:
        other = Jobs(self._url)
        if self._chance.random() < 0.7:
            await other.open()
        await other.close()
        await other.close()
        await must_refuse(StoreError, self._enqueue(other, "quick", {}))
        await must_refuse(StoreError, other.get(self._some_id()))
        await asyncio.to_thread(other.sync.close)
        await other.open()
        await self._enqueue(other, "quick", {})
        await other.close()

    async def closed_by_several(self) -> None:
        other = Jobs(self._url)
        doing: list[Awaitable[object]] = [self._enqueue(other, "quick", {}) for _ in range(5)]
        doing += [self._pause_and(other.close) for _ in range(3)]
        doing += [self._pause_and(lambda: asyncio.to_thread(other.sync.close)) for _ in range(2)]
        self._chance.shuffle(doing)
        check_all(await asyncio.gather(*doing, return_exceptions=True))
        await other.close()

    async def _pause_and(self, do: Do) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 0.02))
        await do()

    # ── Threads, loops, processes ──

    async def many_threads(self) -> None:
        """Several threads use one client, and also close and open it again and again."""
        other = Jobs(self._url)
        errors: list[BaseException] = []
        plans = [Random(self._chance.random()) for _ in range(THREADS)]

        def work(chance: Random) -> None:
            for _ in range(4):
                job_id = self._new_id()
                try:
                    if chance.random() < 0.6:
                        with self._stage.record.operation("enqueue", [job_id], topic="quick", key=None) as told:
                            told(other.sync.enqueue("quick", id=job_id))
                    elif chance.random() < 0.5:
                        other.sync.list(limit=1)
                    else:
                        other.sync.close()
                        other.sync.open()
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, args=(plan,), daemon=True) for plan in plans]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):  # noqa: ASYNC110 - threads set no event
            await asyncio.sleep(0.01)
        await other.close()
        check_all(errors)

    async def another_loop(self) -> None:
        """Use the shared client in another event loop, and close only the store of that loop."""

        async def use() -> None:
            await self._enqueue(self._jobs, "quick", {})
            await asyncio.gather(self._jobs.list(limit=1), self._jobs.get(self._some_id()), return_exceptions=True)
            await self._jobs._stores.close_here()

        await asyncio.to_thread(lambda: asyncio.run(use()))

    async def sync_in_a_loop(self) -> None:
        for verb in (self._jobs.sync.list, self._jobs.sync.close, self._jobs.sync.open, self._jobs.sync.stop):
            try:
                verb()
            except WrongContext:
                continue
            raise Unseen(f"{verb} was not refused in an event loop")

    async def forked(self) -> None:
        """A forked child goes on with the client that it has inherited. On SQLite that is refused."""
        job_id = self._new_id()
        hears, says = os.pipe()
        pid = os.fork()
        if not pid:
            said = b"hung"
            try:
                os.close(hears)
                with self._stage.record.operation("enqueue", [job_id], topic="quick", key=None) as told:
                    told(self._jobs.sync.enqueue("quick", id=job_id))
                said = b"fine"
            except REFUSALS as error:
                said = b"fine" if isinstance(error, StoreError) else repr(error).encode()
            except BaseException as error:
                said = repr(error).encode()
            finally:
                os.write(says, said)
                os._exit(0)
        os.close(says)
        try:
            there, _, _ = await asyncio.to_thread(select.select, [hears], [], [], 30.0)
            heard = os.read(hears, 65_536).decode() if there else "hung"
        finally:
            os.close(hears)
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, pid, 0)
        if heard != "fine":
            raise Unseen(f"a fork ended with {heard}")

    # ── Workers ──

    async def started_twice(self) -> None:
        other = app(self._stage.record, self._url)
        try:
            started = await asyncio.gather(
                *(other.start(concurrency=2, grace=1.0) for _ in range(3)), return_exceptions=True
            )
            check_all(started)
            for one in started:
                if isinstance(one, StoreError):
                    raise one
            if sum(one is None for one in started) != 1:
                raise Unseen(f"of three starts at once one succeeds: {started}")
            await must_refuse(WrongContext, other.start())
            await self._enqueue(other, "quick", {})
            check_all(await asyncio.gather(other.stop(), other.stop(grace=0.1), other.stop(), return_exceptions=True))
            await other.stop()
            wrong: Any = self._chance.choice([0, -1, "x", 2**40, object])
            await must_refuse(REFUSALS, other.start(concurrency=wrong))
            await other.start(concurrency=1, grace=1.0)
        finally:
            check_all(await asyncio.gather(other.close(), other.close(), other.stop(), return_exceptions=True))

    async def started_and_cancelled(self) -> None:
        other = app(self._stage.record, self._url)
        try:
            verbs: list[Do] = [lambda: other.start(concurrency=2, grace=1.0), lambda: other.stop(grace=1.0)]
            for verb in verbs:
                task = asyncio.ensure_future(verb())
                await asyncio.sleep(self._chance.choice([0.0, 0.001, 0.01, 0.05]))
                task.cancel()
                with suppress(asyncio.CancelledError, *REFUSALS):
                    await task
        finally:
            await other.close()
        await other.start(concurrency=1, grace=1.0)
        await other.close()

    async def stopped_from_elsewhere(self) -> None:
        async with app(self._stage.record, self._url) as other:
            await other.start(concurrency=1, grace=1.0)
            await must_refuse(WrongContext, asyncio.to_thread(other.sync.stop))
            await must_refuse(WrongContext, asyncio.to_thread(lambda: asyncio.run(other.stop())))

    async def kept_context(self) -> None:
        """A handler's context is used after its run has ended."""
        other = app(self._stage.record, self._url)
        kept: list[Context] = []

        async def keeping(ctx: Context) -> None:
            kept.append(ctx)
            await must_refuse(WrongContext, as_await(lambda: ctx.complete(1)))

        topic = f"keeping-{self._chance.randrange(10**9)}"
        other.register(topic, keeping)
        try:
            await other.start(concurrency=1, grace=1.0)
            await other.wait(await self._enqueue(other, topic, {}), timeout=50)
            [ctx] = kept
            ctx.progress(50, stage="late", message="late")
            ctx.log("late")
            ctx.heartbeat()
            await must_refuse(REFUSALS, as_await(lambda: ctx.progress("far")))
            with suppress(Interrupted):
                ctx.check()
            try:
                async with ctx.transaction() as conn:
                    done = conn.execute(f"INSERT INTO business VALUES ('{ctx.job.id}', 0)")
                    if asyncio.iscoroutine(done):
                        await done
                    ctx.complete("late")
            except (Interrupted, *REFUSALS):
                return
            raise Unseen(f"{ctx} committed after its end")
        finally:
            await other.close()

    # ── Foreign connections, bad handlers, bad addresses ──

    async def foreign_connection(self) -> None:
        chance = self._chance
        elsewhere = sqlite3.connect(":memory:", check_same_thread=False)
        gone = sqlite3.connect(":memory:", check_same_thread=False)
        gone.close()
        job_id = self._new_id()
        with self._stage.record.operation("enqueue", [job_id]):
            try:
                conn = chance.choice([elsewhere, gone, object(), "conn", 7, self._jobs, elsewhere.cursor()])
                if chance.random() < 0.5:
                    await self._jobs.enqueue("quick", id=job_id, conn=conn)
                else:
                    await asyncio.to_thread(lambda: self._jobs.sync.enqueue("quick", id=job_id, conn=conn))
            finally:
                elsewhere.close()
        raise Unseen(f"{conn!r} was accepted as a connection")

    async def bad_registration(self) -> None:
        other = Jobs(self._url)

        def takes_anything(*args: Any, **more: Any) -> None: ...

        function: Any = self._chance.choice([7, None, "f", takes_anything, print, dict, lambda ctx, /, x: x, object()])
        given = {
            self._chance.choice(
                ["max_retries", "timeout", "priority", "retry", "memory", "process"]
            ): self._chance.choice(GARBAGE)
        }
        other.register("bad", function, **given)

    async def nowhere(self) -> None:
        url: Any = self._chance.choice([*NOWHERE, f"sqlite:///{self._stage.folder}"])
        other = Jobs(url)
        try:
            await other.open()
        finally:
            await other.close()

    # ── Tools ──

    def _new_id(self) -> str:
        self.made.append(new_ids.one())
        return self.made[-1]

    def _some_id(self) -> str:
        return self._chance.choice(self.made[-200:]) if self.made else new_ids.one()

    async def _enqueue(self, jobs: Jobs, topic: Any, payload: Any, *, job_id: str | None = None, **options: Any) -> str:
        job_id = job_id or self._new_id()
        with self._stage.record.operation("enqueue", [job_id]) as told:
            told(await jobs.enqueue(topic, payload, id=job_id, **options))
        return job_id

    async def _enqueue_many(self, jobs: Jobs, count: int) -> None:
        ids = [self._new_id() for _ in range(count)]
        with self._stage.record.operation("enqueue", ids, batch=True) as told:
            told(await jobs.enqueue_many([{"topic": "quick", "id": one} for one in ids]))


async def as_await(call: Callable[[], object]) -> None:
    call()


async def must_refuse(how: type[BaseException] | tuple[type[BaseException], ...], doing: Awaitable[object]) -> None:
    try:
        said = await doing
    except how:
        return
    raise Unseen(f"{doing} was not refused: {strange.shown(said)}")


def check_all(answers: Sequence[object]) -> None:
    """Raise the first answer that is an exception, but not one of rowlock's REFUSALS."""
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, REFUSALS):
            raise answer
