"""A typed `.enqueue`: mypy AND pyright accept right calls and refuse wrong calls."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
REFUSED = {n for n, line in enumerate((HERE / "bad.py").read_text().splitlines(), 1) if line.endswith("# refused")}


def run(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True).stdout


Faults = set[tuple[str, int]]  # the file and line of each error


def mypy(*files: str) -> Faults:
    output = run("mypy", "--strict", "--no-incremental", "--no-error-summary", *files)
    return {(Path(file).name, int(line)) for file, line in re.findall(r"^(.+?):(\d+): error", output, re.MULTILINE)}


def pyright(*files: str) -> Faults:
    report = json.loads(run("basedpyright", "--pythonpath", sys.executable, "--outputjson", "--level", "error", *files))
    assert report["summary"]["filesAnalyzed"] == len(files)
    errors = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_the_checkers_agree_with_us(checker: Callable[..., Faults]) -> None:
    """Each checker gets both files at once, because it spends most of its time on their imports."""
    assert checker(str(HERE / "good.py"), str(HERE / "bad.py")) == {("bad.py", line) for line in REFUSED}
