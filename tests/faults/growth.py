"""Measure what a long run needs, round by round, and judge whether that grows.

Growth is the median of the slopes between any two rounds, times the time that has passed. So a single outlier has no
effect. `RULES` states the growth that is allowed for each measure.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from tests.faults.stage import Stage
from tests.proof.lives import World
from tests.servers import PostgresServer

MIB = 1 << 20
WARM_UP = 2  # rounds that don't count, if there are enough rounds
FEWEST = 4  # rounds that are needed to judge a measure …
FEWEST_WHERE_IT_VARIES = 12  # … if pools fill and empty, or a busy machine moves the measure more than a leak would


class Measured(Struct):
    """What was measured after a round, at rest. Sizes are in MiB, latencies in milliseconds."""

    rss: float
    fds: int
    sockets: int
    threads: int
    connections: int
    """All connections to the server."""
    hot: float
    """_jobs with its indexes; on SQLite the file."""
    archive: float
    wal: float
    registered: int
    """Workers on the register. A killed worker is removed from it after an hour."""
    p50: float
    p99: float
    claims: int
    seconds: float = 0.0

    def text(self) -> str:
        return (
            f"RSS {self.rss:.1f} MiB, {self.fds} fds, {self.sockets} sockets, {self.connections} connections, hot "
            f"{self.hot:.1f} MiB, WAL {self.wal:.1f} MiB, due to claimed p50 {self.p50:.1f} p99 {self.p99:.1f} ms, "
            f"{self.seconds:.0f} s"
        )


class Judged(Struct):
    level: bool
    text: str


class _Rule(Struct):
    name: str
    unit: str
    of: Callable[[Measured], float]
    more: float
    """Allowed whatever it was, …"""
    share: float
    """… and of what it was at the beginning."""
    fewest: int = FEWEST


RULES = (
    _Rule("RSS of the survivor", "MiB", lambda one: one.rss, 3.0, 0.05),
    _Rule("its file descriptors", "", lambda one: one.fds, 12.0, 0.0, FEWEST_WHERE_IT_VARIES),
    _Rule("its sockets", "", lambda one: one.sockets, 10.0, 0.0, FEWEST_WHERE_IT_VARIES),
    _Rule("its threads", "", lambda one: one.threads, 3.0, 0.0),
    _Rule("connections to the server", "", lambda one: one.connections, 12.0, 0.25, FEWEST_WHERE_IT_VARIES),
    _Rule("hot table", "MiB", lambda one: one.hot, 4.0, 0.25),
    _Rule("WAL", "MiB", lambda one: one.wal, 300.0, 0.0),  # PostgreSQL may let it grow to max_wal_size
    _Rule("p50 of due to claimed", "ms", lambda one: one.p50, 5.0, 0.25, FEWEST_WHERE_IT_VARIES),
    _Rule("p99 of due to claimed", "ms", lambda one: one.p99, 50.0, 0.25, FEWEST_WHERE_IT_VARIES),
)


async def measure(stage: Stage, server: PostgresServer | None, pid: int, waits: Sequence[float]) -> Measured:
    process = Path(f"/proc/{pid}")
    links = [_target(link) for link in (process / "fd").iterdir()]
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    [(registered,)] = await stage.tables.fetch("SELECT count(*) FROM _jobs_workers")
    hot, archive, wal, connections = _on_sqlite(stage) if server is None else await _on_postgres(stage)
    ordered = sorted(waits)
    return Measured(
        rss=int(status["VmRSS"].split()[0]) / 1024,
        fds=len(links),
        sockets=sum(link.startswith("socket:") for link in links),
        threads=int(status["Threads"]),
        connections=connections,
        hot=hot / MIB,
        archive=archive / MIB,
        wal=wal / MIB,
        registered=int(registered),
        p50=_quantile(ordered, 0.50),
        p99=_quantile(ordered, 0.99),
        claims=len(ordered),
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed in the meantime
        return ""


def _on_sqlite(stage: Stage) -> tuple[int, int, int, int]:
    file = Path(stage.direct.removeprefix("sqlite:///"))
    wal = file.with_name(f"{file.name}-wal")
    return file.stat().st_size, 0, wal.stat().st_size if wal.exists() else 0, 0


async def _on_postgres(stage: Stage) -> tuple[int, int, int, int]:
    [row] = await stage.tables.fetch(
        """SELECT pg_total_relation_size('_jobs'),
            (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('_jobs_archive')),
            (SELECT sum(size) FROM pg_ls_waldir()),
            (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rowlock')"""
    )
    hot, archive, wal, connections = (int(value) for value in row)
    return hot, archive, wal, connections


def latency(world: World) -> list[float]:
    """Return the milliseconds from when each job could be claimed until it was claimed."""
    found = []
    for life in world.lives:
        for before, step in itertools.pairwise(life.steps):
            if step.move == "claim" and step.before is not None and step.after is not None:
                found.append((step.after["claimed_at"] - max(step.before["run_at"], before.at)) / 1000)
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    return max(0.0, ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]) if ordered else 0.0


def levels(rounds: Sequence[Measured]) -> list[Judged]:
    counted = rounds[WARM_UP:] if len(rounds) >= WARM_UP + FEWEST else rounds
    if len(counted) < FEWEST:
        return []
    ends = list(itertools.accumulate(one.seconds for one in counted))
    return [_judged(rule, ends, [float(rule.of(one)) for one in counted]) for rule in RULES]


def _judged(rule: _Rule, ends: Sequence[float], values: Sequence[float]) -> Judged:
    pairs = itertools.combinations(range(len(values)), 2)
    slope = statistics.median((values[b] - values[a]) / (ends[b] - ends[a]) for a, b in pairs)
    grown = slope * (ends[-1] - ends[0])
    allowed = rule.more + rule.share * statistics.median(values[: max(1, len(values) // 3)])
    unit = f" {rule.unit}" if rule.unit else ""
    text = (
        f"{rule.name}: {values[0]:.1f} → {values[-1]:.1f}{unit}, {slope * 3600:+.2f}{unit} per hour; "
        f"grown by {grown:+.2f}{unit}, {allowed:.1f}{unit} are allowed"
    )
    if len(values) < rule.fewest:
        return Judged(True, f"{text}; not judged by less than {rule.fewest} rounds")
    return Judged(grown <= allowed, text)


def table(rounds: Sequence[Measured]) -> list[str]:
    """Return the rounds as lines of a Markdown table. Of many rounds, only every n-th is shown."""
    names = list(Measured.__struct_fields__)
    lines = ["| round | " + " | ".join(names) + " |", "| ---: " * (len(names) + 1) + "|"]
    every = max(1, len(rounds) // 50)
    for n, one in enumerate(rounds):
        if n % every == 0 or n + 1 == len(rounds):
            values = (getattr(one, name) for name in names)
            said = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)
            lines.append(f"| {n + 1} | {' | '.join(said)} |")
    return lines
