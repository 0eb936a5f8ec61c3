"""The numbered migrations that both databases share."""

import pytest
from msgspec import structs

from rowlock.errors import MigrationChanged, NotMigrated, SchemaDamaged, SchemaTooNew
from rowlock.stores.migrations import Functions, Migration, load, made_by, pending, require_none, require_whole
from rowlock.stores.postgres.functions import functions

ONE = Migration(1, "first_tables", "CREATE TABLE a (b int);\nSELECT 1;\n")
TWO = Migration(2, "more", "SELECT 2;")
KNOWN = (ONE, TWO)


def test_what_is_pending() -> None:
    assert pending(KNOWN, {}, "db") == [ONE, TWO]
    assert pending(KNOWN, {1: ONE.checksum}, "db") == [TWO]
    assert pending(KNOWN, {1: ONE.checksum, 2: TWO.checksum}, "db") == []


def test_a_database_newer_than_the_code() -> None:
    with pytest.raises(SchemaTooNew, match=r"jobs\.db is at schema version 4.*up to 2"):
        pending(KNOWN, {1: ONE.checksum, 2: TWO.checksum, 3: "x", 4: "y"}, "jobs.db")


def test_an_edited_migration() -> None:
    with pytest.raises(MigrationChanged, match="0001 first tables"):
        pending(KNOWN, {1: "other"}, "db")


def test_white_space_at_line_ends_is_no_change_but_anything_else_is() -> None:
    same = structs.replace(ONE, sql="\r\nCREATE TABLE a (b int);  \r\nSELECT 1;\r\n\r\n")
    assert same.checksum == ONE.checksum
    for sql in ("CREATE TABLE a (b int);\nSELECT  1;", "CREATE TABLE a (b int);\n\nSELECT 1;", "select 1"):
        assert structs.replace(ONE, sql=sql).checksum != ONE.checksum


FUNCTIONS = Functions(0, "functions", "-- one\nSELECT 1;\n", 2)
DONE = {1: ONE.checksum, 2: TWO.checksum}
# Checksums of the functions' code. If the code has another one, raise REVISION in functions.py and add a line here.
REVISIONS = {
    1: "adeaea1a78574163f89181321aca7224a7dc68426112a25859484e639b5b73a1",
    2: "cff46330d4f9f7b9d3284578874338d5e8664446c7967ace410179a6fe52a615",
    3: "89ddcd5bf80d2c66306084136c5f71456989ff45be22fc390f650913ee366a84",
    4: "672158fde1e60f5d1cf4d7e6c00bab607041d5a70556ea117e2e00cb46c0b65c",
    5: "7d3e66ba95a59bced8482ac02e0a08b1780a2e58e7977d90518e95113956590e",
    6: "1dabfcb5eaccce2959f6adfbef066681de6026560fd9a2a74b40c6040a0515b8",
    7: "0a2631e46af566a4d6bc26adf3e9b1830ddf4c41961e69dbe6f8e18fe3bab646",
}


@pytest.mark.parametrize(
    ("applied", "due"),
    [
        ({}, True),
        ({0: FUNCTIONS.checksum}, False),
        ({0: structs.replace(FUNCTIONS, revision=1).checksum}, True),
        ({0: structs.replace(FUNCTIONS, sql="SELECT 2;").checksum}, True),
        ({0: structs.replace(FUNCTIONS, revision=3, sql="SELECT 3;").checksum}, False),  # of a newer release
        ({0: structs.replace(FUNCTIONS, revision=10).checksum}, False),
    ],
)
def test_when_functions_are_applied_again(applied: dict[int, str], due: bool) -> None:
    assert pending((*KNOWN, FUNCTIONS), DONE | applied, "db") == [FUNCTIONS] * due
    assert pending((*KNOWN, FUNCTIONS), applied, "db") == [*KNOWN, *[FUNCTIONS] * due]
    with pytest.raises(SchemaTooNew, match=r"version 3.*up to 2"):
        pending((*KNOWN, FUNCTIONS), DONE | applied | {3: "x"}, "db")
    assert pending(KNOWN, DONE | applied, "db") == []  # a release without functions


