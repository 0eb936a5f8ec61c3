"""Numbered SQL files, applied in order, each once: what both databases share.

A migration is `migrations/NNNN_<what>.sql` beside a store. Its checksum is kept in `_jobs_migrations`, so that an
edited one is noticed; a database that has a higher number than this code was migrated by a newer rowlock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Set
from functools import cache
from importlib.resources import files

from msgspec import Struct

from rowlock.errors import MigrationChanged, NotMigrated, SchemaDamaged, SchemaTooNew

DAMAGED = (  # what a verb says about a table that is not there
    "The schema is damaged: its migrations were applied, but this is missing. "
    "`rowlock migrate` names all that is missing, and says what to do"
)

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_STATEMENT = re.compile(  # of a migration, at the beginning of a line: what stands in a function is indented
    r"^(?:CREATE TABLE (?:\{schema\}\.)?(?P<table>\w+) \(\n(?P<columns>.*?)^\)"
    r"|CREATE TABLE (?:\{schema\}\.)?(?P<part>\w+) PARTITION OF"
    r"|CREATE VIEW (?:\{schema\}\.)?(?P<view>\w+) AS"
    r"|ALTER TABLE (?:\{schema\}\.)?(?P<altered>\w+)(?P<changes>[^;]*);)",
    re.MULTILINE | re.DOTALL,
)
_COLUMN = re.compile(r'^    "?([a-z_]\w*)"? ', re.MULTILINE)  # constraints are in capitals
_ADDED = re.compile(r"ADD COLUMN (\w+)")


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


def made_by(migrations: Iterable[Migration]) -> dict[str, set[str]]:
    """The tables and views that these migrations make, with the columns of the tables."""
    made: dict[str, set[str]] = {}
    for migration in migrations:
        for found in _STATEMENT.finditer(_COMMENT.sub("", migration.sql)):
            if found["altered"]:
                made[found["altered"]] |= set(_ADDED.findall(found["changes"]))
            else:
                name = found["table"] or found["part"] or found["view"]
                made[name] = set(_COLUMN.findall(found["columns"] or ""))
    return made


def require_whole(
    known: tuple[Migration, ...], applied: Mapping[int, str], there: Mapping[str, Set[str]], where: str
) -> None:
    """Raise if something is gone that the applied migrations have made. `there`: the tables and views of the database,
    with their columns."""
    missing = []
    for name, columns in made_by(migration for migration in known if migration.number in applied).items():
        if name not in there:
            missing.append(name)
        else:
            missing += [f"{name}.{column}" for column in sorted(columns - there[name])]
    if not applied and "_jobs" in there:
        missing.append("_jobs_migrations")  # the record itself
    if missing:
        raise SchemaDamaged(
            f"{where} is damaged: its migrations were applied, but what they made is gone: {', '.join(missing)}. "
            "Restore it from a backup. docs/stores.md (A damaged schema) says what may be made anew, and how"
        )


def require_none(missing: list[Migration], where: str) -> None:
    if missing:
        names = ", ".join(migration.title for migration in missing)
        raise NotMigrated(f"{where} lacks rowlock's migrations ({names}): run `rowlock migrate`")
