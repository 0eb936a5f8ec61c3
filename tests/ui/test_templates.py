"""Templates on the page: forms that are made from schemas, versions without a worker, lines of jobs."""

import json
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from rowlock import Filter
from rowlock.access.identity import SCOPES
from rowlock.stores.records import Write
from tests.http.harness import World
from tests.ui.browser import Visitor

ORDER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["order_id", "customer", "items", "mode"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1, "description": "Its number in the shop"},
        "customer": {"$ref": "#/$defs/Customer"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "minItems": 1},
        "mode": {"enum": ["fast", "cheap"]},
        "notify": {"type": "boolean", "default": True},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "shape": {"oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "$defs": {
        "Customer": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "parent": {"$ref": "#/$defs/Customer"}},
        },
        "Item": {
            "type": "object",
            "required": ["code"],
            "properties": {
                "code": {"type": "string", "pattern": "^[A-Z]+$"},
                "count": {"type": "integer", "default": 1},
            },
        },
        "Circle": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "circle"}}},
        "Square": {
            "type": "object",
            "required": ["kind", "side"],
            "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
        },
    },
}


def group(page: Page, name: str) -> Any:
    return page.get_by_role("group", name=name, exact=True)


async def fill_order(page: Page, code: str = "AB") -> None:
    await page.get_by_label("order_id").fill("12345678901234567")  # JavaScript would round this number
    await group(page, "customer").get_by_label("name", exact=True).fill("Ann")
    await group(page, "items[0]").get_by_label("code").fill("AA")
    await page.get_by_role("button", name="Add to items").click()
    await group(page, "items[1]").get_by_label("code").fill(code)
    await page.get_by_label("mode").select_option("fast")


@pytest.mark.quick
async def test_a_form_is_made_from_the_schema(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.jobs.templates.create({"topic": "orders", "version": 1, "schema": ORDER})
    page = await sqlite_visitor.enter("new?topic=orders")
    enqueue = page.get_by_role("button", name="Enqueue")
    await enqueue.click()  # nothing is sent: these fields are missing
    for field in ("order_id", "mode"):
        await expect(page.get_by_label(field)).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("order_id")).to_be_focused()
    await expect(group(page, "customer").get_by_text("is missing")).to_have_count(1)
    assert await sqlite_visitor.violations() == []
    await fill_order(page)
    await page.get_by_label("Kind of shape").select_option("Square")
    side = page.get_by_label("side")
    await side.fill("1.50")
    labels = page.get_by_label("labels")
    await labels.fill("{")
    await labels.blur()
    await expect(page.get_by_text("expected a name in double quotes")).to_be_visible()
    await enqueue.click()
    await expect(labels).to_be_focused()
    await labels.fill('{"a": "b"}')
    await labels.blur()
    await expect(page.locator(".payload .wrong")).to_have_count(0)
    await page.get_by_role("button", name="JSON", exact=True).click()
    text = page.get_by_role("textbox", name="Payload")
    whole = await text.input_value()
    assert json.loads(whole) == {
        "order_id": 12345678901234567,
        "customer": {"name": "Ann"},
        "items": [{"code": "AA", "count": 1}, {"code": "AB", "count": 1}],
        "mode": "fast",
        "notify": True,
        "shape": {"kind": "square", "side": 1.5},
        "labels": {"a": "b"},
    }
    await text.fill(whole[:-1])
    await page.get_by_role("button", name="Form", exact=True).click()
    await expect(page.get_by_text("The JSON is not valid")).to_be_visible()
    await expect(enqueue).to_be_disabled()
    await page.get_by_role("button", name="Mend the JSON").click()
    await expect(text).to_have_value(whole[:-1])  # the text stays as it was
    await text.fill(whole.replace('"Ann"', '"Bob"'))
    await page.get_by_role("button", name="Form", exact=True).click()
    await expect(group(page, "customer").get_by_label("name", exact=True)).to_have_value("Bob")
    await page.get_by_role("button", name="Remove items[1]").click()
    await enqueue.click()
    await sqlite_visitor.toast("The job is enqueued")
    [made] = (await sqlite_world.jobs.list(limit=1)).items
    assert made.template_version == 1
    assert made.payload["order_id"] == 12345678901234567
    assert made.payload["customer"] == {"name": "Bob"}
    assert made.payload["items"] == [{"code": "AA", "count": 1}]
    link = page.locator("dd").get_by_role("link", name="version 1")
    await link.click()
    await expect(page.get_by_role("heading", name="orders")).to_be_visible()


