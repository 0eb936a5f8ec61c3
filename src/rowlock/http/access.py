"""Routes of settings and rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rowlock.access import settings
from rowlock.access.explain import explain, judge
from rowlock.access.redaction import MOST_PATTERNS
from rowlock.core import rules
from rowlock.core.conditions import FIELDS
from rowlock.core.ids import check_id
from rowlock.core.job import Job
from rowlock.core.rule_binding import read_time
from rowlock.errors import InvalidInput
from rowlock.http.call import Call, columns
from rowlock.http.parse import camel, renamed
from rowlock.http.problems import Problem, not_found
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import Asked, Reason, Text, Topic, schema

ROUTES = Routes()

ACTIONS = {"enqueue": "enqueue", "view": "read", "cancel": "cancel", "manage": "manage"}  # and their scopes
_COLUMNS = {camel(name): name for name in FIELDS}


class SettingsBody(Struct, kw_only=True):
    """`given` names the settings that were set; the others have their defaults."""

    http_enabled: bool
    enqueue_rule: str
    view_rule: str
    cancel_rule: str
    manage_rule: str
    allowed_topics: tuple[str, ...]
    worker_pool_size: int
    poll_interval: float
    lock_duration: float
    redact: tuple[str, ...]
    public_url: str
    given: list[str]


class SettingsPatch(Asked, frozen=True, kw_only=True):
    """Given settings change; null means the default."""

    http_enabled: bool | UnsetType | None = UNSET
    enqueue_rule: str | UnsetType | None = UNSET
    view_rule: str | UnsetType | None = UNSET
    cancel_rule: str | UnsetType | None = UNSET
    manage_rule: str | UnsetType | None = UNSET
    allowed_topics: Annotated[tuple[Topic, ...], schema(maxItems=1000)] | UnsetType | None = UNSET
    worker_pool_size: Annotated[int, schema(minimum=1, maximum=10_000)] | UnsetType | None = UNSET
    poll_interval: Annotated[float, schema(minimum=0.01, maximum=3600)] | UnsetType | None = UNSET
    lock_duration: Annotated[float, schema(minimum=0.5, maximum=86_400)] | UnsetType | None = UNSET
    redact: Annotated[tuple[Text, ...], schema(maxItems=MOST_PATTERNS)] | UnsetType | None = UNSET
    public_url: str | UnsetType | None = UNSET
    reason: Reason | None = None

    def changes(self) -> dict[str, Any]:
        given = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not UNSET and name != "reason"}


class ExplainBody(Asked, frozen=True, kw_only=True):
    """May a caller with these claims do this? `rule`: judge this rule instead of the saved ones. `job`: an id, or the
    columns of a job that does not exist yet."""

    action: Annotated[str, schema(enum=list(ACTIONS))]
    claims: dict[str, Any] = msgspec.field(default_factory=dict)
    rule: str | None = None
    job: str | dict[str, Any] | None = None


class ExplainedPart(Struct, kw_only=True):
    """`rule`: the setting that has this comparison, or "rule" for the rule in the request."""

    rule: str
    text: str
    left: Any
    right: Any
    holds: bool | None


class ExplainAnswer(Struct, kw_only=True):
    """`rule`: the text of the action's own rule. `parts`: each comparison of all rules that can allow the action, with
    the values of both sides; `holds` null: it depends on the job."""

    allowed: bool | None
    why: str
    rule: str
    parts: list[ExplainedPart]


@ROUTES.add("GET", "/api/settings", scope("admin"), "The settings")
async def get_settings(call: Call) -> SettingsBody:
    return settings_body(await settings.load(await call.store()))


@ROUTES.add("PATCH", "/api/settings", scope("admin"), "Change settings")
async def change_settings(call: Call, asked: SettingsPatch) -> SettingsBody:
    changed = await settings.change(await call.store(), asked.changes(), by=call.by, reason=asked.reason)
    call.api.forget_settings()
    return settings_body(changed)


def settings_body(current: settings.Current) -> SettingsBody:
    return SettingsBody(**msgspec.structs.asdict(current.settings), given=sorted(current.given))


@ROUTES.add(
    "POST", "/api/access/explain", scope("admin", writes=False), "Explain why a caller may do something, or not"
)
async def explain_access(call: Call, asked: ExplainBody) -> ExplainAnswer:
    """Explain why a caller with these claims may do something, or not. Changes nothing."""
    if asked.action not in ACTIONS:
        raise Problem("unknown_action", f"action: must be {' or '.join(ACTIONS)}", field="action")
    names = settings.GRANTED_BY[ACTIONS[asked.action]]
    judged = (
        {name: call.settings.rules[name] for name in names} if asked.rule is None else {"rule": rules.parse(asked.rule)}
    )
    job = await _job(call, asked.job)
    allowed = {name: judge(rule.bind(asked.claims, call.now), job) for name, rule in judged.items()}
    parts = [
        ExplainedPart(rule=name, **msgspec.structs.asdict(part))
        for name, rule in judged.items()
        for part in explain(rule, asked.claims, job, call.now)
    ]
    for part in parts:  # a column such as stage may hold a secret
        part.left, part.right = call.redaction.data([part.left, part.right])
    verdict = True if True in allowed.values() else None if None in allowed.values() else False
    own = next(iter(judged.values()))  # manage_rule, which includes the others, comes last
    return ExplainAnswer(allowed=verdict, why=_why(judged, allowed), rule=own.text, parts=parts)


async def _job(call: Call, given: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, str):
        found = await (await call.store()).read([check_id(given, "job")], Job)
        if not found:
            raise not_found()
        return columns(next(iter(found.values())))
    given = renamed(_COLUMNS, given, "job.")
    for name, value in given.items():
        if name not in FIELDS:
            raise InvalidInput(f"job.{name}", "unknown_field", f"is none of {', '.join(FIELDS)}")
        wanted = (int, float) if FIELDS[name] == "number" else str
        if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
            raise InvalidInput(f"job.{name}", "bad_value", f"must be a {FIELDS[name]}")
    times = {name: read_time(given[name], f"job.{name}") for name in given if FIELDS[name] == "time" and given[name]}
    return {**given, **times}


def _why(judged: Mapping[str, rules.Rule], allowed: Mapping[str, bool | None]) -> str:
    names = {name: f"the {name}" if name == "rule" else name for name in judged}
    if holding := [names[name] for name in judged if allowed[name]]:
        return f"{holding[0]} holds"
    if None in allowed.values():
        return "it depends on the job"
    written = [names[name] for name, rule in judged.items() if not rule.is_empty]
    if not written:
        verb = "is" if len(names) == 1 else "are"
        return f"{' and '.join(names.values())} {verb} empty: superusers and tokens with the scope only"
    return f"neither {' nor '.join(written)} holds" if len(written) > 1 else f"{written[0]} doesn't hold"
