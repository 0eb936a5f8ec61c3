"""Delete what was checked, between two rounds of a soak: in the tables, in the witness's log and in the record. Jobs
are deleted row by row, as an operator would do it: the tables must bear that."""

import os
import sqlite3
from contextlib import closing, suppress

from tests.closing import connected
from tests.faults.stage import Stage

TABLES = ("_jobs", "_jobs_archive", "_jobs_audit", "business")


async def forget(stage: Stage) -> None:
    """Delete what was checked. Call it only while no job is live and no worker is writing."""
    emptied = "; ".join(f"DELETE FROM {table}" for table in TABLES)
    if stage.store == "sqlite":
        path = stage.direct.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as connection:
            connection.executescript(f"BEGIN IMMEDIATE; {emptied}; DELETE FROM _witness; COMMIT")
    else:
        async with connected(stage.direct) as connection_:
            await connection_.execute(f"{emptied}; TRUNCATE witness.log")
    _forget_record(stage)
    stage.fleet.workers[:] = [worker for worker in stage.fleet.workers if worker.process.poll() is None]


def _forget_record(stage: Stage) -> None:
    """Empty the files of live processes, which go on appending to them. Delete the files of dead processes."""
    for file in (stage.folder / "record").glob("*.jsonl"):
        if _lives(int(file.name.partition("-")[0])):
            os.truncate(file, 0)
        else:
            file.unlink()


def _lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
