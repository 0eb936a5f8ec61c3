"""Flows: which job waits for which, what each end does to waiting jobs, what an operator may do, what is removed."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from rowlock.client.verify import verify
from rowlock.core.flows import Edge, Ended, ReleaseHold, flow_status
from rowlock.core.job import Job, Status, own_line
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue, Row
from rowlock.errors import FlowKeyTaken, UnknownParent
from rowlock.stores.base import DAY, Changed, Hold, Retention, Store
from rowlock.stores.flows import (
    FindEdges,
    FindWatched,
    LockJobs,
    ReadPairs,
    ReadParents,
    ReadStarted,
    StoredEdges,
    advancing,
)
from tests.stores import harness
from tests.stores.conftest import shared_store
from tests.stores.flow_maker import Made, Node, children_of, claim, edges, end, made, make, node, tick
from tests.stores.harness import LEASE, NOBODY, START, Harness, settlement
from tests.waiting import until

store = shared_store

FAILS = Failed("no", final=True)
DIAMOND = {"a": node(), "b": node("a"), "c": node("a"), "d": node("b", "c")}
BAD_ENDS: dict[str, Outcome] = {"failed": FAILS, "cancelled": GaveUp("no")}


async def legal(store: Harness) -> None:
    await store.rows()
    report = await verify(store.store, limit=100_000, seconds=60.0)
    assert report.findings == []


async def requeue(store: Store, *ids: str, **options: Any) -> list[Changed]:
    done = await store.move(list(ids), Requeue(by="ann", **options))
    await tick(store)
    return done


async def cancel(store: Store, *ids: str) -> None:
    await store.move(list(ids), Cancel(by="ann", reason="not wanted"))
    await tick(store)


async def release(store: Store, job_id: str) -> Changed:
    [answer] = await store.move([job_id], ReleaseHold(by="ann"))
    await tick(store)
    return answer


def result(**fields: Any) -> Completed:
    return Completed(fields)


async def tables(store: Harness) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the tables, to check that nothing has changed."""
    names = ("_jobs", "_jobs_archive", "_jobs_edges", "_jobs_flows", "_jobs_once")
    return {name: sorted(await store.fetch(f"SELECT * FROM {name}"), key=repr) for name in names}


# ── Order ──


async def test_a_diamond_runs_in_its_order(store: Harness) -> None:
    flow = await made(store.store, DIAMOND)
    assert await flow.statuses() == {"a": "pending", "b": "blocked", "c": "blocked", "d": "blocked"}
    await flow.run("a")
    b, c = await flow.runs("b", "c")
    await end(store.store, b)
    assert (await flow.statuses())["d"] == "blocked"
    await end(store.store, c)
    await flow.run("d")
    assert set((await flow.statuses()).values()) == {"completed"}
    assert await claim(store.store) == []
    await legal(store)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
async def test_a_wide_join_fires_once_after_the_last_parent(store: Harness, order: str) -> None:
    names = [f"p{n}" for n in range(20)]
    flow = await made(store.store, {**{name: node() for name in names}, "join": node(*names)})
    runs = await flow.runs(*(names if order == "forwards" else names[::-1]))
    for run in runs[:-1]:
        await end(store.store, run)
        assert (await flow.statuses())["join"] == "blocked"
    await end(store.store, runs[-1])
    [join] = await flow.runs("join")
    assert join.version == 1
    assert [event.event for event in await store.events(join.id)] == ["enqueued", "unblocked", "claimed"]


async def test_parents_that_end_in_one_batch(store: Harness) -> None:
    names = [f"p{n}" for n in range(20)]
    flow = await made(store.store, {**{name: node() for name in names}, "join": node(*names)})
    runs = await flow.runs(*names)
    await store.store.settle([harness.settlement(run, Completed(), ran=0.0) for run in runs])
    await flow.run("join")
    await legal(store)


@pytest.mark.parametrize("outcome", [Released(), Failed("again")])
async def test_a_run_that_is_not_the_last_unblocks_nothing(store: Harness, outcome: Outcome) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a")})
    await flow.run("a", outcome)
    assert (await flow.statuses()) == {"a": "pending", "b": "blocked"}
    await store.advance(60)
    await store.store.promote()
    await flow.run("a")
    await flow.run("b")


