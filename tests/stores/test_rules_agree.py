"""A rule means the same everywhere: to the judge in rule_oracle.py, in memory, and in the SQL of each store."""

import os
import random
import sqlite3
from functools import partial
from itertools import chain, islice
from typing import Any

from msgspec.structs import asdict

from rowlock.access.explain import explain
from rowlock.core.conditions import Condition, holds, one_of, required
from rowlock.core.rules import parse
from rowlock.stores.conditions import Renderer
from rowlock.stores.listing import Walk, WalkPart
from rowlock.stores.postgres.listing import PostgresPart
from rowlock.stores.queries import Filter
from rowlock.stores.sqlite.listing import SqlitePart
from tests.stores.conftest import shared_store
from tests.stores.harness import Harness, PostgresHarness, SqliteHarness
from tests.stores.rule_oracle import One, every_case, judge, some_case, written
from tests.stores.test_where import filled

store = shared_store
RULES = int(os.environ.get("ROWLOCK_TEST_RULES", "400"))  # random rules, each with its own claims, checked on every job
TOGETHER = 50  # rules in one statement


async def rows_of(store: Harness) -> list[dict[str, Any]]:
    return [asdict(one) | {"status": str(one.status)} for one in (await store.store.list(Filter(), limit=200)).items]


async def in_sql(store: Harness, conditions: list[Condition]) -> list[set[str]]:
    """Return for each condition the ids of the jobs, live and archived, that meet it."""
    found: list[set[str]] = [set() for _ in conditions]
    for archived in (False, True):
        step = WalkPart(Walk(archived, "id"), None, 0, 0)
        render: Renderer = (
            SqlitePart(Filter(), step) if isinstance(store, SqliteHarness) else PostgresPart("public", Filter(), step)
        )
        columns = ", ".join(render._where(one) for one in conditions)
        query, values = f"SELECT j.id, {columns} FROM _jobs{'_archive' if archived else ''} j", render.values
        if isinstance(store, PostgresHarness):
            rows: Any = await (await store.connection()).fetch(query, *values)
        else:
            assert isinstance(store, SqliteHarness)
            rows = await store._behind(partial(_fetch, query, values))
        for job_id, *met in rows:
            for ids, is_met in zip(found, met, strict=True):
                if is_met:
                    ids.add(str(job_id))
    return found


def _fetch(query: str, values: list[Any], connection: sqlite3.Connection) -> Any:
    return connection.execute(query, values).fetchall()


async def test_a_judge_memory_and_sql_always_agree(store: Harness) -> None:
    chance = random.Random(os.environ.get("ROWLOCK_TEST_SEED", store.kind))
    await filled(store, chance)
    rows = await rows_of(store)
    now = rows[0]["created"]
    cases = chain(every_case(chance, rows), (some_case(chance, rows) for _ in range(RULES)))
    matched = count = 0
    while some := [(rule, claims, written(rule, chance)) for rule, claims in islice(cases, TOGETHER)]:
        count += len(some)
        conditions = [parse(text).bind(claims, now) for _, claims, text in some]
        found = await in_sql(store, conditions)
        for (rule, claims, text), condition, ids in zip(some, conditions, found, strict=True):
            wanted = {row["id"] for row in rows if judge(rule, claims, row, now)}
            assert {row["id"] for row in rows if holds(condition, row)} == wanted, (text, claims)
            assert ids == wanted, (text, claims, condition)
            for name, value in required(condition).items():
                assert all(row[name] == value for row in rows if row["id"] in wanted), (text, claims, name)
            if (known := one_of(condition, "scope_id")) is not None:
                assert {row["scope_id"] for row in rows if row["id"] in wanted} <= {*known}, (text, claims)
            matched += 0 < len(wanted) < len(rows)
    assert matched > count / 6
    print(f"{store.kind}: {count} rules with claims, on {len(rows)} jobs; {matched} match some of them")


async def test_lists_find_what_the_judge_says(store: Harness) -> None:
    """This checks the whole of `list`, with its walks along indexes."""
    chance = random.Random(store.kind)
    await filled(store, chance)
    rows = await rows_of(store)
    now = rows[0]["created"]
    listed = [case for case in every_case(chance, rows) if isinstance(case[0], One) and case[0].left.what == "scope_id"]
    for rule, claims in [*listed, *(some_case(chance, rows) for _ in range(150))]:
        condition = parse(written(rule, chance)).bind(claims, now)
        page = await store.store.list(Filter(where=condition), limit=200)
        assert [one.id for one in page.items] == [row["id"] for row in rows if judge(rule, claims, row, now)]


async def test_explain_says_the_same_of_every_comparison(store: Harness) -> None:
    chance = random.Random(store.kind)
    await filled(store, chance)
    rows = await rows_of(store)
    now = rows[0]["created"]
    for _ in range(300):
        (rule, claims), row = some_case(chance, rows, 0), chance.choice(rows)
        [part] = explain(parse(written(rule, chance)), claims, row, now)
        assert part.holds == judge(rule, claims, row, now)
        assert holds(parse(part.text).bind(claims, now), row) == part.holds, "its text is a rule that says the same"
