"""The caller of a request, and its scopes. Rules decide what it may do to single jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from rowlock.core.codec import clean_text, is_storable
from rowlock.core.conditions import Compared, Condition, Every, Some

SCOPES = (
    "read", "enqueue", "cancel", "manage", "templates", "schedules", "flows", "limits", "tokens", "worker", "admin",
)  # fmt: skip
"""Scopes of tokens. `read`: see all jobs and numbers. `enqueue`: any allowed topic. `cancel`: cancel jobs, without
read. `manage`: requeue, update, delete, pause; includes read and cancel. `templates`: see and change the stored
definitions of topics. `schedules`: see, make, change and run schedules. `flows`: see, cancel, requeue and delete flows.
`limits`: see, put and clear limits. `tokens`: make tokens for one job or for the jobs of one scope, and see and revoke
those. `worker`: claim and settle. `admin`: everything that a superuser may do."""

LONGEST_NAME = 500  # characters
_IMPLIED = {"manage": ("read", "cancel"), "admin": SCOPES}


class Identity(Struct, frozen=True, kw_only=True):
    """`claims`: @request.auth in rules. `scopes`: what the caller may do without a rule. `topics`: those of a token for
    some topics; None: all. `job`: that of a token for one job, and `maker` who made it, as in the audit. `jobs_of`: the
    scope and scope_id of a token for these jobs alone, and `enqueues` the topics of which it may add jobs.
    `expires_at`: the end of the credential. `read_only`: the caller may change nothing, whatever the rules say."""

    kind: Literal["anonymous", "superuser", "token", "user"]
    id: str = ""
    name: str = ""
    claims: Mapping[str, Any] = {}
    scopes: frozenset[str] = frozenset()
    topics: tuple[str, ...] | None = None
    job: str | None = None
    maker: str = ""
    jobs_of: tuple[str, str] | None = None
    enqueues: tuple[str, ...] | None = None
    expires_at: datetime | None = None
    read_only: bool = False

    @property
    def by(self) -> str:
        """Return the caller's name for the audit, in a form that every database can store."""
        return clean_text(f"{self.kind} {self.name or self.id}"[:200]) if self.id else self.kind

    def has(self, scope: str) -> bool:
        return scope in self.scopes

    @property
    def reach(self) -> Condition:
        """Return the condition on jobs that the caller's token is for, whatever scopes and rules allow."""
        bounds: list[Condition] = []
        if self.topics is not None:
            bounds.append(Some(tuple(Compared("topic", "=", topic) for topic in self.topics)))
        if self.job is not None:
            bounds.append(Compared("id", "=", self.job))
        if self.jobs_of is not None:
            scope, scope_id = self.jobs_of
            bounds += [Compared("scope", "=", scope), Compared("scope_id", "=", scope_id)]
        return Every(tuple(bounds)) if len(bounds) > 1 else bounds[0] if bounds else True

    @property
    def is_bounded(self) -> bool:
        return self.topics is not None or self.is_narrow

    @property
    def is_narrow(self) -> bool:
        """True for a token for one job or for the jobs of one scope. The token is the whole grant: rules add nothing to
        it, it makes no other tokens, and it may do nothing that is not about single jobs."""
        return self.job is not None or self.jobs_of is not None

    @property
    def caller(self) -> tuple[str, ...]:
        """Return the key of the caller for limits and cursors. It stays the same when a page renews its token."""
        if self.jobs_of is not None:
            return ("scope", *self.jobs_of, *(self.topics or ()))
        return (self.kind, self.id)


ANONYMOUS = Identity(kind="anonymous")


def with_implied(scopes: frozenset[str]) -> frozenset[str]:
    return scopes.union(*(_IMPLIED.get(scope, ()) for scope in scopes))


def superuser(email: str, *, read_only: bool = False) -> Identity:
    scopes = frozenset({"read"}) if read_only else frozenset(SCOPES)
    claims = {"id": email, "email": email, "superuser": True}
    return Identity(kind="superuser", id=email, name=email, claims=claims, scopes=scopes, read_only=read_only)


def user(claims: Mapping[str, Any], *, expires_at: datetime | None = None) -> Identity:
    """Return the identity of one of the application's users. TypeError: the claim `id` can't be a name."""
    given = claims.get("id")
    name = str(given) if isinstance(given, str | int | UUID) and not isinstance(given, bool) else ""
    if not is_name(name):
        raise TypeError(f"id must be a text of 1 to {LONGEST_NAME} characters, not {given!r:.40}")
    return Identity(kind="user", id=name, claims={**claims, "id": name}, expires_at=expires_at)


def shown_name(identity: Identity) -> str:
    """Return the name to show on a page. The audit has the id, because users may choose their names."""
    given = (identity.name, identity.claims.get("name"), identity.claims.get("email"))
    return next((text for text in given if isinstance(text, str) and is_name(text)), identity.id)


def is_name(text: str) -> bool:
    """True if the audit and an answer can hold this name."""
    return 0 < len(text) <= LONGEST_NAME and is_storable(text)