async def test_a_child_keeps_its_own_time(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", delay=60.0)})
    await flow.run("a")
    assert (await flow.statuses())["b"] == "pending"
    assert await claim(store.store) == []
    await store.advance(60)
    await store.store.promote()
    await flow.run("b")


async def test_a_child_that_expires_while_it_is_blocked(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", expires_at=START), "c": node("b")})
    await store.advance(60)
    assert await store.store.move_due(Expire(by="m")) == []
    await flow.run("a")
    assert [moved.id for moved in await store.store.move_due(Expire(by="m"))] == [flow["b"]]
    await tick(store.store)
    assert await flow.statuses() == {"a": "completed", "b": "expired", "c": "cancelled"}
    await legal(store)


async def test_a_long_chain(store: Harness) -> None:
    names = [f"n{n}" for n in range(30)]
    flow = await made(store.store, {name: node(*names[n - 1 : n] if n else ()) for n, name in enumerate(names)})
    for name in names:
        await flow.run(name)
    await legal(store)


# ── if_failed ──


@pytest.mark.parametrize("ended", BAD_ENDS)
async def test_a_bad_end_cancels_all_that_wait(store: Harness, ended: str) -> None:
    flow = await made(store.store, DIAMOND)
    await flow.run("a", BAD_ENDS[ended])
    assert await flow.statuses() == {"a": ended, "b": "cancelled", "c": "cancelled", "d": "cancelled"}
    job = await flow.job("d")
    assert job.cancel_reason is not None
    assert job.cancel_reason.startswith(("b ", "c "))
    assert await store.story(flow["d"]) == ["enqueued", "cancelled"]
    assert await claim(store.store) == []
    await legal(store)


async def test_a_bad_end_cancels_before_the_other_parents_have_ended(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node(), "c": node("a", "b")})
    a, b = await flow.runs("a", "b")
    await end(store.store, a, FAILS)
    assert (await flow.statuses())["c"] == "cancelled"
    await end(store.store, b)
    assert (await flow.statuses())["c"] == "cancelled"
    assert await claim(store.store) == []


@pytest.mark.parametrize("ended", BAD_ENDS)
async def test_run_anyway(store: Harness, ended: str) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="run")})
    await flow.run("a", BAD_ENDS[ended])
    await flow.run("b")
    await legal(store)


@pytest.mark.parametrize("ended", BAD_ENDS)
async def test_hold_and_release(store: Harness, ended: str) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="hold"), "c": node("b")})
    assert (await release(store.store, flow["b"])).why == "not_held"  # its parent may still complete
    await flow.run("a", BAD_ENDS[ended])
    assert await flow.statuses() == {"a": ended, "b": "blocked", "c": "blocked"}
    assert (await release(store.store, flow["c"])).why == "not_held"
    [row] = await store.store.flows([flow.id])
    assert (row.held, flow_status(row)) == (1, "held")
    assert (await release(store.store, flow["b"])).done
    [row] = await store.store.flows([flow.id])
    assert (row.held, flow_status(row)) == (0, "running")
    await flow.run("b")
    await flow.run("c")
    assert (await store.story(flow["b"]))[:3] == ["enqueued", "hold_released", "unblocked"]
    assert [one.action for one in await store.audit()] == ["release_hold"]
    assert not (await release(store.store, flow["b"])).done
    await legal(store)


async def test_a_hold_waits_for_the_other_parents_too(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node(), "c": node("a", "b", if_failed="hold")})
    a, b = await flow.runs("a", "b")
    await end(store.store, a, FAILS)
    assert (await release(store.store, flow["c"])).why == "not_held"
    await end(store.store, b)
    assert (await release(store.store, flow["c"])).done
    await flow.run("c")


async def test_a_held_job_that_is_given_up(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="hold"), "c": node("b")})
    await flow.run("a", FAILS)
    await cancel(store.store, flow["b"])
    assert await flow.statuses() == {"a": "failed", "b": "cancelled", "c": "cancelled"}
    await requeue(store.store, flow["a"])
    assert await flow.statuses() == {"a": "pending", "b": "cancelled", "c": "cancelled"}
    await legal(store)


@pytest.mark.parametrize("how", ["expire", "rescue", "cancel_timeout", "cancel", "crash"])
async def test_every_bad_end_is_noted(store: Harness, how: str) -> None:
    options = {"expires_at": START} if how == "expire" else {"max_retries": 0}
    flow = await made(store.store, {"a": node(**options), "b": node("a"), "c": node("a", if_failed="run")})
    if how == "expire":
        await store.store.move_due(Expire(by="m"))
    elif how == "cancel":
        await cancel(store.store, flow["a"])
    else:
        await flow.runs("a")
        if how == "cancel_timeout":
            await cancel(store.store, flow["a"])
            assert await flow.statuses() == {"a": "cancel_requested", "b": "blocked", "c": "blocked"}
        await store.advance(LEASE + 1)
        if how == "cancel_timeout":
            await store.store.move_due(CancelTimeout(by="m", grace=1.0))
        else:
            await store.store.move_due(Rescue(by="m", backoff=[0.0], workers=["w"] if how == "crash" else None))
    await tick(store.store)
    assert (await flow.statuses())["b"] == "cancelled"
    await flow.run("c")
    await legal(store)


# ── when ──


@pytest.mark.parametrize(
    ("when", "outcome", "status"),
    [
        ("a.result.amount > 100", result(amount=101), "completed"),
        ("a.result.amount > 100", result(amount=100), "cancelled"),
        ("a.result.amount > 100", FAILS, "cancelled"),
        ("a.status = 'failed'", FAILS, "completed"),
        ("a.status = 'failed'", Completed(), "cancelled"),
        ("a.status = 'cancelled'", GaveUp("no"), "completed"),
        ("a.error ~ 'no'", FAILS, "completed"),
        ("a.result.missing = null", result(amount=1), "completed"),
        ("a.status = 'completed' || a.status = 'failed'", FAILS, "completed"),
    ],
)
async def test_a_condition_decides(store: Harness, when: str, outcome: Outcome, status: str) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", when=when), "c": node("b")})
    await flow.run("a", outcome)
    if status == "completed":
        await flow.run("b")
        await flow.run("c")
        assert (await flow.job("b")).status == status
    else:
        assert await flow.statuses() | {"a": ""} == {"a": "", "b": "cancelled", "c": "cancelled"}
        assert ((await flow.job("b")).cancel_reason or "").startswith("not taken")
        [row] = await store.store.flows([flow.id])
        assert row.untaken == 2  # a job that waits for an untaken job is untaken, too
    await legal(store)


