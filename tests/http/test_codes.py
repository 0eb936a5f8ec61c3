"""Every error code is declared in one place, with one status, and every declared code is used."""

import ast
from functools import cache
from pathlib import Path

import pytest

import rowlock
from rowlock.errors import InvalidInput
from rowlock.http.openapi import document
from rowlock.http.problems import CODES, TITLES, Problem, from_error

SOURCES = Path(rowlock.__file__).parent

# Files where InvalidInput is about how the program is set up, or only for callers from Python.
OFFLINE = {
    "config.py", "context.py", "logs.py", "run_steps.py", "steps.py", "access/jwt.py", "client/middleware.py",
    "client/registry.py",
    "http/server.py", "http/settings.py", "stores/__init__.py", "stores/callers/__init__.py",
    "stores/postgres/connections.py", "stores/postgres/doorbell.py", "runtime/settings.py", "runtime/worker.py",
    "wasm/handler.py", "wasm/host.py",
}  # fmt: skip
OFFLINE_CODES = {
    ("access/superusers.py", "changed"), ("access/superusers.py", "unknown"),
    ("jobs.py", "not_here"),
    ("client/children.py", "not_here"),
    ("client/flows.py", "id_behind"), ("client/flows.py", "not_a_node"), ("client/flows.py", "outside"),
    ("core/flows.py", "no_such_result"),
    ("client/schedules.py", "declared_twice"), ("client/schedules.py", "not_here"),
    ("core/cron.py", "bad_type"), ("core/schedules.py", "not_here"),
    ("signals.py", "bad_type"),
    ("tasks.py", "declared_twice"), ("tasks.py", "not_a_schedule"), ("tasks.py", "not_schedulable"),
    ("tasks.py", "not_here"), ("tasks.py", "positional"), ("tasks.py", "sync_context"), ("tasks.py", "unknown_type"),
}  # fmt: skip


@cache
def every_call() -> dict[str, list[tuple[str, ast.Call]]]:
    """Return all calls by the name of the called function: the file, and the call."""
    found: dict[str, list[tuple[str, ast.Call]]] = {}
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found.setdefault(called, []).append((file.relative_to(SOURCES).as_posix(), node))
    return found


def used() -> dict[str, set[str]]:
    """The codes that a request may meet, and the files that use them."""
    found: dict[str, set[str]] = {}
    for name, place in (("Problem", 0), ("InvalidInput", 1), ("BadClaim", 1), ("_Unreadable", 0)):
        for file, call in every_call()[name]:
            if name == "InvalidInput" and file in OFFLINE:
                continue
            code = call.args[place]
            if isinstance(code, ast.Attribute) and code.attr == "code":
                continue  # another error's, and declared there
            assert isinstance(code, ast.Constant), f"{file}:{call.lineno}: write the code where the error is made"
            if (file, code.value) not in OFFLINE_CODES:
                found.setdefault(str(code.value), set()).add(file)
    return found


def test_every_code_that_is_used_is_declared() -> None:
    undeclared = {code: files for code, files in used().items() if code not in CODES}
    assert not undeclared, "declare them in CODES, http/problems.py"


def test_every_code_that_is_declared_is_used() -> None:
    assert CODES.keys() - used().keys() == set()


def test_what_is_offline_is_there() -> None:
    """Each file in OFFLINE must still raise InvalidInput, so that a file that moved leaves no exception behind."""
    files = {file for file, _ in every_call()["InvalidInput"]}
    assert files >= OFFLINE
    assert {file for file, _ in OFFLINE_CODES} <= files


def test_every_status_has_a_title() -> None:
    assert {status for status, _ in CODES.values()} <= TITLES.keys()


def test_the_document_lists_the_codes() -> None:
    assert document()["components"]["schemas"]["ProblemBody"]["properties"]["code"]["enum"] == sorted(CODES)


def test_a_problem_with_an_undeclared_code_can_not_be_made() -> None:
    with pytest.raises(KeyError):
        Problem("made_up", "nobody knows it")


def test_a_code_of_the_applications_own_stays_inside() -> None:
    """The application's middleware may refuse a job by InvalidInput. The client is told the code bad_value instead."""
    problem = from_error(InvalidInput("payload.to", "spam", "is an address of ours"))
    assert (problem.status, problem.code, problem.field) == (400, "bad_value", "payload.to")


def test_what_is_too_large_is_a_413_wherever_it_is_found() -> None:
    assert from_error(InvalidInput("payload", "too_large", "is large")).status == 413
