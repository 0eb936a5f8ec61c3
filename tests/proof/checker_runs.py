"""S8, X1 to X4 and L1, L2, L5, L6: what handlers did, and how soon the product had to act."""

from collections.abc import Iterator
from typing import Any

from tests.proof.history import Execution, Fault
from tests.proof.lives import HELD, LIVE, Life, Step, World, is_target

Found = Iterator[tuple[str | None, str]]

SECOND = 1_000_000
_SHORT_LIVED = 5.0  # seconds that a short-lived process tries to give back the jobs of processes that were killed
_LEFT_BEHIND = frozenset({"acknowledge_cancel", "cancel_timeout", "release"})  # ends of runs whose thread may go on


def _completions(world: World) -> Iterator[tuple[Life, Step]]:
    for life in world.lives:
        for step in life.steps:
            if step.move == "complete":
                yield life, step


def s8_the_result_is_that_runs_output(world: World) -> Found:
    for life, step in _completions(world):
        assert step.after is not None
        result = step.after["result"]
        outputs = [one.result for one in life.runs.get(step.version, ()) if one.ended is not None and one.error is None]
        owned = world.completions.get((life.id, step.version), ())
        declared = [(one.detail or {}).get("result") for one in owned if one.outcome != "fail"]
        known = declared + outputs if len(world.by_id[life.id]) > 1 else declared or outputs
        if known and result not in known:  # if several jobs had the id, any of them may have declared it
            yield life.id, f"its result {_short(result)} is not what run {step.version} made: {_short(outputs)}"
        final = world.history.archive.get(life.id)
        if final is not None and not life.gone and final["result"] != result:
            yield life.id, f"was completed with {_short(result)} and has {_short(final['result'])}"


def _short(value: Any) -> str:
    return f"{value!r:.80}"


def x1_a_completion_follows_a_finished_run(world: World) -> Found:
    """A completion follows a run that has finished, or a run that completed its job in its own transaction."""
    if not world.records_runs:
        return
    for life, step in _completions(world):
        if any(one.outcome != "fail" for one in world.completions.get((life.id, step.version), ())):
            continue
        finished = [one for one in life.runs.get(step.version, ()) if one.ended is not None and one.error is None]
        if not finished:
            yield life.id, f"{step} although no run {step.version} has finished well"
        for one in finished:
            ended = None if one.ended is None else world.by_database(one.ended)
            if ended is not None and ended > step.at + world.apart:
                yield life.id, f"{step} at {step.at}, before its run ended at {ended}"


def x2_one_execution_per_claim(world: World) -> Found:
    for life in world.lives:
        for version, runs in life.runs.items():
            if len(runs) > 1:
                yield life.id, f"version {version} was executed {len(runs)} times"
            claim = life.claims.get(version)
            if claim is None:
                yield life.id, f"version {version} was executed by {runs[0].worker} and never claimed"
                continue
            assert claim.after is not None
            for run in runs:
                if run.worker != claim.after["locked_by"]:
                    yield life.id, f"{claim.after['locked_by']} claimed version {version}, {run.worker} executed it"
                begun = world.by_database(run.begun)
                if begun is not None and begun + world.apart < claim.after["claimed_at"]:
                    yield life.id, f"version {version} began at {begun}, before its claim"
    for run in world.unborn:
        yield run.job_id, f"version {run.version} was executed by {run.worker}, and the job never existed"


def x3_overlap_only_after_the_lease_was_lost(world: World) -> Found:
    for life in world.lives:
        own = [run for version in sorted(life.runs) for run in life.runs[version]]
        for older, newer in ((a, b) for n, a in enumerate(own) for b in own[n + 1 :] if a.version != b.version):
            if older.begun > newer.begun and not _jumped(world, older.begun):
                yield life.id, f"run {older.version} began after run {newer.version}"
            if older.ended is not None and older.ended > newer.begun:
                yield from _overlap(world, life, older, newer)


def x4_who_is_charged_for_a_crash_has_begun(world: World) -> Found:
    """A dead worker may be charged for as many runs as it has slots although their handlers had not begun: they were
    about to start. The error of such a job says so."""
    slots = world.history.settings.get("slots")
    if slots is None or not world.records_runs:
        return
    never_ran: dict[str, list[str]] = {}
    for life in world.lives:
        for step in life.steps:
            row = step.before or {}
            charged = step.move == "rescue" and row["started_at"] is not None and row["status"] == "processing"
            if not charged or row["version"] in life.runs:
                continue
            never_ran.setdefault(row["locked_by"], []).append(life.id)
            error = str(step.after and step.after["last_error"])
            if not str(step.said("by")).startswith("supervisor") and "may not have begun" not in error:
                yield life.id, f"{step}: it never ran, and its error does not say that this may be so: {error[:200]}"
    for worker, ids in never_ran.items():
        if len(ids) > slots:
            yield ids[0], f"{worker} died, and {len(ids)} jobs were charged that never ran; it had {slots:g} slots"


def _jumped(world: World, until: int) -> bool:
    """Return True if the database's clock has jumped ahead. The lease was then over before the worker could know: a
    worker counts by its own clock, and had not heard of its claim yet. Otherwise it would have renewed the lease."""
    return any(fault.kind == "jump" and fault.at < until for fault in world.history.faults)


