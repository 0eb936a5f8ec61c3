"""The times at which a schedule fires. Pure: the time and the time zone come in as arguments.

A zone's offset is constant between two changes of its clocks. Far from a change, wall times and moments differ by that
offset only. Near a change, each wall time is looked up in the pieces between the changes: it may exist once, twice or
not at all. cronsim reads the fields of an expression. It is never asked about time zones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from cronsim import CronSim, CronSimError
from cronsim.explain import explain
from msgspec import Struct

from rowlock.core.codec import plain_text
from rowlock.core.job import MAX_DELAY, check_time
from rowlock.core.times import micros, moment, span
from rowlock.errors import InvalidInput

MAX_EXPRESSION: Final = 200  # characters
MAX_ZONE: Final = 64  # characters; the longest name of the IANA has 32

Gap = Literal["next", "skip"]
Overlap = Literal["first", "second", "both"]
_Name = TypeVar("_Name", bound=str)


class Cron(Struct, frozen=True):
    """The times of a cron expression (minute hour day month weekday) on the clocks of a time zone.

    `gap`: what to do with a time that does not exist because clocks go forward: fire at the first moment after the gap
    (next), or not at all (skip). `overlap`: which one to take of a time that comes twice because clocks go back. Both
    are for fixed times of the day. A schedule by the minute or hour simply goes on: its hour field begins with `*`, or
    has all 24 hours.
    """

    expression: str
    zone: str = "UTC"
    gap: Gap = "next"
    overlap: Overlap = "first"


class Every(Struct, frozen=True):
    """anchor + k × seconds for every whole number k, also before the anchor. None: counted from 1970-01-01 00:00 UTC.

    `check_when` takes `seconds` as a timedelta, too."""

    seconds: float
    anchor: datetime | None = None


When = Cron | Every


class Moment(NamedTuple):
    """One time of a schedule, in UTC. `note`: what a change of the clocks has to do with it."""

    at: datetime
    note: str | None = None


def moments(when: When, after: datetime, zone: tzinfo) -> Iterator[Moment]:
    """Yield the times strictly after `after`, ascending, each once. `zone` is the time zone that when.zone names; Every
    ignores it. Ends with the year 9000, or after a hundred years without a time."""
    if isinstance(when, Every):
        yield from _interval(when, after)
        return
    of_the_day = _calendar(when.expression).of_the_day
    for at, note, fires in _plan(when, after, zone):
        if fires:
            yield Moment(at, note if of_the_day else None)


def previewed(when: When, after: datetime, zone: tzinfo) -> Iterator[Moment]:
    """Yield the same times as `moments`. A schedule by the minute or hour has notes here, too: on times that come
    twice, and on the first time after a gap that its clocks jump over."""
    if isinstance(when, Every) or _calendar(when.expression).of_the_day:
        yield from moments(when, after, zone)
        return
    gap: Moment | None = None
    for at, note, fires in _plan(when, after, zone):
        if not fires:
            gap = Moment(at, note)
            continue
        if gap is not None and at - gap.at < _ONE_DAY:  # a later time has nothing to do with the gap
            note = f"{gap.note}; {note}" if note else gap.note
        gap = None
        yield Moment(at, note)


def skipped(when: When, after: datetime, until: datetime, zone: tzinfo) -> Iterator[Moment]:
    """Yield what `gap="skip"` leaves out after `after` and not after `until`. Its moment is the first one after the
    gap, where `gap="next"` would have fired. Several times in one gap are one Moment."""
    if isinstance(when, Every) or when.gap != "skip" or not _calendar(when.expression).of_the_day:
        return
    for at, note, fires in _plan(when, after, zone):
        if at > until:
            return
        if not fires:
            yield Moment(at, note)


def in_words(when: When) -> str:
    """Return the schedule as an English phrase: "At 02:00 every day (Europe/Berlin)"."""
    if isinstance(when, Every):
        since = "" if when.anchor is None else f", counted from {_date_and_time(when.anchor.astimezone(UTC))} UTC"
        return f"Every {_duration(span(when.seconds))}{since}"
    calendar = _calendar(when.expression)
    text = calendar.text
    minute, hour, day, month, weekday = text.split()
    either = not day.startswith("*") and not weekday.startswith("*")
    if either and (calendar.days.days >= set(range(1, 32)) or calendar.days.weekdays >= set(range(7))):
        text = f"{minute} {hour} * {month} *"  # either is enough, and one of them is every day
    if text == "* * * * *":
        return "Every minute"
    if (found := re.fullmatch(r"\*/(\d+) \* \* \* \*", text)) and 60 % int(found[1]) == 0:
        return f"Every {_duration(int(found[1]) * 60_000_000)}"
    return f"{explain(text)} ({when.zone})"


# --- Checks


def check_when(when: object, field: str = "when") -> When:
    """Return the schedule's times, checked and in their plain form. `rowlock.zones` checks whether the zone exists."""
    if isinstance(when, Cron):
        expression = " ".join(_fields(when.expression, f"{field}.expression"))
        _calendar(expression, f"{field}.expression")
        return Cron(
            expression,
            _check_zone(when.zone, f"{field}.zone"),
            _check_one_of(when.gap, f"{field}.gap", get_args(Gap)),
            _check_one_of(when.overlap, f"{field}.overlap", get_args(Overlap)),
        )
    if isinstance(when, Every):
        return Every(
            _check_seconds(when.seconds, f"{field}.seconds"),
            None if when.anchor is None else check_time(when.anchor, f"{field}.anchor"),
        )
    raise InvalidInput(
        field, "bad_type", f'must be Cron("0 9 * * *", "Europe/Berlin") or Every(60), not {type(when).__name__}'
    )


