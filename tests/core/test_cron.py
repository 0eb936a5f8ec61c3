"""Schedules: against the brute force of cron_oracle on random cases, and by tables for words and errors."""

from __future__ import annotations

import os
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from functools import cache
from itertools import islice, takewhile
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from rowlock.core.cron import Cron, Every, Moment, _calendar, check_when, in_words, moments, skipped
from rowlock.errors import InvalidInput
from tests.core.cron_oracle import Expected, Fields, Walk, by_fold, dates

FULL = os.environ.get("ROWLOCK_PROOF") == "full"
SHARDS = 20
FEW = (6, 5)  # windows per shard, cases per window: 600 cases in all
MANY = (100, 10)  # 20,000 cases in all
SIZE = MANY if FULL else FEW
DAY = timedelta(days=1)
BERLIN = ZoneInfo("Europe/Berlin")

# Zones whose clocks change in odd ways: by half an hour, by two hours, by a day, at midnight, around Ramadan, and one
# whose winter time is the exception.
ALWAYS = (
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Antarctica/Troll",
    "Africa/Cairo",
    "Asia/Gaza",
    "Europe/Dublin",
)
ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "posixrules", "Factory"})

pytestmark = pytest.mark.timeout(1800)


# --- Random cases


class Case(NamedTuple):
    cron: Cron
    zone: ZoneInfo
    start: datetime
    end: datetime
    walk: Walk
    expected: Expected


@cache
def changes(name: str) -> list[datetime]:
    """Return when the zone's clocks change, from 1900 to 2040, to the minute."""
    zone = ZoneInfo(name)
    found = []
    low, high = datetime(1900, 1, 1, tzinfo=UTC), datetime(1900, 1, 8, tzinfo=UTC)
    while high.year < 2040:
        offset = low.astimezone(zone).utcoffset()
        if high.astimezone(zone).utcoffset() != offset:
            after = high
            while after - low > timedelta(minutes=1):
                middle = low + (after - low) // 2
                low, after = (middle, after) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
            found.append(after)
        low, high = high, high + 7 * DAY
    return found


def window(random: Random, name: str) -> tuple[datetime, datetime, datetime]:
    """Return the start and the end of a few hours or days, and a time in them: mostly a change of the clocks."""
    near = changes(name)
    if name == "Pacific/Apia" and random.random() < 0.5:
        near = [at for at in near if at.year == 2011 and at.month == 12]
    elif random.random() < 0.7:
        near = [at for at in near if at.year >= 1970] or near
    if near and random.random() < 0.9:
        middle = random.choice(near)
    else:
        year = random.choice((random.randint(1901, 2200), random.randint(2020, 2040), random.randint(2200, 8999)))
        middle = datetime(year, 1, 1, tzinfo=UTC) + timedelta(hours=random.uniform(0, 8700))
    start = middle + timedelta(hours=random.choice((random.uniform(-2, 1), random.uniform(-26, 0), -48)))
    if random.random() < 0.6:
        start = start.replace(minute=random.choice((0, 0, 15, 30)), second=0, microsecond=0)
    return start, max(start, middle) + timedelta(hours=random.choice((1, 3, 12, 48))), middle


def some_numbers(random: Random, low: int, high: int, names: str = "") -> str:
    """Return an item, or a list of items: numbers, names, ranges and steps."""

    def number(n: int) -> str:
        if names and low <= n < low + len(names.split()) and random.random() < 0.5:
            name = names.split()[n - low]
            return random.choice((name, name.lower(), name.title()))
        return str(n)

    def item() -> str:
        first = random.randint(low, high)
        last = random.randint(first, high)
        match random.randrange(8):
            case 0:
                return f"{number(first)}-{number(last)}"
            case 1:
                return f"{number(first)}-{number(last)}/{random.randint(1, 7)}"
            case 2:
                return f"{number(first)}/{random.randint(1, 7)}"
            case _:
                return number(first)

    return ",".join(item() for _ in range(random.choice((1, 1, 1, 2, 3))))


