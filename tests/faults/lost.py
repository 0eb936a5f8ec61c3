"""Find what a failover has lost in the old primary's own log, and excuse exactly that in the history."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, structs

from tests.faults.replication import Server, position
from tests.faults.results import Result, figures
from tests.faults.stage import Stage
from tests.proof.checker import check
from tests.proof.checker_clients import SOURCES
from tests.proof.history import Execution, History, Operation, RowChange, Violation
from tests.proof.lives import HELD, World
from tests.proof.recorder import now
from tests.proof.witness import ARCHIVE, JOBS, SIGNALS, TablesAt, Witness

Run = tuple[str, int, str]  # job, version, worker
SOON = 100_000  # microseconds within which an outcome is stored, if it is not refused


class Lost(Struct):
    gone: int
    """When the primary was killed, and when the other one was promoted: microseconds by CLOCK_MONOTONIC."""
    promoted: int
    transactions: int
    changes: list[RowChange]
    marks: set[str]
    wrong: list[Violation]
    """Differences between what was lost and what the standby had not received."""

    @property
    def made(self) -> set[str]:
        return {one.after["id"] for one in self.changes if (one.table, one.op) == (JOBS, "insert") and one.after}

    @property
    def claims(self) -> set[Run]:
        return {
            (one.after["id"], one.after["version"], one.after["locked_by"])
            for one in self.changes
            if one.table == JOBS and one.before and one.after and one.after["version"] > one.before["version"]
        }

    @property
    def signalled(self) -> set[str]:
        """Return the ids of jobs whose signals were lost."""
        return {one.after["job_id"] for one in self.changes if (one.table, one.op) == (SIGNALS, "insert") and one.after}

    @property
    def completed(self) -> int:
        return sum((one.table, one.op) == (ARCHIVE, "insert") for one in self.changes)


async def lost_with(dead: Server, promoted: Server, begin: str, gone: int, at: int) -> Lost:
    """Return what was lost with the dead server. `begin`: a position in its log from before the standby was cut off."""
    switch = position(promoted.came_from())
    late = {tx for tx, place in dead.committed_since(begin).items() if place >= switch}
    async with dead.alone():
        old, old_marks = await known_to(dead)
    new, new_marks = await known_to(promoted)
    lost = [change for change in old if change.tx in late]
    killed = gone + time.time_ns() // 1000 - now()
    return Lost(gone, at, len(late), lost, old_marks - new_marks, [*not_the_suffix(old, new, late, killed)])


async def known_to(server: Server) -> tuple[list[RowChange], set[str]]:
    marks = {str(mark) for (mark,) in await server.fetch("SELECT mark FROM marked")}
    return await Witness(TablesAt(server.url())).changes(), marks


def not_the_suffix(old: list[RowChange], new: list[RowChange], late: set[int], killed: int) -> Iterator[Violation]:
    there = {(one.seq, one.at, one.tx): one for one in new}
    for one in old:
        same = there.pop((one.seq, one.at, one.tx), None) == one
        if same == (one.tx in late):
            text = "is there, and had never reached the standby" if same else "had reached the standby, and is lost"
            yield Violation("SUFFIX", None, f"#{one.seq} ({one.op} in {one.table}, transaction {one.tx}) {text}")
    for one in there.values():
        if one.at < killed:
            text = f"#{one.seq} ({one.op} in {one.table}) was not made by the old primary, and is older than its end"
            yield Violation("SUFFIX", None, text)


# ── Judging what is left ──


async def judge(stage: Stage, losses: list[Lost], result: Result) -> Result:
    history = await stage.collect()
    marks = {str(mark) for (mark,) in await stage.tables.fetch("SELECT mark FROM marked")}
    runs = forget_lost(history, losses, marks)
    result.violations += [one for lost in losses for one in lost.wrong]
    result.violations += await asyncio.to_thread(check, history)
    result.violations += [*heard(history, runs, marks)]
    beside = len([*beside_their_successors(history, runs)])
    assert beside, "no run of a lost version ended beside its successor: nothing was tried"
    result.figures = {
        **figures([history]),
        "transactions lost": sum(lost.transactions for lost in losses),
        "acknowledged jobs lost with them": sum(len(lost.made) for lost in losses),
        "completions lost": sum(lost.completed for lost in losses),
        "claims lost": sum(len(lost.claims) for lost in losses),
        "old runs that ended beside the new run of their version": beside,
        **result.figures,
    }
    return result


def forget_lost(history: History, losses: list[Lost], marks: set[str]) -> list[Execution]:
    """Drop from the record what was lost: the new primary's history doesn't have it either. Return the dropped runs."""
    history.operations = [found for one in history.operations if (found := _excused(one, losses, marks)) is not None]
    claims = {run for lost in losses for run in lost.claims}
    world = World(history)
    dropped = [run for run in history.executions if _is_lost(world, claims, run)]
    gone = {id(run) for run in dropped}
    history.executions = [run for run in history.executions if id(run) not in gone]
    return dropped


def _excused(one: Operation, losses: list[Lost], marks: set[str]) -> Operation | None:
    mark = (one.detail or {}).get("mark")
    if mark is not None and one.detail is not None:
        run = (one.ids[0], one.detail["version"], one.detail["result"]["by"])
        refused = one.outcome != "ok" and mark not in marks and any(run in lost.claims for lost in losses)
        if refused or any(mark in lost.marks for lost in losses):
            return None
        one.detail["row_visible"] = mark in marks
    elif one.outcome == "ok" and one.verb in SOURCES:
        told = {*one.ids, *(answer["id"] for answer in _answers(one))}
        if any(one.begun < lost.promoted and told & lost.made for lost in losses):
            return structs.replace(one, outcome="unknown", answer=None)
    elif (
        one.outcome == "ok"
        and one.verb == "signal"
        and any(one.begun < lost.promoted and one.ids[0] in lost.signalled for lost in losses)
    ):
        return structs.replace(one, outcome="unknown", answer=None)
    return one


def _answers(one: Operation) -> list[dict[str, Any]]:
    answer = one.answer or {}
    found: list[dict[str, Any]] = answer.get("jobs") or ([answer] if answer else [])
    return found


def _is_lost(world: World, claims: set[Run], run: Execution) -> bool:
    """True if the run's claim was lost, and the same worker had not claimed this version again before the run began."""
    if (run.job_id, run.version, run.worker) not in claims:
        return False
    begun = world.by_database(run.begun)
    assert begun is not None
    for life in world.by_id.get(run.job_id, ()):
        claim = life.claims.get(run.version)
        if claim is not None and claim.after is not None and claim.after["locked_by"] == run.worker:
            return bool(begun + world.apart < claim.after["claimed_at"])
    return True


