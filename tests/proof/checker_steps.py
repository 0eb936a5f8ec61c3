"""S21: the stored results of steps."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

from tests.proof.history import RowChange
from tests.proof.lives import Row, Step, World, changed, is_held
from tests.proof.witness import ARCHIVE, JOBS, STEPS

Found = Iterator[tuple[str | None, str]]
Key = tuple[str, int]  # name and n

ENDS = frozenset({"succeeded", "failed"})


def s21_results_of_steps_stay_and_belong_to_their_run(world: World) -> Found:
    left: dict[tuple[str, str, int], Row] = {}
    for job_id, changes in changes_by_job(world, STEPS).items():
        stored = _Stored(job_id)
        moves: defaultdict[int, list[Step]] = defaultdict(list)
        for life in world.by_id.get(job_id, ()):
            for step in life.steps:
                moves[step.tx].append(step)
        for tx, own in groupby(changes, key=lambda change: change.tx):
            yield from ((job_id, text) for text in stored.follow(list(own), moves[tx], world.slack))
        yield from ((job_id, text) for text in _begun_again(world, job_id, stored.ended))
        left |= {(job_id, *key): row for key, row in stored.rows.items()}
    final = {(row["job_id"], row["name"], row["n"]): row for row in world.history.steps}
    for key in final.keys() | left.keys():
        if final.get(key) != left.get(key):
            yield key[0], f"the final row of step {key[1]}#{key[2]} is not what was witnessed"


def changes_by_job(world: World, *tables: str) -> dict[str, list[RowChange]]:
    """Return the changes of each job that ever had a row in one of these tables. Every writer of these tables locks the
    job's row, so the transactions of a job don't overlap."""
    mine: defaultdict[str, list[RowChange]] = defaultdict(list)
    having = set()
    for change in world.history.changes:
        row = change.after or change.before or {}
        if change.table in (JOBS, ARCHIVE):
            mine[row["id"]].append(change)
        elif change.table in tables:
            mine[row["job_id"]].append(change)
            having.add(row["job_id"])
    return {job_id: changes for job_id, changes in mine.items() if job_id in having}


class _End:
    """A stored end of a step: from when to when it was stored, and by which run."""

    def __init__(self, since: int, version: int) -> None:
        self.since = since
        self.until: int | None = None
        self.version = version


class _Stored:
    """The stored steps of a job, transaction by transaction."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.job: Row | None = None
        self.rows: dict[Key, Row] = {}
        self.ended: defaultdict[Key, list[_End]] = defaultdict(list)

    def follow(self, changes: list[RowChange], moves: list[Step], slack: int) -> Iterator[str]:
        """Apply the changes of one transaction, and yield what is wrong with them."""
        names = {step.move for step in moves}
        held = self.job
        for step in moves:
            if step.move == "cancel_timeout":
                yield from self._shield(step, slack)
        kinds = {(change.table, change.op) for change in changes}
        is_undone = {(JOBS, "insert"), (JOBS, "delete")} <= kinds  # PostgreSQL's answer to an id that is archived
        for change in changes:
            if change.table == STEPS:
                yield from self._mark(change, held, moves)
            elif is_undone:
                continue
            elif change.after is not None:
                self.job = change.after
            elif change.table == ARCHIVE or not any(one.table == ARCHIVE and one.after for one in changes):
                self.job = None
        where = f"after #{changes[-1].seq}"
        if self.job is None:
            if self.rows:
                yield f"left {len(self.rows)} steps behind, {where}"
                self.rows.clear()
        elif (self.job["step"] is not None) != bool(self.rows):
            yield f"names the step {self.job['step']} and has {len(self.rows)} stored ones, {where}"
        if "requeue" in names and not any(step.before and step.after and _is_undo(step) for step in moves):
            for (name, n), row in self.rows.items():
                if row["state"] != "succeeded":
                    yield f"was requeued and kept the step {name}#{n}, which is {row['state']}, {where}"

    def _mark(self, change: RowChange, held: Row | None, moves: list[Step]) -> Iterator[str]:
        before, after = change.before, change.after
        row = after or before or {}
        key = (row["name"], row["n"])
        what = f"step {row['name']}#{row['n']} (#{change.seq})"
        if before != self.rows.get(key) and before is not None:
            yield f"{what}: the row before is not what was there"
        if after is None:
            self.rows.pop(key, None)
            if self.ended[key] and self.ended[key][-1].until is None:
                self.ended[key][-1].until = change.at
            yield from _removal(what, row, moves)
            return
        self.rows[key] = after
        if key[0].startswith("@") and before is not None and changed(before, after) <= {"deadline"}:
            return  # S22 checks which moves may change a deadline
        if before is not None and before["state"] in ENDS:
            yield f"{what} had {before['state']}, and was written again as {after['state']}"
        elif after["state"] in ENDS:
            self.ended[key].append(_End(change.at, after["version"]))
        if held is None or not is_held(held):
            yield f"{what} was written although nobody held the job"
        elif after["version"] != held["version"]:
            yield f"{what} carries version {after['version']}, the run has {held['version']}"
        if not any(step.move == "checkpoint" for step in moves):
            yield f"{what} was written without a mark on its job"

    def _shield(self, step: Step, slack: int) -> Iterator[str]:
        before = step.before or {}
        for (name, n), row in self.rows.items():
            shields = row["state"] == "running" and not row["cancelable"] and row["version"] == before["version"]
            if shields and (before["locked_until"] or 0) > step.at + slack:
                yield f"{step} during the step {name}#{n}, which is not cancelable"


def _removal(what: str, row: Row, moves: list[Step]) -> Iterator[str]:
    names = {step.move for step in moves}
    if names & {"delete", "prune"}:
        return
    for step in moves:
        if step.move in ("requeue", "update"):
            other_payload = step.before and step.after and step.before["payload"] != step.after["payload"]
            asked = step.said("from_step") is not None or step.said("keep_steps") is False
            if other_payload or (step.move == "requeue" and (asked or row["state"] != "succeeded")):
                return
    yield f"{what}, which had {row['state']}, was removed by {', '.join(str(step) for step in moves) or 'nothing'}"


def _is_undo(step: Step) -> bool:
    """Return True if the requeue took back a cancel. The job keeps its time then."""
    return bool(step.before and step.after and step.before["run_at"] == step.after["run_at"])


def _begun_again(world: World, job_id: str, ended: dict[Key, list[_End]]) -> Iterator[str]:
    """A run knows which steps it and older runs have stored, so it begins none of them again. A frozen run that has
    lost its job does not know which steps newer runs have stored."""
    for run in world.history.step_runs:
        begun = world.by_database(run.begun)
        if run.job_id != job_id or begun is None:
            continue
        for end in ended.get((run.name, run.n), ()):
            there = end.since + world.apart < begun and (end.until is None or begun + world.apart < end.until)
            if there and end.version <= run.version:
                yield f"step {run.name}#{run.n} began in run {run.version} at {begun}, and had ended at {end.since}"
