"""Flows: jobs that wait for the ends of other jobs.

An edge says that a job (`child`) waits for another one (`parent`). A job that waits is blocked until all its edges have
ended. A job that has started children itself (`ctx.gather`) waits for them as for a signal; then the edge has a number
of the call (`call`).

A job of a flow stands in a line of its own (`own_line`) if other jobs wait for it, or if it is blocked. So every move
that ends or requeues it notes that line. `plan` then decides by the state of the jobs, not by what has happened: it may
be called again, and at any later time.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core import codec
from rowlock.core.conditions import holds
from rowlock.core.ids import first_id
from rowlock.core.job import LIVE, MAX_TEXT, NewJob, Status
from rowlock.core.moves import MAX_DETAIL, Cancel, Order, Patch, Refusal, Requeue, Row, Signal, SignalSent
from rowlock.core.moves import Unblock as UnblockOrder
from rowlock.core.rules import parse_condition
from rowlock.errors import InvalidInput

MAX_JOBS = 10_000  # of a flow
MAX_EDGES = 100_000
BY = "rowlock"
RESULT = "$result"  # {"$result": "pay.amount"} in a payload: the result of a parent is filled in there
OF = "$of"  # beside it, in payloads of Python: the id of that parent
DELETED = "deleted"  # the end of a job that is gone
NOT_TAKEN = "not taken"  # how the reason of a cancel begins: no condition that leads to the job was true

IfFailed = Literal["cancel", "run", "hold"]
IF_FAILED: tuple[str, ...] = get_args(IfFailed)
# pass: it lets the child run. stop: it has cancelled the child. hold: a person must decide. untaken: its condition is
# false, and so are those of the others. false: its condition is false.
Verdict = Literal["pass", "stop", "hold", "untaken", "false"]

_CHILDREN = "@children:"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_BAD_NAME = re.compile(r"[^A-Za-z0-9_]+")


def derived_id(parent: str, *parts: object, at: datetime | None = None) -> str:
    """Return an id that is always the same for the same parts. It has the time `at`; None: that of the parent's id."""
    digest = hashlib.sha256(codec.encode([parent, *map(str, parts)], "id").encode()).hexdigest()
    variant = f"{0x8 | int(digest[3], 16) & 0x3:x}"
    clock = (parent if at is None else first_id(at))[:13]
    return f"{clock}-7{digest[:3]}-{variant}{digest[4:7]}-{digest[7:19]}"


# ── What is enqueued ──


class Edge(Struct, frozen=True, gc=False):
    """`name`: of the parent, in conditions and payloads. `line`: that of the parent. `condition` replaces `if_failed`.
    `fills`: the child's payload, or a condition, needs the parent's result.

    `call`: the child is a job that has started the parent by its n-th ctx.gather, as number `place` of it, and `owner`
    is the line of the child. `ended`: how the parent has ended; None: it has not. `result`, `error`: of the parent, if
    they may be needed after the parent is gone; `result` is JSON text."""

    child: str
    parent: str
    flow_id: str
    name: str
    line: str
    if_failed: str = "cancel"
    condition: str | None = None
    fills: bool = False
    call: int | None = None
    place: int = 0
    owner: str | None = None
    ended: str | None = None
    verdict: str | None = None
    result: str | None = None
    error: str | None = None

    @property
    def is_open(self) -> bool:
        return self.ended is None

    @property
    def is_untaken(self) -> bool:
        """True if the parent was not taken, so that the child is not taken, either."""
        return self.verdict == "untaken" and self.condition is None


class NewFlow(Struct, frozen=True, kw_only=True):
    """A flow about to be written. `nodes`: the names of its jobs, in their order. `outside`: ids of jobs that are
    there already, and that it waits for."""

    id: str
    name: str
    by: str
    jobs: Sequence[NewJob]
    nodes: Sequence[str]
    edges: Sequence[Edge]
    outside: Sequence[str] = ()


class NewChildren(Struct, frozen=True, kw_only=True):
    """Jobs that a run starts by ctx.gather. It must hold its job: `version`, `worker`."""

    id: str
    version: int
    worker: str | None
    call: int
    flow_id: str
    name: str
    by: str
    jobs: Sequence[NewJob]


