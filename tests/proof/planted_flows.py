"""Plants: what must not happen in a flow."""

from typing import Any

from msgspec import structs

from tests.proof.history import RowChange
from tests.proof.lives import ENDED, LIVE, Life, Step
from tests.proof.planting import Barren, Garden, breaks
from tests.proof.witness import EDGES


def _edges(garden: Garden, child: str) -> list[RowChange]:
    made = [one for one in garden.history.changes if one.table == EDGES and one.op == "insert" and one.after]
    return [one for one in made if (one.after or {})["child"] == child]


def _alter(garden: Garden, edge: RowChange, **columns: Any) -> None:
    place = garden.history.changes.index(edge)
    garden.history.changes[place] = structs.replace(edge, after=(edge.after or {}) | columns)


def _end(garden: Garden, job_id: str, until: int) -> Step | None:
    """Return the last step of a job before this change if that step ended the job, else None."""
    steps = [step for life in garden.world.by_id.get(job_id, ()) for step in life.steps if step.seq < until]
    return steps[-1] if steps and steps[-1].after is not None and steps[-1].after["status"] in ENDED else None


def _unblocked(garden: Garden, **wanted: Any) -> tuple[Life, Step, RowChange, Step]:
    """Return a job that its parents' ends alone have unblocked, once, with that step, an edge with these values, and
    the end of the edge's parent."""
    for life in garden.world.lives:
        starts = [step for step in life.steps if step.move == "unblock"]
        if len(starts) != 1 or any(step.move in ("requeue", "release_hold") for step in life.steps):
            continue
        for edge in _edges(garden, life.id):
            row = edge.after or {}
            end = _end(garden, row["parent"], starts[0].first)
            known = {"ended": end.new["status"] if end else None}
            if end is not None and all((row | known)[name] == value for name, value in wanted.items()):
                return life, starts[0], edge, end
    raise Barren


@breaks("S16", "before")
def a_child_ran_before_its_parent(garden: Garden) -> None:
    *_, end = _unblocked(garden)
    garden.drop(end)


@breaks("S16", "nobody has let it")
def a_child_ran_although_its_parent_had_failed(garden: Garden) -> None:
    _, _, edge, _ = _unblocked(garden, if_failed="run", condition=None, ended="failed")
    _alter(garden, edge, if_failed="cancel")


@breaks("S16", "nobody has let it")
def a_held_child_ran_without_a_word(garden: Garden) -> None:
    for life in garden.world.lives:
        moves = [step.move for step in life.steps]
        if moves.count("release_hold") == 1 and "requeue" not in moves and "unblock" in moves:
            garden.drop(life.steps[moves.index("release_hold")])
            return
    raise Barren


@breaks("S16", "is false")
def a_child_ran_although_its_condition_was_false(garden: Garden) -> None:
    _, _, edge, _ = _unblocked(garden, condition="n0.status = 'completed'", ended="completed")
    _alter(garden, edge, condition="n0.status = 'failed'")


@breaks("S16", "second time")
def a_join_fired_twice(garden: Garden) -> None:
    life, step, *_ = _unblocked(garden)
    if life.gone:
        raise Barren
    garden.repeat(step)


@breaks("S16", "although it waits")
def a_child_did_not_wait_at_all(garden: Garden) -> None:
    life, *_ = _unblocked(garden)
    garden.alter(life.steps[0], after={"status": "pending"})


@breaks("S16", "for the result of")
def a_child_got_another_result(garden: Garden) -> None:
    def has_blank(_: Life, step: Step) -> bool:
        blank = (step.old["payload"] or {}).get("x")
        return isinstance(blank, dict) and isinstance(step.new["payload"]["x"], dict)

    _, step = garden.step("unblock", has_blank)
    garden.alter(step, after={"payload": {"x": {"n": 99}}})


def _stopped(garden: Garden, condition: str | None = None) -> tuple[Life, Step, list[RowChange]]:
    for life in garden.world.lives:
        for step in life.steps:
            edges = _edges(garden, life.id)
            asked = [(edge.after or {})["condition"] for edge in edges]
            if step.move == "stop" and (condition in asked if condition else not any(asked)):
                return life, step, edges
    raise Barren


@breaks("S16", "for no reason")
def a_child_was_cancelled_for_nothing(garden: Garden) -> None:
    _, _, edges = _stopped(garden)
    for edge in edges:
        _alter(garden, edge, if_failed="run")


@breaks("S16", "for no reason")
def a_branch_was_not_taken_although_its_condition_was_true(garden: Garden) -> None:
    for life in garden.world.lives:
        for step in life.steps:
            if step.move != "stop" or not str(step.said("reason")).startswith("not taken"):
                continue
            for edge in _edges(garden, life.id):
                if (edge.after or {})["condition"] == "n0.status = 'completed'":
                    _alter(garden, edge, condition="n0.status != 'completed'")
                    return
    raise Barren


@breaks("S16", "but not its parents")
def what_a_person_had_cancelled_came_back(garden: Garden) -> None:
    for life in garden.world.lives:
        for n, step in enumerate(life.steps):
            stops = [one for one in life.steps[:n] if one.move == "stop"]
            if step.move == "block" and stops:
                garden.entry(stops[-1], by="ann")
                return
    raise Barren


@breaks("S16", "none of its parents was live")
def a_child_came_back_for_nothing(garden: Garden) -> None:
    """The child was blocked again, although its parents have not been live since they stopped it."""
    for life in garden.world.lives:
        for n, step in enumerate(life.steps):
            parents = {(edge.after or {})["parent"] for edge in _edges(garden, life.id)}
            if step.move != "block" or any(one.move in ("requeue", "release_hold") for one in life.steps):
                continue
            since = max(one.seq for one in life.steps[:n] if one.move == "stop")
            lived = [
                one
                for parent in parents
                for other in garden.world.by_id.get(parent, ())
                for one in other.steps
                if since < one.seq < step.first
            ]
            garden.drop(*lived)
            return
    raise Barren


@breaks("S16", "nothing that it waits for")
def a_child_stayed_blocked_for_ever(garden: Garden) -> None:
    rows = garden.history.jobs
    for child in sorted(rows):
        edges = [edge.after or {} for edge in _edges(garden, child)]
        parents = [one for edge in edges for one in garden.world.by_id.get(edge["parent"], ())]
        over = all(one.last.after is None or one.last.after["status"] not in LIVE for one in parents)
        if edges and over and rows[child]["status"] != "blocked" and all(one["if_failed"] != "hold" for one in edges):
            rows[child] = rows[child] | {"status": "blocked"}
            return
    raise Barren


@breaks("S16", "is still cancelled")
def a_child_stayed_cancelled_although_its_parents_ran_again(garden: Garden) -> None:
    for life in garden.world.lives:
        moves = [step.move for step in life.steps]
        parents = [(edge.after or {})["parent"] for edge in _edges(garden, life.id)]
        ends = [one.last.after for parent in parents for one in garden.world.by_id.get(parent, ())]
        over = all(row is not None and row["status"] == "completed" for row in ends)
        if over and "block" in moves and moves[moves.index("block") - 1] == "stop":
            back = moves.index("block")
            garden.drop(*life.steps[back:])
            garden.history.jobs[life.id] = life.steps[back - 1].new
            return
    raise Barren
