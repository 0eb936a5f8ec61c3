"""An application in three releases: the second knows a topic more and has changed a handler, the third comes with the
next release of rowlock itself. For workers only: APP_RELEASE says which one it is."""

import os
from typing import Any

from rowlock import Job
from tests.faults.next_release import make_it_known
from tests.proof.history_app import jobs, output

RELEASE = int(os.environ["APP_RELEASE"])


async def renewed(job: Job, pages: int, dpi: int = 0) -> dict[str, Any]:
    return output(job) | {"release": RELEASE, "pages": pages, "dpi": dpi}


async def renewed_later(job: Job, pages: int, dpi: int = 300) -> dict[str, Any]:
    return output(job) | {"release": RELEASE, "pages": pages, "dpi": dpi}


async def newcomer(job: Job) -> dict[str, Any]:
    return output(job) | {"release": RELEASE}


if RELEASE == 1:
    jobs.register("renewed", renewed)
else:
    jobs.register("renewed", renewed_later)
    jobs.register("newcomer", newcomer)
if RELEASE == 3:
    make_it_known(int(os.environ["APP_MIGRATIONS"]))
