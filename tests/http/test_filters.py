"""Counts of jobs for any filter, and how far back a search has looked."""

from datetime import datetime, timedelta
from typing import Any

from tests.http.harness import A, B, World, is_problem
from tests.http.oracle import RULES

STATS = "/api/jobs/stats"
ROWS = 5_100  # more than a search for payloads looks at in each table


def numbers(body: dict[str, Any]) -> dict[str, int]:
    found = {name: count for name, count in body.items() if isinstance(count, int) and not isinstance(count, bool)}
    return {name: count for name, count in found.items() if count}


async def test_jobs_are_counted_for_any_filter(world: World) -> None:
    await world.ended(A, "bills", error="ValueError: no money", payload={"n": 1}, tags=["vip"])
    await world.ended(A, "bills", payload={"n": 1})
    await world.enqueue(B, topic="bills", payload={"n": 1}, key="k", scope="user")
    await world.enqueue(B, topic="letters", payload={"n": 2})
    cases = {
        "?topic=bills": {"failed": 1, "completed": 1, "pending": 1},  # from the counters
        "?topic=bills&topic=letters": {"failed": 1, "completed": 1, "pending": 2},
        "?payload=n=1": {"failed": 1, "completed": 1, "pending": 1},
        "?payload=n=1&status=failed&status=pending": {"failed": 1, "pending": 1},
        "?tag=vip": {"failed": 1},
        "?key=k": {"pending": 1},
        "?scope=user": {"pending": 1},
        f"?scopeId={A}": {"failed": 1, "completed": 1, "pending": 1},  # A has one job of the world itself
        "?error=money": {"failed": 1},
        "?createdFrom=2999-01-01T00:00:00Z": {},
    }
    for query, wanted in cases.items():
        answer = await world.get("superuser", STATS + query)
        assert answer.status_code == 200, answer.text
        assert numbers(answer.json()) == wanted, query
    is_problem(await world.get("superuser", f"{STATS}?nothing=1"), 400)


async def test_a_user_counts_only_what_the_rule_shows(world: World) -> None:
    await world.enqueue(A, topic="bills", payload={"n": 1})
    await world.enqueue(B, topic="bills", payload={"n": 1})
    await world.change_settings(manage_rule=RULES["own"])
    for query in ("?payload=n=1", f"?payload=n=1&scopeId={A}", "?topic=bills&topic=mail"):
        assert numbers((await world.get("user A", STATS + query)).json()) == {"pending": 1}, query
    assert numbers((await world.get("user A", f"{STATS}?payload=n=1&scopeId={B}")).json()) == {}
    # A caller must not guess a hidden error by counting.
    await world.change_settings(redact=["payload.secret"])
    is_problem(await world.get("user A", f"{STATS}?error=x"), 403)


async def test_a_search_says_how_far_back_it_has_looked(world: World) -> None:
    needle = await world.enqueue(None, topic="old", payload={"user": 7}, delay=3600)
    for _ in range(0, ROWS, 1020):
        await world.jobs.enqueue_many([{"topic": "new", "payload": {}, "delay": 3600}] * 1020)
    oldest = await world.job(needle)
    first = (await world.get("superuser", "/api/jobs?payload=user=7")).json()
    assert (first["items"], first["partial"]) == ([], True)
    reached = datetime.fromisoformat(first["looked_back_to"])
    assert oldest.created - timedelta(seconds=1) < reached < datetime.now(reached.tzinfo)
    assert numbers((await world.get("superuser", f"{STATS}?payload=user=7")).json()) == {"pending": 1}
    second = (await world.get("superuser", f"/api/jobs?payload=user=7&cursor={first['next']}")).json()
    assert [item["id"] for item in second["items"]] == [needle]
    assert (second["next"], second["looked_back_to"]) == (None, None)
    assert (await world.get("superuser", "/api/jobs?limit=1")).json()["looked_back_to"] is None  # it needs no search


async def test_the_audit_is_searched_in_what_it_shows(world: World) -> None:
    ids = [await world.enqueue(None, topic="bills", delay=3600) for _ in range(3)]
    for n, job_id in enumerate(ids):
        await world.jobs.cancel(job_id, by=f"ann-{n}@example.com", reason="The Bank is away")
    for query, count in (("bank", 3), ("ann-1", 1), (ids[0], 1), ("BANK is", 3), ("bills", 3), ("nobody-was-it", 0)):
        found = (await world.get("superuser", f"/api/audit?search={query}")).json()
        assert (len(found["items"]), found["next"]) == (count, None), query
    first = (await world.get("superuser", "/api/audit?search=bank&limit=2")).json()
    rest = (await world.get("superuser", f"/api/audit?search=bank&limit=2&cursor={first['next']}")).json()
    assert [len(page["items"]) for page in (first, rest)] == [2, 1]
    assert first["looked_back_to"] == first["items"][-1]["at"]


async def test_a_search_of_the_audit_is_bounded_and_goes_on(sqlite_world: World) -> None:
    await sqlite_world.jobs.cancel(await sqlite_world.enqueue(None, topic="oldest", delay=3600), by="ann")
    await sqlite_world.place.fetch(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 2500) "
        "INSERT INTO _jobs_audit (at, \"by\", action, data) SELECT 1, 'test', 'noise', '{}' FROM n"
    )
    first = (await sqlite_world.get("superuser", "/api/audit?search=oldest")).json()
    assert first["items"] == []
    assert first["looked_back_to"] is not None
    second = (await sqlite_world.get("superuser", f"/api/audit?search=oldest&cursor={first['next']}")).json()
    assert [one["topic"] for one in second["items"]] == ["oldest"]


async def test_what_is_hidden_is_not_found_in_the_audit(world: World) -> None:
    await world.change_settings(redact=["payload.password"])
    job_id = await world.enqueue(None, topic="bills", payload={"password": "hunter22"}, delay=3600)
    answer = await world.call("superuser", "PATCH", f"/api/jobs/{job_id}", {"payload": {"password": "hunter23"}})
    assert answer.status_code == 200, answer.text
    for guess, count in (("hunter", 0), ("redacted", 1)):
        found = (await world.get("superuser", f"/api/audit?search={guess}")).json()["items"]
        assert len([one for one in found if one["job_id"] == job_id]) == count, guess
