"""A worker that can't start says why, in one or two lines, and ends. If the cause may pass, it waits instead."""

import re
import signal

import pytest

from tests.databases import Databases, empty
from tests.runtime.system.fleet import Fleet, health
from tests.servers import PostgresServer, _free_port

pytestmark = pytest.mark.timeout(120)


async def refusal(fleet: Fleet, *options: str, app: str = "app:jobs", **env: str) -> str:
    """Return the output of a worker that can't start. It was told to start two processes: after the first has failed,
    it must not try a second."""
    worker = fleet.launch("--processes", "2", *options, app=app, **env)
    assert await worker.ended() in (1, 2)
    await fleet.nobody_left()
    return worker.output


def check_brief(said: str) -> None:
    lines = said.strip().splitlines()
    assert 1 <= len(lines) <= 2, said
    assert lines[0].startswith("rowlock: "), said
    assert "Traceback" not in said


APPS = {
    "fine": "from rowlock import Jobs\njobs = Jobs()\n@jobs.task\nasync def quick() -> None: ...\n",
    "raises": "import json\njson.loads('{')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "empty": "from rowlock import Jobs\njobs = Jobs()\n",
    "other": "jobs = 7\n",
}


@pytest.mark.parametrize(
    ("app", "options", "says"),
    [
        ("nosuch:jobs", (), "no module nosuch"),
        ("fine:nosuch", (), "fine:jobs"),
        ("other:jobs", (), "int"),
        ("raises:jobs", (), r"raises\.py:2"),
        ("exits:jobs", (), r"exits\.py:2"),
        ("empty:jobs", (), "nothing to run"),
        ("fine:jobs", ("--topics", "quick,nosuch"), "no handler for nosuch"),
    ],
)
async def test_an_application_that_cannot_be_run(
    sqlite_fleet: Fleet, app: str, options: tuple[str, ...], says: str
) -> None:
    for name, source in APPS.items():
        (sqlite_fleet.folder / f"{name}.py").write_text(source)
    said = await refusal(sqlite_fleet, *options, app=app)
    check_brief(said)
    assert re.search(says, said), said


async def test_a_traceback_is_shown_to_who_asks_for_it(sqlite_fleet: Fleet) -> None:
    (sqlite_fleet.folder / "raises.py").write_text(APPS["raises"])
    said = await refusal(sqlite_fleet, app="raises:jobs", ROWLOCK_TRACEBACK="1")
    assert "Traceback" in said
    assert "JSONDecodeError" in said


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://{user}:wrong@{host}:{port}/postgres", "refused the login"),
        ("postgresql://{user}:right@{host}:{port}/nosuch", "create the database first"),
        ("postgresql://{user}:right@{host}:{port}/postgres?sslmode=nonsense", "sslmode"),
        ("postgresql://{user}:right@{host}:{port}/postgres?no_such_setting=1", "no_such_setting"),
        ("postgresql://{user}:right@{host}:{port}/postgres?pool_size=-1", "pool_size"),
        ("sqlite:////no/such/directory/jobs.db", "create it first"),
    ],
)
async def test_what_is_certainly_a_mistake(sqlite_fleet: Fleet, postgres: PostgresServer, url: str, says: str) -> None:
    await postgres.execute("DROP ROLE IF EXISTS knower", "CREATE ROLE knower LOGIN PASSWORD 'right'")
    place = {"user": "knower", "host": postgres.host, "port": postgres.port}
    said = await refusal(sqlite_fleet, ROWLOCK_URL=url.format(**place))
    check_brief(said)
    assert says in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_that_waits_for_its_server_ends_at_once_when_it_is_told_to(
    sqlite_fleet: Fleet, number: signal.Signals
) -> None:
    port, healthy = _free_port(), _free_port()
    url = f"postgresql://ada:secret@127.0.0.1:{port}/shop"
    worker = sqlite_fleet.launch("--grace", "10m", "--health-port", str(healthy), ROWLOCK_URL=url)
    await sqlite_fleet.until(lambda: "the database is not there yet" in worker.output, what="it to say why it waits")
    assert await health(healthy) == 503
    worker.signal(number)
    assert await worker.ended() == 0
    assert f"127.0.0.1:{port}/shop can't be reached" in worker.output
    assert "secret" not in worker.output
    assert "Traceback" not in worker.output


async def test_a_database_without_tables(sqlite_fleet: Fleet, postgres_url: str) -> None:
    said = await refusal(sqlite_fleet, ROWLOCK_URL=postgres_url)
    check_brief(said)
    assert "rowlock migrate" in said


async def test_a_listen_url_that_leads_to_another_database(sqlite_fleet: Fleet, databases: Databases) -> None:
    async with databases.fresh() as url, databases.fresh(empty) as other:
        said = await refusal(sqlite_fleet, ROWLOCK_URL=url, ROWLOCK_LISTEN_URL=other)
    check_brief(said)
    assert "listen_url" in said
    assert "not the database that the URL leads to" in said


async def test_a_wrong_setting_in_the_environment(sqlite_fleet: Fleet) -> None:
    said = await refusal(sqlite_fleet, ROWLOCK_LEASE="soon")
    check_brief(said)
    assert "ROWLOCK_LEASE" in said


async def test_an_option_out_of_range(sqlite_fleet: Fleet) -> None:
    said = await refusal(sqlite_fleet, "--lease", "1ms")
    assert "lease" in said
    assert "0.5" in said
    assert "Traceback" not in said
