"""Checks, without Node, that the built files in the repository match their sources: the page, and the npm package.

python tools/built.py NAME       write the digests of sources and built files, after `make NAME` has built them
python tools/built.py --check    exit 1 if something differs from its digests
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "src" / "rowlock" / "http" / "pages"


class Built(NamedTuple):
    """`note`: the file with the digests."""

    note: Path
    folder: Path
    sources: Callable[[], list[Path]]


def _of_page() -> list[Path]:
    found = [*_files(ROOT / "ui" / "src"), *_files(ROOT / "ui" / "public"), *_settings(ROOT / "ui")]
    return [path for path in found if path.name != "shapes.ts"]  # only types, which the built page does not contain


def _of_package() -> list[Path]:
    names = ("package.json", "package-lock.json", "tsconfig.json")
    return [*_files(ROOT / "js" / "src"), *(ROOT / "js" / name for name in names)]


BUILT = {
    "ui": Built(PAGES / "built-from.txt", PAGES, _of_page),
    "js": Built(ROOT / "js" / "built-from.txt", ROOT / "js" / "dist", _of_package),
}


def main(asked: str) -> int:
    if asked != "--check":
        BUILT[asked].note.write_text(_digests(asked), encoding="utf-8")
        return 0
    stale = [name for name, one in BUILT.items() if not _matches(name, one.note)]
    for name in stale:
        folder = BUILT[name].folder.relative_to(ROOT)
        print(f"{folder} does not match the sources in {name}: run `make {name}`", file=sys.stderr)
    return 1 if stale else 0


def _matches(name: str, note: Path) -> bool:
    return note.exists() and note.read_text(encoding="utf-8") == _digests(name)


def _digests(name: str) -> str:
    one = BUILT[name]
    built = [path for path in _files(one.folder) if path != one.note]
    return f"{name} {_digest(one.sources())}\n{one.folder.name} {_digest(built)}\n"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _settings(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.*") if path.is_file() and not path.name.startswith(".")]


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
