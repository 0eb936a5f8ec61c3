"""Reports of workers, made ready for any store: progress and log lines."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rowlock.core.codec import decode
from rowlock.core.job import Log, LogLine
from rowlock.core.times import moment
from rowlock.stores.base import Progress

Reporter = tuple[str, int, str | None]  # id, version, worker


def merge(reports: Sequence[Progress]) -> dict[Reporter, Progress]:
    """Return one report per run, with the last value of each field, and all lines."""
    merged: dict[Reporter, Progress] = {}
    for report in reports:
        run = report.id, report.version, report.worker
        earlier = merged.get(run)
        merged[run] = report if earlier is None else _add(earlier, report)
    return merged


def _add(earlier: Progress, later: Progress) -> Progress:
    said = {name: value for name in ("percent", "stage", "message") if (value := getattr(later, name)) is not None}
    return replace(earlier, **said, lines=earlier.lines + later.lines)


def read_log(text: str | None, dropped: int) -> Log:
    """Return the log as it is kept with a job: [{at, version, level, text}, …]."""
    kept = decode(text) if text else []
    lines = [LogLine(moment(line["at"]), line["version"], line["level"], line["text"]) for line in kept]
    return Log(lines, dropped)
