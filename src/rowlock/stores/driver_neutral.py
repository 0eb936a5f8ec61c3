"""What is to be asked of a database is decided without input and output, by generators that yield a question (mostly a
Query) and are sent its answer; so sync and async drivers have the same logic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from msgspec import Struct

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class Query(Struct, frozen=True):
    """A statement with one parameter, written $1, that answers one text."""

    text: str
    parameter: str

    @property
    def percent(self) -> str:
        """The same for drivers that write it %s."""
        return self.text.replace("%", "%%").replace("$1", "%s")


Queries = Generator[Query, str, T]


def drive(queries: Generator[Q, A, T], run: Callable[[Q], A]) -> T:
    """Errors are thrown into the queries, which know what they mean."""
    try:
        query = next(queries)
        while True:
            try:
                answer = run(query)
            except Exception as error:
                query = queries.throw(error)
            else:
                query = queries.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(queries: Generator[Q, A, T], run: Callable[[Q], Awaitable[A]]) -> T:
    try:
        query = next(queries)
        while True:
            try:
                answer = await run(query)
            except Exception as error:
                query = queries.throw(error)
            else:
                query = queries.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
