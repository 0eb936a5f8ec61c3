"""examples/browser in a real browser: start, watch, cancel, and a token that ends in the middle."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from rowlock import Jobs
from tests.http_mount.test_mount import SERVER
from tests.ui.browser import Visitor, visiting
from tests.waiting import until

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "browser"
SDK = EXAMPLE.parent.parent / "js" / "dist" / "index.js"
pytestmark = pytest.mark.skipif(not SDK.exists(), reason="needs js/dist: npm run build")


@contextmanager
def serving(url: str, **environ: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, "app:app", str(EXAMPLE), ""],
        env={**os.environ, "ROWLOCK_URL": url, **environ}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()  # open streams would keep the process for ever
        process.communicate(timeout=60)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@asynccontextmanager
async def logged_in(browser: Browser, url: str, user: str) -> AsyncIterator[Visitor]:
    async with visiting(browser, url) as visitor:
        await visitor.page.goto(url)
        await visitor.page.get_by_role("button", name=user).click()
        await expect(visitor.page.locator("body[data-ready]")).to_be_attached()
        yield visitor


async def start(visitor: Visitor, film: str) -> Locator:
    await visitor.page.get_by_label("Name of the film").fill(film)
    await visitor.page.get_by_role("button", name="Render").click()
    return visitor.page.get_by_role("listitem").filter(has_text=film)


async def progress(row: Locator) -> float:
    return float(await row.locator("progress").evaluate("bar => bar.value"))


async def moving(row: Locator) -> list[float]:
    """Return what the bar shows, once it was seen at three places on its way."""
    seen: list[float] = []

    async def has_moved() -> bool:
        now = await progress(row)
        if 0 < now < 100 and now not in seen:
            seen.append(now)
        return len(seen) >= 3

    await until(has_moved)
    return seen


@pytest.mark.quick
async def test_a_page_starts_watches_and_cancels_its_own_jobs(browser: Browser, database: str) -> None:
    with serving(database) as url:
        async with logged_in(browser, url, "Ada") as ada, logged_in(browser, url, "Bob") as bob:
            done = await start(ada, "Metropolis")
            assert (seen := await moving(done)) == sorted(seen)
            stopped = await start(ada, "Nosferatu")
            await moving(stopped)
            await stopped.get_by_role("button", name="Cancel").click()
            await expect(stopped.locator(".status")).to_have_text("cancelled")
            assert await progress(stopped) < 100

            await bob.page.reload()
            await expect(bob.page.locator("body[data-ready]")).to_be_attached()
            await expect(bob.page.get_by_role("listitem")).to_have_count(0)

            await expect(done.locator(".status")).to_have_text("completed")
            assert await progress(done) == 100
            await expect(done.get_by_role("button")).to_be_hidden()
            await ada.page.reload()  # after a reload, the jobs are there again
            await expect(ada.page.get_by_role("listitem")).to_have_count(2)
            for visitor in (ada, bob):
                for scheme in ("light", "dark"):
                    await visitor.page.emulate_media(color_scheme=scheme)
                    assert await visitor.violations() == []
    async with Jobs(database) as jobs:
        ends = {job.payload["film"]: (job.status, job.scope, job.scope_id) for job in (await jobs.list()).items}
        assert ends == {"Metropolis": ("completed", "user", "ada"), "Nosferatu": ("cancelled", "user", "ada")}


async def all_end(database: str) -> None:
    """Wait until all tokens that are good now have ended. There may be new ones."""
    async with Jobs(database) as jobs:
        before = {one.id for one in await jobs.tokens.list()}

        async def have_ended() -> bool:
            return not before & {one.id for one in await jobs.tokens.list()}

        await until(have_ended)


async def test_a_page_goes_on_when_its_token_ends(browser: Browser, database: str) -> None:
    with serving(database, TOKEN_TTL="2") as url:
        async with logged_in(browser, url, "Ada") as ada:
            row = await start(ada, "Metropolis")  # the job takes six seconds
            await moving(row)
            await all_end(database)
            await expect(row.locator(".status")).to_have_text("completed")
            stopped = await start(ada, "Nosferatu")
            await moving(stopped)
            await all_end(database)
            await stopped.get_by_role("button", name="Cancel").click()
            await expect(stopped.locator(".status")).to_have_text("cancelled")
            # A browser reports each 401 in its console. The page must have no other complaints.
            assert [one for one in ada.complaints if not re.search("401 .Unauthorized", one)] == []
            ada.complaints.clear()
