"""`fleet`: workers on each kind of database in turn; `postgres_fleet`, `sqlite_fleet`: on one of them."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rowlock.stores.postgres.store import PostgresStore
from tests.runtime.system.fleet import Fleet, opened
from tests.servers import Databases, PostgresServer


class SystemDatabases(Databases):
    TEMPLATE = "system_template"


@pytest.fixture(scope="session")
def system_databases(postgres: PostgresServer) -> SystemDatabases:
    """Databases that are migrated already."""

    async def make_template(url: str) -> None:
        await PostgresStore(url).migrate()

    return SystemDatabases(postgres, make_template)


@pytest.fixture
async def postgres_fleet(system_databases: SystemDatabases, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with system_databases.fresh() as url, opened(url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
async def sqlite_fleet(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    shutil.copyfile(sqlite_template, tmp_path / "jobs.db")
    async with opened(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path) as fleet:
        yield fleet


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    found: Fleet = request.getfixturevalue(f"{request.param}_fleet")
    return found
