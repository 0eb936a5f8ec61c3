"""Wrong wall clocks. Each clock applies to the processes that are started with its environment."""

import asyncio
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shim.c")
HOUR = 3600.0


def why_not() -> str | None:
    """Return why clocks can't be moved here; None if they can."""
    if sys.platform != "linux":
        return "clocks are moved by LD_PRELOAD, on Linux"
    return None if compiler() else "no C compiler"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def compiled(folder: Path) -> Path:
    """Compile the clock shim. Return the library to preload."""
    program = compiler()
    assert program is not None
    library = folder / "clock_shim.so"
    words = [program, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert said.returncode == 0, f"the clock shim can't be compiled:\n{said.stderr}"
    return library


class Clock:
    """A wall clock that is wrong by `wrong` seconds. A change takes effect at once in every process that uses it."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._memory = memoryview(mmap.mmap(opened.fileno(), 8)).cast("q")  # one int64, so each write is atomic
        self.name = file.name
        self.env = {"LD_PRELOAD": str(library), "CLOCK_SHIM": str(file)}

    @property
    def wrong(self) -> float:
        return self._memory[0] / 1e9

    @wrong.setter
    def wrong(self, seconds: float) -> None:
        self._memory[0] = round(seconds * 1e9)

    async def prove(self) -> None:
        """Check a process with this clock: every wall clock call is wrong by `wrong`, the monotonic clock is right."""
        program = (
            "import ctypes, time; from datetime import UTC, datetime; libc = ctypes.CDLL(None);"
            "now = (ctypes.c_long * 2)(); libc.gettimeofday(now, None); libc.time.restype = ctypes.c_long;"
            "print(time.time(), datetime.now(UTC).timestamp(), now[0], libc.time(None), time.monotonic())"
        )
        for wrong in (0.0, HOUR, -HOUR):
            self.wrong = wrong
            before = time.time(), time.monotonic()
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, env={**os.environ, **self.env}, stdout=subprocess.PIPE
            )
            out, _ = await child.communicate()
            after = time.time(), time.monotonic()
            *said, monotonic = map(float, out.split())
            for one in said:  # the last two are whole seconds
                assert before[0] + wrong - 1.1 <= one <= after[0] + wrong + 0.1, f"moved by {wrong}: {said}, {before}"
            assert before[1] <= monotonic <= after[1], "the monotonic clock has moved as well"
        self.wrong = 0.0
