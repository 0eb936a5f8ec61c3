"""Guest: one call of a module. The host functions work on it, and everything that it may do is bounded here."""

from __future__ import annotations

import ctypes
import random
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from rowlock.context import SyncContext
from rowlock.core import codec
from rowlock.errors import RowlockError
from rowlock.stores.base import MAX_LOG_LINES, MAX_LOG_TEXT
from rowlock.wasm.binary import Signature

MAX_OUTPUT = codec.MAX_BYTES  # bytes of stdout: the result
MAX_CHUNK = 1 << 16  # bytes that one call of fd_write takes; the guest then writes the rest by another call
MAX_TEXT = 1 << 16  # bytes of a message
TOLD, TOLD_TEXT = 5, 200  # lines of stderr that an error repeats, and characters of a line


class ModuleFailed(RowlockError):
    """A WASM module has failed its run: it exited with a code, trapped, reached a limit or broke a rule of the host."""


class Exit(BaseException):
    """The module has called proc_exit. Never seen outside of this package."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


class Linear(Protocol):
    """The memory of an instance."""

    def address(self) -> int: ...

    def size(self) -> int: ...


class Sandbox(NamedTuple):
    """The limits and permissions of a module."""

    name: str  # of the file, for errors
    topics: frozenset[str]  # that it may enqueue
    env: Mapping[str, str]
    has_clock: bool
    has_random: bool


class Guest:
    """`stdin`: what the module reads."""

    def __init__(self, ctx: SyncContext, sandbox: Sandbox, stdin: bytes) -> None:
        self.ctx = ctx
        self.sandbox = sandbox
        self.stdout = bytearray()
        self.ended: BaseException | None = None  # why a host function has ended it
        self.interrupted = threading.Event()  # set by the watcher: the run must end
        self.memory: Linear | None = None  # None before it is instantiated
        self.stop: Callable[[], None] | None = None  # makes the code of the module end, once a host function returns
        self.enqueued = 0
        self.last_lines: deque[str] = deque(maxlen=TOLD)
        self._stdin = stdin
        self._read = 0
        self._line = bytearray()  # of stderr, without its end

    def end(self, why: BaseException) -> None:
        """End the module for this reason. From here on, every host function does nothing."""
        if self.ended is None:
            self.ended = why
            if self.stop is not None:
                self.stop()

    # ── Its memory ──

    def _place(self, pointer: int, size: int) -> int:
        """Return the address. Raise if it is not all inside of the memory."""
        if self.memory is None:
            raise ModuleFailed("its start function calls the host: only _start may, the memory is not there before it")
        pointer &= 0xFFFFFFFF  # i32 has no sign of its own
        size &= 0xFFFFFFFF
        if pointer + size > self.memory.size():
            raise ModuleFailed(
                f"it gave the host a bad pointer: {size:,} bytes at {pointer:#x} are not all within its memory of "
                f"{self.memory.size():,} bytes"
            )
        return self.memory.address() + pointer

    def read(self, pointer: int, size: int) -> bytes:
        place = self._place(pointer, size)
        return ctypes.string_at(place, size & 0xFFFFFFFF)

    def write(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(self._place(pointer, len(data)), data, len(data))

    def write_number(self, pointer: int, layout: str, *numbers: int) -> None:
        self.write(pointer, struct.pack("<" + layout, *numbers))

    def check(self, pointer: int, size: int) -> None:
        """Raise if the host could not write there."""
        self._place(pointer, size)

    def text(self, pointer: int, size: int) -> str:
        """Return a message. Bytes that are not UTF-8 are replaced: it is for people."""
        if size & 0xFFFFFFFF > MAX_TEXT:
            self.check(pointer, size)
            size = MAX_TEXT
        return self.read(pointer, size).decode("utf-8", "replace")

    # ── Its streams ──

    def take_stdin(self, size: int) -> bytes:
        """Return the next bytes of stdin, none at its end."""
        piece = self._stdin[self._read : self._read + size]
        self._read += len(piece)
        return piece

    def add_stdout(self, data: bytes) -> None:
        if len(self.stdout) + len(data) > MAX_OUTPUT:
            raise ModuleFailed(
                f"it wrote more than {MAX_OUTPUT:,} bytes to stdout, which is the largest result. Store large results "
                "elsewhere, and return a reference"
            )
        self.stdout += data

    def add_stderr(self, data: bytes) -> None:
        """Log each line. The log keeps the newest lines only, so the older ones of a large chunk are skipped."""
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines[-MAX_LOG_LINES:]:
            self._log(line)
        self._line = bytearray(rest[-MAX_CHUNK:])
        if len(self._line) > MAX_LOG_TEXT:  # the log could not keep more of it
            self.flush_stderr()

    def flush_stderr(self) -> None:
        line, self._line = self._line, bytearray()
        self._log(line)

    def _log(self, line: bytes | bytearray) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            self.last_lines.append(text[:TOLD_TEXT])
            self.ctx.log(text)

    @cached_property
    def pseudo_random(self) -> random.Random:
        """Return a generator for modules without the grant: the same bytes in each run of a job."""
        return random.Random(self.ctx.job.id)  # noqa: S311 - not for secrets: the grant is


class HostFunction(NamedTuple):
    signature: Signature
    call: Callable[..., Any]  # gets the Guest, and the arguments of the module

    @property
    def nothing(self) -> int | None:
        """Return the result of a host function once the module has ended."""
        return 0 if self.signature.results else None


def host_function(params: str = "", results: str = "") -> Callable[[Callable[..., Any]], HostFunction]:
    """Declare the types of a host function: `@host_function("f64 i32", "i32")`."""
    signature = Signature(tuple(params.split()), tuple(results.split()))
    return lambda function: HostFunction(signature, function)
