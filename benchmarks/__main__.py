from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import catalog, machine, report
from benchmarks.bench import FULL, QUICK, Bench
from benchmarks.measures import ALL
from benchmarks.rounds import say
from benchmarks.servers import Servers

MEASURES = [measure.name for measure in ALL]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="rowlock beside other job queues")
    parser.add_argument("--quick", action="store_true", help="about a minute: few systems, short rounds")
    parser.add_argument("--only", metavar="MEASURES", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--systems", metavar="NAMES", help=f"of {', '.join(catalog.FULL)}")
    parser.add_argument("--rounds", type=int, help="of each measure")
    parser.add_argument("--out", type=Path, help="a folder; default: build/bench/quick or build/bench/full")
    return parser.parse_args()


def chosen(text: str | None, known: Sequence[str], usual: Sequence[str]) -> list[str]:
    if text is None:
        return list(usual)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    return [name for name in known if name in names]


def main() -> None:
    given = arguments()
    scale = QUICK if given.quick else FULL
    scale = replace(scale, rounds=given.rounds or scale.rounds)
    wanted = chosen(given.only, MEASURES, [measure.name for measure in ALL if measure.quick or not given.quick])
    names = chosen(given.systems, catalog.FULL, catalog.QUICK if given.quick else catalog.FULL)
    systems, missing = catalog.load(names)
    for name, reason in missing.items():
        say(f"{name} is left out: {reason}")
    if ours := [name for name in missing if name in catalog.OURS]:
        sys.exit(f"{', '.join(ours)} must be there")
    out = given.out or Path("build", "bench", scale.name)
    run = report.Run(scale, systems, missing, datetime.now(UTC))
    begin = time.monotonic()
    with Servers() as servers:
        run.machine = machine.describe(servers.folder)
        bench = Bench(servers, systems, scale, run.results, missing)
        try:
            for measure in ALL:
                if measure.name in wanted:
                    measure.run(bench, measure.name)
            run.complete = True
        finally:  # the figures from before a failure are worth a look
            run.servers = servers.describe()
            run.seconds = time.monotonic() - begin
            report.write(run, out)
    say(f"{run.seconds:.0f} s; see {out / 'results.md'}")
    print(json.dumps(report.summary(run.results)))


if __name__ == "__main__":
    main()
