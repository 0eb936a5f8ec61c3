"""The same logic for sync and async drivers: generators decide which questions a database is asked. A generator does no
input and output: it yields a question (mostly a Query) and is sent the answer."""

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
        """Return the text for drivers that write the parameter as %s."""
        return self.text.replace("%", "%%").replace("$1", "%s")


Queries = Generator[Query, str, T]


def drive(queries: Generator[Q, A, T], run: Callable[[Q], A]) -> T:
    """Run the queries and return their result. An error of `run` is thrown into the generator, which knows its
    meaning."""
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
