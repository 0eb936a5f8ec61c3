"""S3 to S7 and S9 to S11: what may happen to a job, and what its row says afterwards."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rowlock.core.lifecycle import MOVES
from tests.proof.lives import ENDED, HELD, Life, Row, Step, World, changed, is_held

Found = Iterator[tuple[str | None, str]]

SPARED_VERSIONS = 10  # later runs are charged even if they ran in a child process when their worker died
_SETTLED = {
    *("status", "ready", "started_at", "locked_by", "locked_until", "updated", "history", "history_dropped"),
    "expires_at",  # bounds the first start only
}
_ENTRY = {"updated", "history", "history_dropped"}
_RESUMED = _ENTRY | {"status", "ready", "run_at", "waits_for"}
_CANCELLED = _ENTRY | {"status", "ready", "finished_at", "cancel_requested_at", "cancel_reason", "run_at", "waits_for"}
COLUMNS = {  # the columns that a move may change; all others must stay
    "claim": {
        *("status", "ready", "version", "locked_by", "locked_until", "claimed_at", "started_at"),
        *("progress", "stage", "message", "updated"),
    },
    "heartbeat": {"locked_until", "started_at"},
    "progress": {"progress", "stage", "message", "updated", "log", "log_dropped"},
    "checkpoint": {"step", "progress", "updated"},
    "retry_step": _SETTLED | {"run_at", "last_error"},
    "fail": _SETTLED | {"run_at", "retries", "last_error", "finished_at", "fingerprint"},
    "snooze": _SETTLED | {"run_at"},
    "release": _SETTLED | {"run_at"},  # only with a delay: see S11
    "wait": _SETTLED | {"run_at", "waits_for"},
    "cancel_wait": _SETTLED | {"run_at"},
    "resume": _RESUMED,
    "wake": _RESUMED,
    "signal": _RESUMED | {"signals"},
    "report_callback": {"progress", "stage", "message", "run_at", "updated"},
    "acknowledge_callback": _ENTRY | {"status", "finished_at", "waits_for"},
    "acknowledge_cancel": _SETTLED | {"finished_at", "last_error", "cancel_reason"},
    "cancel": _CANCELLED,
    "replace": _CANCELLED,
    "unblock": _ENTRY | {"status", "ready", "run_at"} | {"payload", "line"},  # of flows: see S16
    "debounce": _ENTRY
    | {"run_at", "ready", "payload", "priority", "tags", "trace", "timeout", "max_retries", "expires_at"}
    | {"template_version"},
    "stop": _CANCELLED - {"run_at", "waits_for"},
    "block": _CANCELLED - {"run_at", "waits_for"},
    "release_hold": _ENTRY,
    "cancel_timeout": _ENTRY | {"status", "finished_at", "locked_by", "locked_until", "ready", "waits_for"},
    "promote": {"ready"},
    "rescue": (_SETTLED - {"started_at"})
    | {"run_at", "retries", "crashes", "last_error", "finished_at"}
    | {"fingerprint"},
    "expire": _ENTRY | {"status", "ready", "finished_at", "last_error", "fingerprint"},
    "update": _ENTRY | {"priority", "run_at", "ready", "payload", "tags"} | {"step", "progress"},
    "requeue": _ENTRY
    | {"status", "ready", "run_at", "retries", "crashes", "progress", "stage", "message", "result", "expires_at"}
    | {"finished_at", "cancel_requested_at", "cancel_reason", "fingerprint", "line_seq", "line", "step"}
    | {"payload", "priority", "tags"},
    "complete": {"status", "updated", "started_at", "finished_at", "result"},
}
_NEW = {
    "step": None,
    "version": 0,
    "retries": 0,
    "crashes": 0,
    "history_dropped": 0,
    "progress": 0,
    "history": None,
    "result": None,
}


def s3_legal_moves_that_fold_to_the_row(world: World) -> Found:
    for life in world.lives:
        previous: Row | None = None
        for step in life.steps:
            if step.before != previous and not (step.before and _same(step.before, previous)):
                yield life.id, f"the row before {step} is not the row after the step before it"
            previous = step.lined or step.after
            for problem in _illegal(step):
                yield life.id, f"{step} {problem}"
    for job_id, lives in world.by_id.items():
        row = world.history.jobs.get(job_id) or world.history.archive.get(job_id)
        last = lives[-1].last.lined or lives[-1].last.after
        if row is not None and last is not None and not _same(last, row):
            names = ", ".join(sorted(changed(last, row)))
            yield job_id, f"the final row is not what the last step, {lives[-1].last}, left: {names}"


def _same(one: Row, other: Row | None) -> bool:
    return other is not None and not changed(one, other)


def _illegal(step: Step) -> Iterator[str]:
    if step.move is None:
        yield "is no move"
        return
    move = MOVES[step.move]
    if step.before is None:
        if move.sources:
            yield "comes from nowhere"
    elif step.before["status"] not in move.sources:
        yield f"is not allowed from {step.before['status']}"
    if step.after is None:
        if move.targets:
            yield "removes the job"
    elif step.after["status"] not in move.targets:
        yield f"may not lead to {step.after['status']}"
    if step.before is not None and step.after is not None:
        if more := changed(step.before, step.after) - COLUMNS[step.move]:
            yield f"changed {', '.join(sorted(more))}"
    elif step.before is None and step.after is not None:
        for name, value in _NEW.items():
            if step.after[name] != value:
                yield f"began with {name} {step.after[name]!r}"
    if step.after is not None:
        yield from _unlawful(step.after)


def _unlawful(row: Row) -> Iterator[str]:
    """Yield what is wrong with the row, whatever move has led to it."""
    status, held = row["status"], False
    if status != "completed":
        held = is_held(row)
        left = status == "cancel_requested" and not held  # a waiting job that is being cancelled
        if (row["locked_until"] is not None) != (status in HELD) and not left:
            yield f"left a row that is {status} with locked_until {row['locked_until']}"
        if row["ready"] and status != "pending" and not left:
            yield f"left a row that is {status} and ready"
        if (row["waits_for"] is not None) != (status == "waiting" or (left and not row["ready"])):
            yield f"left a row that is {status} and waits for {row['waits_for']}"
    if (row["locked_by"] is not None) != (held or status == "completed"):
        yield f"left a row that is {status} with locked_by {row['locked_by']}"
    if (row["finished_at"] is not None) != (status in ENDED):
        yield f"left a row that is {status} with finished_at {row['finished_at']}"


def s4_the_version_counts_claims(world: World) -> Found:
    for life in world.lives:
        version = 0
        for step in life.steps:
            was = 0 if step.before is None else step.before["version"]
            if was != version:
                yield life.id, f"{step} found version {was} after {version} claims"
            version += step.move == "claim"
            if step.after is not None and step.after["version"] != version:
                yield life.id, f"{step} left version {step.after['version']} after {version} claims"
            version = step.version  # report a wrong version once, not again at each later step
    for job_id, lives in world.by_id.items():
        row = world.history.jobs.get(job_id) or world.history.archive.get(job_id)
        claims = sum(step.move == "claim" for step in lives[-1].steps)
        if row is not None and row["version"] != claims:
            yield job_id, f"its version is {row['version']} after {claims} claims"


def s5_no_claim_while_a_lease_is_open(world: World) -> Found:
    for life in world.lives:
        holder: Step | None = None
        for step in life.steps:
            if step.move == "claim":
                assert step.before is not None
                assert step.after is not None
                if holder is not None or step.before["locked_until"] is not None:
                    yield life.id, f"{step} while {step.before['locked_by']} has it until {step.before['locked_until']}"
                if step.after["locked_by"] is None or (step.after["locked_until"] or 0) <= step.after["claimed_at"]:
                    yield life.id, f"{step} gave no lease"
                holder = step
            elif step.after is None or not is_held(step.after):
                holder = None


def s6_worker_writes_carry_the_current_version(world: World) -> Found:
    for life in world.lives:
        for step in life.steps:
            before, after = step.before, step.after
            if step.move is None or not MOVES[step.move].fenced or before is None or after is None:
                continue
            if not is_held(before):
                yield life.id, f"{step} although nobody held it"
            for name in ("version", "claimed_at"):
                for carried in [after[name], *(entry.get(name) for entry in step.entries)]:
                    if carried != before[name]:
                        yield life.id, f"{step} carries {name} {carried}, the run has {before[name]}"
            for entry in step.entries:
                if entry.get("by") != before["locked_by"]:
                    yield life.id, f"{step} by {entry.get('by')}, the lease is {before['locked_by']}'s"
            if step.move == "complete" and after["locked_by"] != before["locked_by"]:
                yield life.id, f"{step} by {after['locked_by']}, the lease is {before['locked_by']}'s"
            if step.move in ("fail", "snooze", "retry_step") and not _ended_without_a_word(after):
                yield from settled_by_another(world, life, step)
            if step.move == "progress":
                for line in _new_lines(before, after):
                    if line["version"] != before["version"]:
                        yield life.id, f"{step} logged a line of version {line['version']}"


def _ended_without_a_word(row: Row) -> bool:
    """Return True if the run timed out or its process died. Its handler may still run: a thread can't be killed."""
    error = str(row["last_error"])
    return "Timed out" in error or "child process" in error


