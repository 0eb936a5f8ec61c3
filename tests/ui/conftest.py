"""`visitor`: a browser in front of a server over a database of each kind in turn."""

from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Browser, async_playwright

from tests.http.conftest import (  # noqa: F401 - the fixtures are ours as well
    http_database,
    place,
    postgres_world,
    quick_passwords,
    sqlite_place,
    sqlite_world,
    template,
    world,
)
from tests.http.harness import Server, World
from tests.ui.browser import Visitor, chromium, visiting


@pytest.fixture(scope="session")
def chromium_address() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture
async def browser(chromium_address: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        connected = await playwright.chromium.connect_over_cdp(chromium_address)
        yield connected


@pytest.fixture
async def visitor(browser: Browser, world: World) -> AsyncIterator[Visitor]:  # noqa: F811
    with Server.running(world.place.url) as server:
        async with visiting(browser, server.url) as found:
            yield found


@pytest.fixture
async def sqlite_visitor(browser: Browser, sqlite_world: World) -> AsyncIterator[Visitor]:  # noqa: F811
    """Yield a visitor on SQLite, for tests that have nothing to do with the database."""
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url) as found:
            yield found
