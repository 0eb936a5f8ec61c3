"""Handlers that misbehave: the job ends with a clear error, and the worker lives."""

import asyncio
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


def raising(error: BaseException) -> Callable[[], object]:
    def handler() -> NoReturn:
        raise error

    return handler


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


UNFIT = "The handler's result can't be stored"
GROUP = ExceptionGroup("two", [ValueError("first"), TypeError("second")])
# What a handler does, and what the error of its job says then.
EXPECTED: dict[str, tuple[Callable[[], object], str]] = {
    "unprintable": (raising(Unprintable()), "Unprintable"),
    "weird": (raising(Weird("strange")), "Weird"),
    "exits": (raising(SystemExit(3)), "SystemExit: 3"),
    "unserialisable": (lambda: {"thread": threading.current_thread()}, f"{UNFIT}: result.thread"),
    "not_a_number": (lambda: float("nan"), UNFIT),
    "oversized": (lambda: "x" * (2 << 20), UNFIT),
    "deep": (deep, UNFIT),
    "endless": (endless, "RecursionError"),
    "nul": (raising(ValueError("nul \0 and surrogate \ud800")), "nul \N{REPLACEMENT CHARACTER} and surrogate ?"),
    "stops": (raising(StopIteration("out")), "StopIteration"),
    "leaves": (raising(GeneratorExit()), "GeneratorExit"),
    "huge_error": (raising(ValueError("x" * (4 << 20))), "bytes left out"),
    "group": (raising(GROUP), "TypeError: second"),
}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_whatever_a_handler_does_the_job_ends_and_the_worker_lives(
    jobs: Jobs, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def register(topic: str, function: Callable[[], object]) -> None:
        async def in_the_loop() -> object:
            return function()

        jobs.register(topic, in_the_loop if kind == "async" else function, max_retries=0)

    register("chatty", chatty)
    for topic, (function, _) in EXPECTED.items():
        register(topic, function)
    await jobs.start(concurrency=3)
    made = {topic: (await jobs.enqueue(topic)).id for topic in EXPECTED}
    for topic, (_, expected) in EXPECTED.items():
        job = await ended(jobs, made[topic])
        assert job.status is Status.FAILED, topic
        if (topic, kind) == ("stops", "async"):
            expected = "RuntimeError: coroutine raised StopIteration"
        assert expected in (job.last_error or ""), topic
        assert len(job.last_error or "") < 70_000
    assert (await ran(jobs, "chatty")).result == 1
    capfd.readouterr()


async def test_a_keyboard_interrupt_in_a_thread_is_a_failure(jobs: Jobs) -> None:
    jobs.register("interrupts", raising(KeyboardInterrupt()), max_retries=0)
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
