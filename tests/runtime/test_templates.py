"""Templates: published by code or written by an operator, and the rule by which every path enqueues."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock import Context, Jobs, Status
from rowlock.client.definitions import KIND, REVISION
from rowlock.core.job import MAX_DELAY, Lane
from rowlock.core.moves import CancelTimeout
from rowlock.core.retry import Quadratic
from rowlock.core.templates import Cancel, Template, check_template, key_of, read_definition, template_of
from rowlock.errors import (
    CancelUnsupported,
    InvalidInput,
    InvalidState,
    OnceTaken,
    TemplateDisabled,
    TemplateExists,
    TemplateFrozen,
    TemplateNotFound,
    TemplateUnreadable,
)
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.rescue_guard import RescueGuard
from rowlock.runtime.settings import WorkerSettings
from rowlock.schemas import Validator, payload_schema
from rowlock.stores.records import Write
from rowlock.tasks import Arguments
from tests.stores.harness import claim_by
from tests.stores.processes import real_job
from tests.waiting import ended, status_of


@dataclass
class Address:
    street: str
    zip: int | None = None


class Person(pydantic.BaseModel):
    name: str
    friends: list["Person"] = []


# ── Schemas ──


def handler(n: int, to: Address, who: Person | None = None, tags: list[str] = [], ratio: float = 0.5) -> None:  # noqa: B006 - as users write it
    ...


FITS: list[dict[str, Any]] = [
    {"n": 1, "to": {"street": "s"}},
    {"n": 1, "to": {"street": "s", "zip": None}, "who": {"name": "a", "friends": [{"name": "b"}]}},
    {"n": 0, "to": {"street": ""}, "who": None, "tags": ["x"], "ratio": 1},
]
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({}, "payload."),
    ({"n": "1", "to": {"street": "s"}}, "payload.n"),
    ({"n": 1, "to": {"street": 5}}, "payload.to.street"),
    ({"n": 1, "to": {"zip": 5}}, "payload.to.street"),
    ({"n": 1, "to": {"street": "s"}, "tags": ["x", 1]}, "payload.tags[1]"),
    ({"n": 1, "to": {"street": "s"}, "other": 1}, "payload.other"),
]


def test_the_schema_of_a_handler_accepts_what_the_handler_accepts() -> None:
    arguments = Arguments(handler)
    schema = payload_schema(arguments.type, is_open=arguments.is_open, defaults=arguments.defaults)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["ratio"]["default"] == 0.5
    validator = Validator(schema)
    for payload in FITS:
        validator.check(payload)
        arguments.values(payload)
    for payload, field in MISFITS:
        for check in (validator.check, arguments.values):
            with pytest.raises(InvalidInput) as refused:
                check(payload)
            assert refused.value.field.startswith(field), payload


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({"topic": "a b"}, "topic"),
        ({"topic": "a", "unknown": 1}, "unknown"),
        ({"topic": "a", "version": -1}, "version"),
        ({"topic": "a", "schema": {"type": "array"}}, "schema"),
        ({"topic": "a", "schema": {"type": "nonsense"}}, "schema"),
        ({"topic": "a", "schema": {"properties": {"x": {"$ref": "http://elsewhere/x"}}}}, "schema"),
        ({"topic": "a", "schema": {"type": "object", "properties": {"x": {}}}, "key": ["y"]}, "key"),
        ({"topic": "a", "key": ["a..b"]}, "key"),
        ({"topic": "a", "retry": []}, "retry"),
        ({"topic": "a", "retry": {"sometimes": {}}}, "retry"),
        ({"topic": "a", "retry": [1, -1]}, "retry[1]"),
        ({"topic": "a", "timeout": 0}, "timeout"),
        ({"topic": "a", "max_retries": "3"}, "max_retries"),
        ({"topic": "a", "cancel": {"grace": -1}}, "cancel.grace"),
        ({"topic": "a", "cancel": {"mode": "rough"}}, "cancel.mode"),
        ({"topic": "a", "if_live": "maybe"}, "if_live"),
        ({"topic": "a", "if_live": "replace", "cancel": {"supported": False}}, "if_live"),
        ({"topic": "a", "once": True, "if_live": "queue"}, "once"),
        ({"topic": "a", "steps": [{"name": "x"}, {"name": "x"}]}, "steps[1].name"),
        ({"topic": "a", "timeout": 5, "timeoutSeconds": 5}, "timeoutSeconds"),
        ({"topic": "a", "title": 5}, "title"),
        ({"topic": "a", "description": []}, "description"),
        ({"topic": "a", "retry": "soon"}, "retry"),
        ({"topic": "a", "retry": {"quadratic": {"unit": "x"}}}, "retry.quadratic.unit"),
        ({"topic": "a", "retry": {"quadratic": {"unit": -1}}}, "retry.quadratic.unit"),
        ({"topic": "a", "retry": {"exponential": {"base": 1, "top": 5}}}, "retry.exponential.top"),
        ({"topic": "a", "retry": {"exponential": {"factor": 0}}}, "retry.exponential"),
        ({"topic": "a", "retention": -1}, "retention"),
        ({"topic": "a", "retention": "1d"}, "retention"),
        ({"topic": "a", "key": ["a", 3]}, "key[1]"),
        ({"topic": "a", "key": "a"}, "key"),
        ({"topic": "a", "once": "yes"}, "once"),
        ({"topic": "a", "schedulable": None}, "schedulable"),
        ({"topic": "a", "enabled": "no"}, "enabled"),
        ({"topic": "a", "cancel": "no"}, "cancel"),
        ({"topic": "a", "cancel": {"grase": 5}}, "cancel.grase"),
        ({"topic": "a", "steps": "all"}, "steps"),
        ({"topic": "a", "steps": ["x"]}, "steps[0]"),
        ({"topic": "a", "steps": [{"title": "x"}]}, "steps[0].name"),
        ({"topic": "a", "steps": [{"name": "x", "weight": "heavy"}]}, "steps[0].weight"),
        ({"topic": "a", "steps": [{"name": "x", "color": 1}]}, "steps[0].color"),
        ({"topic": "a", "limits": {"max": 5}}, "limits"),
        ({"topic": "a", "limits": ["x"]}, "limits[0]"),
        ({"topic": "a", "limits": [{"concurrency": 5}]}, "limits"),
        ({"topic": "a", "schema": []}, "schema"),
        ({"topic": "a", "schema": {"$ref": "#/$defs/none"}}, "schema"),
        ({"topic": "a", "schema": {"properties": {"x": {"pattern": "("}}}}, "schema"),
        ({"topic": "a", "result": {"type": 5}}, "result"),
        ({"topic": "a", "repeatable": "no"}, "repeatable"),
        ({"topic": "a", "concurrencyPolicy": []}, "concurrencyPolicy"),
        ({"topic": "a", "dedupeKeys": "x"}, "dedupeKeys"),
        ({"topic": "a", "cancelPolicy": True}, "cancelPolicy"),
        ({"topic": "a", "retryPolicy": 3}, "retryPolicy"),
        ({"topic": "a", "retryPolicy": {"attempts": 3}}, "retryPolicy.attempts"),
        ({"topic": "a", 5: 5}, "template"),
        ([], "template"),
    ],
)
async def test_bad_definitions_are_refused_by_name(jobs: Jobs, definition: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await jobs.templates.create(definition)
    assert refused.value.field.startswith(field)
    assert await jobs.templates.list() == []


def test_definitions_of_other_systems_are_understood() -> None:
    given = {
        "_id": "…", "type": "demo", "version": 1, "name": "Demo", "repeatable": False,
        "dedupeKeys": ["scope_id", "target"], "timeoutSeconds": 60,
        "cancelPolicy": {"supported": True, "mode": "cooperative", "graceSeconds": 5},
        "retryPolicy": {"maxAttempts": 2, "backoffSeconds": [30, 120]}, "createAt": 0,
        "steps": [{"id": "prepare", "name": "Prepare", "workerType": "go", "timeoutSeconds": 60, "cancelable": False}],
    }  # fmt: skip
    template = template_of(read_definition(given))
    assert (template.id, template.title, template.once, template.key) == ("demo@1", "Demo", True, ("target",))
    assert (template.timeout, template.max_retries, template.retry) == (60.0, 1, [30.0, 120.0])
    assert template.cancel == Cancel(grace=5.0)
    assert [(step.name, step.title, step.cancelable) for step in template.steps] == [("prepare", "Prepare", False)]
    policies = [
        read_definition({"topic": "a", "concurrencyPolicy": f"{name}_same_scope"}).if_live
        for name in ("queue", "replace")
    ]
    assert policies == ["queue", "replace"]


@pytest.mark.parametrize(
    ("fields", "payload", "key"),
    [
        (["target"], {"target": "x"}, '["x"]'),
        (["target"], {}, "[null]"),
        (["payload.a.b", "n"], {"a": {"b": [1]}, "n": 2}, "[[1],2]"),
        ([], {"x": 1}, "[]"),
        (["n"], {"n": 7}, "[7]"),
        (["n"], {"n": 7.0}, "[7]"),
        (["n"], {"n": "7"}, '["7"]'),
        (["n"], {"n": 1}, "[1]"),
        (["n"], {"n": True}, "[true]"),
        (["n"], {"n": -0.0}, "[0]"),
        (["n"], {"n": 0.5}, "[0.5]"),
        (["n"], {"n": 1e300}, "[1e300]"),
        (["n"], {"n": 2**53 + 1}, "[9007199254740993]"),
        (["n"], {"n": float(2**53)}, "[9007199254740992]"),
        (["n"], {"n": 2**63 - 1}, "[9223372036854775807]"),
        (["n"], {"n": float(2**63)}, "[9.223372036854776e18]"),
        (["n"], {"n": -float(2**63)}, "[-9223372036854775808]"),
        (["x"], {"x": {"b": [1.0, {"d": 2.0, "c": 1}], "a": "é"}}, '[{"a":"é","b":[1,{"c":1,"d":2}]}]'),
        (["x"], {"x": "e\N{COMBINING ACUTE ACCENT}"}, '["e\N{COMBINING ACUTE ACCENT}"]'),
    ],
)
def test_keys_from_fields(fields: list[str], payload: dict[str, Any], key: str) -> None:
    assert key_of(fields, payload) == key


NAMES = st.text("abé", max_size=2)
LEAVES = st.integers(-9, 9) | st.booleans() | NAMES


@settings(deadline=None)
@given(st.recursive(LEAVES, lambda one: st.lists(one) | st.dictionaries(NAMES, one), max_leaves=9))
def test_values_that_are_equal_as_json_make_one_key(value: Any) -> None:
    """Neither the way that numbers are written nor the order of fields changes the key."""

    def otherwise(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: otherwise(one[name]) for name in reversed(one)}
        if isinstance(one, list):
            return [otherwise(entry) for entry in one]
        return float(one) if type(one) is int else one

    assert key_of(["x"], {"x": value}) == key_of(["x"], {"x": otherwise(value)})


@pytest.mark.parametrize(("value", "code"), [([[]] * 2 + [object()], "not_json"), (float("nan"), "not_finite")])
def test_a_key_of_what_is_no_json(value: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        key_of(["x"], {"x": value})
    assert refused.value.code == code


def test_a_key_of_what_is_too_deep() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="nested"):
        key_of(["x"], {"x": deep})


async def test_a_number_with_a_point_has_the_same_key_on_every_path(jobs: Jobs) -> None:
    @jobs.task("count", key=["n"])
    async def count(n: int) -> None: ...

    @jobs.task("measure", key=["n"])
    async def measure(n: float) -> None: ...

    first, other = await count.enqueue(7), await measure.enqueue(7)
    assert (await jobs.enqueue("count", {"n": 7.0})).id == first.id
    assert (await measure.enqueue(7.0)).id == other.id
    assert [one.id for one in await jobs.enqueue_many([("count", {"n": 7.0})])] == [first.id]
    await jobs.templates.publish()
    assert (await jobs.enqueue("measure", {"n": 7.0})).id == other.id


def test_a_long_key_is_a_digest() -> None:
    keys = {key_of(["x"], {"x": "a" * 600}), key_of(["x"], {"x": "a" * 601})}
    assert len(keys) == 2
    assert all(len(key) < 100 for key in keys)


# ── Publishing ──


async def test_a_worker_publishes_what_it_has(jobs: Jobs) -> None:
    @jobs.task("mail", version=2, runs=[1], max_retries=7, retry=[5, 60], title="Mails", timeout=30)
    async def mail(to: str) -> int:
        """Send a mail.

        With details."""
        return 1

    assert jobs.lanes() == {Lane("mail", 0): mail, Lane("mail", 1): mail, Lane("mail", 2): mail}
    await jobs.start()
    [stored] = await jobs.templates.list()
    template = stored.template
    assert (template.id, template.title, template.description) == ("mail@2", "Mails", "Send a mail.")
    assert (template.max_retries, template.retry, template.timeout) == (7, [5.0, 60.0], 30.0)
    assert template.result == {"type": "integer"}
    assert (await jobs.workers.list())[0].topics == ("mail", "mail@1", "mail@2")
    assert [entry.action for entry in await jobs.audit.list()] == ["template.publish"]
    assert await jobs.templates.publish() == []
    assert len(await jobs.audit.list()) == 1


async def test_a_published_version_is_frozen(jobs: Jobs, url: str) -> None:
    @jobs.task("mail", version=1)
    async def mail(to: str) -> None: ...

    await jobs.templates.publish()
    before = await jobs.templates.list()
    async with Jobs(url) as newer:

        @newer.task("mail", version=1, timeout=5)
        async def changed(to: str, subject: str) -> None: ...

        @newer.task("other")
        async def other() -> None: ...

        with pytest.raises(TemplateFrozen, match="version=2") as refused:
            await newer.start()
        assert set(refused.value.changed) == {"schema"}
        assert await jobs.templates.list() == before
        assert await newer.workers.list() == []
    async with Jobs(url) as policies:

        @policies.task("mail", version=1, timeout=5, title="Mails")
        async def same(to: str) -> None: ...

        [change] = await policies.templates.diff()
        assert set(change.fields) == {"timeout", "title"}
        await policies.templates.publish()
    assert (await jobs.templates.get("mail")).template.timeout == 5.0


async def test_two_that_publish_at_once_do_no_harm(jobs: Jobs, url: str) -> None:
    others = [Jobs(url) for _ in range(6)]
    for n, one in enumerate(others):
        one.register("mail", lambda to: None, timeout=10 + n)
        one.register(f"own{n}", lambda: None)
    await asyncio.gather(*(one.templates.publish() for one in others))
    topics = [stored.template.topic for stored in await jobs.templates.list()]
    assert topics == ["mail", *(f"own{n}" for n in range(6))]
    for one in others:
        await one.close()


WRONG: Any = "wrong"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": ["nobody"]}, "key"),
        ({"cancel": Cancel(mode="kill")}, "cancel.mode"),
        ({"version": "1"}, "version"),
        ({"runs": [-1]}, "runs[0]"),
        ({"runs": "12"}, "runs"),
        ({"runs": 1}, "runs"),
        ({"runs": ["1"]}, "runs[0]"),
        ({"key": "to"}, "key"),
        ({"key": ["to", 3]}, "key[1]"),
        ({"key": 5}, "key"),
        ({"title": 5}, "title"),
        ({"title": ""}, "title"),
        ({"title": object()}, "title"),
        ({"description": 5}, "description"),
        ({"retry": "fast"}, "retry"),
        ({"retry": 5}, "retry"),
        ({"retry": None}, "retry"),
        ({"retry": []}, "retry"),
        ({"retry": Quadratic(-1)}, "retry.quadratic.unit"),
        ({"retry": Quadratic(WRONG)}, "retry.quadratic.unit"),
        ({"cancel": "no"}, "cancel"),
        ({"cancel": {"grace": 5}}, "cancel"),
        ({"cancel": Cancel(grace=WRONG)}, "cancel.grace"),
        ({"cancel": Cancel(supported=WRONG)}, "cancel.supported"),
        ({"cancel": Cancel(mode=WRONG)}, "cancel.mode"),
        ({"once": "yes"}, "once"),
        ({"schedulable": None}, "schedulable"),
        ({"retention": "1d"}, "retention"),
        ({"max_retries": None}, "max_retries"),
        ({"timeout": "10"}, "timeout"),
        ({"priority": 1.5}, "priority"),
        ({"process": "no"}, "process"),
        ({"steps": "prepare"}, "steps"),
        ({"steps": [5]}, "steps[0]"),
        ({"steps": [len, len]}, "steps[1].name"),
        ({"if_live": "sometimes"}, "if_live"),
        ({"retry": ["soon"]}, "retry[0]"),
        ({"retention": -1}, "retention"),
    ],
)
def test_bad_options_are_refused_where_they_are_made(jobs: Jobs, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        jobs.register("mail", lambda to: None, **options)
    assert refused.value.field == field
    assert not jobs.tasks


def test_two_tasks_with_one_topic_and_version(jobs: Jobs) -> None:
    jobs.register("mail", lambda: None, version=1)
    jobs.register("mail", lambda: None, version=2)
    for options in ({"version": 2}, {"version": 3, "runs": [1]}):
        with pytest.raises(InvalidInput) as refused:
            jobs.register("mail", lambda: None, **options)
        assert refused.value.code == "registered_twice"


def test_a_handler_must_be_a_function(jobs: Jobs) -> None:
    with pytest.raises(InvalidInput, match="must be a function, not 5"):
        jobs.register("mail", 5)  # type: ignore[call-overload]


# ── Records that can't be read ──

UNREADABLE: list[dict[str, Any]] = [
    {},
    {"template": {"topic": "broken", "once": "yes"}},
    {"template": {"topic": "broken", "title": 5, "cancel": {"grace": "soon"}}},
    {"template": {"topic": "broken", "version": 0, "retry": {"sometimes": {}}}},
    {"template": {"topic": "other", "version": 0}},
    {"template": {"topic": "broken", "version": 0}, "source": "elsewhere"},
]


@pytest.fixture(params=UNREADABLE, ids=str)
async def broken(jobs: Jobs, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Store a record for broken@0 that is no valid template, beside a valid template. Return the broken record."""
    await jobs.templates.create({"topic": "fine", "key": ["n"]})
    store = await jobs._store()
    kind, name = REVISION
    [record] = await store.records(kind, [name])
    assert await store.write_records([Write(kind, name, {}, record.revision), Write(KIND, "broken@0", request.param)])
    jobs.definitions.forget()
    return cast(dict[str, Any], request.param)


