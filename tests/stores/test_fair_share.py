"""Fair share at a realistic size: a tenant with 100,000 jobs beside ten tenants with ten jobs each."""

import random
from collections import Counter

import pytest

from rowlock.core.limits import Fair
from tests.stores.conftest import shared_store
from tests.stores.harness import Harness
from tests.stores.test_limits import claim, keys, limit, of

store = shared_store
SMALL = [f"small{n}" for n in range(10)]


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_a_large_tenant_delays_no_small_one(store: Harness) -> None:
    """A turn of the large tenant is one job, so small tenants wait as if it had no more jobs than they have."""
    await limit(store, "mail", Fair("scope_id"))
    for _ in range(100):
        await store.insert(*[of("large") for _ in range(1000)])
    assert keys(await claim(store, 5)) == ["large"] * 5, "a lone tenant gets everything"
    await store.insert(*[of(name) for name in SMALL for _ in range(10)])
    got: list[str | None] = []
    while len(got) < 110:
        got += keys(await claim(store, random.Random(len(got)).randint(1, 7)))
    turns = Counter(got[:110])
    assert [turns[name] for name in SMALL] == [10] * 10
    for turn in range(9):  # each round of turns brings one job of every tenant
        assert Counter(got[11 * turn : 11 * turn + 11]).most_common(1)[0][1] <= 2
    assert keys(await claim(store, 50)) == ["large"] * 50


@pytest.mark.proof
@pytest.mark.parametrize("size", [1, 7, 100])
async def test_weights_are_met_within_a_twentieth(store: Harness, size: int) -> None:
    weights = {"a": 5, "b": 3, "c": 1, "d": 1}
    await limit(store, "mail", Fair("scope_id", weights={"a": 5, "b": 3}))
    for name in weights:
        await store.insert(*[of(name) for _ in range(1000)])
    got: list[str | None] = []
    while len(got) < 1000:
        got += keys(await claim(store, size))
    for name, weight in weights.items():
        assert abs(Counter(got[:1000])[name] - 100 * weight) <= 5 * weight
