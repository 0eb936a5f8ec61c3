"""core.flows: `plan`, which decides the same in whatever order parents end, and the helpers around it."""

import copy
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.core import codec
from rowlock.core.flows import (
    IF_FAILED,
    MAX_JOBS,
    Block,
    ChildrenEnded,
    Edge,
    Ended,
    FlowRow,
    NodeResult,
    Plan,
    Start,
    Stop,
    StopChildren,
    blank,
    check_node_name,
    children_signal,
    derived_id,
    filled,
    find_cycle,
    flow_status,
    node_name,
    outside_of,
    plan,
)
from rowlock.core.ids import check_id
from rowlock.core.job import LIVE, Status, own_line, owner_of
from rowlock.core.moves import MAX_DETAIL, Order, Requeue, Row, lines, move_all, patches
from rowlock.core.rules import parse_condition
from rowlock.errors import InvalidInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
US = 1_767_225_600_000_000
FLOW = "0193fb1e-0000-7000-8000-0000000000ff"
ENDS = ("completed", "failed", "cancelled", "expired")
CONDITIONS = ("{0}.status = 'completed'", "{0}.result.n > 5", "{0}.status != 'completed'", "{0}.error ~ 'boom'")


def job_id(n: int) -> str:
    return f"0193fb1e-0000-7000-8000-{n:012x}"


def row(n: int, status: Status = Status.BLOCKED, payload: str = "{}", **fields: Any) -> Row:
    blank_row: dict[str, Any] = dict.fromkeys(Row._fields)
    usual: dict[str, Any] = {
        "id": job_id(n),
        "topic": "mail",
        "status": status,
        "template_version": 0,
        "version": 0,
        "priority": 0,
        "run_at": US,
        "retries": 0,
        "max_retries": 3,
        "crashes": 0,
        "created": US,
        "line": own_line(job_id(n)),
        "signals": 0,
        "events": 0,
        "payload": payload,
        "finished_at": None if status in LIVE else US,
    }
    return Row(**blank_row | usual | fields)


def edge(child: int, parent: int, **fields: Any) -> Edge:
    line = own_line(job_id(parent))
    return Edge(child=job_id(child), parent=job_id(parent), flow_id=FLOW, name=f"p{parent}", line=line, **fields)


def ended(status: str = "completed", n: Any = None) -> Ended:
    if status == "completed":
        return Ended(status, json.dumps({"n": n}))
    return Ended(status, None, "Boom: boom" if status == "failed" else None)


def decide(
    parents: Mapping[int, Ended], rows: Sequence[Row], edges: Sequence[Edge], watched: Sequence[int] = ()
) -> Plan:
    known = {job_id(n): one for n, one in parents.items()}
    return plan(known, {one.id: one for one in rows}, edges, {}, frozenset(map(job_id, watched)), NOW)


def orders(decided: Plan) -> dict[str, str]:
    """Return the order that the plan gives for each job id."""
    return {one.id: type(order).__name__ for order, rows in decided.orders for one in rows}


# ── One child ──


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("if_failed", IF_FAILED)
def test_every_end_for_every_policy(status: str, if_failed: str) -> None:
    decided = decide({1: ended(status)}, [row(9)], [edge(9, 1, if_failed=if_failed)])
    expected = {"cancel": "Stop", "run": "Start", "hold": None}[if_failed] if status != "completed" else "Start"
    assert orders(decided).get(job_id(9)) == expected
    [known] = decided.edges
    assert known.ended == status


def test_a_parent_that_is_gone_counts_as_deleted() -> None:
    decided = decide({1: Ended(None)}, [row(9)], [edge(9, 1)])
    [(order, _)] = decided.orders
    assert order.reason == f"p1 ({job_id(1)}) was deleted"
    decided = decide({1: Ended(None)}, [row(9)], [edge(9, 1, ended="completed", verdict="pass")])
    assert orders(decided) == {job_id(9): "Start"}  # the edge has recorded an earlier end


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.BLOCKED])
def test_only_a_blocked_job_is_started_or_stopped(status: Status) -> None:
    for end in ENDS:
        decided = decide({1: ended(end)}, [row(9, status)], [edge(9, 1)])
        assert orders(decided) == {}
        assert [one.ended for one in decided.edges] == [end]


