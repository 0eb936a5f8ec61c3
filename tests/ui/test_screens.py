"""Every screen, with any text in the database: the browser runs none of it, and every user can use the screen."""

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser, Page, expect

from rowlock import Concurrency, Filter, Jobs
from rowlock.access import sessions, superusers
from rowlock.core.lifecycle import Completed
from rowlock.stores.base import NewLine, Progress
from rowlock.stores.records import Write
from tests.http.harness import GUEST, Place, Server, World
from tests.stores.harness import claim_by, info, mark, settlement
from tests.ui.browser import Visitor, visiting

# Texts for every field that is shown. If the browser ran them, they would leave a mark, ask for something, or open a
# dialog.
EVIL = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "{@html owned}{{constructor.constructor('alert(1)')()}}",
    "</textarea></title><iframe srcdoc='<script>parent.owned=1</script>'>",
    "'-alert(1)-'",
    "\u202eevil\u0007 \u2028 ☃ " + "long" * 500,
]
EVIL_EMAIL = "<img/src=x/onerror=window.owned=1>@example.com"
SCREENS = [
    "overview", "jobs", "failures", "topics", "templates", "template/evil", "workers", "new", "new?topic=evil", "bulk",
    "audit", "access", "settings", "limits",
]  # fmt: skip
OURS_ALONE = {"new", "settings"}  # screens that show no text of a client
# A list of jobs with all columns.
COLUMNS = [
    "id", "topic", "payload", "status", "tries", "priority", "key", "scope", "tags", "created", "run_at", "finished",
    "duration", "worker",
]  # fmt: skip


# The elements that stick out of the window, if the page can be scrolled to the side.
TOO_WIDE = """() => {
    const { clientWidth, scrollWidth } = document.documentElement;
    const elements = scrollWidth > clientWidth ? [...document.querySelectorAll("*")] : [];
    const wide = elements.filter(one => one.getBoundingClientRect().right > clientWidth);
    return wide.map(one => one.outerHTML.slice(0, 200));
}"""


# The elements that a finger would miss. A checkbox is as large as its label; links in a text are as high as the text.
TOO_SMALL = """() => [...document.querySelectorAll(
        "button, select, input, textarea, summary, a.button, nav a, a.badge, .chip > a")]
    .filter(one => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".json"))
    .map(one => one.matches("[type=checkbox], [type=radio]") ? one.closest("label") ?? one : one)
    .map(one => [one.getBoundingClientRect(), one.outerHTML.slice(0, 200)])
    .filter(([{ width, height }]) => width && Math.min(width, height) < 39.5)
    .map(([{ width, height }, html]) => `${width} x ${height}: ${html}`)"""
PHONE = 390


def traceback(text: str) -> str:
    """Return a traceback. A group of failures shows its innermost function and its last line."""
    line = text.replace("\u2028", " ")
    return f'Traceback (most recent call last):\n  File "/app/{line}.py", line 7, in {line}\n    {line}\nEvil: {line}'


async def furnish(world: World) -> list[str]:
    """Make jobs in all kinds of states, full of texts that must not run. Return their ids."""
    all_of_it = {text: text for text in EVIL}
    ids = []
    for n, text in enumerate(EVIL):
        options = {
            "payload": {**all_of_it, "__proto__": text},
            "key": text[:200],
            "tags": [text[:100]],
            "scope": text[:200],
        }
        ids.append(await world.ended(text[:200], f"topic{n}", error=traceback(text), **options))
        ids.append(await world.enqueue(text[:200], topic=f"topic{n}", delay=3600, payload=all_of_it))
        await world.jobs.cancel(ids[-1], reason=text[:1000])
    ids.append(await furnish_run(world))
    await furnish_templates(world)
    await world.jobs.topics.pause("topic1", reason=EVIL[1], by=EVIL[1])
    await world.jobs.limits.put("topic2", Concurrency(5, by=EVIL[1]), reason=EVIL[1], by=EVIL[1])
    await world.token(EVIL[0], ["read"], topics=["topic1"])
    user = await world.superuser(EVIL_EMAIL)
    await sessions.begin(await world.store(), user, client=EVIL[1], old=None)
    for text in EVIL:
        filter = Filter(tags=[text[:100]], error=text[:100], payload=[("a", text)])
        await world.jobs.bulk.prepare("delete", filter, reason=text[:1000], by=text[:200], dry_run=False)
    rule = f"scope_id = {json.dumps(EVIL[0])}"
    rules = {"view_rule": rule, "manage_rule": rule, "reason": EVIL[1]}
    answer = await world.call("admin token", "PATCH", "/api/settings", rules)
    assert answer.status_code == 200, answer.text
    return [ids[0], ids[1], ids[6], ids[-1]]


