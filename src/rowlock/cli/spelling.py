"""Suggest a known word for a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rowlock.errors import RowlockError

if TYPE_CHECKING:  # listing the commands must not load the client
    from rowlock.jobs import Jobs

_LIKE = 0.6  # how alike two words must be, from 0 to 1
_LIKE_A_TOPIC = 0.8  # a new topic may well resemble another one


def did_you_mean(word: str, known: Iterable[str], *, likeness: float = _LIKE) -> str:
    """Return " Did you mean …?", to append to a sentence, or an empty text."""
    close = get_close_matches(word, list(known), n=1, cutoff=likeness)
    return f" Did you mean {close[0]!r}?" if close else ""


async def guess_topic(jobs: Jobs, topic: str, others: Iterable[str] = ()) -> str | None:
    """Return a suggestion for a topic that no job and no worker has, "" if no known topic resembles it. Return None if
    the topic is known, or if the database does not answer. `others`: more words that may be meant."""
    try:
        known = {name for worker in await jobs.workers.list() for name in worker.topics}
        if topic in known:  # the usual case: no need to count jobs
            return None
        known |= (await jobs.stats()).topics.keys()
    except RowlockError:  # a suggestion must not make the command fail
        return None
    return None if topic in known else did_you_mean(topic, known.union(others), likeness=_LIKE_A_TOPIC)
