"""An application in three releases. The second has one more topic and a changed handler. The third comes with the next
release of rowlock itself. APP_RELEASE names the release. Only workers use this application."""

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
