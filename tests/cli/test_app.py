"""load_jobs: the argument of `rowlock worker`, and every way in which it can be wrong."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowlock.cli.app import AppError, load_jobs
from rowlock.cli.exits import Exit
from rowlock.jobs import Jobs

JOBS = 'from rowlock import Jobs\njobs = Jobs("sqlite://")\n'

_names = (f"app_under_test_{n}" for n in itertools.count())


class Folder:
    """A working directory with an application in it. Each module has its own name, because Python caches imports."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str, name: str | None = None) -> str:
        name = name or next(_names)
        (self.path / f"{name}.py").write_text(text)
        return name

    def refused(self, place: str) -> AppError:
        with pytest.raises(AppError) as refused:
            load_jobs(place)
        assert refused.value.exit_code == Exit.USAGE
        assert len(refused.value.message.splitlines()) <= 2
        return refused.value


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield Folder(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("app_under_test"):
            del sys.modules[name]


def test_a_module_and_its_attribute(folder: Folder) -> None:
    name = folder.write(JOBS)
    assert load_jobs(f"{name}:jobs") is sys.modules[name].jobs
    assert sys.path[0] == str(folder.path)
    load_jobs(name)
    assert sys.path.count(str(folder.path)) == 1


def test_the_only_jobs_of_a_module(folder: Folder) -> None:
    assert isinstance(load_jobs(folder.write(f"{JOBS}the_same = jobs\n")), Jobs)


def test_an_attribute_of_an_attribute(folder: Folder) -> None:
    assert isinstance(load_jobs(f"{folder.write(f'{JOBS}class State: queue = jobs')}:State.queue"), Jobs)


def test_the_working_directory_comes_first(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    name = folder.write(JOBS)
    (other / f"{name}.py").write_text("raise RuntimeError('the wrong one')")
    sys.path.insert(0, str(other))
    assert isinstance(load_jobs(name), Jobs)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("app.py", "write app:jobs"),
        ("./shop/app.py:queue", "write shop.app:queue"),
        ("shop/app", "write shop.app:jobs"),
        (":jobs", "is not module:attribute"),
        ("app:", "is not module:attribute"),
        ("app:jobs:more", "is not module:attribute"),
        ("app jobs", "is not module:attribute"),
        ("", "is not module:attribute"),
    ],
)
def test_not_a_module(folder: Folder, place: str, says: str) -> None:
    assert says in folder.refused(place).message


def test_no_such_module(folder: Folder) -> None:
    message = folder.refused("app_under_test_missing:jobs").message
    assert f"there is no module app_under_test_missing in {folder.path}" in message


def test_no_such_module_in_a_package(folder: Folder) -> None:
    (folder.path / "app_under_test_package").mkdir()
    assert "no module app_under_test_package.app in" in folder.refused("app_under_test_package.app:jobs").message


def test_a_dot_for_a_colon(folder: Folder) -> None:
    name = folder.write(JOBS)
    assert f"write {name}:jobs" in folder.refused(f"{name}.jobs").message


def test_a_module_that_imports_what_is_not_installed(folder: Folder) -> None:
    helper = folder.write("import a_library_that_nobody_has\n")
    name = folder.write(f"import {helper}\n")
    message = folder.refused(f"{name}:jobs").message
    assert f"{name} imports a_library_that_nobody_has, which is not installed ({helper}.py:1)" in message


def test_a_module_that_raises(folder: Folder) -> None:
    name = folder.write("import json\n\njson.loads('{')\n")
    error = folder.refused(f"{name}:jobs")
    assert f"JSONDecodeError at {name}.py:3: Expecting property name" in error.message  # not a line of the json module
    assert isinstance(error.__cause__, ValueError)


def test_jobs_without_a_url(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROWLOCK_URL", raising=False)
    name = folder.write("from rowlock import Jobs\njobs = Jobs()\n")
    assert f"InvalidInput at {name}.py:2: url: give" in folder.refused(name).message


def test_a_module_that_is_not_python(folder: Folder) -> None:
    name = folder.write("jobs = (\n\ndef broken(:\n")
    message = folder.refused(f"{name}:jobs").message
    assert f"SyntaxError at {name}.py:" in message


def test_a_module_that_ends_the_program(folder: Folder) -> None:
    name = folder.write("import sys\nsys.exit(3)\n")
    assert f"sys.exit at {name}.py:2" in folder.refused(f"{name}:jobs").message


def test_no_such_attribute(folder: Folder) -> None:
    name = folder.write(f"{JOBS}other = Jobs('sqlite://')\n")
    message = folder.refused(f"{name}:job").message
    assert message == f"{name} ({name}.py) has no job; write {name}:jobs or {name}:other"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("{}", "of type dict"),
        ("lambda: 7", "of type function"),
        ("Jobs", "the class Jobs"),
        ("None", "of type NoneType"),
    ],
)
def test_an_attribute_that_is_no_jobs(folder: Folder, value: str, what: str) -> None:
    name = folder.write(f"{JOBS}other = {value}\n")
    assert folder.refused(f"{name}:other").message == f"{name}:other is {what}, not Jobs; write {name}:jobs"


def test_a_module_with_no_jobs_or_with_several(folder: Folder) -> None:
    assert "there are no Jobs in it" in folder.refused(folder.write("x = 1\n")).message
    several: Any = folder.write(f"{JOBS}other = Jobs('sqlite://')\n")
    assert f"write {several}:jobs or {several}:other" in folder.refused(several).message
