"""Messages between a worker and its child processes: MessagePack structs, each preceded by its length.

Nothing is pickled: a message can carry data, never code.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from rowlock.context import Interruption
from rowlock.core.job import Job
from rowlock.core.steps import StepMark

MAX_MESSAGE = 64 << 20  # bytes; a job has a few MiB at most: other code has written into the socket
ORPHANED = 70  # exit code of a child that can't talk to its worker any more
_LENGTH = 4

M = TypeVar("M")

# ── To the child ──


class Setup(Struct, tag="setup"):
    """The first message: it makes the child's interpreter like the worker's. `app` is "module:attribute"; `main_path`
    or `main_name` tell how the worker's own program was started."""

    path: list[bytes]  # names of files need not be Unicode
    argv: list[bytes]
    app: str | None = None
    main_path: bytes | None = None
    main_name: str | None = None


class Load(Struct, tag="load"):
    """Import the code of handlers of this module, so that the first job does not wait for that."""

    module: str


class Start(Struct, tag="start"):
    """Run this job. `module` and `qualname` are the handler's. `url` tells its Jobs from other Jobs with the same
    topic. `began` and `until` are by time.monotonic(), which both processes share. `until`: the lease ends then if it
    is not renewed, so the handler must not begin later. `number` tells a child's runs apart: a thread that one handler
    has left behind must not report for the next run."""

    number: int
    job: Job
    module: str
    qualname: str
    url: str
    began: float
    lease: float
    until: float


class Interrupt(Struct, tag="interrupt"):
    why: Interruption


ToChild = Setup | Load | Start | Interrupt

# ── From the child, while a job runs ──


class Taken(Struct, tag="taken"):
    """The child has taken the job: from now on the job is charged if the child dies."""


class Looks(Struct, tag="looks"):
    number: int


class Committed(Struct, tag="committed"):
    """The handler has completed the job in its own transaction."""

    number: int


class Said(Struct, tag="said"):
    number: int
    percent: float | None = None
    stage: str | None = None
    message: str | None = None
    beat: bool = False


class Line(Struct, tag="line"):
    number: int
    level: str
    text: str


class Marked(Struct, tag="marked"):
    number: int
    mark: StepMark


class Unmarked(Struct, tag="unmarked"):
    number: int
    name: str
    n: int


class Shielded(Struct, tag="shielded"):
    """A step that can't be cancelled begins (1), or has ended (-1)."""

    number: int
    change: int


class CancelHeard(Struct, tag="cancel_heard"):
    """The handler knows that its job is cancelled."""

    number: int


# ── From the child, at the end of a job ──


class Returned(Struct, tag="returned"):
    result: str | None  # canonical JSON text


class Raised(Struct, tag="raised"):
    error: str
    final: bool = False


class Away(Struct, tag="away"):
    """The jobs' own database went away while the handler used it."""

    error: str


class Suspended(Struct, tag="suspended"):
    """A step is tried again after `delay` seconds."""

    delay: float
    error: str
    step: str


class Waiting(Struct, tag="waiting"):
    """See core.lifecycle.Waits."""

    waits_for: str
    seconds: float | None
    seen: int
    undoes: bool


class Later(Struct, tag="later"):
    until: float | datetime


class Stopped(Struct, tag="stopped"):
    reason: str | None


class Missing(Struct, tag="missing"):
    """The handler was not found. The child may have loaded only a part of the application, so it is not used again."""

    error: str


class TooLate(Struct, tag="too_late"):
    """The handler was not called: the lease was over, as far as the child knows. The worker knows whether the lease was
    renewed. A frozen worker can't tell the child."""


Answer = Returned | Raised | Away | Suspended | Waiting | Later | Stopped | Missing | TooLate
FromHandler = Looks | Committed | Said | Line | Marked | Unmarked | Shielded | CancelHeard
FromChild = Taken | FromHandler | Answer

_encode = msgspec.msgpack.Encoder().encode


def frame(message: ToChild | FromChild) -> bytes:
    data = _encode(message)
    return len(data).to_bytes(_LENGTH, "big") + data


class Inbox(Generic[M]):
    """Puts messages together again from the pieces that a socket delivers."""

    def __init__(self, kinds: Any) -> None:
        self._decode: Any = msgspec.msgpack.Decoder(kinds).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Yield the messages that are complete now. Raise ValueError if the data can't be messages."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _LENGTH:
                size = int.from_bytes(buffer[start : start + _LENGTH], "big")
                if size > MAX_MESSAGE:
                    raise ValueError(f"a message of {size:,} bytes")
                if len(buffer) - start < _LENGTH + size:
                    break
                body = bytes(buffer[start + _LENGTH : start + _LENGTH + size])
                start += _LENGTH + size
                yield self._decode(body)
        finally:
            del buffer[:start]
