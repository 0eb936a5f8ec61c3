"""The application of the history, and handlers that take their process along or eat its memory."""

import faulthandler
import os
import resource
import signal
from pathlib import Path

from rowlock import Job
from rowlock.core.retry import Delays
from tests.proof.history_app import app, output
from tests.proof.recorder import Recorder

MOST_MEMORY = 128 << 20  # bytes that a hog may have beyond what is there
SOON = Delays((0.05, 0.1))

record = Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"]))
jobs = app(record)


@jobs.task(retry=SOON)
async def exits(job: Job) -> None:
    last_words(job)
    os._exit(0 if job.version % 2 else 7)  # a process that ends well has not ended well


@jobs.task(retry=SOON)
def segfaults(job: Job) -> None:
    last_words(job)
    os.kill(os.getpid(), signal.SIGSEGV)


@jobs.task(retry=SOON)
def hogs(job: Job) -> None:
    hog(1 << 20)  # not to the last byte: there Python itself breaks, and takes the innocent along


@jobs.task(retry=SOON, process=True)
def exits_apart(job: Job) -> None:
    os._exit(0 if job.version % 2 else 7)


@jobs.task(retry=SOON, process=True)
def segfaults_apart(job: Job) -> None:
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@jobs.task(retry=SOON, process=True)
def hogs_apart(job: Job) -> None:
    hog(1 << 20, 1 << 14, 1 << 10)


@jobs.task(retry=SOON, process=True)
def apart(job: Job) -> dict[str, object]:
    return output(job)


def last_words(job: Job) -> None:
    """It is the worker that dies, unless this is a child of it: suspects run in one."""
    if f"-{os.getpid()}-" in str(job.locked_by):
        record.fault("exit", str(job.locked_by))


def hog(*sizes: int) -> None:
    """Until there is no room left for a piece of each of these sizes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, before[1]))
    hoard: list[bytes] = []
    for size in sizes:
        try:
            while True:
                hoard.append(bytes(size))
        except MemoryError:
            pass
    pieces = len(hoard)
    # The traceback would keep it, and with it the memory that others need to write down how they ended.
    hoard.clear()
    resource.setrlimit(resource.RLIMIT_AS, before)
    raise MemoryError(f"{pieces} pieces, and nothing left")
