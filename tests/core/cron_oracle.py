"""Schedules by brute force: a second opinion on core.cron, which shares no code with it and does not use cronsim.

`Walk` walks through a few days minute by minute, in UTC, and asks zoneinfo what the clocks show. Wall times that the
clocks never show are in a gap. `by_fold` is for years: it asks zoneinfo about each wall time, by the rules of PEP 495.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
NAMES = {
    name: number
    for names in ("SUN MON TUE WED THU FRI SAT", "- JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC")
    for number, name in enumerate(names.split())
}


class Expected(NamedTuple):
    """`fires`: the moments and what is special about them: "moved", "first", "second" or "". `skipped`: the first
    moments after gaps with times that `gap="skip"` leaves out."""

    fires: dict[datetime, str]
    skipped: list[datetime]


class Fields:
    """A cron expression as sets of the numbers that it allows, read item by item."""

    def __init__(self, expression: str) -> None:
        minute, hour, self.day, month, self.weekday = expression.upper().split()
        self.minutes = self.numbers(minute, 0, 59)
        self.hours = self.numbers(hour, 0, 23)
        self.months = self.numbers(month, 1, 12)
        self.goes_on = hour[0] == "*" or len(self.hours) == 24
        self.both = self.day[0] == "*" or self.weekday[0] == "*"

    @staticmethod
    def numbers(text: str, low: int, high: int) -> set[int]:
        return {n for n in range(low, high + 1) for item in text.split(",") if Fields.allows(item, n, low, high)}

    @staticmethod
    def allows(item: str, n: int, low: int, high: int) -> bool:
        item, _, step = item.partition("/")
        if item == "*":
            first, last = low, high
        else:
            start, dash, end = item.partition("-")
            first = last = NAMES[start] if start in NAMES else int(start)
            if dash:
                last = NAMES[end] if end in NAMES else int(end)
                if end == "SUN" and first:
                    last = 7
            elif step:
                last = high
        return first <= n <= last and (n - first) % int(step or 1) == 0

    def has_day(self, day: date) -> bool:
        last = monthrange(day.year, day.month)[1]
        by_day = any(self.is_day(item, day, last) for item in self.day.split(","))
        by_weekday = any(self.is_weekday(item, day, last) for item in self.weekday.split(","))
        return day.month in self.months and (by_day and by_weekday if self.both else by_day or by_weekday)

    @staticmethod
    def is_day(item: str, day: date, last: int) -> bool:
        if item == "L":
            return day.day == last
        if item == "LW":
            workdays = [n for n in range(1, last + 1) if day.replace(day=n).isoweekday() < 6]
            return day.day == max(workdays)
        return Fields.allows(item, day.day, 1, 31)

    @staticmethod
    def is_weekday(item: str, day: date, last: int) -> bool:
        numbers = {day.isoweekday(), day.isoweekday() % 7}  # Sunday is 7 and 0
        if "#" in item:
            name, nth = item.split("#")
            return (NAMES[name] if name in NAMES else int(name)) in numbers and len(range(day.day, 0, -7)) == int(nth)
        if item[-1] == "L":
            return (NAMES[item[:-1]] if item[:-1] in NAMES else int(item[:-1])) in numbers and day.day + 7 > last
        return any(Fields.allows(item, n, 0, 7) for n in numbers)

    def times(self) -> list[int]:
        """Return the minutes of the day."""
        return [hour * 60 + minute for hour in self.hours for minute in self.minutes]


class Walk:
    """What the clocks of a zone show from `start` to `end`, and two days around, minute by minute."""

    def __init__(self, zone: ZoneInfo, start: datetime, end: datetime) -> None:
        self.start, self.end = start, end
        self.shown: dict[tuple[date, int], list[datetime]] = {}  # by date and minute of the day
        self.jumps: list[tuple[datetime, datetime, datetime]] = []  # the clocks jump from the first to the second, at
        at = start.replace(second=0, microsecond=0) - 2 * DAY
        before = at.astimezone(zone).replace(tzinfo=None)
        while at < end + 2 * DAY:
            shown = at.astimezone(zone).replace(tzinfo=None)
            if shown - before > MINUTE:
                jump = at - MINUTE
                while (there := (jump + SECOND).astimezone(zone).replace(tzinfo=None)) - before == SECOND:
                    jump, before = jump + SECOND, there
                self.jumps.append((before + SECOND, there, jump + SECOND))
            before = shown
            full = at
            if shown.second:  # the offset is not in whole minutes
                full += timedelta(seconds=60 - shown.second)
                shown = full.astimezone(zone).replace(tzinfo=None)
            if not shown.second:
                found = self.shown.setdefault((shown.date(), shown.hour * 60 + shown.minute), [])
                if full not in found:
                    found.append(full)
            at += MINUTE
        self.dates = sorted({day for day, _ in self.shown} | {jump[0].date() for jump in self.jumps})

    def expect(self, fields: Fields, gap: str, overlap: str) -> Expected:
        """Return the moments after `start` and before `end`."""
        fires: dict[datetime, str] = {}
        skipped: set[datetime] = set()
        moved: set[datetime] = set()
        times = fields.times()
        for day in self.dates:
            if not fields.has_day(day):
                continue
            for minute in times:
                found = self.shown.get((day, minute), ())
                if fields.goes_on:
                    fires.update((at, "") for at in found)
                elif len(found) == 1:
                    fires.setdefault(found[0], "")
                elif found:
                    if overlap != "second":
                        fires[found[0]] = "first"
                    if overlap != "first":
                        fires[found[1]] = "second"
                else:
                    wall = datetime(day.year, day.month, day.day) + minute * MINUTE  # noqa: DTZ001
                    for low, high, at in self.jumps:
                        if low <= wall < high:
                            (moved if gap == "next" else skipped).add(at)
        fires.update((at, "moved") for at in moved)
        return Expected(
            {at: fires[at] for at in sorted(fires) if self.start < at < self.end},
            sorted(at for at in skipped if self.start < at < self.end),
        )


def by_fold(fields: Fields, zone: ZoneInfo, start: datetime, end: datetime, gap: str, overlap: str) -> list[datetime]:
    """Return the moments after `start` and before `end` of an expression with fixed times of the day."""
    fires = set()
    for day in dates(start.date() - 2 * DAY, end.date() + 2 * DAY):
        if not fields.has_day(day):
            continue
        for minute in fields.times():
            wall = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone)
            first, second = (wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
            if first > second:  # PEP 495: a gap, seen from before and from behind
                if gap == "next":
                    offset = second.astimezone(zone).utcoffset()
                    low, high = second, first
                    while high - low > SECOND:
                        middle = low + (high - low) // (2 * SECOND) * SECOND
                        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
                    fires.add(high)
            else:
                fires |= {"first": {first}, "second": {second}, "both": {first, second}}[overlap]
    return sorted(at for at in fires if start < at < end)


def dates(start: date, end: date) -> Iterator[date]:
    while start <= end:
        yield start
        start += DAY