class FlowRow(Struct, frozen=True, kw_only=True):
    """A flow as it is stored, and how many of its jobs are there, by status. `untaken`: cancelled jobs to which no true
    condition has led. `held`: jobs that wait for a person. `moving`: if there are such jobs, how many blocked ones
    go on without a person: they don't wait for a blocked job. Jobs that were deleted or pruned are missing."""

    id: str
    name: str
    by: str | None
    jobs: int
    created: datetime
    counts: Mapping[str, int]
    untaken: int = 0
    held: int = 0
    moving: int = 0


class Ended(Struct, frozen=True):
    """The state of a parent. `status` None: it is gone. `result`: JSON text. `untaken`: no true condition has led to
    it."""

    status: str | None
    result: str | None = None
    error: str | None = None
    untaken: bool = False

    @property
    def has_ended(self) -> bool:
        return self.status not in LIVE

    @property
    def end(self) -> str | None:
        """Return how it has ended; None: it has not."""
        return (self.status or DELETED) if self.has_ended else None

    def is_known(self, ended: str | None) -> bool:
        """True if an edge with this `ended` is up to date. If the parent is gone, any end on the edge is right: the
        parent ended before it was deleted or pruned."""
        return ended == self.end or (self.status is None and ended is not None)


class NodeResult:
    """Stands for the result of a parent in the payload of a draft. `node.result.amount` and `node.result["amount"]`
    stand for a part of it. `of`: the id of the parent."""

    __not_json__ = "is the result of a job of a flow, which is not there yet: add this job to that flow, by flow.add(…)"

    def __init__(self, of: str, *path: str | int) -> None:
        self.__of = of
        self.__path = path

    def __getattr__(self, name: str) -> NodeResult:
        if name.startswith("__"):
            raise AttributeError(name)
        return NodeResult(self.__of, *self.__path, name)

    def __getitem__(self, name: str | int) -> NodeResult:
        return NodeResult(self.__of, *self.__path, name)

    def __iter__(self) -> Iterator[Any]:
        raise self.__too_early()

    def __bool__(self) -> bool:
        raise self.__too_early()

    def __eq__(self, other: object) -> bool:
        raise self.__too_early()

    __hash__ = None  # type: ignore[assignment]  # it can't be compared

    def __str__(self) -> str:  # also in an f-string, which would be stored as the text of the payload
        raise self.__too_early()

    def __too_early(self) -> TypeError:
        return TypeError(f"{self!r} is not there yet: give it to a job as an argument, and let the job use it")

    def __repr__(self) -> str:
        return f"<the result of {'.'.join(map(str, self.__path))}>"


def blank(result: NodeResult) -> dict[str, Any]:
    """Return the blank that marks in a payload the place of the result."""
    # Any other names could be fields of a result.
    return {RESULT: list(result._NodeResult__path), OF: result._NodeResult__of}


