"""The setting public_url: the URL under which clients reach the HTTP API, with the prefix at which it is mounted."""

from __future__ import annotations

from urllib.parse import urlsplit

from rowlock.errors import InvalidInput


def check_public_url(value: str, field: str = "public_url") -> str:
    """Return the URL without a slash at its end. Raise InvalidInput if no path can be added to it."""
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(c in value for c in "?#@*\\") or any(c.isspace() or not c.isprintable() for c in value):
        problem = f"{value!r:.80} must be a URL such as https://jobs.example.com or https://example.com/queue"
        raise InvalidInput(field, "bad_url", problem)
    return value.rstrip("/")


def origin(public_url: str) -> str:
    """Return the origin that a browser names when it shows a page under this URL."""
    parts = urlsplit(public_url)
    return f"{parts.scheme}://{parts.netloc}"
