from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, BinaryIO

import click

from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.options import together
from rowlock.cli.show import (
    exact,
    how_many,
    is_fancy,
    items,
    moment,
    note,
    print_fields,
    print_heading,
    print_table,
)
from rowlock.client.flows import EnqueuedFlow, FlowEdge, FlowNode, FlowView, Graph
from rowlock.core.job import Status
from rowlock.jobs import Jobs

_PAGE = 200
_DEEPEST = 18  # columns of the lines before a name: those of deeper jobs are cut on their left
_WIDE = 120  # columns of a terminal in which long names have room
_LONGEST, _LONGEST_IF_NARROW = 60, 24  # characters of a name on a terminal


@click.group(cls=Group)
def flows() -> None:
    """Jobs that wait for each other."""


# ── See ──


@flows.command("list")
@click.option("--name", metavar="TEXT", help="Only flows of this name.")
@click.option("--limit", type=click.IntRange(1, _PAGE), default=50, show_default=True, metavar="N")
@click.option("--cursor", metavar="TEXT", help="Continue after an earlier page (its `next`).")
@database
def list_flows(db: Database, **wanted: Any) -> None:
    """Flows, newest first."""
    page = db.run(lambda jobs: jobs.flows.list(**wanted))
    db.tell({**items(page.items), "next": page.next}, lambda: _print(page.items))
    if page.next is not None and not db.wants_json:
        note(f"{how_many(len(page.items), 'flow')} shown; continue with --cursor {shlex.quote(page.next)}")


def _print(found: Sequence[FlowView]) -> None:
    rows = [
        (one.id, one.name, one.status, f"{one.progress:.0f}%", f"{one.jobs:,}", moment(one.created), _held(one))
        for one in found
    ]
    print_table(("id", "name", "status", "ended", "jobs", "created", "note"), rows)


def _held(flow: FlowView) -> str:
    return f"{flow.held:,} held" if flow.held else ""


@flows.command()
@click.argument("flow_id", metavar="ID")
@database
def show(db: Database, flow_id: str) -> None:
    """A flow as a tree: each job stands below the last of those that it waits for."""
    from rowlock.http.flows import graph_body  # the same JSON as over HTTP

    graph = db.run(lambda jobs: jobs.flows.graph(flow_id))
    db.tell(graph_body(graph) if db.wants_json else None, lambda: _print_graph(graph))
    if graph.flow.held and not db.wants_json:
        note(
            f"{how_many(graph.flow.held)} held: `rowlock flows release ID` lets one run, `rowlock jobs cancel ID` "
            "gives it up"
        )


def _print_graph(graph: Graph) -> None:
    flow = graph.flow
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(flow.counts.items()))
    print_fields(
        [
            ("name", flow.name),
            ("id", flow.id),
            ("status", flow.status),
            ("ended", f"{flow.progress:.0f}% of {how_many(flow.jobs)}"),
            ("jobs", counts),
            ("by", flow.by),
            ("created", exact(flow.created)),
        ]
    )
    print_heading("jobs")
    edges: dict[str, list[FlowEdge]] = defaultdict(list)
    for edge in graph.edges:
        edges[edge.child].append(edge)
    names = {node.id: node.name for node in graph.nodes}
    rows = []
    for lines, node in _tree(graph):
        said = _note(node, edges[node.id], names, is_deep=len(lines) == _DEEPEST)
        rows.append((f"{lines}{_name(node)}", _status(node), node.job.topic if node.job else "", said))
    print_table(("job", "status", "topic", "note"), rows)


def _tree(graph: Graph) -> Iterator[tuple[str, FlowNode]]:
    """Yield the nodes, each with the lines that lead to it."""
    above: dict[str, str] = {}
    place = {node.id: n for n, node in enumerate(graph.nodes)}
    for edge in graph.edges:
        # A job that was started by ctx.gather stands below the job that started it.
        parent, child = (edge.parent, edge.child) if edge.call is None else (edge.child, edge.parent)
        if child not in above or place[above[child]] < place[parent]:
            above[child] = parent
    below: dict[str | None, list[FlowNode]] = defaultdict(list)
    for node in graph.nodes:
        below[above.get(node.id)].append(node)
    todo = [("", "", node) for node in reversed(below[None])]
    while todo:
        lines, indent, node = todo.pop()
        yield lines, node
        children = below[node.id]
        for n, one in enumerate(reversed(children)):
            corner, line = ("└─ ", "   ") if n == 0 else ("├─ ", "│  ")
            todo.append(((indent + corner)[-_DEEPEST:], (indent + line)[-_DEEPEST:], one))


