"""The functions of WASI preview 1 that a command needs: its streams, arguments, clocks, random bytes and its end.

They are ours, and not wasmtime's: wasmtime always gives a module real clocks and random bytes, and needs files for the
streams. Everything else of WASI, all of its files and sockets, answers ENOSYS. No code here could open one.
"""

from __future__ import annotations

import os
import struct
import time

from rowlock.wasm.binary import Signature
from rowlock.wasm.guest import MAX_CHUNK, Exit, Guest, HostFunction, host_function

SUCCESS, EBADF, EINVAL, ENOSYS, ESPIPE = 0, 8, 28, 52, 70
MAX_BUFFERS = 1024  # of one fd_read, fd_write or poll_oneoff, as IOV_MAX is elsewhere
MAX_RANDOM = 1 << 20  # bytes of one random_get
_STDIN, _STDOUT, _STDERR = range(3)
_READ, _WRITE = 1 << 1, 1 << 6  # rights
_RESOLUTION = 1_000_000  # ns
_SUBSCRIPTION, _EVENT = 48, 32  # bytes
_ABSOLUTE = 1  # a flag of a clock's subscription
_LONGEST = 3600.0  # seconds of one poll_oneoff; then the module asks again


# ── Streams ──


@host_function("i32 i32 i32 i32", "i32")
def fd_write(guest: Guest, fd: int, vectors: int, count: int, written: int) -> int:
    if fd not in (_STDOUT, _STDERR):
        return EBADF
    if not 0 <= count <= MAX_BUFFERS:
        return EINVAL
    data = bytearray()
    for pointer, size in struct.iter_unpack("<II", guest.read(vectors, 8 * count)):
        guest.check(pointer, size)
        data += guest.read(pointer, min(size, MAX_CHUNK - len(data)))
    guest.write_number(written, "I", len(data))
    if fd == _STDOUT:
        guest.add_stdout(bytes(data))
    else:
        guest.add_stderr(bytes(data))
    return SUCCESS


@host_function("i32 i32 i32 i32", "i32")
def fd_read(guest: Guest, fd: int, vectors: int, count: int, read: int) -> int:
    if fd != _STDIN:
        return EBADF
    if not 0 <= count <= MAX_BUFFERS:
        return EINVAL
    total = 0
    for pointer, size in struct.iter_unpack("<II", guest.read(vectors, 8 * count)):
        guest.check(pointer, size)
        piece = guest.take_stdin(size)
        guest.write(pointer, piece)
        total += len(piece)
    guest.write_number(read, "I", total)
    return SUCCESS


@host_function("i32 i32", "i32")
def fd_fdstat_get(guest: Guest, fd: int, stat: int) -> int:
    if fd not in (_STDIN, _STDOUT, _STDERR):
        return EBADF
    rights = _READ if fd == _STDIN else _WRITE
    guest.write_number(stat, "BxHxxxxQQ", 0, 0, rights, 0)  # of an unknown type, so that the C library buffers stdout
    return SUCCESS


@host_function("i32", "i32")
def fd_close(guest: Guest, fd: int) -> int:
    return SUCCESS if fd in (_STDIN, _STDOUT, _STDERR) else EBADF


@host_function("i32 i64 i32 i32", "i32")
def fd_seek(guest: Guest, fd: int, offset: int, whence: int, position: int) -> int:
    return ESPIPE if fd in (_STDIN, _STDOUT, _STDERR) else EBADF


@host_function("i32 i32", "i32")
def fd_prestat_get(guest: Guest, fd: int, stat: int) -> int:
    return EBADF  # no folder is open


# ── Arguments and environment ──


def _sizes(guest: Guest, texts: list[bytes], count: int, size: int) -> int:
    guest.write_number(count, "I", len(texts))
    guest.write_number(size, "I", sum(map(len, texts)))
    return SUCCESS


def _texts(guest: Guest, texts: list[bytes], pointers: int, buffer: int) -> int:
    for n, text in enumerate(texts):
        guest.write_number((pointers & 0xFFFFFFFF) + 4 * n, "I", buffer & 0xFFFFFFFF)
        guest.write(buffer, text)
        buffer += len(text)
    return SUCCESS


def _arguments(guest: Guest) -> list[bytes]:
    return [guest.sandbox.name.encode() + b"\0"]


def _environment(guest: Guest) -> list[bytes]:
    return [f"{name}={value}".encode() + b"\0" for name, value in guest.sandbox.env.items()]


@host_function("i32 i32", "i32")
def args_sizes_get(guest: Guest, count: int, size: int) -> int:
    return _sizes(guest, _arguments(guest), count, size)


@host_function("i32 i32", "i32")
def args_get(guest: Guest, pointers: int, buffer: int) -> int:
    return _texts(guest, _arguments(guest), pointers, buffer)


@host_function("i32 i32", "i32")
def environ_sizes_get(guest: Guest, count: int, size: int) -> int:
    return _sizes(guest, _environment(guest), count, size)


@host_function("i32 i32", "i32")
def environ_get(guest: Guest, pointers: int, buffer: int) -> int:
    return _texts(guest, _environment(guest), pointers, buffer)


# ── Clocks and random bytes: real ones only with the grant ──


