"""Handlers leave marks in files for the harness: which jobs were handled, when the first began, how long a pickup took.

The harness can read the files at any time, without asking the store. Each worker process has a set of files of its own.
A mark costs a handler well under a microsecond.

    seen-<pid>     one byte per job: 1 when its handler has run
    first-<pid>    CLOCK_MONOTONIC in ns when this process handled its first job
    pickup-<pid>   lines "n nanoseconds", from before the enqueue call to the handler's start
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

MOST = 4 << 20  # jobs in a round; the files are sparse

_folder = Path(os.environ.get("BENCH_MARKS", "."))
_seen: mmap.mmap | None = None
_beginning = threading.Lock()


def seen(n: int) -> None:
    """Mark job n as handled."""
    if _seen is None:
        _begin()
    _seen[n] = 1  # type: ignore[index]


def picked_up(n: int, enqueued: int) -> None:
    took = time.monotonic_ns() - enqueued
    with Path(_folder, f"pickup-{os.getpid()}").open("a") as file:
        file.write(f"{n} {took}\n")
    seen(n)


def _begin() -> None:
    global _seen
    now = time.monotonic_ns()
    with _beginning:
        if _seen is None:  # handlers may run in threads
            _seen = _new_marks(now)


def _new_marks(now: int) -> mmap.mmap:
    with Path(_folder, f"seen-{os.getpid()}").open("w+b") as file:
        file.truncate(MOST)
        marks = mmap.mmap(file.fileno(), MOST)
    Path(_folder, f"first-{os.getpid()}").write_text(str(now))
    return marks


# ── The harness reads ──


def first(folder: Path) -> int | None:
    """Return when the first handler began."""
    found = [int(text) for path in folder.glob("first-*") if (text := path.read_text())]
    return min(found) if found else None


def distinct(folder: Path, n: int) -> int:
    """Return how many of the jobs 0 … n-1 have been handled."""
    union = 0
    for path in folder.glob("seen-*"):
        with path.open("rb") as file:
            union |= int.from_bytes(file.read(n), "little")
    return union.bit_count()


def pickups(folder: Path) -> list[float]:
    """Return the milliseconds of each pickup, in the order of enqueueing."""
    found: dict[int, float] = {}
    for path in folder.glob("pickup-*"):
        for line in path.read_text().splitlines():
            n, took = line.split()
            found[int(n)] = int(took) / 1e6
    return [found[n] for n in sorted(found)]
