"""Guesses what was meant by a word that nothing knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rowlock.errors import RowlockError

if TYPE_CHECKING:  # a list of commands loads no database
    from rowlock.jobs import Jobs

_LIKE = 0.6  # how alike two words must be, from 0 to 1
_LIKE_A_TOPIC = 0.8  # a new topic may well resemble another one


def did_you_mean(word: str, known: Iterable[str], *, likeness: float = _LIKE) -> str:
    """Return " Did you mean …?", to follow a sentence, or nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=likeness)
    return f" Did you mean {close[0]!r}?" if close else ""


async def guess_topic(jobs: Jobs, topic: str) -> str | None:
    """Return what may have been meant by a topic that no job and no worker has: "" if nothing resembles it. None: the
    topic is known, or the database could not say."""
    try:
        known = {name for worker in await jobs.workers() for name in worker.topics}
        if topic in known:  # the usual case, in which nothing needs to be counted
            return None
        known |= (await jobs.stats()).topics.keys()
    except RowlockError:  # a guess is no reason to fail
        return None
    return None if topic in known else did_you_mean(topic, known, likeness=_LIKE_A_TOPIC)
