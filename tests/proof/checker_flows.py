"""S16: jobs that wait for other jobs. Judged by the rows alone: what was enqueued, and when and how each parent
ended."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from tests.proof.lives import ENDED, LIVE, Life, Row, Step, World
from tests.proof.witness import EDGES, SIGNALS

Found = Iterator[tuple[str | None, str]]
NOT_FILLED = "its payload can't be filled in"
_STATUS = re.compile(r"(\w+)\.status (!?=) '(\w+)'\Z")
_NUMBER = re.compile(r"(\w+)\.result\.(\w+) (>|<=) (-?\d+)\Z")
_PERSON = ("requeue", "release_hold")  # moves by which an operator lets the job run
_LOOK = 5_000_000  # microseconds that a process needs at most to look at the parents that have ended


class _State(Struct, frozen=True):
    """A job's state at one moment. `status` "gone": the job was removed. `last`: how it had ended before its
    removal."""

    status: str
    result: Any = None
    last: str = "deleted"

    @property
    def end(self) -> str | None:
        if self.status in LIVE:
            return None
        return self.last if self.status == "gone" else self.status


class _Flows:
    """The edges as they were made, and the state of each job at any time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.edges: defaultdict[str, dict[str, Row]] = defaultdict(dict)  # by child and parent
        self.calls: defaultdict[str, list[Row]] = defaultdict(list)  # by owner: edges to children that it has started
        for change in world.history.changes:
            if change.table != EDGES or change.op != "insert" or change.after is None:
                continue
            if change.after["call"] is None:
                self.edges[change.after["child"]][change.after["parent"]] = change.after
            else:
                self.calls[change.after["child"]].append(change.after)
        self._seqs: dict[str, list[int]] = {}
        self._states: dict[str, list[_State]] = {}

    def at(self, job_id: str, seq: int) -> _State:
        """Return the job's state right before this change."""
        if job_id not in self._states:
            self._read(job_id)
        place = bisect_left(self._seqs[job_id], seq)
        return self._states[job_id][place - 1] if place else _State("gone")

    def _read(self, job_id: str) -> None:
        seqs: list[int] = []
        states: list[_State] = []
        for life in self.world.by_id.get(job_id, ()):
            for step in life.steps:
                seqs.append(step.seq)
                if step.after is not None:
                    states.append(_State(step.after["status"], step.after.get("result")))
                else:
                    before = step.old["status"]
                    states.append(_State("gone", step.old.get("result"), before if before in ENDED else "deleted"))
        self._seqs[job_id], self._states[job_id] = seqs, states

    def forgiven(self, life: Life, parent: str, seq: int) -> bool:
        """Return True if an operator has let the child run since the parent ended."""
        asked = [step.seq for step in life.steps if step.move in _PERSON and step.seq < seq]
        return bool(asked) and self.at(parent, max(asked)).end is not None and not self._lived(parent, max(asked), seq)

    def _lived(self, job_id: str, since: int, until: int) -> bool:
        self.at(job_id, until)
        return any(
            since < at < until and state.status in LIVE
            for at, state in zip(self._seqs[job_id], self._states[job_id], strict=True)
        )

    def crossed(self, life: Life, parent: str, step: Step) -> bool:
        """Return True if an operator let the child run after its parent had ended, and the parent was requeued at the
        same time. The child may then start: the process that starts it has looked at the parent without a lock."""
        asked = [one for one in life.steps if one.move in _PERSON and one.seq < step.first]
        revived = self._revived(parent, step)
        if not asked or revived is None or self.at(parent, asked[-1].seq).end is None:
            return False
        return asked[-1].tx != revived.tx and asked[-1].seq < revived.seq

    def seen(self, parents: Iterable[str], step: Step) -> dict[str, int]:
        """Return, for each parent, the place of the change before which the process that took this step has looked at
        it. On PostgreSQL, the process looks without a lock: it may not have seen that the parent was requeued."""
        seqs = dict.fromkeys(parents, step.first)
        for parent in seqs:
            revived = None if self.world.history.store == "sqlite" else self._revived(parent, step)
            if revived is not None and self.at(parent, step.first).end is None:
                seqs[parent] = revived.seq
        return seqs

    def _revived(self, parent: str, step: Step) -> Step | None:
        """Return the last requeue of the parent before this step, if the process that took the step may have looked at
        the parent earlier."""
        steps = [one for life in self.world.by_id.get(parent, ()) for one in life.steps if one.seq < step.first]
        revived = [one for one in steps if one.move == "requeue"]
        return revived[-1] if revived and step.at - revived[-1].at < _LOOK else None

    def is_true(self, edge: Row, seq: int) -> bool | None:
        """Return whether the condition of the edge holds, or None if the checker can't read the condition."""
        names = {other["name"]: other["parent"] for other in self.edges[edge["child"]].values()}
        if found := _STATUS.match(edge["condition"]):
            name, op, value = found.groups()
            return (self.at(names[name], seq).end == value) == (op == "=")
        if found := _NUMBER.match(edge["condition"]):
            name, field, op, number = found.groups()
            state = self.at(names[name], seq)
            value = state.result.get(field) if isinstance(state.result, dict) and state.end == "completed" else None
            return isinstance(value, int) and (value > int(number)) == (op == ">")
        return None


