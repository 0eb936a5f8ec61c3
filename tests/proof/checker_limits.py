"""S12: limits hold at every moment. The checker counts for itself: it shares no code with the product's decisions.

The checker judges the limits that the code declares, not those that an operator has put. A claim that may start a job
has seen all earlier ends and claims. So in the order of the record, a claim never brings the number of held jobs above
the limit.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.proof.history import RowChange
from tests.proof.lives import World
from tests.proof.witness import JOBS, RECORDS

Found = Iterator[tuple[str | None, str]]
_Counted = tuple[str, str, str | None, str]  # kind, name, field and value


def s12_limits_hold_at_every_moment(world: World) -> Found:
    yield from exceeded(world.history.changes)


def exceeded(changes: Iterable[RowChange]) -> Found:
    limited: dict[str, list[dict[str, Any]]] = {}
    held: dict[str, dict[str, Any]] = {}
    starts: defaultdict[_Counted, list[int]] = defaultdict(list)
    for change in changes:
        row = change.after or change.before or {}
        if change.table == RECORDS and row["kind"] == "limited":
            limited[row["id"]] = [] if change.after is None else list(row["data"]["limits"])
        if change.table != JOBS:
            continue
        if change.after is not None and change.after["locked_until"] is not None:
            held[row["id"]] = change.after
        else:
            held.pop(row["id"], None)
        if change.before is None or change.after is None or change.after["version"] == change.before["version"]:
            continue
        for limit in limited.get(row["topic"], ()):
            counted = _counted(limit, change.after)
            if limit["kind"] == "concurrency":
                now = [one for one in held.values() if _counts(limited, counted, one)]
                if len(now) > limit["max"]:
                    yield row["id"], f"was claimed as number {len(now)} of {limit['max']} for {counted}"
            elif limit["kind"] == "rate":
                starts[counted].append(change.after["claimed_at"])
                yield from _too_many(row["id"], limit, starts[counted], counted)


def _too_many(job_id: str, limit: dict[str, Any], times: list[int], counted: _Counted) -> Found:
    length = round(limit["per"] * 1e6)
    windows = [(length, limit["max"])]
    if limit.get("burst") is not None:
        windows.append((round(length * limit["burst"] / limit["max"]), limit["burst"]))
    for width, most in windows:
        if len(times) > most and times[-1] - times[-1 - most] < width:
            yield job_id, f"is start number {most + 1} within {times[-1] - times[-1 - most]} µs, of {counted}"


def _counted(limit: dict[str, Any], row: dict[str, Any]) -> _Counted:
    by = limit.get("by")
    value = "" if by is None else json.loads(row["share"] or "{}").get(by, "")
    return limit["kind"], limit.get("name") or row["topic"], by, value


def _counts(limited: dict[str, list[dict[str, Any]]], counted: _Counted, row: dict[str, Any]) -> bool:
    return any(_counted(limit, row) == counted for limit in limited.get(row["topic"], ()) if limit["kind"] != "fair")
