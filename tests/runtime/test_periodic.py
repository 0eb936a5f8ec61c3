"""The loop that all periodic work uses: pauses, wake-ups, failures and its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf

import pytest

from rowlock.errors import StoreClosed, StoreUnavailable
from rowlock.runtime import periodic
from rowlock.runtime.periodic import Loop
from tests.waiting import until

Answer = float | Exception | None


class Passes:
    """A pass of periodic work: it gives the answers in turn, then waits until it is woken."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.at: list[float] = []

    async def once(self) -> float | None:
        self.at.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if self.answers else inf
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def reach(self, count: int) -> None:
        await until(lambda: len(self.at) >= count)


async def test_it_waits_as_long_as_it_is_told_and_ends_when_it_is_told() -> None:
    passes = Passes(0.0, 0.05, None)
    loop = Loop("work", passes.once)
    loop.start()
    loop.start()
    await until(lambda: loop.task is None)
    assert len(passes.at) == 3
    assert passes.at[2] - passes.at[1] >= 0.04
    loop.start()
    await passes.reach(4)
    await loop.stop()


async def test_the_first_call_may_wait() -> None:
    passes, began = Passes(None), asyncio.get_running_loop().time()
    loop = Loop("work", passes.once)
    loop.start(delay=0.05)
    await passes.reach(1)
    assert passes.at[0] - began >= 0.04


async def test_a_wake_ends_the_pause_but_not_the_shortest_one() -> None:
    passes = Passes()
    loop = Loop("work", passes.once, shortest=0.05)
    loop.start()
    await passes.reach(1)
    loop.wake()
    await passes.reach(2)
    assert passes.at[1] - passes.at[0] >= 0.04
    await loop.stop()


@pytest.mark.parametrize("error", [StoreUnavailable("away"), LookupError("never thought of")])
async def test_failures_are_said_once_and_a_wake_does_not_hurry_them(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "_AFTER_A_MISTAKE", 0.02)
    passes = Passes(error, error)
    loop = Loop("work", passes.once)
    with caplog.at_level(logging.WARNING, "rowlock"):
        loop.start()
        await passes.reach(1)
        loop.wake()
        await passes.reach(3)
    assert passes.at[1] - passes.at[0] >= 0.015
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"work: {error}; trying again until it works",
        "work: the database is back after 2 failed tries",
    ]
    await loop.stop()


async def test_it_ends_when_the_store_is_closed() -> None:
    passes = Passes(StoreClosed("closed"))
    loop = Loop("work", passes.once)
    loop.start()
    await until(lambda: loop.task is None and len(passes.at) == 1)


@pytest.mark.parametrize("finish", [True, False])
async def test_a_stop_may_wait_for_the_call_that_is_under_way(finish: bool) -> None:
    began, go, done = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow() -> float:
        began.set()
        await go.wait()
        done.append("finished")
        return 0.0

    loop = Loop("work", slow)
    loop.start()
    await began.wait()
    asyncio.get_running_loop().call_later(0.02, go.set)
    await loop.stop(finish=finish)
    assert (loop.task, done) == (None, ["finished"] if finish else [])
    loop.start()
    assert loop.task is None


@pytest.mark.parametrize("answers", [(inf,), (StoreUnavailable("away"),)])
async def test_a_stop_does_not_wait_for_a_pause(answers: tuple[Answer, ...]) -> None:
    passes = Passes(*answers)
    loop = Loop("work", passes.once, longest=3600.0)
    loop.start()
    await passes.reach(1)
    async with asyncio.timeout(60):
        await loop.stop(finish=True)


async def test_a_call_may_stop_its_own_loop() -> None:
    loops: list[Loop] = []

    async def stop() -> float:
        await loops[0].stop()
        return 0.0

    once: Callable[[], Awaitable[float]] = stop
    loops.append(Loop("work", once))
    loops[0].start()
    await until(lambda: loops[0].task is None)
