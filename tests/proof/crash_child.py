"""Processes that are killed at a fail-point: `python -m tests.proof.crash_child` forks one for each line that it reads.

The parent imports everything before it forks, so a fork costs milliseconds. It opens no database: SQLite's locks don't
survive a fork.
"""

import asyncio
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import rowlock.stores.postgres.store  # the product imports drivers on first use; import them here, before the forks
import rowlock.stores.sqlite.store  # noqa: F401
from rowlock.stores import open_store
from tests.proof.crash_case import Actor
from tests.proof.crash_points import CASES
from tests.proof.crash_stage import Facts
from tests.proof.fail_points import Point, Trap, die, trapped

ROOT = Path(__file__).parents[2]
_KILLED = -9


async def act_and_die(url: str, case: str | None, facts: Facts, point: Point) -> None:
    """Perform the case, or migrate if there is none. The process dies at `point`."""
    trap = Trap()
    with trapped(trap):
        store = open_store(url)
        if case is None:
            trap.set(point, die)
            await store.migrate()
        else:
            await store.open()
            act = await CASES[case].ready(Actor(url, store, trap, facts))
            trap.set(point, die)
            await act()


class Victims:
    """The test's end of the pipe to the process that forks."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.proof.crash_child"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    async def perform(self, url: str, case: str | None, facts: Facts, point: Point) -> None:
        """Have a process perform the case, and return when it is dead."""
        assert await asyncio.to_thread(self._perform, [url, case, facts, point]) == _KILLED

    def _perform(self, order: list[Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def main() -> None:
    for line in sys.stdin:
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        else:
            url, case, facts, point = json.loads(line)
            try:
                asyncio.run(act_and_die(url, case, facts, Point(*point)))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
