"""Template: the stored definition of a topic in one version, and its meaning for a job.

A definition is JSON. Code publishes it (`@jobs.task`), or an operator writes it for workers in other languages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast, get_args
from unicodedata import category

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rowlock.core import codec
from rowlock.core.debounce import Window, check_alone, check_debounce, check_window
from rowlock.core.expected import explain
from rowlock.core.job import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    MAX_TEXT,
    Lane,
    check_delay,
    check_priority,
    check_timeout,
    check_topic,
    check_whole,
)
from rowlock.core.limits import Limit, check_limits
from rowlock.core.retry import DEFAULT_RETRY, Delays, Exponential, Quadratic, RetryPolicy
from rowlock.core.steps import MAX_STEPS as MAX_STEPS
from rowlock.core.waits import is_step_name
from rowlock.errors import InvalidInput

IfLive = Literal["reject", "queue", "replace"]
MAX_TEMPLATE_VERSION = 1_000_000
MAX_TITLE, MAX_DESCRIPTION = 200, 4000

# Fields that are frozen from version 1 on: a job of a version must fit the code that runs it.
FROZEN = ("schema", "steps")


class Cancel(Struct, frozen=True, kw_only=True):
    """What a cancel may do. `supported` False: a job can't be cancelled once a run has started. `grace`: seconds that a
    handler has to end; None: as the worker is set. `mode` "kill": then its child process is killed (process handlers
    only)."""

    supported: bool = True
    grace: float | None = None
    mode: Literal["cooperative", "kill"] = "cooperative"


class StepInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that a template declares."""

    name: str
    title: str | None = None
    timeout: float | None = None
    weight: float = 1.0
    cancelable: bool = True
    max_retries: int | None = None  # None: the job's retries count


# As JSON: a list of seconds, or one of the others with its name: {"exponential": {"base": 1.0, …}}.
RetryData = list[float] | dict[str, Any]


class Template(Struct, frozen=True, kw_only=True):
    """The definition of a topic. `key`: the fields of a job that make its key. `throttle`: seconds in which one job per
    key is made. `retention`: seconds that finished jobs
    stay. `result`: the JSON Schema of the result, for readers and generated types. `external`: only workers that speak
    the worker protocol run its jobs."""

    topic: str
    version: int = 0
    title: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    steps: tuple[StepInfo, ...] = ()
    max_retries: int = DEFAULT_MAX_RETRIES
    retry: RetryData = msgspec.field(default_factory=lambda: {"quadratic": {"unit": 60.0}})
    timeout: float = DEFAULT_TIMEOUT
    priority: int = DEFAULT_PRIORITY
    cancel: Cancel = Cancel()
    key: tuple[str, ...] | None = None
    if_live: IfLive | None = None
    once: bool = False
    debounce: Window | None = None
    throttle: float | None = None
    schedulable: bool = True
    retention: float | None = None
    limits: tuple[Limit, ...] = ()
    external: bool = False

    @property
    def id(self) -> str:
        return f"{self.topic}@{self.version}"

    @property
    def policy(self) -> RetryPolicy:
        return retry_policy(self.retry)

    @property
    def needs_python(self) -> bool:
        """True if only a client with rowlock's library can enqueue it: SQL alone can't make its key, or keep a line."""
        return self.key is not None or self.once or self.if_live in ("queue", "replace") or self.has_window

    @property
    def has_window(self) -> bool:
        return self.debounce is not None or self.throttle is not None


class Stored(Struct, frozen=True, kw_only=True):
    """A template as the database has it. `enabled` is the operators': publishing doesn't change it."""

    template: Template
    enabled: bool = True
    source: Literal["code", "api"] = "code"


def to_data(stored: Stored) -> dict[str, Any]:
    """Return the data for the database, which `from_data` reads."""
    data: dict[str, Any] = msgspec.to_builtins(stored)
    return data


class Unreadable(Struct, frozen=True, kw_only=True):
    """A record that should hold a template, and doesn't: another program has written it, or a newer release. `version`
    None: not even its id can be read."""

    topic: str
    version: int | None
    problem: str
    enabled: bool = True


