"""Routes of API tokens, and of tokens for one job."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rowlock.access import job_tokens, tokens
from rowlock.http import cursors
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem, check_range
from rowlock.http.response import Response, answer, nothing
from rowlock.http.routes import SEE_JOBS, Route, scope
from rowlock.http.shapes import Asked, PageQuery, Scope, Time, Topic, schema

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


async def list_tokens(call: Call) -> Response:
    store = await call.store()
    found, following = await cursors.page(
        call, lambda after, count: tokens.every(store, after=after, limit=count), lambda token: token.id
    )
    return answer(TokensAnswer(items=[token_body(one) for one in found], next=following))


async def create_token(call: Call) -> Response:
    asked: TokenCreateBody = call.body
    token, text = await tokens.create(
        await call.store(), asked.name, asked.scopes, by=call.by, topics=asked.topics, expires_at=asked.expires_at
    )
    return answer(token_body(token, text), 201)


async def revoke_token(call: Call) -> Response:
    if not await tokens.revoke(await call.store(), call.parameters["token_id"], by=call.by):
        raise Problem("not_found", "there is no such token (any more)")
    return nothing()


async def make_job_token(call: Call) -> Response:
    """Create a token for a page that shows this one job. It sees, cancels or manages nothing else, for a short time.

    A caller whom only a rule allows can't create one with `manage`: it would have the scope, which is not bound by
    enqueue_rule."""
    asked: JobTokenBody = call.body
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
    return answer(token_body(token, text), 201)


def token_body(token: tokens.Token, text: str | None = None) -> TokenBody:
    return TokenBody(**msgspec.structs.asdict(token), token=UNSET if text is None else text)


ROUTES = [
    Route("GET", "/api/tokens", scope("admin"), list_tokens, "API tokens", query=PageQuery, answers=(TokensAnswer,)),
    Route(
        "POST", "/api/tokens", scope("admin"), create_token, "Create a token; only this answer has its text",
        body=TokenCreateBody, answers=(TokenBody,), status=201,
    ),
    Route(
        "DELETE", "/api/tokens/{token_id}", scope("admin"), revoke_token, "Revoke a token", status=204, errors=(404,),
    ),
    Route(
        "POST", "/api/jobs/{id}/token", SEE_JOBS, make_job_token, "A short-lived token for this job alone",
        body=JobTokenBody, body_optional=True, answers=(TokenBody,), status=201, errors=(404, 429),
    ),
]  # fmt: skip