async def furnish_templates(world: World) -> None:
    """Create a template whose form has such texts, and one that can't be read."""
    listed = {"type": "array", "items": {"const": EVIL[1]}}
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"enum": EVIL}, listed, {"type": "integer"}]
    fields = {text: {**kinds[n % len(kinds)], "title": text, "description": text} for n, text in enumerate(EVIL)}
    choice = {"oneOf": [{"type": "string", "title": text} for text in EVIL], "default": EVIL[1]}
    schema = {"type": "object", "required": EVIL[:4], "properties": {**fields, "choice": choice}}
    steps = [{"name": text[:200].replace("\x07", ""), "title": text[:200]} for text in EVIL]
    definition = {"topic": "evil", "title": EVIL[1], "description": "".join(EVIL), "schema": schema, "steps": steps}
    await world.jobs.templates.create({**definition, "result": schema, "key": ["choice"]})
    store = await world.store()
    assert await store.write_records(
        [Write("template", "unreadable@1", {"template": {"topic": EVIL[1], "once": EVIL[1]}})]
    )


async def furnish_run(world: World) -> str:
    """Make a worker with such a name that runs a job, says such things, and goes silent. Return the job's id."""
    job_id = await world.enqueue(EVIL[1], topic="run", payload={"a": 1})
    store = await world.store()
    name = EVIL[1][:200]
    [claimed] = (await store.claim(claim_by(name, "run", lease=0.01))).jobs
    lines = tuple(NewLine(0.0, "error", text) for text in EVIL)
    await store.progress([Progress(job_id, claimed.version, 40.0, EVIL[0], EVIL[1], lines)])
    for n, text in enumerate(EVIL, 1):
        name, result = text[:200].replace("\a", ""), json.dumps({text: text})
        await store.checkpoint([mark(claimed, name, "succeeded", position=2 * n, result=result)])
        await store.checkpoint([mark(claimed, name, "failed", n=2, position=2 * n + 1, error=traceback(text))])
    await store.report(info(name, host=EVIL[0], rowlock=EVIL[1][:50], lease=0.01, topics=("run",)))
    await store.report(info(EVIL[0][:200], host=EVIL[1], lease=600.0))
    done = await world.enqueue(None, topic="done", payload={})
    [ended] = (await store.claim(claim_by(name, "done"))).jobs
    await store.settle([settlement(ended, Completed({text: [text] for text in EVIL}))])
    assert ended.id == done
    return job_id


async def look_at_everything(visitor: Visitor, jobs: list[str], *, axe: bool) -> None:
    page = visitor.page
    views = [{"name": text, "query": f"error={text}"} for text in EVIL]
    for name, value in (("columns", COLUMNS), ("views", views)):
        await page.add_init_script(f"localStorage.setItem('rowlock.{name}', {json.dumps(json.dumps(value))})")
    await visitor.log_in()
    found: dict[str, list[str]] = {}
    typed = f"jobs?{urlencode({'error': EVIL[1], 'tag': EVIL[0], 'payload': 'a=' + EVIL[1]})}"
    for screen in [*SCREENS, typed, *(f"job/{job_id}" for job_id in jobs)]:
        await visitor.go(screen)
        await expect(page.locator("h1")).to_be_visible()
        await expect(page.locator(".skeleton")).to_have_count(0)
        if screen not in OURS_ALONE:
            await expect(page.locator("main")).to_contain_text("owned")  # the text is there, as text
        assert await is_clean(page), screen
        assert await page.evaluate(TOO_WIDE) == [], screen
        if await page.evaluate("() => innerWidth") == PHONE:
            assert await page.evaluate(TOO_SMALL) == [], screen
        if axe and (violations := await visitor.violations()):
            found[screen.partition("/")[0]] = violations
    assert found == {}


