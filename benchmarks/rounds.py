"""Results and rounds. Rounds are interleaved, so that a slower machine slows down every system alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.numbers import OURS, RAW, median
from benchmarks.systems.base import System

SQLITE = "-sqlite"


@dataclass
class Cell:
    """The results of one system in one measure."""

    values: list[float] = field(default_factory=list)  # one for each round
    samples: list[float] = field(default_factory=list)  # of all rounds together
    facts: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def median(self) -> float | None:
        return None if self.error else median(self.values)

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = {"median": self.median, "values": self.values}
        if self.values:
            found |= {"min": min(self.values), "max": max(self.values)}
        return found | ({"error": self.error} if self.error else {}) | self.facts


class Results:
    """Cells by measure and system. On SQLite, a system has the name that it has elsewhere."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, Cell]] = {}

    def cell(self, measure: str, system: System | str) -> Cell:
        return self.cells.setdefault(measure, {}).setdefault(name_of(system), Cell())

    def medians(self, measure: str) -> dict[str, float]:
        cells = self.cells.get(measure, {})
        return {name: cell.median for name, cell in cells.items() if cell.median is not None}


def name_of(system: System | str) -> str:
    return (system if isinstance(system, str) else system.name).removesuffix(SQLITE)


Act = Callable[[System, Cell], float]


def interleave(results: Results, measure: str, systems: Sequence[System], rounds: int, act: Act) -> None:
    """Run each system once per round. Each round begins with another system. A peer that fails is left out of this
    measure. If rowlock fails, the run ends."""
    for n in range(rounds):
        turn = n % len(systems) if systems else 0
        for system in [*systems[turn:], *systems[:turn]]:
            cell = results.cell(measure, system)
            if cell.error is None:
                one_round(f"{measure} {n + 1}/{rounds}", system, cell, act)


def one_round(label: str, system: System, cell: Cell, act: Act) -> None:
    begin = time.monotonic()
    try:
        value = act(system, cell)
    except Exception as error:
        cell.error = f"{type(error).__name__}: {error}"
        say(f"{label:24} {system.name:16} failed: {cell.error}")
        if name_of(system) in (OURS, RAW):
            raise
    else:
        cell.values.append(value)
        say(
            f"{label:24} {system.name:16} {value:12,.{0 if value >= 1000 else 2}f}   ({time.monotonic() - begin:.1f} s)"
        )


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
