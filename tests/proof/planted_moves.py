"""Plants: what must not happen to a job."""

from typing import Any

from msgspec import structs

from tests.proof.history import Execution
from tests.proof.lives import Life, Step
from tests.proof.planting import HOUR, PLANTS, Garden, Plant, breaks


def _last(life: Life, step: Step) -> bool:
    return step is life.last


# Each plant changes columns in the rows before and after one step: invariant, name, move, columns.
ALTERED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("S3", "a claim of a cancelled job", "claim", {"before": {"status": "cancelled"}}),
    ("S3", "a claim changed the payload", "claim", {"after": {"payload": {"another": 1}}}),
    ("S3", "a completion changed the payload", "complete", {"after": {"payload": {"another": 1}}}),
    ("S3", "a job was born with a version", "enqueue", {"after": {"version": 3}}),
    ("S5", "a claim without a lease", "claim", {"after": {"locked_until": 0}}),
    ("S6", "a completion by a worker without the lease", "complete", {"after": {"locked_by": "someone else"}}),
    ("S10", "a heartbeat made the lease shorter", "heartbeat", {"after": {"locked_until": 1}}),
]


def altering(move: str, columns: dict[str, Any]) -> Plant:
    return lambda garden: garden.alter(garden.step(move)[1], **columns)


for invariant, name, move, columns in ALTERED:
    PLANTS[name] = (invariant, altering(move, columns))


@breaks("S3")
def a_change_that_nobody_witnessed(garden: Garden) -> None:
    garden.drop(garden.step("promote", lambda life, step: not _last(life, step))[1])


@breaks("S3")
def the_final_row_is_another_than_the_last_step_left(garden: Garden) -> None:
    life = garden.life(lambda life: life.id in garden.history.jobs)
    garden.history.jobs[life.id] = garden.history.jobs[life.id] | {"priority": 1}


@breaks("S3")
def a_released_job_kept_its_lease(garden: Garden) -> None:
    _, step = garden.step("release")
    garden.alter(step, after={"locked_until": step.at})


@breaks("S4")
def a_claim_left_the_version_as_it_was(garden: Garden) -> None:
    life, claim = garden.step("claim", lambda _, step: step.version > 1)
    for step in life.steps[life.steps.index(claim) :]:
        garden.alter(step, after={"version": claim.old["version"]})


@breaks("S4")
def a_requeue_raised_the_version(garden: Garden) -> None:
    _, step = garden.step("requeue")
    garden.alter(step, after={"version": step.version + 1})


@breaks("S4")
def the_final_version_is_not_the_number_of_claims(garden: Garden) -> None:
    life = garden.life(lambda life: life.id in garden.history.archive)
    garden.history.archive[life.id] = garden.history.archive[life.id] | {"version": 99}


@breaks("S5")
def a_claim_during_an_open_lease(garden: Garden) -> None:
    garden.drop(garden.step("rescue", lambda life, step: step.version + 1 in life.claims)[1])


@breaks("S6")
def a_settle_with_an_older_version(garden: Garden) -> None:
    _, step = garden.step("fail")
    garden.entry(step, version=step.version - 1)


@breaks("S6")
def a_settle_by_a_worker_without_the_lease(garden: Garden) -> None:
    garden.entry(garden.step("snooze")[1], by="someone else")


@breaks("S6")
def a_heartbeat_after_the_job_was_given_back(garden: Garden) -> None:
    _, step = garden.step("heartbeat", lambda _, step: (step.before or {})["status"] == "processing")
    garden.alter(step, before={"status": "pending"})
    beat = next(change for change in garden.history.changes if change.seq == step.seq)
    log = [{"version": 77, "text": "late"}]
    assert beat.after is not None
    garden.alter(step, before={"status": "processing"}, after={"log": [*(beat.after["log"] or []), *log]})


@breaks("S6")
def a_log_line_of_an_older_run(garden: Garden) -> None:
    _, step = garden.step("progress", lambda _, step: step.after and step.new["log"] != (step.before or {})["log"])
    log = [*step.new["log"][:-1], step.new["log"][-1] | {"version": step.version + 5}]
    garden.alter(step, after={"log": log})


@breaks("S7")
def a_second_completion(garden: Garden) -> None:
    garden.repeat(garden.step("complete")[1])


@breaks("S7")
def a_job_went_on_after_its_end(garden: Garden) -> None:
    life, requeue = garden.step("requeue", lambda life, step: not _last(life, step))
    garden.drop(requeue)
    following = life.steps[life.steps.index(requeue) + 1]
    garden.alter(following, before={"status": requeue.old["status"]})


@breaks("S7")
def a_job_in_the_archive_and_among_the_live(garden: Garden) -> None:
    life = garden.life(lambda life: life.id in garden.history.archive)
    garden.history.jobs[life.id] = garden.history.archive[life.id] | {"status": "processing", "ready": False}


