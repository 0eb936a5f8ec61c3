"""Describes the machine that the figures depend on."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import tempfile
import time
from importlib.metadata import distribution
from pathlib import Path

from rowlock.stores.sqlite.filesystem import current_mounts

FLUSHES = 200
BLOCK = b"x" * 8192  # a page of PostgreSQL


def describe(folder: Path) -> dict[str, str]:
    """Return the facts about the machine. `folder`: where the databases are."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "CPU": f"{_cpu()}, {os.cpu_count()} cores",
        "memory": f"{memory / (1 << 30):.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "disk": f"{filesystem(folder)}, {flushes_per_second(folder):.0f} flushes of 8 KiB per second",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "rowlock": installation(),
    }


def installation() -> str:
    """Return rowlock's version, and whether it is installed from a wheel or in place."""
    rowlock = distribution("rowlock")
    about = json.loads(rowlock.read_text("direct_url.json") or "{}")
    editable = about.get("dir_info", {}).get("editable", False)
    return f"{rowlock.version}, installed {'in place: NOT as users have it' if editable else 'from a wheel'}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def filesystem(path: Path) -> str:
    """Return the kind of file system that a folder is on."""
    mounts = {mount.point: mount.kind for mount in current_mounts()}
    folders = [path.resolve(), *path.resolve().parents]
    return next((mounts[str(folder)] for folder in folders if str(folder) in mounts), "unknown")


def flushes_per_second(folder: Path) -> float:
    """Return how many commits per second reach the disk, one after the other."""
    flush = getattr(os, "fdatasync", os.fsync)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(BLOCK * FLUSHES)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        begin = time.perf_counter()
        for _ in range(FLUSHES):
            file.write(BLOCK)
            file.flush()
            flush(file.fileno())
        return FLUSHES / (time.perf_counter() - begin)
