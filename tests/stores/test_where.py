"""Conditions on columns: the database finds the same jobs as the check in memory, live and archived."""

import random
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import asdict

from rowlock.core.conditions import FIELDS, OPS, Compared, Condition, Every, Some, holds
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.rule_binding import MAX_TEXT
from rowlock.core.rules import parse
from rowlock.stores.queries import Filter
from tests.stores.conftest import shared_store
from tests.stores.harness import START, Harness, job, settlement

store = shared_store

TEXTS = [
    "", "a", "A", "ab", "a_b", "a%b", "a*b", "a[b", "a?b", "a\\b", "ä", "😀", "Z", "'", '"', "report.daily", "\ue000",
]  # fmt: skip
PATTERNS = [*TEXTS[1:], "a%", "%b", "%a%", "%", "a%b%", "%%", "report%", "_", "*", "[a]%"]


async def filled(store: Harness, chance: random.Random) -> None:
    """Insert jobs with all kinds of columns, in all kinds of states."""

    def text() -> str | None:
        return chance.choice([None, *TEXTS[1:]])

    for n in range(60):
        if n % 15 == 0:
            await store.advance(1000.0)
        await store.insert(
            job(
                chance.choice(["mail", "report.daily", "A", "a_b"]),
                {"n": n},
                key=f"{n}{text() or ''}" if n % 3 else None,
                scope=text(),
                scope_id=text(),
                priority=chance.choice([-5, 0, 100, 150]),
                delay=chance.choice([0.0, 5.0]),
                max_retries=chance.choice([0, 3]),
            )
        )
    for claimed in (await store.claim("w1", "mail", "report.daily", "A", "a_b", limit=25)).jobs:
        outcome = chance.choice([Completed({"ok": True}), Completed(None), Failed("no"), None])
        if outcome is not None:
            await store.store.settle([settlement(claimed, outcome, ran=0.5)])


def some_test(chance: random.Random, row: dict[str, Any]) -> Condition:
    field, kind = chance.choice(list(FIELDS.items()))
    if chance.random() < 0.1:
        return Compared(field, chance.choice(["=", "!="]), None)
    null = chance.random() < 0.5
    near = row[field] if chance.random() < 0.6 else None
    if kind == "text":
        op: Any = chance.choice(OPS)
        value: Any = chance.choice(PATTERNS) if op in ("~", "!~") else near or chance.choice(TEXTS[1:])
        return Compared(field, op, str(value), null)
    op = chance.choice(OPS[:6])
    if kind == "number":
        return Compared(field, op, float(chance.choice([-5, 0, 1, 3, 100, 0.5]) if near is None else near), null)
    return Compared(field, op, (near or START) + timedelta(microseconds=chance.choice([-1, 0, 1])), null)


def some_condition(chance: random.Random, rows: list[dict[str, Any]], depth: int = 3) -> Condition:
    if depth == 0 or chance.random() < 0.4:
        return some_test(chance, chance.choice(rows))
    parts = tuple(some_condition(chance, rows, depth - 1) for _ in range(chance.choice([2, 2, 3])))
    return Every(parts) if chance.random() < 0.5 else Some(parts)


@pytest.mark.parametrize("seed", range(4))
async def test_the_database_and_memory_always_agree(store: Harness, seed: int) -> None:
    chance = random.Random(seed)
    await filled(store, chance)
    jobs = (await store.store.list(Filter(), limit=200)).items
    rows = [asdict(one) for one in jobs]
    assert {one.status for one in jobs} >= {"pending", "processing", "completed"}
    matched = 0
    for _ in range(150):
        condition = some_condition(chance, rows)
        page = await store.store.list(Filter(where=condition), limit=200)
        wanted = [row["id"] for row in rows if holds(condition, row)]
        assert [one.id for one in page.items] == wanted, condition
        matched += bool(wanted)
    assert matched > 50


async def test_a_rule_finds_ones_own_jobs(store: Harness) -> None:
    mine, other, nobodys = job(scope_id="u1"), job(scope_id="u2"), job()
    await store.insert(mine, other, nobodys)
    rule = parse("scope_id = @request.auth.id || @request.auth.role = 'ops'")

    async def seen(claims: dict[str, Any]) -> set[str]:
        return {one.id for one in (await store.store.list(Filter(where=rule.bind(claims, START)))).items}

    assert await seen({"id": "u1"}) == {mine.id}
    assert await seen({"id": "u3"}) == set()
    assert await seen({}) == set()
    assert await seen({"id": "u3", "role": "ops"}) == {mine.id, other.id, nobodys.id}


@pytest.mark.parametrize("char", ["a", "[", "😀", "\\"])
async def test_the_longest_claim_is_a_pattern_like_any_other(store: Harness, char: str) -> None:
    """SQLite refuses patterns of more than 50,000 bytes."""
    await store.insert(one := job(scope_id="u1"))
    rule = parse("scope_id !~ @request.auth.text && scope_id ?!~ @request.auth.texts")
    for length, wanted in ((MAX_TEXT, [one.id]), (MAX_TEXT + 1, []), (20 * MAX_TEXT, [])):
        claims = {"text": char * length, "texts": [char * length, "x"]}
        page = await store.store.list(Filter(where=rule.bind(claims, START)))
        assert [found.id for found in page.items] == wanted