def from_data(record: str, data: Mapping[str, Any]) -> Stored | Unreadable:
    """Read the record with this id. Unknown fields are from a newer release. A record that can't be read must not raise
    an error, because the other templates still count."""
    try:
        stored = msgspec.convert(data, Stored)
        retry_policy(stored.template.retry)
        if stored.template.id == record:
            return stored
        problem = f"it is the template of {stored.template.id}"
    except msgspec.ValidationError as error:
        misfit = explain(error, Stored)
        problem = f"{misfit.path}: {misfit.problem}" if misfit.path else misfit.problem
    except InvalidInput as error:
        problem = str(error)
    topic, _, number = record.rpartition("@")
    enabled = data.get("enabled") is not False
    if topic and number.isascii() and number.isdigit() and len(number) <= 7:
        return Unreadable(topic=topic, version=int(number), problem=problem, enabled=enabled)
    return Unreadable(topic=record, version=None, problem=problem, enabled=enabled)


# ── Checks ──


def check_template(template: Template) -> Template:
    """Check every field; InvalidInput names it. Return the template in its canonical form, which `from_data` can
    read."""
    if template.cancel.grace is not None:
        cancel = msgspec.structs.replace(template.cancel, grace=check_delay(template.cancel.grace, "cancel.grace"))
        template = msgspec.structs.replace(template, cancel=cancel)
    template = _typed(template)
    check_topic(template.topic)
    version = check_template_version(template.version)
    title = _text(template.title, "title", MAX_TITLE)
    description = _text(template.description, "description", MAX_DESCRIPTION)
    if template.schema is not None:
        codec.encode(template.schema, "schema")
        if template.schema.get("type", "object") != "object":
            raise InvalidInput("schema", "not_an_object", 'must describe an object: {"type": "object", …}')
    check_whole(template.max_retries, "max_retries", 0, 1_000_000)
    policy = retry_policy(template.retry)
    check_timeout(template.timeout)
    if template.retention is not None:
        check_delay(template.retention, "retention")
    if template.if_live == "replace" and not template.cancel.supported:
        raise InvalidInput(
            "if_live", "needs_cancel", '"replace" cancels the older job, so cancel.supported must be true'
        )
    if template.once and template.if_live in ("queue", "replace"):
        raise InvalidInput("once", "with_if_live", f"allows one job per key, so nothing can {template.if_live}")
    window = None if template.debounce is None else check_debounce(template.debounce)
    throttle = None if template.throttle is None else check_window(template.throttle, "throttle")
    check_alone(window, throttle, if_live=template.if_live, once=template.once, topic=template.topic)
    check_limits(template.limits, template.schema)
    return msgspec.structs.replace(
        template,
        version=version,
        title=title,
        description=description,
        steps=_check_steps(template.steps),
        retry=retry_data(policy),
        timeout=float(template.timeout),
        priority=check_priority(template.priority),
        key=None if template.key is None else tuple(check_key_field(name, template.schema) for name in template.key),
        debounce=window,
        throttle=throttle,
    )


def _typed(template: Template) -> Template:
    """Return the template as it is read from the database. InvalidInput names a field of the wrong type."""
    fields: dict[str, Any] = {}
    for name in Template.__struct_fields__:
        try:
            fields[name] = msgspec.to_builtins(getattr(template, name))
        except (TypeError, ValueError) as error:
            raise InvalidInput(name, "not_json", f"can't be stored: {error}") from None
    try:
        return msgspec.convert(fields, Template)
    except msgspec.ValidationError as error:
        misfit = explain(error, Template)
        raise InvalidInput(misfit.path or "template", "bad_value", misfit.problem) from None


def check_template_version(value: object, field: str = "version") -> int:
    return check_whole(value, field, 0, MAX_TEMPLATE_VERSION)


def read_lane(text: str, field: str = "topics") -> Lane:
    """Return the lane of a text: `topic` is version 0, `topic@version` another version."""
    topic, at, version = text.partition("@")
    if at and not (version.isascii() and version.isdigit() and len(version) <= 7):
        raise InvalidInput(field, "bad_lane", f"{text!r:.60} names no version: write topic@version, such as mail@1")
    number = check_whole(int(version), field, 0, MAX_TEMPLATE_VERSION) if at else 0
    return Lane(check_topic(topic), number)


def check_if_live(value: object) -> IfLive:
    if value not in get_args(IfLive):
        raise InvalidInput("if_live", "unknown_name", f"{value!r:.40} is none of {', '.join(get_args(IfLive))}")
    return cast(IfLive, value)