async def test_one_record_that_can_t_be_read_breaks_no_other_topic(jobs: Jobs, broken: dict[str, Any]) -> None:
    assert [one.template.topic for one in await jobs.templates.list()] == ["fine"]
    [unreadable] = await jobs.templates.unreadable()
    assert (unreadable.topic, unreadable.version) == ("broken", 0)
    assert unreadable.problem
    assert (await jobs.enqueue("fine", {"n": 1})).id == (await jobs.enqueue("fine", {"n": 1.0})).id
    await jobs.enqueue("free", {})
    for refused in (jobs.enqueue("broken", {}), jobs.templates.get("broken"), jobs.templates.disable("broken", 0)):
        with pytest.raises(TemplateUnreadable, match="Publish or create it again"):
            await refused
    maintenance = Maintenance(WorkerSettings(), "m", RescueGuard(1.0), lambda: None)
    maintenance._store = await jobs._store()
    retention = await maintenance._retention()
    assert retention.topics["broken"].completed == MAX_DELAY


async def test_a_record_that_can_t_be_read_is_mended_by_publish_or_create(jobs: Jobs, broken: dict[str, Any]) -> None:
    @jobs.task("broken")
    async def handler(n: int) -> None: ...

    made = await handler.enqueue(1)
    assert (await jobs.get((await jobs.enqueue("broken", {"n": 2})).id)).topic == (await jobs.get(made.id)).topic
    await jobs.start()
    assert [one.template.topic for one in await jobs.templates.list()] == ["broken", "fine"]
    assert await jobs.templates.unreadable() == []
    await ended(jobs, made.id)


