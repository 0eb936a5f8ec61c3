"""Real drains by real programs, with marks and checks."""

from collections.abc import Iterator

import pytest

from benchmarks import pooled
from benchmarks.bench import QUICK, Bench
from benchmarks.drain import drained
from benchmarks.programs import Failed, Task
from benchmarks.rounds import Results
from benchmarks.servers import Servers
from benchmarks.systems import raw, raw_sqlite, rowlock, rowlock_sqlite
from benchmarks.systems.base import System

JOBS = 200


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.mark.parametrize(
    "system", [rowlock.SYSTEM, raw.SYSTEM, rowlock_sqlite.SYSTEM, raw_sqlite.SYSTEM], ids=lambda system: system.name
)
def test_a_drain(servers: Servers, system: System) -> None:
    options = {"synchronous": "NORMAL"} if system.store == "sqlite" else {}
    with servers.filled(system, JOBS) as url:
        assert 0 < drained(servers, Task(system, url, JOBS, options=options), 1) < 30


def test_a_drain_that_did_not_do_what_it_should(servers: Servers) -> None:
    system = raw_sqlite.SYSTEM
    with servers.filled(system, JOBS) as url, pytest.raises(Failed, match=f"{JOBS} of {JOBS - 1} jobs are recorded"):
        drained(servers, Task(system, url, JOBS - 1), 1)


def test_without_pgbouncer_its_measures_are_left_out_with_a_reason(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tests.pgbouncer.PLACES", ())
    bench = Bench(servers, [rowlock.SYSTEM], QUICK, Results())
    for measure in (pooled.measure_enqueue, pooled.measure_pickup):
        measure(bench, measure.__name__)
    assert list(bench.left_out) == ["measure_enqueue", "measure_pickup"]
    assert not bench.results.cells
    assert not servers.used_postgres
