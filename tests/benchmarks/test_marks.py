import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import marks
from benchmarks.programs import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(marks, "_folder", tmp_path)
    monkeypatch.setattr(marks, "_seen", None)
    return tmp_path


def test_a_folder_without_marks(folder: Path) -> None:
    assert marks.first(folder) is None
    assert marks.distinct(folder, 10) == 0
    assert marks.pickups(folder) == []


def test_a_job_that_was_handled_twice_counts_once(folder: Path) -> None:
    for n in (3, 0, 3):
        marks.seen(n)
    assert marks.distinct(folder, 10) == 2
    assert marks.distinct(folder, 3) == 1  # only of the jobs 0, 1 and 2
    assert marks.first(folder) is not None


def test_processes_are_counted_together(folder: Path) -> None:
    for numbers in ("0, 1", "1, 2"):
        code = f"from benchmarks import marks\nfor n in ({numbers}): marks.seen(n)"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"BENCH_MARKS": str(folder)}, check=True)
    assert len(list(folder.glob("seen-*"))) == 2
    assert marks.distinct(folder, 3) == 3


def test_pickups_are_milliseconds_in_the_order_of_enqueueing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5_000_000)
    marks.picked_up(1, 4_000_000)
    marks.picked_up(0, 2_500_000)
    assert marks.pickups(folder) == [2.5, 1.0]
