"""UUIDv7 (RFC 9562): time first, so that ids sort by creation and index pages fill in order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from rowlock.errors import InvalidInput

# Seconds by which the time in an id may differ from its job's `created`. Ids that callers make may say anything, and
# clocks are wrong at times: such a job is marked as a stray, so that the others can be found by their ids' time.
STRAY = 3600.0

_SEQUENCE_BITS = 12
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_SEQUENCES = [f"{n:03x}" for n in range(1 << _SEQUENCE_BITS)]


class IdMaker:
    """Makes ids that grow strictly within one maker, also within a millisecond.

    The 12 bits behind the version number count within the millisecond; a burst of more than 4,096 ids borrows from
    the next milliseconds (RFC 9562 §6.2). 60 random bits keep makers in different processes apart, also after fork(),
    and two threads that happen to share a count.
    """

    def __init__(self, time_ns: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._time_ns = time_ns
        self._random_bytes = random_bytes
        self._last = 0

    def many(self, count: int) -> list[str]:
        first = max(self._last + 1, self._time_ns() // 1_000_000 << _SEQUENCE_BITS)
        self._last = first + count - 1
        noise = self._random_bytes(8 * count).hex()
        ids: list[str] = []
        add = ids.append
        prefix = ""
        for i in range(count):
            sequence = first + i & 0xFFF
            if not sequence or not i:  # a new millisecond
                clock = f"{first + i >> _SEQUENCE_BITS:012x}"
                prefix = f"{clock[:8]}-{clock[8:]}-7"
            n = i * 16
            add(f"{prefix}{_SEQUENCES[sequence]}-8{noise[n : n + 3]}-{noise[n + 3 : n + 15]}")
        return ids

    def one(self) -> str:
        return self.many(1)[0]


def first_id(at: datetime, shift: timedelta = timedelta(0)) -> str:
    """The smallest id of that millisecond."""
    clock = f"{min(max((at - _EPOCH + shift) // _MILLISECOND, 0), (1 << 48) - 1):012x}"
    return f"{clock[:8]}-{clock[8:]}-0000-0000-000000000000"


def check_id(value: object) -> str:
    """The canonical text of a caller's own id. Any UUID will do; v7 keeps the archive in order."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        try:
            return str(UUID(value))
        except ValueError:
            pass
    raise InvalidInput("id", "bad_id", f"must be a UUID, not {value!r:.80}")
