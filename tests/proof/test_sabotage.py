"""Every defence is needed: with it a detector is green, without it the same detector is red."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.proof.sabotage import DEFENCES, WORKERS, Defence, Switch
from tests.servers import Databases, PostgresServer
from tests.stores.harness import TEST_CLOCK, Harness, PostgresHarness, SqliteHarness

SOON = 1.5  # seconds: much more than a detector needs, much less than for ever


class SabotagedDatabases(Databases):
    TEMPLATE = "sabotaged_template"


@pytest.fixture(scope="session")
def sabotaged_databases(postgres: PostgresServer) -> SabotagedDatabases:
    async def make_template(url: str) -> None:
        await postgres.execute(TEST_CLOCK, dbname=SabotagedDatabases.TEMPLATE)
        harness = PostgresHarness(url, virtual=False)
        await harness.open()
        await harness.close()

    return SabotagedDatabases(postgres, make_template)


@asynccontextmanager
async def _opened(defence: Defence, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Harness]:
    if defence.store == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), folder / "jobs.db")
        async with _closing(SqliteHarness(folder / "jobs.db", virtual=defence.virtual)) as harness:
            yield harness
    else:
        databases: SabotagedDatabases = request.getfixturevalue("sabotaged_databases")
        async with databases.fresh() as url, _closing(PostgresHarness(url, virtual=defence.virtual)) as harness:
            yield harness


@asynccontextmanager
async def _closing(harness: Harness) -> AsyncIterator[Harness]:
    await harness.open(migrated=True)
    try:
        yield harness
    finally:
        await harness.close()


async def _is_needed(defence: Defence, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    began = time.monotonic()
    (tmp_path / "on").mkdir()
    async with _opened(defence, request, tmp_path / "on") as store:
        await defence.detector(store)
    (tmp_path / "off").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        defence.off(patch)
        async with _opened(defence, request, tmp_path / "off") as store:
            # Anything else is a mistake of the sabotage's own.
            with pytest.raises(TimeoutError if defence.waits else (AssertionError, pytest.fail.Exception)):
                async with asyncio.timeout(SOON if defence.waits else None):
                    await defence.detector(store)
    print(f"sabotage: 0 violations, 1 defences, {time.monotonic() - began:.2f} s")


@pytest.mark.parametrize("defence", [one for one in DEFENCES if one.quick], ids=str)
async def test_a_defence_is_needed(defence: Defence, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    await _is_needed(defence, request, tmp_path)


@pytest.mark.parametrize(("switch_off", "detector"), WORKERS, ids=[one.__name__ for one, _ in WORKERS])
def test_a_defence_of_workers_is_needed(switch_off: Switch, detector: Callable[[], None]) -> None:
    began = time.monotonic()
    detector()
    with pytest.MonkeyPatch.context() as patch:
        switch_off(patch)
        with pytest.raises(AssertionError):
            detector()
    print(f"sabotage: 0 violations, 1 defences, {time.monotonic() - began:.2f} s")


@pytest.mark.proof
@pytest.mark.parametrize("defence", [one for one in DEFENCES if not one.quick], ids=str)
async def test_a_defence_against_a_race_is_needed(
    defence: Defence, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    await _is_needed(defence, request, tmp_path)
