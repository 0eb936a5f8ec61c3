"""A client written only from the plan that this API comes from: its six endpoints, its names, its kinds of values.

The client knows nothing that was added since. docs/http.md lists where rowlock differs from the plan, under "Where it
comes from"; `DEVIATIONS` names the differences that this client meets.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.access import settings as access_settings
from rowlock.access import tokens
from rowlock.core.lifecycle import Completed, Failed
from tests.http.harness import Place, Server, user_token
from tests.stores.harness import claim_by, settlement

# The plan's structures: the JSON name and kind of each field. "?": an empty field is left out (omitempty).
JOB = {
    "id": "string", "topic": "string", "payload": "object", "status": "status", "run_at": "time",
    "locked_until?": "time", "retries": "int", "max_retries": "int", "last_error?": "string", "created": "time",
    "updated": "time",
}  # fmt: skip
ENQUEUED = {"id": "string", "topic": "string", "status": "status", "run_at": "time", "created": "time"}
PAGE = {"items": "list", "total": "int", "limit": "int", "offset": "int"}
STATS = {
    "pending": "int", "processing": "int", "completed": "int", "failed": "int", "success_rate": "number or null",
    "avg_execution_time": "number or null",
}  # fmt: skip
STATUSES = ("pending", "processing", "completed", "failed")
NOWHERE = "0193fb1e-0000-7000-8000-000000000000"

# As docs/http.md lists them.
DEVIATIONS = (
    "Answers have more fields",
    "`success_rate` and `avg_execution_time` are null while nothing has ended",
    "`avg_execution_time` may have a fraction",
    "A completed, cancelled or expired job can be deleted, too",
    "`limit` is 200 at most",
)


def is_time(value: Any) -> bool:
    return isinstance(value, str) and value.endswith("Z") and datetime.fromisoformat(value).tzinfo is not None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


KINDS: dict[str, Any] = {
    "string": lambda value: isinstance(value, str) and bool(value),
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number or null": lambda value: value is None or is_number(value),
    "status": lambda value: value in STATUSES,
    "time": is_time,
}


def fits(value: Any, shape: dict[str, str]) -> Any:
    """Check that the value has each field of the plan, and of its kind. Return the value."""
    for name, kind in shape.items():
        if name.endswith("?") and name[:-1] not in value:
            continue
        assert KINDS[kind](value[name.rstrip("?")]), f"{name} is {value[name.rstrip('?')]!r}, not a {kind}"
    return value


class Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class Client:
    """Bearer token, JSON in, JSON out."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url, self._token = url, token

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code) from None

    def enqueue(self, topic: str, payload: Any, **options: Any) -> Any:
        return fits(self._send("POST", "/api/jobs/enqueue", {"topic": topic, "payload": payload, **options}), ENQUEUED)

    def get(self, job_id: str) -> Any:
        return fits(self._send("GET", f"/api/jobs/{job_id}"), JOB)

    def list(self, query: str = "") -> Any:
        page = fits(self._send("GET", f"/api/jobs{query}"), PAGE)
        for job in page["items"]:
            fits(job, JOB)
        return page

    def stats(self) -> Any:
        return fits(self._send("GET", "/api/jobs/stats"), STATS)

    def requeue(self, job_id: str) -> None:
        self._send("POST", f"/api/jobs/{job_id}/requeue")

    def delete(self, job_id: str) -> None:
        self._send("DELETE", f"/api/jobs/{job_id}")


@contextmanager
def refused(*statuses: int) -> Iterator[None]:
    with pytest.raises(Refused) as error:
        yield
    assert error.value.status in statuses


class Application:
    """The application beside the client: it runs the jobs, and configures who may do what."""

    def __init__(self, url: str, server: Server) -> None:
        self._url, self._server = url, server

    def _do(self, what: Any) -> Any:
        async def run() -> Any:
            async with Jobs(self._url) as jobs:
                return await what(await jobs._store())

        return asyncio.run(run())

    def token(self, *scopes: str) -> str:
        async def make(store: Any) -> str:
            return (await tokens.create(store, "seed", scopes, by="test"))[1]

        return str(self._do(make))

    def configure(self, **settings: Any) -> None:
        self._do(lambda store: access_settings.change(store, settings, by="test"))
        self._server.call(self._server.app.forget_settings)  # otherwise they apply within a second

    def work(self, topic: str, error: str | None = None, *, until: str = "the end") -> None:
        """Run one job: it completes, fails for good, or only begins."""

        async def work(store: Any) -> None:
            [job] = (await store.claim(claim_by("w1", topic, limit=1))).jobs
            if until == "the end":
                outcome = Completed(None) if error is None else Failed(error, final=True)
                await store.settle([settlement(job, outcome)])

        self._do(work)


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    with Server.running(place.url) as server:
        yield server


@pytest.fixture
def app(place: Place, server: Server) -> Application:
    return Application(place.url, server)


@pytest.fixture
def client(app: Application, server: Server) -> Client:
    return Client(server.url, app.token("enqueue", "manage"))


def test_the_example_of_the_plan(client: Client) -> None:
    made = client.enqueue("mail_digest", {"userId": "123"}, runAt="2030-01-08T12:00:00Z", maxRetries=5)
    assert (made["topic"], made["status"], made["run_at"]) == ("mail_digest", "pending", "2030-01-08T12:00:00Z")
    job = client.get(made["id"])
    assert {name: job[name] for name in ENQUEUED} == {name: made[name] for name in ENQUEUED}
    assert (job["payload"], job["retries"], job["max_retries"]) == ({"userId": "123"}, 0, 5)
    assert client.get(client.enqueue("mail_digest", {})["id"])["max_retries"] == 3


