"""What --health-port tells an orchestrator."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.runtime.system.fleet import SHORT, Fleet, health
from tests.servers import _free_port

pytestmark = pytest.mark.timeout(120)


def written(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


async def test_a_worker_that_stands_still_is_not_alive_until_it_goes_on(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    port = _free_port()
    file = fleet.folder / "alive"
    worker = fleet.launch(*SHORT, "--health-port", str(port), "--health-file", str(file))
    [child] = await fleet.working(worker)
    await fleet.healthy(port)
    first = await fleet.until(lambda: written(file), what="the file")
    await fleet.until(lambda: written(file) > first, what="the file to be written again")
    os.kill(child, signal.SIGSTOP)
    await fleet.healthy(port, 503)
    stale = written(file)
    os.kill(child, signal.SIGCONT)
    await fleet.healthy(port)
    await fleet.until(lambda: written(file) > stale, what="the file to be written again")
    assert await worker.stopped() == 0
    assert not file.exists()
    assert await health(port) == 0


async def test_a_worker_with_all_its_slots_full_is_alive(sqlite_fleet: Fleet) -> None:
    """With all slots full the worker claims nothing, for longer than a claim loop may stand still. Yet it counts as
    alive."""
    fleet = sqlite_fleet
    port = _free_port()
    options = ("--lease", "5s", "--poll", "200ms", "--grace", "1s", "--concurrency", "1")
    worker = fleet.launch(*options, "--health-port", str(port))
    await fleet.working(worker)
    await fleet.healthy(port)
    job = await fleet.enqueue("nap", {"seconds": 7.0})
    await fleet.begun(job)
    while not fleet.runs_of(job, "ended"):
        assert await health(port) == 200
        await asyncio.sleep(0.1)


async def test_a_missing_process_makes_it_unhealthy_until_it_is_replaced(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    port = _free_port()
    worker = fleet.launch(*SHORT, "--processes", "2", "--health-port", str(port))
    both = await fleet.working(worker, 2)
    await fleet.healthy(port)
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    await fleet.healthy(port, 503)
    await fleet.healthy(port)
    assert not worker.children() & both


async def test_a_port_that_is_taken_is_an_error_at_the_start(sqlite_fleet: Fleet) -> None:
    port = _free_port()
    await sqlite_fleet.start(*SHORT, "--health-port", str(port))
    second = sqlite_fleet.launch(*SHORT, "--health-port", str(port))
    assert await second.ended() == 1
    assert f"--health-port {port}" in second.output
    assert "Traceback" not in second.output
