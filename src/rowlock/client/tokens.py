"""`jobs.tokens`: short-lived tokens for browsers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from msgspec import structs

from rowlock.access import short_lived, tokens
from rowlock.access.short_lived import LONGEST, SHORTEST, USUAL, Maker
from rowlock.access.tokens import Token
from rowlock.client.audit import Actor, check_reason
from rowlock.core.job import check_delay, check_flag
from rowlock.errors import InvalidInput
from rowlock.stores.base import Store


class NewToken(Token, frozen=True, kw_only=True):
    """A token, and its text, which is stored nowhere else."""

    token: str

    def __repr__(self) -> str:
        """Without the text: what is shown may be logged."""
        return f"<token {self.id} {self.name!r}, until {self.expires_at}>"


class Tokens:
    """`jobs.tokens`."""

    def __init__(self, store: Callable[[], Awaitable[Store]], actor: Actor) -> None:
        self._store = store
        self._actor = actor

    async def create(
        self,
        *,
        job: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        enqueue: Sequence[str] | None = None,
        cancel: bool = False,
        ttl: float | timedelta = USUAL,
        name: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> NewToken:
        """Make a token for a browser. Send its `token` to the page: only this answer has it.

            made = await jobs.tokens.create(scope="user", scope_id="7", enqueue=["render"], cancel=True)

        It sees one `job`, or the jobs that have this `scope` and `scope_id`, and nothing else. `cancel`: it may cancel
        them. `enqueue`: it may add jobs of these topics, which get its scope. `ttl`: seconds until it ends, up to a
        day. `name` is shown in lists and in the audit.
        """
        seconds = check_delay(ttl, "ttl")
        if not SHORTEST <= seconds <= LONGEST:
            problem = f"must be {SHORTEST:g} s to {LONGEST / 3600:g} h, not {seconds:g} s: make a new token for longer"
            raise InvalidInput("ttl", "out_of_range", problem)
        actor = self._actor(by)
        made, text = await short_lived.create_for_browser(
            await self._store(), maker=Maker(f"program {actor}", actor), seconds=seconds, job=job, scope=scope,
            scope_id=scope_id, enqueue=enqueue, cancel=check_flag(cancel, "cancel"), name=name,
            reason=check_reason(reason),
        )  # fmt: skip
        return NewToken(**structs.asdict(made), token=text)

    async def list(self) -> Sequence[Token]:
        """Return all tokens that are good: those for browsers, and those for programs (`rowlock token create`)."""
        return await tokens.every(await self._store())

    async def revoke(
        self,
        id: str | None = None,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Revoke the token with this id, or all tokens for the jobs of this `scope` and `scope_id`, as at a logout. The
        next request with one of them is refused. Return how many were revoked: 0 if there is none (any more)."""
        store, actor, why = await self._store(), self._actor(by), check_reason(reason)
        if id is not None:
            if scope is not None or scope_id is not None:
                raise InvalidInput("id", "both_given", "give either id, or scope and scope_id")
            return int(await tokens.revoke(store, id, by=actor, reason=why))
        if scope is None or scope_id is None:
            raise InvalidInput("id", "missing", "give the id of a token, or scope and scope_id for all of theirs")
        return await tokens.revoke_scope(store, scope, scope_id, by=actor, reason=why)
