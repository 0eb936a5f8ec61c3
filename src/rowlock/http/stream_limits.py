"""Limits for open streams, so that no caller takes all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rowlock.http.call import Call
from rowlock.http.problems import Problem

MOST = 1000  # streams of this process
RESERVED = 100  # of them for superusers, who must get in when all others are taken
MOST_OF_ONE = 200  # of one token or superuser
MOST_BY_RULE = 50  # of one user, one anonymous address, or one token for one job
_AGAIN = {"retry-after": "5"}


class StreamLimits:
    """For one event loop."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def take(self, call: Call) -> Callable[[], None]:
        """Take a place, and return a function that gives it back, once. Raise a 429 if there is none."""
        who, identity = call.place, call.identity
        own = MOST_OF_ONE if identity.has("read") and identity.job is None else MOST_BY_RULE
        if self._of[who] >= own:
            text = f"you have {own} streams open: close one, or watch more by one stream (several topic=… or id=…)"
            raise Problem("too_many_streams", text, headers=_AGAIN)
        most = MOST if identity.kind == "superuser" else MOST - RESERVED
        if self._of.total() >= most:
            text = f"all {most} streams of this server are taken: try again later, or ask another server"
            raise Problem("streams_taken", text, headers=_AGAIN)
        self._of[who] += 1
        is_taken = True

        def give_back() -> None:
            nonlocal is_taken
            if is_taken:
                is_taken = False
                self._of -= Counter([who])  # forgets the name at 0

        return give_back

    def __len__(self) -> int:
        return self._of.total()
