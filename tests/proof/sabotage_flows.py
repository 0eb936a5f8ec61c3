"""The defences of flows: see sabotage.py."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

import rowlock.stores.flows
import rowlock.stores.postgres.flows
import rowlock.stores.postgres.insert_on_conn
import rowlock.stores.postgres.moves
import rowlock.stores.sqlite.flows
import rowlock.stores.sqlite.moves
import rowlock.stores.sqlite.settle
from rowlock.core.flows import Block, Edge, Plan
from rowlock.core.job import own_line
from rowlock.core.moves import Requeue
from rowlock.stores.base import Hold
from rowlock.stores.postgres.statements import Statements
from tests.proof import detectors_flows as red
from tests.proof.sabotage import Defence, Switch, both, postgres, replaced, sqlite, wrapped

_FLOWS = {"postgres": rowlock.stores.postgres.flows, "sqlite": rowlock.stores.sqlite.flows}
_MOVES = {"postgres": rowlock.stores.postgres.moves, "sqlite": rowlock.stores.sqlite.moves}


def planned(around: Callable[[Any], Any]) -> Switch:
    return wrapped(rowlock.stores.flows, "plan", around)


def told(**lies: Any) -> Switch:
    """Return a switch that gives every edge these values."""

    def around(plan: Any) -> Any:
        return lambda parents, rows, edges, *rest: plan(parents, rows, [replace(one, **lies) for one in edges], *rest)

    return planned(around)


def first_is_enough(plan: Any) -> Any:
    """Ignore parents that have not ended."""

    def sabotaged(parents: Any, rows: Any, edges: Any, started: Any, watched: Any, now: Any, incomplete: Any) -> Any:
        known = [one for one in edges if not one.is_open or one.parent in parents]
        return plan(parents, rows, known, started, watched, now, frozenset())

    return sabotaged


def without(kind: type[Any]) -> Callable[[Any], Any]:
    def around(plan: Any) -> Any:
        def sabotaged(*arguments: Any) -> Any:
            decided = plan(*arguments)
            return Plan(decided.edges, [one for one in decided.orders if not isinstance(one[0], kind)])

        return sabotaged

    return around


def _filled_again(plan: Any) -> Any:
    """Let edges go on saying that a result must be filled in."""

    def sabotaged(*given: Any) -> Any:
        decided = plan(*given)
        return replace(decided, edges=[replace(one, fills=True) for one in decided.edges])

    return sabotaged


def always_because_of_parents(plan: Any) -> Any:
    """Let each cancelled job count as stopped by its parents."""

    def stopped(edge: Edge) -> Edge:
        bad = edge.verdict is None and edge.ended not in (None, "completed") and edge.condition is None
        return replace(edge, verdict="stop") if bad else edge

    return lambda parents, rows, edges, *rest: plan(parents, rows, [stopped(one) for one in edges], *rest)


def _unnoted(patch: Any) -> Any:
    return lambda self, row, now, holder: replace(patch(self, row, now, holder), is_noted=False)


def _nothing_is_reached(plan: Any) -> Any:
    return lambda parents, rows, edges, started, *rest: plan(parents, rows, edges, {}, *rest)


def _others_are_forgotten(advancing: Any) -> Any:
    """Don't look again at the lines of parents that were read along with others."""

    def sabotaged(noted: Any, limit: int) -> Any:
        steps = advancing(noted, limit)
        ask, others = next(steps), set[str]()
        try:
            while True:
                if isinstance(ask, rowlock.stores.flows.ReadParents) and not ask.lines:
                    others |= {own_line(one) for one in ask.ids}
                ask = steps.send((yield ask))
        except StopIteration as end:
            return replace(end.value, lines=end.value.lines - others)

    return lambda noted, limit=rowlock.stores.flows.BATCH: sabotaged(noted, limit)


def _pruned_are_forgotten(advancing: Any) -> Any:
    """Don't read the edges of removed jobs."""

    def sabotaged(noted: Any, limit: int) -> Any:
        steps = advancing(noted, limit)
        ask, known = next(steps), set[str]()
        try:
            while True:
                answer = yield ask
                if isinstance(ask, rowlock.stores.flows.LockJobs):
                    known = {row.id for row in answer[1]}
                if isinstance(ask, rowlock.stores.flows.ReadEdges | rowlock.stores.flows.ReadPairs):
                    answer = [edge for edge in answer if edge.child in known]
                ask = steps.send(answer)
        except StopIteration as end:
            return end.value

    return lambda noted, limit=rowlock.stores.flows.BATCH: sabotaged(noted, limit)


def _on_conn(name: str, old: str, new: str) -> Switch:
    """Return a switch for statements that callers' connections use. The product keeps those for ever, so make them
    anew."""
    fresh = replaced(_FLOWS["postgres"], "statements_on_conn", lambda schema: Statements(f'"{schema}"'))
    return both(postgres(name, old, new), fresh)


def _sql(name: str, old: str, new: str) -> Switch:
    return sqlite(_FLOWS["sqlite"], name, old, new)


def _decided(name: str, off: Switch, detector: Any) -> Defence:
    """Return a defence of `plan`. Both stores do what `plan` decides, so one store is enough."""
    return Defence(name, "sqlite", off, detector)


_LOCKED = "WHERE j.id = s.id FOR NO KEY UPDATE"

