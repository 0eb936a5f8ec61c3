"""Writes docs/postgres.sql: what rowlock runs on PostgreSQL. With --check it exits with 1 if that is out of date."""

import sys
from pathlib import Path

from rowlock.stores.postgres.functions import functions
from rowlock.stores.postgres.statements import Statements

FILE = Path(__file__).parent.parent / "docs" / "postgres.sql"

HEAD = """\
-- What rowlock runs on PostgreSQL, with all parts put together, for the schema `public`. Written by `make format`.
-- The sources are in src/rowlock/stores/postgres: sql/<name>.sql, sql/parts, statements.py and functions.sql.
--
-- Not here: the migrations, the lists of jobs (listing.py builds them from their filters), and the short statements of
-- partitions.py, connections.py and doorbell.py.
"""


def text() -> str:
    statements = {name: value for name, value in vars(Statements("public")).items() if isinstance(value, str)}
    parts = [f"\n-- ════ {name} ════\n\n{statement.strip()};\n" for name, statement in sorted(statements.items())]
    of_sql = functions()
    return "".join([HEAD, *parts, f"\n-- ════ {of_sql.title} ════\n\n", of_sql.sql.replace("{schema}", "public")])


def main() -> int:
    if sys.argv[1:] != ["--check"]:
        FILE.write_text(text(), "utf-8")
    elif FILE.read_text("utf-8") != text():
        print(f"{FILE.name} is not what the code says: run `make format`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