@breaks("S9")
def more_retries_than_allowed(garden: Garden) -> None:
    _, step = garden.step("fail", lambda _, step: step.after and step.after["status"] == "pending")
    garden.alter(step, after={"max_retries": 0})


@breaks("S9")
def a_snooze_that_cost_a_retry(garden: Garden) -> None:
    _, step = garden.step("snooze")
    garden.alter(step, after={"retries": step.old["retries"] + 1})


@breaks("S9")
def a_crash_that_was_not_charged(garden: Garden) -> None:
    _, step = garden.step("rescue", lambda _, step: step.before and step.new["retries"] > step.old["retries"])
    garden.alter(step, after={"retries": step.old["retries"]})


@breaks("S9")
def a_crash_without_retries_left_that_was_tried_again(garden: Garden) -> None:
    _, step = garden.step("rescue", lambda _, step: step.after and step.after["status"] == "expired")
    garden.alter(step, after={"status": "pending", "finished_at": None, "ready": True})


@breaks("S9")
def a_failure_that_gave_up_too_early(garden: Garden) -> None:
    _, step = garden.step("fail", lambda _, step: str((step.after or {})["last_error"]).startswith("Max retries"))
    garden.alter(step, before={"max_retries": 9}, after={"max_retries": 9})


@breaks("S9")
def handlers_that_crashed_twice_for_free(garden: Garden) -> None:
    life, _ = garden.step("rescue", lambda life, _: sum(step.move == "rescue" for step in life.steps) > 1)
    for step in [step for step in life.steps if step.move == "rescue"]:
        garden.alter(step, before={"started_at": None, "status": "processing"})
        garden.history.executions.append(Execution("w", life.id, step.version, 0, None))
    garden.history.changes = [c for c in garden.history.changes if not _is_requeue(c.after, life.id)]


def _is_requeue(row: dict[str, Any] | None, job_id: str) -> bool:
    return bool(row and row.get("id") == job_id and row.get("history") and row["history"][-1]["event"] == "requeued")


@breaks("S9")
def a_handler_that_died_with_its_worker_and_was_given_back(garden: Garden) -> None:
    life, step = garden.step("release")
    garden.entry(step, reason="not running: killed by SIGKILL")
    garden.history.executions.append(Execution(step.old["locked_by"], life.id, step.version, step.at, None))


@breaks("S9")
def a_handler_that_had_ended_and_was_given_back_unsettled(garden: Garden) -> None:
    life, step = garden.step("release")
    garden.entry(step, reason="not running: killed by SIGKILL")
    garden.history.executions.append(Execution(step.old["locked_by"], life.id, step.version, step.at, step.at))


@breaks("S9")
def a_job_that_kills_its_worker_from_a_child_process_for_ever(garden: Garden) -> None:
    _, step = garden.step("release")
    garden.entry(step, reason="in a child process when its worker died: killed by SIGKILL")
    garden.alter(step, before={"version": 11}, after={"version": 11})


@breaks("S10")
def a_rescue_before_the_lease_ended(garden: Garden) -> None:
    _, step = garden.step("rescue", lambda _, step: step.said("by") == "m1")
    garden.history.faults.clear()
    garden.alter(step, before={"locked_until": step.at + HOUR})


@breaks("S10")
def a_supervisor_took_the_jobs_of_a_living_worker(garden: Garden) -> None:
    garden.step("rescue", lambda _, step: step.at + 1_000_000 < (step.before or {})["locked_until"])
    garden.history.faults = [structs.replace(fault, kind="term") for fault in garden.history.faults]


@breaks("S10")
def a_cancel_timed_out_before_its_grace(garden: Garden) -> None:
    _, step = garden.step("cancel_timeout")
    garden.alter(step, before={"cancel_requested_at": step.at - 1_000_000})


@breaks("S11")
def a_claim_before_run_at(garden: Garden) -> None:
    _, step = garden.step("claim")
    garden.alter(step, before={"run_at": step.at + 5_000_000})


@breaks("S11")
def a_claim_of_an_expired_job(garden: Garden) -> None:
    _, step = garden.step("claim")
    garden.alter(step, before={"expires_at": step.at - 1}, after={"expires_at": step.at - 1})


@breaks("S11")
def a_retry_that_did_not_wait(garden: Garden) -> None:
    _, step = garden.step("fail", lambda _, step: step.said("delay"))
    garden.alter(step, after={"run_at": step.at})


@breaks("S11")
def a_release_that_lost_its_place(garden: Garden) -> None:
    _, step = garden.step("release")
    garden.alter(step, after={"run_at": step.at + 1})


@breaks("S11")
def a_job_expired_too_early(garden: Garden) -> None:
    _, step = garden.step("expire")
    garden.alter(step, before={"expires_at": step.at + HOUR}, after={"expires_at": step.at + HOUR})
