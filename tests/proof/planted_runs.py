"""Plants: what handlers must not have done, and what must not take too long."""

from typing import Any

from tests.proof.history import Execution, Fault
from tests.proof.lives import HELD, Life, Step
from tests.proof.planting import HOUR, PLANTS, Garden, Plant, breaks


def _finished_run(garden: Garden) -> Execution:
    """Return a run whose handler's return completed its job."""
    done = {(life.id, v) for life in garden.world.lives for v, step in life.ends.items() if step.move == "complete"}
    return garden.execution(lambda one: (one.job_id, one.version) in done and one.ended is not None)


# Each plant changes the record of a run whose return completed its job: invariant, name, fields.
SWAPPED: list[tuple[str, str, dict[str, Any]]] = [
    ("S8", "a result that no execution produced", {"result": {"something": "else"}}),
    ("X1", "a completion of a run that never ended", {"ended": None, "result": None}),
    ("X1", "a completion of a run that failed", {"error": "boom"}),
    ("X2", "an execution of a version that was never claimed", {"version": 77}),
    ("X2", "an execution by a worker that had not claimed it", {"worker": "host-999-dddd"}),
]


def swapping(fields: dict[str, Any]) -> Plant:
    return lambda garden: garden.swap(_finished_run(garden), **fields)


for invariant, name, fields in SWAPPED:
    PLANTS[name] = (invariant, swapping(fields))


@breaks("S8")
def the_archive_has_another_result(garden: Garden) -> None:
    life = garden.life(lambda life: life.id in garden.history.archive)
    garden.history.archive[life.id] = garden.history.archive[life.id] | {"result": {"something": "else"}}


@breaks("X1")
def a_completion_before_its_run_ended(garden: Garden) -> None:
    run = _finished_run(garden)
    assert run.ended is not None
    garden.swap(run, ended=run.ended + HOUR)


@breaks("X2")
def a_version_that_was_executed_twice(garden: Garden) -> None:
    garden.history.executions.append(_finished_run(garden))


@breaks("X2")
def an_execution_before_its_claim(garden: Garden) -> None:
    run = _finished_run(garden)
    garden.swap(run, begun=run.begun - HOUR)


def _following(garden: Garden, older: Execution) -> Execution:
    return garden.execution(lambda one: one.job_id == older.job_id and one.version == older.version + 1)


def _run_ended_by(garden: Garden, move: str) -> Execution:
    """Return a run that this move ended, and that another run followed."""
    ended = {(life.id, v) for life in garden.world.lives for v, step in life.ends.items() if step.move == move}
    runs = {(one.job_id, one.version) for one in garden.history.executions}
    return garden.execution(
        lambda one: (
            (one.job_id, one.version) in ended
            and (one.job_id, one.version + 1) in runs
            and (move != "fail" or _said_boom(garden.world.by_id[one.job_id][0], one.version))
        )
    )


def _said_boom(life: Life, version: int) -> bool:
    end = life.ends.get(version)
    return end is not None and end.after is not None and end.after["last_error"] == "boom"


@breaks("X3")
def two_runs_at_once_after_a_failure(garden: Garden) -> None:
    older = _run_ended_by(garden, "fail")
    garden.swap(older, ended=_following(garden, older).begun + 1)


@breaks("X3")
def a_robbed_run_that_was_never_told(garden: Garden) -> None:
    older = _run_ended_by(garden, "rescue")
    garden.history.settings["slack"] = 1.0
    garden.swap(older, ended=_following(garden, older).begun + HOUR, told=None)


@breaks("X3")
def runs_in_the_wrong_order(garden: Garden) -> None:
    older = _run_ended_by(garden, "fail")
    garden.swap(older, begun=_following(garden, older).begun + 1, ended=None)


def _was_charged(row: dict[str, Any]) -> bool:
    return row["started_at"] is not None and bool(row["status"] == "processing")


def _never_ran(garden: Garden) -> Step:
    """Return the rescue of a charged run, and remove the record that its handler ran."""
    life, step = garden.step("rescue", lambda _, step: _was_charged(step.before or {}) and step.said("by") == "m1")
    runs = garden.history.executions
    garden.history.executions = [one for one in runs if (one.job_id, one.version) != (life.id, step.version)]
    return step