async def test_a_cancel_times_out_though_a_template_can_t_be_read(jobs: Jobs, broken: dict[str, Any]) -> None:
    store = await jobs._store()
    await store.insert([real_job(topic="broken")])
    [job] = (await store.claim(claim_by("w", "broken"))).jobs
    await jobs.cancel(job.id)
    assert await store.move_due(CancelTimeout(by="m", grace=600.0)) == []
    assert [one.id for one in await store.move_due(CancelTimeout(by="m", grace=0.0))] == [job.id]


# ── Every path enqueues by the same rule ──

STORED = {
    "topic": "render",
    "version": 3,
    "schema": {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string"}, "n": {"type": "integer"}},
    },
    "max_retries": 9,
    "timeout": 77.0,
    "priority": 5,
    "key": ["file"],
}
Path = Callable[[Jobs, dict[str, Any]], Awaitable[Any]]
PATHS: dict[str, Path] = {
    "enqueue": lambda jobs, payload: jobs.enqueue("render", payload),
    "with options": lambda jobs, payload: jobs.enqueue("render", payload, delay=0.0, tags=["x"]),
    "version": lambda jobs, payload: jobs.enqueue("render", payload, version=3),
    "many pairs": lambda jobs, payload: jobs.enqueue_many([("render", payload)]),
    "many mappings": lambda jobs, payload: jobs.enqueue_many([{"topic": "render", "payload": payload}]),
    "sync": lambda jobs, payload: asyncio.to_thread(jobs.sync.enqueue, "render", payload),
}


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_goes_by_the_stored_template(jobs: Jobs, path: str) -> None:
    await jobs.templates.create(STORED)
    with pytest.raises(InvalidInput) as refused:
        await PATHS[path](jobs, {"file": "f", "n": "x"})
    assert refused.value.field.endswith("payload.n")
    with pytest.raises(InvalidInput, match="missing"):
        await PATHS[path](jobs, {})
    made = await PATHS[path](jobs, {"file": "f", "n": 1})
    job = await jobs.get((made[0] if isinstance(made, list) else made).id)
    assert (job.template_version, job.max_retries, job.timeout, job.priority) == (3, 9, 77.0, 5)
    assert job.key == '["f"]'
    again = await PATHS[path](jobs, {"file": "f"})
    assert (again[0] if isinstance(again, list) else again).existing
    await jobs.templates.disable("render")
    with pytest.raises(TemplateDisabled):
        await PATHS[path](jobs, {"file": "g"})