def random_expression(random: Random, around: datetime) -> str:
    """Return an expression, mostly with times near to this wall time. It may be one that never fires."""
    chance = random.random()
    if chance < 0.15:
        minute = "*"
    elif chance < 0.35:
        minute = f"*/{random.choice((5, 7, 10, 15, 20, 30, 45))}"
    elif chance < 0.7:
        minute = random.choice(("0", "30", "15", "0,30", "1", "59"))
    else:
        minute = some_numbers(random, 0, 59)
    chance = random.random()
    if chance < 0.15:
        hour = random.choice(("*", "*/2", "*/5", "0-23", "0-11,12-23", "*,3", "0/1"))
    elif chance < 0.6:
        near = around.hour
        hour = random.choice((f"{near}", f"{(near - 1) % 24}", f"{(near - 2) % 24},{near}", f"{near // 2}-{near}"))
    elif chance < 0.85:
        hour = random.choice(("0", "1", "2", "3", "23", "0-3", "1,2", "2-3", "22-23", "0,23", "1-4/2", "12", "2-2/3"))
    else:
        hour = some_numbers(random, 0, 23)
    day, month, weekday = "*", "*", "*"
    if random.random() < 0.25:
        near = (around + random.randint(-1, 3) * DAY).day
        day = random.choice((f"{near}", f"{near}", "L", "LW", "L,15", "*/2", "*/3", some_numbers(random, 1, 31)))
    if random.random() < 0.15:
        some = some_numbers(random, 1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC")
        month = random.choice((f"{around.month}", "*/2", some))
    if random.random() < 0.3:
        near = (around + random.randint(-1, 3) * DAY).isoweekday()
        nth = (around.day + 6) // 7
        some = some_numbers(random, 0, 7, "SUN MON TUE WED THU FRI SAT")
        weekday = random.choice(
            (f"{near}", f"{near}", f"{near}L", f"{near}#{nth}", "MON#1,thu#3", "SUN", "FRI-SUN", "mon-fri", "*/2", some)
        )
    return f"{minute} {hour} {day} {month} {weekday}"


def zones_of(shard: int, windows: int) -> list[str]:
    """Return the zones for the windows of a shard. The many windows of all shards have all zones."""
    random = Random(f"zones {shard}")
    names = ZONES[shard::SHARDS] if windows > 50 else []
    for i in range(len(names), windows):
        names.append(random.choice(ZONES) if i % 2 else ALWAYS[(shard * windows + i) // 2 % len(ALWAYS)])
    return names


def cases(shard: int, size: tuple[int, int]) -> Iterator[Case]:
    windows, count = size
    random = Random(f"schedules {shard}")
    for name in zones_of(shard, windows):
        zone = ZoneInfo(name)
        start, end, middle = window(random, name)
        walk = Walk(zone, start, end)
        made = 0
        while made < count:
            expression = random_expression(random, middle.astimezone(zone))
            cron = Cron(expression, name, random.choice(("next", "skip")), random.choice(("first", "second", "both")))
            if never_fires(cron):
                continue
            made += 1
            yield Case(cron, zone, start, end, walk, walk.expect(Fields(expression), cron.gap, cron.overlap))


def never_fires(cron: Cron) -> bool:
    """Return True if no date fits the expression, by the check and by the oracle."""
    try:
        assert check_when(cron) == cron
    except InvalidInput as error:
        if error.code != "never":
            raise
        fields = Fields(cron.expression)
        return not any(fields.has_day(day) for day in dates(date(2000, 1, 1), date(2028, 12, 31)))
    return False


@cache
def few_cases(shard: int) -> list[Case]:
    return list(cases(shard, FEW))


def kind(moment: Moment) -> str:
    """Return what the note says, in the oracle's words."""
    words = {"moved to": "moved", "the first one": "first", "the second one": "second"}
    return next((kind for text, kind in words.items() if text in (moment.note or "")), moment.note or "")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_moments_are_those_of_a_walk_by_the_minute(shard: int) -> None:
    fired = 0
    for case in cases(shard, SIZE):
        found = list(takewhile(lambda one, case=case: one.at < case.end, moments(case.cron, case.start, case.zone)))  # type: ignore[misc]
        assert [(one.at, kind(one)) for one in found] == list(case.expected.fires.items()), case[:4]
        left_out = list(skipped(case.cron, case.start, case.end - timedelta(microseconds=1), case.zone))
        assert [one.at for one in left_out] == case.expected.skipped, case[:4]
        assert all("skipped" in (one.note or "") for one in left_out)
        assert in_words(case.cron)
        fired += len(found)
    assert fired > 100


def test_every_zone_takes_part_in_the_full_run() -> None:
    seen = {name for shard in range(SHARDS) for name in zones_of(shard, SIZE[0])}
    assert seen >= set(ZONES if FULL else ALWAYS)


@pytest.mark.parametrize("seed", range(200 if FULL else 12))
def test_moments_of_years(seed: int) -> None:
    """Sparse schedules jump over long spans. Here the oracle is `by_fold`, which does not walk minute by minute."""
    random = Random(f"years {seed}")
    name = random.choice((*ALWAYS, random.choice(ZONES), "America/New_York", "Europe/Berlin"))
    zone = ZoneInfo(name)
    start = datetime(random.choice((1930, 1965, 1995, 2020, 2090, 8980)), random.randint(1, 12), 5, tzinfo=UTC)
    end = start + timedelta(days=12 * 365)
    for expression in (
        "30 2 * * *",
        "0 0 29 2 *",
        "0 0 L * *",
        "59 23 LW 3,10 *",
        "30 1,2 * MAR,OCT SUN",
        "0 0 1-7 * SUN",
        "15 0 13 * 5",
        "0 2 * * 7L",
        "30 2 * * SUN#2",
        "0 3 */31 * */2",
    ):
        cron = Cron(expression, name, random.choice(("next", "skip")), random.choice(("first", "second", "both")))
        found = [one.at for one in takewhile(lambda one: one.at < end, moments(cron, start, zone))]
        assert found == by_fold(Fields(expression), zone, start, end, cron.gap, cron.overlap), (cron, start)


# --- Wrong implementations that the cases must notice


def wrong_cronsim(case: Case) -> Iterator[datetime]:
    """Use cronsim on aware times: of a doubled time, it always yields only one."""
    for at in CronSim(_calendar(case.cron.expression).text, case.start.astimezone(case.zone)):
        yield at.astimezone(UTC)


def wrong_wall_times(case: Case) -> Iterator[datetime]:
    """Put the zone on the next wall time: the obvious but wrong way."""
    wall = case.start.astimezone(case.zone).replace(tzinfo=None)
    for at in CronSim(_calendar(case.cron.expression).text, wall):
        yield at.replace(tzinfo=case.zone).astimezone(UTC)


def wrong_cron(**wrong: dict[str, Any]) -> Callable[[Case], Iterator[datetime]]:
    """Return a variant that takes one policy for another."""

    def variant(case: Case) -> Iterator[datetime]:
        changed = {name: other[getattr(case.cron, name)] for name, other in wrong.items()}
        policies = {"gap": case.cron.gap, "overlap": case.cron.overlap, **changed}
        for one in moments(Cron(case.cron.expression, case.cron.zone, **policies), case.start, case.zone):
            yield one.at

    return variant


def wrong_hours(case: Case) -> Iterator[datetime]:
    """Take a schedule by the hour for one with fixed times."""
    fields = Fields(case.cron.expression)
    fields.goes_on = False
    yield from case.walk.expect(fields, case.cron.gap, case.cron.overlap).fires


def wrong_days(case: Case) -> Iterator[datetime]:
    """Require that day and weekday both match, always."""
    fields = Fields(case.cron.expression)
    fields.both = True
    yield from case.walk.expect(fields, case.cron.gap, case.cron.overlap).fires


def wrong_offset(case: Case) -> Iterator[datetime]:
    """Use the zone's offset at the start until the end."""
    fixed = timezone(case.start.astimezone(case.zone).utcoffset() or timedelta())
    for one in moments(case.cron, case.start, fixed):
        yield one.at


WRONG: dict[str, Callable[[Case], Iterator[datetime]]] = {
    "cronsim on aware times": wrong_cronsim,
    "wall times in a zone": wrong_wall_times,
    "gaps swapped": wrong_cron(gap={"next": "skip", "skip": "next"}),
    "overlaps swapped": wrong_cron(overlap={"first": "second", "second": "first", "both": "both"}),
    "both is first": wrong_cron(overlap={"first": "first", "second": "second", "both": "first"}),
    "hours are fixed times": wrong_hours,
    "day and weekday": wrong_days,
    "one offset": wrong_offset,
}


@pytest.mark.parametrize("name", WRONG)
def test_the_cases_notice_what_is_wrong(name: str) -> None:
    noticed = 0
    for shard in range(SHARDS):
        for case in few_cases(shard):
            found = list(takewhile(lambda at, case=case: at < case.end, WRONG[name](case)))  # type: ignore[misc]
            noticed += found != list(case.expected.fires)
    assert noticed >= 10


# --- Known changes of clocks


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # Samoa skipped 30 December 2011.
        (Cron("0 12 * * *", "Pacific/Apia"), "2011-12-29 23:00", ["2011-12-30 10:00", "2011-12-30 22:00"]),
        (Cron("0 12 * * *", "Pacific/Apia", "skip"), "2011-12-29 00:00", ["2011-12-29 22:00", "2011-12-30 22:00"]),
        (Cron("0 0 30 12 *", "Pacific/Apia"), "2011-01-01 00:00", ["2011-12-30 10:00", "2012-12-29 10:00"]),
        # The clocks change by half an hour.
        (Cron("15 2 * * *", "Australia/Lord_Howe"), "2026-10-03 00:00", ["2026-10-03 15:30", "2026-10-04 15:15"]),
        (
            Cron("45 1 * * *", "Australia/Lord_Howe", overlap="both"),
            "2026-04-04 00:00",
            ["2026-04-04 14:45", "2026-04-04 15:15", "2026-04-05 15:15"],
        ),
        # The clocks change by two hours.
        (Cron("30 2 * * *", "Antarctica/Troll"), "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
        (
            Cron("30 1,2 * * *", "Antarctica/Troll", overlap="both"),
            "2026-10-24 12:00",
            ["2026-10-24 23:30", "2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30", "2026-10-26 01:30"],
        ),
        # One day has no midnight, and another has its last hour twice.
        (Cron("0 0 * * *", "Africa/Cairo"), "2025-04-24 12:00", ["2025-04-24 22:00", "2025-04-25 21:00"]),
        (
            Cron("30 23 * * *", "Africa/Cairo", overlap="second"),
            "2025-10-30 12:00",
            ["2025-10-30 21:30", "2025-10-31 21:30"],
        ),
        # A schedule by the hour: no time is moved, none is left out.
        (Cron("30 * * * *", "Europe/Berlin"), "2026-03-28 23:45", ["2026-03-29 00:30", "2026-03-29 01:30"]),
        (Cron("30 0-23 * * *", "Europe/Berlin"), "2026-10-24 23:45", ["2026-10-25 00:30", "2026-10-25 01:30"]),
        # The moved times fall on a time of the schedule: it fires once.
        (Cron("0,30 2,3 * * *", "Europe/Berlin"), "2026-03-29 00:00", ["2026-03-29 01:00", "2026-03-29 01:30"]),
        # The doubled hour goes back over midnight: the next day begins before this one has ended.
        (
            Cron("45 0,23 * * *", "America/Goose_Bay", overlap="both"),
            "2010-11-07 00:00",
            ["2010-11-07 02:45", "2010-11-07 03:45", "2010-11-07 04:45"],
        ),
    ],
)
def test_known_changes(cron: Cron, after: str, expected: list[str]) -> None:
    found = moments(cron, utc(after), ZoneInfo(cron.zone))
    assert [one.at for one in islice(found, len(expected))] == [utc(text) for text in expected]


@pytest.mark.parametrize(
    ("cron", "after", "note"),
    [
        (
            Cron("30 2 * * *", "Europe/Berlin"),
            "2026-03-29 00:00",
            "02:30 does not exist on 2026-03-29 in Europe/Berlin (clocks go forward): moved to 03:00",
        ),
        (
            Cron("0,20,40 2 * * *", "Europe/Berlin"),
            "2026-03-29 00:00",
            "02:00, 02:20 and 02:40 do not exist on 2026-03-29 in Europe/Berlin (clocks go forward): moved to 03:00",
        ),
        (
            Cron("* 2 * * *", "Europe/Berlin"),
            "2026-03-29 00:00",
            "02:00, 02:01 and 58 more times do not exist on 2026-03-29 in Europe/Berlin (clocks go forward): moved to 03:00",  # noqa: E501
        ),
        (
            Cron("0 12 * * *", "Pacific/Apia"),
            "2011-12-30 00:00",
            "12:00 does not exist on 2011-12-30 in Pacific/Apia (clocks go forward): moved to 00:00 on 2011-12-31",
        ),
        (
            Cron("30 2 * * *", "Europe/Berlin"),
            "2026-10-25 00:00",
            "02:30 comes twice on 2026-10-25 in Europe/Berlin (clocks go back): the first one",
        ),
        (
            Cron("30 2 * * *", "Europe/Berlin", overlap="second"),
            "2026-10-25 00:00",
            "02:30 comes twice on 2026-10-25 in Europe/Berlin (clocks go back): the second one",
        ),
        (Cron("30 2 * * *", "Europe/Berlin"), "2026-10-26 00:00", None),
        (Cron("30 * * * *", "Europe/Berlin"), "2026-10-25 00:00", None),
    ],
)
def test_notes(cron: Cron, after: str, note: str | None) -> None:
    assert next(moments(cron, utc(after), ZoneInfo(cron.zone))).note == note


def test_skipped_times_have_a_note() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin", "skip")
    assert list(skipped(cron, utc("2026-01-01"), utc("2027-01-01"), BERLIN)) == [
        Moment(
            utc("2026-03-29 01:00"),
            "02:30 does not exist on 2026-03-29 in Europe/Berlin (clocks go forward): skipped",
        )
    ]
    for other in (Cron("30 2 * * *", "Europe/Berlin"), Cron("30 * * * *", "Europe/Berlin", "skip"), Every(60)):
        assert not list(skipped(other, utc("2026-01-01"), utc("2027-01-01"), BERLIN))


def test_the_start_is_left_out() -> None:
    cron = Cron("0 9 * * *")
    assert next(moments(cron, utc("2026-01-01 09:00"), UTC)).at == utc("2026-01-02 09:00")
    assert next(moments(cron, utc("2026-01-01 08:59:59.999999"), UTC)).at == utc("2026-01-01 09:00")
    assert next(moments(cron, utc("2026-01-01 09:00:00.000001"), UTC)).at == utc("2026-01-02 09:00")
    assert next(moments(cron, datetime(2026, 1, 1, 9, 30, tzinfo=BERLIN), UTC)).at == utc("2026-01-01 09:00")


def test_it_ends() -> None:
    # Every time is in a gap: the last Sunday of March is the day on which clocks go forward.
    assert not list(moments(Cron("30 2 * 3 7L", "Europe/Berlin", "skip"), utc("2026-01-01"), BERLIN))
    assert [one.at.year for one in moments(Cron("0 0 1 1 *"), utc("8997-06-01"), UTC)] == [8998, 8999, 9000]
    assert not list(moments(Cron("0 0 29 2 *", "Asia/Tokyo"), utc("9000-12-31 23:59"), ZoneInfo("Asia/Tokyo")))
    assert len(list(moments(Cron("0 * * * *"), utc("9000-12-31 12:00"), UTC))) == 11
    assert len(list(moments(Every(3600), utc("9000-12-31 12:00"), UTC))) == 11


@pytest.mark.parametrize("name", ["Europe/Amsterdam", "Africa/Monrovia", "Asia/Kathmandu", "America/Caracas"])
def test_offsets_with_seconds(name: str) -> None:
    found = list(islice(moments(Cron("0 12 * * *", name), utc("1900-01-01"), ZoneInfo(name)), 20_000))
    assert all(one.at.astimezone(ZoneInfo(name)).hour == 12 for one in found)
    assert len({one.at for one in found}) == 20_000


# --- Every


def test_every_is_exact() -> None:
    every = check_when(Every(1.1, utc("2026-01-01 00:00:00.5")))
    found = [one.at for one in islice(moments(every, utc("2026-01-01 00:00:00.5"), UTC), 100_000)]
    assert found[0] == utc("2026-01-01 00:00:01.6")
    assert found[-1] == utc("2026-01-01 00:00:00.5") + timedelta(microseconds=1_100_000 * 100_000)
    assert next(moments(every, found[41_000], UTC)).at == found[41_001]


def test_every_counts_from_its_anchor_on_both_sides() -> None:
    anchor = utc("2026-01-01 00:30")
    times = [one.at for one in islice(moments(Every(3600, anchor), utc("2025-12-31 23:00"), UTC), 3)]
    assert times == [utc("2025-12-31 23:30"), utc("2026-01-01 00:30"), utc("2026-01-01 01:30")]
    assert next(moments(Every(3600, anchor), anchor, UTC)).at == utc("2026-01-01 01:30")
    assert next(moments(Every(7 * 86_400), utc("1969-12-31"), UTC)).at == utc("1970-01-01")
    assert next(moments(Every(10), utc("1900-01-01 00:00:05"), UTC)).at == utc("1900-01-01 00:00:10")


@pytest.mark.parametrize("seconds", [90, 90.0, timedelta(seconds=90)])
def test_every_takes_seconds_and_timedeltas(seconds: Any) -> None:
    anchor = datetime(2026, 1, 1, 1, tzinfo=BERLIN)
    checked = check_when(Every(seconds, anchor))
    assert checked == Every(90.0, utc("2026-01-01 00:00"))
    assert isinstance(checked, Every)
    assert type(checked.seconds) is float


# --- Words


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (Cron("0 2 * * *", "Europe/Berlin"), "At 02:00 every day (Europe/Berlin)"),
        (Cron("*/15 * * * *"), "Every 15 minutes"),
        (Cron("*/1 * * * *"), "Every minute"),
        (Cron("* * * * *", "Asia/Taipei"), "Every minute"),
        (Cron("*/7 * * * *"), "Every seventh minute of every hour (UTC)"),
        (Cron("0 * * * *"), "At the start of every hour (UTC)"),
        (Cron("@daily", "Asia/Taipei"), "At 00:00 every day (Asia/Taipei)"),
        (Cron("0 9 * * mon-fri"), "At 09:00 on Monday through Friday (UTC)"),
        (Cron("0 9 * * FRI-SUN"), "At 09:00 on Friday through Sunday (UTC)"),
        (Cron("0 0 L * *"), "At 00:00 on the last day of every month (UTC)"),
        (Cron("0 8 * * 5L"), "At 08:00 on the last Friday of the month (UTC)"),
        (Cron("0 8 * * FRI#2"), "At 08:00 on the second Friday of the month (UTC)"),
        (Every(1), "Every second"),
        (Every(90), "Every 90 seconds"),
        (Every(1.5), "Every 1.5 seconds"),
        (Every(5400), "Every 90 minutes"),
        (Every(7200), "Every 2 hours"),
        (Every(86_400), "Every day"),
        (Every(2 * 86_400), "Every 2 days"),
        (Every(7200, utc("2026-01-01 00:30")), "Every 2 hours, counted from 2026-01-01 00:30 UTC"),
        (Every(60, utc("2026-01-01 00:30:05")), "Every minute, counted from 2026-01-01 00:30:05 UTC"),
        (Cron("0 9 1-31 * MON"), "At 09:00 every day (UTC)"),  # day or weekday is enough
    ],
)
def test_in_words(when: Cron | Every, words: str) -> None:
    assert in_words(when) == words