def _overlap(world: World, life: Life, older: Execution, newer: Execution) -> Found:
    end = life.ends.get(older.version)
    if end is None or not _may_be_outlived(end):
        how = end or "nothing"
        yield life.id, f"run {newer.version} began while run {older.version} was not over; it was ended by {how}"
    lease = world.history.settings.get("lease")
    slack = world.history.settings.get("slack")
    if lease is None or slack is None or older.told is not None or older.ended is None:
        return
    awake = max([newer.begun, *_wakings(world, older)])
    if older.ended - awake > (lease / 3 + slack) * SECOND:
        yield older.job_id, f"run {older.version} went on for {older.ended - awake} µs beside another, and was not told"


def _may_be_outlived(end: Step) -> bool:
    timed_out = end.move == "fail" and "Timed out" in str(end.after and end.after["last_error"])
    return end.move == "rescue" or end.move in _LEFT_BEHIND or timed_out


def _wakings(world: World, run: Execution) -> list[int]:
    return [f.at for f in world.history.faults if f.kind == "cont" and is_target(f.target, run.worker)]


def l1_drained_in_time(world: World) -> Found:
    bound = world.history.settings.get("drain_within")
    if bound is None or not world.history.faults:
        return
    over = world.by_database(max(fault.at for fault in world.history.faults))
    ends = [life.last.at for life in world.lives if life.steps]
    if over is not None and ends and max(ends) > over + bound * SECOND:
        late = (max(ends) - over) / SECOND
        yield None, f"the last job ended {late:.3f} s after the last fault; {bound:g} s are allowed"


def l2_taken_back_in_time_after_a_kill(world: World) -> Found:
    """The worker may have renewed the lease right before the kill. When the lease has ended, a maintenance pass finds
    the job."""
    settings = world.history.settings
    if not {"lease", "maintenance", "poll", "slack"} <= settings.keys():
        return
    bound = sum(settings[name] for name in ("lease", "maintenance", "poll", "slack")) * SECOND
    for life in world.lives:
        for version, claim in life.claims.items():
            assert claim.after is not None
            end = life.ends.get(version)
            for fault in world.deaths(claim.after["locked_by"]):
                at = world.by_database(fault.at)
                if at is None or at < claim.at or (end is not None and end.at <= at):
                    continue
                if end is None or end.at > at + bound:
                    when = "never" if end is None else f"{(end.at - at) / SECOND:.3f} s later"
                    yield life.id, f"its worker died at {at}; it was taken back {when}"


def l5_at_rest_nothing_is_left(world: World) -> Found:
    """At rest, no job is held, due or without a head of its line. On SQLite a line always has a head: the transaction
    that ends a head unblocks the next job."""
    if world.history.at_rest or world.history.store == "sqlite":
        rows = world.history.jobs
        led = {row.get("line") for row in rows.values() if row["status"] in LIVE and row["status"] != "blocked"}
        for job_id, row in rows.items():
            if row["status"] == "blocked" and row.get("line_seq") is not None and row.get("line") not in led:
                yield job_id, "is blocked, and its line has no head"
    if not world.history.at_rest:
        return
    now = world.history.settings.get("now")
    for job_id, row in world.history.jobs.items():
        if row["status"] in HELD:
            yield job_id, f"is {row['status']} at rest, held by {row['locked_by']} until {row['locked_until']}"
        if row["status"] == "pending" and (row["ready"] or (now is not None and row["run_at"] <= now)):
            yield job_id, "is due and idle at rest"
        if row["status"] == "waiting" and now is not None and row["run_at"] <= now:
            yield job_id, f"waits for {row['waits_for']} at rest, and its time was over at {row['run_at']}"


def l6_a_polite_stop_leaves_nothing(world: World) -> Found:
    """The fault `term` is SIGTERM; the fault `gone` is the end of that process."""
    faults = world.history.faults
    grace = world.history.settings.get("grace")
    slack = world.history.settings.get("stop_slack", 0.0)
    for term in (fault for fault in faults if fault.kind == "term"):
        gone = [fault for fault in faults if fault.kind == "gone" and fault.target == term.target]
        if grace is not None and gone and gone[0].at - term.at > (grace + 1 + slack) * SECOND:
            late = (gone[0].at - term.at) / SECOND
            yield None, f"{term.target} was gone {late:.3f} s after SIGTERM; {grace + 1:g} s are allowed"
        if gone:
            # A second signal kills the processes. A short-lived process then gives back their jobs.
            killed = any(fault.kind == "kill" and fault.target == term.target for fault in faults)
            yield from _left_by(world, gone[0], _SHORT_LIVED + slack if killed else 0.0)


def _left_by(world: World, gone: Fault, patience: float) -> Found:
    """Yield the jobs whose lease the stopped process has left behind. A short-lived process has `patience` seconds to
    give them back; their history says that it did."""
    at = world.by_database(gone.at)
    for life in world.lives:
        for version, claim in life.claims.items():
            assert claim.after is not None
            if not is_target(gone.target, claim.after["locked_by"]):
                continue
            end = life.ends.get(version)
            late = 0 if end is None or at is None else end.at - at - world.apart
            if end is None or (late > 0 and not (_is_cleaned_up(end) and late <= patience * SECOND)):
                yield life.id, f"{gone.target} has stopped and left the lease of version {version} behind"


def _is_cleaned_up(end: Step) -> bool:
    """Return True if the short-lived process ended this run. It gives jobs back, and rescues those with a cancel
    request."""
    return str(end.said("reason")).startswith("shutdown: killed by") or str(end.said("by")).startswith("supervisor of")
