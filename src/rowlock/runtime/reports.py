"""Write the progress and log lines of handlers, guarded by version and worker like every write of a run."""

from __future__ import annotations

from collections.abc import Iterable

from rowlock.runtime.run import Run
from rowlock.stores.base import Hold, Store


async def write_reports(store: Store, runs: Iterable[Run]) -> dict[Run, Hold]:
    """Return what the database answers for each run that had something to write. Reports that are not written stay with
    their run: after an error all of them, else those of locked jobs (UNSEEN)."""
    said = {run: report for run in runs if (report := run.collect()) is not None}
    if not said:
        return {}
    holds: list[Hold] = []
    try:
        holds = await store.progress(list(said.values()))
    finally:
        answers = dict(zip(said, holds, strict=True)) if holds else {}
        for run, report in said.items():
            run.written(report, kept=answers.get(run, Hold.UNSEEN) is not Hold.UNSEEN)
    return answers
