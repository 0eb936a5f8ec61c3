"""`fleet`: workers on each kind of database in turn; `postgres_fleet`, `sqlite_fleet`: on one of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.databases import KINDS, Databases
from tests.runtime.system.fleet import Fleet, opened


@pytest.fixture
async def postgres_fleet(databases: Databases, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with databases.fresh() as url, opened(url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
async def sqlite_fleet(databases: Databases, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with databases.at("sqlite", tmp_path) as url, opened(url, tmp_path) as fleet:
        yield fleet


@pytest.fixture(params=KINDS)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    found: Fleet = request.getfixturevalue(f"{request.param}_fleet")
    return found
