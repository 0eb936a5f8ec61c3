"""Whatever happens to a waiting job, in any order: no invariant breaks, and the job comes to an end."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rowlock.stores.sqlite.store import SqliteStore
from tests.databases import KINDS, Databases
from tests.proof.checker import check, summary
from tests.proof.history import History
from tests.proof.wait_orders import GRACE, STARTS, orders, play
from tests.proof.witness import Witness, lend
from tests.stores.harness import LEASE, Harness, harness_at
from tests.stores.rows import micros

LENGTH = {"sqlite": 3, "postgres": 3} if os.environ.get("ROWLOCK_PROOF") == "full" else {"sqlite": 2, "postgres": 2}

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness_at(request.param, databases, tmp_path, virtual=True, check=False) as harness:
        yield harness


@pytest.mark.parametrize("start", STARTS)
async def test_every_order_of_what_can_happen_to_a_job_that_waits(store: Harness, start: str) -> None:
    began = time.monotonic()
    lent = {}
    if isinstance(store.store, SqliteStore) and store.store._opened is not None:
        lent = await store.store._opened.writer.call(lambda db: lend(db.conn, lambda: micros(store.now)))
    witness = await Witness(store).install(**lent)
    history = History(store.kind, {"lease": LEASE, "cancel_grace": GRACE, "monotonic_offset": 0})
    stuck = await play(store, history, orders(start, LENGTH[store.kind]))
    found = check(await witness.collect(history))
    print(summary("orders of waits", [history], found, time.monotonic() - began))
    assert found == []
    assert stuck == []
