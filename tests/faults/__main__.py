"""`make faults`: every suite on every database it applies to, two at a time, a line each; non-zero on any violation.

`python -m tests.faults` is the quick column of the fault table; `… kills --store sqlite --seed 7` shows
one cell again.
"""

import argparse
import asyncio
import platform
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path

import msgspec

from tests.faults.results import Result, write_report
from tests.faults.scale import QUICK
from tests.faults.suites import BOTH, ONCE, POSTGRES, SQLITE, Cell, Suite

SUITES = {
    "kills": Suite("kills"),
    "last_try": Suite("last_try"),
    "after_effects": Suite("after_effects"),
    "blocked_loop": Suite("blocked_loop"),
    "zombies": Suite("zombies"),
    "remote": Suite("remote"),
    "javascript": Suite("javascript"),
    "outages": Suite("outages", POSTGRES),
    "network": Suite("network", POSTGRES, "there is no network"),
    "listen": Suite("listen", POSTGRES, "nobody listens"),
    "pgbouncer": Suite("pgbouncer", POSTGRES),
    "clocks": Suite("clocks", POSTGRES, "its clock is the machine's"),
    "schedules": Suite("schedules"),
    "disk": Suite("disk"),
    "lost_file": Suite("lost_file", SQLITE, "its files are the server's own"),
    "poison": Suite("poison"),
    "xmin": Suite("xmin", POSTGRES, "it has no snapshots that hold vacuum back"),
    "deploys": Suite("deploys"),
    "stops": Suite("stops"),
    "race": Suite("race"),
    "lines": Suite("lines"),
    "flows": Suite("flows"),
    "limits": Suite("limits"),
    "failover": Suite("failover", POSTGRES),
    "lagging": Suite("lagging", POSTGRES),
    "fuzz": Suite("fuzz"),
    "misuse": Suite("misuse"),
    "crash-points": Suite("borrowed", ONCE, "it sees to all databases at once"),
    "model": Suite("borrowed", ONCE, "it sees to all databases at once"),
    "simulation": Suite("borrowed", ONCE, "it sees to all databases at once"),
    "small-model": Suite("borrowed", ONCE, "it sees to all databases at once"),
}
OUT = Path("build/faults")
LONGEST = 3600.0  # seconds that a cell may take. Most take a minute or two, and many times that on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.split("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--store", choices=(*BOTH, *ONCE), action="append", help="default: each that a suite is for")
    parser.add_argument("--seed", type=int, help="to see a failure again; default: a new one")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="cells side by side (default: 2)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the report (default: {OUT})")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave all that a suite has made there")
    parser.add_argument("--cell", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.suites) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    names = given.suites or list(SUITES)
    if given.cell:
        return run_cell(names[0], given.store[0], seed, given.keep)
    cells = [(name, store) for name in names for store in given.store or SUITES[name].asked]
    began = time.monotonic()
    results = asyncio.run(run_all(cells, seed, given.at_once, given.keep))
    took = time.monotonic() - began
    write_report(results, given.out, seed=seed, python=platform.python_version(), seconds=round(took))
    bad = [result for result in results if result.bad]
    for result in bad:
        print(f"\n{result.line()}\n{result.details()}", file=sys.stderr)
        print(f"  again: python -m tests.faults {result.suite} --store {result.store} --seed {seed}", file=sys.stderr)
    ran = [result for result in results if not result.not_run]
    violations = sum(len(result.violations) for result in results)
    print(f"{len(ran)} cells, {violations} violations, {took:.0f} s, seed {seed}; see {given.out}/results.md")
    return 1 if bad else 0


async def run_all(cells: list[tuple[str, str]], seed: int, at_once: int, keep: Path | None) -> list[Result]:
    places = asyncio.Semaphore(at_once)

    async def one(name: str, store: str) -> Result:
        suite = SUITES[name]
        if store not in suite.stores:
            result = Result(name, store, seed, not_run=suite.why_not)
        else:
            async with places:
                result = await in_process(name, store, seed, keep)
        print(result.line(), flush=True)
        if result.bad:  # print it now: the rest of a whole run takes minutes
            print(result.details(), flush=True)
        return result

    return await asyncio.gather(*(one(name, store) for name, store in cells))


async def in_process(name: str, store: str, seed: int, keep: Path | None) -> Result:
    """Run the cell in its own process, so that a suite that dies or hangs harms no other. Return its result."""
    words = ["-m", "tests.faults", name, "--store", store, "--seed", str(seed), "--cell"]
    words += ["--keep", str(keep)] if keep else []
    began, err = time.monotonic(), b""
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=-1, stderr=-1)
    try:
        out, err = await asyncio.wait_for(process.communicate(), LONGEST)
        return msgspec.json.decode(out.splitlines()[-1], type=Result)
    except (TimeoutError, IndexError, msgspec.DecodeError) as error:
        said = f"{error!r}" if isinstance(error, TimeoutError) else err.decode(errors="replace")[-4000:]
        return Result(name, store, seed, error=said or repr(error), seconds=time.monotonic() - began)
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the cell's process: SIGINT first, because a killed cell leaves its workers behind."""
    process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.communicate(), 60)
    except TimeoutError:
        process.kill()
        await process.wait()


def run_cell(name: str, store: str, seed: int, keep: Path | None) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process started in the background ignores SIGINT
    folder = keep / f"{name}-{store}" if keep else Path(tempfile.mkdtemp(prefix="rowlock-faults-"))
    cell = Cell(name, store, seed, folder, QUICK)
    began = time.monotonic()
    try:
        module = import_module(f"tests.faults.suites.{SUITES[name].module}")
        result: Result = asyncio.run(module.run(cell))
    except BaseException:
        result = cell.result()
        result.error = traceback.format_exc()
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    result.seconds = time.monotonic() - began
    sys.stdout.buffer.write(msgspec.json.encode(result, enc_hook=repr) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