def s16_children_run_after_their_parents_and_joins_fire_once(world: World) -> Found:
    flows = _Flows(world)
    for child, edges in flows.edges.items():
        for life in world.by_id.get(child, ()):
            if (life.steps[0].after or {}).get("flow_id") not in {edge["flow_id"] for edge in edges.values()}:
                continue  # a job outside of the flow has the same id
            yield from _began(life, edges)
            yield from _ran(flows, life, edges)
            yield from _left(flows, life, edges)
    yield from _started(flows)


def _began(life: Life, edges: dict[str, Row]) -> Found:
    first = life.steps[0]
    if first.before is None and first.after is not None and first.after["status"] != "blocked":
        yield life.id, f"{first}, although it waits for {len(edges)} jobs"


def _ran(flows: _Flows, life: Life, edges: dict[str, Row]) -> Found:
    is_free = False  # the child was unblocked, and was not blocked again since
    end: Step | None = None
    for step in life.steps:
        if step.move == "unblock":
            if is_free:
                yield life.id, f"{step} for a second time"
            is_free = True
            for parent, edge in edges.items():
                yield from ((life.id, f"{step} {why}") for why in _too_early(flows, life, step, parent, edge))
            yield from _untaken(flows, life, step, edges)
            yield from _filled(flows, life, step, edges)
        elif step.move == "stop":
            yield from _stopped(flows, life, step, edges)
        elif step.move == "block":
            yield from _came_back(flows, life, step, edges, end)
        if step.after is not None and step.after["status"] == "blocked":
            is_free = False
        if step.after is not None and step.after["status"] in ENDED:
            end = step


def _too_early(flows: _Flows, life: Life, step: Step, parent: str, edge: Row) -> Iterator[str]:
    state = flows.at(parent, step.first)
    if state.end is None:
        if flows.crossed(life, parent, step):
            return
        yield f"before {edge['name']} ({parent}) has ended: it is {state.status}"
        return
    decides = edge["if_failed"] != "run" and edge["condition"] is None
    if state.end != "completed" and decides and not flows.forgiven(life, parent, step.first):
        yield f"although {edge['name']} ({parent}) is {state.end}, and nobody has let it"


def _untaken(flows: _Flows, life: Life, step: Step, edges: dict[str, Row]) -> Found:
    asked = [edge for edge in edges.values() if edge["condition"] is not None]
    if not asked or any(flows.forgiven(life, edge["parent"], step.first) for edge in asked):
        return
    if all(flows.is_true(edge, step.first) is False for edge in asked):
        yield life.id, f"{step} although {asked[0]['condition']} is false"


def _filled(flows: _Flows, life: Life, step: Step, edges: dict[str, Row]) -> Found:
    """The parent's result fills the blank in the child's payload."""
    names = {edge["name"]: edge["parent"] for edge in edges.values()}
    for field, value in (step.old["payload"] or {}).items():
        path = value.get("$result") if isinstance(value, dict) else None
        if not isinstance(path, str) or path not in names:
            continue
        state = flows.at(names[path], step.first)
        wanted = state.result if state.end == "completed" else None
        if state.status != "gone" and step.new["payload"].get(field) != wanted:
            yield life.id, f"{step} with {step.new['payload'].get(field)!r} for the result of {path}, not {wanted!r}"


