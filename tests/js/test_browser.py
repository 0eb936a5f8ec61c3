"""The npm package's client in a real browser: on the server's origin with a cookie, on another origin with a token."""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.async_api import Page, Route, async_playwright

from tests.js.conftest import COOKIE, ROOT, Served, serving
from tests.ui.browser import chromium

DIST = ROOT / "js" / "dist"
EMPTY = "<!doctype html><title>test</title>"
TRY = """async ([url, options]) => {
    const { Rowlock, NotFound } = await import("/sdk/index.js");
    const { jobs } = new Rowlock(url, options ?? {});
    const id = await jobs.enqueue("page", { n: 1 }, { delay: 600 });
    const seen = [];
    for await (const job of jobs.watch(id)) {
        seen.push(job.status);
        if (seen.length === 1) await jobs.cancel(id, { reason: "a test" });
    }
    const { status } = await jobs.wait(id, { timeout: 10 });
    const gone = await jobs.delete(id).then(() => jobs.get(id)).catch((error) => error instanceof NotFound);
    return [seen.join(), status, gone, localStorage.length + sessionStorage.length];
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def other_origin(folder: Path) -> Iterator[str]:
    """Serve an empty page and the package from this machine: a browser lets no other page call this machine."""
    shutil.copytree(DIST, folder / "sdk")
    (folder / "empty.html").write_text(EMPTY)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
async def page(served: Served) -> AsyncIterator[Page]:
    with chromium() as address:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(address)
            context = await browser.new_context()
            yield await context.new_page()
            await context.close()


async def test_a_page_of_the_server_uses_its_cookie(page: Page, served: Served) -> None:
    async def answer(route: Route) -> None:
        name = Path(route.request.url).name
        if name == "empty.html":
            await route.fulfill(content_type="text/html", body=EMPTY)
        else:
            await route.fulfill(content_type="text/javascript", body=(DIST / name).read_text())

    await page.route("**/empty.html", answer)
    await page.route("**/sdk/*.js", answer)
    await page.context.add_cookies([{"name": COOKIE, "value": served.session(), "url": served.server}])
    await page.goto(f"{served.server}/empty.html")
    assert await page.evaluate(TRY, ["/", None]) == ["pending,cancelled", "cancelled", True, 0]


async def test_a_page_of_another_origin_uses_a_token(page: Page, served: Served, tmp_path: Path) -> None:
    with other_origin(tmp_path / "other") as origin, serving(served.database, tmp_path, "--origin", origin) as server:
        await page.goto(f"{origin}/empty.html")
        told = await page.evaluate(TRY, [server, {"token": served.token}])
    assert told == ["pending,cancelled", "cancelled", True, 0]