def settled_by_another(world: World, life: Life, step: Step) -> Found:
    """The handler of a run that asks for this move has ended. If it has not, an older run has asked."""
    runs = life.runs.get(step.version, ())
    ends = [None if run.ended is None else world.by_database(run.ended) for run in runs]
    if runs and world.by_database(0) is not None and all(end is None or end > step.at + world.apart for end in ends):
        yield life.id, f"{step} although run {step.version} had not ended"


def _new_lines(before: Row, after: Row) -> list[dict[str, Any]]:
    old, new = before["log"] or [], after["log"] or []
    added = len(new) - len(old) + after["log_dropped"] - before["log_dropped"]
    return list(new[len(new) - added :]) if added else []


def s7_one_completion_and_ends_are_final(world: World) -> Found:
    for job_id, lives in world.by_id.items():
        for life in lives:  # after a delete, another job may have the id: it has a completion of its own
            completions = sum(_archives(step) for step in life.steps)
            if completions > 1:
                yield job_id, f"was completed {completions} times"
            if completions and life.steps[0].before is not None:
                yield job_id, f"was completed after it was removed, by {life.steps[0]}"
        for step in (step for life in lives for step in life.steps):
            was = step.before["status"] if step.before else None
            allowed = {"delete", "prune"} if was == "completed" else {"requeue", "block", "delete", "prune"}
            if was in ENDED and step.move not in allowed:
                yield job_id, f"{step} after its end"
    for job_id in world.history.jobs.keys() & world.history.archive.keys():
        yield job_id, "is in _jobs and in the archive"


