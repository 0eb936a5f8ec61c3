"""The fault suite of flows in small. Its judge finds each planted fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scale import Scale
from tests.faults.suites import Cell
from tests.faults.suites.flows import run, wrongly_gathered
from tests.proof.history import History, RowChange
from tests.proof.witness import EDGES

SMALL = Scale(flows=9, flow_kills=2, restarts=1, gathered=60)


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_flows_in_small(store: str, tmp_path: Path) -> None:
    result = await run(Cell("flows", store, 1, tmp_path / "cell", SMALL))
    print(result.line())
    assert not result.bad, result.details()
    assert result.figures["flows"] == SMALL.flows
    assert result.figures["kills"] >= SMALL.flow_kills


def gathered() -> History:
    """Return the history of a job that has started three other jobs, and got their results."""
    edges = [
        RowChange(n, n, EDGES, "insert", 1, None, {"child": "owner", "parent": f"p{n}", "call": 1, "place": n})
        for n in range(3)
    ]
    owner = {"topic": "collecting", "payload": {"counts": [3]}, "status": "completed", "result": {"got": [[0, 1, 2]]}}
    pieces = {f"p{n}": {"topic": "piece", "payload": {"n": n}, "status": "completed"} for n in range(3)}
    return History("sqlite", changes=edges, archive={"owner": owner, **pieces})


def _another(history: History) -> None:
    history.jobs["p9"] = {"topic": "piece", "payload": {"n": 1}, "status": "failed"}


def _twice(history: History) -> None:
    edge: dict[str, Any] = {"child": "owner", "parent": "p9", "call": 1, "place": 2}
    history.changes.append(RowChange(9, 9, EDGES, "insert", 2, None, edge))


def _wrong_order(history: History) -> None:
    history.archive["owner"]["result"] = {"got": [[1, 0, 2]]}


def _unfinished(history: History) -> None:
    history.jobs["owner"] = history.archive.pop("owner") | {"status": "failed"}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_another, "nobody waits for it"),
        (_twice, "has started [4], not [3]"),
        (_wrong_order, "has got [[1, 0, 2]]"),
        (_unfinished, "is failed"),
    ],
)
def test_the_judge_of_gathered_results(spoil: Callable[[History], None], says: str) -> None:
    assert list(wrongly_gathered(gathered())) == []
    history = gathered()
    spoil(history)
    assert any(says in one.text for one in wrongly_gathered(history))