def beside_their_successors(history: History, runs: list[Execution]) -> Iterator[Execution]:
    """Yield the runs that ended after their version was claimed again: the store must refuse their outcomes."""
    world = World(history)
    for run in runs:
        ended = None if run.ended is None else world.by_database(run.ended)
        for life in world.by_id.get(run.job_id, ()):
            claim, end = life.claims.get(run.version), life.ends.get(run.version)
            if claim is None or ended is None or ended < claim.at:
                continue
            if end is None or ended < end.at + SOON:
                yield run


def heard(history: History, runs: list[Execution], marks: set[str]) -> Iterator[Violation]:
    """Yield a violation for each result, row or progress of these runs that the store accepted for another run."""
    said = {run.result["mark"]: run for run in runs if isinstance(run.result, dict) and "mark" in run.result}
    for row in [*history.archive.values(), *history.jobs.values()]:
        mark = row["result"].get("mark") if isinstance(row["result"], dict) else None
        if mark in said:
            yield Violation("REUSED", row["id"], f"was completed by {said[mark].worker}, whose claim was lost")
    declared = {(run.job_id, run.version, run.worker) for run in runs}
    for one in history.operations:
        detail = one.detail or {}
        if one.verb == "complete" and "mark" in detail and detail["mark"] in marks:
            run = (one.ids[0], detail["version"], detail["result"]["by"])
            if run in declared:
                yield Violation("REUSED", one.ids[0], f"{run[2]} completed it with its row, and its claim was lost")
    for change in history.changes:
        after = change.after
        if change.table != JOBS or after is None or after["topic"] != "telling" or after["status"] not in HELD:
            continue
        if after["message"] is not None and after["message"] != after["locked_by"]:
            text = f"#{change.seq}: {after['message']} reported progress of {after['locked_by']}'s run"
            yield Violation("REUSED", after["id"], text)
