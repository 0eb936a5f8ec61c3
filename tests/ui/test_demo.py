"""The demo: one link, and every screen has something to show."""

import asyncio
import sys

from playwright.async_api import Browser, expect

from tests.ui.browser import visiting


async def test_one_link_leads_to_a_page_that_lives(browser: Browser) -> None:
    command = [sys.executable, "-m", "rowlock", "demo", "--for", "60"]
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert running.stdout is not None
        link = (await running.stdout.readline()).decode().removeprefix("Open the page: ").strip()
        async with visiting(browser, link.partition("/_/")[0]) as visitor:
            page = visitor.page
            await page.goto(link)
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            await expect(page.get_by_text("newsletter.send is paused")).to_be_visible()
            await expect(page.get_by_text("No live worker knows legacy.import")).to_be_visible()
            for screen in ("jobs", "failures", "topics", "workers", "audit", "bulk"):
                await visitor.go(screen)
                await expect(page.locator("tbody tr").first).to_be_visible()
            await visitor.go("jobs")
            await expect(page.locator(".pill button")).to_be_visible()
            # The demo leaves one job to the visitor.
            await visitor.go("jobs?tag=for+you")
            await expect(page.locator("tbody tr")).to_contain_text("waits for decision")
            await page.get_by_role("link", name="refund.approve").click()
            await page.get_by_role("button", name="Send signal…").click()
            await page.get_by_role("dialog").get_by_label("ok").check()
            await page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
            await visitor.toast("The signal decision is sent")
            result = page.locator("section").filter(has=page.get_by_role("heading", name="Result", exact=True))
            await expect(result).to_contain_text("order 1 was paid back")
    finally:
        running.terminate()
        await running.communicate()