async def test_what_the_caller_gives_counts(jobs: Jobs) -> None:
    await jobs.templates.create(STORED)
    made = await jobs.enqueue("render", {"file": "f"}, key="own", priority=1, max_retries=0, timeout=3)
    job = await jobs.get(made.id)
    assert (job.key, job.priority, job.max_retries, job.timeout) == ("own", 1, 0, 3.0)
    with pytest.raises(InvalidInput, match="no version 4; there are: 3"):
        await jobs.enqueue("render", {"file": "f"}, version=4)
    with pytest.raises(InvalidInput) as refused:
        await jobs.enqueue("free", {}, if_live="queue")
    assert (refused.value.field, refused.value.code) == ("if_live", "needs_key")


async def test_the_newest_enabled_version_counts_and_a_task_uses_its_own(jobs: Jobs, url: str) -> None:
    @jobs.task("mail", version=1)
    async def old(to: str) -> None: ...

    @jobs.task("mail", version=2)
    async def new(to: str, subject: str) -> None: ...

    await jobs.templates.publish()
    async with Jobs(url) as other:
        made = await other.enqueue("mail", {"to": "a", "subject": "b"})
        assert (await jobs.get(made.id)).template_version == 2
        assert (await jobs.get((await old.enqueue("a")).id)).template_version == 1
        await jobs.templates.disable("mail", 2)
        other.definitions.forget()
        assert (await jobs.get((await other.enqueue("mail", {"to": "a"})).id)).template_version == 1
        with pytest.raises(TemplateDisabled):
            await new.enqueue("a", "b")
        await jobs.templates.enable("mail", 2)
        await new.enqueue("a", "b")


