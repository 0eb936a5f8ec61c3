"""jobs.tokens makes, lists and revokes tokens, and refuses bad input."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rowlock.access import short_lived
from rowlock.access.short_lived import Bound
from rowlock.errors import InvalidInput, JobNotFound, TooManyTokens
from rowlock.jobs import Jobs
from tests.databases import KINDS, Databases

ADA: dict[str, Any] = {"scope": "user", "scope_id": "7"}


@pytest.fixture(params=KINDS)
async def jobs(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Jobs]:
    async with databases.at(request.param, tmp_path) as url, Jobs(url, by="shop") as jobs:
        yield jobs


async def test_its_text_is_in_the_answer_and_nowhere_else(jobs: Jobs) -> None:
    made = await jobs.tokens.create(**ADA, enqueue=["render"], cancel=True, reason="a page")
    assert made.token.startswith("rlk_")
    secret = made.token.rpartition("_")[2]
    for shown in (repr(made), str(made), f"{[made]}", repr(await jobs.tokens.list()), repr(await jobs.audit.list())):
        assert secret not in shown
        assert made.id in shown
    [listed] = await jobs.tokens.list()
    assert (listed.name, listed.scopes, listed.enqueue) == ("for user 7", ("read", "cancel", "enqueue"), ("render",))
    assert (listed.scope, listed.scope_id, listed.job, listed.created_by) == ("user", "7", None, "shop")
    assert listed.expires_at is not None
    assert timedelta(seconds=899) < listed.expires_at - listed.created <= timedelta(seconds=900)
    [entry] = await jobs.audit.list()
    assert (entry.action, entry.by, entry.reason) == ("token.create", "shop", "a page")


async def test_one_by_one_or_all_of_a_scope_are_revoked(jobs: Jobs) -> None:
    shown = await jobs.enqueue("render")
    made = [await jobs.tokens.create(**ADA, ttl=60) for _ in range(3)]
    other = await jobs.tokens.create(scope="user", scope_id="8", ttl=timedelta(hours=24))
    of_job = await jobs.tokens.create(job=shown.id, cancel=True)
    assert of_job.scopes == ("read", "cancel")
    assert [await jobs.tokens.revoke(made[0].id, by="ann"), await jobs.tokens.revoke(made[0].id)] == [1, 0]
    assert await jobs.tokens.revoke(**ADA, reason="logout") == 2
    assert await jobs.tokens.revoke(**ADA) == 0
    assert {one.id for one in await jobs.tokens.list()} == {other.id, of_job.id}
    told = [(one.by, one.reason, one.data["token"]) for one in await jobs.audit.list(action="token.revoke")]
    assert {one[:2] for one in told[:2]} == {("shop", "logout")}
    assert told[2] == ("ann", None, made[0].id)


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ({}, "scope", "missing"),
        ({"scope": "user"}, "scope_id", "missing"),
        ({**ADA, "job": "0193fb1e-0000-7000-8000-000000000000"}, "job", "both_given"),
        ({**ADA, "ttl": 0.5}, "ttl", "out_of_range"),
        ({**ADA, "ttl": 86_401}, "ttl", "out_of_range"),
        ({**ADA, "ttl": "900"}, "ttl", "not_a_number"),
        ({**ADA, "enqueue": "render"}, "enqueue", "not_a_list"),
        ({**ADA, "enqueue": ["a b"]}, "enqueue", "bad_characters"),
        ({**ADA, "cancel": 1}, "cancel", "bad_value"),
        ({"scope": "user", "scope_id": 7}, "scope_id", "not_text"),
        ({**ADA, "name": "x" * 101}, "name", "bad_length"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(tmp_path: Path, given: dict[str, Any], field: str, code: str) -> None:
    async with Jobs(f"sqlite:///{tmp_path / 'jobs.db'}") as jobs:
        with pytest.raises(InvalidInput) as refused:
            await jobs.tokens.create(**given)
        assert (refused.value.field, refused.value.code) == (field, code)
        assert list(await jobs.tokens.list()) == []


async def test_what_can_not_be_revoked_is_told(tmp_path: Path) -> None:
    async with Jobs(f"sqlite:///{tmp_path / 'jobs.db'}") as jobs:
        for given in ({}, {"scope": "user"}, {"id": "x", **ADA}):
            with pytest.raises(InvalidInput) as refused:
                await jobs.tokens.revoke(**given)
            assert refused.value.field == "id"
        assert await jobs.tokens.revoke("../x") == 0
        with pytest.raises(JobNotFound):
            await jobs.tokens.create(job="0193fb1e-0000-7000-8000-000000000000")


async def test_a_program_has_limits_as_well(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_lived, "BY_SCOPE", Bound(3, 2))
    for scope_id in ("7", "7", "8"):
        await jobs.tokens.create(scope="user", scope_id=scope_id)
    with pytest.raises(TooManyTokens) as refused:
        await jobs.tokens.create(scope="user", scope_id="9")
    assert (refused.value.most, refused.value.for_one) == (3, False)
    assert 0 < refused.value.seconds <= 960
    await jobs.tokens.create(scope="user", scope_id="9", by="another program")


def test_the_sync_twin(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path / 'jobs.db'}")
    made = jobs.sync.tokens.create(**ADA, enqueue=["render"])
    assert [one.id for one in jobs.sync.tokens.list()] == [made.id]
    assert jobs.sync.tokens.revoke(made.id) == 1
    jobs.sync.close()
