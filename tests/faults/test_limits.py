"""The fault suite of limits in small; and its judges notice what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.scale import Scale
from tests.faults.suites import Cell
from tests.faults.suites.limits import idle, not_limited, run
from tests.proof.checker_limits import exceeded
from tests.proof.history import History, RowChange

SMALL = Scale(limited=120, limited_workers=4, limit_faults=3, restarts=1)
SECOND = 1_000_000


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_limits_in_small(store: str, tmp_path: Path) -> None:
    result = await run(Cell("limits", store, 1, tmp_path / "cell", SMALL))
    print(result.line())
    assert not result.bad, result.details()
    assert result.figures["limited"] >= SMALL.limited
    assert (result.figures["kills"], result.figures["freezes"]) == (2, 1)


def history(limits: list[dict[str, Any]], *claims: tuple[str, str, int]) -> History:
    """Jobs, their values, and when they were claimed; none of them ends."""
    changes = [
        RowChange(1, 0, "_jobs_records", "insert", 1, None, {"kind": "limited", "id": "t", "data": {"limits": limits}})
    ]
    for name, value, at in claims:
        row = {
            "id": name, "topic": "t", "status": "pending", "version": 0, "locked_until": None, "locked_by": None,
            "claimed_at": None, "ready": True, "share": f'{{"tenant":"{value}"}}', "key": None,
        }  # fmt: skip
        run = {"status": "processing", "version": 1, "locked_until": at + SECOND, "locked_by": "w", "claimed_at": at}
        changes.append(RowChange(len(changes) + 1, at, "_jobs", "insert", len(changes) + 1, None, row))
        after = row | run | {"ready": False}
        changes.append(RowChange(len(changes) + 1, at, "_jobs", "update", len(changes) + 1, row, after))
    return History("sqlite", changes=changes)


@pytest.mark.parametrize(
    ("limit", "bad"),
    [
        ({"kind": "concurrency", "max": 3}, 1),
        ({"kind": "concurrency", "max": 4}, 0),
        ({"kind": "concurrency", "max": 2, "by": "tenant"}, 1),
        ({"kind": "concurrency", "max": 3, "by": "tenant"}, 0),
        ({"kind": "rate", "max": 2, "per": 1.0}, 0),
        ({"kind": "rate", "max": 2, "per": 1.1}, 1),
        ({"kind": "rate", "max": 8, "per": 4.0, "burst": 1}, 2),
    ],
)
def test_the_checker_sees_what_is_above_a_limit(limit: dict[str, Any], bad: int) -> None:
    claims = ("1", "a", 0), ("2", "a", SECOND // 5), ("3", "b", SECOND), ("4", "a", SECOND * 13 // 10)
    assert len(list(exceeded(history([limit], *claims).changes))) == bad


def test_the_judges_see_idle_slots_and_jobs_without_a_share() -> None:
    late = history([], ("1", "a", 0))
    late.changes[2] = RowChange(9, 9 * SECOND, "_jobs", "update", 9, late.changes[1].after, late.changes[2].after)
    assert len(idle(late)) == 1
    assert not idle(history([], ("1", "a", 0)))
    bare = history([], ("1", "a", 0))
    assert bare.changes[1].after is not None
    bare.changes[1].after.update(topic="one", share=None)
    assert len(not_limited(bare)) == 1
