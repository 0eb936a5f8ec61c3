from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The command's exit codes. The package's docstring and docs/cli.md explain them."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    ENDED_BADLY = 3
    TIMED_OUT = 4
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it
