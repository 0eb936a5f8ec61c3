"""A job of five steps, and one that is undone, in a worker that kills itself (SIGKILL) at a named moment.

test_steps_kill.py runs it: `from tests.runtime.apps import step_kills; step_kills.main()`. Environment variables say
where the worker kills itself.

The trap wraps the database drivers: it sees the step marks that a connection sends, and the COMMIT after them. Before
it kills the process, it writes what it has seen into a file.
"""

import asyncio
import functools
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import asyncpg

from rowlock import Context, Jobs, StepFailed, step
from rowlock.stores.sqlite import connect

URL, FOLDER = os.environ["ROWLOCK_URL"], Path(os.environ["STEP_KILLS"])
TRAP = os.environ.get("STEP_KILLS_TRAP", "")  # such as "third before"
STEPS = ("first", "second", "third", "fourth", "fifth")
SAGA = ("reserve", "charge", "ship", "undo charge", "undo reserve")  # ship fails for good
ENDS = ("succeeded", "failed")

jobs = Jobs(URL)


def note(file: str, line: str) -> None:
    """Append the line to the file and sync it to the disk, because the process may be killed right after."""
    fd = os.open(FOLDER / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.fsync(fd)
    os.close(fd)


def spring(moment: str) -> None:
    if moment == TRAP:
        note("sprung", moment)
        die()


def die() -> NoReturn:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "rowlock.runtime.child":  # the run of a suspect: its worker dies too
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


# ── The trap ──


def marked(text: object) -> str | None:
    """Return the step whose end a statement with this parameter stores, or None."""
    if isinstance(text, str) and '"marks"' in text and any(f'"{end}"' in text for end in ENDS):
        return next(name for name in (*STEPS, *SAGA) if f'"name":"{name}"' in text)
    return None


class TrappingSqlite(sqlite3.Connection):
    """A mixin for the connection class that the store asks for."""

    step: str | None = None

    def executemany(self, statement: str, parameters: Any, /) -> Any:
        parameters = list(parameters)
        for one in parameters:
            if isinstance(one, dict) and one.get("state") in ENDS:
                self.step = one["name"]
        return super().executemany(statement, parameters)

    def execute(self, statement: str, parameters: Any = (), /) -> Any:
        step, self.step = self.step, None if statement in ("COMMIT", "ROLLBACK") else self.step
        if statement != "COMMIT" or step is None:
            return super().execute(statement, parameters)
        spring(f"{step} before")
        done = super().execute(statement, parameters)
        spring(f"{step} after")
        return done


def trap_sqlite() -> None:
    open_ = connect._connect

    def trapping(path: str, mode: str, patience: int, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
        mixed = type(
            "Trapping", (TrappingSqlite, factory) if factory is not sqlite3.Connection else (TrappingSqlite,), {}
        )
        return open_(path, mode, patience, mixed)

    connect._connect = trapping


in_transaction: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # by connection: the step that it has stored


def trap_postgres(name: str) -> None:
    """Set the trap on this method of asyncpg. A statement outside of a transaction commits by itself."""
    call: Callable[..., Any] = getattr(asyncpg.Connection, name)

    @functools.wraps(call)
    async def through(self: Any, statement: str, *arguments: Any, **options: Any) -> Any:
        stored = next((found for one in arguments if (found := marked(one))), None)
        if stored is not None and self.is_in_transaction():
            in_transaction[self] = stored
            stored = None
        elif statement.startswith(("COMMIT", "ROLLBACK")):
            stored = in_transaction.pop(self, None)
        if stored is None or statement.startswith("ROLLBACK"):
            return await call(self, statement, *arguments, **options)
        spring(f"{stored} before")
        answer = await call(self, statement, *arguments, **options)
        spring(f"{stored} after")
        return answer

    setattr(asyncpg.Connection, name, through)


# ── The job ──


async def plain(name: str) -> int:
    note("runs", name)
    spring(f"{name} in")
    return STEPS.index(name)


async def booked(ctx: Context, name: str) -> int:
    note("runs", name)
    n = STEPS.index(name)
    async with ctx.transaction() as conn:
        if isinstance(conn, sqlite3.Connection):
            conn.execute("INSERT INTO orders VALUES (?)", (n,))
        else:
            await conn.execute("INSERT INTO orders VALUES ($1)", n)
        spring(f"{name} in")
        ctx.complete(n)
    return -1


@jobs.task(retry=[0], max_retries=100)
async def five(ctx: Context) -> list[int]:
    found = []
    for name in STEPS:
        function = step(booked) if name in ("second", "fourth") else step(plain)
        found.append(await ctx.step(function.using(name=name), name))
    return found


async def broken(name: str) -> None:
    await simple(name)
    raise ValueError("no truck")


async def simple(name: str) -> None:
    note("runs", name)
    spring(f"{name} in")


async def undone(ctx: Context, name: str) -> None:
    note("runs", name)
    async with ctx.transaction() as conn:
        if isinstance(conn, sqlite3.Connection):
            conn.execute("INSERT INTO orders VALUES (?)", (SAGA.index(name),))
        else:
            await conn.execute("INSERT INTO orders VALUES ($1)", SAGA.index(name))
        spring(f"{name} in")
        ctx.complete()


@jobs.task(retry=[0], max_retries=100)
async def saga(ctx: Context) -> None:
    for name in ("reserve", "charge"):
        await ctx.step(step(simple).using(name=name), name)
    try:
        await ctx.step(step(max_retries=0)(broken).using(name="ship"), "ship")
    except StepFailed:
        for name in ("undo charge", "undo reserve"):
            await ctx.step(step(undone).using(name=name), name)
        raise


trap_sqlite()
for method in ("execute", "fetch", "fetchrow", "fetchval"):
    trap_postgres(method)


async def work() -> None:
    async with jobs:
        await jobs.start(poll=0.1)
        await jobs.wait(os.environ["STEP_KILLS_JOB"])


def main() -> None:
    asyncio.run(work())
