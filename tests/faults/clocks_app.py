"""The application of the history, with a handler that snoozes until a certain time."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from rowlock import Job
from rowlock.errors import Snooze
from tests.proof.history_app import app, output
from tests.proof.recorder import Recorder

jobs = app(Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"])))


@jobs.task
async def until(job: Job, seconds: float) -> dict[str, Any]:
    """Snooze until a time counted from `created`, so by the database's clock, which no process here has to know."""
    if job.version == 1:
        raise Snooze(job.created + timedelta(seconds=seconds))
    return output(job)
