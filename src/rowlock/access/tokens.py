"""API tokens. A token has scopes, and may be limited to topics, to one job, to the jobs of one scope, or in time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from rowlock.access import secrets
from rowlock.access.identity import SCOPES, Identity, with_implied
from rowlock.core.codec import check_text
from rowlock.core.job import MAX_TEXT, check_time, check_topic
from rowlock.errors import InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.records import Entry, Record, Write

KIND = "token"
LONGEST_NAME = 100  # characters
MOST_TOPICS = 100
_TOUCH = timedelta(minutes=1)  # between two writes of `last_used`
_BATCH = 1000  # records that are read at once
_NO_JOB = "-"  # in the record of a token for a scope: a release that doesn't know scopes finds no job for it


class Changed(Exception):
    """A record that is written together with a token was changed by another request."""


class Token(Struct, frozen=True):
    """A token without its text, which is not stored. `job`: it is for this job alone. `scope` and `scope_id`: it is for
    the jobs that have these. `enqueue`: topics of which it may add jobs to that scope."""

    id: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    job: str | None
    scope: str | None
    scope_id: str | None
    enqueue: tuple[str, ...] | None
    created: datetime
    created_by: str
    expires_at: datetime | None
    last_used: datetime | None


def from_record(record: Record) -> Token:
    data = record.data
    topics, enqueue = (None if data.get(name) is None else tuple(data[name]) for name in ("topics", "enqueue"))
    used = None if data["used"] is None else datetime.fromisoformat(data["used"])
    job = None if data["job"] == _NO_JOB else data["job"]
    return Token(
        record.id, data["name"], tuple(data["scopes"]), topics, job, data.get("scope"), data.get("scope_id"),
        enqueue, record.created, data["by"], record.expires_at, used,
    )  # fmt: skip


def identity(token: Token) -> Identity:
    return Identity(
        kind="token",
        id=token.id,
        name=token.name,
        scopes=with_implied(frozenset(token.scopes)),
        topics=token.topics,
        job=token.job,
        maker="" if token.job is None else token.created_by,
        jobs_of=None if token.scope is None else (token.scope, token.scope_id or ""),  # no job has ''
        enqueues=token.enqueue,
        expires_at=token.expires_at,
    )


async def create(
    store: Store,
    name: str,
    scopes: Sequence[str],
    *,
    by: str,
    reason: str | None = None,
    topics: Sequence[str] | None = None,
    job: str | None = None,
    scope: str | None = None,
    scope_id: str | None = None,
    enqueue: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    maker: str | None = None,
    beside: Sequence[Write] = (),
) -> tuple[Token, str]:
    """Return a new token and its text, which is not stored. `maker`: by which `every` and `revoke` find it. `beside`:
    writes in the same transaction; if one of them fails, raise Changed."""
    given = tuple(dict.fromkeys(scopes))
    if not given:
        raise InvalidInput("scopes", "empty", f"name at least one of {', '.join(SCOPES)}")
    if unknown := [scope for scope in given if scope not in SCOPES]:
        raise InvalidInput("scopes", "unknown_scope", f"{unknown[0]!r:.40} is none of {', '.join(SCOPES)}")
    bounds = {
        "topics": _check_topics(topics, "topics"), "job": job, "scope": _check_scope(scope, "scope"),
        "scope_id": _check_scope(scope_id, "scope_id"), "enqueue": _check_topics(enqueue, "enqueue"),
    }  # fmt: skip
    if "admin" in given and any(bound is not None for bound in bounds.values()):
        raise InvalidInput("topics", "admin_is_unbounded", "the scope admin can't be limited to topics")
    until = None if expires_at is None else check_time(expires_at, "expires_at")
    if until is not None and until <= await store.now():
        raise InvalidInput("expires_at", "past", "is in the past")
    issued = secrets.issue(KIND)
    told = {"name": check_text(name, "name", max_chars=LONGEST_NAME), "scopes": list(given), **bounds}
    data = {**told, "hash": issued.hash, "by": by, "maker": maker, "used": None}
    if scope is not None:
        data["job"] = _NO_JOB
    writes = [Write(KIND, issued.id, data, revision=0, expires_at=until), *beside]
    entry = Entry(by, "token.create", reason=reason, data={"token": issued.id, **told})
    if not await store.write_records(writes, entry):
        raise Changed
    found = await store.records(KIND, [issued.id])
    if not found:
        raise InvalidInput("expires_at", "past", "came while the token was made: choose a later time")
    return from_record(found[0]), issued.text


def _check_topics(topics: Sequence[str] | None, field: str) -> list[str] | None:
    if topics is None:
        return None
    if isinstance(topics, str):
        raise InvalidInput(field, "not_a_list", f"is a list of topics: [{topics!r:.80}]")
    try:
        checked = list(dict.fromkeys(check_topic(topic) for topic in topics))
    except InvalidInput as error:
        raise InvalidInput(field, error.code, error.problem) from None
    if not 1 <= len(checked) <= MOST_TOPICS:
        otherwise = "for all" if field == "topics" else "for none"
        raise InvalidInput(field, "out_of_range", f"name 1 to {MOST_TOPICS} topics, or leave it out {otherwise}")
    return checked


def _check_scope(text: str | None, field: str) -> str | None:
    return None if text is None else check_text(text, field, max_chars=MAX_TEXT)


async def touch(store: Store, record: Record, now: datetime) -> None:
    """Record that a token is in use. A revoked token stays revoked."""
    used = record.data["used"]
    if used is None or now - datetime.fromisoformat(used) >= _TOUCH:
        data = {**record.data, "used": now.isoformat()}
        await store.write_records(
            [Write(KIND, record.id, data, revision=record.revision, expires_at=record.expires_at)]
        )


async def revoke(store: Store, token_id: str, *, by: str, reason: str | None = None, maker: str | None = None) -> bool:
    """Revoke a token. Return False if there is none (any more). `maker`: only if it has made the token."""
    if not secrets.is_id(token_id):
        return False
    if maker is not None and not any(one.data.get("maker") == maker for one in await store.records(KIND, [token_id])):
        return False
    entry = Entry(by, "token.revoke", reason=reason, data={"token": token_id})
    return await store.write_records([Write(KIND, token_id, None)], entry)


async def every(
    store: Store, *, after: str | None = None, limit: int | None = None, maker: str | None = None
) -> list[Token]:
    """Return tokens in the order of their ids, after the id `after`. `maker`: only those that it has made."""
    found: list[Token] = []
    batch = _BATCH if limit is None or maker is not None else limit
    while True:
        records = await store.records(KIND, after=after, limit=batch)
        found += [from_record(one) for one in records if maker is None or one.data.get("maker") == maker]
        if len(records) < batch or (limit is not None and len(found) >= limit):
            return found[:limit]
        after = records[-1].id


async def revoke_scope(store: Store, scope: str, scope_id: str, *, by: str, reason: str | None = None) -> int:
    """Revoke all tokens for the jobs of this scope. Return how many there were."""
    found = [one.id for one in await every(store) if (one.scope, one.scope_id) == (scope, scope_id)]
    return sum([await revoke(store, token_id, by=by, reason=reason) for token_id in found])
