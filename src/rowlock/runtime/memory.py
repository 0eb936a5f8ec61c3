"""The memory that a process uses, and that it may use, in MiB."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20
LOOK_EVERY = 0.1 if sys.platform == "linux" else 0.5  # seconds; on other systems a look starts a program


async def resident(pid: int) -> float | None:
    """Return the memory that the process holds in RAM; None if it has ended."""
    if sys.platform != "linux":
        return await asyncio.to_thread(_ask_ps, pid)
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])  # noqa: ASYNC240 - no disk is behind it
    except (OSError, IndexError):
        return None
    return pages * _PAGE / MIB


def _ask_ps(pid: int) -> float | None:
    asked = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607 - a number; where ps is differs
    return int(asked.stdout) / 1024 if asked.stdout.strip() else None


def available() -> float:
    """Return the memory of this machine, or the part that the control groups of this process allow."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE]
    for file in _limit_files():
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(file.read_text()))
    return min(limits) / MIB


def _limit_files() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    files = [root / "memory.max", root / "memory/memory.limit_in_bytes"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = Path(path.lstrip("/"))
            folders = [own, *own.parents]  # the limits of the groups above apply as well
            if not controllers:
                files += [root / folder / "memory.max" for folder in folders]
            elif "memory" in controllers.split(","):
                files += [root / "memory" / folder / "memory.limit_in_bytes" for folder in folders]
    return files


def highest(maxrss: int) -> float:
    """Return ru_maxrss of rusage in MiB. Its unit depends on the system."""
    return maxrss / MIB if sys.platform == "darwin" else maxrss / 1024


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def own_peak() -> float:
    import resource  # not on Windows

    return highest(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