def blanked(value: Any) -> Any:
    """Return the payload with a blank for each result."""
    if isinstance(value, NodeResult):
        return blank(value)
    if isinstance(value, dict):
        return {name: blanked(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [blanked(one) for one in value]
    return value


def has_results(value: Any) -> bool:
    """True if a result that is not there yet stands in the value."""
    if isinstance(value, dict):
        return any(map(has_results, value.values()))
    return any(map(has_results, value)) if isinstance(value, list | tuple) else isinstance(value, NodeResult)


def check_flow_name(name: object) -> str:
    text = codec.check_text(name, "name", max_chars=MAX_TEXT)
    if not text.strip():
        raise InvalidInput("name", "empty", "a flow needs a name")
    return text


def check_node_name(name: object, field: str = "name") -> str:
    if not isinstance(name, str) or _NAME.match(name) is None:
        raise InvalidInput(
            field, "bad_characters", f"{name!r:.80} must be letters, digits and _, and not begin with a digit"
        )
    return name


def node_name(topic: str, taken: Container[str], numbers: dict[str, int]) -> str:
    """Return a name for a node that got none: from its topic, with a number if that is taken. `numbers`: the last ones,
    so that many jobs of one topic need no search."""
    plain = _BAD_NAME.sub("_", topic)[:90].strip("_") or "job"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    name = plain
    while name in taken:
        numbers[plain] = numbers.get(plain, 1) + 1
        name = f"{plain}_{numbers[plain]}"
    return name


def check_if_failed(value: object, field: str = "if_failed") -> str:
    if value not in IF_FAILED:
        raise InvalidInput(field, "bad_value", f"must be one of {', '.join(IF_FAILED)}, not {value!r:.40}")
    return str(value)


def find_cycle(parents: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names of nodes that wait for each other in a circle; an empty list: there is none."""
    left = {name: {one for one in names if one in parents} for name, names in parents.items()}
    children: dict[str, list[str]] = defaultdict(list)
    for name, names in left.items():
        for one in names:
            children[one].append(name)
    free = [name for name, names in left.items() if not names]
    while free:
        name = free.pop()
        del left[name]
        for child in children[name]:
            left[child].discard(name)
            if not left[child]:
                free.append(child)
    if not left:
        return []
    at = min(left)
    path: list[str] = []
    while at not in path:
        path.append(at)
        at = min(left[at])
    return [*path[path.index(at) :], at]


def outside_of(payload: Any) -> dict[str, set[str]]:
    """Return the blanks of a payload: by its top-level field, the names of the parents whose results go there."""
    if not isinstance(payload, Mapping):
        return {}
    found = {name: {path[0] for _, path, _ in _blanks(value, f"payload.{name}")} for name, value in payload.items()}
    return {name: parents for name, parents in found.items() if parents}


def origins(payload: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the field, the parent's name and the parent's id of each blank that was made of a node's result."""
    for field, path, origin in _blanks(payload, "payload"):
        if origin is not None:
            yield field, path[0], str(origin)


def check_blanks(payload: Mapping[str, Any], edges: Iterable[Edge]) -> Collection[str]:
    """Return the top-level fields of a new payload that are filled in later. `edges`: all that lead to the job. Raise
    InvalidInput if a result can't be filled in."""
    parents = {edge.name: edge for edge in edges if edge.call is None}
    fields = outside_of(payload)
    for field, path, origin in _blanks(payload, "payload"):
        edge = parents.get(path[0])
        if edge is None or origin not in (None, edge.parent):
            known = ", ".join(sorted(parents)[:20]) or "none"
            problem = f"the job does not wait for {path[0]:.80}; it waits for: {known}"
            raise InvalidInput(field, "unknown_parent", problem)
        if not edge.fills:
            problem = f"the result of {path[0]} can't be filled in: the flow does not use it here, or has filled it in"
            raise InvalidInput(field, "unknown_parent", f"{problem} already. Give the value itself")
    return fields


def _blanks(value: Any, field: str) -> Iterator[tuple[str, list[Any], Any]]:
    if isinstance(value, Mapping):
        if RESULT in value:
            yield field, blank_path(value, field), value.get(OF)
            return
        for name, one in value.items():
            yield from _blanks(one, f"{field}.{name}")
    elif isinstance(value, list | tuple):
        for n, one in enumerate(value):
            yield from _blanks(one, f"{field}[{n}]")


def blank_path(blank: Mapping[str, Any], field: str) -> list[Any]:
    """Return the parent's name, and the way to the value in its result."""
    path = blank[RESULT]
    if isinstance(path, str):
        path = path.split(".")
    good = isinstance(path, list | tuple) and path and all(isinstance(one, str | int) for one in path)
    if not good or not isinstance(path[0], str) or blank.keys() - {RESULT, OF}:
        raise InvalidInput(field, "bad_result", 'must be {"$result": "parent"} or {"$result": "parent.field"}')
    return list(path)


def filled(payload: str, results: Mapping[str, str | None]) -> str:
    """Return the payload with the results of parents in their places, as JSON texts. A parent that is missing there has
    not completed: it gives null, and so does each part of its result. Raise InvalidInput if a result has no such part,
    or the payload becomes too large."""
    return codec.encode_payload(_fill(codec.decode(payload), results, "payload"))


def _fill(value: Any, results: Mapping[str, str | None], field: str) -> Any:
    if isinstance(value, dict):
        if RESULT not in value:
            return {name: _fill(one, results, f"{field}.{name}") for name, one in value.items()}
        path = blank_path(value, field)
        if path[0] not in results:
            return None
        text = results[path[0]]
        return _at(None if text is None else codec.decode(text), path, field)
    if isinstance(value, list):
        return [_fill(one, results, f"{field}[{n}]") for n, one in enumerate(value)]
    return value


def _at(value: Any, path: Sequence[Any], field: str) -> Any:
    for n, step in enumerate(path[1:], 2):
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            where = ".".join(map(str, path[:n]))
            raise InvalidInput(field, "no_such_result", f"there is no {where} in the result of {path[0]}") from None
    return value


# ── Orders ──


class Start(UnblockOrder, frozen=True, kw_only=True):
    """Makes jobs ready whose parents have all ended. `payloads`: with their results, by id. `leaving`: no job waits for
    these: they stand in no line any more, so that they are completed like any other job."""

    verb = "unblock"
    payloads: Mapping[str, str] = {}
    leaving: frozenset[str] = frozenset()

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        patch = super().patch(row, now, holder)
        if row.id in self.payloads:
            patch.columns["payload"] = self.payloads[row.id]
        if row.id in self.leaving:
            patch.columns["line"] = None
        return patch


class Stop(Order, frozen=True, kw_only=True):
    """Cancels a job that can't start any more: a parent has failed, or no condition is true."""

    verb = "stop"

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        columns = {"status": Status.CANCELLED, "ready": False, "finished_at": now, "updated": now}
        columns |= {"cancel_requested_at": now, "cancel_reason": self.reason}
        entry = self._entry(row, now, "cancelled", Status.CANCELLED)
        return Patch(status=Status.CANCELLED, columns=columns, entry=entry, counts={"cancelled": 1})


class StopChildren(Cancel, frozen=True, kw_only=True):
    """Cancels children, because the job that has started them was cancelled."""

    verb = "replace"


class Block(Order, frozen=True, kw_only=True):
    """Blocks a job again, because the parent that has stopped it is live again."""

    verb = "block"

    @property
    def takes_key(self) -> bool:
        return True

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        if holder is not None:
            reason = f"its key was taken by job {holder} when {self.reason}: requeue it when that job has ended"
            entry = self._entry(row, now, "block_refused", Status.CANCELLED, reason=reason)
            return Patch(status=Status.CANCELLED, columns={"cancel_reason": reason, "updated": now}, entry=entry)
        columns: dict[str, Any] = {"status": Status.BLOCKED, "ready": False, "finished_at": None, "updated": now}
        columns |= {"cancel_requested_at": None, "cancel_reason": None}
        entry = self._entry(row, now, "blocked", Status.BLOCKED)
        return Patch(status=Status.BLOCKED, columns=columns, entry=entry, counts={"cancelled": -1}, is_noted=True)


class RequeueFlow(Requeue, frozen=True, kw_only=True):
    """All of the jobs run again, or none: a job must not run before its parent, which was refused. `followers`: jobs
    that are blocked again when their parents are live. This order doesn't change them, but no live job may have their
    keys."""

    followers: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        return True

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        return Refusal(row.status, holder) if row.id in self.followers else super().patch(row, now, holder)


class ReleaseHold(Order, frozen=True, kw_only=True):
    """A person lets a job run that is held. `held`: the jobs that are; the store fills them in."""

    verb = "release_hold"
    held: frozenset[str] = frozenset()

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        if row.id not in self.held:
            return Refusal(row.status, why="not_held")
        entry = self._entry(row, now, "hold_released", Status.BLOCKED)
        return Patch(status=Status.BLOCKED, columns={"updated": now}, entry=entry, is_noted=True, forgives=True)


class ChildrenEnded(Signal, frozen=True, kw_only=True):
    """Tells a job that its children have ended."""

    @property
    def is_audited(self) -> bool:
        return False


def children_signal(call: int) -> str:
    """Return the name of the signal by which a job hears that the children of its n-th call have ended. No signal of
    the application can have it."""
    return f"{_CHILDREN}{call}"


def is_for_children(signal: str | None) -> bool:
    """True if it is the signal by which a job hears that its children have ended."""
    return signal is not None and signal.startswith(_CHILDREN)


def followers(edges: Iterable[Edge], requeued: Collection[str]) -> set[str]:
    """Return the jobs that are blocked again if these are requeued. `edges`: all edges of the flow."""
    stops: dict[str, set[str]] = defaultdict(set)  # by child: the parents that keep it from running
    behind: dict[str, list[str]] = defaultdict(list)  # by parent: the jobs that it has stopped
    for edge in edges:
        if edge.call is None and edge.verdict in ("stop", "untaken"):
            behind[edge.parent].append(edge.child)
            if edge.verdict == "stop" or edge.is_untaken:
                stops[edge.child].add(edge.parent)
    found: set[str] = set()
    todo = list(requeued)
    while todo:
        parent = todo.pop()
        for child in behind[parent]:
            stops[child].discard(parent)
            if not stops[child] and child not in found and child not in requeued:
                found.add(child)
                todo.append(child)
    return found


# ── Deciding ──


Group = tuple[str, int | None]  # a job that waits, and the number of its ctx.gather; None: it is blocked


class Plan(Struct):
    """The decision about jobs that wait. `edges`: those that have changed. `orders`: what is done to which jobs, in
    this order. `lines`: to be looked at again."""

    edges: list[Edge]
    orders: list[tuple[Order, list[Row]]]
    lines: list[str] = []


def plan(
    parents: Mapping[str, Ended],
    rows: Mapping[str, Row],
    edges: Sequence[Edge],
    started: Mapping[str, tuple[Row, Sequence[Row]]],
    watched: frozenset[str],
    now: datetime,
    incomplete: Collection[Group] = frozenset(),
) -> Plan:
    """Decide what becomes of jobs that wait.

    `parents`: those whose lines are noted. `rows`: jobs that wait for them, or are noted themselves, locked;
    those that may start have their payloads, if an edge fills them. `edges`: all edges that lead to these. `started`:
    noted jobs with those that they have started by ctx.gather. `watched`: those of `rows` that other jobs wait for.
    `incomplete`: groups of edges of which some are open and not given here."""
    changed: dict[tuple[str, str], Edge] = {}
    by_child: dict[str, list[Edge]] = defaultdict(list)
    reopened: dict[str, list[Edge]] = defaultdict(list)
    stopped = {edge.child for edge in edges if edge.verdict in ("stop", "untaken")}
    calls = {(edge.child, edge.call) for edge in edges if edge.call is not None}
    told = calls - set(incomplete) - {(edge.child, edge.call) for edge in edges if edge.is_open}
    for edge in edges:
        new = edge
        parent = parents.get(edge.parent)
        if (edge.child, edge.call) in told and not edge.is_open:
            pass  # the job has heard how it ended, and may have acted on it: only a requeue of that job forgets it
        elif parent is not None and not parent.is_known(edge.ended):
            new = _closed(edge, parent) if parent.has_ended else _reopened(edge)
            row = rows.get(edge.child)
            if row is not None and row.status is not Status.BLOCKED and edge.child not in stopped:
                new = replace(new, verdict=None)  # a job that a person has cancelled stays so
            changed[edge.child, edge.parent] = new
            if not edge.is_open:  # the parent was requeued, and may have ended again since
                reopened[edge.child].append(edge)
        by_child[edge.child].append(new)
    orders: list[tuple[Order, list[Row]]] = []
    lines: list[str] = []
    for owner, children in started.values():
        reached = _reach_children(owner, children)
        orders += reached
        if owner.status is Status.BLOCKED:  # it is requeued, and must not find the old ends when it comes to the call
            stands = {row.id: row.status for row in children}
            bad = [e for e in by_child[owner.id] if e.parent in stands and e.ended not in (None, Status.COMPLETED)]
            changed |= {(edge.child, edge.parent): _reopened(edge) for edge in bad}
            lines += [edge.line for edge in bad]
    starts: list[Row] = []
    payloads: dict[str, str] = {}
    stops: dict[str, list[Row]] = defaultdict(list)
    blocks: list[Row] = []
    for child, row in sorted(rows.items()):
        own = [edge for edge in by_child.get(child, ()) if edge.call is None]
        decided = _Child(row, own, reopened.get(child, ()), (child, None) in incomplete, now)
        if decided.edges is not own:
            changed |= {(new.child, new.parent): new for old, new in zip(own, decided.edges, strict=True) if new != old}
        match decided.what:
            case "start":
                starts.append(row)
                if decided.payload is not None:
                    payloads[row.id] = decided.payload
            case "stop":
                stops[decided.reason].append(row)
            case "block":
                blocks.append(row)
            case _:
                pass
    if starts:
        callers = {child for child, _ in calls}
        leaving = frozenset(row.id for row in starts if row.id not in watched and row.id not in callers)
        orders.append((Start(by=BY, payloads=payloads, leaving=leaving), starts))
    orders += [(Stop(by=BY, reason=reason), stopped) for reason, stopped in sorted(stops.items())]
    if blocks:
        orders.append((Block(by=BY, reason="a job that it waits for is live again"), blocks))
    for call, waiting in _heard(calls, rows, by_child, changed, incomplete).items():
        orders.append((ChildrenEnded(by=BY, sent=SignalSent(children_signal(call), "null")), waiting))
    # What is known of results is kept only while the child may need it.
    # A payload is filled in once: what a parent has returned is data, even if it looks like a blank.
    for old in [edge for row in starts for edge in by_child.get(row.id, ()) if edge.call is None]:
        edge = changed.get((old.child, old.parent), old)
        if edge.fills or edge.result is not None or edge.error is not None:
            changed[edge.child, edge.parent] = replace(edge, fills=False, result=None, error=None)
    return Plan(list(changed.values()), orders, lines)


def _reopened(edge: Edge) -> Edge:
    return replace(edge, ended=None, verdict=None, result=None, error=None)


def _closed(edge: Edge, parent: Ended) -> Edge:
    """Return the edge as it is when the parent has ended."""
    ended = parent.status or DELETED
    verdict: str | None = None
    if edge.call is None and edge.condition is None:
        good = ended == Status.COMPLETED or edge.if_failed == "run"
        bad = "untaken" if parent.untaken else "stop"
        verdict = "pass" if good else "hold" if edge.if_failed == "hold" else bad
    needs = edge.fills or edge.condition is not None or edge.call is not None
    return replace(
        edge,
        ended=ended,
        verdict=verdict,
        result=parent.result if needs else None,
        error=parent.error if needs and ended != Status.COMPLETED else None,
    )


class _Child:
    """The decision about one job. `what`: start, stop, block, or "" for nothing."""

    what: Literal["start", "stop", "block", ""] = ""
    reason = ""
    payload: str | None = None

    def __init__(
        self, row: Row, edges: Sequence[Edge], reopened: Sequence[Edge], incomplete: bool, now: datetime
    ) -> None:
        self.edges = edges
        self._waits = incomplete
        self._row = row
        self._now = now
        if row.status is Status.CANCELLED:
            self._return(reopened)
        elif row.status is Status.BLOCKED:
            self._decide()

    def _return(self, reopened: Sequence[Edge]) -> None:
        """Block a job again that its parents have stopped, if none of them stops it any more."""
        if not any(edge.verdict in ("stop", "untaken") for edge in reopened):
            return
        if any(edge.verdict == "stop" or edge.is_untaken for edge in self.edges):
            return
        self.edges = [
            replace(one, verdict=None) if one.condition is not None and one.verdict in ("untaken", "false") else one
            for one in self.edges
        ]
        self.what = "block"

    def _decide(self) -> None:
        if not self._waits and not [edge for edge in self.edges if edge.verdict != "pass" or edge.is_open]:
            self._start()  # the most common case comes first
            return
        if stopped := [edge for edge in self.edges if edge.verdict == "stop"]:
            self.what, self.reason = "stop", said_of(stopped[0])
            return
        if untaken := [edge for edge in self.edges if edge.is_untaken]:
            self.what, self.reason = "stop", f"{NOT_TAKEN}, as {untaken[0].name} ({untaken[0].parent})"
            return
        if self._waits or any(edge.is_open for edge in self.edges):
            return
        if any(edge.condition is not None for edge in self.edges):
            self.edges = [self._judged(edge) for edge in self.edges]
        conditional = [edge for edge in self.edges if edge.condition is not None]
        if conditional and all(edge.verdict == "false" for edge in conditional):
            self.edges = [
                replace(edge, verdict="untaken") if edge.condition is not None else edge for edge in self.edges
            ]
            self.what, self.reason = "stop", f"{NOT_TAKEN}: {conditional[0].condition} is false"[:MAX_DETAIL]
            return
        if any(edge.verdict == "hold" for edge in self.edges):
            return
        self._start()

    def _judged(self, edge: Edge) -> Edge:
        if edge.condition is None or edge.verdict is not None:
            return edge
        facts = {one.name: one for one in self.edges}
        rule = parse_condition(edge.condition, facts)
        condition = rule.bind({name: _facts(one) for name, one in facts.items()}, self._now)
        return replace(edge, verdict="pass" if holds(condition, {}) else "false")

    def _start(self) -> None:
        self.what = "start"
        if any(edge.fills for edge in self.edges) and self._row.payload is not None:
            try:
                results = {edge.name: edge.result for edge in self.edges if edge.ended == Status.COMPLETED}
                payload = filled(self._row.payload, results)
            except InvalidInput as error:
                self.what, self.reason = "stop", f"its payload can't be filled in: {error}"[:MAX_DETAIL]
                return
            self.payload = None if payload == self._row.payload else payload


def _facts(edge: Edge) -> dict[str, Any]:
    """Return the facts about a parent that a condition may use."""
    result = None if edge.result is None else codec.decode(edge.result)
    return {"status": edge.ended, "result": result, "error": edge.error}


def said_of(edge: Edge) -> str:
    """Return how the parent has ended, in words."""
    verb = "was" if edge.ended in (Status.CANCELLED, DELETED, NOT_TAKEN) else "has"
    return f"{edge.name} ({edge.parent}) {verb} {edge.ended}"


def _reach_children(owner: Row, children: Sequence[Row]) -> list[tuple[Order, list[Row]]]:
    """Return the orders for children. A cancel of a job reaches the live jobs that it has started. A requeue reaches
    those that have not completed: the call that waits for them is made again."""
    if owner.status in (Status.CANCELLED, Status.CANCEL_REQUESTED):
        live = [row for row in children if row.status in LIVE and row.status is not Status.CANCEL_REQUESTED]
        return [(StopChildren(by=BY, reason="the job that has started it was cancelled"), live)] if live else []
    if owner.status is Status.BLOCKED:
        dead = [row for row in children if row.status not in LIVE and row.status is not Status.COMPLETED]
        return [(Requeue(by=BY, reason="the job that has started it was requeued"), dead)] if dead else []
    return []


def _heard(
    calls: Collection[tuple[str, int]],
    rows: Mapping[str, Row],
    by_child: Mapping[str, Sequence[Edge]],
    changed: Mapping[tuple[str, str], Edge],
    incomplete: Collection[Group],
) -> dict[int, list[Row]]:
    """Return the jobs whose children have all ended just now, by the number of the call."""
    heard: dict[int, list[Row]] = defaultdict(list)
    for child, call in sorted(calls):
        own = [edge for edge in by_child[child] if edge.call == call]
        is_new = any(changed.get((child, edge.parent)) is edge and not edge.is_open for edge in own)
        waits = (child, call) in incomplete or any(edge.is_open for edge in own)
        if is_new and not waits and child in rows and rows[child].status in LIVE:
            heard[call].append(rows[child])
    return heard


def flow_status(flow: FlowRow) -> str:
    """Return running, held, completed, failed or cancelled. held: nothing runs, and a person must decide."""
    counts = {Status(name): count for name, count in flow.counts.items()}
    live = sum(counts.get(status, 0) for status in LIVE)
    if live:
        busy = live - counts.get(Status.BLOCKED, 0)
        return "held" if flow.held and not busy and not flow.moving else "running"
    if counts.get(Status.FAILED, 0) or counts.get(Status.EXPIRED, 0):
        return "failed"
    return "cancelled" if counts.get(Status.CANCELLED, 0) > flow.untaken else "completed"
