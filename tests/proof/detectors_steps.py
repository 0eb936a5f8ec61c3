"""Detectors that must turn red when a defence of steps is switched off."""

from collections.abc import Sequence

from rowlock.core.job import Job, Status
from rowlock.stores.base import Hold, Store
from tests.proof.detectors import _opposite
from tests.stores import test_same_version, test_steps
from tests.stores.harness import Harness, PostgresHarness, mark


async def version(store: Harness) -> None:
    await test_steps.test_a_mark_of_another_run_is_refused(store, {"version": 1})


async def worker(store: Harness) -> None:
    """A checkpoint of another worker's run is refused, although it has the same version."""
    old, _ = await test_same_version.given_twice(store)
    before = await store.rows()
    assert await store.store.checkpoint([mark(old, "a", "succeeded")]) == [Hold.LOST]
    assert await store.rows() == before


async def status(store: Harness) -> None:
    await test_steps.test_only_a_held_job_takes_marks(store, Status.FAILED)


async def end(store: Harness) -> None:
    await test_steps.test_nothing_replaces_an_end(store, "succeeded", "pending")


async def late(store: Harness) -> None:
    await test_steps.test_a_late_mark_of_a_running_step_replaces_nothing(store)


async def shield(store: Harness) -> None:
    await test_steps.test_no_cancel_timeout_during_a_step_that_is_not_cancelable(store)


async def hidden(store: Harness) -> None:
    await test_steps.test_shielded_jobs_don_t_hide_others_from_the_timeout(store)


async def late_shield(store: Harness) -> None:
    assert isinstance(store, PostgresHarness)
    await test_steps.test_a_shielded_step_that_begins_while_the_timeout_looks(store)


async def lease(store: Harness) -> None:
    await test_steps.test_the_shield_ends_with_the_lease(store)


async def own_shield(store: Harness) -> None:
    await test_steps.test_the_shield_is_that_of_its_own_run(store)


async def requeue(store: Harness) -> None:
    await test_steps.test_a_requeue_from_a_step(store, "b", ["a"])


async def payload(store: Harness) -> None:
    await test_steps.test_a_requeue_with_another_payload_drops_the_results(store, '{"n":2}', [])


async def delete(store: Harness) -> None:
    await test_steps.test_steps_go_with_a_job_that_is_deleted(store, Status.FAILED)


async def used_again(store: Harness) -> None:
    await test_steps.test_an_id_that_is_used_again_keeps_its_steps(store, "delete")


async def used_again_and_pruned(store: Harness) -> None:
    await test_steps.test_an_id_that_is_used_again_keeps_its_steps(store, "prune")


async def prune(store: Harness) -> None:
    await test_steps.test_steps_go_with_jobs_that_are_pruned(store)


async def progress(store: Harness) -> None:
    await test_steps.test_the_next_run_finds_the_results_and_keeps_the_progress(store)


async def mark_that_waited(store: Harness) -> None:
    assert isinstance(store, PostgresHarness)
    await test_steps.test_a_mark_that_waited_for_its_row_is_written(store)


async def opposite_marks(store: Harness) -> None:
    await _opposite(store, _checkpoint, "SELECT 1 FROM _jobs WHERE id = '{id}' FOR UPDATE")


async def _checkpoint(store: Store, jobs: Sequence[Job]) -> None:
    assert Hold.LOST not in await store.checkpoint([mark(job, "a", "running") for job in jobs])
