"""A typed `.enqueue`: mypy AND pyright accept what is right and refuse what is wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
REFUSED = {n for n, line in enumerate((HERE / "bad.py").read_text().splitlines(), 1) if line.endswith("# refused")}


def run(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True).stdout


def mypy(file: Path) -> set[int]:
    """The lines that it finds fault with."""
    output = run("mypy", "--strict", "--no-incremental", "--no-error-summary", str(file))
    return {int(line) for line in re.findall(rf"{file.name}:(\d+): error", output)}


def pyright(file: Path) -> set[int]:
    report = json.loads(run("basedpyright", "--outputjson", "--level", "error", str(file)))
    assert report["summary"]["filesAnalyzed"] == 1
    return {one["range"]["start"]["line"] + 1 for one in report["generalDiagnostics"] if one["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_the_checkers_agree_with_us(checker: object) -> None:
    assert callable(checker)
    assert checker(HERE / "good.py") == set()
    assert checker(HERE / "bad.py") == REFUSED
