"""Short-lived tokens: for one job, or for the jobs of one scope, mostly in a browser.

Every caller who sees a job can make tokens for it, and a page makes a new one each time it is loaded. So each maker has
limits: in all, and for one job or scope. The counts are records that are written together with the token. They hold how
many tokens end when, so that expired tokens don't count. A count expires with the last of its tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from rowlock.access import tokens
from rowlock.access.identity import Identity
from rowlock.core.ids import check_id
from rowlock.core.job import Job
from rowlock.errors import InvalidInput, JobNotFound, StoreBusy, TooManyTokens
from rowlock.stores.base import Store
from rowlock.stores.records import Record, Write

KIND = "token_counts"
SHORTEST, LONGEST = 1.0, 86_400.0  # seconds that a token may be valid
USUAL = 900.0
_TRIES = 30
_PAUSE = 0.02  # seconds, longer with each try
_PARTS = 64  # an end is rounded up by less than this part of the token's life, so that a count stays small


# Requests in one process take turns: they write the same count, and would only make each other fail.
_turns: WeakKeyDictionary[Store, asyncio.Lock] = WeakKeyDictionary()


class Bound(Struct, frozen=True):
    """The number of tokens of one maker that may be valid at the same time."""

    in_all: int
    for_one: int  # job or scope


BY_RULE = Bound(100, 20)  # for a user whom a rule allows
BY_SCOPE = Bound(100_000, 100)  # for a program, a token or a superuser


class Maker(Struct, frozen=True):
    """A caller that makes tokens. `id` names it among all makers, `by` in the audit. Its tokens stay within its own
    `topics`, and end no later than it does."""

    id: str
    by: str
    topics: tuple[str, ...] | None = None
    ends: datetime | None = None
    bound: Bound | None = None  # None: BY_SCOPE


def maker_of(identity: Identity, bound: Bound | None = None) -> Maker:
    return Maker(f"{identity.kind} {identity.id}", identity.by, identity.topics, identity.expires_at, bound)


async def create_for_browser(
    store: Store,
    *,
    maker: Maker,
    seconds: float,
    job: str | None = None,
    scope: str | None = None,
    scope_id: str | None = None,
    enqueue: Sequence[str] | None = None,
    cancel: bool = False,
    name: str | None = None,
    reason: str | None = None,
) -> tuple[tokens.Token, str]:
    """Return a new token and its text. It sees one job, or the jobs of one scope; it may `cancel` them, and `enqueue`
    jobs of these topics in this scope."""
    if job is not None:
        if scope is not None or scope_id is not None:
            raise InvalidInput("job", "both_given", "give either job, or scope and scope_id")
        if enqueue:
            raise InvalidInput(
                "enqueue", "both_given", "a token for one job can't enqueue others: give a scope instead"
            )
        job = await _existing(store, job, maker)
    else:
        for field, value in (("scope", scope), ("scope_id", scope_id)):
            if value is None:
                raise InvalidInput(field, "missing", "give scope and scope_id, or job: the jobs that the token is for")
    scopes = ["read", *(["cancel"] if cancel else []), *(["enqueue"] if enqueue else [])]
    return await create(
        store, scopes, maker=maker, seconds=seconds, job=job, scope=scope, scope_id=scope_id, enqueue=enqueue or None,
        name=name, reason=reason,
    )  # fmt: skip


async def _existing(store: Store, job: str, maker: Maker) -> str:
    job_id = check_id(job, "job")
    found = (await store.read([job_id], Job)).get(job_id)
    if found is None or (maker.topics is not None and found.topic not in maker.topics):
        raise JobNotFound(job_id)
    return job_id


async def create(
    store: Store,
    scopes: Sequence[str],
    *,
    maker: Maker,
    seconds: float,
    job: str | None = None,
    scope: str | None = None,
    scope_id: str | None = None,
    enqueue: Sequence[str] | None = None,
    name: str | None = None,
    reason: str | None = None,
) -> tuple[tokens.Token, str]:
    """Return a new token and its text. TooManyTokens: the maker has reached a limit."""
    bound = maker.bound or BY_SCOPE
    about = ["job", job] if job is not None else ["scope", scope, scope_id]
    counts = {_name(maker.id): (bound.in_all, False), _name(maker.id, *about): (bound.for_one, True)}
    known_as = name or (f"job {job}" if job is not None else f"for {scope} {scope_id}"[: tokens.LONGEST_NAME])
    async with _turns.setdefault(store, asyncio.Lock()):
        for n in range(_TRIES):
            now = await store.now()
            ends = now + timedelta(seconds=seconds)
            ends = ends if maker.ends is None else min(ends, maker.ends)
            found = {record.id: record for record in await store.records(KIND, list(counts))}
            beside = [_counted(one, found.get(one), now, ends, *counts[one]) for one in counts]
            try:
                return await tokens.create(
                    store, known_as, scopes, by=maker.by, reason=reason, topics=maker.topics, job=job, scope=scope,
                    scope_id=scope_id, enqueue=enqueue, expires_at=ends, maker=maker.id, beside=beside,
                )  # fmt: skip
            except tokens.Changed:  # by another process, for the same maker
                await asyncio.sleep(random.uniform(0, _PAUSE * (n + 1)))  # noqa: S311 - no secret
    raise StoreBusy("too many tokens are made at the same moment")


def _name(*parts: str | None) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _counted(name: str, record: Record | None, now: datetime, ends: datetime, most: int, for_one: bool) -> Write:
    """Return the write of a count with one more token."""
    before = {} if record is None else record.data["ends"]
    counts = {int(end): count for end, count in before.items() if int(end) > now.timestamp()}
    if sum(counts.values()) >= most:
        raise TooManyTokens(most, min(counts) - now.timestamp(), for_one=for_one)
    end = _rounded(ends.timestamp(), (ends - now).total_seconds())
    counts[end] = counts.get(end, 0) + 1
    data = {"ends": {str(end): count for end, count in sorted(counts.items())}}
    until = datetime.fromtimestamp(max(counts), now.tzinfo)
    return Write(KIND, name, data, revision=0 if record is None else record.revision, expires_at=until)


def _rounded(end: float, life: float) -> int:
    step = max(1, int(life / _PARTS))
    return ceil(end / step) * step
