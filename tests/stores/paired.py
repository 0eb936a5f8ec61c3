"""A store beside the reference: each verb goes to both. Their answers, and all that they keep, must be the same.

A test on a paired store need not say what a verb does to a row: the reference says it. The test says what the reference
can't: which situation it wants, and what matters about the answer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.codec import decode
from rowlock.core.job import Log
from rowlock.stores import reading
from rowlock.stores.base import Awaited, Claimed, Settled, Store
from rowlock.stores.queries import Filter
from tests.stores.harness import Harness
from tests.stores.reference import Reference

COMPARED_AT_THE_END = {"logs", "paused", "stats", "workers"}  # these only read
IN_ANY_ORDER = {"move_due", "held_by"}


class Paired:
    """A store and the reference. Verbs that the reference does not know only read, and go to the store alone."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.real: Store = harness.store
        self.reference = Reference(harness.now)

    def __getattr__(self, verb: str) -> Any:
        if verb in COMPARED_AT_THE_END or not callable(getattr(self.reference, verb, None)):
            return getattr(self.real, verb)

        async def both(*arguments: Any, **options: Any) -> Any:
            actual = await self.do(verb, *arguments, **options)
            await self.compare_rows()
            return actual

        return both

    async def do(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Call the verb on both and return the answer of the store; both answers must agree."""
        actual = await getattr(self.real, verb)(*arguments, **options)
        if verb == "insert":
            options.pop("repeat", None)  # tells the store where to look, not what to do
        _same(verb, actual, getattr(self.reference, verb)(*arguments, **options))
        return actual

    async def compare_rows(self) -> None:
        assert await self._harness.rows() == self.reference.rows
        audit = await self._harness.audit()
        assert sorted(map(repr, audit)) == sorted(map(repr, self.reference.audit))

    async def compare(self, changed: set[str]) -> None:
        """Compare rows, counters and lists of both, and the events and logs of the jobs that changed."""
        await self.compare_rows()
        assert await self.real.stats() == self.reference.stats()
        page = await self.real.list(Filter(), limit=200)
        newest = sorted(self.reference.rows.items(), reverse=True)[:200]
        assert page.items == [row.job for _, row in newest]
        for job_id in changed & set(self.reference.rows):
            assert await reading.events(self.real, job_id) == self.reference.events(job_id)
            assert (await self.real.read([job_id], Log))[job_id] == self.reference.logs(job_id)

    async def compare_all(self) -> None:
        await self.compare(set(self.reference.rows))
        assert await self.real.paused() == self.reference.paused()
        assert await self.real.workers() == self.reference.workers()
        await self.compare_numbers()
        while await self.real.tidy("fold_counts", 50):  # folding changes no number
            await self.compare_numbers()

    async def compare_numbers(self) -> None:
        stats = await self.real.stats()
        assert stats == self.reference.stats()
        for topic, expected in stats.topics.items():
            one = await self.real.stats(topic)
            assert {name: getattr(one, name) for name in expected.__struct_fields__} == structs.asdict(expected)

    async def adopt(self) -> None:
        """Copy into the reference the rows that a test has changed without the store."""
        self.reference.rows = await self._harness.rows()


def _same(verb: str, actual: Any, expected: Any) -> None:
    if verb in IN_ANY_ORDER:
        assert sorted(map(repr, actual)) == sorted(map(repr, expected))
    elif isinstance(expected, Awaited):  # a store may keep JSON in another form
        assert _read(actual) == _read(expected)
    elif isinstance(expected, Claimed):
        _same_claim(actual, expected)
    elif isinstance(expected, Settled):
        assert actual.verdicts == expected.verdicts
        assert (actual.claimed is None) == (expected.claimed is None)
        if expected.claimed is not None:
            _same_claim(actual.claimed, expected.claimed)
    else:
        assert actual == expected


def _read(answer: Awaited) -> tuple[Any, ...]:
    result = None if answer.result is None else decode(answer.result)
    return answer.hold, answer.state, result, answer.left, answer.seen


def _same_claim(actual: Claimed, expected: Claimed) -> None:
    assert actual.jobs == expected.jobs
    assert not actual.contended
    assert actual.next_due == (None if expected.next_due is None else pytest.approx(expected.next_due))


@asynccontextmanager
async def paired(harness: Harness) -> AsyncIterator[Harness]:
    """Pair the empty store of the harness; compare everything at the end."""
    real, harness.paired = harness.store, Paired(harness)
    harness.store = harness.paired
    try:
        yield harness
        await harness.paired.compare_all()
    finally:
        harness.store, harness.paired = real, None
