"""Plants: what must not happen to jobs of topics with limits, and what may. The limits are those of LimitedLives."""

import json
from collections.abc import Callable

from msgspec import structs

from tests.proof.history import RowChange
from tests.proof.lives import Row
from tests.proof.planting import HOUR, Barren, Garden, breaks
from tests.proof.witness import JOBS

Group = Callable[[Row], object]  # returns the same for jobs that count together, and None for jobs that don't count


def _tenant(row: Row) -> object:
    return json.loads(row["share"] or "{}").get("scope_id", "") if row["topic"] == "mail" else None


def _bills(row: Row) -> object:
    return row["topic"] == "bills" or None


def _desk(row: Row) -> object:
    return row["topic"] in ("mail", "bills") or None


def _row(change: RowChange) -> Row:
    return change.after or change.before or {}


def _is_claim(change: RowChange) -> bool:
    before, after = change.before, change.after
    return change.table == JOBS and before is not None and after is not None and after["version"] > before["version"]


def _claim_before_an_end(garden: Garden, group: Group, most: int) -> None:
    """Move a claim to right before the end that made room for it."""
    changes = garden.history.changes
    held: dict[str, object] = {}
    for n, change in enumerate(changes):
        if change.table != JOBS:
            continue
        row = _row(change)
        counted = held.pop(row["id"], None)
        if change.after is not None and change.after["locked_until"] is not None:
            held[row["id"]] = group(row)
        elif counted is not None and sum(one == counted for one in held.values()) == most - 1:
            for place in range(n + 1, len(changes)):
                later = _row(changes[place])
                if _is_claim(changes[place]) and later["id"] != row["id"] and group(later) == counted:
                    changes.insert(n, changes.pop(place))
                    return
    raise Barren


@breaks("S12", "of 3 for ('concurrency', 'bills', None")
def a_topic_had_one_run_too_many(garden: Garden) -> None:
    _claim_before_an_end(garden, _bills, 3)


@breaks("S12", "of 2 for ('concurrency', 'mail', 'scope_id'")
def a_value_had_one_run_too_many(garden: Garden) -> None:
    _claim_before_an_end(garden, _tenant, 2)


@breaks("S12", "of 4 for ('concurrency', 'desk'")
def topics_with_one_limit_had_one_run_too_many_together(garden: Garden) -> None:
    _claim_before_an_end(garden, _desk, 4)


def _start_at(garden: Garden, topic: str, *seconds: float) -> None:
    """Let the last jobs of a topic start at these times, which begin long after all other starts."""
    changes = garden.history.changes
    places = [n for n, one in enumerate(changes) if _is_claim(one) and _row(one)["topic"] == topic][-len(seconds) :]
    if len(places) < len(seconds):
        raise Barren
    begun = _row(changes[places[-1]])["claimed_at"] + HOUR
    for place, at in zip(places, seconds, strict=True):
        claimed_at = begun + round(at * 1e6)
        changes[place] = structs.replace(changes[place], after=_row(changes[place]) | {"claimed_at": claimed_at})


@breaks("S12", "start number 4 within 9999999 µs, of ('rate', 'bills'")
def a_start_came_before_the_window_had_passed(garden: Garden) -> None:
    _start_at(garden, "bills", 0, 4, 7, 9.999999)


@breaks("S12", "start number 3 within 7999999 µs, of ('rate', 'mail'")
def a_burst_was_too_large(garden: Garden) -> None:
    _start_at(garden, "mail", 0, 5, 7.999999)


@breaks("S12", "start number 6 within 19999999 µs, of ('rate', 'mail'")
def a_window_of_bursts_had_too_many_starts(garden: Garden) -> None:
    _start_at(garden, "mail", 0, 0, 8, 8, 16, 19.999999)


def starts_came_as_soon_as_they_might(garden: Garden) -> None:
    """The limits allow these starts."""
    _start_at(garden, "bills", 0, 4, 7, 10, 14, 17)
    _start_at(garden, "mail", 0, 0, 8, 8, 16, 20)
