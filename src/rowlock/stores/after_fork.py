"""Connections and event loops that a child process inherits from its parent by fork().

If the child used, closed or garbage-collected them, it would harm the parent: a database session would end, locks
would be released, an event loop would no longer be woken. So the child keeps a reference to each of them for ever.
"""

from __future__ import annotations

_kept: list[object] = []


def keep_for_ever(thing: object) -> None:
    _kept.append(thing)
    try:
        import ctypes
    except ImportError:  # a Python without ctypes keeps the thing until the child exits
        return
    # A reference that is never given back, so even the end of the interpreter doesn't collect the thing.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
