"""Middleware around every enqueue: a function that gets the Draft. It may change it, or raise to refuse it.

A generator function also sees the result. The code before `yield` runs before the job is written; `yield` returns the
written job, or raises the error. It serves `jobs.enqueue` and `jobs.sync.enqueue`, so it can't await.

    @jobs.on_enqueue
    def tag(draft):
        draft.options["tags"] = ["web"]
        enqueued = yield
        log.info("enqueued %s", enqueued.id)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Self

from rowlock.errors import InvalidInput
from rowlock.stores.base import Enqueued
from rowlock.tasks import Draft

log = logging.getLogger("rowlock")

EnqueueMiddleware = Callable[[Draft], Generator[None, Enqueued, None] | None]


def check_middleware(function: object) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            "middleware", "async", "must be a plain function or generator function, not async: it also serves jobs.sync"
        )


class Around:
    """Runs the middleware around the drafts of one call. The one that was registered last runs last."""

    def __init__(self, middleware: Sequence[EnqueueMiddleware], drafts: Sequence[Draft]) -> None:
        self._middleware = middleware
        self._drafts = drafts
        self._begun: list[tuple[int, Generator[None, Enqueued, None]]] = []
        self._answers: Sequence[Enqueued] = ()

    def done(self, answers: Sequence[Enqueued]) -> None:
        self._answers = answers

    def __enter__(self) -> Self:
        try:
            for n, draft in enumerate(self._drafts):
                for function in self._middleware:
                    running = function(draft)
                    if running is not None:
                        next(running, None)
                        self._begun.append((n, running))
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for n, running in reversed(self._begun):
            try:
                if error is None:
                    running.send(self._answers[n])
                else:
                    running.throw(error)
                running.close()
            except StopIteration:
                pass
            except BaseException as raised:
                if raised is error:
                    continue  # the middleware let the error pass; the caller raises it
                if not isinstance(raised, Exception):
                    raise
                # The job is written: an error now must not look as if it were not.
                log.exception("a middleware failed after the enqueue")
