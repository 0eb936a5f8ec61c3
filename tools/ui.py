"""Checks that the built page under src/rowlock/http/pages matches its sources in ui/, without Node.

python tools/ui.py            write the digests of sources and built files, after `make ui` has built the page
python tools/ui.py --check    exit 1 if they differ from these digests
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
UI = ROOT / "ui"
PAGES = ROOT / "src" / "rowlock" / "http" / "pages"
NOTE = PAGES / "built-from.txt"


def main() -> int:
    if "--check" not in sys.argv:
        NOTE.write_text(_built(), encoding="utf-8")
        return 0
    if not NOTE.exists() or NOTE.read_text(encoding="utf-8") != _built():
        print("src/rowlock/http/pages does not match the sources in ui: run `make ui`", file=sys.stderr)
        return 1
    return 0


def _built() -> str:
    return f"ui {_digest(_sources())}\npages {_digest(_pages())}\n"


def _sources() -> list[Path]:
    found = [path for folder in ("src", "public") for path in (UI / folder).rglob("*") if path.is_file()]
    return sorted([*found, *(path for path in UI.glob("*.*") if path.is_file() and not path.name.startswith("."))])


def _pages() -> list[Path]:
    return sorted(path for path in PAGES.iterdir() if path != NOTE)


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