async def is_clean(page: Page) -> bool:
    """Return True if nothing that was shown has run, and all of it is text."""
    return bool(
        await page.evaluate("() => window.owned === undefined && !document.querySelector('iframe, main script')")
    )


@pytest.mark.quick
async def test_nothing_that_is_shown_is_run(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await look_at_everything(sqlite_visitor, await furnish(sqlite_world), axe=False)


async def test_nothing_that_a_dialog_a_note_or_a_suggestion_shows_is_run(
    sqlite_visitor: Visitor, sqlite_world: World
) -> None:
    [dead, *_] = await furnish(sqlite_world)
    page = await sqlite_visitor.enter(f"job/{dead}")
    await expect(page.get_by_text("Evil:").first).to_be_visible()
    await page.keyboard.press("e")
    await page.get_by_label("Why?").fill(EVIL[1])
    await page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    await sqlite_visitor.toast("The job is changed, and pending again")
    await expect(page.locator(".timeline").get_by_text(EVIL[1])).to_be_visible()
    await sqlite_visitor.go("jobs")
    await page.get_by_label("Filter jobs").fill("error:")
    await expect(page.get_by_role("option").filter(has_text="Evil").first).to_be_visible()
    assert await is_clean(page)
    await page.get_by_label("Filter jobs").fill(f"tag:{EVIL[1]}")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Save this view…").click()
    await page.get_by_label("Name").fill(EVIL[1])
    await page.get_by_role("button", name="Save", exact=True).click()
    await sqlite_visitor.toast(EVIL[1])
    await page.keyboard.press("Control+k")
    await page.keyboard.type(EVIL[1])
    await expect(page.get_by_role("option").filter(has_text=EVIL[1])).to_be_visible()
    await page.keyboard.press("Escape")
    await sqlite_visitor.go("failures")
    await page.get_by_role("button", name="Delete the group").first.click()
    await expect(page.get_by_text("will be deleted")).to_be_visible()
    await page.get_by_label("Why?").fill(EVIL[0])
    await page.get_by_role("dialog").get_by_role("button", name=re.compile("^Delete")).click()
    await sqlite_visitor.toast("deleted")
    await sqlite_visitor.go("access")
    await page.get_by_role("row").filter(has_text=EVIL[0]).get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await sqlite_visitor.toast(EVIL[0])
    await page.get_by_role("row").filter(has_text=EVIL_EMAIL).get_by_role("button", name="End").click()
    await sqlite_visitor.toast(EVIL_EMAIL)
    await page.get_by_label("Claims of the user").fill(json.dumps({"id": EVIL[1]}))
    await expect(page.locator("table.parts").get_by_text("owned").first).to_be_visible()
    await sqlite_visitor.go("bulk")
    await page.locator("tbody a.name").first.click()
    await expect(page.get_by_role("heading", name="Outcome for each job")).to_be_visible()
    await sqlite_visitor.go("new?topic=topic0")
    await page.get_by_role("button", name="Copy the last payload of this topic").click()
    await expect(page.locator("pre").filter(has_text="owned").first).to_be_visible()
    assert await is_clean(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, PHONE])
async def test_every_screen_is_accessible(browser: Browser, sqlite_world: World, theme: str, width: int) -> None:
    jobs = await furnish(sqlite_world)
    shape = {"color_scheme": theme, "viewport": {"width": width, "height": 850}}
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url, **shape) as visitor:
            await look_at_everything(visitor, jobs, axe=True)


