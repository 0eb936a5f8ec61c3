"""The functions of rowlock that a module may import, as the module `rowlock`. docs/wasm.md and examples/wasm/rowlock.h
describe them for authors of modules."""

from __future__ import annotations

from datetime import datetime
from math import isfinite, isnan
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rowlock.core.debounce import Window
from rowlock.core.templates import IfLive
from rowlock.errors import Final, InvalidInput, RowlockError, Snooze, StoreError
from rowlock.wasm.guest import MAX_OUTPUT, Guest, HostFunction, ModuleFailed, host_function

LEVELS = ("debug", "info", "warning", "error")
LEAST_ANSWER = 128  # bytes: room for the id, or for an error's code
MAX_ENQUEUES = 1000  # in one run


@host_function("f64 i32 i32")
def progress(guest: Guest, percent: float, message: int, size: int) -> None:
    text = guest.text(message, size)
    guest.ctx.progress(None if isnan(percent) else percent, message=text or None)


@host_function("i32 i32 i32")
def log(guest: Guest, level: int, message: int, size: int) -> None:
    text = guest.text(message, size)
    if level not in range(len(LEVELS)):
        raise ModuleFailed(f"it called rowlock.log with the level {level}: 0 to 3 are {', '.join(LEVELS)}")
    guest.ctx.log(text, level=LEVELS[level])


@host_function("", "i32")
def cancelled(guest: Guest) -> int:
    return int(guest.ctx.cancelled)


@host_function("i32 i32")
def fail(guest: Guest, message: int, size: int) -> None:
    raise Final(guest.text(message, size) or "the module says that it has failed for good")


@host_function("f64")
def snooze(guest: Guest, seconds: float) -> None:
    if not isfinite(seconds) or seconds < 0:
        raise ModuleFailed(f"it called rowlock.snooze with {seconds} seconds: 0 or more are allowed")
    raise Snooze(seconds)


class Asked(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that the module enqueues. It has no scope and no trace: it inherits those of its own job."""

    topic: str
    payload: dict[str, Any] = {}
    id: str | UnsetType = UNSET
    run_at: datetime | UnsetType = UNSET
    delay: float | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET
    priority: int | str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    version: int | UnsetType = UNSET
    if_live: IfLive | UnsetType = UNSET
    debounce: Window | UnsetType = UNSET
    throttle: float | UnsetType = UNSET


_decode = msgspec.json.Decoder(Asked).decode


@host_function("i32 i32 i32 i32", "i32")
def enqueue(guest: Guest, asked: int, size: int, answer: int, room: int) -> int:
    """Return the length of the answer; below 0: of an error. The pointers are checked first: no job may be enqueued
    whose answer can't be given."""
    guest.check(asked, size)
    guest.check(answer, room)
    room &= 0xFFFFFFFF
    if room < LEAST_ANSWER:
        raise ModuleFailed(f"it gave rowlock.enqueue room for an answer of {room} bytes: give at least {LEAST_ANSWER}")
    try:
        told = _enqueue(guest, asked, size)
    except StoreError:
        raise
    except InvalidInput as error:
        told = _error(error.code, str(error), room)
        sign = -1
    except RowlockError as error:
        told = _error(type(error).__name__, str(error), room)
        sign = -1
    else:
        sign = 1
    guest.write(answer, told)
    return sign * len(told)


def _enqueue(guest: Guest, asked: int, size: int) -> bytes:
    if not 0 <= size <= 2 * MAX_OUTPUT:
        raise InvalidInput("job", "too_large", f"must be at most {2 * MAX_OUTPUT:,} bytes of JSON")
    try:
        job = _decode(guest.read(asked, size))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput("job", "bad_json", str(error)) from None
    if job.topic not in guest.sandbox.topics:
        granted = ", ".join(sorted(guest.sandbox.topics))
        raise InvalidInput(
            "topic", "not_granted", f"{job.topic!r:.80} is none of those that the module may enqueue: {granted}"
        )
    if guest.enqueued >= MAX_ENQUEUES:
        raise InvalidInput("job", "too_many", f"one run may enqueue {MAX_ENQUEUES:,} jobs")
    options = {name: value for name in Asked.__struct_fields__[2:] if (value := getattr(job, name)) is not UNSET}
    made = guest.ctx.enqueue(job.topic, job.payload, **options)
    guest.enqueued += 1
    return msgspec.json.encode({"id": made.id, "existing": made.existing})


def _error(code: str, message: str, room: int) -> bytes:
    """Return the error as JSON, with as much of its message as there is room for."""
    told = msgspec.json.encode({"code": code, "message": message})
    while len(told) > room:
        message = message[: len(message) // 2]
        told = msgspec.json.encode({"code": code, "message": message})
    return told


FUNCTIONS: dict[str, HostFunction] = {
    name: found for name, found in globals().items() if isinstance(found, HostFunction)
}
