"""One call of a route: the caller, what it asks for, and which jobs it may see and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.access.identity import Identity
from rowlock.access.redaction import Redaction
from rowlock.access.settings import GRANTED_BY, Current
from rowlock.core.conditions import Condition, Every, holds
from rowlock.core.job import Job
from rowlock.errors import JobNotFound
from rowlock.http.problems import Problem, not_found
from rowlock.http.request import Request
from rowlock.http.routes import Route
from rowlock.stores.base import Store
from rowlock.stores.queries import State

if TYPE_CHECKING:
    from rowlock.http.app import Api


@dataclass(slots=True, eq=False)
class Call:
    """`now`: @now in rules, the same for the whole request."""

    api: Api
    request: Request
    identity: Identity
    settings: Current
    parameters: Mapping[str, str]
    route: Route
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    query: Any = None

    @property
    def by(self) -> str:
        return self.identity.by

    @property
    def place(self) -> str:
        """Return the name under which waiting requests and streams count. A user's job tokens count as the user."""
        identity = self.identity
        if identity.kind == "token":
            return identity.maker if identity.maker.startswith("user ") else repr(identity.caller)
        return self.by if identity.id else f"anonymous {self.request.network}"

    async def again(self) -> Call:
        """Return the same call with the settings, sessions and tokens of now: they change while a stream or a long poll
        waits."""
        return await self.api.admit(self.route, self.request, self.parameters)

    @property
    def redaction(self) -> Redaction:
        return self.settings.redaction

    async def store(self) -> Store:
        return await self.api.jobs._store()

    def reach(self, scope: str) -> Condition:
        """Return the condition on jobs that the caller may see (read), cancel or manage."""
        identity = self.identity
        allowed: Condition = True if identity.has(scope) else self.granted(scope)
        bounds = identity.reach
        if allowed is False or bounds is True:
            return allowed
        return bounds if allowed is True else Every((allowed, bounds))

    def granted(self, scope: str) -> Condition:
        """Return the condition on jobs for which rules let the caller do this."""
        identity = self.identity
        return False if identity.is_narrow else self.settings.granted(scope, identity.claims, self.now)

    def can(self, job: Job | None = None) -> list[str]:
        """Return the allowed actions: for this job, or, without one, for any job at all."""
        is_read_only = self.identity.read_only or self.api.settings.read_only
        asked = ("cancel", "manage") if job is not None else ("read", "enqueue", "cancel", "manage")
        scopes = [scope for scope in asked if scope == "read" or not is_read_only]
        return [one for one in scopes if (self.reach(one) is not False if job is None else self.may(one, job))]

    def may(self, scope: str, job: Job) -> bool:
        condition = self.reach(scope)
        return condition is True or holds(condition, columns(job))

    async def job(self, scope: str) -> Job:
        """Return the job in the path. Jobs that the caller may not see answer 404."""
        try:
            job = await self.api.jobs.get(self.parameters["id"])
        except JobNotFound:
            raise not_found() from None
        if self.may(scope, job):
            return job
        if scope != "read" and self.may("read", job):
            raise denied(self.identity, f"{needs(scope)}: you may see this job, but no more")
        raise not_found()

    def check_topics(self, topics: Iterable[str], field: str = "topic") -> None:
        """Refuse topics that the caller's token is not for."""
        own = self.identity.topics
        if own is not None and not set(topics) <= set(own):
            raise denied(self.identity, "this token is for other topics", field=field)

    def check_enqueue(self, topic: str, columns: Callable[[], Mapping[str, Any]], *, edits: bool = False) -> None:
        """Refuse a job that the caller may not enqueue. `columns`: those of the new job. `edits`: an existing job gets
        this content; then the scope manage is enough."""
        identity = self.identity
        by_scope = identity.has("enqueue") or (edits and identity.has("manage"))
        if not by_scope and not holds(self.granted("enqueue"), columns()):
            verb = "change the job to this" if edits else "enqueue this job"
            raise denied(identity, f"enqueue_rule doesn't let you {verb}")
        if not edits and not self._is_in_bounds(topic, columns):
            raise denied(identity, "this token is for other topics", field="topic")
        self.check_allowed(topic)

    def _is_in_bounds(self, topic: str, columns: Callable[[], Mapping[str, Any]]) -> bool:
        """True if the caller's token is for such a new job."""
        identity = self.identity
        if identity.enqueues is not None and topic not in identity.enqueues:
            return False
        return not identity.is_bounded or holds(identity.reach, columns())

    def check_allowed(self, topic: str) -> None:
        """Refuse jobs of a topic that is not among the allowed_topics."""
        allowed = self.settings.settings.allowed_topics
        if allowed and not self.identity.has("admin") and topic not in allowed:
            raise denied(self.identity, "this topic is not among the allowed_topics", field="topic")


def columns(job: Job | State) -> dict[str, Any]:
    return {**msgspec.structs.asdict(job), "status": str(job.status)}


def needs(scope: str) -> str:
    """Return in words what a caller needs for this action, for a problem."""
    return f"this needs the scope {scope}, or a {' or '.join(GRANTED_BY[scope])} that lets you"


def denied(identity: Identity, detail: str, *, field: str | None = None) -> Problem:
    if identity.kind == "anonymous":
        return Problem(
            "not_authenticated", "log in, or send a token: Authorization: Bearer …",
            headers={"www-authenticate": "Bearer"},
        )  # fmt: skip
    return Problem("not_allowed", detail, field=field)
