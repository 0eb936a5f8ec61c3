"""`rowlock templates` and `rowlock check`: stored templates, changes by new code, and the jobs that it can't run."""

import asyncio
import json
import sys

import pytest

from rowlock import Jobs
from rowlock.cli.typescript import types
from rowlock.core.templates import Stored, Template
from rowlock.stores.records import Write
from tests.cli.conftest import Shell

APP = """
from dataclasses import dataclass
from rowlock import Jobs
jobs = Jobs()

@dataclass
class Item:
    sku: str
    count: int = 1

@jobs.task("order", version=1, key=["order"], if_live="queue", title="Orders")
async def order(order: int, items: list[Item]) -> str: ...

@jobs.task
async def mail(to: str) -> None: ...
"""


@pytest.fixture
def write(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a function that makes `app.py` anew, as a deploy does."""
    monkeypatch.setenv("ROWLOCK_URL", shell.url)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (shell.folder / "app.py").write_text(text)
        sys.modules.pop("app", None)
        monkeypatch.syspath_prepend(str(shell.folder))

    write(APP)
    shell("migrate")
    return write


def test_publish_list_show_switch(shell: Shell, write: object) -> None:
    assert [one["new"] for one in shell.json("templates", "publish", "app:jobs")["items"]] == [True, True]
    assert "nothing has changed" in shell("templates", "publish", "app:jobs").stderr
    found = shell.json("templates", "list")["items"]
    assert [(one["topic"], one["version"], one["enabled"], one["source"]) for one in found] == [
        ("mail", 0, True, "code"),
        ("order", 1, True, "code"),
    ]
    assert shell.json("templates", "list", "--topic", "mail")["total"] == 1
    shown = shell.json("templates", "show", "order@1")
    assert (shown["title"], shown["key"], shown["if_live"]) == ("Orders", ["order"], "queue")
    assert "Orders" in shell("templates", "show", "order").stdout
    assert "Did you mean 'order'?" in shell("templates", "show", "ordr", code=1).stderr
    assert "no template of version 7" in shell("templates", "show", "order@7", code=1).stderr
    assert "TOPIC@VERSION" in shell("templates", "show", "order@new", code=2).stderr

    assert shell.json("templates", "disable", "mail", "--reason", "spam")["items"][0]["enabled"] is False
    assert "disabled" in shell("enqueue", "mail", '{"to": "ada"}', code=1).stderr
    shell("templates", "enable", "mail@0")
    shell.add("mail", '{"to": "ada"}')
    entry = shell.json("audit", "--action", "template.disable")["items"][0]
    assert (entry["topic"], entry["reason"]) == ("mail", "spam")


def test_create_and_enqueue_a_version(shell: Shell, write: object) -> None:
    texts = [json.dumps({"topic": "gpu", "version": n, "schema": {"required": ["frame"]}}) for n in (1, 2)]
    for text in texts:
        assert shell.json("templates", "create", "-", input=text)["source"] == "api"
    (shell.folder / "gpu.json").write_text(texts[0])
    assert "already" in shell("templates", "create", "gpu.json", code=1).stderr
    assert "payload.frame" in shell("enqueue", "gpu", "{}", code=1).stderr
    first = shell.add("gpu", '{"frame": 1}', "--template-version", "1", "--key", "a", "--if-live", "queue")
    second = shell.add("gpu", '{"frame": 2}', "--key", "a", "--if-live", "queue")
    jobs = [shell.json("jobs", "show", job_id) for job_id in (first, second)]
    assert [(job["template_version"], job["status"]) for job in jobs] == [(1, "pending"), (2, "blocked")]
    assert "no version 3" in shell("enqueue", "gpu", "{}", "--template-version", "3", code=1).stderr


def test_diff_and_check_before_a_deploy(shell: Shell, write: object) -> None:
    assert callable(write)
    shell("templates", "publish", "app:jobs")
    old = [shell.add("order", '{"order": 7, "items": [{"sku": "a"}]}') for _ in range(2)]
    sent = shell.add("mail", '{"to": "ada"}')
    write(APP)
    assert shell.json("check", "app:jobs") == {"checked": 3, "partial": False, "findings": []}
    assert shell.json("templates", "diff", "app:jobs") == {"items": [], "total": 0, "next": None, "refused": False}

    # The code has another schema for a frozen version: diff and publish refuse it, and check names it.
    write(APP.replace("order: int", "order: str").replace('title="Orders"', 'title="All orders"'))
    [change] = shell.json("templates", "diff", "app:jobs", code=1)["items"]
    assert {name: field["frozen"] for name, field in change["fields"].items()} == {"title": False, "schema": True}
    assert "schema.properties.order.type" in shell("templates", "diff", "app:jobs", code=1).stdout
    assert "version=2" in shell("templates", "publish", "app:jobs", code=1).stderr
    found = {one["check"]: one for one in shell.json("check", "app:jobs", code=1)["findings"]}
    assert found.keys() == {"frozen", "payload"}
    assert (found["payload"]["count"], sorted(found["payload"]["jobs"])) == (2, sorted(old))
    assert "payload.order" in found["payload"]["text"]

    # The next version doesn't run the jobs of version 1, unless it says so. A task that is gone leaves its jobs.
    write(APP.replace("version=1", "version=2").replace("@jobs.task\n", '@jobs.task("other")\n'))
    found = {one["check"]: one for one in shell.json("check", "app:jobs", code=1)["findings"]}
    assert {check: (one["topic"], one["version"], one["count"]) for check, one in found.items()} == {
        "version": ("order", 1, 2),
        "topic": ("mail", 0, 1),
    }
    assert found["topic"]["jobs"] == [sent]
    write(APP.replace("version=1", "version=2, runs=[1]"))
    assert "the new code fits" in shell("check", "app:jobs").stderr
    assert shell.json("check", "app:jobs", "--limit", "1")["partial"] is True
    shell("templates", "disable", "order@1")
    write(APP)
    assert [one["check"] for one in shell.json("check", "app:jobs", code=1)["findings"]] == ["disabled"]


SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Where it goes. */"},
        "reply-to": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "kind": {"enum": ["html", "text", 3, None]},
        "v": {"const": 1},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "integer"}],
            "minItems": 2,
            "items": False,
        },
        "sizes": {"type": "array", "items": {"type": ["integer", "null"]}},
        "meta": {"type": "object", "additionalProperties": {"type": "number"}},
        "any": {},
        "nested": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    },
    "required": ["to", "items"],
    "additionalProperties": False,
    "$defs": {
        "Item": {
            "type": "object",
            "properties": {"sku": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
            "required": ["sku"],
        }
    },
}

EXPECTED = """\
// Written by `rowlock templates types`. Do not edit it: run the command again.

export interface GpuRenderV0 {
  payload: unknown;
  result: unknown;
}

/**
 * mail@1: the payload
 * Sends a mail.
 */
export interface MailV1Payload {
  /** Where it goes. * / */
  to: string;
  /** Default: null */
  "reply-to"?: string | null;
  kind?: "html" | "text" | 3 | null;
  v?: 1;
  items: MailV1PayloadItem[];
  pair?: [string, number];
  sizes?: (number | null)[];
  meta?: Record<string, number>;
  any?: unknown;
  nested?: {
    a: boolean;
  };
}

export interface MailV1PayloadItem {
  sku: string;
  parts?: MailV1PayloadItem[];
}

/** mail@1: the result */
export type MailV1Result = string;

export interface MailV1 {
  payload: MailV1Payload;
  result: MailV1Result;
}

export interface MailV2 {
  payload: unknown;
  result: unknown;
}

export interface Topics {
  /** Version 0. */
  "gpu:render": { payload: GpuRenderV0["payload"]; result: GpuRenderV0["result"] };
  /** Sends a mail. Version 1. */
  "mail": { payload: MailV1["payload"]; result: MailV1["result"] };
}
"""


def test_types(shell: Shell, write: object) -> None:
    mail = Template(topic="mail", version=1, description="Sends a mail.", schema=SCHEMA, result={"type": "string"})
    off = Stored(template=Template(topic="mail", version=2), enabled=False)
    assert types([off, Stored(template=mail), Stored(template=Template(topic="gpu:render"))]) == EXPECTED

    shell("templates", "publish", "app:jobs")
    shell("templates", "types", "--out", "topics.ts")
    text = (shell.folder / "topics.ts").read_text()
    assert text == shell("templates", "types").stdout
    assert "  items: OrderV1PayloadItem[];" in text
    assert "can't be written" in shell("templates", "types", "--out", "none/topics.ts", code=1).stderr


def test_a_template_that_can_t_be_read_is_shown(shell: Shell, write: object) -> None:
    async def spoil() -> None:
        async with Jobs(shell.url) as jobs:
            record = Write("template", "mail@0", {"template": {"topic": "mail", "once": 1}})
            await (await jobs._store()).write_records([record])

    asyncio.run(spoil())
    shell("templates", "create", "-", input='{"topic": "fine"}')
    told = shell.json("templates", "list")
    assert [one["topic"] for one in told["items"]] == ["fine"]
    assert told["unreadable"] == [
        {"topic": "mail", "version": 0, "problem": "template.once: must be true or false, not a whole number"}
    ]
    assert "version 0 of the template of mail in the database can't be read" in shell("templates", "list").stderr
    assert "can't be read" in shell("templates", "show", "mail", code=1).stderr
    assert "can't be read" in shell("enqueue", "mail", "{}", code=1).stderr
    shell("templates", "publish", "app:jobs")
    assert [one["topic"] for one in shell.json("templates", "list")["items"]] == ["fine", "mail", "order"]
