"""`python -m tests.faults.next_release COUNT`: run `rowlock migrate` as a future release with COUNT more migrations.
All of them are additive: a nullable column, and an index on it."""

import sys
from unittest.mock import patch

from rowlock.cli import main
from rowlock.stores import migrations
from rowlock.stores.migrations import Migration
from rowlock.stores.sqlite import migrate as on_sqlite


def made_up(package: str, number: int) -> Migration:
    schema = "{schema}." if package.endswith("postgres") else ""
    statements = [
        f"ALTER TABLE {schema}_jobs ADD COLUMN future_{number} text;",
        f"ALTER TABLE {schema}_jobs_archive ADD COLUMN future_{number} text;",
        f"CREATE INDEX _jobs_future_{number} ON {schema}_jobs (future_{number}) WHERE future_{number} IS NOT NULL;",
    ]
    return Migration(number, f"future_{number}", "\n".join(statements))


def make_it_known(count: int) -> None:
    """Add `count` future migrations to those that this process knows."""
    original = migrations.load

    def load(package: str) -> tuple[Migration, ...]:
        known = original(package)
        return (*known, *(made_up(package, known[-1].number + n) for n in range(1, count + 1)))

    patch.object(migrations, "load", load).start()
    patch.object(on_sqlite, "load", load).start()


if __name__ == "__main__":
    make_it_known(int(sys.argv[1]))
    sys.argv[1:] = ["migrate"]
    main()
