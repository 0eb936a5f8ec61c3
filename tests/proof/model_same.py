"""Treat equivalent states as one: states in which workers have changed places, or that differ only in runs that no
process knows any more. Versions are names: only their equality and their order count. A run that no worker holds and no
message names can't come back, because versions only grow. (A sabotage of that is explored without this.)"""

from functools import cache
from typing import Any, TypeVar, cast

from tests.proof.model import OPEN, Row
from tests.proof.model_state import Reply, Request, State, Worker

Named = TypeVar("Named", bound=tuple[Any, ...])  # the first two items are job and version


class Sameness:
    def __init__(self) -> None:
        self._order: dict[Worker, int] = {}

    def __call__(self, state: State) -> State:
        return self._sorted(_without_the_past(_without_futile(state)))

    def _sorted(self, state: State) -> State:
        order = [self._order.setdefault(worker, len(self._order)) for worker in state.workers]
        if order == sorted(order):
            return state
        ranks = sorted(range(len(order)), key=order.__getitem__)
        new_name = {old: new for new, old in enumerate(ranks)}
        return state._replace(
            workers=tuple(state.workers[old] for old in ranks),
            jobs=tuple(
                row._replace(holder=new_name[row.holder]) if row.holder in new_name else row for row in state.jobs
            ),
            late=tuple((new_name.get(name, name), request) for name, request in state.late),
        )


def _without_futile(state: State) -> State:
    """Return the state without the late requests that can't change anything any more."""
    for at, (_, request) in enumerate(state.late):
        if not request.claim and all(state.jobs[job].ends[version - 1] != OPEN for job, version, _ in request.wishes):
            return _without_futile(state._replace(late=state.late[:at] + state.late[at + 1 :]))
    return state


def _without_the_past(state: State) -> State:
    known = _known(state)
    if len(known) == sum(len(row.ends) for row in state.jobs):
        return state
    names: list[dict[int, int]] = [{} for _ in state.jobs]
    for job, version in sorted(known):
        names[job][version] = len(names[job]) + 1
    return State(
        jobs=tuple(_renamed_row(row, new) for row, new in zip(state.jobs, names, strict=True)),
        workers=tuple(_renamed_worker(worker, names) for worker in state.workers),
        budget=state.budget,
        late=tuple((name, _renamed_request(request, names)) for name, request in state.late),
        orders=tuple((dead, _renamed(started, names), marked) for dead, started, marked in state.orders),
        picked=state.picked,
    )


def _known(state: State) -> set[tuple[int, int]]:
    """Return the runs that a worker, a message or a supervisor may still name, as (job, version)."""
    known = {(job, row.version) for job, row in enumerate(state.jobs) if row.version}
    for worker in state.workers:
        known |= _known_to(worker)
    for _, request in state.late:
        known.update((job, version) for job, version, _ in request.wishes)
    for _, started, _ in state.orders:
        known.update(started)
    return known


@cache
def _known_to(worker: Worker) -> frozenset[tuple[int, int]]:
    known = {(run.job, run.version) for run in worker.runs}
    for request, reply in worker.rounds:
        known.update((job, version) for job, version, _ in request.wishes)
        if reply is not None:
            known.update((job, version) for job, version, *_ in reply.claimed)
            known.update(reply.held)
    return frozenset(known)


def _renamed_row(row: Row, new: dict[int, int]) -> Row:
    return row._replace(
        version=new.get(row.version, 0),
        started=new.get(row.started, 0),
        reporter=new.get(row.reporter, 0),
        ends=tuple(row.ends[old - 1] for old in new),
        began=sum((row.began >> old & 1) << now for old, now in new.items()),
        running=sum((row.running >> old & 1) << now for old, now in new.items()),
    )


def _renamed(these: tuple[Named, ...], names: list[dict[int, int]]) -> tuple[Named, ...]:
    return tuple(cast(Named, (one[0], names[one[0]][one[1]], *one[2:])) for one in these)


def _renamed_request(request: Request, names: list[dict[int, int]]) -> Request:
    return request._replace(wishes=_renamed(request.wishes, names))


def _renamed_worker(worker: Worker, names: list[dict[int, int]]) -> Worker:
    return worker._replace(
        runs=tuple(run._replace(version=names[run.job][run.version]) for run in worker.runs),
        rounds=tuple(
            (_renamed_request(request, names), None if reply is None else _renamed_reply(reply, names))
            for request, reply in worker.rounds
        ),
    )


def _renamed_reply(reply: Reply, names: list[dict[int, int]]) -> Reply:
    return Reply(reply.said, _renamed(reply.claimed, names), _renamed(reply.held, names))