def test_who_leaves_its_line() -> None:
    for watched in ((), (9,)):
        [(order, _)] = decide({1: ended()}, [row(9)], [edge(9, 1)], watched).orders
        assert isinstance(order, Start)
        assert order.leaving == (frozenset() if watched else {job_id(9)})


def test_a_reason_is_never_longer_than_allowed() -> None:
    long = f"p1.result.n = '{'x' * 1900}'"
    [(order, _)] = decide({1: ended()}, [row(9)], [edge(9, 1, condition=long, fills=True)]).orders
    assert isinstance(order, Stop)
    assert len(order.reason or "") <= MAX_DETAIL


def test_a_cancel_and_a_requeue_reach_the_children() -> None:
    children = [row(n, status) for n, status in enumerate(Status)]
    for status in Status:
        owner = row(99, status)
        decided = plan({}, {}, [], {owner.id: (owner, children)}, frozenset(), NOW)
        reached = orders(decided)
        if status in (Status.CANCELLED, Status.CANCEL_REQUESTED):
            live = {one.id for one in children if one.status in LIVE - {Status.CANCEL_REQUESTED}}
            assert reached == dict.fromkeys(live, StopChildren.__name__)
        elif status is Status.BLOCKED:
            dead = {one.id for one in children if one.status not in LIVE | {Status.COMPLETED}}
            assert reached == dict.fromkeys(dead, Requeue.__name__)
        else:
            assert reached == {}


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_end_of_a_call_is_told_once(count: int, rng: random.Random) -> None:
    """Only the last of its jobs to end tells the end of a call."""
    owner = row(9, Status.WAITING)
    edges = [edge(9, n, call=1, place=n, fills=True) for n in range(count)]
    order = list(range(count))
    rng.shuffle(order)
    told = []
    for n in order:
        decided = decide({n: ended(rng.choice(ENDS), n)}, [owner], edges)
        told += [one.sent.name for one, _ in decided.orders if isinstance(one, ChildrenEnded)]
        assert len(told) == (n == order[-1])
        edges = written(edges, decided)
    assert told == [children_signal(1)]
    assert decide({n: ended(one.ended or "") for n, one in enumerate(edges)}, [owner], edges).orders == []
    assert all(one.result == json.dumps({"n": n}) for n, one in enumerate(edges) if one.ended == "completed")


# ── A whole world: rows and edges, to which plans are applied ──


def written(edges: Sequence[Edge], decided: Plan) -> list[Edge]:
    new = {(one.child, one.parent): one for one in decided.edges}
    return [new.get((one.child, one.parent), one) for one in edges]


