"""The application of the history, with handlers that kill their process or use up its memory."""

import faulthandler
import os
import resource
import signal
from pathlib import Path

from rowlock import Job
from rowlock.core.retry import Delays
from tests.proof.history_app import app, output
from tests.proof.recorder import Recorder

MOST_MEMORY = 128 << 20  # bytes that a hog may take beyond what its process uses already
SOON = Delays((0.05, 0.1))

record = Recorder(Path(os.environ["ROWLOCK_PROOF_RECORD"]))
jobs = app(record)


@jobs.task(retry=SOON)
async def exits(job: Job) -> None:
    last_words(job)
    os._exit(0 if job.version % 2 else 7)  # exit code 0 is a crash, too


@jobs.task(retry=SOON)
def segfaults(job: Job) -> None:
    last_words(job)
    os.kill(os.getpid(), signal.SIGSEGV)


@jobs.task(retry=SOON)
def hogs(job: Job) -> None:
    hog(1 << 20)  # not to the last byte: then Python itself breaks, and so do the good jobs


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
    """Record that the worker is about to die. A child process of the worker, in which suspects run, records nothing."""
    if f"-{os.getpid()}-" in str(job.locked_by):
        record.fault("exit", str(job.locked_by))


def hog(*sizes: int) -> None:
    """Take memory until no piece of any of these sizes fits any more. Then free it, and raise MemoryError."""
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
    # The traceback would keep the list alive, and with it the memory that other jobs need to store their outcomes.
    hoard.clear()
    resource.setrlimit(resource.RLIMIT_AS, before)
    raise MemoryError(f"{pieces} pieces, and nothing left")