FLOWS: tuple[Defence, ...] = (
    # ── Decisions ──
    _decided("a join waits for all", planned(first_is_enough), red.join),
    _decided("if_failed: cancel", told(if_failed="run"), red.bad_end),
    _decided("if_failed: hold", told(if_failed="run"), red.hold),
    _decided("conditions", told(condition=None), red.untaken),
    _decided("what was stopped comes back", planned(without(Block)), red.comes_back),
    _decided("but not what a person has cancelled", planned(always_because_of_parents), red.stays_cancelled),
    Defence(
        "what is stopped stops others", "sqlite", replaced(rowlock.stores.flows, "lines", lambda _: []), red.bad_end
    ),
    _decided("a payload is filled in once", planned(_filled_again), red.filled_once),
    _decided("a requeue is noted", wrapped(Requeue, "patch", _unnoted), red.forgiven),
    _decided("a call is over after the last child", planned(first_is_enough), red.children),
    _decided("a cancel reaches children", planned(_nothing_is_reached), red.cancel_of_children),
    _decided("a requeue reaches children", planned(_nothing_is_reached), red.requeue_of_children),
    *(
        Defence("a requeued leaf waits again", store, wrapped(module, "lined", lambda _: lambda rows, _: rows),
                red.together)
        for store, module in _MOVES.items()
    ),
    Defence(
        "nobody asks for what is pruned", "postgres",
        wrapped(_FLOWS["postgres"], "advancing", _pruned_are_forgotten), red.many_pruned, waits=True,
    ),
    # ── Writes and reads ──
    Defence("a person forgives", "postgres", postgres("flow_forgive", "WHERE", "WHERE false AND"), red.forgiven),
    Defence(
        "a person forgives", "sqlite",
        sqlite(_MOVES["sqlite"], "flow_forgive", "WHERE", "WHERE false AND"), red.forgiven,
    ),
    Defence("awaited jobs stay", "postgres", postgres("flow_awaited", "WHERE", "WHERE false AND"), red.awaited),
    Defence(
        "awaited jobs stay", "sqlite",
        sqlite(_MOVES["sqlite"], "flow_awaited", "WHERE", "WHERE false AND"), red.awaited,
    ),
    Defence(
        "edges go with their child", "postgres", postgres("flow_drop_edges", "WHERE", "WHERE false AND"),
        red.deleted_child,
    ),
    Defence(
        "edges go with their child", "sqlite",
        sqlite(_MOVES["sqlite"], "flow_drop_edges", "WHERE", "WHERE false AND"), red.deleted_child,
    ),
    Defence(
        "the end of a job outside is noted", "postgres",
        _on_conn("flow_outside_on_conn", "WHERE line IS NULL", "WHERE false"), red.outside,
    ),
    Defence("the end of a job outside is noted", "sqlite", _sql("flow_watch", "WHERE", "WHERE false AND"), red.outside),
    Defence(
        "a job outside that has ended", "postgres",
        _on_conn("flow_insert_on_conn", "json_array_elements_text(g->'lines')",
                 "json_array_elements_text('[]')"), red.outside_has_ended,
    ),
    Defence(
        "a job outside that has ended", "sqlite",
        wrapped(_FLOWS["sqlite"], "_watch_outside", lambda watch: lambda conn, flow: (watch(conn, flow)[0], [])),
        red.outside_has_ended,
    ),
    *(
        Defence("unknown parents", store, replaced(module, "refuse_missing", lambda *_: None), red.unknown_parent)
        for store, module in _FLOWS.items()
    ),
    *(
        Defence("a key that is taken", store, replaced(module, "refuse_taken", lambda *_: None), red.key_taken)
        for store, module in _FLOWS.items()
    ),
    Defence(
        "a repeat writes no edge",
        "postgres",
        both(
            replaced(_FLOWS["postgres"], "refuse_taken", lambda *_: False),
            _on_conn(
                "flow_insert_on_conn",
                "ON CONFLICT DO NOTHING RETURNING",
                "ON CONFLICT (child, parent) DO UPDATE SET ended = NULL RETURNING",
            ),
        ),
        red.repeated,
    ),
    Defence(
        "a repeat writes no edge",
        "sqlite",
        both(
            replaced(_FLOWS["sqlite"], "refuse_taken", lambda *_: False),
            _sql("flow_insert_edge", "DO NOTHING", "(child, parent) DO UPDATE SET ended = NULL"),
        ),
        red.repeated,
    ),
    Defence(
        "flows with jobs stay", "postgres",
        postgres("prune_flows", "WHERE NOT EXISTS (SELECT FROM", "WHERE true OR NOT EXISTS (SELECT FROM"), red.pruned,
    ),
    Defence("flows with jobs stay", "sqlite", _sql("drop_flow", "\n  AND NOT", "\n  OR NOT"), red.pruned),
    # ── Who may start children ──
    Defence(
        "children: by the version", "postgres", postgres("flow_own", "version = $2::int", "$2::int >= 0"),
        red.fence_by_version,
    ),
    Defence(
        "children: by the worker", "postgres", postgres("flow_own", "$3::text", "nullif($3::text, $3::text)"),
        red.fence_by_worker,
    ),
    *(
        Defence(f"children: the run must hold its job, {detector.__name__}", "sqlite",
                replaced(rowlock.stores.sqlite.settle, "look", lambda conn, beats: [Hold.KEPT]), detector)
        for detector in (red.fence_by_version, red.fence_by_worker)
    ),
    # ── Two processes at once ──
    Defence(
        "one process at a time looks at a job", "postgres",
        postgres("lock_jobs", _LOCKED, "WHERE j.id = s.id"), red.two_ends,
    ),
    Defence(
        "parents by the way are looked at again", "postgres",
        wrapped(_FLOWS["postgres"], "advancing", _others_are_forgotten), red.end_during_a_requeue,
    ),
)  # fmt: skip
