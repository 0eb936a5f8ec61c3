"""Run a suite's second half in its own mount namespace, with a small disk that no other process sees.

python -m tests.faults.apart MODULE CELL PLACE      runs `MODULE.run_on(cell, place)` and prints its Result
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.results import Result
from tests.faults.suites import Cell

MOUNT = 'mount -t tmpfs -o size="$1",mode=1777 none "$2" && shift 2 && exec "$@"'


def found(size: str, place: str) -> list[str] | None:
    """Return a command prefix that mounts a disk of that size at that place; None if that doesn't work here."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        return None
    words = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", size, place]
    if os.geteuid() != 0:  # be root for the mount only: PostgreSQL refuses to run as root
        me = ["--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
        words = ["unshare", "--map-root-user", *words[1:], "unshare", *me]
    return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else None


async def on_small_disk(cell: Cell, module: str, size: str) -> Result:
    """Run the suite's second half on a small disk, which is removed afterwards. Return its result."""
    with tempfile.TemporaryDirectory(prefix="rowlock-disk-") as place:
        words = found(size, place)
        if words is None:
            result = cell.result()
            result.not_run = "a small disk can't be mounted (no root, no user namespaces)"
            return result
        text = msgspec.json.encode(cell, enc_hook=str).decode()
        words += [sys.executable, "-m", "tests.faults.apart", module, text, place]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = await process.communicate()
        assert process.returncode == 0, f"it ended without a result:\n{err.decode(errors='replace')[-6000:]}"
        return msgspec.json.decode(out.splitlines()[-1], type=Result)


def main(module: str, text: str, place: str) -> None:
    cell = msgspec.json.decode(text, type=Cell, dec_hook=_decode)
    result = asyncio.run(import_module(module).run_on(cell, Path(place)))
    sys.stdout.buffer.write(msgspec.json.encode(result, enc_hook=repr) + b"\n")


def _decode(kind: type, value: Any) -> Any:
    return kind(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
