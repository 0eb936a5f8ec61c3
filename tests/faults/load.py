"""Load for a stage: producers that repeat each enqueue until it is answered, and an operator who interferes. All their
calls are recorded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from rowlock.core.ids import IdMaker
from rowlock.errors import InvalidState, KeyTaken, OutcomeUnknown, SignalRefused, StoreError
from rowlock.jobs import Jobs
from tests.faults.stage import PATIENCE, Stage
from tests.proof.history_app import SIGNALLED, new_ids
from tests.proof.recorder import Recorder

KINDS: dict[str, dict[str, Any]] = {
    "quick": {},
    "nap": {"seconds": 0.05},
    "threaded": {},
    "flaky": {"good_from": 2},
    "hopeless": {},
    "snoozing": {},
    "giving_up": {},
    "owning": {},
    "parent": {},
    "stepping": {},
    "threaded_steps": {},
    "napping": {},
    "waiting": {},
    "threaded_waiting": {},
}
BATCH = 20
Chosen = tuple[str, str, str | None]  # id, topic, key


async def signal(jobs: Jobs, record: Recorder, job_id: str) -> None:
    """Signal the job, again and again until the store answers. The id stays the same, so the signal is stored once."""
    data, repeats = {"for": job_id}, False
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                with record.operation("signal", [job_id], name="go", id="s1", data=data):
                    try:
                        await jobs.signal(job_id, "go", data, id="s1", by="ann")
                    except StoreError as error:  # it may have come after the signal was stored
                        raise OutcomeUnknown(str(error)) from error
                    except SignalRefused as refused:
                        if not repeats or refused.why != "known":
                            raise
                        raise OutcomeUnknown("it is one of those before") from refused
            except SignalRefused:
                return
            except OutcomeUnknown as error:
                if isinstance(error.__cause__, SignalRefused):
                    return
                repeats = True
                await asyncio.sleep(0.1)
            except (InvalidState, LookupError):
                return  # the job has ended, or is deleted
            else:
                return


class Load:
    """Producers and an operator that use the client `jobs`. `made` holds the ids of all enqueues, also of unanswered
    ones."""

    def __init__(self, stage: Stage, jobs: Jobs, kinds: dict[str, dict[str, Any]] | None = None) -> None:
        self._stage = stage
        self._jobs = jobs
        self._kinds = KINDS if kinds is None else kinds
        self._ids: IdMaker = new_ids
        self.made: list[str] = []
        self.unknown = 0  # enqueues whose outcome is unknown

    @property
    def _record(self) -> Recorder:
        return self._stage.record

    @asynccontextmanager
    async def going_on(self, *, rate: float, least: int, callers: int = 3, meddle: bool = True) -> AsyncIterator[None]:
        """Enqueue about `rate` jobs per second while the block runs, and until `least` were enqueued. Half of them come
        alone, half in batches. If `meddle` is true, an operator interferes."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._produce(over, least, callers * BATCH / rate))
            if meddle:
                group.create_task(self._meddle(over))
            try:
                yield
            finally:
                over.set()

    async def pile(self, topic: str, count: int, **options: Any) -> None:
        """Enqueue `count` jobs of one topic, by default with priority 0: workers take them when no other job is due."""
        own = {"priority": 0, **options}
        for at in range(0, count, 100):
            await self._insist([(self._ids.one(), topic, None) for _ in range(min(100, count - at))], **own)

    async def _produce(self, over: asyncio.Event, least: int, pause: float) -> None:
        chance = self._stage.chance
        while not over.is_set() or len(self.made) < least:
            size = BATCH if chance.random() < 1 / (1 + BATCH) else 1  # half of the jobs come in batches
            await self._insist([self._choose() for _ in range(size)])
            await asyncio.sleep(pause / BATCH * 2 * chance.uniform(0.0, 1.0))

    def _choose(self) -> Chosen:
        chance = self._stage.chance
        topic = chance.choice(list(self._kinds))
        key = chance.choice([None, None, None, "a", "b"]) if topic in ("quick", "nap") else None
        return self._ids.one(), topic, key

    async def _insist(self, chosen: Sequence[Chosen], **options: Any) -> None:
        """Enqueue the jobs, again and again until the store answers. The ids stay the same, so no job is made twice."""
        self.made += [job_id for job_id, _, _ in chosen]
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self._enqueue(chosen, **options)
                    break
                except StoreError as error:
                    self.unknown += isinstance(error, OutcomeUnknown)
                    await asyncio.sleep(0.1)
        for job_id, topic, _ in chosen:
            if topic in SIGNALLED:
                await asyncio.sleep(self._stage.chance.choice([0.0, 0.1]))  # before or after the job waits
                await signal(self._jobs, self._record, job_id)

    async def _enqueue(self, chosen: Sequence[Chosen], **options: Any) -> None:
        ids = [job_id for job_id, _, _ in chosen]
        if len(chosen) == 1:
            [(job_id, topic, key)] = chosen
            own: Any = {"id": job_id, "key": key, **options}
            with self._record.operation("enqueue", ids, topic=topic, key=key) as told:
                told(await self._jobs.enqueue(topic, self._kinds[topic], **own))
            return
        drafts = [
            {"topic": topic, "payload": self._kinds[topic], "id": job_id, "key": key, **options}
            for job_id, topic, key in chosen
        ]
        with self._record.operation("enqueue", ids, batch=True) as told:
            told(await self._jobs.enqueue_many(drafts))

    async def _meddle(self, over: asyncio.Event) -> None:
        """Cancel, requeue, delete, update and pause as an operator would, also where that is not allowed."""
        chance = self._stage.chance
        while not over.is_set():
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            if not self.made:
                continue
            verb = chance.choice(["cancel", "requeue", "requeue", "delete", "update", "pause"])
            one = chance.choice(self.made[-500:])
            with suppress(InvalidState, KeyTaken, LookupError, StoreError), self._record.operation(verb, [one]):
                if verb == "pause":
                    await self._pause()
                elif verb == "update":
                    await self._jobs.update(one, priority=chance.randrange(200), by="ann")
                else:
                    await getattr(self._jobs, verb)(one, by="ann")

    async def _pause(self) -> None:
        try:
            await self._jobs.topics.pause("nap", by="ann")
        finally:  # also after an error: a topic that stays paused is never drained
            await self._resume()

    async def _resume(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self._jobs.topics.resume("nap", by="ann")
                    return
                except StoreError:
                    await asyncio.sleep(0.1)
