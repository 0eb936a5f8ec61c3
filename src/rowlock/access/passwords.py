"""Passwords, hashed with argon2id. A check takes the same time if there is no such account."""

from __future__ import annotations

import asyncio
from functools import cache

from rowlock.errors import InvalidInput, MissingExtra

SHORTEST, LONGEST = 12, 512

_COMMON = frozenset({
    "password1234", "123456789012", "1234567890123", "qwertyuiopas", "qwerty123456", "passwordpassword",
    "adminadminadmin", "letmeinletmein", "iloveyou1234", "administrator", "111111111111", "000000000000",
    "aaaaaaaaaaaa", "abcdefghijkl", "password12345", "changemechangeme",
})  # fmt: skip


@cache
def _hasher() -> object:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise MissingExtra("server", "argon2-cffi") from None
    return PasswordHasher()


@cache
def _nobodys() -> str:
    """Return a hash for checks without an account."""
    return hash_now("there is nobody with this password")


def check_strength(password: object) -> str:
    if not isinstance(password, str):
        raise InvalidInput("password", "not_text", f"must be text, not {type(password).__name__}")
    if not SHORTEST <= len(password) <= LONGEST:
        raise InvalidInput("password", "bad_length", f"must have {SHORTEST} to {LONGEST} characters")
    if password.lower() in _COMMON or len(set(password)) < 4:
        raise InvalidInput("password", "too_common", "is too easy to guess: use a longer sentence")
    return password


def hash_now(password: str) -> str:
    hasher = _hasher()
    return str(hasher.hash(password))  # type: ignore[attr-defined]


async def hash_password(password: str) -> str:
    """Hash in a thread: it takes tens of milliseconds on purpose."""
    return await asyncio.to_thread(hash_now, password)


async def is_right(password: str, stored: str | None) -> bool:
    """True if the password is right. `stored` None: no such account; takes the same time."""
    return await asyncio.to_thread(_check, password, stored)


def _check(password: str, stored: str | None) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    hasher = _hasher()
    try:
        hasher.verify(_nobodys() if stored is None else stored, password[:LONGEST])  # type: ignore[attr-defined]
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None