def _check_zone(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, "not_text", f"must be a string like Europe/Berlin, not {type(value).__name__}")
    if not 1 <= len(value) <= MAX_ZONE:
        raise InvalidInput(
            field,
            "bad_length",
            f"must be 1 to {MAX_ZONE} characters, not {len(value)}: the name of a time zone, like Europe/Berlin",
        )
    if not re.fullmatch(r"[A-Za-z0-9_+/-]+", value):
        raise InvalidInput(
            field, "bad_characters", f"{value!r:.80} is no name of a time zone. Use one like Europe/Berlin"
        )
    return plain_text(value)


def _check_one_of(value: _Name, field: str, names: tuple[_Name, ...]) -> _Name:
    if value not in names:
        raise InvalidInput(field, "unknown_name", f"{value!r:.40} is none of {', '.join(names)}")
    return names[names.index(value)]


def _check_seconds(value: object, field: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInput(field, "not_a_number", f"must be seconds or a timedelta, not {type(value).__name__}")
    if not 1 <= seconds <= MAX_DELAY:  # also refuses NaN
        given = "such a large number" if abs(seconds) > 1e18 else repr(seconds)  # Python writes no 5,000 digits
        raise InvalidInput(field, "out_of_range", f"must be 1 to {MAX_DELAY:.0f} seconds (ten years), not {given}")
    return span(seconds) / 1_000_000


# --- Reading an expression

_MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class _Part(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_DAY: Final = _Part("day", 1, 31)
_WEEKDAY: Final = _Part("weekday", 0, 7, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
_PARTS: Final = (
    _Part("minute", 0, 59),
    _Part("hour", 0, 23),
    _DAY,
    _Part("month", 1, 12, ("", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")),
    _WEEKDAY,
)


class _Calendar(NamedTuple):
    """An expression that was read. `text`: in numbers only. `times`: the times of a day, ascending. `of_the_day`: they
    are fixed times of the day, for which there is a choice when clocks change."""

    text: str
    days: CronSim
    times: tuple[timedelta, ...]
    of_the_day: bool


def _fields(expression: object, field: str) -> list[str]:
    """Return the five fields as they were written."""
    if not isinstance(expression, str):
        raise InvalidInput(field, "not_text", f"must be a string, not {type(expression).__name__}")
    if len(expression) > MAX_EXPRESSION:
        raise InvalidInput(
            field, "bad_length", f"is {len(expression)} characters, at most {MAX_EXPRESSION} are allowed"
        )
    if bad := re.search(r"[^ -~\t\r\n]", expression):
        raise InvalidInput(
            field, "bad_characters", f"holds the character {bad[0]!a}. Use plain digits, letters and * , - / # only"
        )
    fields = expression.split()
    if not fields:
        raise InvalidInput(field, "empty", "is empty. Use five fields: minute hour day month weekday")
    if fields[0].startswith("@"):
        text = " ".join(fields)
        if text.lower() == "@reboot":
            raise InvalidInput(
                field, "unknown_name", "@reboot names no time. Enqueue a job when your application starts"
            )
        if text.lower() not in _MACROS:
            raise InvalidInput(field, "unknown_name", f"{text!r:.40} is none of {', '.join(_MACROS)}")
        return _MACROS[text.lower()].split()
    if len(fields) != 5:
        count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        seconds = ". For seconds use Every" if len(fields) == 6 else ""
        raise InvalidInput(
            field,
            "bad_fields",
            f"{' '.join(fields)!r} has {count}; use five: minute hour day month weekday{seconds}",
        )
    return [plain_text(text) for text in fields]


@lru_cache(1024)
def _calendar(expression: str, field: str = "when.expression") -> _Calendar:
    """Return the calendar that the expression describes, or raise InvalidInput."""
    written = _fields(expression, field)
    fields = []
    for part, text in zip(_PARTS, written, strict=True):
        try:
            fields.append(",".join(_plain_item(part, item) for item in text.upper().split(",")))
        except _Unreadable as error:
            raise InvalidInput(field, error.code, f"{' '.join(written)!r}: {error}") from None
    text = " ".join(fields)
    days = None
    with suppress(CronSimError):  # a day that none of the months has
        days = CronSim(text, datetime(2000, 1, 1))  # noqa: DTZ001 -- wall times have no zone
    if days is None or _next_date(days, date(2000, 1, 1)) is None:
        raise InvalidInput(
            field,
            "never",
            f"{' '.join(written)!r} never fires: no date has this day, month and weekday (as with 30 February). "
            "Use L for the last day of a month",
        )
    times = tuple(timedelta(hours=h, minutes=m) for h in sorted(days.hours) for m in sorted(days.minutes))
    return _Calendar(text, days, times, not fields[1].startswith("*") and len(days.hours) < 24)


class _Unreadable(Exception):
    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


def _plain_item(part: _Part, item: str) -> str:
    """Return an item of a field's list in numbers: cronsim reads these in the same way as other programs."""
    if part is _DAY and item in ("L", "LW"):
        return item
    if part is _WEEKDAY:
        if item == "L":
            raise _Unreadable("bad_value", "the weekday L needs a number: 5L is the last Friday of the month")
        if item.endswith("L") and "-" not in item and "/" not in item:
            return f"{_number(part, item[:-1])}L"
        if "#" in item:
            day, _, nth = item.partition("#")
            if nth not in ("1", "2", "3", "4", "5"):
                raise _Unreadable(
                    "out_of_range", f"the weekday {item} must end with #1 to #5: MON#2, the second Monday"
                )
            return f"{_number(part, day)}#{nth}"
    span_of, slash, step = item.partition("/")
    if span_of == "*":
        first, last = None, None
    else:
        start, dash, end = span_of.partition("-")
        first = _number(part, start)
        last = _number(part, end) if dash else None
        if part is _WEEKDAY and end == "SUN" and first > 0:  # FRI-SUN
            last = 7
        if last is not None and last < first:
            high = 6 if part is _WEEKDAY else part.high
            raise _Unreadable(
                "backwards",
                f"the {part.name} range {span_of} runs backwards. Write two: {first}-{high},{part.low}-{last}",
            )
    if not slash:
        return "*" if first is None else f"{first}" if last is None else f"{first}-{last}"
    most = part.high if part is not _WEEKDAY and part.low else (7 if part is _WEEKDAY else part.high + 1)
    if not re.fullmatch(r"[0-9]{1,4}", step) or not 1 <= int(step) <= most:
        way_out = ". For other intervals use Every" if part.name in ("minute", "hour") else ""
        raise _Unreadable("out_of_range", f"the {part.name} step in {item!r} must be 1 to {most}{way_out}")
    if first is None:
        return f"*/{int(step)}"
    if first == last:  # cronsim would take 5-5/2 for 5/2, which goes on to the end
        return f"{first}"
    return f"{first}-{part.high if last is None else last}/{int(step)}"


def _number(part: _Part, text: str) -> int:
    """Return the number that the text says: in digits, or by a name."""
    names = f" or {part.names[1]} to {part.names[-1]}" if part is not _WEEKDAY and part.names else ""
    names = " (0 and 7 are Sunday) or SUN to SAT" if part is _WEEKDAY else names
    usable = f"use {part.low} to {part.high}{names}"
    if text and text in part.names:
        return part.names.index(text)
    if text == "?":
        raise _Unreadable("bad_value", f"the {part.name} can't be ?. Use *")
    if not re.fullmatch(r"[0-9]+", text):
        raise _Unreadable("bad_value", f"the {part.name} {text!r} can't be read: {usable}")
    if len(text) > 4 or not part.low <= int(text) <= part.high:
        raise _Unreadable("out_of_range", f"the {part.name} {text} is out of range: {usable}")
    return int(text)


# --- Wall times

_MONTHS_WITHOUT: Final = 50 * 12  # 29 February on a given weekday comes after 40 years at the latest


def _next_date(days: CronSim, start: date) -> date | None:
    """Return the first date from `start` on that matches. None: there is none in fifty years."""
    year, month, first = start.year, start.month, start.day
    for _ in range(_MONTHS_WITHOUT):
        if month in days.months:
            for day in range(first, monthrange(year, month)[1] + 1):
                if days.match_day(found := date(year, month, day)):
                    return found
        year, month, first = (year + 1, 1, 1) if month == 12 else (year, month + 1, 1)
        if year > _END.year:
            return None
    return None


def _walls(calendar: _Calendar, start: datetime) -> Iterator[datetime]:
    """Yield the matching wall times from `start` on."""
    times = calendar.times
    day = _next_date(calendar.days, start.date())
    while day is not None:
        midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 -- wall times have no zone
        first = bisect_left(times, start - midnight) if midnight < start else 0
        for time in times[first:]:
            yield midnight + time
        day = _next_date(calendar.days, day + _ONE_DAY)


# --- Moments

_ONE_DAY: Final = timedelta(days=1)
_TWO_DAYS: Final = timedelta(days=2)
_SECOND: Final = timedelta(seconds=1)
_CALM: Final = timedelta(days=8)  # how far to look ahead at once
_PROBE: Final = timedelta(hours=12)  # of all zones, no two changes were nearer than 95 hours (Freetown, 1939)
_LONGEST_WAIT: Final = timedelta(days=36_525)
_END: Final = datetime(9001, 1, 1)  # noqa: DTZ001 -- as check_time has it


def _interval(when: Every, after: datetime) -> Iterator[Moment]:
    step = span(when.seconds)
    anchor = 0 if when.anchor is None else micros(when.anchor)
    at = anchor + ((micros(after) - anchor) // step + 1) * step
    end = micros(_END.replace(tzinfo=UTC))
    while at < end:
        yield Moment(moment(at))
        at += step


def _plan(cron: Cron, after: datetime, zone: tzinfo) -> Iterator[tuple[datetime, str | None, bool]]:
    """Yield (moment, note, whether it fires), ascending.

    Below, times without a zone are in UTC, or wall times. An offset is less than a day. So the moments of a wall time
    are less than a day away from the same time in UTC. A time comes twice within less than two days.
    """
    calendar = _calendar(cron.expression)
    start = after.astimezone(UTC).replace(microsecond=0, tzinfo=None) + _SECOND
    give_up = start + _LONGEST_WAIT if start.year < 8900 else _END
    while True:
        wall = next(_walls(calendar, start - _ONE_DAY), None)
        if wall is None:
            return
        start = max(start, wall - _ONE_DAY)
        if start >= min(give_up, _END):
            return
        change = _next_change(zone, start - _TWO_DAYS, start + _CALM)
        if change is None or change > start + _TWO_DAYS:
            end = min(_END, start + _CALM - _TWO_DAYS if change is None else change - _TWO_DAYS)
            offset = _offset(zone, start)
            last = end + offset
            to_utc = timedelta() - offset
            at = None
            for wall in _walls(calendar, start + offset):
                if wall >= last:
                    break
                at = wall + to_utc
                yield at.replace(tzinfo=UTC), None, True
        else:
            end = min(_END, start + _ONE_DAY)
            at = None
            for found in _near_a_change(cron, calendar, _pieces(zone, start - _TWO_DAYS, end + _TWO_DAYS), start, end):
                at = found[0] if found[2] else at
                yield found[0].replace(tzinfo=UTC), found[1], found[2]
        if at is not None:
            give_up = at + _LONGEST_WAIT if at.year < 8900 else _END
        start = end


class _Piece(NamedTuple):
    """A time in UTC with one offset: from `start` to just before `end`."""

    start: datetime
    end: datetime
    offset: timedelta


def _near_a_change(
    cron: Cron, calendar: _Calendar, pieces: list[_Piece], start: datetime, end: datetime
) -> list[tuple[datetime, str | None, bool]]:
    """Return the plan from `start` to just before `end`. The pieces reach two days further on both sides."""
    fires: dict[datetime, str | None] = {}
    in_gaps: dict[datetime, list[datetime]] = {}  # by the first moment after the gap
    first_wall = start + min(piece.offset for piece in pieces)
    last_wall = end + max(piece.offset for piece in pieces)
    for wall in _walls(calendar, first_wall):
        if wall >= last_wall:
            break
        found = [at for piece in pieces if piece.start <= (at := wall - piece.offset) < piece.end]
        if not found:
            after_gap = next(
                piece.start
                for before, piece in pairwise(pieces)
                if piece.start + before.offset <= wall < piece.start + piece.offset
            )
            in_gaps.setdefault(after_gap, []).append(wall)
        elif len(found) == 1:
            fires.setdefault(found[0], None)
        else:
            twice = f"{wall:%H:%M} comes twice on {wall:%Y-%m-%d} in {cron.zone} (clocks go back): "
            overlap = cron.overlap if calendar.of_the_day else "both"
            if overlap in ("first", "both"):
                fires[found[0]] = f"{twice}the first one"
            if overlap in ("second", "both"):
                fires[found[-1]] = f"{twice}the second one"
    plan: list[tuple[datetime, str | None, bool]] = []
    for after_gap, walls in in_gaps.items():
        there = after_gap + next(piece.offset for piece in pieces if piece.start == after_gap)
        if not calendar.of_the_day:
            plan.append((after_gap, f"{_missing(walls, cron.zone)}: left out", False))
        elif cron.gap == "next":
            fires[after_gap] = f"{_missing(walls, cron.zone)}: moved to {_target(there, walls[0])}"
        else:
            plan.append((after_gap, f"{_missing(walls, cron.zone)}: skipped", False))
    plan += [(at, note, True) for at, note in fires.items()]
    return sorted((row for row in plan if start <= row[0] < end), key=lambda row: row[0])


def _pieces(zone: tzinfo, start: datetime, end: datetime) -> list[_Piece]:
    """Return the time from `start` to `end` in pieces with one offset each."""
    pieces = []
    while (change := _next_change(zone, start, end)) is not None:
        pieces.append(_Piece(start, change, _offset(zone, start)))
        start = change
    pieces.append(_Piece(start, end, _offset(zone, start)))
    return pieces


def _next_change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first second after `start`, and not after `end`, with another offset. None: there is none."""
    offset = _offset(zone, start)
    while start < end:
        probe = min(start + _PROBE, end)
        if _offset(zone, probe) != offset:
            low, high = 0, (probe - start) // _SECOND
            while high - low > 1:
                middle = (low + high) // 2
                if _offset(zone, start + middle * _SECOND) == offset:
                    low = middle
                else:
                    high = middle
            return start + high * _SECOND
        start = probe
    return None


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    """Return how far the zone's clocks are ahead of UTC at this moment, given in UTC without a zone."""
    return zone.fromutc(at.replace(tzinfo=zone)).replace(tzinfo=None) - at


# --- Words


def _missing(walls: list[datetime], zone: str) -> str:
    """Return which wall times do not exist."""
    times = [f"{wall:%H:%M}" for wall in walls]
    day = f"on {walls[0]:%Y-%m-%d} in {zone} (clocks go forward)"
    if len(times) == 1:
        return f"{times[0]} does not exist {day}"
    if len(times) <= 3:
        return f"{', '.join(times[:-1])} and {times[-1]} do not exist {day}"
    return f"{times[0]}, {times[1]} and {len(times) - 2} more times do not exist {day}"


def _target(there: datetime, wall: datetime) -> str:
    """Return the wall time after the gap, with its date if it is another one."""
    text = f"{there:%H:%M:%S}" if there.second else f"{there:%H:%M}"
    return text if there.date() == wall.date() else f"{text} on {there:%Y-%m-%d}"


def _date_and_time(at: datetime) -> str:
    text = at.replace(tzinfo=None).isoformat(" ", "auto")
    return text[:-3] if len(text) == 19 and text.endswith(":00") else text


def _duration(micros: int) -> str:
    """Return the time in its largest whole unit: "90 seconds", "2 hours", "day"."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, rest = divmod(micros, size * 1_000_000)
        if not rest:
            return unit if count == 1 else f"{count:,} {unit}s"
    return f"{f'{micros / 1_000_000:,.6f}'.rstrip('0')} seconds"