class World:
    """Children 100, 101, … wait for parents 0, 1, …, which end. `advance` applies plans as a store does."""

    def __init__(self, children: dict[int, list[Edge]], payloads: dict[int, str]) -> None:
        self.edges = [one for edges in children.values() for one in edges]
        self.rows = {job_id(n): row(n, payload=payloads[n]) for n in children}
        self.parents: dict[int, Ended] = {}
        self.starts: list[str] = []

    def advance(self, *changed: int) -> None:
        noted = list(changed)
        own: set[str] = set()
        while noted or own:
            parents = {n: self.parents[n] for n in noted}
            touched = {one.child for one in self.edges if one.parent in set(map(job_id, noted))} | own
            rows = [self.rows[one] for one in sorted(touched)]
            edges = [one for one in self.edges if one.child in touched]
            decided = decide(parents, rows, edges)
            self.edges = written(self.edges, decided)
            noted, own = [], set()
            for order, chosen in decided.orders:
                own |= self.apply(order, chosen)

    def apply(self, order: Order, chosen: Sequence[Row]) -> set[str]:
        """Apply an order to the rows. Return the ids of the jobs whose lines it notes."""
        done = patches(move_all(chosen, order, US, {}))
        assert len(done) == len(chosen), "a plan is never refused"
        for before, patch in done:
            assert patch.status is not None
            columns = {name: value for name, value in patch.columns.items() if name in Row._fields and name != "line"}
            self.rows[before.id] = before._replace(**columns | {"status": patch.status})
            self.starts += [before.id] * (patch.status is Status.PENDING)
        return {owner for line in lines(done) if (owner := owner_of(line)) and self.rows[owner].status in LIVE}

    def check(self) -> None:
        """Check that no job waits without a reason, and no job runs too early."""
        for child, one in self.rows.items():
            own = [edge for edge in self.edges if edge.child == child]
            still = [edge for edge in own if edge.is_open]
            if one.status is Status.PENDING:
                assert not still
                assert all(edge.verdict in ("pass", "false") for edge in own)
                assert any(edge.verdict == "pass" for edge in own)
            elif one.status is Status.BLOCKED:
                assert still or any(edge.verdict == "hold" for edge in own)
                assert not any(edge.verdict == "stop" for edge in own)
            else:
                assert one.status is Status.CANCELLED
                assert any(edge.verdict in ("stop", "untaken") for edge in own)

    def state(self) -> Any:
        edges = sorted((one.child, one.parent, one.ended, one.verdict) for one in self.edges)
        return {child: (one.status, one.payload) for child, one in self.rows.items()}, edges


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, dict[int, Ended]]:
    count = draw(st.integers(1, 5))
    children: dict[int, list[Edge]] = {}
    payloads: dict[int, str] = {}
    for child in range(100, 100 + draw(st.integers(1, 4))):
        parents = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
        condition = draw(st.none() | st.sampled_from(CONDITIONS))
        named = draw(st.sampled_from(parents))
        policy = draw(st.sampled_from(IF_FAILED))
        blanks = draw(st.lists(st.sampled_from(parents), unique=True))
        paths = {f"f{n}": {"$result": [f"p{n}", *draw(st.sampled_from([[], ["n"]]))]} for n in blanks}
        payloads[child] = json.dumps(paths)
        children[child] = [
            edge(
                child,
                n,
                if_failed=policy,
                condition=condition.format(f"p{n}") if condition and n == named else None,
                fills=bool(condition and n == named) or n in blanks,
            )
            for n in parents
        ]
    ends = st.builds(ended, st.sampled_from(ENDS), st.integers(0, 10))
    return World(children, payloads), {n: draw(ends) for n in range(count)}


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_ends_does_not_matter(given_: tuple[World, dict[int, Ended]], rng: random.Random) -> None:
    """Parents end all at once, or one by one in any order: the same jobs start, once, with the same payloads."""
    world, ends = given_
    at_once, one_by_one = copy.deepcopy(world), copy.deepcopy(world)
    at_once.parents = dict(ends)
    at_once.advance(*ends)
    at_once.check()
    order = list(ends)
    rng.shuffle(order)
    for n in order:
        one_by_one.parents[n] = ends[n]
        one_by_one.advance(n)
        one_by_one.check()
    for known in (at_once, one_by_one):
        assert len(known.starts) == len(set(known.starts))
    assert sorted(at_once.starts) == sorted(one_by_one.starts)
    assert {k: v.payload for k, v in at_once.rows.items()} == {k: v.payload for k, v in one_by_one.rows.items()}
    assert {k: v.status for k, v in at_once.rows.items()} == {k: v.status for k, v in one_by_one.rows.items()}


@given(worlds())
def test_a_second_look_changes_nothing(given_: tuple[World, dict[int, Ended]]) -> None:
    world, ends = given_
    world.parents = ends
    world.advance(*world.parents)
    before = world.state()
    world.advance(*world.parents)
    assert world.state() == before


