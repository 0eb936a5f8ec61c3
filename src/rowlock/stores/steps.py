"""What is to be asked of a database is decided without input and output, by generators that yield a Query and are sent
its answer; so sync and async drivers have the same logic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")


class Query(Struct, frozen=True):
    """A statement with one parameter, written $1, that answers one text."""

    text: str
    parameter: str

    @property
    def percent(self) -> str:
        """The same for drivers that write it %s."""
        return self.text.replace("%", "%%").replace("$1", "%s")


Steps = Generator[Query, str, T]


def drive(steps: Steps[T], run: Callable[[Query], str]) -> T:
    """Errors are thrown into the steps, which know what they mean."""
    try:
        query = next(steps)
        while True:
            try:
                answer = run(query)
            except Exception as error:
                query = steps.throw(error)
            else:
                query = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T], run: Callable[[Query], Awaitable[str]]) -> T:
    try:
        query = next(steps)
        while True:
            try:
                answer = await run(query)
            except Exception as error:
                query = steps.throw(error)
            else:
                query = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
