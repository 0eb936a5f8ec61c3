"""Computes the reported figures from the measured ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

OURS, RAW = "rowlock", "raw"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not less than `share` of all values. It is always a measured one."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def comparison(medians: Mapping[str, float]) -> dict[str, object]:
    """Return rowlock's ratios to its raw limit and to the peers. Above 1, rowlock is faster."""
    ours, raw = medians.get(OURS), medians.get(RAW)
    found: dict[str, object] = {OURS: rounded(ours), RAW: rounded(raw)}
    if ours is None:
        return found
    found["vs_raw"] = ratio(ours, raw)
    found["vs"] = {name: ratio(ours, value) for name, value in medians.items() if name not in (OURS, RAW)}
    return found


def ratio(value: float, base: float | None) -> float | None:
    return round(value / base, 3) if base else None


def rounded(value: float | None) -> float | None:
    """Round to three digits: a benchmark is not more exact."""
    if value is None or not value or not math.isfinite(value):
        return value
    digits = 2 - math.floor(math.log10(abs(value)))
    return round(value, digits) if digits > 0 else float(round(value))


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def rates(series: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    """Return the jobs per second between two moments of a series (seconds, jobs done so far)."""
    inside = [point for point in series if begin <= point[0] <= end]
    if len(inside) < 2 or inside[-1][0] == inside[0][0]:
        return 0.0
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def done_at(series: Sequence[tuple[float, int]], moment: float) -> int:
    return max((done for at, done in series if at <= moment), default=0)
