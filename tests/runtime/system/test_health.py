"""What an orchestrator is told."""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.runtime.system.fleet import SHORT, Fleet
from tests.servers import _free_port

pytestmark = pytest.mark.timeout(120)


def answer(port: int) -> int:
    """The HTTP status; 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
            assert json.load(response)["live"] is True
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


async def answers(fleet: Fleet, port: int, status: int) -> None:
    async def asked() -> bool:
        return await asyncio.to_thread(answer, port) == status

    await fleet.until(asked, what=f"the answer {status}")


def written(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


async def test_a_worker_that_stands_still_is_not_alive_until_it_goes_on(fleet: Fleet) -> None:
    port = _free_port()
    file = fleet.folder / "alive"
    worker = fleet.launch(*SHORT, "--health-port", str(port), "--health-file", str(file))
    [child] = await fleet.working(worker)
    await answers(fleet, port, 200)
    first = await fleet.until(lambda: written(file), what="the file")
    await fleet.until(lambda: written(file) > first, what="the file to be written again")
    os.kill(child, signal.SIGSTOP)
    await answers(fleet, port, 503)
    stale = written(file)
    os.kill(child, signal.SIGCONT)
    await answers(fleet, port, 200)
    await fleet.until(lambda: written(file) > stale, what="the file to be written again")
    assert await worker.stopped() == 0
    assert not file.exists()
    assert answer(port) == 0


async def test_a_worker_with_all_its_slots_full_is_alive(sqlite_fleet: Fleet) -> None:
    """It has nothing to claim for, and must not be taken for dead."""
    fleet = sqlite_fleet
    port = _free_port()
    worker = fleet.launch(*SHORT, "--concurrency", "1", "--health-port", str(port))
    await fleet.working(worker)
    await answers(fleet, port, 200)
    job = await fleet.enqueue("nap", {"seconds": 6.0})
    await fleet.begun(job)
    while not fleet.runs_of(job, "ended"):
        assert await asyncio.to_thread(answer, port) == 200
        await asyncio.sleep(0.1)


async def test_a_missing_process_makes_it_unhealthy_until_it_is_replaced(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    port = _free_port()
    worker = fleet.launch(*SHORT, "--processes", "2", "--health-port", str(port))
    both = await fleet.working(worker, 2)
    await answers(fleet, port, 200)
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    await answers(fleet, port, 503)
    await answers(fleet, port, 200)
    assert not worker.children() & both


async def test_a_port_that_is_taken_is_an_error_at_the_start(sqlite_fleet: Fleet) -> None:
    port = _free_port()
    await sqlite_fleet.start(*SHORT, "--health-port", str(port))
    second = sqlite_fleet.launch(*SHORT, "--health-port", str(port))
    assert await second.ended() == 1
    assert f"--health-port {port}" in second.output
    assert "Traceback" not in second.output