CHOICES: dict[str, Any] = {
    "type": "object",
    "required": ["shape", "size"],
    "properties": {
        "shape": {"oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
        "size": {"anyOf": [{"type": "string", "title": "name"}, {"type": "integer", "title": "pixels", "maximum": 9}]},
    },
    "$defs": ORDER["$defs"],
}


async def test_a_wrong_value_in_an_alternative_is_shown_at_its_field(
    sqlite_visitor: Visitor, sqlite_world: World
) -> None:
    """The page tells it without the server, and by the alternative that the user chose."""
    await sqlite_world.jobs.templates.create({"topic": "shapes", "schema": CHOICES})
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go("new?topic=shapes")
    await page.get_by_label("Kind of shape").select_option("Square")
    side = page.get_by_label("side")
    await side.fill("wide")
    await expect(side).to_have_accessible_description("must be a number")
    await page.get_by_label("Kind of size").select_option("pixels")
    size = page.get_by_label("pixels", exact=True)
    for text, problem in (("many", "must be a whole number"), ("10", "must be at most 9")):
        await size.fill(text)
        await expect(size).to_have_accessible_description(re.compile(problem))
    await expect(page.locator(".payload [aria-invalid=true]")).to_have_count(2)
    await page.get_by_role("button", name="Enqueue").click()
    await expect(side).to_be_focused()
    assert (await sqlite_world.jobs.list(Filter(topics=["shapes"]))).items == []
    await side.fill("1.5")
    await size.fill("7")
    await expect(page.locator(".payload [aria-invalid=true]")).to_have_count(0)
    await page.get_by_role("button", name="Enqueue").click()
    await sqlite_visitor.toast("The job is enqueued")
    [made] = (await sqlite_world.jobs.list(Filter(topics=["shapes"]))).items
    assert made.payload == {"shape": {"kind": "square", "side": 1.5}, "size": 7}


async def test_a_wrong_value_in_pasted_json_is_shown_at_its_field(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    """The tag in the value says which alternative is meant."""
    await sqlite_world.jobs.templates.create({"topic": "shapes", "schema": CHOICES})
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go("new?topic=shapes")
    await page.get_by_role("button", name="JSON", exact=True).click()
    await page.get_by_role("textbox", name="Payload").fill('{"shape": {"kind": "square", "side": "wide"}, "size": 5}')
    await page.get_by_role("button", name="Form", exact=True).click()
    await expect(page.get_by_label("side")).to_have_accessible_description("must be a number")


async def test_the_form_follows_a_link_to_another_topic(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    for version in (1, 2):
        await sqlite_world.jobs.templates.create({"topic": "orders", "version": version, "schema": ORDER})
    await sqlite_world.jobs.templates.create({"topic": "shapes", "schema": CHOICES})
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    chosen = page.get_by_role("combobox", name=re.compile("^Version"))
    await sqlite_visitor.go("new?topic=orders&version=1")
    await expect(page.get_by_label("order_id")).to_be_visible()
    await expect(chosen).to_have_value("1")
    await page.evaluate("location.hash = '#/new?topic=shapes'")
    await expect(page.get_by_role("combobox", name=re.compile("^Topic"))).to_have_value("shapes")
    await expect(page.get_by_label("Kind of shape")).to_be_visible()
    await page.evaluate("location.hash = '#/new?topic=orders'")
    await expect(chosen).to_have_value("")
    await page.get_by_role("combobox", name=re.compile("^Topic")).fill("shapes")  # what is typed stays
    await expect(page.get_by_label("Kind of shape")).to_be_visible()
    await expect(page.get_by_role("combobox", name=re.compile("^Topic"))).to_have_value("shapes")


async def test_a_template_that_can_t_be_read_is_shown(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.jobs.templates.create({"topic": "fine"})
    store = await sqlite_world.store()
    assert await store.write_records([Write("template", "mail@2", {"template": {"topic": "mail", "once": "yes"}})])
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go("templates")
    await expect(page.locator("tbody tr")).to_have_count(1)
    note = page.get_by_text("mail, version 2, can't be read: template.once: must be true or false, not a text.")
    await expect(note).to_be_visible()
    assert await sqlite_visitor.violations() == []


async def test_a_token_may_have_the_scope_of_templates(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go("access")
    await page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    offered = await dialog.get_by_role("checkbox").evaluate_all("boxes => boxes.map(one => one.value)")
    assert set(offered) == set(SCOPES)
    await dialog.get_by_label("Name").fill("deploys")
    await dialog.locator("input[value=enqueue]").uncheck()
    await dialog.locator("input[value=templates]").check()
    await dialog.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("row").filter(has_text="deploys").get_by_text("templates")).to_be_visible()


async def test_what_the_server_refuses_is_shown_at_its_field(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.jobs.templates.create({"topic": "orders", "schema": ORDER})
    page = await sqlite_visitor.enter("new?topic=orders")
    await fill_order(page, code="lower")
    await page.get_by_role("button", name="Enqueue").click()
    field = group(page, "items[1]").get_by_label("code")
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(field).to_be_focused()
    await expect(page.locator(".payload [aria-invalid=true]")).to_have_count(1)
    await expect(field).to_have_accessible_description(re.compile("lower"))
    sqlite_visitor.complaints.clear()  # the browser reports the refusal
    await field.fill("UPPER")
    await page.get_by_role("button", name="Enqueue").click()
    await sqlite_visitor.toast("The job is enqueued")


async def test_a_version_that_no_live_worker_has_is_marked(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    for version in (1, 2):
        await sqlite_world.jobs.templates.create({"topic": "mail/slow", "version": version, "title": "Slow mail"})
    for _ in range(2):
        await sqlite_world.enqueue(None, topic="mail/slow", version=1)
    page = await sqlite_visitor.enter()
    await page.keyboard.press("g")
    await page.keyboard.press("p")
    await expect(page.locator("tbody tr")).to_have_count(2)
    mark = page.get_by_text("2 jobs of version 1: no live worker has it")
    await expect(mark).to_have_count(1)
    assert await sqlite_visitor.violations() == []
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="mail/slow")).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="2 jobs of version 1")).to_be_visible()
    await expect(page.get_by_role("link", name="Jobs").last).to_have_attribute("href", "#/jobs?topic=mail%2Fslow")


async def test_a_template_is_disabled_with_a_reason(visitor: Visitor, world: World) -> None:
    await world.jobs.templates.create({"topic": "orders", "version": 1})
    page = await visitor.enter("templates")
    await page.get_by_role("button", name="Disable orders, version 1").click()
    await page.get_by_label("Why?").fill("the shop is closed")
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await visitor.toast("orders, version 1, is disabled: new jobs are refused")
    row = page.get_by_role("row").filter(has_text="orders")
    await expect(row.get_by_text("disabled")).to_be_visible()
    assert not (await world.jobs.templates.get("orders", 1)).enabled
    await visitor.go("new?topic=orders")
    await expect(page.get_by_text("This template is disabled")).to_be_visible()
    await page.get_by_role("textbox", name="Payload").fill("{}")
    await page.get_by_role("button", name="Enqueue").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    visitor.complaints.clear()  # the browser reports the refusal
    await visitor.go("audit")
    await expect(page.get_by_text("the shop is closed")).to_be_visible()
    await visitor.go("template/orders")
    await page.get_by_role("button", name="Enable").click()
    await page.get_by_role("dialog").get_by_role("button", name="Enable").click()
    await visitor.toast("orders, version 1, is enabled")
    await expect(page.get_by_text("enabled", exact=True)).to_be_visible()
    assert (await world.jobs.templates.get("orders", 1)).enabled


async def test_templates_are_written_compared_and_changed(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.jobs.templates.create({"topic": "orders", "version": 1, "schema": ORDER, "retry": [30, 120]})
    page = await sqlite_visitor.enter("templates")
    await page.get_by_role("button", name="New template").click()
    dialog = page.get_by_role("dialog")
    text = dialog.get_by_label("Definition")
    properties = {**ORDER["properties"], "gift": {"type": "boolean"}}
    definition = {"topic": "orders", "version": 2, "schema": {**ORDER, "properties": properties}, "timeout": -1}
    await text.fill(json.dumps(definition, indent=2))
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog.locator(".wrong")).to_contain_text("timeout, line")
    sqlite_visitor.complaints.clear()  # the browser reports the refusal
    await text.fill(json.dumps({**definition, "timeout": 60, "retry": [5]}))
    await dialog.get_by_role("button", name="Create").click()
    await sqlite_visitor.toast("orders, version 2, is created")
    await expect(page.get_by_label("Payload").get_by_text("gift")).to_be_visible()
    await page.get_by_label("Compare with").select_option("1")
    rows = page.get_by_label("Comparison").locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.filter(has_text="gift")).to_contain_text("added")
    await expect(rows.filter(has_text="Retries")).to_contain_text("after 30 s, 2 min")
    await page.get_by_label("Compare with").select_option("")
    await page.get_by_role("button", name="Edit").click()
    changed = json.loads(await text.input_value())
    await text.fill(json.dumps({**changed, "title": "Ship an order", "max_retries": 7}))
    await dialog.get_by_label("Why?").fill("it has a name now")
    await dialog.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Ship an order")).to_be_visible()
    template = (await sqlite_world.jobs.templates.get("orders", 2)).template
    assert (template.max_retries, template.timeout, template.title) == (7, 60.0, "Ship an order")
    await page.get_by_role("button", name="Edit").click()
    await text.fill(json.dumps({**changed, "schema": None}))
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_text("Frozen, but changed: schema")).to_be_visible()
    sqlite_visitor.complaints.clear()  # the browser reports the refusal


async def test_a_job_says_where_it_stands_in_its_line(visitor: Visitor, world: World) -> None:
    options: dict[str, Any] = {"topic": "orders", "key": "7", "if_live": "queue"}
    ids = [await world.enqueue(None, payload={"n": n}, **options) for n in range(3)]
    page = await visitor.enter(f"job/{ids[2]}")
    place = page.locator(".line")
    await expect(place).to_contain_text(re.compile(rf"Behind job\s+…{ids[1][-12:]}\s+\(2 ahead of it\)"))
    await expect(place.get_by_role("link", name=ids[0][-12:])).to_be_visible()
    await expect(page.get_by_text("the new job stands in line")).to_be_visible()
    await place.get_by_role("link", name=ids[1][-12:]).click()
    await expect(place).to_contain_text("1 ahead of it")
    await expect(place).to_contain_text("1 behind it")
    await visitor.go(f"job/{ids[0]}")
    await expect(place).to_contain_text("First in the line of its key")
    await world.jobs.cancel(ids[0])
    await visitor.go(f"job/{ids[1]}")
    await expect(place).to_contain_text("First in the line of its key")