def _name(node: FlowNode) -> str:
    if not is_fancy():
        return node.name
    most = _LONGEST if get_terminal_size().columns >= _WIDE else _LONGEST_IF_NARROW
    return f"{node.name[: most - 1]}…" if len(node.name) > most else node.name


def _status(node: FlowNode) -> str:
    if node.held:
        return "held"
    return (node.status or "gone") if node.taken else "not taken"


def _note(node: FlowNode, edges: Sequence[FlowEdge], names: Mapping[str, str], *, is_deep: bool) -> str:
    """`is_deep`: the lines before its name don't show where it belongs."""
    waits = [edge for edge in edges if edge.call is None]
    conditions = dict.fromkeys(edge.when for edge in waits if edge.when is not None)
    said = []
    if node.outside:
        said.append("not part of the flow")
    if node.job is not None and node.status == Status.PROCESSING:
        said.append(f"{node.job.progress:.0f}%")
    if len(waits) > 1 or (is_deep and waits):
        said.append(f"after {', '.join(names[edge.parent] for edge in waits)}")
    said += [f"when {condition}" for condition in conditions]
    if node.held:
        said.append(f"release: {node.id}")
    return "; ".join(said)


# ── Change ──

_branch = together(
    click.argument("flow_id", metavar="ID"),
    click.option("--node", metavar="NAME", help="Only this job, by its name or id, and those that wait for it."),
)


@flows.command()
@_branch
@actor
@database
def cancel(db: Database, flow_id: str, node: str | None) -> None:
    """Cancel the live jobs of a flow, or of a branch."""
    _tell(db, db.run(lambda jobs: jobs.flows.cancel(flow_id, node=node, reason=db.reason)), "cancelled")


@flows.command()
@_branch
@actor
@database
def requeue(db: Database, flow_id: str, node: str | None) -> None:
    """Run the failed and expired jobs of a flow again, or of a branch.

    Jobs that were cancelled because of them wait again. If no job has failed or expired, the cancelled jobs are
    requeued.
    """
    _tell(db, db.run(lambda jobs: jobs.flows.requeue(flow_id, node=node, reason=db.reason)), "requeued")


@flows.command()
@click.argument("flow_id", metavar="ID")
@actor
@database
def delete(db: Database, flow_id: str) -> None:
    """Delete a flow and its jobs, if none of them is live. Audit entries stay."""
    _tell(db, db.run(lambda jobs: jobs.flows.delete(flow_id, reason=db.reason)), "deleted")


def _tell(db: Database, changed: int, verb: str) -> None:
    db.tell({"changed": changed}, f"{how_many(changed)} {verb}")


@flows.command()
@click.argument("job_id", metavar="JOB")
@actor
@database
def release(db: Database, job_id: str) -> None:
    """Let a job run that is held, because a job that it waits for has failed.

    To give it up instead: rowlock jobs cancel JOB
    """
    db.run(lambda jobs: jobs.flows.release(job_id, reason=db.reason))
    db.tell({"id": job_id, "released": True}, f"{job_id} is released")


@flows.command()
@click.argument("file", metavar="FILE|-", type=click.File("rb"))
@actor
@database
def create(db: Database, file: BinaryIO) -> None:
    """Add the jobs of a flow, all or none, and print the id of the flow.

    FILE is the JSON that POST /api/flows takes; - is stdin.

    \b
    {"name": "order", "jobs": [
      {"name": "pay", "topic": "charge", "payload": {"order": 7}},
      {"name": "ship", "topic": "ship", "after": ["pay"], "if_failed": "hold"}
    ]}
    """
    from rowlock.http.flows import FlowCreateBody, put_together
    from rowlock.http.parse import read_body
    from rowlock.http.problems import Problem

    try:
        asked = read_body(FlowCreateBody, file.read())
    except Problem as problem:
        raise click.BadParameter(problem.detail, param_hint="FILE") from None

    async def add(jobs: Jobs) -> EnqueuedFlow:
        flow = jobs.flow(asked.name)
        put_together(flow, asked.jobs, asked.id)
        return await flow.enqueue()

    made = db.run(add, create=True)
    db.tell(made, made.id)
