"""A client that knows nothing but the six endpoints of the plan from which this API comes, over a real connection."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.access import tokens
from tests.http.harness import Place, Server

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z")
STATS = {"pending", "processing", "completed", "failed", "success_rate", "avg_execution_time"}
NOWHERE = "0193fb1e-0000-7000-8000-000000000000"


class Refused(Exception):
    def __init__(self, status: int, body: dict[str, Any], kind: str | None) -> None:
        self.status, self.body, self.kind = status, body, kind


class Client:
    """From the plan: Bearer token, JSON in, JSON out."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._token}"}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, json.loads(error.read()), error.headers["Content-Type"]) from None

    def enqueue(self, topic: str, payload: dict[str, Any], **more: Any) -> Any:
        status, body = self("POST", "/api/jobs/enqueue", {"topic": topic, "payload": payload, **more})
        assert status == 200
        return body

    def refusal(self, method: str, path: str, body: Any = None) -> int:
        with pytest.raises(Refused) as refused:
            self(method, path, body)
        assert refused.value.kind == "application/problem+json"
        assert refused.value.body["code"]
        return refused.value.status


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    async def token() -> str:
        async with Jobs(place.url) as jobs:
            return (await tokens.create(await jobs._store(), "seed", ["enqueue", "manage"], by="test"))[1]

    with Server.running(place.url) as server:
        yield Client(server.url, asyncio.run(token()))


def test_enqueue_answers_with_the_new_job(client: Client) -> None:
    answer = client.enqueue("mail_digest", {"userId": "123"}, runAt="2030-01-08T12:00:00Z", maxRetries=5)
    assert {"id", "topic", "status", "run_at", "created"} <= answer.keys()
    assert (answer["topic"], answer["status"]) == ("mail_digest", "pending")
    assert answer["run_at"] == "2030-01-08T12:00:00Z"
    assert TIME.match(answer["created"])


def test_get_answers_with_the_whole_job(client: Client) -> None:
    job_id = client.enqueue("mail_digest", {"userId": "123"})["id"]
    status, job = client("GET", f"/api/jobs/{job_id}")
    assert status == 200
    wanted = {"id": job_id, "topic": "mail_digest", "payload": {"userId": "123"}, "status": "pending", "retries": 0}
    assert wanted.items() <= job.items()
    assert job["max_retries"] == 3
    assert all(TIME.match(job[name]) for name in ("run_at", "created", "updated"))
    assert "locked_until" not in job  # omitempty
    assert "last_error" not in job


def test_list_answers_with_a_page(client: Client) -> None:
    for n in range(3):
        client.enqueue("mail_digest", {"n": n})
    client.enqueue("other", {})
    status, page = client("GET", "/api/jobs?topic=mail_digest&status=pending&limit=2&offset=1")
    assert status == 200
    assert (page["total"], page["limit"], page["offset"]) == (3, 2, 1)
    assert [job["payload"]["n"] for job in page["items"]] == [1, 0]
    _, usual = client("GET", "/api/jobs")
    assert (usual["limit"], usual["offset"], usual["total"]) == (20, 0, 4)


def test_stats_have_the_six_numbers(client: Client) -> None:
    client.enqueue("mail_digest", {})
    status, stats = client("GET", "/api/jobs/stats")
    assert status == 200
    assert stats.keys() >= STATS
    assert (stats["pending"], stats["processing"], stats["completed"], stats["failed"]) == (1, 0, 0, 0)
    assert stats["success_rate"] is None
    assert stats["avg_execution_time"] is None


def test_delete_answers_with_nothing_and_the_job_is_gone(client: Client) -> None:
    job_id = client.enqueue("mail_digest", {})["id"]
    assert client("DELETE", f"/api/jobs/{job_id}") == (204, None)
    assert client.refusal("GET", f"/api/jobs/{job_id}") == 404
    assert client.refusal("DELETE", f"/api/jobs/{job_id}") == 404


def test_what_is_not_there_is_not_found(client: Client) -> None:
    assert client.refusal("GET", f"/api/jobs/{NOWHERE}") == 404
    assert client.refusal("POST", f"/api/jobs/{NOWHERE}/requeue") == 404
    assert client.refusal("DELETE", f"/api/jobs/{NOWHERE}") == 404


def test_a_pending_job_can_not_be_requeued(client: Client) -> None:
    job_id = client.enqueue("mail_digest", {})["id"]
    assert client.refusal("POST", f"/api/jobs/{job_id}/requeue") == 409


def test_a_cancelled_job_can_be_requeued(client: Client) -> None:
    job_id = client.enqueue("mail_digest", {})["id"]
    client("POST", f"/api/jobs/{job_id}/cancel")
    status, job = client("POST", f"/api/jobs/{job_id}/requeue")
    assert (status, job["status"]) == (200, "pending")


def test_without_a_token_nothing_is_answered(client: Client) -> None:
    stranger = Client(client._url, "")
    for method, path, body in (
        ("POST", "/api/jobs/enqueue", {"topic": "x"}),
        ("GET", "/api/jobs", None),
        ("GET", "/api/jobs/stats", None),
        ("GET", f"/api/jobs/{NOWHERE}", None),
        ("POST", f"/api/jobs/{NOWHERE}/requeue", None),
        ("DELETE", f"/api/jobs/{NOWHERE}", None),
    ):
        assert stranger.refusal(method, path, body) == 401
