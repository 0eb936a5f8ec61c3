"""Time zones by name: from the system's data, else from the tzdata package."""

from __future__ import annotations

import importlib
import re
import zoneinfo
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

from rowlock.core.cron import MAX_ZONE
from rowlock.errors import InvalidInput

_EXAMPLE = "Use a name of the IANA, like Europe/Berlin or UTC"
# They are in the folder of the zones, but differ from machine to machine, or count leap seconds.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_NO_FOLDERS = ("posix/", "right/")


@lru_cache(1024)
def zone(name: str, field: str = "when.zone") -> ZoneInfo:
    """Return the time zone, or raise InvalidInput with the names that are nearest to this one."""
    if not isinstance(name, str):
        raise InvalidInput(field, "not_text", f"must be a string, not {type(name).__name__}. {_EXAMPLE}")
    if not 1 <= len(name) <= MAX_ZONE:
        raise InvalidInput(field, "bad_length", f"must be 1 to {MAX_ZONE} characters, not {len(name)}. {_EXAMPLE}")
    # A name is a path in a folder: only parts that can't lead out of it.
    if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", name):
        raise InvalidInput(field, "bad_characters", f"{name!a:.80} is no name of a time zone. {_EXAMPLE}")
    if name in _NO_ZONES or name.startswith(_NO_FOLDERS):
        raise InvalidInput(field, "unknown_zone", f"{name} is not the same zone on every machine. {_EXAMPLE}")
    try:
        found = ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder, like Europe
        found = None
    # Some file systems ignore case: a name that works there must not fail on the next machine.
    if found is None or (_ignores_case() and name not in _names()):
        raise InvalidInput(field, "unknown_zone", f"there is no time zone {name}. {_nearest(name)}")
    return found


@cache
def zone_data() -> str:
    """Return the IANA version of the data in use, like 2026a. Empty: unknown."""
    for folder in map(Path, zoneinfo.TZPATH):
        if not (folder / "Europe").is_dir():
            continue
        for file in ("tzdata.zi", "+VERSION"):
            try:
                with (folder / file).open(encoding="ascii", errors="replace") as lines:
                    first = lines.readline(200)
            except OSError:
                continue
            if version := re.search(r"\b[0-9]{4}[a-z]{1,2}\b", first):
                return version[0]
        return ""
    try:
        return str(importlib.import_module("tzdata").IANA_VERSION)
    except ImportError:  # a Linux distribution may leave it out, because the system has the data
        return ""


@cache
def _ignores_case() -> bool:
    return any(Path(folder, "eUROPE").is_dir() for folder in zoneinfo.TZPATH)


@cache
def _names() -> frozenset[str]:
    return frozenset(
        name for name in zoneinfo.available_timezones() if name not in _NO_ZONES and not name.startswith(_NO_FOLDERS)
    )


@cache
def _by_lower_case() -> dict[str, str]:
    return {name.lower(): name for name in sorted(_names())}


def _nearest(name: str) -> str:
    """Return a sentence with the zones that may be meant, best first."""
    wanted = name.lower()
    known = _by_lower_case()
    if wanted in known:
        return f"Did you mean {known[wanted]}?"
    city = wanted.rpartition("/")[2]
    found = sorted(full for lower, full in known.items() if lower.rpartition("/")[2] == city and "/" in lower)
    # EST is near to PST only in its letters.
    if not found and ("/" in name or len(name) > 4):
        found = [known[lower] for lower in get_close_matches(wanted, known, n=3, cutoff=0.75)]
        if not found:
            cities = {lower.rpartition("/")[2]: lower for lower in known if "/" in lower}
            found = [known[cities[one]] for one in get_close_matches(city, cities, n=3, cutoff=0.8)]
    return f"Did you mean {' or '.join(found[:3])}?" if found else f"{_EXAMPLE}"
