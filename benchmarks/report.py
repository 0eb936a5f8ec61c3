"""Writes the results of a run: results.json, results.md, plots, and one line of JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import archive, plots, producers, tables
from benchmarks.bench import Scale
from benchmarks.measures import ALL, Measure
from benchmarks.numbers import OURS, comparison, rounded
from benchmarks.rounds import Cell, Results
from benchmarks.systems.base import System


@dataclass
class Run:
    scale: Scale
    systems: list[System]
    missing: dict[str, str]  # systems that were left out, and why
    began: datetime
    results: Results = field(default_factory=Results)
    machine: dict[str, str] = field(default_factory=dict)
    servers: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: float = 0.0
    complete: bool = False

    def measured(self) -> list[Measure]:
        return [measure for measure in ALL if self.results.cells.get(measure.name)]


def write(run: Run, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    Path(out, "results.json").write_text(json.dumps(plain(run), indent=1) + "\n")
    drawn = {measure.name: plot for measure in run.measured() if (plot := draw(measure, run.results))}
    for name, plot in drawn.items():
        Path(out, f"{name}.svg").write_text(plot)
    Path(out, "results.md").write_text(markdown(run, set(drawn)))


def summary(results: Results) -> dict[str, Any]:
    """Return measured rates beside the raw limit and the peers. For other measures, only rowlock's own numbers."""
    found: dict[str, Any] = {}
    for measure in ALL:
        if measure.is_rate and results.medians(measure.name):
            found[measure.name] = comparison(results.medians(measure.name))
    pickup, idle = (results.cells.get(name, {}).get(OURS, Cell()).facts for name in ("pickup", "idle"))
    if pickup:
        found["pickup_ms"] = {name: rounded(pickup[name]) for name in ("p50", "p95", "p99")}
    if idle:
        found["idle_rss_mb"] = rounded(idle["rss_mb"])
        found["idle_cpu_percent"] = rounded(idle["cpu_percent"])
    losses = {
        "xmin_pinned_loss": results.medians("xmin_pinned").get(OURS),
        "archive_loss": archive.loss(results),
        "producers_32_kept": producers.kept(results),
    }
    return found | {name: round(value, 3) for name, value in losses.items() if value is not None}


def plain(run: Run) -> dict[str, Any]:
    return {
        "began": run.began.isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 1),
        "complete": run.complete,
        "scale": asdict(run.scale),
        "machine": run.machine,
        "servers": run.servers,
        "systems": {system.name: _about(system) for system in run.systems},
        "left_out": run.missing,
        "measures": {
            measure: {name: cell.plain() for name, cell in cells.items()}
            for measure, cells in run.results.cells.items()
        },
        "summary": summary(run.results),
    }


def _about(system: System) -> dict[str, Any]:
    return {
        "version": system.version(),
        "store": system.store,
        "durable": system.durable,
        "settings": dict(system.settings),
    }


# ── Markdown ──


def markdown(run: Run, drawn: set[str]) -> str:
    intro = (
        f"{run.began:%Y-%m-%d %H:%M} UTC, the {run.scale.name} run, {run.seconds / 60:.1f} minutes. Medians over "
        "interleaved rounds, each in a fresh database, with handlers that do nothing. Absolute figures move with the "
        "machine: compare within one run only. *raw* is rowlock's own SQL in a bare loop."
    )
    parts = ["# rowlock beside other job queues", intro]
    if not run.complete:
        parts.append("**This run was cut short.**")
    volatile = {system.name for system in run.systems if not system.durable}
    for measure in run.measured():
        parts += [f"## {measure.title}", measure.note]
        parts.append(tables.of(measure, run.results, volatile))
        if measure.name in drawn:
            parts.append(f"![{measure.title}]({measure.name}.svg)")
    parts += ["## Machine", tables.facts(run.machine)]
    for name, settings in run.servers.items():
        parts += [f"## {name}", tables.facts(settings)]
    parts += ["## Systems", tables.systems(run.systems)]
    if run.missing:
        parts += ["Left out:", "\n".join(f"- {name}: {reason}" for name, reason in run.missing.items())]
    return "\n\n".join(part for part in parts if part) + "\n"


# ── Plots ──


def draw(measure: Measure, results: Results) -> str | None:
    cells = {name: cell for name, cell in results.cells[measure.name].items() if cell.values and cell.error is None}
    medians = results.medians(measure.name)
    if len(cells) < 2 or measure.name == "fetch_16":  # a plot would compare figures that are not comparable
        return None
    if measure.name in ("pickup", "pooled_pickup"):
        groups = {name: {share: cell.facts[share] for share in ("p50", "p95", "p99")} for name, cell in cells.items()}
        return plots.grouped(measure.title, "ms", groups, ours=OURS)
    if measure.name == "xmin_pinned":
        return plots.lines(measure.title, "seconds", "jobs/s", pinned_rates(cells), ours=OURS)
    if measure.name == "archive":
        sizes = [(float(name.split()[0].replace(",", "")), rate) for name, rate in medians.items()]
        return plots.lines(measure.title, "completed jobs", "jobs/s", {OURS: sizes}, ours=OURS)
    return plots.bars(measure.title, measure.unit.split()[0], medians, ours=OURS, best_first=True)


def pinned_rates(cells: dict[str, Cell]) -> dict[str, list[tuple[float, float]]]:
    """Return each system's rates beside the long transaction: one for every five seconds."""
    found = {}
    for name, cell in cells.items():
        series = cell.facts["series"]["pinned"][::10]
        found[name] = [(now[0], (now[1] - before[1]) / (now[0] - before[0])) for before, now in pairwise(series)]
    return found
