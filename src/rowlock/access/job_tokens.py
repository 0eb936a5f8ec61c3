"""Tokens for one job. Every caller who sees a job can make them, so each maker has limits: in all, and for one job.

The counts are records that are written together with the token. They hold the ends of the tokens, so that expired
tokens don't count. A count expires with the last of its tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from datetime import datetime
from math import ceil

from msgspec import Struct

from rowlock.access import tokens
from rowlock.access.identity import Identity
from rowlock.errors import StoreBusy
from rowlock.stores.base import Store
from rowlock.stores.records import Record, Write

KIND = "job_tokens"
_TRIES = 30
_PAUSE = 0.02  # seconds, longer with each try


class Bound(Struct, frozen=True):
    """How many tokens of one maker may be valid at the same time."""

    in_all: int
    for_one_job: int


BY_RULE = Bound(100, 20)  # for a user whom a rule allows
BY_SCOPE = Bound(10_000, 100)  # for a token or a superuser


class TooMany(Exception):
    """The maker has `most` valid tokens. `seconds`: until the first of them expires."""

    def __init__(self, most: int, seconds: float, job: str | None) -> None:
        self.most = most
        self.seconds = ceil(seconds)
        self.job = job
        super().__init__(f"{most} job tokens")


async def create(
    store: Store, job_id: str, scopes: Sequence[str], *, maker: Identity, expires_at: datetime
) -> tuple[tokens.Token, str]:
    """Return a new token and its text. TooMany: the maker has reached a limit."""
    bound = BY_SCOPE if all(maker.has(scope) for scope in scopes) else BY_RULE
    name = hashlib.sha256(f"{maker.kind} {maker.id}".encode()).hexdigest()
    counts = {name: (bound.in_all, None), f"{name} {job_id}": (bound.for_one_job, job_id)}
    for n in range(_TRIES):
        now = await store.now()
        found = {record.id: record for record in await store.records(KIND, list(counts))}
        beside = [_counted(one, found.get(one), now, expires_at, *counts[one]) for one in counts]
        try:
            return await tokens.create(
                store, f"job {job_id}", scopes, by=maker.by, job=job_id, expires_at=expires_at, beside=beside
            )
        except tokens.Changed:  # a concurrent request of the same maker
            await asyncio.sleep(random.uniform(0, _PAUSE * (n + 1)))  # noqa: S311 - no secret
    raise StoreBusy("too many job tokens are made at the same moment")


def _counted(
    record_id: str, record: Record | None, now: datetime, expires_at: datetime, most: int, job: str | None
) -> Write:
    """Return the write of a count with one more token."""
    ends = sorted(end for end in ([] if record is None else record.data["ends"]) if end > now.timestamp())
    if len(ends) >= most:
        raise TooMany(most, ends[0] - now.timestamp(), job)
    ends.append(ceil(expires_at.timestamp()))
    until = datetime.fromtimestamp(max(ends), now.tzinfo)
    return Write(KIND, record_id, {"ends": ends}, revision=0 if record is None else record.revision, expires_at=until)