async def test_a_new_payload_must_fit_the_job_s_own_version(jobs: Jobs) -> None:
    await jobs.templates.create({**STORED, "key": None})
    made = await jobs.enqueue("render", {"file": "f"})
    with pytest.raises(InvalidInput, match=r"payload\.n"):
        await jobs.update(made.id, payload={"file": "f", "n": []})
    await jobs.cancel(made.id)
    with pytest.raises(InvalidInput, match=r"payload\.file"):
        await jobs.requeue(made.id, payload={"n": 1})
    assert (await jobs.requeue(made.id, payload={"file": "g"})).payload == {"file": "g"}


async def test_versions_are_run_by_the_worker_that_has_them(jobs: Jobs, url: str) -> None:
    """An older worker that still has version 1 keeps running its jobs. Every worker runs version 0."""
    ran: list[tuple[str, int]] = []

    @jobs.task("mail", version=1)
    async def old(ctx: Context, to: str) -> None:
        ran.append(("old", ctx.job.template_version))

    async with Jobs(url) as newer:

        @newer.task("mail", version=2)
        async def new(ctx: Context, to: str, subject: str = "") -> None:
            ran.append(("new", ctx.job.template_version))

        await newer.start()
        first, second = await old.enqueue("a"), await new.enqueue("a", "b")
        await ended(jobs, second.id)
        assert (await jobs.get(first.id)).status is Status.PENDING
        await jobs.start()
        await ended(jobs, first.id)
    assert sorted(ran) == [("new", 2), ("old", 1)]


