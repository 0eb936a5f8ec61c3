"""Draws plots as plain SVG. Each is on a white card, so that it can be read on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

Point = tuple[float, float]

ACCENT = "#2563eb"
OTHERS = "#94a3b8"
INK = "#0f172a"
FAINT = "#64748b"
GRID = "#e2e8f0"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"

WIDTH = 720
MARGIN = 24
TOP = 66  # below the title and the unit
LETTER = 7.4  # px, the width of a letter at the usual size, rounded up
VALUE_WIDTH = 56  # beyond a bar's end

LESS_IS_BETTER = frozenset({"ms", "s", "MB", "%"})
# Shades distinguish the bars of one system. Shades and dashes distinguish the lines of the other systems.
OUR_SHADES = ("#93c5fd", "#3b82f6", "#1e40af")
OTHER_SHADES = ("#cbd5e1", "#94a3b8", "#64748b")
OTHER_LINES = (("#64748b", ""), ("#94a3b8", "6 4"), ("#475569", "2 3"), ("#94a3b8", "10 3 2 3"), ("#475569", "8 3"))
TOO_WIDE = 40.0  # times the least value: beyond that a linear scale hides the small values


def bars(title: str, unit: str, values: dict[str, float], *, ours: str, best_first: bool = True) -> str:
    """Return a plot with a bar for each name."""
    named = list(values.items())
    if best_first:
        named.sort(key=lambda item: item[1], reverse=unit not in LESS_IS_BETTER)
    step, thick = 30, 20
    left = _name_column(values)
    longest = max(values.values(), default=0) or 1
    room = WIDTH - MARGIN - VALUE_WIDTH - left
    drawn = []
    for row, (name, value) in enumerate(named):
        y = TOP + row * step
        is_ours = _is_ours(name, ours)
        drawn += [
            _text(left - 10, y + 14.5, name, anchor="end", bold=is_ours),
            _bar(left, y, room * value / longest, thick, ACCENT if is_ours else OTHERS),
            _text(left + room * value / longest + 8, y + 14.5, short(value), bold=is_ours),
        ]
    return _card(title, unit, TOP + len(named) * step + MARGIN - 10, drawn)


def grouped(title: str, unit: str, groups: dict[str, dict[str, float]], *, ours: str) -> str:
    """Return a plot with some bars for each name, such as its percentiles. If they are very far apart, the scale is
    logarithmic."""
    parts = list(dict.fromkeys(part for group in groups.values() for part in group))
    values = [value for group in groups.values() for value in group.values()]
    scale = _Scale(values)
    thick, gap = 11, 16
    left = _name_column(groups)
    room = WIDTH - MARGIN - VALUE_WIDTH - left
    top = TOP + 26  # below the legend
    height = sum(len(group) * thick + gap for group in groups.values())
    drawn = [*_legend(parts, left, TOP + 4)]
    for tick in scale.ticks:
        x = left + room * scale.share(tick)
        drawn.append(_line(x, top - 6, x, top + height - 6))
        drawn.append(_text(x, top + height + 9, short(tick), size=11, anchor="middle", fill=FAINT))
    y = float(top)
    for name, group in groups.items():
        is_ours = _is_ours(name, ours)
        drawn.append(_text(left - 10, y + len(group) * thick / 2 + 4.5, name, anchor="end", bold=is_ours))
        for part, value in group.items():
            shade = (OUR_SHADES if is_ours else OTHER_SHADES)[parts.index(part) % len(OUR_SHADES)]
            long = room * scale.share(value)
            drawn.append(_bar(left, y, long, thick - 1, shade))
            drawn.append(_text(left + long + 6, y + 9, short(value), size=10.5, bold=is_ours))
            y += thick
        y += gap
    said = f"{unit}, logarithmic" if scale.logarithmic else unit
    return _card(title, said, top + height + MARGIN, drawn)


def lines(
    title: str, x_label: str, y_label: str, series: dict[str, list[Point]], *, log_x: bool = False, ours: str
) -> str:
    """Return a plot with a line for each name. The name stands at the end of the line."""
    points = [point for line in series.values() for point in line] or [(0.0, 0.0)]
    x_ticks = _powers(points) if log_x else _ticks(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = _ticks(0, max(y for _, y in points))
    left, right = MARGIN + 46, WIDTH - MARGIN - max((len(name) for name in series), default=0) * LETTER - 10
    top, bottom = TOP + 4, TOP + 264

    def at_x(x: float) -> float:
        measured = math.log10 if log_x else float
        begin, end = measured(x_ticks[0]), measured(x_ticks[-1])
        return left + (right - left) * (measured(x) - begin) / (end - begin)

    def at_y(y: float) -> float:
        return bottom - (bottom - top) * y / y_ticks[-1]

    drawn = []
    for tick in y_ticks:
        drawn += [_line(left, at_y(tick), right, at_y(tick))]
        drawn += [_text(left - 8, at_y(tick) + 4, short(tick), size=11, anchor="end", fill=FAINT)]
    for tick in x_ticks:
        drawn.append(_text(at_x(tick), bottom + 18, short(tick), size=11, anchor="middle", fill=FAINT))
    drawn.append(_text((left + right) / 2, bottom + 38, x_label, size=12, anchor="middle", fill=FAINT))

    looks = _looks(series, ours)
    by_end = sorted((name for name in series if series[name]), key=lambda name: at_y(series[name][-1][1]))
    label_heights = _apart([at_y(series[name][-1][1]) for name in by_end], 15)
    for name, label_y in sorted(zip(by_end, label_heights, strict=True), key=lambda found: _is_ours(found[0], ours)):
        colour, dashes = looks[name]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in series[name])
        wide = 3 if _is_ours(name, ours) else 2
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{wide}" '
            f'stroke-dasharray="{dashes}" stroke-linejoin="round"/>'
        )
        if len(series[name]) <= 12:  # few enough points to be looked at one by one
            drawn += [
                f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in series[name]
            ]
        end = at_x(series[name][-1][0])
        drawn.append(_text(max(end, right) + 10, label_y + 4.5, name, fill=colour, bold=_is_ours(name, ours)))
    return _card(title, y_label, bottom + 38 + MARGIN - 6, drawn)


def short(value: float) -> str:
    """Return the number in three digits: 12345 → 12.3k."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:  # 999,950 is 1M, not 1000k
            return f"{_three(value / size)}{letter}"
    return _three(value)


