"""A worker that is started while the disk of its database is full waits for room, as a running worker does."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.apart import found
from tests.faults.suites.disk import stuff
from tests.runtime.system.fleet import MARK, SHORT, Fleet
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)

WAIT_FOR_GO = 'until [ -e go ]; do sleep 0.05; done; exec "$@"'


async def test_a_worker_that_is_started_on_a_full_disk_waits_for_room(sqlite_fleet: Fleet) -> None:
    fleet, place = sqlite_fleet, sqlite_fleet.folder / "disk"
    place.mkdir()
    words = found("8m", str(place))
    if words is None:
        pytest.skip("a small disk can't be mounted (no root, no user namespaces)")
    job_id = await fleet.enqueue("quick")
    await fleet.jobs.close()
    command = [sys.executable, "-m", "rowlock", "worker", "app:jobs", *SHORT]
    environ = os.environ | {"ROWLOCK_URL": f"sqlite:///{place}/jobs.db", MARK: fleet._mark}
    said = fleet.folder / "said"
    with said.open("wb") as output:
        worker = subprocess.Popen(  # noqa: ASYNC220 - it takes a moment
            [*words, "sh", "-c", WAIT_FOR_GO, "sh", *command],
            cwd=fleet.folder,
            env=environ,
            stdout=output,
            stderr=output,
        )
    disk = Path(f"/proc/{worker.pid}/root{place}")  # only the worker's processes see this mount directly
    await until(lambda: os.path.ismount(disk), what="the disk")
    shutil.copy(fleet.folder / "jobs.db", disk / "jobs.db")
    stuff(disk / "ballast")
    (fleet.folder / "go").touch()
    await until(lambda: "the database is not there yet" in said.read_text(), what="it to say that it waits")
    assert "no space left" in said.read_text()
    (disk / "ballast").unlink()
    await fleet.begun(job_id)
    worker.send_signal(signal.SIGTERM)
    await until(lambda: worker.poll() is not None, what="the worker to stop")
    assert worker.returncode == 0, said.read_text()
