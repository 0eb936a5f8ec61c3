"""The SQL functions (docs/sql.md): functions.sql, with the store's own claim, settle and complete in it.

`rowlock migrate` applies them after all migrations, and again whenever they have changed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from textwrap import indent

from rowlock.stores import sql
from rowlock.stores.migrations import Functions
from rowlock.stores.postgres.statements import CLAIM, COMPLETE, PACKAGE, SETTLE, claiming, completing, settling

# Raise it with every change of the functions' code: it tells a rowlock which of two texts is newer. A test has the
# checksum of each revision.
REVISION = 7

# The expressions for the parameters of the parts. An array of one NULL: the whole lane is read.
_CLAIM = dict.fromkeys(CLAIM, "NULL") | {
    "topics": "lanes",
    "template_versions": "versions",
    "after_ranks": "ARRAY[NULL]",
    "most": "claim_job_batch.n",
    "worker": "claim_job_batch.worker",
    "lease": "seconds",
    "start": "true",
}
_SETTLE = dict.fromkeys(SETTLE, "NULL") | {
    "ids": "ARRAY[_jobs_settle.id]",
    "runs": "ARRAY[_jobs_settle.version]",
    "goals": "ARRAY[_jobs_settle.goal]",
    "delays": "ARRAY[_jobs_settle.delay]",
    "retries": "ARRAY[_jobs_settle.retries]",
    "errors": "ARRAY[_jobs_settle.error]",
    "entries": "ARRAY[history_entry]",
    "worker": "_jobs_settle.worker",
}
_COMPLETE = dict.fromkeys(COMPLETE, "NULL") | {
    "ids": "ARRAY[complete_job.id]",
    "version": "complete_job.version",
    "outcomes": "ARRAY[complete_job.result::text]",
    "worker": "complete_job.worker",
}


@cache
def functions() -> Functions:
    parts = {
        "claim": claiming("{schema}", _CLAIM, columns="j.*"),
        "settle": settling("{schema}", _SETTLE),
        "complete": completing("{schema}", _COMPLETE),
    }
    indented = {name: indent(text, "    ").lstrip() for name, text in parts.items()}
    own = files(PACKAGE).joinpath("functions.sql").read_text("utf-8")
    return Functions(0, "functions", sql.fill(own, indented), REVISION)
