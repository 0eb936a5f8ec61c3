import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.bench import QUICK
from benchmarks.offered import windows
from benchmarks.report import Run
from benchmarks.rounds import Cell, Results, interleave
from benchmarks.systems import raw, rowlock
from benchmarks.systems.base import System


async def nothing(url: str) -> int:
    return 0


def system(name: str, **given: Any) -> System:
    return System(name=name, store="redis", version=lambda: "1", unfinished=nothing, settings={}, **given)


@pytest.fixture
def run() -> Run:
    run = Run(QUICK, [rowlock.SYSTEM, raw.SYSTEM, system("other", durable=False)], {}, datetime(2026, 1, 1, tzinfo=UTC))
    for name, values in {"rowlock": [300.0, 100.0, 200.0], "raw": [400.0], "other": [100.0]}.items():
        run.results.cell("drain_1", name).values.extend(values)
    run.results.cell("pickup", "rowlock").facts.update(p50=1.0, p95=2.0, p99=3.0, samples=9)
    run.results.cell("pickup", "rowlock").values.append(1.0)
    run.results.cell("pickup", "other").error = "Failed: it would not start"
    return run


def test_the_last_line(run: Run) -> None:
    assert report.summary(run.results) == {
        "drain_1": {"rowlock": 200, "raw": 400, "vs_raw": 0.5, "vs": {"other": 2}},
        "pickup_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0},
    }


def test_what_a_run_leaves_behind(run: Run, tmp_path: Path) -> None:
    report.write(run, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drain_1.svg", "results.json", "results.md"]
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["measures"]["drain_1"]["rowlock"]["median"] == 200
    assert written["measures"]["pickup"]["other"]["error"] == "Failed: it would not start"
    text = (tmp_path / "results.md").read_text()
    assert "| **rowlock** | 200 | 100–300 |" in text
    assert "| other (not durable) | 100 | 100–100 | 2.00 × |" in text
    assert "| other (not durable) | failed |" in text
    assert "This run was cut short" in text


def test_pickups_of_a_steady_load_stand_side_by_side(run: Run, tmp_path: Path) -> None:
    cell = run.results.cell("xmin_offered", "rowlock")
    cell.values.append(1.5)
    cell.facts = {kind: windows([float(n) for n in range(1, 12_001)]) for kind in ("free", "pinned")}
    report.write(run, tmp_path)
    assert "| **rowlock**, beside it, p99 | 5940.0 | 11940.0 |" in (tmp_path / "results.md").read_text()


def test_what_is_not_the_same_work_is_not_compared(run: Run, tmp_path: Path) -> None:
    for name in ("rowlock", "raw"):
        run.results.cell("fetch_16", name).values.append(100.0)
    assert "fetch_16" not in report.summary(run.results)
    report.write(run, tmp_path)
    assert not (tmp_path / "fetch_16.svg").exists()
    assert "| raw | 100 | 100–100 |\n" in (tmp_path / "results.md").read_text()


def test_rounds_are_interleaved_and_a_peer_that_fails_is_left_out() -> None:
    turns: list[str] = []

    def act(system: System, cell: Cell) -> float:
        turns.append(system.name)
        if system.name == "b":
            raise ValueError("no")
        return 1.0

    results = Results()
    interleave(results, "drain_1", [system("a"), system("b"), system("c")], 3, act)
    assert "".join(turns) == "abccaca"
    assert results.medians("drain_1") == {"a": 1.0, "c": 1.0}
    assert results.cell("drain_1", "b").error == "ValueError: no"


def test_our_own_failure_ends_the_run() -> None:
    def act(system: System, cell: Cell) -> float:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        interleave(Results(), "drain_1", [system("rowlock-sqlite")], 1, act)
