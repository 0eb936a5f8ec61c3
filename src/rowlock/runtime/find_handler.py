"""Find a handler in a child process: import the modules that the worker has imported, and look in all Jobs that exist
then."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from rowlock.config import Settings
from rowlock.context import Host
from rowlock.core.job import Lane
from rowlock.errors import WrongContext
from rowlock.runtime.child_messages import Setup, Start
from rowlock.runtime.handlers import RunMiddleware
from rowlock.tasks import Task
from rowlock.tracebacks import error_text

MAIN = "__main__"
AS_MAIN = "__mp_main__"  # not "__main__": code under `if __name__ == "__main__"` must run only in the worker


class Owner(Protocol):
    """The part of `Jobs` that a run needs."""

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...

    @property
    def run_middleware(self) -> Sequence[RunMiddleware]: ...

    def context_host(self, *, in_child: bool = False) -> Host: ...


class NotFound(Exception):
    """The message names the handler, and what went wrong."""


_loading: list[str] = []  # places


def refuse_while_loading() -> None:
    """Raise if a worker is started while a child loads the program: each child would start a worker, without end."""
    if _loading:
        raise WrongContext(
            f"a child process loads {_loading[-1]} to find a handler, and that starts a worker: "
            'let it do so under `if __name__ == "__main__":` only'
        )


def name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return (module, qualname), also of an object with __call__."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return getattr(function, "__module__", None) or named.__module__, named.__qualname__


def url_of(jobs: object) -> str:
    """Return the URL of the database of these Jobs; "" if there is none."""
    settings = getattr(jobs, "settings", None)
    return settings.url if isinstance(settings, Settings) else ""


def started_as() -> tuple[str | None, str | None]:
    """Return (path, name) of this process's program: a script, or a module that was run with -m. Both None: neither."""
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        # A package's __main__ module runs without looking at its name: to import it would start the program again.
        return None, None if spec.name.rpartition(".")[2] == MAIN else spec.name
    file = getattr(main, "__file__", None)
    return (str(Path(file).absolute()) if file and Path(file).exists() else None), None


def load_first(setup: Setup, module: str) -> bool:
    """Load the place where `find` looks first for a handler of this module. Return False if it can't be loaded."""
    place, load = next(_places(setup, module), (None, None))
    if place is None or load is None:
        return True
    try:
        _load(place, load)
    except BaseException:  # as below
        return False
    return True


def _load(place: str, load: Callable[[], object]) -> None:
    _loading.append(place)
    try:
        load()
    finally:
        _loading.clear()


def find(setup: Setup, start: Start) -> tuple[Owner, Task[..., Any]]:
    """Import one place after the other until the task is registered. Return its Jobs and the task."""
    wanted = f"the handler of {start.job.topic} ({start.module}.{start.qualname})"
    looked = []
    for place, load in _places(setup, start.module):
        try:
            _load(place, load)
        except BaseException as error:  # whatever the application raises, this process goes on
            raise NotFound(f"A child process can't load {wanted} from {place}:\n{error_text(error)}") from None
        found = _registered(start)
        if found:
            # If there is only one it is the right one, even if its database has another URL here.
            return next((one for one in found if url_of(one[0]) == start.url), found[0])
        looked.append(place)
    raise NotFound(
        f"A child process can't find {wanted}: importing {' and then '.join(looked) or 'nothing'} registers no such "
        "task. With process=True a task must be made where a module is imported, not in a function that is called later"
    )


def _places(setup: Setup, module: str) -> Iterator[tuple[str, Callable[[], object]]]:
    if setup.app is not None:
        app = setup.app
        yield f"the app {app}", lambda: _load_app(app)
        return
    if module != MAIN:
        yield f"the module {module}", lambda: importlib.import_module(module)
    path = None if setup.main_path is None else os.fsdecode(setup.main_path)
    if path is not None or setup.main_name is not None:
        yield f"the program {path or setup.main_name}", lambda: _load_main(path, setup.main_name)


def _load_app(app: str) -> None:
    module, _, attribute = app.partition(":")
    loaded = importlib.import_module(module)
    if attribute:
        reduce(getattr, attribute.split("."), loaded)


def _load_main(path: str | None, name: str | None) -> None:
    """Load the program once: its tasks can't be registered twice."""
    if AS_MAIN in sys.modules:
        return
    module = ModuleType(AS_MAIN)
    # As multiprocessing does it, so that a handler's own child processes find their functions too.
    before = sys.modules[MAIN]
    sys.modules[AS_MAIN] = sys.modules[MAIN] = module
    try:
        if path is not None:
            values = runpy.run_path(path, run_name=AS_MAIN)
        else:
            assert name is not None  # noqa: S101 - narrows the type: there is one or the other
            values = runpy.run_module(name, run_name=AS_MAIN, alter_sys=True)
        module.__dict__.update(values)
    except BaseException:
        del sys.modules[AS_MAIN]
        sys.modules[MAIN] = before
        raise


def _registered(start: Start) -> list[tuple[Owner, Task[..., Any]]]:
    # Not imported: this package lies below `rowlock.jobs`. An application that has made Jobs has imported it.
    jobs = sys.modules.get("rowlock.jobs")
    named = ((start.module, start.qualname), (AS_MAIN if start.module == MAIN else start.module, start.qualname))
    found = []
    for owner in [] if jobs is None else jobs.all_jobs():
        task = owner.lanes().get(Lane(start.job.topic, start.job.template_version))
        if task is not None and name_of(task.function) in named:
            found.append((owner, task))
    return found
