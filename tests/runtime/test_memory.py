"""How much memory a process uses, and how much memory it may use."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from rowlock.runtime import memory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="child processes are not supported there")


async def test_what_a_process_holds_grows_with_it() -> None:
    before = await memory.resident(os.getpid())
    kept = b"x" * (64 << 20)
    after = await memory.resident(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before > len(kept) / memory.MIB / 2


async def test_a_process_that_is_gone_holds_nothing_that_is_known() -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    assert await memory.resident(ended.pid) is None


def test_the_lowest_limit_of_machine_and_control_groups_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("unlimited", "low", "lowest", "absent")]
    for file, text in zip(files, ("max\n", f"{64 << 20}\n", f"{32 << 20}\n"), strict=False):
        file.write_text(text)
    monkeypatch.setattr(memory, "_limit_files", lambda: files)
    assert memory.available() == 32.0
    monkeypatch.setattr(memory, "_limit_files", list)
    assert memory.available() * memory.MIB == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
