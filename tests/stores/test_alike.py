"""The store writes equal patches together. A batch must have the same effect as its jobs one by one."""

from collections.abc import Callable

import pytest
from msgspec import structs

from rowlock.core.lifecycle import Failed, Released
from rowlock.core.moves import Cancel, Delete, Edit, Order, Requeue, Update
from tests.stores.conftest import paired_store
from tests.stores.harness import Harness
from tests.stores.rows import Row

store = paired_store

ORDERS: dict[str, Callable[[], Order]] = {
    "cancel": lambda: Cancel(by="ann", reason="x"),
    "update": lambda: Update(by="ann", edit=Edit(priority=5, payload='{"n":1}')),
    "requeue": lambda: Requeue(by="ann"),
    "delete": lambda: Delete(by="ann"),
}


async def mixed(store: Harness) -> list[str]:
    """Return ids of jobs of different statuses, versions and histories, some of them alike."""
    ids = []
    for _ in range(2):
        ids.append((await store.settled(Failed("boom", final=True))).id)
        ids.append((await store.settled(Released("stop"))).id)
        await store.store.move([ids[-1]], Cancel(by="bob"))
        ids.append((await store.claimed()).id)
    ids += [await store.add(priority=n % 2, delay=60.0 * (n % 3)) for n in range(6)]
    return ids


def kept(row: Row | None) -> Row | None:
    return row and structs.replace(row, job=structs.replace(row.job, id=""))


@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
async def test_a_batch_leaves_the_same_as_its_jobs_one_by_one(store: Harness, order: Callable[[], Order]) -> None:
    together, apart = await mixed(store), await mixed(store)
    answers = await store.store.move(together, order())
    alone = [(await store.store.move([job_id], order()))[0] for job_id in apart]
    rows = await store.rows()
    assert [one.done for one in answers] == [one.done for one in alone]
    assert [kept(rows.get(job_id)) for job_id in together] == [kept(rows.get(job_id)) for job_id in apart]
    assert len({one.done for one in answers}) == 2 or order is ORDERS["delete"]
