"""S15: jobs with one key that form a line, keys that count once, and debounce."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.proof.history import RowChange
from tests.proof.lives import BEGUN, LIVE, REPLACED, Life, Row, Step, World
from tests.proof.witness import JOBS

Found = Iterator[tuple[str | None, str]]


def s15_lines_keep_their_order_and_once_is_once(world: World) -> Found:
    yield from _heads_and_order(world)
    yield from _places(world)
    yield from _replaced(world)
    yield from _once(world)
    yield from _debounced(world)


# ── Heads, and their order ──


class _Line:
    """The rows of the live jobs of a line. `came`: the change by which a job got its place."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.came: dict[str, RowChange] = {}


def _heads_and_order(world: World) -> Found:
    """The unique index of heads makes a transaction that makes a job the head wait for the commit that ends the old
    head. So the order of the record is true. The order of two inserts is known if one of them could see the other."""
    lines: defaultdict[str, _Line] = defaultdict(_Line)
    for change in world.history.changes:
        row = change.after or change.before
        if change.table != JOBS or row is None or row["line_seq"] is None:
            continue
        line, before, after = lines[row["line"]], change.before, change.after
        if after is None or after["status"] not in LIVE:
            line.rows.pop(row["id"], None)
            continue
        if before is None or before["line_seq"] != after["line_seq"]:
            line.came[row["id"]] = change
        if before is None and after["status"] != "blocked":
            yield row["id"], f"came into its line as {after['status']} (#{change.seq})"
        line.rows[row["id"]] = after
        was = None if before is None else before["status"]
        if _leads(after) and (was is None or not _leads(before or {}) or was == "pending" != after["status"]):
            yield from _wrong_head(line, after, change)


def _leads(row: Row) -> bool:
    return row.get("status") in LIVE and row.get("status") != "blocked"


def _wrong_head(line: _Line, head: Row, change: RowChange) -> Found:
    mine = line.came.get(head["id"])
    for job_id, row in line.rows.items():
        if job_id == head["id"]:
            continue
        if _leads(row):
            yield head["id"], f"leads its line beside {job_id} (#{change.seq})"
        theirs = line.came.get(job_id)
        if row["line_seq"] < head["line_seq"] and mine and theirs and _could_see(mine, theirs):
            yield head["id"], f"became {head['status']} before {job_id}, which stands in front of it (#{change.seq})"


def _could_see(later: RowChange, earlier: RowChange) -> bool:
    """Return True if the transaction of the earlier change had ended when the later change was made. On SQLite it
    always has."""
    if later.snapshot is None or later.tx == earlier.tx:
        return later.seq > earlier.seq
    _, below, running = later.snapshot.split(":")
    return earlier.tx < int(below) and str(earlier.tx) not in running.split(",")


# ── Places ──


def _places(world: World) -> Found:
    """A requeued job goes to the end of its line. No other move changes a job's place: see COLUMNS of S3."""
    last: dict[str, int] = {}  # by line, on SQLite only: there all inserts have one order
    for change in world.history.changes:
        before, after = change.before, change.after
        if change.table != JOBS or after is None or after["line_seq"] is None:
            continue
        moved = before is None or before["line_seq"] != after["line_seq"]
        if before is not None and before["status"] not in LIVE and after["status"] in LIVE:
            if after["status"] != "blocked":
                yield after["id"], f"was requeued as {after['status']} (#{change.seq})"
            if after["line_seq"] <= before["line_seq"]:
                yield after["id"], f"was requeued and kept its place {after['line_seq']} (#{change.seq})"
        if moved and world.history.store == "sqlite":
            if after["line_seq"] <= last.get(after["line"], 0):
                yield after["id"], f"got the place {after['line_seq']}, which is not the end of its line"
            last[after["line"]] = max(after["line_seq"], last.get(after["line"], 0))


# ── Replace ──


def _replaced(world: World) -> Found:
    for life in world.lives:
        for step in life.steps:
            if step.move != "replace" or step.before is None or step.said("reason") == BEGUN:
                continue
            by = str(step.said("reason")).removeprefix(REPLACED)
            newer = world.by_id.get(by)
            if newer is None:
                if by != "a newer job":
                    yield life.id, f"{step} by {by}, which is no job"
                newer = [one for one in world.lives if _stands_behind(one, step)]
            if not any(_stands_behind(one, step) for one in newer):
                yield life.id, f"{step} by {by}, which does not stand behind it and replace others"


def _stands_behind(life: Life, step: Step) -> bool:
    """Return True if the job stood behind the replaced one, with `if_live` "replace", at any time before this step."""
    row = step.before or {}
    return (
        any(
            other.after.get("line") == row["line"] and other.after["line_seq"] > row["line_seq"]
            for other in life.steps
            if other.after is not None and other.seq < step.seq and other.after.get("if_live") == "replace"
        )
        and life.id != row["id"]
    )


# ── Once ──


def _once(world: World) -> Found:
    """A key with `detail["once"]` counts once: its first job keeps it until an operator deletes that job."""
    kin: defaultdict[tuple[Any, ...], set[str]] = defaultdict(set)
    for operation in world.history.operations:
        detail = operation.detail or {}
        if operation.verb == "enqueue" and detail.get("once"):
            key = (detail["topic"], detail.get("scope"), detail.get("scope_id"), detail["key"])
            kin[key].update(operation.ids)
    for key, ids in kin.items():
        lives = sorted(
            (life for job_id in ids for life in world.by_id.get(job_id, ()) if _has_key(life, key)),
            key=lambda life: life.steps[0].seq,
        )
        for first, second in pairwise(lives):
            if first.last.move != "delete" or first.last.seq > second.steps[0].seq:
                yield second.id, f"has the key {key[-1]!r}, which counts once, after {first.id}"


# ── Debounce ──


def _debounced(world: World) -> Found:
    """A debounced payload goes to a job that no worker has claimed. A line has at most one such job. The job that
    answers an enqueue had its payload (`detail["debounce"]`) before a worker claimed it."""
    open_: defaultdict[str, set[str]] = defaultdict(set)
    for change in world.history.changes:
        row = change.after or change.before
        if change.table != JOBS or row is None or row.get("if_live") != "debounce":
            continue
        after = change.after
        waits = after is not None and after["status"] in ("pending", "blocked") and after["version"] == 0
        (open_[row["line"]].add if waits else open_[row["line"]].discard)(row["id"])
        if len(open_[row["line"]]) > 1:
            yield row["id"], f"waits with debounce beside {sorted(open_[row['line']] - {row['id']})} (#{change.seq})"
    for life in world.lives:
        for step in life.steps:
            if step.move == "debounce" and (step.old["version"] or step.old["if_live"] != "debounce"):
                yield life.id, f"{step} got a payload, but a worker had claimed it"
    for operation in world.history.operations:
        detail, answer = operation.detail or {}, operation.answer or {}
        if operation.outcome != "ok" or "debounce" not in detail:
            continue
        steps = [step for life in world.by_id.get(answer["id"], ()) for step in life.steps if step.after is not None]
        if not any(step.new["payload"] == detail["debounce"] and step.new["version"] == 0 for step in steps):
            yield answer["id"], f"never had the payload {detail['debounce']} of the enqueue for which it answered"


def _has_key(life: Life, key: tuple[Any, ...]) -> bool:
    """Return True if the job has the key. A later job with the same id may be without it."""
    row = life.steps[0].after or {}
    return tuple(row.get(name) for name in ("topic", "scope", "scope_id", "key")) == key
