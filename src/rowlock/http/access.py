"""Routes of tokens, settings and rules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from rowlock.access import rules, settings, tokens
from rowlock.access.explain import explain
from rowlock.core.conditions import FIELDS, Condition, holds
from rowlock.core.ids import check_id
from rowlock.errors import InvalidInput
from rowlock.http import shapes
from rowlock.http.call import Call, columns
from rowlock.http.jobs import token_body
from rowlock.http.problems import Problem, not_found
from rowlock.http.response import Response, answer, nothing
from rowlock.http.routes import Route, scope

ACTIONS = {"enqueue": "enqueue", "view": "read", "cancel": "cancel", "manage": "manage"}  # scopes that allow them


async def list_tokens(call: Call) -> Response:
    return answer(shapes.TokensAnswer(items=[token_body(one) for one in await tokens.every(await call.store())]))


async def create_token(call: Call) -> Response:
    asked: shapes.TokenCreateBody = call.body
    token, text = await tokens.create(
        await call.store(), asked.name, asked.scopes, by=call.by, topics=asked.topics, expires_at=asked.expires_at
    )
    return answer(token_body(token, text), 201)


async def revoke_token(call: Call) -> Response:
    if not await tokens.revoke(await call.store(), call.parameters["id"], by=call.by):
        raise Problem(404, "not_found", "there is no such token (any more)")
    return nothing()


async def get_settings(call: Call) -> Response:
    return answer(settings_body(await settings.load(await call.store())))


async def change_settings(call: Call) -> Response:
    asked: shapes.SettingsPatch = call.body
    changed = await settings.change(await call.store(), asked.changes(), by=call.by, reason=asked.reason)
    call.api.forget_settings()
    return answer(settings_body(changed))


def settings_body(current: settings.Current) -> shapes.SettingsBody:
    return shapes.SettingsBody(**msgspec.structs.asdict(current.settings), given=sorted(current.given))


async def explain_access(call: Call) -> Response:
    """Why is someone with these claims allowed to do this, or not? It changes nothing."""
    asked: shapes.ExplainBody = call.body
    if asked.action not in ACTIONS:
        raise Problem(400, "unknown_action", f"action: must be {' or '.join(ACTIONS)}", field="action")
    names = settings.GRANTED_BY[ACTIONS[asked.action]]
    judged = (
        {name: call.settings.rules[name] for name in names} if asked.rule is None else {"rule": rules.parse(asked.rule)}
    )
    job = await _job(call, asked.job)
    allowed = {name: _allowed(rule.bind(asked.claims), job) for name, rule in judged.items()}
    parts = [
        shapes.ExplainedPart(rule=name, **msgspec.structs.asdict(part))
        for name, rule in judged.items()
        for part in explain(rule, asked.claims, job)
    ]
    for part in parts:  # a column may hold what a handler has said: its stage
        part.left, part.right = call.redaction.data([part.left, part.right])
    verdict = True if True in allowed.values() else None if None in allowed.values() else False
    own = next(iter(judged.values()))  # before manage_rule, which includes the others
    return answer(shapes.ExplainAnswer(allowed=verdict, why=_why(judged, allowed), rule=own.text, parts=parts))


def _allowed(condition: Condition, job: dict[str, Any] | None) -> bool | None:
    """None: it depends on the job."""
    return condition if isinstance(condition, bool) else None if job is None else holds(condition, job)


async def _job(call: Call, given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            found = await (await call.store()).get([check_id(given)])
        except InvalidInput as error:
            raise InvalidInput("job", error.code, error.problem) from None
        if not found:
            raise not_found()
        return columns(next(iter(found.values())))
    for name, value in given.items():
        if name not in FIELDS:
            raise InvalidInput(f"job.{name}", "unknown_field", f"is none of {', '.join(FIELDS)}")
        wanted = (int, float) if FIELDS[name] == "number" else str
        if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
            raise InvalidInput(f"job.{name}", "bad_value", f"must be a {FIELDS[name]}")
    return {name: _time(name, value) if FIELDS[name] == "time" and value else value for name, value in given.items()}


def _time(name: str, value: str) -> datetime:
    try:
        return rules.read_time(value)
    except InvalidInput as error:
        raise InvalidInput(f"job.{name}", error.code, error.problem) from None


def _why(judged: Mapping[str, rules.Rule], allowed: Mapping[str, bool | None]) -> str:
    names = {name: f"the {name}" if name == "rule" else name for name in judged}
    if holding := [names[name] for name in judged if allowed[name]]:
        return f"{holding[0]} holds"
    if None in allowed.values():
        return "it depends on the job"
    written = [names[name] for name, rule in judged.items() if rule.text.strip()]
    if not written:
        verb = "is" if len(names) == 1 else "are"
        return f"{' and '.join(names.values())} {verb} empty: superusers and tokens with the scope only"
    return f"neither {' nor '.join(written)} holds" if len(written) > 1 else f"{written[0]} doesn't hold"


ROUTES = [
    Route(
        method="GET", path="/api/tokens", access=scope("admin"), handler=list_tokens, summary="API tokens",
        answers=(shapes.TokensAnswer,),
    ),
    Route(
        method="POST", path="/api/tokens", access=scope("admin"), handler=create_token,
        summary="Make a token; its text is told once", body=shapes.TokenCreateBody, answers=(shapes.TokenBody,),
        status=201,
    ),
    Route(
        method="DELETE", path="/api/tokens/{id}", access=scope("admin"), handler=revoke_token, summary="Revoke a token",
        status=204, errors=(404,),
    ),
    Route(
        method="GET", path="/api/settings", access=scope("admin"), handler=get_settings, summary="The settings",
        answers=(shapes.SettingsBody,),
    ),
    Route(
        method="PATCH", path="/api/settings", access=scope("admin"), handler=change_settings,
        summary="Change settings", body=shapes.SettingsPatch, answers=(shapes.SettingsBody,),
    ),
    Route(
        method="POST", path="/api/access/explain", access=scope("admin", writes=False), handler=explain_access,
        summary="Why is someone allowed to do something, or not?", body=shapes.ExplainBody,
        answers=(shapes.ExplainAnswer,), errors=(404,),
    ),
]  # fmt: skip
