"""docs/postgres.sql: a collection of the statements that rowlock runs on PostgreSQL."""

import re
import subprocess
import sys
from pathlib import Path

from rowlock.stores.postgres.functions import functions
from rowlock.stores.postgres.statements import Statements

STORES = Path(__file__).parent.parent.parent / "src" / "rowlock" / "stores"


def test_the_page_shows_what_runs() -> None:
    checked = subprocess.run([sys.executable, "tools/sql.py", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_every_blank_is_filled_and_every_statement_is_used() -> None:
    statements = {name: text for name, text in vars(Statements("public")).items() if isinstance(text, str)}
    statements["functions"] = functions().sql.replace("{schema}", "public")
    blanks = {name: re.findall(r"(?<!')\{[a-z_]+\}", text) for name, text in statements.items()}
    assert {name: found for name, found in blanks.items() if found} == {}
    code = "\n".join(
        file.read_text("utf-8") for folder in ("postgres", "callers") for file in (STORES / folder).glob("*.py")
    )
    used = set(re.findall(r"(?:sql|texts|on_conn\(schema\))\.(\w+)", code))
    assert statements.keys() - {"functions"} <= used
    asked = re.findall(r"\b_sql\.(\w+)", code)
    assert [name for name in asked if not hasattr(Statements("public"), name)] == []


def test_a_statement_for_a_callers_connection_names_its_parameter_once() -> None:
    """Query.percent replaces every $1, even in a comment."""
    on_conn = {name: text for name, text in vars(Statements("public")).items() if name.endswith("_on_conn")}
    assert {name: text.count("$") for name, text in on_conn.items()} == dict.fromkeys(on_conn, 1)