@pytest.mark.quick
async def test_the_screens_that_are_looked_at_most_are_accessible(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.ended(None, "mail", error="no")
    await sqlite_visitor.page.goto(f"{sqlite_visitor.url}/_/")
    await expect(sqlite_visitor.page.get_by_label("Password")).to_be_visible()
    assert await sqlite_visitor.violations() == []
    await sqlite_visitor.log_in()
    for screen in ("overview", "jobs"):
        await sqlite_visitor.go(screen)
        await expect(sqlite_visitor.page.locator(".skeleton")).to_have_count(0)
        assert await sqlite_visitor.violations() == [], screen


@pytest.mark.quick
async def test_who_only_looks_is_offered_nothing_else(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await sqlite_world.ended(None, "mail", error="no")
    page = await sqlite_visitor.enter(email=GUEST)
    await expect(page.get_by_role("link", name="Settings")).to_have_count(0)
    for screen in ("jobs", f"job/{job_id}", "failures", "topics", "settings"):
        await sqlite_visitor.go(screen)
        await expect(page.locator(".skeleton")).to_have_count(0)
        for name in ("Requeue", "Delete", "Pause", "New token", "Save", "Revoke", "New job"):
            await expect(page.locator("main").get_by_role("button", name=name, exact=True)).to_have_count(0)


@pytest.mark.quick
async def test_the_first_superuser_comes_by_the_link(browser: Browser, sqlite_place: Place) -> None:
    async with Jobs(sqlite_place.url) as jobs:
        link = await superusers.first_link(await jobs._store())
    assert link is not None
    with Server.running(sqlite_place.url) as server:
        async with visiting(browser, server.url) as visitor:
            page = visitor.page
            await page.goto(f"{server.url}/_/setup#{link.text}")
            await page.get_by_label("E-mail address").fill("ann@example.com")
            await page.get_by_label("Password").fill("correct horse battery staple")
            await page.get_by_role("button", name="Create").click()
            await expect(page.get_by_text("No jobs yet")).to_be_visible()
            assert page.url == f"{server.url}/_/"
            await page.get_by_title("Log out").click()
            await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        async with visiting(browser, server.url) as visitor:  # the same link once more, in another browser
            page = visitor.page
            await page.goto(f"{server.url}/_/setup#{link.text}")
            await expect(page.get_by_text("This link has been used")).to_be_visible()
            assert page.url == f"{server.url}/_/setup"  # the page has taken the secret out of the address
            assert await visitor.violations() == []
            await page.get_by_label("E-mail address").fill("ann@example.com")
            await page.get_by_label("Password").fill("correct horse battery staple")
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_text("No jobs yet")).to_be_visible()
            assert page.url == f"{server.url}/_/"
            await page.goto(f"{server.url}/_/setup#{link.text}")  # a user who is logged in is led on
            await expect(page.get_by_text("No jobs yet")).to_be_visible()


async def test_a_link_that_brings_its_account_along_works_again(browser: Browser, sqlite_place: Place) -> None:
    """The demo has such a link: its password stands nowhere else."""
    async with Jobs(sqlite_place.url) as jobs:
        first = link = await superusers.first_link(await jobs._store())
    assert first is not None
    with Server.running(sqlite_place.url) as server:
        for password in ("as-in-the-link", "as-in-the-link", "of-another-demo"):
            async with visiting(browser, server.url) as visitor:
                page = visitor.page
                await page.goto(f"{server.url}/_/")
                told = "There is no account yet"
                await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
                await expect(page.get_by_text(told)).to_have_count(0 if link is None else 1)
                await page.goto(f"{server.url}/_/setup#{first.text}&email=demo%40example.com&password={password}")
                if password == "of-another-demo":
                    await expect(page.get_by_text("This link has been used")).to_be_visible()
                    assert "password" not in page.url
                    visitor.complaints.clear()  # the browser reports the refused login
                else:
                    await expect(page.get_by_text("No jobs yet")).to_be_visible()
                    assert page.url == f"{server.url}/_/"
                link = None


async def test_topics_are_paused_and_go_on(visitor: Visitor, world: World) -> None:
    await world.enqueue(None, topic="a/b.c", delay=3600)
    page = await visitor.enter("topics")
    await page.get_by_role("row").filter(has_text="a/b.c").get_by_role("button", name="Pause").click()
    await page.get_by_label("Why?").fill("the bank is away")
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(page.get_by_text("the bank is away")).to_be_visible()
    assert [pause.topic for pause in await (await world.store()).paused()] == ["a/b.c"]
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_text("the bank is away")).to_have_count(0)
    assert await (await world.store()).paused() == []


async def test_failures_that_are_alike_are_requeued_together(visitor: Visitor, world: World) -> None:
    for n in range(3):
        await world.ended(None, "bills", error=f"ValueError: {n}")
    page = await visitor.enter("failures")
    row = page.get_by_role("row").filter(has_text="bills")
    await expect(row).to_have_count(1)
    await row.get_by_role("button", name="Requeue").click()
    await page.get_by_role("button", name="Requeue 3 jobs").click()
    await visitor.toast("3 jobs requeued")
    await expect(page.get_by_text("No dead letters")).to_be_visible()
    await visitor.go("bulk")
    await expect(page.get_by_text("3 of 3")).to_be_visible()


