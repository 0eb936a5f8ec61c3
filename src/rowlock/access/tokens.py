"""API tokens for programs. A token has scopes, and may be limited to topics, to one job, or in time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from rowlock.access import secrets
from rowlock.access.identity import SCOPES, Identity, with_implied
from rowlock.core.codec import check_text
from rowlock.core.job import check_time, check_topic
from rowlock.errors import InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.records import Entry, Record, Write

KIND = "token"
MOST_TOPICS = 100
_TOUCH = timedelta(minutes=1)  # between two writes of `last_used`


class Changed(Exception):
    """A record that is written together with a token was changed by another request."""


class Token(Struct, frozen=True):
    """A token without its text, which is not stored."""

    id: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    job: str | None
    created: datetime
    created_by: str
    expires_at: datetime | None
    last_used: datetime | None


def from_record(record: Record) -> Token:
    data = record.data
    topics = None if data["topics"] is None else tuple(data["topics"])
    used = None if data["used"] is None else datetime.fromisoformat(data["used"])
    return Token(
        record.id, data["name"], tuple(data["scopes"]), topics, data["job"],
        record.created, data["by"], record.expires_at, used,
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
    expires_at: datetime | None = None,
    beside: Sequence[Write] = (),
) -> tuple[Token, str]:
    """Return a new token and its text, which is not stored. `beside`: writes in the same transaction; if one of them
    fails, raise Changed."""
    given = tuple(dict.fromkeys(scopes))
    if not given:
        raise InvalidInput("scopes", "empty", f"name at least one of {', '.join(SCOPES)}")
    if unknown := [scope for scope in given if scope not in SCOPES]:
        raise InvalidInput("scopes", "unknown_scope", f"{unknown[0]!r:.40} is none of {', '.join(SCOPES)}")
    only = None if topics is None else _check_topics(topics)
    if only is not None and not 1 <= len(only) <= MOST_TOPICS:
        raise InvalidInput("topics", "out_of_range", f"name 1 to {MOST_TOPICS} topics, or leave it out for all")
    if "admin" in given and (only is not None or job is not None):
        raise InvalidInput("topics", "admin_is_unbounded", "the scope admin can't be limited to topics")
    until = None if expires_at is None else check_time(expires_at, "expires_at")
    if until is not None and until <= await store.now():
        raise InvalidInput("expires_at", "past", "is in the past")
    issued = secrets.issue(KIND)
    data = {
        "hash": issued.hash, "name": check_text(name, "name", max_chars=100), "scopes": list(given),
        "topics": None if only is None else list(only), "job": job, "by": by, "used": None,
    }  # fmt: skip
    told = {"token": issued.id, **{key: data[key] for key in ("name", "scopes", "topics", "job")}}
    writes = [Write(KIND, issued.id, data, revision=0, expires_at=until), *beside]
    if not await store.write_records(writes, Entry(by, "token.create", reason=reason, data=told)):
        raise Changed
    found = await store.records(KIND, [issued.id])
    if not found:
        raise InvalidInput("expires_at", "past", "came while the token was made: choose a later time")
    return from_record(found[0]), issued.text


def _check_topics(topics: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(check_topic(topic) for topic in topics))
    except InvalidInput as error:
        raise InvalidInput("topics", error.code, error.problem) from None


async def touch(store: Store, record: Record, now: datetime) -> None:
    """Record that a token is in use. A revoked token stays revoked."""
    used = record.data["used"]
    if used is None or now - datetime.fromisoformat(used) >= _TOUCH:
        data = {**record.data, "used": now.isoformat()}
        await store.write_records(
            [Write(KIND, record.id, data, revision=record.revision, expires_at=record.expires_at)]
        )


async def revoke(store: Store, token_id: str, *, by: str, reason: str | None = None) -> bool:
    """Revoke a token. Return False if there is none (any more)."""
    entry = Entry(by, "token.revoke", reason=reason, data={"token": token_id})
    return secrets.is_id(token_id) and await store.write_records([Write(KIND, token_id, None)], entry)


async def every(store: Store, *, after: str | None = None, limit: int | None = None) -> list[Token]:
    """Return tokens in the order of their ids, after the id `after`."""
    return [from_record(record) for record in await store.records(KIND, after=after, limit=limit)]
