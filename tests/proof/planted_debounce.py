"""Plants: what must not happen to jobs with debounce."""

from itertools import pairwise

from tests.proof.lives import Life, Step
from tests.proof.planting import Garden, breaks


def _next(life: Life, step: Step) -> str | None:
    return next((after.move for before, after in pairwise(life.steps) if before is step), None)


@breaks("S15")
def a_payload_went_to_a_job_that_a_worker_had_claimed(garden: Garden) -> None:
    _, step = garden.step("debounce")
    garden.alter(step, before={"version": 1}, after={"version": 1})


@breaks("S15")
def a_payload_was_lost(garden: Garden) -> None:
    _, step = garden.step("debounce", lambda life, step: _next(life, step) in ("claim", "debounce"))
    garden.alter(step, after={"payload": step.old["payload"]})


@breaks("S15")
def two_jobs_waited_with_one_key(garden: Garden) -> None:
    """The second job came while the first one waited. Its payload should have replaced the payload of the first."""
    life, step = garden.step("debounce", lambda life, step: life.steps[0].tx != step.tx)
    _, other = garden.step("enqueue", lambda one, step: one is not life and step.new["if_live"] == "debounce")
    garden.alter(other, after={"line": step.new["line"]})
    changes = garden.history.changes
    mine = [one for one in changes if one.seq == other.seq]
    rest = [one for one in changes if one.seq != other.seq]
    place = next(n for n, one in enumerate(rest) if one.seq == step.seq)
    garden.history.changes = [*rest[:place], *mine, *rest[place:]]