BRANCHES = {
    "a": node(),
    "big": node("a", when="a.result.amount > 100"),
    "small": node("a", when="a.result.amount <= 100"),
    "join": node("big", "small", when="big.status = 'completed' || small.status = 'completed'"),
}


@pytest.mark.parametrize(("amount", "taken", "other"), [(500, "big", "small"), (5, "small", "big")])
async def test_branches_and_their_join(store: Harness, amount: int, taken: str, other: str) -> None:
    flow = await made(store.store, BRANCHES)
    await flow.run("a", result(amount=amount))
    assert (await flow.statuses())[other] == "cancelled"
    await flow.run(taken)
    await flow.run("join")
    [row] = await store.store.flows([flow.id])
    assert flow_status(row) == "completed"  # a branch that is not taken is no failure
    await legal(store)


async def test_a_condition_over_two_parents_waits_for_both(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node(), "c": node("a", "b", when="a.result.n > b.result.n")})
    a, b = await flow.runs("a", "b")
    await end(store.store, b, result(n=1))
    assert (await flow.statuses())["c"] == "blocked"
    await end(store.store, a, result(n=2))
    await flow.run("c")


async def test_a_taken_condition_is_asked_again_after_a_requeue(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", when="a.status = 'completed'"), "c": node("b")})
    await flow.run("a", FAILS)
    assert await flow.statuses() == {"a": "failed", "b": "cancelled", "c": "cancelled"}
    await requeue(store.store, flow["a"])
    assert await flow.statuses() == {"a": "pending", "b": "blocked", "c": "blocked"}
    await flow.run("a")
    await flow.run("b")
    await flow.run("c")
    await legal(store)


# ── Results in payloads ──


async def test_results_are_filled_in(store: Harness) -> None:
    payload = {
        "whole": {"$result": "a"},
        "part": {"$result": "a.amount"},
        "list": [1, {"$result": ["a", "items", 1]}],
        "deep": {"in": {"it": {"$result": "b"}}},
        "own": "x",
    }
    flow = await made(store.store, {"a": node(), "b": node(), "c": node(payload=payload)})
    a, b = await flow.runs("a", "b")
    answer = {"amount": 5, "items": ["x", "ü\n"]}
    await end(store.store, a, Completed(answer))
    await end(store.store, b, Completed(None))
    [c] = await flow.runs("c")
    assert c.payload == {"whole": answer, "part": 5, "list": [1, "ü\n"], "deep": {"in": {"it": None}}, "own": "x"}
    assert all(edge.result is None for edge in (await edges(store.store, c.id)).values())  # it is not stored twice


@pytest.mark.parametrize("if_failed", ["run", "hold"])
async def test_a_parent_without_a_result_fills_in_null(store: Harness, if_failed: str) -> None:
    nodes = {"a": node(), "b": node(if_failed=if_failed, payload={"x": {"$result": "a"}})}
    flow = await made(store.store, nodes)
    await flow.run("a", FAILS)
    if if_failed == "hold":
        await release(store.store, flow["b"])
    [b] = await flow.runs("b")
    assert b.payload == {"x": None}


@pytest.mark.parametrize(
    ("blank", "answer", "says"),
    [
        ("a.amount", {"other": 1}, "there is no a.amount"),
        ("a.amount", None, "there is no a.amount"),
        (["a", "items", 3], {"items": [1]}, "there is no a.items.3"),
        ("a", "x" * 700_000, "payload"),
    ],
    ids=["field", "null", "place", "size"],
)
async def test_a_result_that_does_not_fit_stops_the_child(store: Harness, blank: Any, answer: Any, says: str) -> None:
    payload = {"x": {"$result": blank}, "y": "y" * 400_000}
    flow = await made(store.store, {"a": node(), "b": node(payload=payload), "c": node("b")})
    await flow.run("a", Completed(answer))
    assert await flow.statuses() == {"a": "completed", "b": "cancelled", "c": "cancelled"}
    reason = (await flow.job("b")).cancel_reason or ""
    assert reason.startswith("its payload can't be filled in: ")
    assert says in reason
    assert len(reason) <= 500
    await legal(store)


async def test_jobs_of_a_flow_that_start_together_keep_what_differs(store: Harness) -> None:
    """One job is due later, one has another version, and one payload is filled in; the other jobs are alike."""
    nodes = {"root": node(), **{f"leaf{n}": node("root") for n in range(3)}}
    nodes |= {"late": node("root", delay=3600.0), "filled": node(payload={"x": {"$result": "root"}})}
    flow = await made(store.store, nodes)
    await flow.run("root", Completed(7))
    rows = await store.rows()
    stand = {name: rows[flow[name]] for name in nodes if name != "root"}
    assert {row.job.status for row in stand.values()} == {Status.PENDING}
    assert {name for name, row in stand.items() if not row.ready} == {"late"}
    assert {name: row.job.payload for name, row in stand.items()} == {name: {} for name in stand} | {"filled": {"x": 7}}
    assert [len(row.history) for row in stand.values()] == [1] * len(stand)


async def test_a_filled_payload_is_not_filled_again(store: Harness) -> None:
    """A parent's result is data, even if it looks like a placeholder (`$result`)."""
    flow = await made(store.store, {"a": node(), "b": node(payload={"x": {"$result": "a"}}), "c": node("b")})
    trap = {"$result": ["nobody", "there"]}
    await flow.run("a", Completed(trap))
    [b] = await flow.runs("b")
    assert b.payload == {"x": trap}
    await end(store.store, b, FAILS)
    await requeue(store.store, b.id)
    [b] = await flow.runs("b")
    assert b.payload == {"x": trap}


async def test_a_result_outlives_its_parent(store: Harness) -> None:
    nodes = {"a": node(), "b": node(), "c": node("b", payload={"x": {"$result": "a"}})}
    flow = await made(store.store, nodes)
    a, b = await flow.runs("a", "b")
    await end(store.store, a, Completed({"n": 1}))
    [answer] = await store.store.move([flow["a"]], Delete(by="ann"))
    assert answer.done
    await tick(store.store)
    assert (await flow.statuses())["a"] == "gone"
    await end(store.store, b)
    [c] = await flow.runs("c")
    assert c.payload == {"x": {"n": 1}}


# ── Requeue ──


async def test_a_requeued_parent_blocks_what_it_has_stopped(store: Harness) -> None:
    flow = await made(store.store, DIAMOND)
    await flow.run("a", FAILS)
    await requeue(store.store, flow["a"])
    assert await flow.statuses() == {"a": "pending", "b": "blocked", "c": "blocked", "d": "blocked"}
    assert (await flow.job("d")).cancel_reason is None
    assert await store.story(flow["d"]) == ["enqueued", "cancelled", "blocked"]
    await flow.run("a")
    for run in await flow.runs("b", "c"):
        await end(store.store, run)
    await flow.run("d")
    assert await store.story(flow["d"]) == ["enqueued", "cancelled", "blocked", "unblocked", "claimed", "completed"]
    await legal(store)


async def test_one_of_two_bad_parents_is_not_enough(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node(), "c": node("a", "b")})
    for run in await flow.runs("a", "b"):
        await end(store.store, run, FAILS)
    await requeue(store.store, flow["a"])
    assert (await flow.statuses())["c"] == "cancelled"
    await requeue(store.store, flow["b"])
    assert (await flow.statuses())["c"] == "blocked"
    for run in await flow.runs("a", "b"):
        await end(store.store, run)
    await flow.run("c")
    await legal(store)


