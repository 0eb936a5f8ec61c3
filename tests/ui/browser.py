"""A real browser in front of a real server: any Chromium of this machine, driven by Playwright.

A test fails if the browser's console has a warning or an error. There the browser also tells what the page's own rules
about scripts and styles have stopped, and which requests were refused.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.http.harness import BOSS, PASSWORD

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
    "--disable-component-update", "--no-first-run", "--remote-debugging-port=0", "--mute-audio",
)  # fmt: skip
PATIENCE = 30_000.0  # milliseconds: other tests use the same cores

expect.set_options(timeout=PATIENCE)


def find_chromium() -> str | None:
    given = os.environ.get("ROWLOCK_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    return found or (MAC if sys.platform == "darwin" and Path(MAC).exists() else None)


@contextmanager
def chromium() -> Iterator[str]:
    """Run one Chromium for all tests of this process. Yield the address by which it is driven."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine: install one, or name it in ROWLOCK_CHROMIUM")
    with tempfile.TemporaryDirectory(prefix="rowlock-browser-", ignore_cleanup_errors=True) as folder:
        arguments = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("DevTools listening on "):
                    yield line.removeprefix("DevTools listening on ").strip()
                    return
            pytest.fail("Chromium ended at once")
        finally:
            process.kill()
            process.wait(30)
            assert process.stderr is not None
            process.stderr.close()


class Visitor:
    """A user in front of the page. `complaints`: the warnings and errors of the page, and its dialogs."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: self._hear(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    async def log_in(self, email: str = BOSS) -> None:
        await self.page.goto(f"{self.url}/_/")
        await self.page.get_by_label("E-mail address").fill(email)
        await self.page.get_by_label("Password").fill(PASSWORD)
        await self.page.get_by_role("button", name="Log in").click()
        await expect(self.page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()

    async def enter(self, screen: str = "", email: str = BOSS) -> Page:
        """Log in, and go to a screen. Return the page."""
        await self.log_in(email)
        if screen:
            await self.go(screen)
        return self.page

    async def go(self, to: str) -> None:
        """Go to a screen, by what stands behind the #."""
        await self.page.evaluate("to => { location.hash = to }", f"#/{to}")

    async def toast(self, text: str) -> None:
        await expect(self.page.locator(".toast").filter(has_text=text).first).to_be_visible()

    async def violations(self) -> list[str]:
        """Return the violations of the accessibility guidelines (WCAG 2.2, A and AA) that axe-core finds."""
        script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
        if not await self.page.evaluate("() => 'axe' in window"):
            await self.page.evaluate(script)
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found: list[dict[str, Any]] = await self.page.evaluate(
            "tags => axe.run(document, { runOnly: tags }).then(told => told.violations)", tags
        )
        return [f"{one['id']}: {node['html']} {node['failureSummary']}" for one in found for node in one["nodes"]]


@asynccontextmanager
async def visiting(browser: Browser, url: str, **context: Any) -> AsyncIterator[Visitor]:
    """Yield a visitor in front of a new page. In the end, the page must have had no complaints."""
    opened = await browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **context})
    try:
        visitor = Visitor(await opened.new_page(), url)
        yield visitor
        assert visitor.complaints == [], visitor.complaints
    finally:
        await opened.close()  # before the server stops, which would wait for the page's stream
