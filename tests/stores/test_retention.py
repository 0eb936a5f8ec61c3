"""Retention by status and topic, and the bounds of prune. test_maintenance.py tests prune without topics."""

from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Status
from rowlock.stores.base import DAY, Retention
from rowlock.stores.queries import TopicRetention
from tests.stores.conftest import shared_store
from tests.stores.harness import Harness

store = shared_store

FOREVER = Retention(completed=None, cancelled=None, failed=None, expired=None)
ENDED: list[str] = [Status.COMPLETED, Status.CANCELLED, Status.FAILED, Status.EXPIRED]


async def kept(store: Harness) -> set[tuple[str, str]]:
    return {(row.job.topic, row.job.status.value) for row in (await store.rows()).values()}


async def fill(store: Harness, *topics: str) -> None:
    for topic in topics:
        for status in map(Status, ENDED):
            await store.in_status(status, topic)


RULES: dict[str, tuple[Retention, set[tuple[str, str]]]] = {
    "for ever": (FOREVER, {(t, s) for t in ("audit", "mail", "noise") for s in ENDED}),
    "one topic goes": (
        structs.replace(
            FOREVER, topics={"noise": TopicRetention(completed=DAY, failed=60.0, cancelled=3 * DAY, expired=3 * DAY)}
        ),
        {(t, s) for t in ("audit", "mail") for s in ENDED} | {("noise", "cancelled"), ("noise", "expired")},
    ),
    "one topic stays": (
        Retention(
            completed=DAY,
            cancelled=DAY,
            failed=DAY,
            expired=DAY,
            topics={"audit": TopicRetention(completed=None, failed=3 * DAY)},
        ),
        {("audit", "completed"), ("audit", "failed")},
    ),
    "UNSET is as for all": (
        Retention(
            completed=DAY, cancelled=3 * DAY, topics={"mail": TopicRetention(expired=0.0), "none": TopicRetention()}
        ),
        {(t, s) for t in ("audit", "mail", "noise") for s in ENDED[1:]} - {("mail", "expired")},
    ),
    "completed stay a day at least": (
        structs.replace(FOREVER, topics={"mail": TopicRetention(completed=0.0, failed=0.0)}),
        {(t, s) for t in ("audit", "mail", "noise") for s in ENDED} - {("mail", "completed"), ("mail", "failed")},
    ),
}


@pytest.mark.parametrize("case", RULES)
async def test_what_is_kept(store: Harness, case: str) -> None:
    retention, expected = RULES[case]
    await fill(store, "mail", "audit", "noise")
    everything = {(t, s) for t in ("audit", "mail", "noise") for s in ENDED}
    assert await kept(store) == everything
    await store.advance(2 * DAY)
    assert await store.store.prune(retention) == len(everything) - len(expected)
    assert await kept(store) == expected
    assert await store.store.prune(retention) == 0


async def test_not_a_moment_too_early(store: Harness) -> None:
    retention = Retention(topics={"mail": TopicRetention(completed=0.0, failed=50.0)})
    await fill(store, "mail")
    await store.advance(50 - 1e-6)
    assert await store.store.prune(retention) == 0
    await store.advance(1e-6)
    assert await store.store.prune(retention) == 1
    await store.advance(DAY - 50 - 1e-6)
    assert await store.store.prune(retention) == 0
    await store.advance(1e-6)
    assert await store.store.prune(retention) == 1
    assert await kept(store) == {("mail", "cancelled"), ("mail", "expired")}


async def test_a_limit_is_for_all_together_and_nothing_starves(store: Harness) -> None:
    """Jobs that one topic keeps for ever stay at the old end of the index. Prune finds the other jobs behind them."""
    for _ in range(3):
        await fill(store, "audit", "mail", "noise")
    await store.advance(30 * DAY)
    forever: dict[str, Any] = dict.fromkeys(ENDED)
    retention = Retention(failed=DAY, expired=DAY, topics={"audit": TopicRetention(**forever)})
    pruned = [await store.store.prune(retention, limit=5) for _ in range(6)]
    assert pruned == [5, 5, 5, 5, 4, 0]
    assert await kept(store) == {("audit", status) for status in ENDED}
    assert await store.store.prune(Retention(), limit=0) == 0


def test_the_longest() -> None:
    assert FOREVER.longest is None
    assert Retention().longest == 7 * DAY
    assert Retention(completed=0.0).longest == DAY
    assert Retention(topics={"a": TopicRetention(completed=9 * DAY), "b": TopicRetention()}).longest == 9 * DAY
    assert Retention(topics={"a": TopicRetention(completed=None)}).longest is None