@given(worlds(), st.randoms(use_true_random=False))
def test_requeues_bring_back_what_they_have_stopped(given_: tuple[World, dict[int, Ended]], rng: random.Random) -> None:
    """Parents fail, come back in any order, and complete. Then all jobs that have not run yet stand as if the parents
    had completed at first."""
    world, ends = given_
    fine = {n: one if one.status == "completed" else ended("completed", rng.randrange(10)) for n, one in ends.items()}
    straight = copy.deepcopy(world)
    straight.parents = dict(fine)
    straight.advance(*fine)
    for n in ends:
        world.parents[n] = ends[n]
        world.advance(n)
    ran = set(world.starts)
    bad = [n for n in ends if ends[n] is not fine[n]]
    for back in (dict.fromkeys(bad, Ended("pending")), fine):
        rng.shuffle(bad)
        for n in bad:
            world.parents[n] = back[n]
            world.advance(n)
    assert len(world.starts) == len(set(world.starts))
    for child, one in world.rows.items():
        if child not in ran:
            assert (one.status, one.payload) == (straight.rows[child].status, straight.rows[child].payload)


STRANGE = (
    "p1.result > 5",
    "p1.result.n > 5 && p1.result.n.n != 'a'",
    "p1.result.n = null || p1.error ~ 'x'",
    "p1.result.n ?= 'a' || p1.result ~ 'b'",
    "p1.result.n <= @now",
)


