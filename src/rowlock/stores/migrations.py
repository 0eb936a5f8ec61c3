"""Numbered SQL files, applied in order, each once: what both databases share.

A migration is `migrations/NNNN_<what>.sql` beside a store. Its checksum is kept in `_jobs_migrations`, so that an
edited one is noticed; a database that has a higher number than this code was migrated by a newer rowlock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct

from rowlock.errors import MigrationChanged, NotMigrated, SchemaTooNew

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        # White space at line ends differs between checkouts; nothing else may.
        text = "\n".join(line.rstrip() for line in self.sql.strip().splitlines())
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def title(self) -> str:
        return f"{self.number:04d} {self.name.replace('_', ' ')}"


@cache
def load(package: str) -> tuple[Migration, ...]:
    """All migrations of a store's package, in order."""
    found = []
    for file in files(package).joinpath("migrations").iterdir():
        if match := _NAME.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


def pending(known: tuple[Migration, ...], applied: Mapping[int, str], where: str) -> list[Migration]:
    """What is still to be applied; raises if the database and this code don't belong together.

    `applied` maps numbers to checksums, `where` names the database in messages.
    """
    newest = known[-1].number
    if ahead := [number for number in applied if number > newest]:
        raise SchemaTooNew(
            f"{where} is at schema version {max(ahead)}, this rowlock knows up to {newest}: upgrade rowlock here"
        )
    for migration in known:
        checksum = applied.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            raise MigrationChanged(
                f"migration {migration.title} was applied to {where} with other content than this rowlock has; "
                "restore the original file, and put changes into a new migration"
            )
    return [migration for migration in known if migration.number not in applied]


def require_none(missing: list[Migration], where: str) -> None:
    if missing:
        names = ", ".join(migration.title for migration in missing)
        raise NotMigrated(f"{where} lacks rowlock's migrations ({names}): run `rowlock migrate`")
