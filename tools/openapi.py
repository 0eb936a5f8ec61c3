"""Writes docs/openapi.json and docs/errors.md from the code. With --check it exits with 1 if they are out of date."""

import sys
from pathlib import Path

from rowlock.http.openapi import text
from rowlock.http.problems import CODES, TITLES

DOCS = Path(__file__).parent.parent / "docs"

HEAD = """\
# Error codes

Every error is `application/problem+json` with one of these codes: see [http.md](http.md#conventions). A code is stable
and has one status. `field` names the wrong part of the request. `make format` writes this page from the code.

In Python, each exception can be imported from `rowlock`: `from rowlock import IdTaken, InvalidState, StoreBusy`.
"""


def errors() -> str:
    """Return the text of docs/errors.md: one table for each status."""
    parts = [HEAD]
    for status in sorted({status for status, _ in CODES.values()}):
        rows = [f"| `{code}` | {meaning} |" for code, (of, meaning) in sorted(CODES.items()) if of == status]
        parts.append(f"\n## {status} {TITLES[status]}\n\n| code | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def main() -> int:
    files = {"openapi.json": text(), "errors.md": errors().encode()}
    if sys.argv[1:] == ["--check"]:
        stale = [name for name, content in files.items() if (DOCS / name).read_bytes() != content]
        for name in stale:
            print(f"{name} is out of date: run `make format`", file=sys.stderr)
        return 1 if stale else 0
    for name, content in files.items():
        (DOCS / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
