"""PostgreSQL has a short statement to insert jobs that can't exist yet. A longer one inserts the jobs that it skips."""

from datetime import timedelta

import pytest

from rowlock import errors
from rowlock.core.job import Status
from rowlock.stores.base import Enqueued
from tests.stores.harness import START, Harness, job


async def test_alike_or_not_the_rows_are_the_same(store: Harness) -> None:
    alike = [job("a", {"n": 1}, delay=5.0, priority=7), job("b", {"n": 2}, delay=5.0, priority=7)]
    mixed = [job("a", {"n": 1}, delay=5.0, priority=7), job("b", {"n": 2}), job("c", tags=("t",), scope="s")]
    later = START + timedelta(seconds=5)
    assert await store.insert(*alike) == [Enqueued(one.id, False, Status.PENDING, later, START) for one in alike]
    answers = await store.insert(*mixed)
    assert [answer.run_at for answer in answers] == [later, START, START]
    rows = await store.rows()
    assert [rows[one.id].ready for one in (*alike, *mixed)] == [False, False, False, True, True]
    assert {rows[one.id].job.priority for one in alike} == {7}
    assert rows[mixed[2].id].job.tags == ("t",)


@pytest.mark.parametrize("mixed", [False, True])
async def test_an_id_that_is_there_already_keeps_nobody_else_out(store: Harness, mixed: bool) -> None:
    there, new = job(), job(priority=5 if mixed else 100)
    await store.insert(there)
    answers = await store.insert(there, new, there)
    assert [(answer.id, answer.existing) for answer in answers] == [(there.id, True), (new.id, False), (there.id, True)]
    assert set(await store.rows()) == {there.id, new.id}


@pytest.mark.parametrize("mixed", [False, True])
async def test_a_unique_index_of_the_users_own_is_an_error(store: Harness, mixed: bool) -> None:
    if "postgres" not in type(store.store).__module__:
        pytest.skip("PostgreSQL only")
    await store.execute("CREATE UNIQUE INDEX mine ON _jobs (topic)")
    with pytest.raises(errors.StoreError, match="mine"):
        await store.insert(job("a"), job("a", priority=5 if mixed else 100))
    assert await store.rows() == {}