def _archives(step: Step) -> bool:
    was_completed = step.before is not None and step.before["status"] == "completed"
    return step.after is not None and step.after["status"] == "completed" and not was_completed


def s9_retries_are_bounded_and_charged_rightly(world: World) -> Found:
    for life in world.lives:
        free = 0  # crashes that were not charged although the handler had begun
        for step in life.steps:
            before, after = step.before, step.after
            if after is None:
                continue
            if after["retries"] > after["max_retries"]:
                yield life.id, f"{step}: {after['retries']} retries of {after['max_retries']}"
            if before is None:
                continue
            yield from ((life.id, f"{step} {problem}") for problem in _wrong_charge(step, before, after))
            runs = life.runs.get(before["version"], ())
            reason = str(step.said("reason")) if step.move == "release" else ""  # a supervisor gives one of these:
            if runs and reason.startswith("not running"):
                yield life.id, f"{step}: its handler had begun before the worker died, and that was not charged"
            if reason.startswith("in a child process") and before["version"] > SPARED_VERSIONS:
                yield life.id, f"{step}: it may kill its worker for ever"
            if step.move == "requeue":
                free = 0
            if step.move == "rescue" and before["status"] == "processing" and before["started_at"] is None:
                free += bool(runs)
                if free == 2:
                    yield life.id, f"{step}: a second crash of a handler that ran was not charged"


