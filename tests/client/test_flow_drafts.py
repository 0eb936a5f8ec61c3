"""A flow that is built wrongly is refused at once, with an error that says what to do. No database is needed."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from rowlock import Jobs, Node
from rowlock.client.flows import Flow
from rowlock.core.rules import parse_condition
from rowlock.errors import InvalidInput, WrongContext

JOB = "01a1eee9-dc82-7000-a11b-4d35fcdc028c"


@pytest.fixture
def flow() -> Flow:
    """Return a flow with a node `pay`, and with `before`, a job that exists already."""
    found = Jobs("sqlite://").flow("order")
    found.add(("order.pay", {}), name="pay")
    found.job(JOB, name="before")
    return found


def refused(call: Callable[[], object]) -> tuple[str, str, str]:
    with pytest.raises(InvalidInput) as error:
        call()
    return error.value.field, error.value.code, error.value.problem


@pytest.mark.parametrize("use", [str, bool, list, "{}".format, lambda result: f"a text with {result}"])
def test_a_result_that_is_not_there_yet_can_not_be_used(flow: Flow, use: Callable[[Any], object]) -> None:
    paid: Node[Any] = flow.add(("order.pay", {}))
    for result in (paid.result, paid.result.amount):
        with pytest.raises(
            TypeError, match=r"^<the result of order_pay(\.amount)?> is not there yet: give it to a job"
        ):
            use(result)


def test_a_refused_node_is_not_among_those_that_are_named(flow: Flow) -> None:
    nowhere = refused(lambda: flow.add(("ship", {"charge": {"$result": "shop"}})))
    assert nowhere == ("payload.charge", "unknown_parent", "shop is no node of this flow; there are: pay")
    *_, problem = refused(lambda: flow.add(("ship", {}), after="shop"))
    assert problem == "'shop' is neither a node of this flow nor the id of a job; nodes: pay"
    assert flow.add(("ship", {}), after="pay").name == "ship"  # the refused node has freed its name


def test_the_result_of_a_job_from_before_is_not_filled_in(flow: Flow) -> None:
    field, code, problem = refused(lambda: flow.add(("ship", {"charge": flow.job(JOB).result})))
    assert (field, code) == ("payload.charge", "unknown_parent")
    assert problem == "the result of before can't be filled in, because it was enqueued before: read it in the handler"


def test_a_result_in_a_plain_payload(flow: Flow) -> None:
    paid: Node[Any] = flow.add(("order.pay", {}), name="paid")
    payload: dict[str, Any] = {"charge": paid.result.amount, "all": [{"deep": (paid.result, 5)}], "text": "a"}
    shipped = flow.add(("ship", payload))
    added = flow._added[shipped.name]
    assert added.draft.payload == {
        "charge": {"$result": ["paid", "amount"], "$of": paid.id},
        "all": [{"deep": [{"$result": ["paid"], "$of": paid.id}, 5]}],
        "text": "a",
    }
    assert list(added.parents) == ["paid"]
    assert isinstance(payload["all"][0]["deep"], tuple)  # the caller's payload is unchanged


def test_nodes_by_their_names(flow: Flow) -> None:
    flow.add(("ship", {}), after=["pay", "before"], name="ship")
    flow.add(("mail", {}), name="mail")
    flow.wait("mail", "before", if_failed="run")
    parents = {name: {one.node.id for one in added.parents.values()} for name, added in flow._added.items()}
    pay = flow._added["pay"].node.id
    assert parents == {"pay": set(), "ship": {pay, JOB}, "mail": {JOB}}


@pytest.mark.parametrize("child", ["shop", "before", Node("pay", JOB)])
def test_only_a_job_of_the_flow_can_wait(flow: Flow, child: Node[Any] | str) -> None:
    field, code, problem = refused(lambda: flow.wait(child, "pay"))
    assert (field, code) == ("child", "unknown_node")
    assert problem == f"{child!r} is no job of this flow; there are: pay"


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("pay.status = 'faled'", "no job ends as 'faled'; there are completed, failed, expired, cancelled, deleted"),
        ("'pending' != pay.status", "no job ends as 'pending'"),
        ("pay.status == 'failed'", "must stand here. One = compares"),
        ("pay.result >", "the status, result or error of a parent, @now, a text in quotes"),
    ],
)
def test_a_condition_with_a_mistake(flow: Flow, condition: str, problem: str) -> None:
    field, code, said = refused(lambda: flow.add(("undo", {}), after="pay", when=condition))
    assert (field, code) == ("when", "bad_rule")
    assert problem in said


@pytest.mark.parametrize(
    "condition",
    [
        "pay.status = 'failed' || pay.status != 'deleted'",
        "pay.status ~ 'can%'",
        "pay.result.status = 'shipped'",
        "pay.result = 'faled'",
    ],
)
def test_a_condition_without_one(condition: str) -> None:
    parse_condition(condition, ["pay"])


def test_a_result_of_another_flow(flow: Flow) -> None:
    """The nodes of both flows have the same name. The name alone would give the result of this flow's node."""
    other: Node[Any] = Jobs("sqlite://").flow("other").add(("order.pay", {}), name="pay")
    assert refused(lambda: flow.add(("ship", {"charge": other.result})))[:2] == ("payload.charge", "unknown_parent")
    assert list(flow._added) == ["pay"]


@pytest.mark.parametrize("after", [UUID(JOB), 7, [7], {"a": 1}.values()])
def test_what_is_no_node_leaves_nothing_behind(flow: Flow, after: Any) -> None:
    assert refused(lambda: flow.add(("ship", {}), after=after))[:2] == ("after", "not_a_node")
    assert list(flow._added) == ["pay"]


def test_a_condition_is_not_replaced(flow: Flow) -> None:
    flow.add(("ship", {}), after="pay", when="pay.result > 1")
    flow.add(("pack", {}), name="pack")
    both: Any = ["pack", "pay"]
    assert refused(lambda: flow.wait("ship", both, if_failed="run"))[:2] == ("parent", "both_given")
    wrong: Any = ["pay", 5]
    assert refused(lambda: flow.wait("pack", wrong))[:2] == ("after", "not_a_node")
    assert [list(flow._added[name].parents) for name in ("ship", "pack")] == [["pay"], []]


async def test_a_flow_that_is_enqueued_takes_no_more_jobs() -> None:
    async with Jobs("sqlite://") as jobs:
        flow = jobs.flow("order")
        flow.add(("order.pay", {}), name="pay")
        await flow.enqueue()
        with pytest.raises(WrongContext, match="was enqueued before"):
            flow.add(("ship", {}))
        with pytest.raises(WrongContext, match="was enqueued before"):
            flow.wait("pay", JOB)