def test_the_life_of_a_job(client: Client, app: Application) -> None:
    job_id = client.enqueue("mail_digest", {"userId": "123"})["id"]
    assert not {"locked_until", "last_error"} & client.get(job_id).keys()
    app.work("mail_digest", until="it runs")
    running = client.get(job_id)
    assert running["status"] == "processing"
    assert is_time(running["locked_until"])
    with refused(409):
        client.delete(job_id)
    with refused(409):
        client.requeue(job_id)


def test_a_dead_letter_can_be_requeued_and_deleted(client: Client, app: Application) -> None:
    job_id = client.enqueue("mail_digest", {})["id"]
    app.work("mail_digest", "SMTPError: no answer")
    failed = client.get(job_id)
    assert failed["status"] == "failed"
    assert "SMTPError: no answer" in failed["last_error"]
    client.requeue(job_id)
    again = client.get(job_id)
    assert (again["status"], again["retries"]) == ("pending", 0)
    app.work("mail_digest", "SMTPError: no answer")
    client.delete(job_id)
    with refused(404):
        client.get(job_id)


def test_a_completed_job(client: Client, app: Application) -> None:
    job_id = client.enqueue("mail_digest", {})["id"]
    app.work("mail_digest")
    assert client.get(job_id)["status"] == "completed"
    with refused(409):
        client.requeue(job_id)
    client.delete(job_id)  # the plan refuses this: see DEVIATIONS


def test_a_list_is_a_page(client: Client) -> None:
    for n in range(3):
        client.enqueue("mail_digest", {"n": n})
    client.enqueue("other", {})
    page = client.list("?topic=mail_digest&status=pending&limit=2&offset=1")
    assert (page["total"], page["limit"], page["offset"], len(page["items"])) == (3, 2, 1, 2)
    assert {job["topic"] for job in page["items"]} == {"mail_digest"}
    usual = client.list()
    assert (usual["total"], usual["limit"], usual["offset"]) == (4, 20, 0)
    assert client.list("?status=failed")["items"] == []
    with refused(400):
        client.list("?limit=201")


def test_stats_count_and_tell_rate_and_time(client: Client, app: Application) -> None:
    assert client.stats()["success_rate"] is None
    for error in (None, None, None, "Boom: 1"):
        client.enqueue("mail_digest", {})
        app.work("mail_digest", error)
    client.enqueue("mail_digest", {})
    client.enqueue("other", {})
    app.work("other", until="it runs")
    stats = client.stats()
    assert [stats[name] for name in STATUSES] == [1, 1, 3, 1]
    assert stats["success_rate"] == 0.75
    assert 0 < stats["avg_execution_time"] < 60_000  # milliseconds


@pytest.mark.parametrize("job_id", [NOWHERE, "01HQXYZ1234567890", "7", "mail_digest"])
def test_what_is_not_there_is_not_found(client: Client, job_id: str) -> None:
    for ask in (client.get, client.requeue, client.delete):
        with refused(404):
            ask(job_id)


def test_what_can_not_be_enqueued_is_refused(client: Client) -> None:
    for topic, payload, options in (
        ("", {}, {}), ("mail digest", {}, {}), ("mail_digest", [], {}), ("mail_digest", "x", {}),
        ("mail_digest", {}, {"runAt": "tomorrow"}), ("mail_digest", {}, {"maxRetries": -1}),
        ("mail_digest", {"a": "x" * (1 << 20)}, {}),
    ):  # fmt: skip
        with refused(400, 413):
            client.enqueue(topic, payload, **options)
    assert client.list()["total"] == 0


def everything(client: Client) -> list[Any]:
    return [
        lambda: client.enqueue("mail_digest", {}), client.list, client.stats, lambda: client.get(NOWHERE),
        lambda: client.requeue(NOWHERE), lambda: client.delete(NOWHERE),
    ]  # fmt: skip


def test_at_first_nobody_may_do_anything(server: Server) -> None:
    for ask in everything(Client(server.url, None)):
        with refused(401):
            ask()
    for ask in everything(Client(server.url, user_token("ann"))):
        with refused(403):
            ask()


def test_the_rules_of_the_plan(app: Application, server: Server) -> None:
    """'' lets in superusers only, "true" everyone, "@request.auth.id != ''" every caller that is logged in."""
    anyone, user = Client(server.url, None), Client(server.url, user_token("ann"))
    app.configure(enqueue_rule="true", manage_rule="@request.auth.id != ''")
    job_id = anyone.enqueue("mail_digest", {})["id"]
    with refused(401):
        anyone.get(job_id)
    assert user.get(job_id)["id"] == job_id
    assert user.list()["total"] == user.stats()["pending"] == 1
    user.delete(job_id)
    app.configure(allowed_topics=["mail_digest"])
    with refused(401, 403):
        anyone.enqueue("other", {})
    anyone.enqueue("mail_digest", {})
    app.configure(http_enabled=False)
    for ask in everything(user):
        with refused(404):
            ask()


def test_the_deviations_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    documented = " ".join(text.partition("## Where it comes from")[2].split())
    assert [one for one in DEVIATIONS if one not in documented] == []
