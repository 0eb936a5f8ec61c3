"""What a fork() leaves in a child: connections and event loops of its parent.

Used, closed or collected there, they reach into the parent: a database session ends, locks are let go, an event loop
forgets whom to wake. So the child keeps them for ever.
"""

from __future__ import annotations

_kept: list[object] = []


def keep_for_ever(thing: object) -> None:
    _kept.append(thing)
    try:
        import ctypes
    except ImportError:  # a Python without it: then it is kept until the child exits
        return
    # One reference that nobody gives back: even the end of the interpreter doesn't collect it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