# --- Checks


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("  0 9\t* *\n* ", "0 9 * * *"),
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("0 9 * jan Mon-FRI", "0 9 * jan Mon-FRI"),
    ],
)
def test_expressions_are_made_plain(written: str, plain: str) -> None:
    assert check_when(Cron(written, "Europe/Berlin")) == Cron(plain, "Europe/Berlin")
    zone = ZoneInfo("Europe/Berlin")
    start = utc("2026-01-01")
    assert next(moments(Cron(written), start, zone)) == next(moments(Cron(plain), start, zone))


def test_the_same_value_with_a_step_is_one_value() -> None:
    """cronsim reads 2-2/5 as 2/5, and rowlock must not."""
    found = islice(moments(Cron("0 2-2/5 * * *"), utc("2026-01-01"), UTC), 2)
    assert [one.at for one in found] == [utc("2026-01-01 02:00"), utc("2026-01-02 02:00")]


@pytest.mark.parametrize(
    ("expression", "code", "text"),
    [
        ("0 0 9 * * *", "bad_fields", "has 6 fields; use five: minute hour day month weekday. For seconds use Every"),
        ("0 9 * *", "bad_fields", "has 4 fields; use five: minute hour day month weekday"),
        ("daily", "bad_fields", "has 1 field; use five"),
        ("", "empty", "use five fields"),
        (" \n", "empty", "use five fields"),
        (None, "not_text", "must be a string, not NoneType"),
        ("61 * * * *", "out_of_range", "the minute 61 is out of range: use 0 to 59"),
        ("* 24 * * *", "out_of_range", "the hour 24 is out of range: use 0 to 23"),
        ("* * 0 * *", "out_of_range", "the day 0 is out of range: use 1 to 31"),
        ("* * * 13 *", "out_of_range", "the month 13 is out of range: use 1 to 12 or JAN to DEC"),
        ("* * * * 8", "out_of_range", "the weekday 8 is out of range: use 0 to 7 (0 and 7 are Sunday) or SUN to SAT"),
        ("* 99999999999 * * *", "out_of_range", "the hour 99999999999 is out of range"),
        ("* * * foo *", "bad_value", "the month 'FOO' can't be read: use 1 to 12 or JAN to DEC"),
        ("a * * * *", "bad_value", "the minute 'A' can't be read: use 0 to 59"),
        ("1,,2 * * * *", "bad_value", "the minute '' can't be read"),
        ("-5 * * * *", "bad_value", "the minute '' can't be read"),
        ("1- * * * *", "bad_value", "the minute '' can't be read"),
        ("* * ? * *", "bad_value", "the day can't be ?. Use *"),
        ("* * L-3 * *", "bad_value", "the day 'L' can't be read"),
        ("* L * * *", "bad_value", "the hour 'L' can't be read"),
        ("* * * * L", "bad_value", "5L is the last Friday"),
        ("* * * * MON#6", "out_of_range", "#1 to #5"),
        ("* * 5#2 * *", "bad_value", "the day '5#2' can't be read"),
        ("* 22-2 * * *", "backwards", "the hour range 22-2 runs backwards. Write two: 22-23,0-2"),
        ("* * * * SAT-MON", "backwards", "the weekday range SAT-MON runs backwards. Write two: 6-6,0-1"),
        ("*/0 * * * *", "out_of_range", "the minute step in '*/0' must be 1 to 60"),
        ("*/90 * * * *", "out_of_range", "must be 1 to 60. For other intervals use Every"),
        ("*/ * * * *", "out_of_range", "the minute step"),
        ("*/5/5 * * * *", "out_of_range", "the minute step"),
        ("* * * */13 *", "out_of_range", "the month step in '*/13' must be 1 to 12"),
        ("0 0 30 2 *", "never", "'0 0 30 2 *' never fires"),
        ("0 0 31 4,6,9,11 *", "never", "never fires"),
        ("0 0 */31 * MON#2", "never", "never fires"),
        ("@reboot", "unknown_name", "when your application starts"),
        ("@fortnightly", "unknown_name", "is none of @hourly, @daily"),
        ("@daily 5", "unknown_name", "is none of"),
        ("0 9 * * 1\x005", "bad_characters", "'\\x00'"),
        ("0\x1f9 * * *", "bad_characters", "'\\x1f'"),
        ("0 9 * * 1–5", "bad_characters", "'\\u2013'"),
        ("٣ 9 * * *", "bad_characters", "'\\u0663'"),
        ("0 9 * * " + "1," * 100 + "1", "bad_length", "at most 200"),
    ],
)
def test_bad_expressions(expression: Any, code: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_when(Cron(expression))
    assert caught.value.field == "when.expression"
    assert caught.value.code == code
    assert text.lower() in caught.value.problem.lower()
    with pytest.raises(InvalidInput):
        next(moments(Cron(expression), utc("2026-01-01"), UTC))


@pytest.mark.parametrize(
    ("when", "field", "code", "text"),
    [
        ("0 9 * * *", "when", "bad_type", 'must be Cron("0 9 * * *", "Europe/Berlin") or Every(60), not str'),
        (None, "when", "bad_type", "not NoneType"),
        (Cron("0 9 * * *", ""), "when.zone", "bad_length", "Europe/Berlin"),
        (Cron("0 9 * * *", "x" * 65), "when.zone", "bad_length", "1 to 64 characters, not 65"),
        (Cron("0 9 * * *", BERLIN), "when.zone", "not_text", "not ZoneInfo"),  # type: ignore[arg-type]
        (Cron("0 9 * * *", "Europe/B\nerlin"), "when.zone", "bad_characters", "is no name of a time zone"),
        (Cron("0 9 * * *", "UTC", "later"), "when.gap", "unknown_name", "'later' is none of next, skip"),  # type: ignore[arg-type]
        (Cron("0 9 * * *", gap=[]), "when.gap", "unknown_name", "is none of"),  # type: ignore[arg-type]
        (
            Cron("0 9 * * *", overlap="third"),  # type: ignore[arg-type]
            "when.overlap",
            "unknown_name",
            "'third' is none of first, second, both",
        ),
        (Every(0), "when.seconds", "out_of_range", "must be 1 to 316224000 seconds (ten years), not 0"),
        (Every(0.5), "when.seconds", "out_of_range", "not 0.5"),
        (Every(-5), "when.seconds", "out_of_range", "not -5"),
        (Every(1e12), "when.seconds", "out_of_range", "ten years"),
        (Every(10**5000), "when.seconds", "out_of_range", "ten years"),
        (Every(float("nan")), "when.seconds", "out_of_range", "not nan"),
        (Every(True), "when.seconds", "not_a_number", "must be seconds or a timedelta, not bool"),
        (Every("60"), "when.seconds", "not_a_number", "not str"),  # type: ignore[arg-type]
        (Every(60, datetime(2026, 1, 1)), "when.anchor", "naive_time", "has no time zone"),  # noqa: DTZ001
        (Every(60, "2026"), "when.anchor", "not_a_time", "must be a datetime"),  # type: ignore[arg-type]
        (Every(60, utc("1850-01-01")), "when.anchor", "time_range", "1900"),
    ],
)
def test_bad_values(when: object, field: str, code: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_when(when)
    assert caught.value.field == field
    assert caught.value.code == code
    assert text in caught.value.problem


def test_errors_name_the_callers_field() -> None:
    with pytest.raises(InvalidInput, match=r"^schedule\.when\.expression: '61 \* \* \* \*': the minute 61"):
        check_when(Cron("61 * * * *"), "schedule.when")
    with pytest.raises(InvalidInput, match=r"^schedule\.when\.seconds: "):
        check_when(Every(0), "schedule.when")