# ── What a template does to its jobs ──


async def test_a_topic_that_does_not_support_cancel(jobs: Jobs) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @jobs.task(cancel=False)
    async def book(n: int) -> None:
        begun.set()
        await go_on.wait()

    later = await book.using(delay=60).enqueue(1)
    assert (await jobs.cancel(later.id)).status is Status.CANCELLED  # the job has never run
    await jobs.start()
    made = await book.enqueue(2)
    await begun.wait()
    with pytest.raises(CancelUnsupported, match="doesn't support cancel"):
        await jobs.cancel(made.id)
    go_on.set()
    assert (await ended(jobs, made.id)).status is Status.COMPLETED


async def test_a_line_is_run_in_order(jobs: Jobs) -> None:
    ran: list[int] = []

    @jobs.task(key=["target"], if_live="queue")
    async def sync_files(target: str, n: int) -> None:
        ran.append(n)

    made = [await sync_files.enqueue("a", n) for n in range(5)]
    assert [one.status for one in made] == [Status.PENDING, *[Status.BLOCKED] * 4]
    await jobs.start(concurrency=5)
    for one in made:
        assert (await ended(jobs, one.id)).status is Status.COMPLETED
    assert ran == list(range(5))


async def test_the_newest_replaces_a_running_job(jobs: Jobs) -> None:
    begun = asyncio.Event()

    @jobs.task(key=[], if_live="replace")
    async def index(n: int) -> int:
        begun.set()
        if n == 0:
            await asyncio.sleep(3600)
        return n

    await jobs.start()
    first = await index.enqueue(0)
    await begun.wait()
    others = [await index.enqueue(n) for n in (1, 2)]
    assert (await ended(jobs, others[-1].id)).result == 2
    assert (await status_of(jobs, first.id, Status.CANCELLED)).cancel_reason == f"replaced by {others[0].id}"
    assert (await jobs.get(others[0].id)).status is Status.CANCELLED


