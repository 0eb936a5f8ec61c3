"""docs/sql.md, as a reader with psql would try it."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from rowlock.jobs import Jobs
from tests.closing import connected
from tests.servers import PostgresServer, find_postgres

PAGE = (Path(__file__).parent.parent.parent / "docs" / "sql.md").read_text("utf-8")
SQL = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[WORKER] = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def psql() -> str:
    beside = find_postgres() / "psql"
    found = str(beside) if beside.exists() else shutil.which("psql")
    if found is None:
        pytest.skip("there is no psql on this machine")
    return found


@pytest.fixture
def url(migrated_url: str) -> str:
    return migrated_url


def run(psql: str, url: str, text: str) -> list[str]:
    ended = subprocess.run(
        [psql, url, "-XqAt", "-v", "ON_ERROR_STOP=1"], input=text, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.fixture
async def roles(postgres: PostgresServer, url: str) -> AsyncIterator[None]:
    """Drop the roles that the page makes. They belong to the whole server, so the next test would find them."""
    yield
    await postgres.execute("DROP OWNED BY shop, resizer", dbname=url.rsplit("/", 1)[1])
    await postgres.execute("DROP ROLE shop, resizer")


async def test_the_page_s_statements_answer_what_it_says(psql: str, url: str, roles: None) -> None:
    said = run(psql, url, "\n".join(SQL))
    assert said[1] == said[2] != said[0]  # the same key made no new job
    assert re.findall(r"-- (kept|applied|already|lost)$", "\n".join(SQL), re.MULTILINE) == said[-6:-2]
    assert said[-2:] == ['completed|{"width": 80}', "0"]

    async with connected(url) as connection:
        await connection.execute("SET ROLE shop")
        made = await connection.fetchval("SELECT enqueue_job('thumbnail', key => 'k', priority => 900)")
        assert await connection.fetchval("SELECT enqueue_job('thumbnail', key => 'k')") == made
        assert await connection.fetchval("SELECT enqueue_job('thumbnail', id => $1)", made) == made
        for refused in (
            "SELECT payload FROM _jobs",
            "UPDATE _jobs SET priority = 1",
            "DELETE FROM _jobs",
            "SELECT * FROM _jobs_all",
            "SELECT * FROM claim_job_batch('shop', '{thumbnail}')",
            "SELECT complete_job(gen_random_uuid(), 1, 'shop')",
            "SELECT rescue_jobs(grace => '0')",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(refused)

        await connection.execute("SET ROLE resizer")
        [job] = await connection.fetch("SELECT * FROM claim_job_batch('r1', '{thumbnail}', 1)")
        run_ = job["id"], job["version"], "r1"
        assert job["id"] == made
        assert await connection.fetchval("SELECT heartbeat_job($1, $2, $3)", *run_) == "kept"
        assert await connection.fetchval("SELECT fail_job($1, $2, $3, 'no', '0')", *run_) == "applied"
        [job] = await connection.fetch("SELECT * FROM claim_job_batch('r1', '{thumbnail}', 1)")
        run_ = job["id"], job["version"], "r1"
        for answer in ("applied", "already"):
            assert await connection.fetchval("SELECT complete_job($1, $2, $3)", *run_) == answer
        assert await connection.fetchval("SELECT rescue_jobs(grace => '0')") == 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SELECT enqueue_job('thumbnail')")


def test_an_error_names_its_field(psql: str, url: str) -> None:
    ended = subprocess.run(
        [psql, url, "-Xq", "-v", "VERBOSITY=verbose", "-c", "SELECT enqueue_job('a b')"], capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "22023: topic: 'a b' may only hold" in ended.stderr
    assert "COLUMN NAME:  topic" in ended.stderr


@asynccontextmanager
async def working(
    psql: str, url: str, folder: Path, handle: str | None = None
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Run the page's worker, with another handler if one is given. Yield its process."""
    script = folder / "worker.sh"
    text, replaced = re.subn(r"^handle\(\).*$", lambda line: handle or line[0], WORKER, flags=re.MULTILINE)
    assert replaced == 1
    script.write_text(text)
    environ = {**os.environ, "DATABASE_URL": url, "PATH": f"{Path(psql).parent}:{os.environ['PATH']}"}
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(  # noqa: ASYNC220 - it does not block for long
            ["bash", script], env=environ, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # all its processes have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")


@bash
async def test_the_worker_of_the_page_works_and_stops(psql: str, url: str, tmp_path: Path) -> None:
    async with Jobs(url) as jobs, working(psql, url, tmp_path) as worker:
        first = await jobs.enqueue("thumbnail", {"file": 7})
        assert (await jobs.wait(first.id, timeout=60)).result == {"bytes": len('{"file": 7}\n')}
        [_, claimed, completed] = await jobs.events(first.id)
        assert claimed.by == completed.by
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        assert (await jobs.stats()).processing == 0


@bash
@pytest.mark.parametrize(
    ("handle", "ends"),
    [
        ('handle() { echo "no such file"; false; }', ("retried", "no such file")),
        ("handle() { echo oops; }", ("failed", "no JSON: oops")),
        ("handle() { sleep 600; }", ("released", None)),
    ],
)
async def test_how_else_a_run_of_the_page_s_worker_may_end(
    psql: str, url: str, tmp_path: Path, handle: str, ends: tuple[str, str | None]
) -> None:
    async with Jobs(url) as jobs, working(psql, url, tmp_path, handle) as worker:
        made = await jobs.enqueue("thumbnail")
        while len(await jobs.events(made.id)) < 2:  # noqa: ASYNC110 - another process gives no signal
            await asyncio.sleep(0.02)
        if ends[0] == "released":
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        while len(events := await jobs.events(made.id)) < 3:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.02)
        assert (events[2].event, events[2].data.get("error")) == ends


async def test_python_workers_and_psql_run_each_other_s_jobs(psql: str, url: str) -> None:
    async with Jobs(url) as jobs:
        jobs.register("double", lambda n: 2 * n)
        await jobs.start(concurrency=2)
        [mine] = run(psql, url, "SELECT enqueue_job('double', '{\"n\": 21}')")
        assert (await jobs.wait(mine, timeout=60)).result == 42
        theirs = await jobs.enqueue("by_psql", {"n": 1})
        text = "SELECT id, version FROM claim_job_batch('psql', '{by_psql}') \\gset\n"
        assert run(psql, url, f"{text} SELECT complete_job(:'id', :version, 'psql', '[1]')") == ["applied"]
        assert (await jobs.wait(theirs.id, timeout=60)).result == [1]
        for job_id in (mine, theirs.id):
            assert [one.event for one in await jobs.events(job_id)] == ["enqueued", "claimed", "completed"]
        stats = await jobs.stats()
        assert (stats.completed, stats.executions) == (2, 2)
