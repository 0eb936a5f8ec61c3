"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measures import Measure
from benchmarks.numbers import OURS
from benchmarks.rounds import Cell, Results, name_of
from benchmarks.systems.base import System


def of(measure: Measure, results: Results, volatile: set[str]) -> str:
    cells = results.cells[measure.name]
    named = {name: f"**{name}**" if name == OURS else name for name in cells}
    if not measure.on_sqlite:
        named |= {name: f"{name} (not durable)" for name in volatile if name in cells}
    rows = {
        "pickup": _pickup,
        "idle": _idle,
        "fetch_16": _alone,
        "archive": _shares,
        "producers_32": _shares,
        "pooled_enqueue": _shares,
        "pooled_pickup": _pickup,
        "xmin_pinned": _pinned,
        "xmin_offered": _offered,
    }.get(measure.name, _rates)
    return rows(cells, named)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line = "| --- |" + " ---: |" * (len(heads) - 1)
    return "\n".join([f"| {' | '.join(heads)} |", line, *(f"| {' | '.join(row)} |" for row in rows)])


def _failed(name: str, columns: int) -> list[str]:
    return [name, "failed", *[""] * (columns - 2)]


def _rates(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    ours = cells[OURS].median if OURS in cells else None
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: -(item[1].median or 0)):
        if cell.median is None:
            rows.append(_failed(named[name], 5))
            continue
        times = f"{ours / cell.median:.2f} ×" if ours and name != OURS else ""
        rows.append([named[name], f"{cell.median:,.0f}", _spread(cell.values), times, f"{cell.facts.get('jobs', 0):,}"])
    return _table(["", "jobs/s", "least–most", "rowlock does", "jobs in a round"], rows)


def _alone(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    """Return a table without ratios."""
    rows = [
        _failed(named[name], 3) if cell.median is None else [named[name], f"{cell.median:,.0f}", _spread(cell.values)]
        for name, cell in cells.items()
    ]
    return _table(["", "jobs/s", "least–most"], rows)


def _shares(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    """Return a table with ratios to the first row."""
    base = next(iter(cells.values())).median
    rows = []
    for name, cell in cells.items():
        if cell.median is None or not base:
            rows.append(_failed(named[name], 4))
        else:
            rows.append([named[name], f"{cell.median:,.0f}", _spread(cell.values), f"{100 * cell.median / base:.0f} %"])
    return _table(["", "jobs/s", "least–most", "of the first"], rows)


def _pickup(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: item[1].facts.get("p50", 1e9)):
        if cell.error is not None:
            rows.append(_failed(named[name], 5))
        else:
            ms = [f"{cell.facts[share]:.2f}" for share in ("p50", "p95", "p99")]
            rows.append([named[name], *ms, f"{cell.facts['samples']:,}"])
    return _table(["", "p50 ms", "p95", "p99", "jobs"], rows)


def _idle(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: item[1].facts.get("rss_mb", 1e9)):
        facts = cell.facts
        if cell.error is not None:
            rows.append(_failed(named[name], 5))
        else:
            sizes = [f"{facts['rss_mb']:.0f}", f"{facts['rss_of_all_mb']:.0f}", str(facts["processes"])]
            rows.append([named[name], f"{facts['cpu_percent']:.2f}", *sizes])
    return _table(["", "CPU %", "memory MB", "of all processes", "processes"], rows)


def _pinned(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    rows = []
    for name, cell in cells.items():
        facts = cell.facts
        if cell.median is None:
            rows.append(_failed(named[name], 7))
            continue
        rows.append(
            [
                named[name], f"{facts['seconds']:.0f} s", f"{facts['done']['free']:,}", f"{facts['done']['pinned']:,}",
                f"{100 * cell.median:.0f} %", f"{facts['first']['pinned']:,.0f}", f"{facts['last']['pinned']:,.0f}",
            ]
        )  # fmt: skip
    heads = ["", "in", "jobs without", "jobs beside it", "loss", "jobs/s at first", "at last"]
    return _table(heads, rows)


def _offered(cells: Mapping[str, Cell], named: Mapping[str, str]) -> str:
    rows, most = [], 0
    for name, cell in cells.items():
        if cell.median is None:
            rows.append(_failed(named[name], 2))
            continue
        for kind, title in (("free", "without"), ("pinned", "beside it")):
            for share, values in cell.facts[kind].items():
                most = max(most, len(values))
                rows.append([f"{named[name]}, {title}, {share}", *(f"{value:.1f}" for value in values)])
    return _table(["ms in each 10 s", *(str(n + 1) for n in range(most))], rows)


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):,.0f}–{max(values):,.0f}"


def facts(known: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in known.items())


def systems(measured: Sequence[System]) -> str:
    rows = [
        [
            name_of(system), system.version() or "", system.store + ("" if system.durable else ", not durable"),
            "; ".join(f"{name}: {value}" for name, value in system.settings.items()).replace("|", "/"),
        ]
        for system in measured
    ]  # fmt: skip
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["| system | version | store | configuration |", "| --- | --- | --- | --- |", *lines])
