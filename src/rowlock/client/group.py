"""Group commit: jobs that are enqueued at the same time share one INSERT and one commit.

While a group is being written, the next one gathers. A job alone goes at once: nobody waits for company.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rowlock.core.job import NewJob
from rowlock.errors import StoreError
from rowlock.stores.base import Enqueued

LARGEST = 1000  # jobs in a group: larger ones take longer without being faster

Insert = Callable[[Sequence[NewJob]], Awaitable[list[Enqueued]]]
_Caller = tuple[NewJob, "asyncio.Future[Enqueued]"]


class Group:
    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self._waiting: list[_Caller] = []
        self._writer: asyncio.Future[None] | None = None
        self._expects_company = True  # until one was alone

    async def insert(self, job: NewJob) -> Enqueued:
        """Returns after the commit. A cancelled caller leaves the others' jobs alone; its own may be written."""
        if self._writer is None and not self._expects_company:
            return await self._insert_alone(job)
        future: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        if self._writer is None:
            self._gather()
        return await future

    async def drain(self) -> None:
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _insert_alone(self, job: NewJob) -> Enqueued:
        """A caller that makes one after the other needs no task for each, nor another turn of the loop."""
        self._expects_company = True  # also when this goes wrong: who is cancelled here takes a connection along
        self._writer = done = asyncio.get_running_loop().create_future()
        try:
            [answer] = await self._insert([job])
            self._expects_company = bool(self._waiting)
        finally:
            self._writer = None
            done.set_result(None)
            if self._waiting:
                self._gather()
        return answer

    def _gather(self) -> None:
        # A task of its own begins on the loop's next turn, so that callers of the same turn share it.
        self._writer = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                callers = [caller for caller in self._waiting[:LARGEST] if not caller[1].cancelled()]
                self._waiting = self._waiting[LARGEST:]
                self._expects_company = len(callers) > 1
                await self._write(callers)
        finally:
            self._writer = None
            for _, future in self._waiting:  # we were cancelled: the loop is ending
                future.cancel()
            self._waiting = []

    async def _write(self, callers: list[_Caller]) -> None:
        if not callers:
            return
        try:
            answers = await self._insert([job for job, _ in callers])
        except StoreError as error:
            if len(callers) == 1 or type(error) is not StoreError:
                _tell(callers, error)  # the only one's fault, or nobody's: busy, full, unreachable, …
            else:
                for caller in callers:  # nothing was written: each alone, so that only the guilty one fails
                    await self._write([caller])
        except BaseException as error:
            _tell(callers, error if isinstance(error, Exception) else None)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), answer in zip(callers, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _tell(callers: list[_Caller], error: Exception | None) -> None:
    for _, future in callers:
        if future.done():
            continue
        if error is None:
            future.cancel()
        else:
            future.set_exception(error)