def check_key_field(name: object, schema: Mapping[str, Any] | None) -> str:
    """Check that it names a field of the payload: `target`, or `payload.a.b`; one that the schema has."""
    if not isinstance(name, str) or not name or any(not part for part in name.split(".")):
        raise InvalidInput(
            "key", "bad_field", f"{name!r:.60} names no field: give payload fields, such as target or payload.a.b"
        )
    inner: Any = schema
    for part in _path(name):
        if not isinstance(inner, Mapping) or "$ref" in inner or "properties" not in inner:
            return name  # nothing is known about it
        if part not in inner["properties"]:
            known = ", ".join(sorted(inner["properties"])) or "none"
            raise InvalidInput("key", "unknown_field", f"{name!r} names no field of the payload; there are: {known}")
        inner = inner["properties"][part]
    return name


def check_step_name(name: object, field: str = "name") -> str:
    """Return the checked name of a step. `name#2` means its second call. Names with a leading @ are kept for waits."""
    text = codec.check_text(name, field, max_chars=MAX_TITLE)
    if "#" in text or not is_step_name(text) or any(category(one) == "Cc" for one in text):
        raise InvalidInput(
            field, "bad_name", f"{text!r:.60} has a #, a control character or an @ at its start: use another name"
        )
    return text


def _check_steps(steps: Sequence[StepInfo]) -> tuple[StepInfo, ...]:
    if len(steps) > MAX_STEPS:
        raise InvalidInput("steps", "too_many", f"has {len(steps)} entries, at most {MAX_STEPS} are allowed")
    seen: set[str] = set()
    for n, step in enumerate(steps):
        field = f"steps[{n}]"
        check_step_name(step.name, f"{field}.name")
        _text(step.title, f"{field}.title", MAX_TITLE)
        if step.timeout is not None:
            check_delay(step.timeout, f"{field}.timeout")
        if step.max_retries is not None:
            check_whole(step.max_retries, f"{field}.max_retries", 0, 1_000_000)
        if not 0 <= step.weight <= 1e6:
            raise InvalidInput(f"{field}.weight", "out_of_range", f"must be 0 to 1,000,000, not {step.weight}")
        if step.name in seen:
            raise InvalidInput(f"{field}.name", "twice", f"{step.name!r} is the name of an earlier step, too")
        seen.add(step.name)
    return tuple(steps)


def _text(value: str | None, field: str, most: int) -> str | None:
    return None if value is None else codec.check_text(value, field, max_chars=most)


# ── Retry policies as data ──

_KINDS: dict[str, type[Quadratic | Exponential]] = {"quadratic": Quadratic, "exponential": Exponential}


def retry_data(policy: RetryPolicy) -> RetryData:
    """Return the policy as JSON. A Python callable can't be stored: the default's delays stand in for it, in rescues
    and in workers of other languages."""
    if isinstance(policy, Delays):
        return list(policy.seconds)
    for name, kind in _KINDS.items():
        if isinstance(policy, kind):
            return {name: msgspec.to_builtins(policy)}
    return retry_data(DEFAULT_RETRY)


def retry_policy(data: object) -> Quadratic | Delays | Exponential:
    if isinstance(data, list | tuple):
        if not data:
            raise InvalidInput("retry", "empty", "must hold at least one number of seconds, such as [30, 120]")
        return Delays(tuple(check_delay(seconds, f"retry[{n}]") for n, seconds in enumerate(data)))
    if isinstance(data, Mapping) and len(data) == 1 and (name := next(iter(data))) in _KINDS:
        kind, given = _KINDS[name], data[name]
        if isinstance(given, Mapping) and (unknown := [key for key in given if key not in kind.__struct_fields__]):
            problem = f"there is no such field; there are: {', '.join(kind.__struct_fields__)}"
            raise InvalidInput(f"retry.{name}.{unknown[0]}", "unknown_field", problem)
        try:
            policy = msgspec.convert(given, kind)
        except InvalidInput as error:
            raise InvalidInput(f"retry.{name}", "bad_value", str(error)) from None
        except msgspec.ValidationError as error:
            misfit = explain(error, kind)
            place = f"retry.{name}.{misfit.path}" if misfit.path else f"retry.{name}"
            raise InvalidInput(place, "bad_value", misfit.problem) from None
        if isinstance(policy, Quadratic):
            check_delay(policy.unit, "retry.quadratic.unit")
        return policy
    raise InvalidInput(
        "retry", "not_a_policy", 'must be a list of seconds, {"quadratic": {"unit": 60}} or {"exponential": {…}}'
    )


