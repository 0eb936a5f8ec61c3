"""One call of a route: who asks for what, and which jobs are within reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.access.identity import Identity
from rowlock.access.redaction import Redaction
from rowlock.access.settings import Current
from rowlock.core.conditions import Condition, Every, holds
from rowlock.core.job import Job
from rowlock.errors import JobNotFound
from rowlock.http.problems import Problem, not_found
from rowlock.http.request import Request
from rowlock.http.routes import Route
from rowlock.stores.base import Store

if TYPE_CHECKING:
    from rowlock.http.app import Api


class Call:
    __slots__ = ("api", "body", "identity", "parameters", "query", "request", "route", "settings")

    def __init__(
        self,
        api: Api,
        request: Request,
        identity: Identity,
        settings: Current,
        parameters: Mapping[str, str],
        route: Route,
    ) -> None:
        self.api = api
        self.request = request
        self.identity = identity
        self.settings = settings
        self.parameters = parameters
        self.route = route
        self.query: Any = None
        self.body: Any = None

    @property
    def by(self) -> str:
        return self.identity.by

    @property
    def place(self) -> str:
        """Whose place among those who wait."""
        return self.by if self.identity.id else f"anonymous {self.request.client}"

    async def again(self) -> Call:
        """As it would be now: settings, sessions and tokens change while a stream goes on."""
        return await self.api.admit(self.route, self.request, self.parameters)

    @property
    def redaction(self) -> Redaction:
        return self.settings.redaction

    async def store(self) -> Store:
        return await self.api.jobs._store()

    def reach(self, scope: str) -> Condition:
        """The jobs that it may see (read) or manage."""
        identity = self.identity
        allowed: Condition = True if identity.has(scope) else self.settings.manage.bind(identity.claims)
        bounds = identity.reach
        if allowed is False or bounds is True:
            return allowed
        return bounds if allowed is True else Every((allowed, bounds))

    async def job(self, scope: str) -> Job:
        """The one in the path. What may not be seen is not there."""
        try:
            job = await self.api.jobs.get(self.parameters["id"])
        except JobNotFound:
            raise not_found() from None
        condition = self.reach(scope)
        if condition is not True and not holds(condition, columns(job)):
            raise not_found()
        return job

    def check_enqueue(self, topic: str, columns: Callable[[], Mapping[str, Any]]) -> None:
        """`columns`: what the job is going to have."""
        identity, settings = self.identity, self.settings.settings
        if not identity.has("enqueue") and not holds(self.settings.enqueue.bind(identity.claims), columns()):
            raise denied(identity, "enqueue_rule doesn't let you enqueue this job")
        if identity.is_bounded and not holds(identity.reach, columns()):
            raise denied(identity, "this token is for other topics", field="topic")
        if settings.allowed_topics and not identity.has("admin") and topic not in settings.allowed_topics:
            raise denied(identity, "this topic is not among the allowed_topics", field="topic")


def columns(job: Job) -> dict[str, Any]:
    return {**msgspec.structs.asdict(job), "status": str(job.status)}


def denied(identity: Identity, detail: str, *, field: str | None = None) -> Problem:
    if identity.kind == "anonymous":
        return Problem(
            "not_authenticated", "log in, or send a token: Authorization: Bearer …",
            headers={"www-authenticate": "Bearer"},
        )  # fmt: skip
    return Problem("not_allowed", detail, field=field)
