"""Handlers that misbehave: the job ends with a clear error, and the worker lives."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from rowlock.core.job import Status
from rowlock.jobs import Jobs
from tests.runtime.running import ran
from tests.waiting import ended


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")

    __repr__ = __str__


class Weird(Exception):
    __notes__ = 7  # type: ignore[assignment]

    @property
    def __traceback__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("not even this")


def unprintable() -> None:
    raise Unprintable


def weird() -> None:
    raise Weird("strange")


def exits() -> None:
    sys.exit(3)


def unserialisable() -> object:
    return {"thread": threading.current_thread()}


def not_a_number() -> float:
    return float("nan")


def oversized() -> str:
    return "x" * (2 << 20)


def deep() -> object:
    value: list[Any] = []
    for _ in range(100):
        value = [value]
    return value


def endless() -> None:
    endless()


def chatty() -> int:
    print("x" * (1 << 20))
    return 1


def nul() -> None:
    raise ValueError("nul \0 and surrogate \ud800")


def interrupts() -> None:
    raise KeyboardInterrupt


def stops() -> None:
    raise StopIteration("out")


def leaves() -> None:
    raise GeneratorExit


def huge_error() -> None:
    raise ValueError("x" * (4 << 20))


def group() -> None:
    raise ExceptionGroup("two", [ValueError("first"), TypeError("second")])


EXPECTED: dict[Callable[[], object], str] = {
    unprintable: "Unprintable",
    weird: "Weird",
    exits: "SystemExit: 3",
    unserialisable: "The handler's result can't be stored: result.thread",
    not_a_number: "The handler's result can't be stored",
    oversized: "The handler's result can't be stored",
    deep: "The handler's result can't be stored",
    endless: "RecursionError",
    nul: "nul \N{REPLACEMENT CHARACTER} and surrogate ?",
    stops: "StopIteration",
    leaves: "GeneratorExit",
    huge_error: "bytes left out",
    group: "TypeError: second",
}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_whatever_a_handler_does_the_job_ends_and_the_worker_lives(
    jobs: Jobs, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def register(function: Callable[[], object]) -> None:
        async def in_the_loop() -> object:
            return function()

        jobs.register(function.__name__, in_the_loop if kind == "async" else function, max_retries=0)

    for function in [*EXPECTED, chatty]:
        register(function)
    await jobs.start(concurrency=3)
    made = {function: (await jobs.enqueue(function.__name__)).id for function in EXPECTED}
    for function, job_id in made.items():
        job = await ended(jobs, job_id)
        assert job.status is Status.FAILED, function
        if (function, kind) == (stops, "async"):
            assert "RuntimeError: coroutine raised StopIteration" in (job.last_error or "")
        else:
            assert EXPECTED[function] in (job.last_error or ""), function
        assert len(job.last_error or "") < 70_000
    assert (await ran(jobs, "chatty")).result == 1
    capfd.readouterr()


async def test_a_keyboard_interrupt_in_a_thread_is_a_failure(jobs: Jobs) -> None:
    jobs.register("interrupts", interrupts, max_retries=0)
    job = await ran(jobs, "interrupts")
    assert "KeyboardInterrupt" in (job.last_error or "")


async def test_something_that_was_cancelled_inside_is_a_failure(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def awaits_a_cancelled_task() -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    @jobs.task(max_retries=0)
    async def raises_it() -> None:
        raise asyncio.CancelledError

    for task in (awaits_a_cancelled_task, raises_it):
        job = await ran(jobs, task)
        assert job.status is Status.FAILED
        assert "CancelledError" in (job.last_error or "")


async def test_a_sync_handler_that_returns_a_coroutine_says_what_to_do(jobs: Jobs) -> None:
    async def inner() -> None: ...

    jobs.register("forgotten", lambda: inner(), max_retries=3)
    job = await ran(jobs, "forgotten")
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "async def" in (job.last_error or "")


async def test_chained_exceptions_are_kept_whole(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    def chained() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    job = await ran(jobs, chained)
    text = job.last_error or ""
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("ValueError: outer")
    assert "rowlock/runtime" not in text