# ── Definitions from outside ──


class StepGiven(StepInfo, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CancelGiven(Cancel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Definition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A definition as an operator writes it. A field that is not given keeps its value, or gets the default."""

    topic: str
    version: int | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    title: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    schema: dict[str, Any] | UnsetType | None = UNSET
    result: dict[str, Any] | UnsetType | None = UNSET
    steps: tuple[StepGiven, ...] | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    retry: RetryData | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    cancel: CancelGiven | UnsetType = UNSET
    key: tuple[str, ...] | UnsetType | None = UNSET
    if_live: IfLive | UnsetType | None = UNSET
    once: bool | UnsetType = UNSET
    debounce: Window | UnsetType | None = UNSET
    throttle: float | UnsetType | None = UNSET
    schedulable: bool | UnsetType = UNSET
    retention: float | UnsetType | None = UNSET
    limits: tuple[Limit, ...] | UnsetType = UNSET
    external: bool | UnsetType = UNSET


# Names of another design of job systems, which are understood as well.
_POLICIES = {"reject_same_scope": "reject", "queue_same_scope": "queue", "replace_same_scope": "replace"}
_IGNORED = ("_id", "createAt", "updateAt")  # made by the database
_RENAMED = {
    "type": "topic", "name": "title", "timeoutSeconds": "timeout", "payloadSchema": "schema",
    "maxRetries": "max_retries", "ifLive": "if_live",
}  # fmt: skip
_SCOPES = ("scope", "scope_id", "scopeId")  # always part of a key


def read_definition(data: object) -> Definition:
    """Check a definition that came as JSON; InvalidInput names the field."""
    if not isinstance(data, Mapping):
        raise InvalidInput("template", "not_an_object", f"must be a JSON object, not {type(data).__name__}")
    plain = _translated(data)
    try:
        return msgspec.convert(plain, Definition)
    except msgspec.ValidationError as error:
        misfit = explain(error, Definition)
        if misfit.what == "unknown":
            known = f"is no field of a template; there are: {', '.join(Definition.__struct_fields__)}"
            problem = misfit.problem if "." in misfit.path else known
            raise InvalidInput(misfit.path, "unknown_field", problem) from None
        raise InvalidInput(misfit.path or "template", "bad_value", misfit.problem) from None


def _translated(data: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the fields that other systems call differently. A field that is given in both spellings is refused."""
    plain: dict[str, Any] = {}
    names: Iterable[object] = data
    if unnamed := [name for name in names if not isinstance(name, str)]:
        raise InvalidInput("template", "key_not_text", f"has a key {unnamed[0]!r:.40} that is not a string")

    def put(name: str, value: Any, said: str) -> None:
        if name in plain:
            raise InvalidInput(said, "twice", f"says the same as {name}, which is given, too")
        plain[name] = value

    for name, value in data.items():
        match name:
            case _ if name in _IGNORED:
                pass
            case "repeatable":
                put("once", not _a(bool, value, name), name)
            case "concurrencyPolicy":
                put("if_live", _POLICIES.get(_a(str, value, name), value), name)
            case "dedupeKeys":
                put("key", [field for field in _a(list, value, name) if field not in _SCOPES], name)
            case "cancelPolicy":
                policy = _a(dict, value, name)
                put("cancel", {"grace" if key == "graceSeconds" else key: one for key, one in policy.items()}, name)
            case "retryPolicy":
                policy = _a(dict, value, name)
                if unknown := [key for key in policy if key not in ("maxAttempts", "backoffSeconds")]:
                    field = f"{name}.{unknown[0]}"
                    raise InvalidInput(field, "unknown_field", "is neither maxAttempts nor backoffSeconds")
                if "maxAttempts" in policy:
                    attempts = check_whole(policy["maxAttempts"], "retryPolicy.maxAttempts", 1, 1_000_001)
                    put("max_retries", attempts - 1, name)
                if policy.get("backoffSeconds") not in (None, []):
                    put("retry", policy["backoffSeconds"], name)
            case "debounce" if isinstance(value, dict):
                put("debounce", {"at_most" if key == "atMost" else key: one for key, one in value.items()}, name)
            case "steps" if isinstance(value, list):
                put("steps", [_step(step) for step in value], name)
            case _:
                put(_RENAMED.get(name, name), value, name)
    return plain


_KINDS_OF = {bool: "true or false", str: "a text", list: "a list", dict: "an object"}
_V = TypeVar("_V", bool, str, "list[Any]", "dict[str, Any]")


def _a(kind: type[_V], value: Any, field: str) -> _V:
    if not isinstance(value, kind):
        raise InvalidInput(field, "bad_value", f"must be {_KINDS_OF[kind]}, not {value!r:.40}")
    return value


def _step(step: Any) -> Any:
    """Return the step with our names. `workerType` is dropped: any worker that has the topic runs all of its steps."""
    if not isinstance(step, Mapping) or "id" not in step:
        return step
    names = {"id": "name", "name": "title", "timeoutSeconds": "timeout"}
    return {names.get(key, key): value for key, value in step.items() if key != "workerType"}


def template_of(definition: Definition, before: Template | None = None) -> Template:
    """Return the checked template of a definition. A field that it leaves out stays as it was `before`."""
    given = {
        name: value for name in Template.__struct_fields__ if (value := getattr(definition, name, UNSET)) is not UNSET
    }
    base = before or Template(topic=definition.topic)
    return check_template(msgspec.structs.replace(base, **given))


# ── Comparing ──


def difference(old: Template, new: Template, fields: Sequence[str] | None = None) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values as JSON. `fields`: only these."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    names = Template.__struct_fields__ if fields is None else fields
    return {name: (before[name], after[name]) for name in names if before[name] != after[name]}


def frozen_difference(old: Template, new: Template) -> dict[str, tuple[Any, Any]]:
    """Return the differences that one version must not have. Version 0 may change with each deploy. Titles in a schema
    may change."""
    if new.version == 0:
        return {}
    found = difference(old, new, FROZEN)
    if "schema" in found and _without_notes(old.schema) == _without_notes(new.schema):
        del found["schema"]
    if "steps" in found and [step.name for step in old.steps] == [step.name for step in new.steps]:
        del found["steps"]
    return found


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        notes = ("title", "description", "examples")
        return {
            key: {name: _without_notes(one) for name, one in value.items()}
            if key in ("properties", "$defs") and isinstance(value, Mapping)
            else _without_notes(value)
            for key, value in schema.items()
            if key not in notes
        }
    return [_without_notes(one) for one in schema] if isinstance(schema, list) else schema


# ── Keys ──


def _path(name: str) -> list[str]:
    return name.split(".")[1:] if name.startswith("payload.") else [name]


def key_of(fields: Sequence[str], payload: Mapping[str, Any]) -> str:
    """Return the key that these fields of a payload make. A missing field counts as null. A long key is a digest."""
    values: list[Any] = []
    for name in fields:
        value: Any = payload
        for part in _path(name):
            value = value.get(part) if isinstance(value, Mapping) else None
        values.append(value)
    text = codec.encode(values, "key")  # refuses values that are no JSON
    if any(isinstance(value, float | list | tuple | Mapping) for value in values):
        text = codec.encode(_same(values), "key")
    return text if len(text) <= MAX_TEXT else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _same(value: Any) -> Any:
    """Return one form of all values that are equal as JSON: 7 is 7.0, and the order of an object's fields does not
    count. But 7, "7" and true differ from each other."""
    if isinstance(value, float) and value.is_integer() and codec.INT_MIN <= value <= codec.INT_MAX:
        return int(value)
    if isinstance(value, Mapping):
        return {name: _same(value[name]) for name in sorted(value)}
    return [_same(one) for one in value] if isinstance(value, list | tuple) else value


def line_of(topic: str, scope: str | None, scope_id: str | None, key: str) -> str:
    """Return the line that jobs with this key stand in: a digest of all that the key is unique in."""
    text = codec.encode([topic, scope, scope_id, key], "key")
    return hashlib.sha256(text.encode()).hexdigest()[:32]
