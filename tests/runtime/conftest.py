"""`url`: a migrated database of the test's own, on each store in turn. `jobs`: Jobs in it, which stop at the end."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rowlock.jobs import Jobs
from rowlock.stores import open_store
from tests.servers import Databases, PostgresServer


class RuntimeDatabases(Databases):
    TEMPLATE = "runtime_template"


@pytest.fixture(scope="session")
def runtime_databases(postgres: PostgresServer) -> RuntimeDatabases:
    async def make_template(url: str) -> None:
        await open_store(url).migrate()

    return RuntimeDatabases(postgres, make_template)


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "jobs.db")
        yield f"sqlite:///{tmp_path}/jobs.db"
    else:
        databases: RuntimeDatabases = request.getfixturevalue("runtime_databases")
        async with databases.fresh() as fresh:
            yield fresh


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs
        await jobs.stop(grace=0)