def test_comments_and_white_space_are_no_change_of_a_function_but_anything_else_is() -> None:
    assert structs.replace(FUNCTIONS, sql="\n-- two\n  SELECT\n1;  -- three\n").checksum == FUNCTIONS.checksum
    assert structs.replace(FUNCTIONS, sql="SELECT 2;").checksum != FUNCTIONS.checksum


def test_the_revision_of_the_functions_is_raised_when_they_change() -> None:
    found = functions()
    assert found.checksum == f"{found.revision} {REVISIONS.get(found.revision)}"
    assert found.revision == max(REVISIONS)


def test_require_none() -> None:
    require_none([], "db")
    with pytest.raises(NotMigrated, match=r"jobs\.db.*0001 first tables, 0002 more.*rowlock migrate"):
        require_none([ONE, TWO], "jobs.db")


THREE = Migration(
    3,
    "tables",
    """-- CREATE TABLE no (
CREATE TABLE {schema}._jobs (
    id uuid,  -- an id; that is all
    at timestamptz,
    CONSTRAINT _jobs_at CHECK (at IS NOT NULL
        AND id IS NOT NULL)
);
CREATE TABLE {schema}._jobs_rest PARTITION OF {schema}._jobs DEFAULT;
CREATE VIEW {schema}._jobs_all AS SELECT 1;
""",
)
FOUR = Migration(4, "more", "ALTER TABLE {schema}._jobs\n    ADD COLUMN a int,  -- x;\n    ADD COLUMN b int;\n")


def test_what_migrations_make_is_read_from_their_text() -> None:
    rest = {"_jobs_rest": set[str](), "_jobs_all": set[str]()}
    assert made_by([THREE]) == {"_jobs": {"id", "at"}, **rest}
    assert made_by([THREE, FOUR]) == {"_jobs": {"id", "at", "a", "b"}, **rest}


def test_a_table_that_was_made_anew_has_its_name_and_its_new_columns() -> None:
    anew = "CREATE TABLE _jobs_anew (\n    id TEXT,\n    more TEXT\n);\nDROP TABLE _jobs;\n"
    renamed = "ALTER TABLE _jobs_anew RENAME TO _jobs;\nALTER TABLE _jobs ADD COLUMN last TEXT;\n"
    made = made_by([THREE, FOUR, Migration(5, "anew", anew + renamed)])
    assert made["_jobs"] == {"id", "more", "last"}
    assert "_jobs_anew" not in made


def test_what_is_gone_is_named() -> None:
    known, whole = (THREE, FOUR), made_by([THREE, FOUR])
    both = {3: "x", 4: "y"}
    require_whole(known, both, {**whole, "_jobs_of_the_future": {"a"}, "_jobs": {*whole["_jobs"], "more"}}, "db")
    require_whole(known, {3: "x"}, made_by([THREE]), "db")
    require_whole(known, {}, {}, "db")
    less = {"_jobs": {"id", "at", "a"}, "_jobs_all": set[str]()}
    with pytest.raises(SchemaDamaged, match=r"db is damaged.*gone: _jobs\.b, _jobs_rest\. Restore"):
        require_whole(known, both, less, "db")
    with pytest.raises(SchemaDamaged, match=r"gone: _jobs_migrations\."):
        require_whole(known, {}, whole, "db")


@pytest.mark.parametrize("package", ["rowlock.stores.sqlite", "rowlock.stores.postgres"])
def test_the_numbers_have_no_gap(package: str) -> None:
    assert [migration.number for migration in load(package)] == list(range(1, len(load(package)) + 1))


def test_a_shortened_migration_keeps_the_checksum_that_databases_know() -> None:
    short = Migration(1, "first_tables", f"-- checksum: {ONE.checksum}\nCREATE TABLE a (b int);\n")
    assert pending((short, TWO), {1: ONE.checksum}, "db") == [TWO]
    with pytest.raises(MigrationChanged, match="0001 first tables"):
        pending((short, TWO), {1: "other"}, "db")