@breaks("X4")
def a_run_that_never_began_was_charged(garden: Garden) -> None:
    _never_ran(garden)
    garden.history.settings["slots"] = 0


@breaks("X4")
def the_error_of_a_run_that_never_began_does_not_say_so(garden: Garden) -> None:
    garden.alter(_never_ran(garden), after={"last_error": "it crashed"})
    garden.history.settings["slots"] = 100


@breaks("L1")
def jobs_that_took_too_long_after_the_last_fault(garden: Garden) -> None:
    last = max(life.last.at for life in garden.world.lives)
    garden.history.faults = [Fault(last - HOUR, "kill", "1")]
    garden.history.settings["drain_within"] = 60.0


@breaks("L2")
def a_dead_worker_s_job_was_left_to_lie(garden: Garden) -> None:
    _, claim = garden.step("claim", lambda life, step: life.ends.get(step.version) is None)
    garden.history.faults = [Fault(claim.at, "kill", claim.new["locked_by"])]
    garden.history.settings |= {"slack": 1.0, "poll": 1.0}


@breaks("L2")
def a_dead_worker_s_job_was_taken_back_late(garden: Garden) -> None:
    life, step = garden.step("rescue", lambda life, step: step.at - life.claims[step.version].at > 90_000_000)
    garden.history.faults = [Fault(life.claims[step.version].at, "kill", step.old["locked_by"])]
    garden.history.settings |= {"slack": 1.0, "poll": 1.0}


@breaks("L5")
def a_lease_at_rest(garden: Garden) -> None:
    garden.life(lambda life: life.last.after and life.last.after["status"] in HELD)
    garden.history.at_rest = True


@breaks("L5")
def a_due_job_that_idles_at_rest(garden: Garden) -> None:
    garden.life(lambda life: life.last.after and life.last.after["status"] == "pending" and life.last.after["ready"])
    garden.history.at_rest = True


@breaks("L6")
def a_worker_that_took_too_long_to_stop(garden: Garden) -> None:
    garden.history.settings["grace"] = 3.0
    garden.history.faults += [Fault(0, "term", "host-1-a"), Fault(4_000_001, "gone", "host-1-a")]


@breaks("L6")
def a_worker_that_stopped_and_left_a_lease(garden: Garden) -> None:
    _, claim = garden.step("claim", lambda life, step: life.ends.get(step.version) is None)
    worker = claim.new["locked_by"]
    garden.history.faults += [Fault(claim.at, "term", worker), Fault(claim.at, "gone", worker)]


def given_back_after(garden: Garden, *kinds: str, seconds: int, reason: str) -> None:
    """A worker is gone after these signals, and one of its jobs is given back `seconds` later."""
    life, release = garden.step("release", lambda life, step: _is_last_of_its_worker(garden, step))
    worker = life.claims[release.version].after["locked_by"]  # type: ignore[index]
    garden.entry(release, reason=reason)
    end = release.at - seconds * 1_000_000
    others = [fault for fault in garden.history.faults if fault.target != worker]  # an earlier kill would excuse it
    garden.history.faults = [*others, *(Fault(end, kind, worker) for kind in (*kinds, "gone"))]


def _is_last_of_its_worker(garden: Garden, release: Step) -> bool:
    """Return True if no other run of this worker ends later or not at all: the worker would have left it behind,
    too."""
    assert release.before is not None
    worker = release.before["locked_by"]
    ends = [
        (life.ends[version].at if version in life.ends else None)
        for life in garden.world.lives
        for version, claim in life.claims.items()
        if claim.after is not None and claim.after["locked_by"] == worker
    ]
    return None not in ends and sum(at is not None and at > release.at - 6_000_000 for at in ends) == 1


CLEANED_UP = "shutdown: killed by SIGKILL, peak memory 40 MiB"


@breaks("L6")
def a_worker_that_stopped_and_was_cleaned_up_later(garden: Garden) -> None:
    given_back_after(garden, "term", seconds=4, reason=CLEANED_UP)


@breaks("L6")
def a_worker_that_was_killed_and_cleaned_up_too_late(garden: Garden) -> None:
    given_back_after(garden, "term", "kill", seconds=6, reason=CLEANED_UP)


@breaks("L6")
def a_worker_that_was_killed_and_gave_a_job_back_later(garden: Garden) -> None:
    given_back_after(garden, "term", "kill", seconds=4, reason="shutdown")
