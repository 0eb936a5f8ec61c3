"""Accounts of operators. The command line or a one-time link creates the first one; there is no default."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from secrets import randbits

from msgspec import Struct

from rowlock.access import passwords, secrets
from rowlock.access.identity import Identity, superuser
from rowlock.errors import InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.records import Entry, Record, Write

KIND, _SETUP, _LINK = "superuser", "setup", "link"
LINK_LIFE = timedelta(minutes=30)
_FIRST = "first"
_EMAIL = re.compile(r"[^@\s\x00-\x1f]{1,120}@[^@\s\x00-\x1f]{1,120}\Z")


class Superuser(Struct, frozen=True):
    """`stamp` changes with the password, which ends all earlier sessions."""

    email: str
    read_only: bool
    stamp: int
    created: datetime

    @property
    def identity(self) -> Identity:
        return superuser(self.email, read_only=self.read_only)


def from_record(record: Record) -> Superuser:
    return Superuser(record.id, record.data["read_only"], record.data["stamp"], record.created)


def check_email(value: object) -> str:
    if not isinstance(value, str) or not _EMAIL.match(value):
        raise InvalidInput("email", "not_an_email", "must be an e-mail address, such as ann@example.com")
    return value.lower()


def _stamp() -> int:
    """Return a random stamp, so that sessions of a deleted account don't work for a new one with the same name."""
    return randbits(62)


async def every(store: Store) -> list[Superuser]:
    return [from_record(record) for record in await store.records(KIND)]


async def create(
    store: Store,
    email: str,
    password: str,
    *,
    by: str,
    reason: str | None = None,
    read_only: bool = False,
    link: secrets.Shown | None = None,
) -> bool:
    """Create a superuser. `link`: the one-time link, only for the first one. Return False if the link is not valid."""
    wanted = check_email(email)
    passwords.check_strength(password)
    # Before the password is hashed: invented links must not cost that work.
    found = [] if link is None else await store.records(_LINK, [link.id])
    if link is not None and (not found or not link.matches(found[0].data["hash"])):
        return False
    data = {"password": await passwords.hash_password(password), "read_only": read_only, "stamp": _stamp()}
    writes = [Write(KIND, wanted, data, revision=0)]
    if link is None:
        writes.append(Write(_SETUP, _FIRST, {}))
    else:
        # Only one of several concurrent requests writes the first revision.
        writes += [Write(_SETUP, _FIRST, {}, revision=0), Write(_LINK, link.id, None, revision=found[0].revision)]
    if await store.write_records(
        writes, Entry(by, "superuser.create", reason=reason, data={"email": wanted, "read_only": read_only})
    ):
        return True
    if link is not None:
        return False
    raise InvalidInput("email", "taken", f"there is a superuser {wanted} already: give it another password instead")


async def set_password(store: Store, email: str, password: str, *, by: str, reason: str | None = None) -> None:
    """Change a password, and end all sessions of the account."""
    record = await _find(store, email)
    hashed = await passwords.hash_password(passwords.check_strength(password))
    data = {**record.data, "password": hashed, "stamp": _stamp()}
    entry = Entry(by, "superuser.password", reason=reason, data={"email": record.id})
    if not await store.write_records([Write(KIND, record.id, data, revision=record.revision)], entry):
        raise InvalidInput("email", "changed", f"{record.id} was changed by another caller at the same time: try again")


async def delete(store: Store, email: str, *, by: str, reason: str | None = None) -> None:
    record = await _find(store, email)
    entry = Entry(by, "superuser.delete", reason=reason, data={"email": record.id})
    await store.write_records([Write(KIND, record.id, None)], entry)


async def _find(store: Store, email: str) -> Record:
    wanted = check_email(email)
    for record in await store.records(KIND, [wanted]):
        return record
    raise InvalidInput("email", "unknown", f"there is no superuser {wanted}")


async def authenticate(store: Store, email: str, password: str) -> Superuser | None:
    """Return the superuser if the password is right. Takes the same time if there is no such account."""
    found = await store.records(KIND, [email.lower()[:250]]) if email and "\0" not in email else []
    right = await passwords.is_right(password, found[0].data["password"] if found else None)
    return from_record(found[0]) if found and right else None


async def is_set_up(store: Store) -> bool:
    return bool(await store.records(_SETUP, [_FIRST]))


async def first_link(store: Store) -> secrets.Issued | None:
    """Return a secret for creating the first superuser; None if there has been one."""
    if await is_set_up(store):
        return None
    issued = secrets.issue("link")
    expires = await store.now() + LINK_LIFE
    await store.write_records([Write(_LINK, issued.id, {"hash": issued.hash}, revision=0, expires_at=expires)])
    return issued