async def test_nothing_is_replaced_that_can_t_be_cancelled(jobs: Jobs) -> None:
    @jobs.task(cancel=False)
    async def book(n: int) -> None: ...

    with pytest.raises(InvalidInput) as refused:
        await book.using(key="k", if_live="replace").enqueue(1)
    assert (refused.value.field, refused.value.code) == ("if_live", "needs_cancel")


async def test_once_means_once(jobs: Jobs) -> None:
    @jobs.task(key=["order"], once=True)
    async def ship(order: int) -> None: ...

    await jobs.start()
    first = await ship.enqueue(7)
    await ended(jobs, first.id)
    with pytest.raises(OnceTaken) as refused:
        await ship.enqueue(7)
    assert refused.value.first == first.id
    await ship.enqueue(8)
    await jobs.delete(first.id)
    await ship.enqueue(7)


# ── Operators ──


async def test_operators_write_templates(jobs: Jobs) -> None:
    await jobs.templates.create(STORED, reason="for the farm", by="ann")
    with pytest.raises(TemplateExists):
        await jobs.templates.create(STORED)
    changed = await jobs.templates.update("render", 3, {"timeout": 5, "title": "Render"}, by="bob")
    assert (changed.template.timeout, changed.template.max_retries, changed.source) == (5.0, 9, "api")
    with pytest.raises(TemplateFrozen):
        await jobs.templates.update("render", 3, {"schema": None})
    with pytest.raises(TemplateNotFound):
        await jobs.templates.update("render", 4, {"timeout": 5})
    with pytest.raises(TemplateNotFound):
        await jobs.templates.get("nobody")
    entries = [(entry.action, entry.by, entry.reason) for entry in await jobs.audit.list()]
    assert entries == [("template.update", "bob", None), ("template.create", "ann", "for the farm")]
    assert (await jobs.audit.list())[0].data["changed"]["timeout"] == {"before": 77.0, "after": 5.0}


