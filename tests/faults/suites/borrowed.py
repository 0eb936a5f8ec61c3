"""Rows of the fault table that are programs or tests outside of this package. Their output is read as a result."""

import asyncio
import os
import re
import sys
from pathlib import Path

from msgspec import Struct

from tests.faults.results import Result
from tests.faults.stage import ROOT
from tests.faults.suites import Cell
from tests.proof.history import Violation

_LINE = re.compile(r"^[a-z][^:\n]*: (\d[\d,]*) violations((?:, \d[\d,]* [a-z][a-z ]+)*)", re.MULTILINE)
_FIGURE = re.compile(r"(\d[\d,]*) ([a-z][a-z ]+)")
_PASSED = re.compile(r"^(?:.* )?(\d+) passed\b.*$", re.MULTILINE)
_WRONG = re.compile(r"^(?:FAILED|ERROR|seed \d+:) ?.*$", re.MULTILINE)
LONGEST = 3500.0  # seconds: less than a cell may take
MODEL_EXAMPLES, MODEL_STEPS = 130, 40  # per store: more than 5,000 steps


class Borrowed(Struct, frozen=True):
    words: tuple[str, ...]
    """Of `python -m`."""
    env: dict[str, str] = {}
    figures: dict[str, float] = {}


PYTEST = ("pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "sampled or not proof")


def named(cell: Cell) -> Borrowed:
    match cell.suite:
        case "crash-points":
            return Borrowed((*PYTEST, "tests/proof/test_crash_points.py", "tests/proof/test_crash_points_worker.py"))
        case "model":
            steps: dict[str, float] = {"steps of Hypothesis per store": MODEL_EXAMPLES * MODEL_STEPS}
            known = {"ROWLOCK_TEST_EXAMPLES": str(MODEL_EXAMPLES)}
            return Borrowed((*PYTEST, f"--hypothesis-seed={cell.seed}", "tests/stores/test_model.py"), known, steps)
        case "simulation":
            first = 1 + cell.seed * cell.scale.seeds
            return Borrowed(("tests.proof.simulation", str(first), str(first + cell.scale.seeds - 1)))
        case "small-model":
            return Borrowed((*PYTEST, "tests/proof/test_small_model.py"))
        case _:
            raise LookupError(cell.suite)


async def run(cell: Cell) -> Result:
    suite = named(cell)
    known = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **suite.env}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *suite.words, cwd=ROOT, env={**os.environ, **known}, stdin=-3, stdout=-1, stderr=-2
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), LONGEST)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = out.decode(errors="replace")
    keep(cell.folder, said)
    return read(cell.result(**suite.figures), said, process.returncode or 0)


def keep(folder: Path, said: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "output.txt").write_text(said)


def read(result: Result, said: str, code: int) -> Result:
    """Return the result with what the output says. Exit code 0 needs a report of success. Any other code is a
    violation, even without any output."""
    told = 0
    for count, figures in _LINE.findall(said):
        told += int(count.replace(",", ""))
        for number, what in _FIGURE.findall(figures):
            result.figures[what] = result.figures.get(what, 0) + int(number.replace(",", ""))
    passed = _PASSED.search(said)
    if passed:
        result.figures["tests"] = int(passed[1])
    result.violations += [Violation("BORROWED", None, line) for line in _WRONG.findall(said)]
    if (code or told) and not result.violations:
        result.violations.append(Violation("BORROWED", None, f"it ended with {code}: {said[-2000:]}"))
    if not result.figures or not (passed or _LINE.search(said)):
        result.error = f"it told nothing: {said[-2000:]}"
    return result