@pytest.mark.parametrize("before", [True, False])
async def test_what_a_person_has_cancelled_stays_cancelled(store: Harness, before: bool) -> None:
    """This holds whether the parent fails before the cancel or after it."""
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="hold"), "c": node("a")})
    if before:
        await cancel(store.store, flow["b"], flow["c"])
        await flow.run("a", FAILS)
    else:
        [a] = await flow.runs("a")
        await cancel(store.store, flow["c"])
        await end(store.store, a, FAILS)
        await cancel(store.store, flow["b"])
    await requeue(store.store, flow["a"])
    assert await flow.statuses() == {"a": "pending", "b": "cancelled", "c": "cancelled"}
    assert (await flow.job("c")).cancel_reason == "not wanted"
    await flow.run("a")
    assert await claim(store.store) == []
    await legal(store)


async def test_a_child_that_has_given_up_itself_stays_cancelled(store: Harness) -> None:
    """It stays cancelled although its parent, which failed again while the child ran, is requeued."""
    flow = await made(store.store, {"a": node(), "b": node("a"), "c": node("b")})
    await flow.run("a", FAILS)
    await requeue(store.store, flow["b"])
    [b] = await flow.runs("b")
    await requeue(store.store, flow["a"])
    await flow.run("a", FAILS)
    await end(store.store, b, GaveUp("no"))
    await requeue(store.store, flow["a"])
    assert await flow.statuses() == {"a": "pending", "b": "cancelled", "c": "cancelled"}
    await legal(store)


async def test_a_person_requeues_a_child_whatever_its_parents_did(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a"), "c": node("b")})
    await flow.run("a", FAILS)
    [answer] = await requeue(store.store, flow["b"])
    assert answer.done
    assert await flow.statuses() == {"a": "failed", "b": "pending", "c": "blocked"}
    await flow.run("b")
    await flow.run("c")
    await legal(store)


async def test_a_requeued_child_still_waits_for_parents_that_have_not_ended(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node(), "c": node("a", "b")})
    a, b = await flow.runs("a", "b")
    await end(store.store, a, FAILS)
    await requeue(store.store, flow["c"])
    assert (await flow.statuses())["c"] == "blocked"
    await end(store.store, b)
    await flow.run("c")


@pytest.mark.parametrize("order", ["parents first", "children first"])
async def test_a_family_that_is_requeued_together_runs_in_its_order(store: Harness, order: str) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="run"), "c": node("b", if_failed="run")})
    for name in "abc":
        await flow.run(name, FAILS)
    names = "abc" if order == "parents first" else "cba"
    await requeue(store.store, *(flow[name] for name in names))
    assert await flow.statuses() == {"a": "pending", "b": "blocked", "c": "blocked"}
    for name in "abc":
        await flow.run(name)
    await legal(store)