def _three(value: float) -> str:
    if abs(value) < 1:
        return f"{value:.2g}"
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# ── Scales ──


class _Scale:
    """Maps a value to its share of the axis, 0 … 1."""

    def __init__(self, values: Sequence[float]) -> None:
        most = max(values, default=0.0)
        least = min((value for value in values if value > 0), default=most)
        self.logarithmic = most > TOO_WIDE * least
        if self.logarithmic:
            # The axis begins below the least value, so that its bar can be seen.
            first, last = math.floor(math.log10(least / 2)), math.ceil(math.log10(most))
            self.ticks = [10.0**power for power in range(first, last + 1)]
        else:
            self.ticks = _ticks(0, most)

    def share(self, value: float) -> float:
        first, last = self.ticks[0], self.ticks[-1]
        if not self.logarithmic:
            return value / last
        return math.log10(max(value, first) / first) / math.log10(last / first)


def _ticks(least: float, most: float) -> list[float]:
    """Return four to seven round numbers around a range."""
    if most <= least:
        most = least + 1
    rough = (most - least) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def _powers(points: Iterable[Point]) -> list[float]:
    """Return powers of ten around the x of all points."""
    every = [math.log10(x) for x, _ in points]
    first, last = math.floor(min(every)), math.ceil(max(every))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _apart(wanted: Sequence[float], distance: float) -> list[float]:
    """Return the heights, in order, each moved down where it would overlap the one before."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + distance) if placed else height)
    return placed


# ── Pieces ──


def _is_ours(name: str, ours: str) -> bool:
    return name == ours or name.startswith((f"{ours}-", f"{ours} "))


def _looks(names: Iterable[str], ours: str) -> dict[str, tuple[str, str]]:
    """Return each line's colour and dashes."""
    others = [name for name in names if not _is_ours(name, ours)]
    found = {name: OTHER_LINES[place % len(OTHER_LINES)] for place, name in enumerate(others)}
    return {name: found.get(name, (ACCENT, "")) for name in names}


def _name_column(names: Iterable[str]) -> float:
    return MARGIN + max((len(name) for name in names), default=0) * LETTER + 10


def _legend(parts: Sequence[str], x: float, y: float) -> list[str]:
    """Return the legend: for each part, its shade for the peers and its shade for rowlock."""
    drawn = []
    for place, part in enumerate(parts):
        drawn.append(_bar(x, y, 11, 11, OTHER_SHADES[place % len(OTHER_SHADES)]))
        drawn.append(_bar(x + 13, y, 11, 11, OUR_SHADES[place % len(OUR_SHADES)]))
        drawn.append(_text(x + 30, y + 10, part, size=12, fill=FAINT))
        x += 30 + len(part) * LETTER + 18
    return drawn


def _bar(x: float, y: float, long: float, thick: float, fill: str) -> str:
    long = max(long, 1.0)  # so that a bar of 0 can be seen
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{long:.1f}" height="{thick}" rx="{min(3.0, long / 2)}" fill="{fill}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _text(
    x: float, y: float, text: str, *, size: float = 13, fill: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )


def _card(title: str, said: str, height: float, drawn: Iterable[str]) -> str:
    body = "\n".join(drawn)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" \
viewBox="0 0 {WIDTH} {height:.0f}" font-family="{FONT}" role="img">
<title>{escape(title)}</title>
<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="12" fill="#ffffff" stroke="{GRID}"/>
{_text(MARGIN, 34, title, size=17, bold=True)}
{_text(MARGIN, 53, said, size=12, fill=FAINT)}
{body}
</svg>
"""
