"""Handlers that return, raise and report strange values. A seed and a number choose them, the same in every process."""

import asyncio
import os
from collections.abc import Sequence
from random import Random
from typing import Any

from rowlock import Cancelled, Context, Final, Jobs, Snooze
from tests.faults import strange

KINDS = ("async", "thread", "process")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it doesn't want to be looked at")


class Unlike(Exception):
    def __str__(self) -> Any:
        return None  # noqa: PLE0307 - it is meant not to be a string


def chance_of(seed: int, n: int) -> Random:
    return Random(seed * 1_000_003 + n)


def returned(seed: int, n: int) -> Any:
    return strange.value(chance_of(seed, n))


def raised(seed: int, n: int) -> tuple[str, BaseException]:
    """Return the text that is in the error, and the error."""
    chance = chance_of(seed, n)
    text = strange.text(chance)
    made: list[BaseException] = [
        *(
            ValueError(text),
            Final(text),
            Cancelled(text),
            ExceptionGroup("several", [ValueError(text), KeyError(text)]),
        ),
        *(
            OSError(5, text),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, text),
            type("Émeute\u202e", (Exception,), {})(text),
        ),
        *(
            ValueError(object(), text),
            SystemExit(text),
            StopIteration(text),
            asyncio.CancelledError(text),
            MemoryError(text),
        ),
    ]
    if chance.random() < 0.2:
        until: Any = chance.choice(["soon", float("inf"), 2**70, None, object()])
        return "", chance.choice([Mute(), Unlike(), Snooze(until), RecursionError("x" * 200_000), GeneratorExit()])
    return text, chance.choice(made)


def said(seed: int, n: int) -> tuple[str, str, str, Any]:
    """Return a stage, a message, a log line, and a percentage."""
    chance = chance_of(seed, n)
    percent = chance.choice([0, 50.5, 100, -1, 1e300, float("nan"), float("inf"), 2**2000, None])
    return strange.text(chance), strange.text(chance), strange.text(chance), percent


async def returning(seed: int, n: int) -> Any:
    return returned(seed, n)


def returning_thread(seed: int, n: int) -> Any:
    return returned(seed, n)


async def raising(seed: int, n: int) -> None:
    raise raised(seed, n)[1]


def raising_thread(seed: int, n: int) -> None:
    raise raised(seed, n)[1]


def saying(ctx: Context, seed: int, n: int) -> None:
    stage, message, line, percent = said(seed, n)
    ctx.progress(percent, stage=stage, message=message)
    ctx.log(line, level=stage)


async def saying_async(ctx: Context, seed: int, n: int) -> None:
    saying(ctx, seed, n)


def made(url: str | None = None, kinds: Sequence[str] = KINDS) -> Jobs:
    jobs = Jobs(url)
    for kind, functions in {
        "async": (returning, raising, saying_async),
        "thread": (returning_thread, raising_thread, saying),
        "process": (returning_thread, raising_thread, saying),
    }.items():
        if kind not in kinds:
            continue
        function: Any
        for what, function in zip(("returning", "raising", "saying"), functions, strict=True):
            jobs.register(f"{what}:{kind}", function, max_retries=0, process=kind == "process")
    return jobs


if os.environ.get("FUZZ_WORKER"):
    jobs = made()