async def test_a_completed_child_stays_completed_when_its_parent_runs_again(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="run")})
    await flow.run("a", FAILS)
    await flow.run("b")
    await requeue(store.store, flow["a"])
    await flow.run("a")
    assert await flow.statuses() == {"a": "completed", "b": "completed"}
    assert await claim(store.store) == []
    await legal(store)


async def test_a_running_child_is_left_alone_when_its_parent_runs_again(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="run"), "c": node("b")})
    await flow.run("a", FAILS)
    [b] = await flow.runs("b")
    await requeue(store.store, flow["a"])
    await end(store.store, b)
    a, c = await flow.runs("a", "c")
    await end(store.store, a)
    await end(store.store, c)
    assert await claim(store.store) == []
    await legal(store)


async def test_a_key_that_is_taken_meanwhile_keeps_a_child_cancelled(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", key="k"), "c": node("b")})
    await flow.run("a", FAILS)
    holder = await store.add(key="k", delay=3600.0)
    await requeue(store.store, flow["a"])
    assert await flow.statuses() == {"a": "pending", "b": "cancelled", "c": "cancelled"}
    await flow.run("a")
    [answer] = await requeue(store.store, flow["b"])
    assert (answer.done, answer.holder) == (False, holder)
    await legal(store)


async def test_a_blocked_job_has_its_key(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a", key="k")})
    [answer] = await store.insert(harness.job(key="k"))
    assert (answer.existing, answer.id) == (True, flow["b"])


# ── Cancel ──


async def test_a_cancelled_child_stops_those_behind_it(store: Harness) -> None:
    flow = await made(store.store, {**DIAMOND, "e": node("c")})
    await cancel(store.store, flow["b"])
    assert await flow.statuses() == {
        "a": "pending",
        "b": "cancelled",
        "c": "blocked",
        "d": "cancelled",
        "e": "blocked",
    }
    await flow.run("a")
    await flow.run("c")
    await flow.run("e")
    await legal(store)


async def test_a_whole_flow_is_cancelled_and_requeued(store: Harness) -> None:
    flow = await made(store.store, DIAMOND)
    await flow.run("a")
    await flow.runs("b", "c")
    await cancel(store.store, *flow.ids.values())
    assert await flow.statuses() == {
        "a": "completed",
        "b": "cancel_requested",
        "c": "cancel_requested",
        "d": "cancelled",
    }
    await store.advance(60)
    await store.store.move_due(CancelTimeout(by="m", grace=1.0))
    await tick(store.store)
    await requeue(store.store, flow["b"], flow["c"], flow["d"])
    for run in await flow.runs("b", "c"):
        await end(store.store, run)
    await flow.run("d")
    await legal(store)


# ── Delete and prune ──


async def test_a_job_that_others_wait_for_is_not_deleted(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a")})
    before = await tables(store)
    [answer] = await store.store.move([flow["a"]], Delete(by="ann"))
    assert (answer.done, answer.why, answer.status) == (False, "awaited", Status.PENDING)
    assert await tables(store) == before
    await flow.run("a", FAILS)
    [answer] = await store.store.move([flow["a"]], Delete(by="ann"))
    assert answer.done
    await tick(store.store)
    assert await flow.statuses() == {"a": "gone", "b": "cancelled"}
    await requeue(store.store, flow["b"])
    await flow.run("b")
    await legal(store)


async def test_the_parent_of_a_held_job_is_not_deleted(store: Harness) -> None:
    """After a delete, an operator could no longer requeue the parent."""
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="hold")})
    await flow.run("a", FAILS)
    [answer] = await store.store.move([flow["a"]], Delete(by="ann"))
    assert (answer.done, answer.why, answer.status) == (False, "awaited", Status.FAILED)
    await cancel(store.store, flow["b"])
    [answer] = await store.store.move([flow["a"]], Delete(by="ann"))
    assert answer.done


