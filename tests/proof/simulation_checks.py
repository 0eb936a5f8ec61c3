"""Checks of what only the simulation knows: which workers were healthy when they lost a job, and what handlers said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from tests.proof.history import Execution, History, RowChange, Violation
from tests.proof.lives import World as Lives
from tests.proof.simulation_world import EPOCH, Machine, World, excuses, overlaps
from tests.proof.witness import STEPS

_SETTLED_WITHIN = 1.0  # seconds in which a healthy worker must settle a run that has ended

_HEARD_WITHIN = 0.5  # seconds beyond a heartbeat in which a worker must hear that one of its runs is over


def check_simulation(world: World, history: History) -> list[Violation]:
    found = [Violation("L6", None, text) for text in world.bad_stops]
    found += _business(world, history)
    found += _paid(world, history)
    found += _step_values(world, history)
    found += _wait_values(world, history)
    found += _undone(history)
    found += _last_words(world, history)
    found += _taken(world, history)
    if not history.at_rest:
        left = [row for row in history.jobs.values() if row["finished_at"] is None]
        found += [Violation("L1", row["id"], f"still {row['status']} long after all was well: {row}") for row in left]
    return found


def _business(world: World, history: History) -> Iterator[Violation]:
    """A row that a handler wrote together with its completion is there once, and only with that completion."""
    written: dict[str, list[int]] = {}
    for job_id, version in world.database.conn.execute("SELECT job_id, version FROM business").fetchall():
        written.setdefault(job_id, []).append(version)
    deleted = {change.before["id"] for change in history.changes if _is_removal(change) and change.before}
    for job_id, versions in written.items():
        row = history.archive.get(job_id)
        if len(versions) > 1:
            yield Violation("S17", job_id, f"its handler's transaction was committed in runs {versions}")
        elif row is None and job_id not in deleted:
            yield Violation("S17", job_id, "its handler's transaction was committed, but it is not completed")
        elif row is not None and row["version"] != versions[0]:
            yield Violation("S17", job_id, f"committed in run {versions[0]}, completed in run {row['version']}")


def _paid(world: World, history: History) -> Iterator[Violation]:
    """A row that a step wrote together with its result is there once."""
    stored = Counter(
        (change.after["job_id"], change.after["version"])
        for change in history.changes
        if change.table == STEPS
        and change.after
        and (change.after["name"], change.after["state"]) == ("pay", "succeeded")
    )
    paid = Counter(world.database.conn.execute("SELECT job_id, version FROM paid").fetchall())
    for job_id, version in stored.keys() | paid.keys():
        if stored[job_id, version] != paid[job_id, version]:
            text = (
                f"its step wrote {paid[job_id, version]} times in run {version}, and {stored[job_id, version]} results"
            )
            yield Violation("S17", job_id, text)
    for job_id, times in Counter(job_id for job_id, _ in stored.elements()).items():
        if times > 1:  # no operator of the simulation asks for a step to be run again
            yield Violation("S21", job_id, f"its step was paid {times} times")


def _step_values(world: World, history: History) -> Iterator[Violation]:
    """ctx.step returns the stored result."""
    stored = {
        (change.after["job_id"], change.after["name"], str(change.after["result"]))
        for change in history.changes
        if change.table == STEPS and change.after and change.after["state"] == "succeeded"
    }
    for job_id, name, value in world.step_values:
        if (job_id, name, str(value)) not in stored:
            yield Violation("S21", job_id, f"its step {name} returned {value}, which was never stored")


def _wait_values(world: World, history: History) -> Iterator[Violation]:
    """ctx.wait_for returns the stored result."""
    stored = {
        (change.after["job_id"], change.after["name"], change.after["result"])
        for change in history.changes
        if change.table == STEPS and change.after and change.after["state"] == "succeeded"
        if change.after["name"].startswith("@signal:")
    }
    for job_id, signal, value in world.wait_values:
        if (job_id, f"@signal:{signal}", value) not in stored:
            yield Violation("S22", job_id, f"ctx.wait_for({signal}) returned {value}, which was never stored")


def _undone(history: History) -> Iterator[Violation]:
    """A job that is cancelled while it waits runs once more, up to the wait, and undoes its steps."""
    runs = {(one.job_id, one.version): one for one in history.executions}
    for life in Lives(history).lives:
        kind = (life.steps[0].new["payload"].get("steps") or [""])[0]
        for version, claim in life.claims.items():
            run, end = runs.get((life.id, version)), life.ends.get(version)
            is_last = claim.old["status"] == "cancel_requested" and end is not None
            if not is_last or end is None or end.move != "acknowledge_cancel" or not kind.startswith("undo"):
                continue
            undone = any(
                change.table == STEPS
                and change.after is not None
                and (change.after["job_id"], change.after["name"]) == (life.id, "send")
                and change.after["state"] == "succeeded"
                for change in history.changes
            )
            if run is None:
                yield Violation("S22", life.id, f"run {version} was to undo what it did, and never began")
            elif run.error in ("Cancelled", "CancelledError") and not undone:
                yield Violation("S22", life.id, f"run {version} was to undo what it did, and did not come to it")


def _is_removal(change: RowChange) -> bool:
    return change.table == "_jobs_archive" and change.op == "delete"


def _last_words(world: World, history: History) -> Iterator[Violation]:
    """The last log line of a handler is kept if its outcome is kept and the worker could reach the database."""
    runs = {(one.job_id, one.version): one for one in history.executions}
    for row in history.archive.values():
        steps, version = row["payload"]["steps"], row["version"]
        commits = steps[min(version, len(steps)) - 1].startswith("commit")  # completed before the handler ends
        said = [line["text"] for line in row["log"] or ()]
        run = runs.get((row["id"], version))
        if run is None or commits or not row["payload"].get("talks") or f"done {version}" in said:
            continue
        troubles = [*world.machines[run.worker].line.disturbances, *world.network.outages]
        # The worker waits two seconds for the last lines to be stored.
        if not overlaps(troubles, _seconds(run.begun), _seconds(run.ended or run.begun) + 2.0):
            yield Violation("WORDS", row["id"], f"run {version} completed, and what it said at last is lost: {said}")


class Taking(Struct):
    """A change by which another process ended a run, or requested its end."""

    at: float
    event: str
    by: str
    worker: str
    version: int
    row: dict[str, Any]


def _taken(world: World, history: History) -> Iterator[Violation]:
    """No job is taken from a healthy worker: it renews its leases, settles ended runs, and hears of cancels."""
    if any(fault.kind == "jump" for fault in history.faults):
        return  # a rescue may be under way when the clock jumps
    runs = {(one.job_id, one.version): one for one in history.executions}
    for taking in _takings(history):
        machine = world.machines.get(taking.worker)
        if machine is None or machine.worker is None or taking.by.startswith("supervisor"):
            continue
        run = runs.get((taking.row["id"], taking.version))
        if problem := _robbed(world, machine, taking, run) or _forgotten(world, machine, taking, run):
            where = f"run {taking.version} of {taking.worker} was {taking.event} at {taking.at:.3f}"
            yield Violation(problem, taking.row["id"], where)
        if run is not None and _was_not_told(world, machine, taking, run):
            yield Violation("UNTOLD", taking.row["id"], f"run {taking.version} was {taking.event} at {taking.at:.3f}")


def _robbed(world: World, machine: Machine, taking: Taking, run: Execution | None) -> str | None:
    """Return "ROBBED" if the job of a healthy worker was rescued. An outage does not excuse that: the process that
    comes back first must let the others come back, too. Two outages in a row do, or one that was too short to be
    noticed."""
    if taking.event != "rescued" or _is_wedged(world, taking, run):
        return None
    if run is None and taking.row["status"] == "cancelled":
        return None  # the claim's reply was lost, and a cancel came before the worker could give the job back
    since, until = taking.at - world.settings.beat, taking.at
    outages = [one for one in world.network.outages if overlaps([one], since - 1.0, until)]
    if len(outages) > 1 or any(end - start < 2 * world.settings.beat for start, end in outages):
        return None
    rescuer = world.machines[taking.by]
    troubles = excuses(machine, machine.heartbeat_thread) + (rescuer.heartbeat_thread.holds if outages else [])
    return None if overlaps(troubles, since, until) else "ROBBED"


def _forgotten(world: World, machine: Machine, taking: Taking, run: Execution | None) -> str | None:
    """Return "FORGOTTEN" if the run had ended long before, and nothing had kept its worker from settling it."""
    if run is None or run.ended is None or run.told == "lost" or taking.event == "cancel_requested":
        return None
    ended = _seconds(run.ended)
    troubles = [*excuses(machine, machine.main), *world.network.outages]
    late = taking.at - ended > _SETTLED_WITHIN
    return "FORGOTTEN" if late and not overlaps(troubles, ended, taking.at) else None


def _was_not_told(world: World, machine: Machine, taking: Taking, run: Execution) -> bool:
    """Return True if the run went on after it was over, and was never told although its worker could have known."""
    if run.ended is None or run.told is not None:
        return False
    troubles = [*excuses(machine, machine.heartbeat_thread), *world.network.outages]
    ended = _seconds(run.ended)
    able_since = max([taking.at, *(end for start, end in troubles if start <= ended)])
    return ended - able_since > world.settings.beat + _HEARD_WITHIN


def _is_wedged(world: World, taking: Taking, run: Execution | None) -> bool:
    """Return True if the run is past its timeout and grace. Its worker may then lose the job although it is alive."""
    if run is None:
        return False
    return bool(taking.at - _seconds(run.begun) > taking.row["timeout"] + world.settings.grace)


def _takings(history: History) -> Iterator[Taking]:
    for change in history.changes:
        if change.table != "_jobs" or change.op != "update" or change.after is None or change.before is None:
            continue
        entries = change.after["history"] or []
        if len(entries) == len(change.before["history"] or []):
            continue
        last = entries[-1]
        if last["event"] in ("rescued", "cancel_timed_out", "cancel_requested"):
            who = last["by"], last.get("worker") or change.before["locked_by"]
            yield Taking(_seconds(change.at), last["event"], *who, last["version"], change.after)


def _seconds(micros: int) -> float:
    return (micros - EPOCH) / 1e6
