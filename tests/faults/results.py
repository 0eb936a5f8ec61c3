"""The result of a suite on one database, and the lines and files that report it."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from tests.proof.history import History, Violation
from tests.proof.lives import HELD, World


class Result(Struct):
    suite: str
    store: str
    seed: int
    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """In the order of the report. `… s` are seconds."""
    seconds: float = 0.0
    not_run: str | None = None
    """Why the cell is empty: it doesn't apply, or this machine lacks something."""
    error: str | None = None
    """The suite itself broke down."""

    @property
    def bad(self) -> bool:
        return bool(self.violations) or self.error is not None

    def line(self) -> str:
        name = f"{self.suite} on {self.store}"
        if self.not_run:
            return f"{name}: not run: {self.not_run}"
        if self.error:
            return f"{name}: BROKE DOWN after {self.seconds:.1f} s (seed {self.seed}): {_gist(self.error)}"
        said = ", ".join(f"{_number(value)} {what}" for what, value in self.figures.items() if value)
        return f"{name}: {len(self.violations)} violations, {said}, {self.seconds:.1f} s, seed {self.seed}"

    def details(self, most: int = 20) -> str:
        """Return the violations, at most so many, and the error, as lines."""
        lines = [f"  {one.invariant} {one.job_id or ''} {one.text}" for one in self.violations[:most]]
        if len(self.violations) > most:
            by = Counter(one.invariant for one in self.violations)
            lines.append(f"  … {len(self.violations)} in all: {dict(by)}")
        return "\n".join([*lines, *(f"  {line}" for line in (self.error or "").splitlines())])


def _gist(error: str) -> str:
    """Return the last line that is not just a frame: a group of exceptions ends with one."""
    lines = (line.strip(" |+-") for line in reversed(error.splitlines()))
    return next(filter(None, lines), error)


def _number(value: float) -> str:
    return f"{round(value):,}" if value == round(value) else f"{value:,.2f}"


def figures(histories: Sequence[History]) -> dict[str, float]:
    """Return the figures that every suite reports."""
    count = Counter[str]()
    recovery: list[float] = []
    for history in histories:
        world = World(history)
        count.update({"jobs": len(world.by_id), "executions": len(history.executions)})
        count.update({"row changes": len(history.changes)})
        count.update(f"{fault.kind}s" for fault in history.faults if fault.kind not in ("cont", "gone"))
        recovery += recoveries(world)
    found: dict[str, float] = dict(count)
    if recovery:
        found |= {"s to take a job back (median)": statistics.median(recovery), "s (longest)": max(recovery)}
    return found


def recoveries(world: World) -> list[float]:
    """Return, for each job that a dead worker held, the seconds from its death until the job was taken back."""
    found = []
    for life in world.lives:
        for version, claim in life.claims.items():
            end = life.ends.get(version)
            if claim.after is None or end is None or claim.after["status"] not in HELD:
                continue
            for fault in world.deaths(claim.after["locked_by"]):
                at = world.by_database(fault.at)
                if at is not None and claim.at <= at < end.at:
                    found.append((end.at - at) / 1e6)
    return found


def write_report(results: Sequence[Result], folder: Path, **facts: Any) -> None:
    """Write results.json and results.md."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {**facts, "results": [msgspec.to_builtins(result) for result in results]}
    (folder / "results.json").write_text(json.dumps(document, indent=1))
    rows = ["# Faults", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    rows += ["| suite | database | violations | figures | seconds |", "| --- | --- | ---: | --- | ---: |"]
    for one in results:
        said = one.not_run or one.error or ", ".join(f"{_number(v)} {k}" for k, v in one.figures.items() if v)
        told = "–" if one.not_run else len(one.violations)
        rows.append(f"| {one.suite} | {one.store} | {told} | {said.splitlines()[-1]} | {one.seconds:.0f} |")
    (folder / "results.md").write_text("\n".join(rows) + "\n")