async def test_a_deleted_child_leaves_no_edge(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a"), "c": node("b")})
    await flow.run("a", FAILS)
    await store.store.move([flow["c"]], Delete(by="ann"))
    assert [str(child) for (child,) in await store.fetch("SELECT child FROM _jobs_edges")] == [flow["b"]]
    await requeue(store.store, flow["a"])
    await flow.run("a")
    await flow.run("b")


async def test_a_flow_is_dropped_with_its_last_job(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a")})
    other = await made(store.store, {"a": node(), "b": node("a")})
    await store.store.drop_flow(flow.id)
    assert len(await store.store.flows([flow.id])) == 1  # it still has jobs
    await cancel(store.store, *flow.ids.values())
    await store.store.move(list(flow.ids.values()), Delete(by="ann"))
    await store.store.drop_flow(flow.id)
    assert await store.store.flows([flow.id]) == []
    assert await store.store.flow_graph(flow.id) is None
    assert {str(one) for (one,) in await store.fetch("SELECT flow_id FROM _jobs_edges")} == {other.id}


async def test_prune_flows_removes_flows_without_jobs(store: Harness) -> None:
    gone = await made(store.store, {"a": node(), "b": node("a")})
    await gone.run("a")
    await gone.run("b")
    await store.advance(8 * DAY)
    live = await made(store.store, {"a": node(), "b": node("a")})
    half = await made(store.store, {"a": node(), "b": node("a", topic="other", delay=30 * DAY)})
    [job] = [job for job in await claim(store.store) if job.id == half["a"]]
    await end(store.store, job)
    await store.advance(8 * DAY)
    await store.store.prune(Retention())
    await store.store.tidy("prune_flows", 100)
    assert {one.id for one in await store.store.flows()} == {live.id, half.id}
    assert {str(one) for (one,) in await store.fetch("SELECT flow_id FROM _jobs_edges")} == {live.id, half.id}
    assert await store.store.tidy("prune_flows", 100) == 0  # the store checks each flow once an hour
    [row] = await store.store.flows([half.id])
    assert (row.jobs, sum(row.counts.values())) == (2, 1)


async def test_children_that_are_pruned_do_not_come_back(store: Harness) -> None:
    flow = await made(store.store, {"a": node(), "b": node("a"), "c": node("a")})
    await flow.run("a", FAILS)
    await store.advance(8 * DAY)
    await store.store.prune(Retention(cancelled=DAY, failed=90 * DAY))
    assert await flow.statuses() == {"a": "failed", "b": "gone", "c": "gone"}
    await requeue(store.store, flow["a"])
    await flow.run("a")
    assert await flow.statuses() == {"a": "completed", "b": "gone", "c": "gone"}
    await legal(store)


async def test_many_children_that_are_pruned_keep_nobody_busy(store: Harness) -> None:
    """There are more pruned children than one transaction handles."""
    flow = await made(store.store, {"a": node(), **{f"c{n}": node("a") for n in range(1005)}})
    await flow.run("a", FAILS)
    await store.advance(8 * DAY)
    while await store.store.prune(Retention(cancelled=DAY, failed=90 * DAY)):
        pass
    await requeue(store.store, flow["a"])
    await flow.run("a")
    assert await store.fetch("SELECT count(*) FROM _jobs") == [(0,)]


async def test_more_children_than_one_transaction_starts(store: Harness) -> None:
    names = [f"c{n}" for n in range(1005)]
    flow = await made(store.store, {"a": node(), **{name: node("a") for name in names}, "join": node(*names)})
    await flow.run("a")
    runs = await claim(store.store, limit=2000)
    assert len(runs) == len(names)
    await store.store.settle([harness.settlement(run, Completed(), ran=0.0) for run in runs])
    await flow.run("join")


async def test_the_rest_of_a_fan_out_starts_without_a_claim(store: Harness) -> None:
    """A worker without a free slot makes no claim, so the rest must not depend on one."""
    flow = await made(store.store, {"a": node(), **{f"c{n}": node("a") for n in range(2005)}})
    [run] = await flow.runs("a")
    await store.store.settle([harness.settlement(run, Completed(), ran=0.0)])

    async def all_started() -> bool:
        return await store.fetch("SELECT count(*) FROM _jobs WHERE status = 'pending'") == [(2005,)]

    await until(all_started)


@pytest.mark.parametrize(
    ("alone", "edge", "parent", "status", "sure"),
    [
        (True, {}, "completed", Status.BLOCKED, True),
        (False, {}, "completed", Status.BLOCKED, False),
        (True, {"condition": "p.status = 'completed'"}, "completed", Status.BLOCKED, False),
        (True, {"call": 0}, "completed", Status.BLOCKED, False),
        (True, {"ended": "failed"}, "completed", Status.BLOCKED, False),
        (True, {}, "failed", Status.BLOCKED, False),
        (True, {}, "completed", Status.PENDING, False),
    ],
)
def test_an_edge_that_may_have_changed_is_read_again(
    alone: bool, edge: Mapping[str, Any], parent: str, status: Status, sure: bool
) -> None:
    above, below = harness.job().id, harness.job().id
    line = own_line(above)
    found = Edge(child=below, parent=above, flow_id=above, name="p", line=line, **edge)
    fields: dict[str, Any] = {**dict.fromkeys(Row._fields, 0), "id": below, "status": status, "line": own_line(below)}
    steps = advancing([line])
    assert isinstance(next(steps), ReadStarted)
    assert isinstance(steps.send([]), ReadParents)
    assert isinstance(steps.send({above: Ended(parent)}), FindEdges)
    assert isinstance(steps.send([(found, alone)]), LockJobs)
    assert isinstance(steps.send((START, [Row(**fields)])), FindWatched if sure else ReadPairs)


# ── Parents that are not part of the flow ──


@pytest.mark.parametrize("status", list(Status))
async def test_a_parent_outside_in_every_status(store: Harness, status: Status) -> None:
    outside = await store.in_status(status)
    flow = await made(store.store, {"a": node(outside.id), "b": node(outside.id, if_failed="run")})
    found = await flow.statuses()
    if status is Status.COMPLETED:
        assert found == {"a": "pending", "b": "pending"}
    elif status in (Status.FAILED, Status.CANCELLED, Status.EXPIRED):
        assert found == {"a": "cancelled", "b": "pending"}
    else:
        assert found == {"a": "blocked", "b": "blocked"}
    assert {name: Status(one) for name, one in found.items()} == {
        name: (await flow.job(name)).status for name in flow.ids
    }


async def test_the_answer_says_who_starts_at_once(store: Harness) -> None:
    done = await store.settled(Completed({"n": 3}))
    flow = make({"a": node(done.id, payload={"k": 1}), "b": node("a")})
    answers = await store.store.insert_flow(flow)
    assert [one.status for one in answers] == [Status.PENDING, Status.BLOCKED]


async def test_a_parent_outside_ends_later(store: Harness) -> None:
    run = await store.claimed()
    flow = await made(store.store, {"a": node(run.id)})
    second = await made(store.store, {"a": node(run.id)})
    assert await claim(store.store) == []
    await end(store.store, run)
    assert sorted(job.id for job in await claim(store.store)) == sorted([flow["a"], second["a"]])
    await legal(store)


@pytest.mark.parametrize("if_live", ["queue", "replace"])
async def test_a_job_of_a_line_as_parent(store: Harness, if_live: str) -> None:
    lined = {"key": "k", "if_live": if_live}
    first = await made(store.store, {"a": node(**lined), "b": node("a")})
    second = await made(store.store, {"a": node(**lined), "b": node("a"), "c": node("a", if_failed="run")})
    await tick(store.store)
    if if_live == "queue":
        assert await first.statuses() == {"a": "pending", "b": "blocked"}
        assert await second.statuses() == {"a": "blocked", "b": "blocked", "c": "blocked"}
        await first.run("a")
        assert (await first.statuses())["b"] == "pending"
        for run in await claim(store.store):
            await end(store.store, run, Completed() if run.id == first["b"] else FAILS)
    else:
        assert await first.statuses() == {"a": "cancelled", "b": "cancelled"}
        await second.run("a", FAILS)
    assert await second.statuses() == {"a": "failed", "b": "cancelled", "c": "pending"}
    await requeue(store.store, second["a"])
    assert (await second.statuses())["b"] == "blocked"
    await second.runs("a", "c")
    await legal(store)


async def test_an_unknown_parent(store: Harness) -> None:
    known = await store.add()
    before = await tables(store)
    with pytest.raises(UnknownParent) as refused:
        await store.store.insert_flow(make({"a": node(known, NOBODY), "b": node("a")}))
    assert refused.value.parent == NOBODY
    assert await tables(store) == before


async def test_a_key_that_a_live_job_has(store: Harness) -> None:
    holder = await store.add(key="k")
    before = await tables(store)
    with pytest.raises(FlowKeyTaken) as refused:
        await store.store.insert_flow(make({"a": node(), "b": node("a", key="k"), "c": node("b", key="free")}))
    assert (refused.value.holder, refused.value.key) == (holder, "k")
    assert await tables(store) == before
    await made(store.store, {"a": node(key="free")})


async def test_two_jobs_of_a_flow_with_one_key(store: Harness) -> None:
    before = await tables(store)
    with pytest.raises(
        FlowKeyTaken, match=r"jobs\[0\]\.key and jobs\[2\]\.key of the topic mail are the same"
    ) as refused:
        await store.store.insert_flow(make({"a": node(key="k"), "b": node("a"), "c": node("b", key="k")}))
    assert refused.value.holder is None
    assert await tables(store) == before


# ── A repeat ──


@pytest.mark.parametrize("when", ["at once", "later", "after the end"])
async def test_a_repeat_of_an_insert_changes_nothing(store: Harness, when: str) -> None:
    flow = make({**DIAMOND, "k": node(key="k")})
    first = await store.store.insert_flow(flow)
    started = Made(store.store, flow)
    if when != "at once":
        for run in await started.runs("a", "k"):
            await end(store.store, run)
    if when == "after the end":
        for run in await started.runs("b", "c"):
            await end(store.store, run)
        await started.run("d")
    before, statuses = await tables(store), await started.statuses()
    again = await store.store.insert_flow(flow, repeat=True)
    assert [one.id for one in again] == [one.id for one in first]
    assert all(one.existing for one in again)
    assert await started.statuses() == statuses
    assert await tables(store) == before
    await tick(store.store)
    assert await tables(store) == before
    await legal(store)


# ── Jobs that a run starts ──


async def test_children_of_a_run(store: Harness) -> None:
    run = await store.claimed()
    children = children_of(run, 1, 3)
    hold, answers = await store.store.start_children(children)
    assert (hold, [one.existing for one in answers]) == (Hold.KEPT, [False] * 3)
    before = await tables(store)
    hold, answers = await store.store.start_children(children)  # a repeat
    assert (hold, [one.existing for one in answers]) == (Hold.KEPT, [True] * 3)
    assert await tables(store) == before
    [row] = await store.store.flows([children.flow_id])
    assert (row.jobs, dict(row.counts)) == (4, {"processing": 1, "pending": 3})
    owner = await store.job(run.id)
    assert owner.flow_id == children.flow_id
    runs = await claim(store.store)
    assert sorted(job.id for job in runs) == sorted(job.id for job in children.jobs)
    for n, job in enumerate(runs):
        assert (await store.row(run.id)).signals == ()
        await end(store.store, job, Completed(n))
    [signal] = (await store.row(run.id)).signals
    assert signal.name == "@children:1"
    assert [edge.ended for edge in (await edges(store.store, run.id)).values()] == ["completed"]
    await legal(store)


@pytest.mark.parametrize("change", ["version", "worker", "settled", "cancelled"])
async def test_a_run_that_does_not_hold_its_job_starts_nothing(store: Harness, change: str) -> None:
    run = await store.claimed()
    children = children_of(run, 1, 3)
    if change == "version":
        children = replace(children, version=run.version + 1)
    elif change == "worker":
        children = replace(children, worker="somebody")
    elif change == "settled":
        await store.store.settle([harness.settlement(run, Released())])
    else:
        await cancel(store.store, run.id)
    before = await tables(store)
    expected = Hold.CANCEL if change == "cancelled" else Hold.LOST
    assert await store.store.start_children(children) == (expected, [])
    assert await tables(store) == before


async def test_a_cancel_reaches_the_children(store: Harness) -> None:
    run = await store.claimed()
    children = children_of(run, 1, 3)
    await store.store.start_children(children)
    [first] = (await store.claim("w2", limit=1)).jobs
    await cancel(store.store, run.id)
    found = await store.store.read([job.id for job in children.jobs], Job)
    assert {found[job.id].status for job in children.jobs if job.id != first.id} == {Status.CANCELLED}
    assert found[first.id].status is Status.CANCEL_REQUESTED
    await legal(store)


async def test_a_requeue_reaches_the_children_that_have_not_completed(store: Harness) -> None:
    run = await store.claimed()
    children = children_of(run, 1, 3)
    await store.store.start_children(children)
    ends: list[Outcome] = [Completed(1), FAILS, GaveUp("no")]
    for job, outcome in zip(sorted(await claim(store.store), key=lambda one: one.id), ends, strict=True):
        await end(store.store, job, outcome)
    await store.store.settle([harness.settlement(run, FAILS, ran=0.0)])
    await requeue(store.store, run.id)
    again = await claim(store.store)
    assert len(again) == 3  # the owner, and two children
    owner = next(job for job in again if job.id == run.id)
    opened = [edge for edge in (await store.store.read([run.id], StoredEdges))[run.id].items if edge.is_open]
    assert len(opened) == 2
    for job in again:
        if job.id != run.id:
            await end(store.store, job)
    await end(store.store, owner)
    await legal(store)


# ── Looking ──


async def test_the_graph_and_the_list(store: Harness) -> None:
    first = await made(store.store, DIAMOND, name="first")
    second = await made(store.store, BRANCHES, name="second")
    [a] = [job for job in await claim(store.store) if job.id == second["a"]]
    await end(store.store, a, result(amount=500))
    graph = await store.store.flow_graph(second.id)
    assert graph is not None
    assert graph.nodes == [(second[name], name) for name in BRANCHES]
    assert {second.names[job_id]: status.value for job_id, status in graph.jobs.items()} == await second.statuses()
    assert {(second.names[edge.parent], second.names[edge.child]) for edge in graph.edges} == {
        ("a", "big"),
        ("a", "small"),
        ("big", "join"),
        ("small", "join"),
    }
    assert [row.id for row in await store.store.flows()] == [second.id, first.id]
    assert [row.id for row in await store.store.flows(before=second.id)] == [first.id]
    assert [row.id for row in await store.store.flows(name="first")] == [first.id]
    assert [row.id for row in await store.store.flows(limit=1)] == [second.id]
    assert await store.store.flows([NOBODY]) == []
    assert await store.store.flow_graph(NOBODY) is None
    [row] = await store.store.flows([second.id])
    assert (row.name, row.by, row.jobs, row.untaken) == ("second", "ann", 4, 1)


async def test_a_flow_is_not_held_while_a_job_is_about_to_start(
    store: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_yet(**_: Any) -> set[str]:
        return set()

    nodes = {"a": node(), "held": node("a", if_failed="hold"), "behind": node("held"), "b": node(), "c": node("b")}
    flow = await made(store.store, nodes)
    a, b = await flow.runs("a", "b")
    await end(store.store, a, FAILS)
    with monkeypatch.context() as patched:  # PostgreSQL starts c in a transaction of its own, a moment later
        patched.setattr(store.store, "_advance", not_yet, raising=False)
        await store.store.settle([settlement(b, Completed(), ran=0.0)])
        [row] = await store.store.flows([flow.id])
        assert (flow_status(row), row.held) == ("running", 1)
    await tick(store.store)
    await flow.run("c")
    [row] = await store.store.flows([flow.id])
    assert flow_status(row) == "held"


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ({}, "running"),
        ({"a": Completed(), "b": Completed()}, "completed"),
        ({"a": FAILS}, "failed"),
        ({"a": GaveUp("no")}, "cancelled"),
        ({"a": Completed(), "b": FAILS}, "failed"),
    ],
)
async def test_the_status_of_a_flow(store: Harness, ends: Mapping[str, Outcome], status: str) -> None:
    nodes: dict[str, Node] = {"a": node(), "b": node("a")}
    flow = await made(store.store, nodes)
    for name, outcome in ends.items():
        await flow.run(name, outcome)
    [row] = await store.store.flows([flow.id])
    assert flow_status(row) == status
