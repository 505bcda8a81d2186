"""Hold Python's locks of modules that are being imported, and that of `logging`, during a fork.

The child has their state but not the threads that hold them.
"""

from __future__ import annotations

import _imp
import gc
import logging
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any, Final

_IMPORT_POLL_S: Final = 0.001
_LONGEST_IMPORT_S: Final = 10.0
"""If no new module appears for so long, the fork no longer waits: the import may never end, such as
that of a module which runs a server, or it may wait for the thread that forks."""
_IMPORTER: Final = ModuleSpec.__init__.__code__.co_filename
"""The file of the functions that hold the lock of a module."""
_endless: Final[set[tuple[int, int]]] = set()
_paused: Final[list[None]] = []
"""Not empty while the fork has paused the collection of garbage."""
_logging_lock: Final[Any] = logging._lock  # type: ignore[attr-defined]  # noqa: SLF001 - see `_hold`


def hold_imports() -> None:
    """Wait until no other thread imports a module; none begins to until `release_imports`.

    For the moment of a fork. The child would have the lock of a module that a thread imports, but
    not the thread, and would wait for ever when it imports the same module (decision 0154).
    """
    num_modules, until_s = 0, 0.0
    _hold()
    while not (importing := _importing()) <= _endless:
        if len(sys.modules) != num_modules:
            num_modules, until_s = len(sys.modules), time.monotonic() + _LONGEST_IMPORT_S
        elif time.monotonic() > until_s:
            _endless.clear()
            _endless.update(importing)
            return
        try:
            release_imports()
            time.sleep(_IMPORT_POLL_S)
        finally:
            _hold()


def _hold() -> None:
    # A fork takes the lock of `logging` too, later. A thread that has it may be about to import a
    # module, as `dictConfig` does: it would wait for this thread, and this one for it.
    _logging_lock.acquire()
    _imp.acquire_lock()  # each import needs it to begin; what is below begins imports of its own
    # The garbage may be a loader, whose end waits for workers and threads that may need an import.
    if gc.isenabled():
        gc.disable()
        _paused.append(None)


def release_imports() -> None:
    """Let other threads import modules again, and garbage be collected."""
    if _paused:
        _paused.clear()
        gc.enable()
    with suppress(RuntimeError):  # an interrupt came before it was taken
        _imp.release_lock()
    with suppress(RuntimeError):  # in a child, for which `logging` has made it new
        _logging_lock.release()


def _importing() -> set[tuple[int, int]]:
    """Return the other threads that import modules, each with how many calls deep."""
    depths: dict[int, int] = {}
    frames = sys._current_frames()  # noqa: SLF001 - documented, without another name
    # The frame of this function would refer to itself: until garbage is collected, it and its
    # callers would keep what they have, such as loaders with their workers.
    del frames[threading.get_ident()]
    while frames:
        thread, top = frames.popitem()
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename == _IMPORTER:
                depths[thread] = depths.get(thread, 0) + 1
            frame = frame.f_back
    return set(depths.items())
