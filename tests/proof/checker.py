"""The checker: reads a History and says which invariants it breaks.

There is one function per invariant, named after it. The checker does not judge what a history has no record of. Without
executions it says nothing about results. Without a comparison of clocks (`monotonic_offset`) it says nothing about the
order of events inside and outside of the database. An operation whose outcome is unknown may have happened or not.

The checker knows these settings, in seconds unless noted: lease, poll, maintenance, grace, cancel_grace, slack (how
late a busy machine may be; liveness is judged only if it is given), stop_slack (the same for polite stops; none by
default), drain_within, pause_margin, `slots` (of each worker), `monotonic_offset` (microseconds to add to
CLOCK_MONOTONIC to get the database's clock), `now` (the database's clock at the end, in microseconds),
`keep_completed`, `keep_failed`, … (for how long maintenance keeps ended jobs).
"""

from collections import Counter
from collections.abc import Callable, Iterable

from tests.proof import (
    checker_clients,
    checker_events,
    checker_flows,
    checker_limits,
    checker_lines,
    checker_moves,
    checker_runs,
    checker_schedules,
    checker_steps,
    checker_waits,
)
from tests.proof.history import History, Violation
from tests.proof.lives import World


def _s12(world: World) -> Iterable[tuple[str | None, str]]:
    yield from checker_clients.s12_no_claim_of_a_paused_topic(world)
    yield from checker_limits.s12_limits_hold_at_every_moment(world)


INVARIANTS: dict[str, Callable[[World], Iterable[tuple[str | None, str]]]] = {
    "S1": checker_clients.s1_every_acknowledged_enqueue_is_one_job,
    "S2": checker_clients.s2_every_job_has_a_source,
    "S3": checker_moves.s3_legal_moves_that_fold_to_the_row,
    "S4": checker_moves.s4_the_version_counts_claims,
    "S5": checker_moves.s5_no_claim_while_a_lease_is_open,
    "S6": checker_moves.s6_worker_writes_carry_the_current_version,
    "S7": checker_moves.s7_one_completion_and_ends_are_final,
    "S8": checker_runs.s8_the_result_is_that_runs_output,
    "S9": checker_moves.s9_retries_are_bounded_and_charged_rightly,
    "S10": checker_moves.s10_no_rescue_before_the_lease_ends,
    "S11": checker_moves.s11_no_claim_before_run_at,
    "S12": _s12,
    "S13": checker_clients.s13_one_live_job_per_key,
    "S14": checker_schedules.s14_one_job_per_time_and_every_time_is_on_record,
    "S15": checker_lines.s15_lines_keep_their_order_and_once_is_once,
    "S16": checker_flows.s16_children_run_after_their_parents_and_joins_fire_once,
    "S17": checker_clients.s17_business_row_and_job_together,
    "S19": checker_events.s19_every_move_is_recorded_in_its_transaction,
    "S20": checker_clients.s20_nothing_vanishes,
    "S21": checker_steps.s21_results_of_steps_stay_and_belong_to_their_run,
    "S22": checker_waits.s22_signals_are_read_once_and_no_wait_misses_one,
    "X1": checker_runs.x1_a_completion_follows_a_finished_run,
    "X2": checker_runs.x2_one_execution_per_claim,
    "X3": checker_runs.x3_overlap_only_after_the_lease_was_lost,
    "X4": checker_runs.x4_who_is_charged_for_a_crash_has_begun,
    "L1": checker_runs.l1_drained_in_time,
    "L2": checker_runs.l2_taken_back_in_time_after_a_kill,
    "L5": checker_runs.l5_at_rest_nothing_is_left,
    "L6": checker_runs.l6_a_polite_stop_leaves_nothing,
    "EVENTS": checker_events.events_equal_what_was_witnessed,
}
NOT_APPLICABLE = {
    "S18": "there are no actors with scopes yet",
    "L3": "a figure, not an invariant: benchmarks measure it",
    "L4": "a history holds nothing about listeners; the doorbell's own tests do",
}


def check(history: History) -> list[Violation]:
    """Return every violation in the history, in the order of the invariants."""
    world = World(history)
    return [
        Violation(name, job_id, text) for name, invariant in INVARIANTS.items() for job_id, text in invariant(world)
    ]


def summary(suite: str, histories: Iterable[History], violations: list[Violation], took: float, **figures: int) -> str:
    """Return the one line that a suite prints."""
    count = Counter[str]()
    for history in histories:
        count.update(jobs=len(history.jobs) + len(history.archive), executions=len(history.executions))
        count.update({"row changes": len(history.changes), "faults": len(history.faults)})
    said = ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in {**figures, **count}.items() if number)
    return f"{suite}: {len(violations)} violations, {said}, {took:.1f} s"
