"""Routes of API tokens, and of tokens for one job."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from rowlock.access import job_tokens, tokens
from rowlock.http import cursors
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem, check_range
from rowlock.http.routes import SEE_JOBS, Routes, scope
from rowlock.http.shapes import Asked, PageQuery, Scope, Time, Topic, copied, schema

ROUTES = Routes()

LONGEST_TOKEN = 86_400.0


class JobTokenBody(Asked, frozen=True, kw_only=True):
    """`seconds`: how long the token is valid. `cancel`: it may also cancel the job. `manage`: it may also cancel,
    requeue, update and delete the job; the caller needs the scope manage for that, a rule is not enough."""

    seconds: Annotated[float, schema(minimum=1, maximum=86_400)] = 3600.0
    cancel: bool = False
    manage: bool = False


class TokenCreateBody(Asked, frozen=True, kw_only=True):
    name: Annotated[str, schema(minLength=1, maxLength=100)]
    scopes: Annotated[tuple[Scope, ...], schema(minItems=1)]
    topics: Annotated[tuple[Topic, ...], schema(minItems=1, maxItems=100)] | None = None
    expires_at: Time | None = None


class TokenBody(tokens.Token, frozen=True, kw_only=True):
    """`token`: its text, only in the answer that creates it."""

    created: Time
    created_by: str
    expires_at: Time | None
    last_used: Time | None
    token: str | UnsetType = UNSET


class TokensAnswer(Struct, kw_only=True):
    items: list[TokenBody]
    next: str | None


@ROUTES.add("GET", "/api/tokens", scope("admin"), "API tokens")
async def list_tokens(call: Call, asked: PageQuery) -> TokensAnswer:
    store = await call.store()
    found, following = await cursors.page(
        call, lambda after, count: tokens.every(store, after=after, limit=count), lambda token: token.id
    )
    return TokensAnswer(items=[token_body(one) for one in found], next=following)


@ROUTES.add("POST", "/api/tokens", scope("admin"), "Create a token; only this answer has its text", status=201)
async def create_token(call: Call, asked: TokenCreateBody) -> TokenBody:
    token, text = await tokens.create(
        await call.store(), asked.name, asked.scopes, by=call.by, topics=asked.topics, expires_at=asked.expires_at
    )
    return token_body(token, text)


@ROUTES.add("DELETE", "/api/tokens/{token_id}", scope("admin"), "Revoke a token")
async def revoke_token(call: Call) -> None:
    if not await tokens.revoke(await call.store(), call.parameters["token_id"], by=call.by):
        raise Problem("not_found", "there is no such token (any more)")


@ROUTES.add(
    "POST", "/api/jobs/{id}/token", SEE_JOBS, "A short-lived token for this job alone", status=201, errors=(429,),
)  # fmt: skip
async def make_job_token(call: Call, asked: JobTokenBody) -> TokenBody:
    """Create a token for a page that shows this one job. It sees, cancels or manages nothing else, for a short time.

    A caller whom only a rule allows can't create one with `manage`: it would have the scope, which is not bound by
    enqueue_rule."""
    check_range("seconds", asked.seconds, 1, LONGEST_TOKEN)
    job = await call.job("read")
    if call.identity.job is not None:  # else it could prolong its life
        raise denied(call.identity, "a token that is for one job can't make others")
    if call.identity.kind == "anonymous":
        raise denied(call.identity, "only a caller who is logged in or has a token can make one")
    if asked.manage and not call.identity.has("manage"):
        raise denied(call.identity, "a token that manages the job needs a maker with the scope manage", field="manage")
    if asked.cancel and not call.may("cancel", job):
        raise denied(call.identity, "you may not cancel this job, nor may a token that you make", field="cancel")
    store = await call.store()
    ends = await store.now() + timedelta(seconds=asked.seconds)
    if call.identity.expires_at is not None:
        ends = min(ends, call.identity.expires_at)
    try:
        scopes = ["manage"] if asked.manage else ["read", "cancel"] if asked.cancel else ["read"]
        token, text = await job_tokens.create(store, job.id, scopes, maker=call.identity, expires_at=ends)
    except job_tokens.TooMany as error:
        of = "" if error.job is None else " for this job"
        detail = f"{error.most} tokens that you made{of} are still good: use one of them, or wait {error.seconds} s"
        again = {"retry-after": str(error.seconds)}
        raise Problem("too_many_tokens", detail, headers=again) from None
    return token_body(token, text)


def token_body(token: tokens.Token, text: str | None = None) -> TokenBody:
    return copied(TokenBody, token, token=UNSET if text is None else text)
