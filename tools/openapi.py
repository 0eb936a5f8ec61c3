"""docs/openapi.json is what the code says. `--check`: is it? Without: write it."""

import sys
from pathlib import Path

from rowlock.http.openapi import text

FILE = Path(__file__).parent.parent / "docs" / "openapi.json"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if FILE.read_bytes() != text():
            print(f"{FILE.name} is not what the code says: run `make format`", file=sys.stderr)
            return 1
        return 0
    FILE.write_bytes(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
