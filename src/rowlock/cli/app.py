"""Find the application's Jobs, as `rowlock worker module:jobs` names them. Every error says in a line or two what to
do."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from rowlock.cli.exits import Exit
from rowlock.cli.groups import TRACEBACK
from rowlock.jobs import Jobs


class AppError(click.ClickException):
    """The application can't be loaded. The cause, if it is an exception of its own, is the __cause__."""

    exit_code = Exit.USAGE


def load_jobs(place: str) -> Jobs:
    """Return the Jobs at `module:attribute`, or the only one of `module`. The working directory comes first in
    sys.path."""
    module_name, attribute = _read(place)
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    module = _import(module_name)
    return _find(module, attribute) if attribute else _only(module)


def _read(place: str) -> tuple[str, str]:
    module, colon, attribute = place.partition(":")
    if module.endswith(".py") or "/" in module or "\\" in module:
        path = module.removesuffix(".py").replace("\\", "/").removeprefix("./").strip("/")
        raise AppError(f"{place} is a file; name the module: write {path.replace('/', '.')}:{attribute or 'jobs'}")
    names = [*module.split("."), *(attribute.split(".") if colon else [])]
    if not all(name.isidentifier() for name in names):
        raise AppError(f"{place!r} is not module:attribute, such as app:jobs or shop.background:jobs")
    return module, attribute


# ── The module ──


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _missing(name, error) from error
    except SyntaxError as error:
        at = f"{_short(error.filename or '?')}:{error.lineno}"
        raise AppError(f"{name} can't be imported: {type(error).__name__} at {at}: {error.msg}") from error
    except SystemExit as error:
        raise AppError(f"{name} ends the program when it is imported: sys.exit at {_place(error)}") from error
    except Exception as error:
        said = " ".join(str(error).split())
        raise AppError(
            f"{name} can't be imported: {type(error).__name__} at {_place(error)}{f': {said}' if said else ''}\n"
            f"{TRACEBACK}=1 shows the whole traceback."
        ) from error


def _missing(name: str, error: ModuleNotFoundError) -> AppError:
    """Return the error for a missing module: the application's own, or one that it imports."""
    missing = error.name or ""
    if name != missing and not name.startswith(f"{missing}."):
        return AppError(
            f"{name} imports {missing or 'something'}, which is not installed ({_place(error)}): "
            f"is this the right environment? It is {sys.prefix}"
        )
    parent, _, last = name.rpartition(".")
    if parent in sys.modules and not hasattr(sys.modules[parent], "__path__"):
        return AppError(f"{parent} is a module, not a package: write {parent}:{last}")
    return AppError(
        f"there is no module {missing} in {Path.cwd()}, nor among the installed ones: "
        f"call this where {missing.split('.')[0]}{'.py' if missing == name and '.' not in name else ''} is"
    )


def _place(error: BaseException) -> str:
    """Return file:line of the application's code that raised, not of a library that it called."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)[1:] if not frame.filename.startswith("<frozen")
    ]
    here = Path.cwd()
    own = [
        frame
        for frame in frames
        if Path(frame.filename).is_relative_to(here) and "site-packages" not in Path(frame.filename).parts
    ]
    where = (own or frames)[-1:]
    return f"{_short(where[0].filename)}:{where[0].lineno}" if where else "an unknown place"


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# ── The Jobs in it ──


def _find(module: ModuleType, attribute: str) -> Jobs:
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise AppError(f"{_described(module)} has no {attribute}; {_candidates(module)}")
        found = getattr(found, name)
    if isinstance(found, Jobs):
        return found
    what = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
    raise AppError(f"{module.__name__}:{attribute} is {what}, not Jobs; {_candidates(module)}")


def _only(module: ModuleType) -> Jobs:
    found = _jobs_in(module)
    different = {id(jobs): jobs for jobs in found.values()}
    if len(different) == 1:
        return next(iter(different.values()))
    raise AppError(f"{_described(module)}: {_candidates(module)}")


def _jobs_in(module: ModuleType) -> dict[str, Jobs]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Jobs)}


def _candidates(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name in _jobs_in(module)]
    if not names:
        return 'there are no Jobs in it; make one: jobs = Jobs("sqlite:///jobs.db")'
    return f"write {' or '.join(names)}"


def _described(module: ModuleType) -> str:
    """Return the module's name with its file: another module of the same name may have been imported."""
    file = getattr(module, "__file__", None)
    return f"{module.__name__} ({_short(file)})" if file else module.__name__