def _stopped(flows: _Flows, life: Life, step: Step, edges: dict[str, Row]) -> Found:
    if str(step.said("reason")).startswith(NOT_FILLED):
        return
    seen = flows.seen(edges, step)
    ends = [flows.at(parent, seq).end for parent, seq in seen.items()]
    if not _has_bad_end(flows, life, edges, seen) and (None in ends or not _is_untaken(flows, edges, seen)):
        yield life.id, f"{step} for no reason: its parents are {sorted(map(str, ends))}"


def _has_bad_end(flows: _Flows, life: Life, edges: dict[str, Row], seen: dict[str, int]) -> bool:
    """Return True if one of the parents has ended in a way that cancels the child."""
    return any(
        flows.at(parent, seq).end not in (None, "completed")
        and edges[parent]["if_failed"] == "cancel"
        and edges[parent]["condition"] is None
        and not flows.forgiven(life, parent, seq)
        for parent, seq in seen.items()
    )


def _is_untaken(flows: _Flows, edges: dict[str, Row], seen: dict[str, int]) -> bool:
    """Return True if the child has conditions, and none of them holds."""
    asked = [(edge, seen[parent]) for parent, edge in edges.items() if edge["condition"] is not None]
    over = all(flows.at(edge["parent"], seq).end is not None for edge, seq in asked)
    return bool(asked) and over and not any(flows.is_true(edge, seq) for edge, seq in asked)


def _came_back(flows: _Flows, life: Life, step: Step, edges: dict[str, Row], end: Step | None) -> Found:
    if end is None or end.move != "stop":
        yield life.id, f"{step}, but not its parents had cancelled it: {end}"
    if not any(flows.forgiven(life, parent, step.first) for parent in edges) and all(
        not flows._lived(parent, end.seq if end else 0, step.first) for parent in edges
    ):
        yield life.id, f"{step}, and none of its parents was live since"


def _left(flows: _Flows, life: Life, edges: dict[str, Row]) -> Found:
    """At rest, each blocked job has a live parent, or a parent that holds it, and each job that its parents have
    cancelled still has a parent that is a reason for it. On SQLite this is true at any time."""
    history = flows.world.history
    row = history.jobs.get(life.id)
    if row is None or not (history.at_rest or history.store == "sqlite"):
        return
    end = history.changes[-1].seq + 1
    states = {parent: flows.at(parent, end) for parent in edges}
    ends = sorted(str(state.end) for state in states.values())
    if row["status"] == "blocked":
        if all(state.end for state in states.values()) and not _is_held(flows, life, edges, end):
            yield life.id, f"is blocked, and nothing that it waits for is live or holds it: {ends}"
    elif row["status"] == "cancelled" and life.last.move == "stop":
        if str(life.last.said("reason")).startswith(NOT_FILLED) or "gone" in {one.status for one in states.values()}:
            return
        seen = dict.fromkeys(edges, end)
        if not _has_bad_end(flows, life, edges, seen) and not _is_untaken(flows, edges, seen):
            yield life.id, f"is still cancelled, and its parents are {ends}"


def _is_held(flows: _Flows, life: Life, edges: dict[str, Row], seq: int) -> bool:
    return any(
        flows.at(parent, seq).end != "completed"
        and edge["if_failed"] == "hold"
        and edge["condition"] is None
        and not flows.forgiven(life, parent, seq)
        for parent, edge in edges.items()
    )


# ── Jobs that a run has started ──


def _started(flows: _Flows) -> Found:
    told: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for change in flows.world.history.changes:
        if change.table == SIGNALS and change.op == "insert" and change.after is not None:
            told[change.after["job_id"], change.after["name"]].append(change.seq)
    for owner, edges in flows.calls.items():
        places: dict[tuple[int, int], str] = {}
        for edge in edges:
            first = places.setdefault((edge["call"], edge["place"]), edge["parent"])
            if first != edge["parent"]:
                yield owner, f"has started {edge['parent']} beside {first} as number {edge['place']} of one call"
        for call in {edge["call"] for edge in edges}:
            parents = [edge["parent"] for edge in edges if edge["call"] == call]
            seqs = told[owner, f"@children:{call}"]
            for seq in seqs:
                live = [one for one in parents if flows.at(one, seq).end is None]
                if live:
                    yield owner, f"heard that its call {call} is over, and {live[0]} is {flows.at(live[0], seq).status}"
            rounds = 1 + sum(
                step.move == "requeue"
                for one in parents
                for life in flows.world.by_id.get(one, ())
                for step in life.steps
            )
            if len(seqs) > rounds:
                yield owner, f"heard {len(seqs)} times that its call {call} is over"
