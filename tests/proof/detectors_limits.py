"""Detectors that must turn red when a defence of limits is switched off. Each calls one existing test."""

import pytest

from tests.stores import test_limits
from tests.stores.harness import Harness


async def concurrency(store: Harness) -> None:
    await test_limits.test_no_more_than_so_many_jobs_of_a_topic_are_held(store)


async def values(store: Harness) -> None:
    await test_limits.test_each_value_has_a_limit_of_its_own(store)


async def shared(store: Harness) -> None:
    await test_limits.test_topics_share_a_limit_by_its_name(store)


async def cancelling(store: Harness) -> None:
    await test_limits.test_what_a_worker_was_asked_to_cancel_is_held_and_what_waits_is_not(store)


async def rate(store: Harness) -> None:
    await test_limits.test_no_window_has_more_starts_than_the_rate(store)


async def burst(store: Harness) -> None:
    await test_limits.test_a_burst_spreads_the_starts_evenly(store)


async def turns(store: Harness) -> None:
    await test_limits.test_values_take_turns_by_their_weights(store)


async def expired(store: Harness) -> None:
    await test_limits.test_expired_jobs_are_not_claimed_and_hold_up_no_value(store)


async def ahead(store: Harness) -> None:
    await test_limits.test_a_limited_job_is_never_claimed_ahead(store)


async def paused(store: Harness) -> None:
    await test_limits.test_a_paused_topic_is_not_claimed_but_what_it_holds_counts(store)


async def share_of_an_update(store: Harness) -> None:
    await test_limits.test_another_payload_brings_another_share(store)


async def set_shares(store: Harness) -> None:
    await test_limits.test_shares_are_set_if_the_job_is_idle_and_as_it_was(store)


async def plain(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_limits.test_the_plain_claim_never_takes_a_limited_topic(store, patch)


async def claim_between(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_limits.test_a_claim_in_between_is_seen(store, test_limits.Between(patch))


async def change_between(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_limits.test_a_change_of_limits_in_between_is_seen(store, test_limits.Between(patch))


async def pause_between(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_limits.test_a_pause_in_between_is_seen(store, test_limits.Between(patch))


async def share_between(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_limits.test_another_share_in_between_is_seen(store, test_limits.Between(patch))