def _wrong_charge(step: Step, before: Row, after: Row) -> Iterator[str]:
    exhausted = before["retries"] >= before["max_retries"]
    started = before["started_at"] is not None
    retries, crashes, status = before["retries"], before["crashes"], after["status"]
    if step.move == "fail":
        retries += status == "pending"
        if status == "pending" and exhausted:
            yield "is tried again although no retry was left"
        if status == "failed" and str(after["last_error"]).startswith("Max retries exceeded: ") and not exhausted:
            yield f"gave up after {before['retries']} retries of {before['max_retries']}"
    elif step.move == "rescue":
        processing = before["status"] == "processing"
        due = "cancelled" if not processing else "expired" if started and exhausted else "pending"
        if status != due:
            yield f"should have led to {due}"
        retries += processing and started and not exhausted
        # If a rescue names dead workers, only the jobs that they had started become suspects.
        crashes = after["crashes"] if not started and after["crashes"] - crashes in (0, 1) else crashes + 1
    elif step.move == "requeue":
        retries = crashes = 0
    if after["retries"] != retries:
        yield f"left {after['retries']} retries, not {retries}"
    if after["crashes"] != crashes:
        yield f"left {after['crashes']} crashes, not {crashes}"


def s10_no_rescue_before_the_lease_ends(world: World) -> Found:
    grace = world.history.settings.get("cancel_grace")
    for life in world.lives:
        for step in life.steps:
            before, after = step.before, step.after
            if before is None or after is None:
                continue
            if step.move == "rescue" and before["locked_until"] is None:
                yield life.id, f"{step} although nobody held it"
            elif step.move == "rescue":
                early = before["locked_until"] - step.at - world.slack
                if early > 0 and not world.deaths(before["locked_by"]):
                    yield life.id, f"{step} {early} µs before the lease of {before['locked_by']} ended; it had not died"
                if step.said("worker") != before["locked_by"]:
                    yield life.id, f"{step} names {step.said('worker')}, it was {before['locked_by']}'s"
            if step.move == "heartbeat" and (after["locked_until"] or 0) < (before["locked_until"] or 0):
                yield life.id, f"{step} made the lease shorter"
            if step.move == "heartbeat" and before["started_at"] not in (None, after["started_at"]):
                yield life.id, f"{step} moved the start mark"
            if step.move == "cancel_timeout" and grace is not None:
                asked = before["cancel_requested_at"]
                if asked is None or asked + grace * 1e6 > step.at + world.slack:
                    yield life.id, f"{step} before the cancel's grace was over"


def s11_no_claim_before_run_at(world: World) -> Found:
    for life in world.lives:
        for step in life.steps:
            before, after = step.before, step.after
            if before is None or after is None:
                continue
            if step.move == "claim":
                if before["run_at"] > min(after["claimed_at"], step.at + world.slack):
                    yield life.id, f"{step} at {after['claimed_at']}, before run_at {before['run_at']}"
                late = before["expires_at"] is not None and before["expires_at"] <= after["claimed_at"] - _statement(
                    world
                )
                if late and not _has_started(life, step):
                    yield life.id, f"{step} at {after['claimed_at']}, past expires_at {before['expires_at']}"
            if step.move == "expire" and (before["expires_at"] is None or before["expires_at"] > step.at + world.slack):
                yield life.id, f"{step} before expires_at {before['expires_at']}"
            if step.move == "expire" and _has_started(life, step):
                yield life.id, f"{step} although it had started"
            if (
                step.move in ("fail", "retry_step", "snooze", "rescue")
                and after["status"] == "pending"
                and step.said("delay")
            ):
                due = step.said("at") + round(step.said("delay") * 1e6)
                if after["run_at"] < due - 1 or after["ready"]:
                    yield life.id, f"{step} has to wait until {due}, but is due at {after['run_at']}"
            if step.move == "release" and after["run_at"] != before["run_at"] and not step.said("delay"):
                yield life.id, f"{step} lost its place"


def _has_started(life: Life, until: Step) -> bool:
    """Return True if a run of the job had started before this step. A requeue clears expires_at."""
    rows = [step.before for step in life.steps if step.seq <= until.seq]
    return any(row is not None and row["started_at"] is not None for row in rows)


def _statement(world: World) -> int:
    """Return the microseconds that a statement may take between judging a row and writing it. SQLite reads its clock
    once per transaction."""
    return 0 if world.history.store == "sqlite" else 1_000_000


def moves(lives: list[Life]) -> Counter[str]:
    """Return how often each move was made. It shows what a suite has covered."""
    return Counter(step.move or "unknown" for life in lives for step in life.steps)