def test_a_template_is_the_same_after_a_round_trip() -> None:
    template = check_template(Template(topic="a", version=1, key=("x",), retry=[1.0], cancel=Cancel(grace=1.0)))
    assert msgspec.convert(msgspec.to_builtins(template), Template) == template


async def test_finished_jobs_stay_as_long_as_the_template_says(jobs: Jobs) -> None:
    @jobs.task(retention=2 * 86_400, max_retries=0)
    async def report(n: int) -> None:
        raise ValueError

    await jobs.templates.publish()
    maintenance = Maintenance(WorkerSettings(), "m", RescueGuard(1.0), lambda: None)
    maintenance._store = await jobs._store()
    retention = await maintenance._retention()
    assert {retention.of(status, "report") for status in (Status.COMPLETED, Status.FAILED)} == {2 * 86_400}
    assert retention.of(Status.FAILED, "other") is None


async def test_a_blocked_job_can_be_deleted_after_a_cancel(jobs: Jobs) -> None:
    head, blocked = [await jobs.enqueue("sync", {}, key="a", if_live="queue") for _ in range(2)]
    with pytest.raises(InvalidState, match="it is blocked; cancel it first"):
        await jobs.delete(blocked.id)
    await jobs.cancel(blocked.id)
    await jobs.delete(blocked.id)
    await jobs.delete(head.id)
