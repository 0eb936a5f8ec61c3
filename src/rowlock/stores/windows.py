"""Debounce: jobs of a batch that stand in one line count as one enqueue, on each store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued


class Group(Struct, frozen=True):
    """Jobs of a batch that stand in one line. `job`: the id of the first of them, and the content of the last."""

    numbers: list[int]
    job: NewJob

    def answers(self, answer: Enqueued) -> dict[int, Enqueued]:
        """Return the answers of all its jobs, by number. `answer`: the first job's."""
        first, *rest = self.numbers
        return {first: answer} | {n: existing(answer) for n in rest}


def by_line(jobs: Sequence[NewJob], numbers: Sequence[int]) -> list[Group]:
    lines: dict[str, list[int]] = {}
    for n in numbers:
        lines.setdefault(jobs[n].line or "", []).append(n)
    groups = [Group(of, structs.replace(jobs[of[-1]], id=jobs[of[0]].id)) for of in lines.values()]
    return sorted(groups, key=lambda group: group.job.line or "")


def existing(answer: Enqueued) -> Enqueued:
    return structs.replace(answer, existing=True)
