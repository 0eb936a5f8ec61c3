"""Every defence is needed: a detector is green with it, and red without it."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.databases import Databases
from tests.proof.sabotage import DEFENCES, WORKERS, Defence, Switch
from tests.proof.sabotage_flows import FLOWS
from tests.proof.sabotage_limits import LIMITS
from tests.proof.sabotage_lines import LINES
from tests.proof.sabotage_schedules import SCHEDULES
from tests.proof.sabotage_steps import STEPS
from tests.proof.sabotage_waits import WAITS
from tests.stores.harness import harness_at

SOON = 1.5  # seconds: much more than a detector needs, much less than for ever


async def _is_needed(defence: Defence, databases: Databases, tmp_path: Path) -> None:
    began = time.monotonic()
    at = partial(harness_at, defence.store, databases, virtual=defence.virtual, check=False)
    async with at(tmp_path / "on") as store:
        await defence.detector(store)
    with pytest.MonkeyPatch.context() as patch:
        defence.off(patch)
        async with at(tmp_path / "off") as store:
            # Any other error is a mistake in the sabotage itself.
            with pytest.raises(TimeoutError if defence.waits else (AssertionError, pytest.fail.Exception)):
                async with asyncio.timeout(SOON if defence.waits else None):
                    await defence.detector(store)
    print(f"sabotage: 0 violations, 1 defences, {time.monotonic() - began:.2f} s")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("defence", [*DEFENCES, *FLOWS, *LIMITS, *LINES, *SCHEDULES, *STEPS, *WAITS], ids=str)
async def test_a_defence_is_needed(defence: Defence, databases: Databases, tmp_path: Path) -> None:
    await _is_needed(defence, databases, tmp_path)


@pytest.mark.parametrize(("switch_off", "detector"), WORKERS, ids=[one.__name__ for one, _ in WORKERS])
def test_a_defence_of_workers_is_needed(switch_off: Switch, detector: Callable[[], None]) -> None:
    began = time.monotonic()
    detector()
    with pytest.MonkeyPatch.context() as patch:
        switch_off(patch)
        with pytest.raises(AssertionError):
            detector()
    print(f"sabotage: 0 violations, 1 defences, {time.monotonic() - began:.2f} s")