async def test_tokens_rules_and_settings_are_changed(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = await sqlite_visitor.enter("access")
    rule = page.get_by_label("Who may see jobs?")
    await rule.fill("scope_id ==")
    await expect(page.locator(".wrong").first).to_be_visible()
    assert all(
        "400 (Bad Request)" in complaint for complaint in sqlite_visitor.complaints
    )  # the browser reports the refused rule
    sqlite_visitor.complaints.clear()
    await rule.fill("scope_id = @request.auth.id")
    await expect(page.get_by_text("Allowed")).to_be_visible()
    await page.get_by_label("Claims of the user").fill('{"id": "8"}')
    await expect(page.get_by_text("Not allowed")).to_be_visible()
    await page.get_by_label("Who may cancel jobs?").fill("scope_id = @request.auth.id")
    await page.get_by_role("button", name="Save the rules").click()
    await sqlite_visitor.toast("The rules are saved")
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Name").fill("the shop")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_text("copy it now")).to_be_visible()
    text = await page.locator(".note code").inner_text()
    assert (
        await sqlite_world.call("anonymous", "GET", "/api/auth/me", headers={"authorization": f"Bearer {text}"})
    ).is_success
    await page.get_by_role("row").filter(has_text="the shop").get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await sqlite_visitor.toast("the shop is revoked")
    await sqlite_visitor.go("settings")
    await page.get_by_label("Slots of a worker").fill("7")
    await page.get_by_role("button", name="Save").click()
    await sqlite_visitor.toast("Saved")
    settings = (await sqlite_world.get("admin token", "/api/settings")).json()
    assert settings["worker_pool_size"] == 7
    assert settings["view_rule"] == settings["cancel_rule"] == "scope_id = @request.auth.id"
    assert (settings["manage_rule"], settings["enqueue_rule"]) == ("", "")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_dialogs_menus_and_notes_are_accessible(browser: Browser, sqlite_world: World, theme: str) -> None:
    await sqlite_world.change_settings(redact=["password"])
    dead = await sqlite_world.ended(None, "one", error="ValueError: no", payload={"password": "hunter22"}, tags=["a"])
    await sqlite_world.ended(None, "two")
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url, color_scheme=theme) as visitor:
            page = visitor.page
            found: dict[str, list[str]] = {}

            async def look(what: str) -> None:
                if violations := await visitor.violations():
                    found[what] = violations

            await visitor.enter(f"job/{dead}")
            for name in ("Edit and requeue…", "Clone…", "Delete…"):
                await page.get_by_role("button", name="More").click()
                await look("the menu")
                await page.get_by_role("button", name=name, exact=True).click()
                await look(name)
                await page.keyboard.press("Escape")
            await page.get_by_role("button", name="Reveal…").click()
            await look("reveal")
            await page.keyboard.press("Escape")
            await sqlite_world.jobs.delete(dead)
            await expect(page.get_by_text("This job has been deleted")).to_be_visible()
            await look("a job that is gone")
            await visitor.go("jobs?topic=two")
            await page.get_by_label("Select the page").check()
            for name in ("Reschedule", "Delete"):
                await page.get_by_role("button", name=name).click()
                await expect(page.locator("dialog .skeleton")).to_have_count(0)
                await look(name)
                await page.keyboard.press("Escape")
            await page.get_by_role("button", name="Save this view…").click()
            await look("save a view")
            await page.get_by_label("Name").fill("Two")
            await page.keyboard.press("Enter")
            await visitor.toast("is saved")
            await page.get_by_label("Filter jobs").fill("t")
            await look("views, suggestions and a note")
            await visitor.go("topics?open=two")
            await expect(page.get_by_role("img", name="Run time, last hour")).to_be_visible()
            await look("charts of a topic")
            await page.get_by_role("button", name="Pause", exact=True).first.click()
            await look("pause")
            await page.keyboard.press("Escape")
            await visitor.go("access")
            await page.get_by_role("button", name="New token").click()
            await look("a new token")
            await page.keyboard.press("Escape")
            for key in ("Control+k", "?"):
                await page.keyboard.press(key)
                await look(key)
                await page.keyboard.press("Escape")
            assert found == {}