def _clock(guest: Guest, clock: int) -> int | None:
    """Return the nanoseconds; None: there is no such clock."""
    if clock not in range(4):
        return None
    if not guest.sandbox.has_clock:
        return 0
    return (time.time_ns, time.monotonic_ns, time.thread_time_ns, time.thread_time_ns)[clock]()


@host_function("i32 i64 i32", "i32")
def clock_time_get(guest: Guest, clock: int, precision: int, found: int) -> int:
    now = _clock(guest, clock)
    if now is None:
        return EINVAL
    guest.write_number(found, "Q", now)
    return SUCCESS


@host_function("i32 i32", "i32")
def clock_res_get(guest: Guest, clock: int, found: int) -> int:
    if clock not in range(4):
        return EINVAL
    guest.write_number(found, "Q", _RESOLUTION)
    return SUCCESS


@host_function("i32 i32", "i32")
def random_get(guest: Guest, pointer: int, size: int) -> int:
    guest.check(pointer, size)
    if not 0 <= size <= MAX_RANDOM:
        return EINVAL
    guest.write(pointer, os.urandom(size) if guest.sandbox.has_random else guest.pseudo_random.randbytes(size))
    return SUCCESS


@host_function("i32 i32 i32 i32", "i32")
def poll_oneoff(guest: Guest, subscriptions: int, events: int, count: int, found: int) -> int:
    """Wait until a time, as sleep() does. Streams are always ready. Without a clock it returns at once."""
    if not 1 <= count <= MAX_BUFFERS:
        return EINVAL
    asked = guest.read(subscriptions, _SUBSCRIPTION * count)
    guest.check(events, _EVENT * count)
    waits = [_subscribed(guest, asked, at) for at in range(0, len(asked), _SUBSCRIPTION)]
    soonest = min(seconds for seconds, _ in waits)
    if soonest > 0 and guest.sandbox.has_clock:
        guest.interrupted.wait(soonest)
    ready = [event for seconds, event in waits if seconds <= soonest]
    guest.write(events, b"".join(ready))
    guest.write_number(found, "I", len(ready))
    return SUCCESS


def _subscribed(guest: Guest, asked: bytes, at: int) -> tuple[float, bytes]:
    """Return the seconds until it is ready, and the event that says so."""
    userdata, kind, clock, timeout, _, flags = struct.unpack_from("<QBxxxxxxxIxxxxQQH", asked, at)
    seconds = 0.0
    if kind == 0:
        now = (_clock(guest, clock) or 0) if flags & _ABSOLUTE else 0
        seconds = min(max(timeout - now, 0) / 1e9, _LONGEST)
    return seconds, struct.pack("<QHBxxxxxQHxxxxxx", userdata, SUCCESS, kind, 0, 0)


# ── The end ──


@host_function("i32")
def proc_exit(guest: Guest, code: int) -> None:
    raise Exit(code & 0xFFFFFFFF)


@host_function("", "i32")
def sched_yield(guest: Guest) -> int:
    return SUCCESS


# ── What a module may import, but gets no use of ──


def _refuses(params: str) -> HostFunction:
    return HostFunction(Signature(tuple(params.split()), ("i32",)), lambda guest, *_: ENOSYS)


FUNCTIONS: dict[str, HostFunction] = {
    name: found for name, found in globals().items() if isinstance(found, HostFunction)
} | {
    "fd_advise": _refuses("i32 i64 i64 i32"),
    "fd_allocate": _refuses("i32 i64 i64"),
    "fd_datasync": _refuses("i32"),
    "fd_fdstat_set_flags": _refuses("i32 i32"),
    "fd_fdstat_set_rights": _refuses("i32 i64 i64"),
    "fd_filestat_get": _refuses("i32 i32"),
    "fd_filestat_set_size": _refuses("i32 i64"),
    "fd_filestat_set_times": _refuses("i32 i64 i64 i32"),
    "fd_pread": _refuses("i32 i32 i32 i64 i32"),
    "fd_prestat_dir_name": _refuses("i32 i32 i32"),
    "fd_pwrite": _refuses("i32 i32 i32 i64 i32"),
    "fd_readdir": _refuses("i32 i32 i32 i64 i32"),
    "fd_renumber": _refuses("i32 i32"),
    "fd_sync": _refuses("i32"),
    "fd_tell": _refuses("i32 i32"),
    "path_create_directory": _refuses("i32 i32 i32"),
    "path_filestat_get": _refuses("i32 i32 i32 i32 i32"),
    "path_filestat_set_times": _refuses("i32 i32 i32 i32 i64 i64 i32"),
    "path_link": _refuses("i32 i32 i32 i32 i32 i32 i32"),
    "path_open": _refuses("i32 i32 i32 i32 i32 i64 i64 i32 i32"),
    "path_readlink": _refuses("i32 i32 i32 i32 i32 i32"),
    "path_remove_directory": _refuses("i32 i32 i32"),
    "path_rename": _refuses("i32 i32 i32 i32 i32 i32"),
    "path_symlink": _refuses("i32 i32 i32 i32 i32"),
    "path_unlink_file": _refuses("i32 i32 i32"),
    "proc_raise": _refuses("i32"),
    "sock_accept": _refuses("i32 i32 i32"),
    "sock_recv": _refuses("i32 i32 i32 i32 i32 i32"),
    "sock_send": _refuses("i32 i32 i32 i32 i32"),
    "sock_shutdown": _refuses("i32 i32"),
}
