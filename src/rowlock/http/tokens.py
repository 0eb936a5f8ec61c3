"""Routes of tokens: for programs, and short-lived ones for browsers."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from rowlock.access import short_lived, tokens
from rowlock.access.short_lived import LONGEST, SHORTEST, USUAL, maker_of
from rowlock.http import cursors
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem, check_range
from rowlock.http.routes import SEE_JOBS, Routes, scope
from rowlock.http.shapes import Asked, JobId, PageQuery, Scope, Text, Time, Topic, copied, schema

ROUTES = Routes()

LONGEST_TOKEN = LONGEST
TOKENS = scope("admin", bounded=True, or_scope="tokens")


class JobTokenBody(Asked, frozen=True, kw_only=True):
    """`seconds`: how long the token is valid. `cancel`: it may also cancel the job. `manage`: it may also cancel,
    requeue, update and delete the job; the caller needs the scope manage for that, a rule is not enough."""

    seconds: Annotated[float, schema(minimum=1, maximum=86_400)] = 3600.0
    cancel: bool = False
    manage: bool = False


class TokenCreateBody(Asked, frozen=True, kw_only=True):
    """For a program: `name` and `scopes`, maybe `topics` and `expires_at`. For a browser: `job`, or `scope` and
    `scope_id`, the jobs that it sees. It may `cancel` them, and `enqueue` jobs of these topics, which get its scope. It
    is good for so many `seconds` (900 if it is left out). A browser's token needs no name."""

    name: Annotated[str, schema(minLength=1, maxLength=100)] | None = None
    scopes: Annotated[tuple[Scope, ...], schema(minItems=1)] | None = None
    topics: Annotated[tuple[Topic, ...], schema(minItems=1, maxItems=100)] | None = None
    expires_at: Time | None = None
    job: JobId | None = None
    scope: Text | None = None
    scope_id: Text | None = None
    enqueue: Annotated[tuple[Topic, ...], schema(maxItems=100)] | None = None
    cancel: bool | None = None
    seconds: Annotated[float, schema(minimum=1, maximum=86_400)] | None = None

    def given(self, names: tuple[str, ...]) -> str | None:
        """Return the first of these fields that has a value."""
        return next((name for name in names if getattr(self, name) is not None), None)


_FOR_PROGRAMS = ("scopes", "topics", "expires_at")
_FOR_BROWSERS = ("job", "scope", "scope_id", "enqueue", "cancel", "seconds")


class TokenBody(tokens.Token, frozen=True, kw_only=True):
    """`token`: its text, only in the answer that creates it."""

    created: Time
    created_by: str
    expires_at: Time | None
    last_used: Time | None
    token: str | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"TokenBody({self.id!r}, …)"


class TokensAnswer(Struct, kw_only=True):
    items: list[TokenBody]
    next: str | None


@ROUTES.add("GET", "/api/tokens", TOKENS, "API tokens")
async def list_tokens(call: Call, asked: PageQuery) -> TokensAnswer:
    """List all tokens; with the scope tokens alone, those that the caller has made."""
    store, maker = await call.store(), _own_only(call)
    found, following = await cursors.page(
        call, lambda after, count: tokens.every(store, after=after, limit=count, maker=maker), lambda token: token.id
    )
    return TokensAnswer(items=[token_body(one) for one in found], next=following)


@ROUTES.add(
    "POST", "/api/tokens", TOKENS, "Create a token; only this answer has its text", status=201, errors=(429,),
)  # fmt: skip
async def create_token(call: Call, asked: TokenCreateBody) -> TokenBody:
    """Create a token for a program, or a short-lived one for a browser. With the scope tokens alone, the caller can
    create tokens for browsers only. They stay within its own topics, and end no later than it does."""
    for_browser, for_program = asked.given(_FOR_BROWSERS), asked.given(_FOR_PROGRAMS)
    if for_browser is not None:
        if for_program is not None:
            text = f"{for_program}: is for programs, {for_browser} for browsers: leave one of them out"
            raise Problem("both_given", text, field=for_program)
        return await _create_for_browser(call, asked)
    if not call.identity.has("admin"):
        text = "the scope tokens makes tokens for browsers only: give job, or scope and scope_id"
        raise denied(call.identity, text, field="scopes")
    if asked.name is None:
        raise Problem("missing", "name: give the token a name", field="name")
    token, text = await tokens.create(
        await call.store(), asked.name, asked.scopes or (), by=call.by, topics=asked.topics, expires_at=asked.expires_at
    )
    return token_body(token, text)


async def _create_for_browser(call: Call, asked: TokenCreateBody) -> TokenBody:
    seconds = USUAL if asked.seconds is None else asked.seconds
    check_range("seconds", seconds, SHORTEST, LONGEST_TOKEN)
    call.check_topics(asked.enqueue or (), "enqueue")
    token, text = await short_lived.create_for_browser(
        await call.store(), maker=maker_of(call.identity), seconds=seconds, job=asked.job, scope=asked.scope,
        scope_id=asked.scope_id, enqueue=asked.enqueue, cancel=asked.cancel or False, name=asked.name,
    )  # fmt: skip
    return token_body(token, text)


@ROUTES.add("DELETE", "/api/tokens/{token_id}", TOKENS, "Revoke a token")
async def revoke_token(call: Call) -> None:
    """Revoke a token; with the scope tokens alone, one that the caller has made."""
    maker = _own_only(call)
    if not await tokens.revoke(await call.store(), call.parameters["token_id"], by=call.by, maker=maker):
        raise Problem("not_found", "there is no such token (any more)")


def _own_only(call: Call) -> str | None:
    """Return the maker whose tokens the caller may see and revoke; None: all tokens."""
    return None if call.identity.has("admin") else maker_of(call.identity).id


@ROUTES.add(
    "POST", "/api/jobs/{id}/token", SEE_JOBS, "A short-lived token for this job alone", status=201, errors=(429,),
)  # fmt: skip
async def make_job_token(call: Call, asked: JobTokenBody) -> TokenBody:
    """Create a token for a page that shows this one job. It sees, cancels or manages nothing else, for a short time.

    A caller whom only a rule allows can't create one with `manage`: it would have the scope, which is not bound by
    enqueue_rule."""
    check_range("seconds", asked.seconds, SHORTEST, LONGEST_TOKEN)
    job = await call.job("read")
    if call.identity.is_narrow:  # else it could prolong its life
        raise denied(call.identity, "a token for one job or one scope can't make others")
    if call.identity.kind == "anonymous":
        raise denied(call.identity, "only a caller who is logged in or has a token can make one")
    if asked.manage and not call.identity.has("manage"):
        raise denied(call.identity, "a token that manages the job needs a maker with the scope manage", field="manage")
    if asked.cancel and not call.may("cancel", job):
        raise denied(call.identity, "you may not cancel this job, nor may a token that you make", field="cancel")
    scopes = ["manage"] if asked.manage else ["read", "cancel"] if asked.cancel else ["read"]
    bound = short_lived.BY_SCOPE if all(call.identity.has(scope) for scope in scopes) else short_lived.BY_RULE
    token, text = await short_lived.create(
        await call.store(), scopes, maker=maker_of(call.identity, bound), seconds=asked.seconds, job=job.id
    )
    return token_body(token, text)


def token_body(token: tokens.Token, text: str | None = None) -> TokenBody:
    return copied(TokenBody, token, token=UNSET if text is None else text)