@given(
    st.sampled_from(STRANGE),
    st.recursive(
        st.none()
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.integers()
        | st.text("abn\n", max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("n", max_size=2), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_a_condition_can_read_whatever_a_parent_returns(condition: str, result: Any) -> None:
    """A condition never raises, because an exception would keep the parent from ending."""
    known = Ended("completed", json.dumps(result))
    decided = decide({1: known}, [row(9)], [edge(9, 1, condition=condition, fills=True)])
    assert orders(decided)[job_id(9)] in ("Start", "Stop")


@pytest.mark.parametrize("verdict", ["stop", "untaken", None])
def test_only_what_parents_have_stopped_comes_back(verdict: str | None) -> None:
    condition = "p1.status = 'completed'" if verdict == "untaken" else None
    known = edge(9, 1, ended="failed", verdict=verdict, condition=condition)
    decided = decide({1: Ended("pending")}, [row(9, Status.CANCELLED)], [known])
    assert orders(decided) == ({job_id(9): Block.__name__} if verdict else {})
    [opened] = decided.edges
    assert opened.is_open
    assert opened.verdict is None


# ── Helpers ──


@given(st.lists(st.integers(0, 50) | st.text("abc,1", max_size=5), max_size=3), st.uuids(version=4))
def test_a_derived_id(parts: list[Any], seed: Any) -> None:
    parent = f"0193fb1e-0000-7{str(seed)[15:]}"
    made = derived_id(parent, *parts)
    assert made == derived_id(parent, *parts) == check_id(made)
    assert made[:13] == parent[:13]  # its timestamp
    assert made != parent
    assert made != derived_id(parent, *parts, "x")
    assert made != derived_id(derived_id(parent), *parts)


def test_derived_ids_differ() -> None:
    made = {derived_id(job_id(p), call, n) for p in range(5) for call in range(5) for n in range(400)}
    assert len(made) == MAX_JOBS
    assert derived_id(job_id(1), "1", "23") != derived_id(job_id(1), "12", "3")


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefx"), max_size=3)))
def test_cycles_are_found(parents: dict[str, list[str]]) -> None:
    cycle = find_cycle(parents)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(parent in parents[child] for child, parent in itertools.pairwise(cycle))
    else:
        assert not any(_reaches(parents, name, name) for name in parents)


def _reaches(parents: Mapping[str, Sequence[str]], start: str, goal: str) -> bool:
    todo, seen = list(parents[start]), set()
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        if name in parents and name not in seen:
            seen.add(name)
            todo += parents[name]
    return False


def test_a_long_chain_has_no_cycle() -> None:
    chain: dict[str, list[str]] = {f"n{n}": [f"n{n - 1}"] if n else [] for n in range(MAX_JOBS)}
    assert find_cycle(chain) == []
    chain["n0"] = [f"n{MAX_JOBS - 1}"]
    assert len(find_cycle(chain)) == MAX_JOBS + 1


leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab$", max_size=3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), values), st.randoms(use_true_random=False))
def test_what_is_cut_out_is_filled_in(payload: dict[str, Any], rng: random.Random) -> None:
    """Replace parts of a payload by results of parents. With the results filled in, the payload is the same again."""
    results: dict[str, str | None] = {}

    def cut(value: Any) -> Any:
        if rng.random() < 0.3:
            name, path = f"p{len(results)}", rng.sample(["x", "y"], rng.randrange(3))
            whole = value
            for step in reversed(path):
                whole = {step: whole, "other": 1}
            results[name] = json.dumps(whole)
            return (
                blank(NodeResult("an id", name, *path)) if rng.random() < 0.5 else {"$result": ".".join([name, *path])}
            )
        if isinstance(value, dict):
            return {name: cut(one) for name, one in value.items()}
        return [cut(one) for one in value] if isinstance(value, list) else value

    holed = {name: cut(value) for name, value in payload.items()}
    found = outside_of(holed)
    assert {name for names in found.values() for name in names} == set(results)
    assert codec.decode(filled(json.dumps(holed), results)) == payload


@pytest.mark.parametrize(
    "bad",
    [
        {"$result": 1},
        {"$result": []},
        {"$result": [1]},
        {"$result": ["a", None]},
        {"$result": "a", "more": 1},
        {"$result": {"a": 1}},
    ],
)
def test_a_blank_that_is_none(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        outside_of({"x": [bad]})
    assert (refused.value.field, refused.value.code) == ("payload.x[0]", "bad_result")


def test_the_result_of_a_node_stands_for_itself() -> None:
    result = NodeResult("an id", "pay")
    assert blank(result.amount["cents"][0].value) == {
        "$result": ["pay", "amount", "cents", 0, "value"],
        "$of": "an id",
    }
    assert repr(result.amount) == "<the result of pay.amount>"
    for use in (list, str, bool, lambda one: one == 3, lambda one: one != 3):
        with pytest.raises(TypeError, match="not there yet"):
            use(result)
    with pytest.raises(AttributeError):
        _ = result.__wrapped__


@given(st.text(max_size=120), st.lists(st.text(max_size=5)))
def test_a_node_always_gets_a_name(topic: str, others: list[str]) -> None:
    taken: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for one in [topic, *others, topic, topic]:
        name = node_name(one, taken, numbers)
        assert name not in taken
        check_node_name(name)
        taken[name] = 1
        parse_condition(f"{name}.status = 'failed'", taken)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "ä", "a" * 101, None, 1])
def test_a_bad_name(name: Any) -> None:
    with pytest.raises(InvalidInput):
        check_node_name(name)


@given(st.uuids().map(str))
def test_a_line_of_its_own(one: str) -> None:
    assert owner_of(own_line(one)) == one
    assert owner_of(one) is owner_of(None) is None


@given(st.dictionaries(st.sampled_from([status.value for status in Status]), st.integers(1, 3)), st.data())
def test_the_status_of_a_flow(counts: dict[str, int], data: st.DataObject) -> None:
    untaken = data.draw(st.integers(0, counts.get("cancelled", 0)))
    held = data.draw(st.integers(0, counts.get("blocked", 0)))
    flow = FlowRow(id=FLOW, name="x", by=None, jobs=9, created=NOW, counts=counts, untaken=untaken, held=held)
    status = flow_status(flow)
    live = {name for name in counts if Status(name) in LIVE}
    assert (status in ("running", "held")) == bool(live)
    if status == "held":
        assert live == {"blocked"}
        assert held
    if not live:
        assert (status == "failed") == bool(counts.keys() & {"failed", "expired"})
        assert status != "cancelled" or counts["cancelled"] > untaken


def test_a_parent_that_did_not_complete_gives_null() -> None:
    """A part of its result is null too, so that a job that runs anyway or is released can run."""
    payload = '{"whole": {"$result": "pay"}, "part": [{"$result": "pay.amount.cents"}]}'
    assert codec.decode(filled(payload, {})) == {"whole": None, "part": [None]}
    with pytest.raises(InvalidInput, match=r"there is no pay\.amount in the result of pay"):
        filled(payload, {"pay": None})
