"""The application of the history, and a handler that blocks its worker's event loop."""

import os
import time
from pathlib import Path
from typing import Any

from rowlock import Job
from tests.proof.history_app import app, output
from tests.proof.recorder import Recorder

jobs = app(Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"])))


@jobs.task
async def blocks(job: Job, seconds: float) -> dict[str, Any]:
    time.sleep(seconds)  # noqa: ASYNC251 - it is meant to block the loop
    return output(job)
