"""RunningBoard: the runs of a worker, in memory that outlives it. When the worker has died, its supervisor reads there
which runs had begun and were not settled.

A start mark in the database would cost a write for every job. An entry here costs a microsecond, and is as good while
the supervisor lives. If the whole machine dies, only runs with start marks are charged (see Run.needs_mark).
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator

MOST_SLOTS = 10_000  # jobs that a worker may run at once
MOST_ENTRIES = 2 * MOST_SLOTS  # … and those that have ended and are being settled

_NOWHERE = -1  # the board is full, or private
_HEADER = struct.Struct("=dII")  # when the claim loop last turned; running handlers; leaked ones
_START = 64
# The id as text, because 16 bytes would take longer to make than all the rest; whether the handler is in a child
# process; and the version, aligned. The version is written last: an entry without it doesn't count.
_ENTRY = struct.Struct("=36s?3xq")
_AT_APART = 36
_VERSION = struct.Struct("=q")
_AT_VERSION = _ENTRY.size - _VERSION.size


class RunningBoard:
    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._slots = (len(memory) - _START) // _ENTRY.size
        self._used = 0  # slots that were used at some time
        self._free: list[int] = []  # of those

    @classmethod
    def private(cls) -> RunningBoard:
        """Return a board that no supervisor reads."""
        return cls(bytearray(_START))

    @classmethod
    def shared(cls) -> tuple[RunningBoard, int]:
        """Return a board, and the file descriptor by which a child process finds it."""
        with tempfile.TemporaryFile() as file:
            size = _START + MOST_ENTRIES * _ENTRY.size
            file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
            return cls(memory), os.dup(file.fileno())

    @classmethod
    def inherited(cls, descriptor: int) -> RunningBoard:
        try:
            return cls(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)

    # ── The worker writes ──

    def put(self, job_id: str, version: int, *, apart: bool = False) -> int:
        """Add a run whose handler starts. Return its slot. `apart`: in a child process of the worker."""
        if self._free:
            slot = self._free.pop()
        elif self._used < self._slots:
            slot = self._used
            self._used += 1
        else:
            return _NOWHERE
        _ENTRY.pack_into(self._memory, _START + slot * _ENTRY.size, job_id.encode(), apart, version)
        return slot

    def rejoin(self, slot: int) -> None:
        """Count the run as one of the worker's own. Its handler in the child process has ended, and what it did there
        may still make the worker die."""
        if slot != _NOWHERE:
            self._memory[_START + slot * _ENTRY.size + _AT_APART] = 0

    def clear(self, slot: int) -> None:
        """Remove a run that is settled, or was lost."""
        if slot == _NOWHERE:
            return
        _VERSION.pack_into(self._memory, _START + slot * _ENTRY.size + _AT_VERSION, 0)
        self._free.append(slot)

    def wipe(self) -> None:
        """Remove all entries: everything has been settled."""
        self._memory[_START:] = bytes(len(self._memory) - _START)

    def tick(self, running: int, leaked: int) -> None:
        """Record that the claim loop has turned."""
        _HEADER.pack_into(self._memory, 0, time.monotonic(), running, leaked)

    # ── Any process reads ──

    @property
    def ticked(self) -> float:
        """Return when the claim loop last turned, by time.monotonic(), which all processes share; 0: never."""
        at: float = _HEADER.unpack_from(self._memory, 0)[0]
        return at

    def running(self) -> list[tuple[str, int]]:
        """Return (id, version) of the runs that had begun and were not settled."""
        return [(job_id, version) for job_id, _, version in self._entries()]

    def apart(self) -> list[tuple[str, int]]:
        """Return those of them whose handlers run in a child process."""
        return [(job_id, version) for job_id, apart, version in self._entries() if apart]

    def _entries(self) -> Iterator[tuple[str, bool, int]]:
        for at in range(_START, len(self._memory) - _ENTRY.size + 1, _ENTRY.size):
            job_id, apart, version = _ENTRY.unpack_from(self._memory, at)
            if version:
                yield job_id.decode(), apart, version
