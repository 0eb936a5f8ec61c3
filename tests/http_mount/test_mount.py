"""The HTTP API inside other applications: every example runs behind a real server, and keeps its users apart."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from rowlock import Jobs
from rowlock.access import settings

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "http"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*_app.py"))
OWN = "scope_id = @request.auth.id"

# The program listens before it prints its port. So a client that connects early waits until the application is ready.
SERVER = """
import socket, sys, uvicorn
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.path.insert(0, sys.argv[2])
config = uvicorn.Config(sys.argv[1], root_path=sys.argv[3], log_level="warning", lifespan="on")
uvicorn.Server(config).run(sockets=[listening])
"""


class Site:
    """One example, as browsers see it."""

    def __init__(self, base: str) -> None:
        self.base = base

    @asynccontextmanager
    async def browser(self, user: str | None) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"origin": str(httpx.URL(self.base).join("/")).rstrip("/")}  # as browsers send it
        async with httpx.AsyncClient(base_url=self.base, timeout=60, trust_env=False, headers=headers) as client:
            if user is not None:
                (await client.post(f"/login/{user}")).raise_for_status()
            yield client


@contextmanager
def serving(name: str, url: str, root_path: str = "") -> Iterator[Site]:
    """Run an example behind a real server. Yield its site. `root_path`: the prefix that a proxy has removed."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SERVER, f"{name}:app", str(EXAMPLES), root_path],
        env={**os.environ, "ROWLOCK_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        port = process.stdout.readline().strip()
        assert port, process.communicate(timeout=60)[1]
        yield Site(f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            _, told = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            _, told = process.communicate()
    # The server started, served and stopped without a warning. Litestar prints INFO lines, the others do not.
    assert [line for line in told.splitlines() if not line.startswith("INFO")] == []
    assert process.returncode in (0, -signal.SIGTERM)


def database(folder: Path) -> str:
    """Make a database in which users may see, enqueue and cancel only their own jobs. Return its URL."""

    async def make() -> None:
        async with Jobs(url) as jobs:
            own = dict.fromkeys(("enqueue_rule", "view_rule", "cancel_rule"), OWN)
            await settings.change(await jobs._store(), own, by="test")

    url = f"sqlite:///{folder}/jobs.db"
    asyncio.run(make())
    return url


@pytest.fixture(scope="module", params=NAMES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield one server for all tests of an example. Each test has its own users."""
    with serving(request.param, database(tmp_path_factory.mktemp("site"))) as site:
        yield site


async def enqueue(client: httpx.AsyncClient, owner: str) -> dict[str, Any]:
    body = {"topic": "report", "payload": {"title": "sales"}, "scope_id": owner}
    answer = await client.post("/queue/api/jobs/enqueue", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def ids(client: httpx.AsyncClient) -> set[str]:
    answer = await client.get("/queue/api/jobs")
    assert answer.status_code == 200, answer.text
    return {job["id"] for job in answer.json()["items"]}


def test_there_is_an_example_for_every_framework_that_we_name() -> None:
    assert NAMES == ["django_app", "fastapi_app", "litestar_app", "starlette_app"]


async def test_users_of_the_application_see_their_own_jobs_only(site: Site) -> None:
    async with site.browser("ada") as ada, site.browser("bob") as bob:
        hers = (await enqueue(ada, "ada"))["id"]
        ordered = await ada.post("/reports/costs")  # the application enqueues a job for ada
        assert ordered.is_success
        his = (await enqueue(bob, "bob"))["id"]
        assert await ids(ada) == {hers, ordered.json()["id"]}
        assert await ids(bob) == {his}
        got = await ada.get(f"/queue/api/jobs/{hers}")
        assert (got.status_code, got.json()["payload"]) == (200, {"title": "sales"})
        for method, path, status in (
            ("GET", his, 404), ("POST", f"{his}/cancel", 404), ("GET", f"{his}/events", 404), ("DELETE", his, 403),
            ("DELETE", hers, 403), ("POST", f"{hers}/requeue", 403),
        ):  # fmt: skip
            refused = await ada.request(method, f"/queue/api/jobs/{path}")
            assert refused.status_code == status
            assert refused.headers["content-type"] == "application/problem+json"
        cancelled = await ada.post(f"/queue/api/jobs/{hers}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert (await bob.get(f"/queue/api/jobs/{his}")).json()["status"] == "pending"


async def test_nobody_enqueues_for_somebody_else(site: Site) -> None:
    async with site.browser("carol") as carol:
        for body in ({"topic": "report", "scope_id": "bob"}, {"topic": "report"}):
            assert (await carol.post("/queue/api/jobs/enqueue", json=body)).status_code == 403
        assert await ids(carol) == set()
        assert (await carol.get("/queue/api/settings")).status_code == 403


async def test_who_is_not_logged_in_gets_nothing(site: Site) -> None:
    async with site.browser("dora") as dora, site.browser(None) as nobody:
        hers = (await enqueue(dora, "dora"))["id"]
        for path in ("", f"/{hers}", "/stats"):
            assert (await nobody.get(f"/queue/api/jobs{path}")).status_code == 401
        refused = await nobody.post("/queue/api/jobs/enqueue", json={"topic": "report", "scope_id": "dora"})
        assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
        assert (await nobody.post("/reports/costs")).status_code == 401
        forged = {"cookie": "session=dora; sessionid=dora"}
        assert (await nobody.get("/queue/api/jobs", headers=forged)).status_code == 401


async def test_the_probes_answer_below_the_prefix(site: Site) -> None:
    async with site.browser(None) as nobody:
        assert (await nobody.get("/queue/healthz")).json() == {"status": "ok"}
        assert (await nobody.get("/queue/readyz")).json()["status"] == "ok"


async def test_what_is_outside_the_prefix_is_the_application_s(site: Site, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["site"].removesuffix("_app")
    async with site.browser(None) as nobody:
        assert (await nobody.get("/")).json() == {"application": name}
        for path in ("/healthz", "/api/jobs", "/queue2/healthz", "/reports/queue/healthz"):
            outside = await nobody.get(path)
            assert outside.status_code in (404, 405)
            # Litestar also passes paths that only begin like the prefix to rowlock, which answers 404 there.
            assert "x-request-id" not in outside.headers or (name, path) == ("litestar", "/queue2/healthz")
        inside = await nobody.get("/queue/nothing")
        assert (inside.status_code, inside.json()["code"]) == (404, "no_such_path")
        assert "x-request-id" in inside.headers


@pytest.mark.parametrize("name", NAMES)
async def test_it_also_works_behind_a_proxy_that_takes_a_prefix_off(name: str, tmp_path: Path) -> None:
    url = await asyncio.to_thread(database, tmp_path)
    with serving(name, url, "/shop") as site:
        async with site.browser("erin") as erin:
            assert (await erin.get("/queue/healthz")).json() == {"status": "ok"}
            assert await ids(erin) == set()
            assert (await erin.get("/")).is_success
