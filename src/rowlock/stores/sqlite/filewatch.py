"""Sleep until a file is written to, by the system's own means: inotify on Linux, kqueue on macOS and BSD."""

from __future__ import annotations

import ctypes
import os
import select
from contextlib import suppress
from typing import Protocol

_IN_MODIFY = 0x2
_READ = 4096


class FileWatch(Protocol):
    """For one thread that waits; any thread may call `wake`."""

    def wait(self, timeout: float) -> bool:
        """Return True if the file was written to, perhaps several times, or `wake` was called."""
        ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


def watch(path: str) -> FileWatch | None:
    """Return a watch; None where the system has no means, or refuses: too many watches, no such file."""
    try:
        return _Kqueue(path) if hasattr(select, "kqueue") else _Inotify(path)
    except (OSError, AttributeError):
        pass
    return None


class _Inotify:
    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._events < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self._events, os.fsencode(path), _IN_MODIFY) < 0:
            os.close(self._events)
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        self._hears, self._says = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # type: ignore[attr-defined, unused-ignore]

    def wait(self, timeout: float) -> bool:
        ready, _, _ = select.select([self._events, self._hears], [], [], timeout)
        for descriptor in ready:
            with suppress(BlockingIOError):
                while len(os.read(descriptor, _READ)) == _READ:
                    pass
        return bool(ready)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full of wake-ups
            os.write(self._says, b"w")

    def close(self) -> None:
        for descriptor in (self._events, self._hears, self._says):
            os.close(descriptor)


class _Kqueue:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        try:
            self._queue = select.kqueue()  # type: ignore[attr-defined, unused-ignore]
            self._queue.control([self._written(), self._called(select.KQ_EV_ADD | select.KQ_EV_CLEAR)], 0)  # type: ignore[attr-defined, unused-ignore]
        except BaseException:
            os.close(self._file)
            raise

    def wait(self, timeout: float) -> bool:
        return bool(self._queue.control(None, 4, timeout))

    def wake(self) -> None:
        self._queue.control([self._called(0, select.KQ_NOTE_TRIGGER)], 0)  # type: ignore[attr-defined, unused-ignore]

    def close(self) -> None:
        self._queue.close()
        os.close(self._file)

    def _written(self) -> object:
        return select.kevent(  # type: ignore[attr-defined, unused-ignore]
            self._file,
            filter=select.KQ_FILTER_VNODE,  # type: ignore[attr-defined, unused-ignore]
            flags=select.KQ_EV_ADD | select.KQ_EV_CLEAR,  # type: ignore[attr-defined, unused-ignore]
            fflags=select.KQ_NOTE_WRITE | select.KQ_NOTE_EXTEND,  # type: ignore[attr-defined, unused-ignore]
        )

    def _called(self, flags: int, fflags: int = 0) -> object:
        return select.kevent(1, filter=select.KQ_FILTER_USER, flags=flags, fflags=fflags)  # type: ignore[attr-defined, unused-ignore]
