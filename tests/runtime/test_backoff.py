"""A worker stores how long jobs of its tasks wait after a crash. Other workers, which may lack the tasks, need it when
they rescue the jobs."""

import json
from urllib.parse import urlsplit

import pytest

from rowlock.core.retry import Delays, Exponential, Quadratic
from rowlock.jobs import Jobs
from tests.proof.witness import TablesAt
from tests.runtime.running import nothing
from tests.servers import PostgresServer


async def kept(url: str) -> dict[str, list[float]]:
    column = "backoff" if url.startswith("sqlite") else "to_json(backoff)::text"
    rows = await TablesAt(url).fetch(f"SELECT topic, {column} FROM _jobs_topics")
    return {topic: json.loads(table) for topic, table in rows if table is not None}


async def test_a_worker_that_starts_says_how_long_its_jobs_wait(url: str) -> None:
    async with Jobs(url) as jobs:
        jobs.register("usual", nothing)
        jobs.register("own", nothing, retry=lambda job, error: 1.0)
        jobs.register("listed", nothing, retry=Delays((1, 1, 1)))
        jobs.register("growing", nothing, retry=Exponential(base=2.0, cap=16.0))
        await jobs.start()
        assert await kept(url) == {"listed": [1.0], "growing": [2.0, 4.0, 8.0, 16.0]}
    async with Jobs(url) as later:  # the next release
        later.register("listed", nothing)
        later.register("usual", nothing, retry=Quadratic(0.0))
        await later.start()
        assert await kept(url) == {"usual": [0.0], "growing": [2.0, 4.0, 8.0, 16.0]}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_worker_that_may_not_say_it_works_all_the_same(
    url: str, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    await postgres.execute(
        "DROP ROLE IF EXISTS modest",
        "CREATE ROLE modest LOGIN PASSWORD 'x'",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO modest",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO modest",
        "REVOKE INSERT, UPDATE ON _jobs_topics FROM modest",
        dbname=urlsplit(url).path[1:],
    )
    place = urlsplit(url)
    async with Jobs(place._replace(netloc=f"modest:x@{place.hostname}:{place.port}").geturl()) as jobs:
        jobs.register("listed", nothing, retry=Delays((1.0,)))
        await jobs.start()
        made = await jobs.enqueue("listed")
        assert (await jobs.wait(made.id, timeout=30)).status == "completed"
    assert "its jobs wait as by default" in caplog.text
