"""Sessions of superusers in browsers. They are stored in the database, so that they can be listed and ended."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from rowlock.access import secrets
from rowlock.access.superusers import Superuser
from rowlock.stores.base import Store
from rowlock.stores.records import Entry, Record, Write

KIND = "session"
IDLE, ABSOLUTE = timedelta(minutes=30), timedelta(hours=12)
_TOUCH = timedelta(minutes=1)  # between two writes of the last use


class Session(Struct, frozen=True):
    id: str
    email: str
    stamp: int  # that of its superuser when the session began
    created: datetime
    seen: datetime
    ends: datetime  # at the latest
    client: str  # address and browser, for the list


async def begin(store: Store, superuser: Superuser, *, client: str, old: secrets.Shown | None) -> secrets.Issued:
    """Begin a session with a new secret, so that a secret planted before the login is worthless. End `old`."""
    issued = secrets.issue("session")
    now = await store.now()
    data = {
        "hash": issued.hash, "email": superuser.email, "stamp": superuser.stamp,
        "ends": (now + ABSOLUTE).isoformat(), "client": client[:200],
    }  # fmt: skip
    await store.write_records(
        [Write(KIND, issued.id, data, revision=0, expires_at=now + IDLE)],
        Entry(superuser.identity.by, "session.begin", data={"session": issued.id, "client": data["client"]}),
    )
    if old is not None and any(old.matches(one.data["hash"]) for one in await store.records(KIND, [old.id])):
        await end(store, old.id, by=superuser.identity.by)
    return issued


def from_record(record: Record) -> Session:
    data = record.data
    ends = datetime.fromisoformat(data["ends"])
    return Session(record.id, data["email"], data["stamp"], record.created, record.updated, ends, data["client"])


async def touch(store: Store, record: Record, now: datetime) -> None:
    """Record that a session is in use. It then ends later, but not after `ends`. An ended session stays ended."""
    if now - record.updated < _TOUCH:
        return
    until = min(now + IDLE, datetime.fromisoformat(record.data["ends"]))
    await store.write_records([Write(KIND, record.id, record.data, revision=record.revision, expires_at=until)])


async def end(store: Store, session_id: str, *, by: str) -> bool:
    """End a session. Return False if there is none (any more)."""
    return secrets.is_id(session_id) and await store.write_records(
        [Write(KIND, session_id, None)], Entry(by, "session.end", data={"session": session_id})
    )


async def every(store: Store, *, after: str | None = None, limit: int | None = None) -> list[Session]:
    """Return sessions in the order of their ids, after the id `after`."""
    return [from_record(record) for record in await store.records(KIND, after=after, limit=limit)]
