"""Explore every state that a System can reach, shortest courses first."""

import gc
import time
from array import array

from msgspec import Struct

from tests.proof.model import Broken
from tests.proof.model_same import Sameness
from tests.proof.model_state import State
from tests.proof.model_system import Label, System


class Finding(Struct, frozen=True):
    """The shortest course that breaks an invariant."""

    invariant: str
    text: str
    course: list[str]

    def __str__(self) -> str:
        steps = "\n".join(f"{number:4}. {step}" for number, step in enumerate(self.course, 1))
        return f"{self.invariant}: {self.text}\n{steps}"


class Report(Struct, frozen=True):
    states: int
    transitions: int
    seconds: float
    finding: Finding | None

    def line(self, name: str) -> str:
        broken = "0 violations" if self.finding is None else f"1 violation of {self.finding.invariant}"
        return f"{name}: {broken}, {self.states:,} states, {self.transitions:,} transitions, {self.seconds:.1f} s"


class Explorer:
    """`reduce`: treat states that differ only in names as one (see Sameness). That is quicker, but the numbers of
    workers and runs may then change in the middle of a course. `states`: all states that were reached."""

    def __init__(self, system: System, *, reduce: bool = True, most: int = 50_000_000) -> None:
        self._system = system
        self._same = Sameness() if reduce else None
        self._most = most
        self.states: list[State] = []
        self._parents = array("l")
        self._labels: list[Label] = []

    def explore(self) -> Report:
        begun = time.perf_counter()
        self._fair_from, self._fair_to = array("l"), array("l")
        self._transitions = 0
        gc.disable()  # there are millions of tuples and no cycles; looking for cycles would take most of the time
        try:
            finding = self._search() or self._dead_end()
        finally:
            gc.enable()
        return Report(len(self.states), self._transitions, time.perf_counter() - begun, finding)

    def _search(self) -> Finding | None:
        system, same = self._system, self._same
        seen = {system.first(): 0}
        self._note(system.first(), -1, ("", ()))
        at = 0
        while at < len(self.states):
            if len(self.states) > self._most:
                raise RuntimeError(f"more than {self._most:,} states: choose a smaller size")
            try:
                for label, fair, to in system.steps(self.states[at]):
                    self._transitions += 1
                    if (number := seen.get(to, -1)) < 0:
                        after = to if same is None else same(to)
                        number = seen.setdefault(after, len(seen))
                        if number == len(self.states):
                            self._note(after, at, label)
                    if fair and number != at:
                        self._fair_from.append(at)
                        self._fair_to.append(number)
            except Broken as broken:
                text = str(broken).partition(": ")[2]
                return Finding(broken.invariant, text, [*self._course(at), _say(system.doing)])
            at += 1
        return None

    def _note(self, state: State, parent: int, label: Label) -> None:
        self.states.append(state)
        self._parents.append(parent)
        self._labels.append(label)

    def _dead_end(self) -> Finding | None:
        """Return a Finding if there is a state from which not everything can come to rest, even if nothing goes wrong
        any more. On a finite graph this checks liveness: a course that is fair to every step reaches rest."""
        ends = bytearray(self._system.at_rest(state) for state in self.states)
        grew = True
        while grew:
            grew = False
            for at in range(len(self._fair_from) - 1, -1, -1):  # backwards: most steps lead to later numbers
                source = self._fair_from[at]
                if not ends[source] and ends[self._fair_to[at]]:
                    ends[source] = grew = True
        stuck = ends.find(0)
        if stuck < 0:
            return None
        jobs = [f"job {job} is {row.status}, run {row.version}" for job, row in enumerate(self.states[stuck].jobs)]
        return Finding("L1", f"from here on not everything can end: {'; '.join(jobs)}", self._course(stuck))

    def _course(self, at: int) -> list[str]:
        course = []
        while at > 0:
            course.append(_say(self._labels[at]))
            at = self._parents[at]
        return course[::-1]


def _say(label: Label) -> str:
    text, about = label
    return text.format(*about)
