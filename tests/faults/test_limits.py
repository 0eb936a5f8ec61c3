"""The fault suite of limits in small. Its judges find each planted fault."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rowlock import Concurrency, Jobs, Rate
from rowlock.runtime.claim_settle import ClaimSettle
from rowlock.stores import open_store
from tests.faults.limits_judge import idle
from tests.faults.scale import Scale
from tests.faults.suites import Cell
from tests.faults.suites.limits import not_limited, run
from tests.proof.checker_limits import exceeded
from tests.proof.history import Fault, History, RowChange, Violation
from tests.proof.witness import TablesAt, Witness
from tests.waiting import until

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
    """Return a history of claimed jobs that never end. `claims`: id, value, and time of each claim."""
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


def test_a_job_has_a_share_or_the_suite_proves_nothing() -> None:
    bare = history([], ("1", "a", 0))
    assert bare.changes[1].after is not None
    bare.changes[1].after.update(topic="one", share=None)
    assert len(not_limited(bare)) == 1


def waited(limit: dict[str, Any], *claims: float, slots: int = 4, faults: Sequence[Fault] = ()) -> list[Violation]:
    """Return the idle places that the judge finds. All jobs are due from the beginning, and run for half a second.
    `claims`: when each was claimed, in seconds."""
    world = history([limit], *((str(n), "a", round(at * SECOND)) for n, at in enumerate(claims)))
    worker = {"name": "h-7-w", "concurrency": slots, "stopping": False}
    changes = [structs.replace(one, at=0) if one.op == "insert" else one for one in world.changes]
    changes.append(RowChange(0, 0, "_jobs_workers", "insert", 0, None, worker))
    for one in world.changes:
        if one.op == "update" and one.after is not None:
            ended = one.after | {"status": "completed", "locked_until": None, "locked_by": None}
            changes.append(RowChange(0, one.at + SECOND // 2, "_jobs", "update", 0, one.after, ended))
    for change in changes:
        for row in (change.before, change.after):
            if row is not None and row.get("locked_by"):
                row["locked_by"] = "h-7-w"
    changes.sort(key=lambda one: one.at)
    settings = {"monotonic_offset": 0.0, "poll": 1.0}
    return idle(structs.replace(world, changes=changes, faults=list(faults), settings=settings))


RUN = {"kind": "concurrency", "max": 1}
RATE = {"kind": "rate", "max": 1, "per": 5.0}


@pytest.mark.parametrize(
    ("limit", "claims", "bad"),
    [
        (RUN, [0, 0.6, 2.9], 0),
        (RUN, [0, 0.6, 3.2], 1),  # the place was free from 1.1 on
        (RUN | {"max": 2}, [0, 0.6, 1.2, 1.8], 0),
        (RUN | {"max": 2}, [0, 0.4, 0.8, 1.2, 1.6, 2.0, 4.6], 1),
        (RUN | {"max": 3}, [0, 1.5, 3, 4.5], 1),  # one of three places was used
        (RATE, [0, 5, 10, 16.9], 0),
        (RATE, [0, 5, 10, 17.1], 1),
        (RATE | {"max": 2, "burst": 1}, [0, 2.5, 5, 9.6], 1),  # the last claim was possible from 7.5 on
    ],
)
def test_a_place_that_stays_idle_is_seen(limit: dict[str, Any], claims: list[float], bad: int) -> None:
    assert bool(waited(limit, *claims)) == bool(bad)


def test_nobody_waits_for_workers_that_are_busy_dead_or_disturbed() -> None:
    late = [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert not waited(RUN | {"max": 9}, *late, slots=1)
    kill = Fault(2 * SECOND, "kill", "7")
    assert not waited(RUN, 0, 0.6, 8, faults=[kill])  # there was no other worker
    assert not waited(RUN, 0, 0.6, 6, faults=[structs.replace(kill, target="8"), structs.replace(kill, at=3 * SECOND)])
    frozen = [Fault(SECOND, "stop", "8"), Fault(5 * SECOND, "cont", "8")]
    assert not waited(RUN, 0, 0.6, 7.9, faults=frozen)
    assert waited(RUN, 0, 0.6, 8.1, faults=frozen)


def _forget_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimSettle, "_limited", property(lambda self: False, lambda self, value: None), raising=False)


def _forget_rates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimSettle, "_start_in", lambda self, seconds: None)


@pytest.mark.parametrize(
    ("limit", "sabotage"),
    [
        (Concurrency(1), None),
        (Rate(1, per=0.1), None),
        (Concurrency(1), _forget_ends),
        (Rate(1, per=0.1), _forget_rates),
    ],
)
async def test_a_worker_that_forgets_to_wake_is_noticed(
    limit: Concurrency | Rate, sabotage: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if sabotage is not None:
        sabotage(monkeypatch)
    url = f"sqlite:///{tmp_path}/jobs.db"
    done: list[int] = []
    await open_store(url).migrate()
    async with Jobs(url) as jobs:
        await Witness(TablesAt(url)).install()

        @jobs.task("t", limits=[limit])
        async def run(n: int) -> None:
            done.append(n)

        await jobs.templates.publish()
        await jobs.enqueue_many([run.draft(n) for n in range(2)])
        await jobs.start(concurrency=2, poll=1.5, listen=False)  # SQLite's doorbell hears each settle
        await until(lambda: len(done) == 2)
    witnessed = await Witness(TablesAt(url)).collect(History("sqlite"))
    assert bool(idle(witnessed, 1.0)) == (sabotage is not None)
