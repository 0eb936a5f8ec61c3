"""Peers that run on Node: their modules and their programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "node"
MODULES = FOLDER / "node_modules"
NPM_SECONDS = 300.0


def install() -> tuple[bool, str]:
    """Install the peers if they are missing. Return whether they can run, and if not, why."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return False, f"there is no {program} here"
    if MODULES.is_dir():
        return True, ""
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    try:
        # Not `npm ci`: the lock file lacks the optional packages for other platforms than ours.
        ran = subprocess.run(
            ["npm", "install", "--no-save", *quiet], cwd=FOLDER, capture_output=True, text=True, timeout=NPM_SECONDS
        )
    except subprocess.TimeoutExpired:
        reason = f"npm install took more than {NPM_SECONDS:.0f} s"
    else:
        if ran.returncode == 0:
            return True, ""
        reason = f"npm install failed: {ran.stderr.strip()[:300]}"
    shutil.rmtree(MODULES, ignore_errors=True)  # else the next run would take them for complete
    return False, reason


def version(package: str) -> Callable[[], str | None]:
    def installed() -> str | None:
        about = MODULES / package / "package.json"
        if shutil.which("node") is None or not about.exists():
            return None
        return str(json.loads(about.read_text())["version"])

    return installed


def program(name: str) -> Callable[[str], list[str]]:
    return lambda verb: ["node", str(FOLDER / f"{name}.mjs"), verb]
