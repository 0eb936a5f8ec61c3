"""Migrations of both databases: numbered SQL files, applied in order, each once.

A migration is `migrations/NNNN_<what>.sql` beside a store. The table `_jobs_migrations` has its checksum, so that an
edited one is noticed. A database that has a higher number than this code was migrated by a newer rowlock.

SQL functions are no migration. They are applied again whenever they have changed, and have the number 0 in that table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Set
from functools import cache
from importlib.resources import files

from msgspec import Struct

from rowlock.errors import MigrationChanged, NotMigrated, SchemaDamaged, SchemaTooNew

DAMAGED = (  # the message of a verb that finds a table missing
    "The schema is damaged: its migrations were applied, but this is missing. "
    "`rowlock migrate` names all that is missing, and says what to do"
)

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_CHECKSUM = re.compile(r"-- checksum: ([0-9a-f]{64})\n")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_STATEMENT = re.compile(  # at the beginning of a line: statements inside of a function are indented
    r"^(?:CREATE TABLE (?:\{schema\}\.)?(?P<table>\w+) \(\n(?P<columns>.*?)^\)"
    r"|CREATE TABLE (?:\{schema\}\.)?(?P<part>\w+) PARTITION OF"
    r"|CREATE VIEW (?:\{schema\}\.)?(?P<view>\w+) AS"
    r"|ALTER TABLE (?:\{schema\}\.)?(?P<altered>\w+)(?P<changes>[^;]*);)",
    re.MULTILINE | re.DOTALL,
)
_COLUMN = re.compile(r'^    "?([a-z_]\w*)"? ', re.MULTILINE)  # constraints are in capitals
_ADDED = re.compile(r"ADD COLUMN (\w+)")
_RENAMED = re.compile(r"^ RENAME TO (\w+)")


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Return the checksum of the text, or the checksum that the text names. It names one if SQL that later
        migrations replace was taken out of it."""
        if named := _CHECKSUM.match(self.sql):
            return named[1]
        # White space at line ends differs between checkouts; nothing else may.
        text = "\n".join(line.rstrip() for line in self.sql.strip().splitlines())
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def title(self) -> str:
        return f"{self.number:04d} {self.name.replace('_', ' ')}"

    def is_due(self, applied: str | None, where: str) -> bool:
        """Return True if it was not applied yet. Raise MigrationChanged if it was applied with another checksum."""
        if applied not in (None, self.checksum):
            raise MigrationChanged(
                f"migration {self.title} was applied to {where} with other content than this rowlock has; "
                "restore the original file, and put changes into a new migration"
            )
        return applied is None


class Pending(Struct, frozen=True):
    """The migrations that `migrate` would apply. `script`: the same as SQL, for operators who run it themselves; empty
    if there are none."""

    migrations: list[Migration]
    script: str


class Functions(Migration, frozen=True):
    """The SQL functions. A higher revision in the database comes from a newer rowlock, whose functions work for this
    one too."""

    revision: int

    @property
    def checksum(self) -> str:
        """Return the revision, and a digest of the code without comments and white space."""
        code = " ".join(_COMMENT.sub("", self.sql).split())
        return f"{self.revision} {hashlib.sha256(code.encode()).hexdigest()}"

    @property
    def title(self) -> str:
        return f"functions, revision {self.revision}"

    def is_due(self, applied: str | None, where: str) -> bool:
        """Return True unless the database has these functions, or newer ones."""
        if applied is None or applied == self.checksum:
            return applied is None
        return int(applied.split()[0]) <= self.revision


@cache
def load(package: str) -> tuple[Migration, ...]:
    """Return all migrations of a store's package, in order."""
    found = []
    for file in files(package).joinpath("migrations").iterdir():
        if match := _NAME.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


def pending(known: tuple[Migration, ...], applied: Mapping[int, str], where: str) -> list[Migration]:
    """Return the migrations that are still to be applied. Raise if the database and this code don't belong together.

    `applied` maps numbers to checksums, `where` names the database in messages.
    """
    newest = max(migration.number for migration in known)
    if ahead := [number for number in applied if number > newest]:
        raise SchemaTooNew(
            f"{where} is at schema version {max(ahead)}, this rowlock knows up to {newest}: upgrade rowlock here"
        )
    return [migration for migration in known if migration.is_due(applied.get(migration.number), where)]


def made_by(migrations: Iterable[Migration]) -> dict[str, set[str]]:
    """Return the tables and views that these migrations make, with the columns of the tables."""
    made: dict[str, set[str]] = {}
    for migration in migrations:
        for found in _STATEMENT.finditer(_COMMENT.sub("", migration.sql)):
            if found["altered"] and (renamed := _RENAMED.match(found["changes"])):
                made[renamed[1]] = made.pop(found["altered"])
            elif found["altered"]:
                made[found["altered"]] |= set(_ADDED.findall(found["changes"]))
            else:
                name = found["table"] or found["part"] or found["view"]
                made[name] = set(_COLUMN.findall(found["columns"] or ""))
    return made


def require_whole(
    known: tuple[Migration, ...], applied: Mapping[int, str], there: Mapping[str, Set[str]], where: str
) -> None:
    """Raise SchemaDamaged if a table, view or column is gone that the applied migrations have made. `there` has the
    tables and views of the database, with their columns."""
    missing = []
    for name, columns in made_by(migration for migration in known if migration.number in applied).items():
        if name not in there:
            missing.append(name)
        else:
            missing += [f"{name}.{column}" for column in sorted(columns - there[name])]
    if not applied and "_jobs" in there:
        missing.append("_jobs_migrations")
    if missing:
        raise SchemaDamaged(
            f"{where} is damaged: its migrations were applied, but what they made is gone: {', '.join(missing)}. "
            "Restore it from a backup. docs/stores.md (A damaged schema) says what may be made anew, and how"
        )


def require_none(missing: list[Migration], where: str) -> None:
    if missing:
        names = ", ".join(migration.title for migration in missing)
        raise NotMigrated(f"{where} lacks rowlock's migrations ({names}): run `rowlock migrate`")
