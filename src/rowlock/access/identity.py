"""Who asks, and what that one may do at all. What it may do to a job is a rule's business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

SCOPES = ("read", "enqueue", "manage", "worker", "admin")
"""Of tokens. `read`: see all jobs and numbers. `enqueue`: any allowed topic. `manage`: requeue, cancel, update, delete, pause;
includes read. `worker`: claim and settle. `admin`: everything a superuser may."""

_IMPLIED = {"manage": ("read",), "admin": SCOPES}


class Identity(Struct, frozen=True, kw_only=True):
    """`claims` is what rules see as @request.auth. `scopes` go beyond the rules: who has them needs none. `topics`: of a
    token that is for some only; None: for all."""

    kind: Literal["anonymous", "superuser", "token", "user"]
    id: str = ""
    name: str = ""
    claims: Mapping[str, Any] = {}
    scopes: frozenset[str] = frozenset()
    topics: tuple[str, ...] | None = None
    read_only: bool = False

    @property
    def by(self) -> str:
        """For the audit."""
        return f"{self.kind} {self.name or self.id}" if self.id else self.kind

    def has(self, scope: str) -> bool:
        return scope in self.scopes

    def covers(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics


ANONYMOUS = Identity(kind="anonymous")


def with_implied(scopes: frozenset[str]) -> frozenset[str]:
    return scopes.union(*(_IMPLIED.get(scope, ()) for scope in scopes))


def superuser(id: str, name: str, *, read_only: bool = False) -> Identity:
    scopes = frozenset({"read"}) if read_only else frozenset(SCOPES)
    claims = {"id": id, "email": name, "superuser": True}
    return Identity(kind="superuser", id=id, name=name, claims=claims, scopes=scopes, read_only=read_only)
