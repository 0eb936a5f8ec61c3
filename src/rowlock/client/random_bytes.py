"""Random bytes for ids, read for many ids at once: a system call per id would cost more than the rest of the id."""

from __future__ import annotations

import os
from collections import deque

_PIECE = 8  # bytes of one id
_PIECES = 256  # per call of the system

_stock: deque[bytes] = deque()  # its pop() is atomic: no two threads get the same piece


def noise(count: int) -> bytes:
    if count != _PIECE:
        return os.urandom(count)
    try:
        return _stock.pop()
    except IndexError:
        drawn = os.urandom(_PIECE * _PIECES)
        _stock.extend(drawn[at : at + _PIECE] for at in range(_PIECE, len(drawn), _PIECE))
        return drawn[:_PIECE]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stock.clear)  # the parent will use these bytes
