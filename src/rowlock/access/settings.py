"""Settings in the database, which apply without a restart: access rules, redaction, and how workers work.

A setting that was never set has its default. Rules are checked when they are saved; an unreadable rule denies access.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from rowlock.access import redaction
from rowlock.access.public_url import check_public_url
from rowlock.core import rules
from rowlock.core.codec import check_text
from rowlock.core.conditions import Condition, Every, Some
from rowlock.core.job import check_topic
from rowlock.core.rules import Rule
from rowlock.errors import InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.records import Entry, Record, Write

log = logging.getLogger("rowlock")

KIND, ID = "settings", "jobs"
MOST_TOPICS = 1000
_NOBODY = Rule("", False)

RULES = ("enqueue_rule", "view_rule", "cancel_rule", "manage_rule")
GRANTED_BY = {
    "enqueue": ("enqueue_rule",),
    "read": ("view_rule", "manage_rule"),
    "cancel": ("cancel_rule", "manage_rule"),
    "manage": ("manage_rule",),
}
"""The rules that allow for single jobs what a scope allows for all jobs. One rule that holds is enough."""


class AccessSettings(Struct, frozen=True, kw_only=True):
    """`enqueue_rule` is judged on the new job, the other rules on existing jobs; '' is superusers only.
    `allowed_topics`: topics that may be enqueued over HTTP; empty: all. `redact`: patterns of fields that are hidden
    over HTTP. `public_url`: where clients reach the HTTP API, for the addresses of callbacks; '': not set.
    `worker_pool_size`, and `poll_interval` and `lock_duration` in seconds, are for workers."""

    http_enabled: bool = True
    enqueue_rule: str = ""
    view_rule: str = ""
    cancel_rule: str = ""
    manage_rule: str = ""
    allowed_topics: tuple[str, ...] = ()
    worker_pool_size: int = 10
    poll_interval: float = 1.0
    lock_duration: float = 30.0
    redact: tuple[str, ...] = redaction.DEFAULTS
    public_url: str = ""


NAMES = AccessSettings.__struct_fields__
_BOUNDS = {"worker_pool_size": (1, 10_000), "poll_interval": (0.01, 3600), "lock_duration": (0.5, 86_400)}


class Current(Struct, frozen=True):
    """`given`: the settings that were set. `revision` 0: none was ever set. `rules`: by the names of their settings."""

    settings: AccessSettings
    given: Mapping[str, Any]
    revision: int
    rules: Mapping[str, Rule]
    redaction: redaction.Redaction

    def granted(self, scope: str, claims: Mapping[str, Any], now: datetime | None = None) -> Condition:
        """Return the jobs for which a rule allows what `scope` allows, to a caller with these claims. `now`: the time
        of @now; None: the time of this call."""
        at = datetime.now(UTC) if now is None else now
        return _either([self.rules[name].bind(claims, at) for name in GRANTED_BY[scope]])


def _either(conditions: Sequence[Condition]) -> Condition:
    """Return a condition that holds if one of these does. It leaves out those that only repeat another one with more
    demands: without them, a list can use the index that the other one leads to."""
    if True in conditions:
        return True
    demands = {one: set(one.parts) if isinstance(one, Every) else {one} for one in conditions if one is not False}
    left = tuple(one for one in demands if not any(demands[other] < demands[one] for other in demands))
    return Some(left) if len(left) > 1 else left[0] if left else False


def check(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked settings. None means the default."""
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in NAMES:
            raise InvalidInput(name, "unknown_setting", f"is none of {', '.join(NAMES)}")
        checked[name] = None if value is None else _check(name, value)
    return checked


def _check(name: str, value: Any) -> Any:
    match name:
        case "http_enabled":
            if not isinstance(value, bool):
                raise InvalidInput(name, "not_a_bool", f"must be true or false, not {value!r:.40}")
            return value
        case _ if name in RULES:
            if not isinstance(value, str):
                raise InvalidInput(name, "not_text", f"must be text, not {type(value).__name__}")
            return rules.parse(value, name).text
        case "allowed_topics":
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise InvalidInput(name, "not_a_list", f"must be a list of topics, not {type(value).__name__}")
            if len(value) > MOST_TOPICS:
                raise InvalidInput(name, "too_many", f"has {len(value)} entries, at most {MOST_TOPICS} are allowed")
            try:
                return list(dict.fromkeys(check_topic(topic) for topic in value))
            except InvalidInput as error:
                raise InvalidInput(name, error.code, error.problem) from None
        case "public_url":
            if not isinstance(value, str):
                raise InvalidInput(name, "not_text", f"must be text, not {type(value).__name__}")
            return check_public_url(value) if value else ""
        case "redact":
            return redaction.check_patterns(value)
        case _:
            low, high = _BOUNDS[name]
            whole = name == "worker_pool_size"
            kind = int if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                what = "a whole number" if whole else "a number of seconds"
                raise InvalidInput(name, "out_of_range", f"must be {what} from {low:g} to {high:g}, not {value!r:.40}")
            return value if whole else float(value)


async def load(store: Store) -> Current:
    found = await store.records(KIND, [ID])
    return read(found[0] if found else None)


def read(record: Record | None) -> Current:
    given = {} if record is None else {name: value for name, value in record.data.items() if _is_good(name, value)}
    tuples: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    settings = AccessSettings(**tuples)
    return Current(
        settings,
        given,
        0 if record is None else record.revision,
        {name: _rule(name, getattr(settings, name)) for name in RULES},
        redaction.redaction(settings.redact),
    )


def _is_good(name: str, value: Any) -> bool:
    """Return False for settings of another version of rowlock that this one does not know."""
    if name not in NAMES or value is None:
        return False
    try:
        return name in RULES or _check(name, value) is not None
    except InvalidInput as error:
        log.error("the setting has no effect: %s", error)
        return False


def _rule(name: str, text: str) -> Rule:
    try:
        return rules.parse(text, name)
    except InvalidInput as error:  # written by another version of rowlock
        log.error("%s denies everyone but superusers, because it can't be read: %s", name, error)
        return _NOBODY


async def change(store: Store, changes: Mapping[str, Any], *, by: str, reason: str | None = None) -> Current:
    """Change only these settings. The audit records the values before and after."""
    checked = check(changes)
    if reason is not None:
        reason = check_text(reason, "reason", max_chars=2000)
    if not checked:
        raise InvalidInput("settings", "nothing_given", f"give one of {', '.join(NAMES)}")
    while True:  # until no other process has changed them in between
        current = await load(store)
        after = {**current.given, **checked}
        data = {name: value for name, value in after.items() if value is not None}
        before = {name: current.given.get(name) for name in checked}
        entry = Entry(by, "settings.change", reason=reason, data={"before": before, "after": checked})
        if await store.write_records([Write(KIND, ID, data, revision=current.revision)], entry):
            return await load(store)


NOTHING = read(None)
"""All settings have their defaults."""
