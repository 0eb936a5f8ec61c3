"""Group: calls that are made at the same time share one statement. For inserts this is group commit.

While one statement is under way, the calls for the next one gather. A single call runs at once, and waits for no other
call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from rowlock.errors import StoreError

Q = TypeVar("Q")
A = TypeVar("A")


class Group(Generic[Q, A]):
    """Belongs to an event loop. `run` is the statement: it takes questions and returns their answers in the same order.
    `largest`: questions in one statement. `one_by_one`: if `run` refuses several questions, run each of them alone, so
    that only the wrong question fails. This is not done after an error that concerns all of them (busy, full,
    unreachable)."""

    def __init__(
        self, run: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], *, largest: int = 1000, one_by_one: bool = True
    ) -> None:
        self._run = run
        self._largest = largest
        self._one_by_one = one_by_one
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._runner: asyncio.Future[None] | None = None
        self._expects_more_calls = True  # until a call was alone

    async def call(self, question: Q) -> A:
        """Return the answer of a statement that begins after this call. If the caller is cancelled, the other calls go
        on; its own question may be run."""
        if self._runner is None and not self._expects_more_calls:
            return await self._run_alone(question)
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._runner is None:
            self._gather()
        return await future

    async def drain(self) -> None:
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def _run_alone(self, question: Q) -> A:
        """Return the answer of a statement for this question alone. A caller that calls again and again needs no task
        for each call, nor another turn of the event loop."""
        self._expects_more_calls = True  # set also after an error: a call that is cancelled here closes its connection
        self._runner = done = asyncio.get_running_loop().create_future()
        try:
            [answer] = await self._run([question])
            self._expects_more_calls = bool(self._waiting)
        finally:
            self._runner = None
            done.set_result(None)
            if self._waiting:
                self._gather()
        return answer

    def _gather(self) -> None:
        # The task begins on the event loop's next turn, so that calls of the same turn share the statement.
        self._runner = asyncio.create_task(self._run_all())

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                calls = [call for call in self._waiting[: self._largest] if not call[1].cancelled()]
                self._waiting = self._waiting[self._largest :]
                self._expects_more_calls = len(calls) > 1
                await self._answer(calls)
        finally:
            self._runner = None
            for _, future in self._waiting:  # this task was cancelled: the event loop is ending
                future.cancel()
            self._waiting = []

    async def _answer(self, calls: list[tuple[Q, asyncio.Future[A]]]) -> None:
        if not calls:
            return
        try:
            answers = await self._run([question for question, _ in calls])
        except Exception as error:
            for_all = isinstance(error, StoreError) and type(error) is not StoreError
            if self._one_by_one and len(calls) > 1 and not for_all:
                for call in calls:  # nothing was written
                    await self._answer([call])
                return
            for _, future in calls:
                if not future.done():
                    future.set_exception(error)
        except BaseException:
            for _, future in calls:
                future.cancel()
            raise
        else:
            for (_, future), answer in zip(calls, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
