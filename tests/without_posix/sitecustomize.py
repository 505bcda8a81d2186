"""Take away from wids, in each Python process, what Windows does not have.

With the folder of this file on ``PYTHONPATH``, Python imports it when it starts, also in workers
and commands. What wids imports is the standard library without the functions of POSIX; other
programs keep them, since they know that they run on Linux. multiprocessing can only spawn, for all.
Paths, the sharing of open files and the console stay Linux's.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}
MISSING = {
    "os": {
        *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_TMPFILE", "chown", "fchmod", "fork"),
        *("forkpty", "geteuid", "getpgid", "getuid", "killpg", "memfd_create", "mkfifo"),
        *("posix_fadvise", "posix_fallocate", "pread", "preadv", "register_at_fork"),
        *("sched_getaffinity", "sendfile", "setsid", "statvfs"),
    },
    "signal": {"SIGALRM", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm", "setitimer"},
}

_O_BINARY = 0x8000
_import = builtins.__import__
_copies: dict[str, types.ModuleType] = {}


def _exists(path: Any) -> bool:
    import os

    return not str(path).startswith("/proc/") and os.path.exists(path)


def _open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    """Open a file as ``os.open`` does; on Windows it would be read as text without the flag."""
    import os

    # What `open` passes to an opener has the flag there; here it has another one.
    assert flags & (_O_BINARY | os.O_CLOEXEC) or os.path.isdir(path) or path == os.devnull, path
    return os.open(path, flags & ~_O_BINARY, *arguments, **options)


class _Without(types.ModuleType):
    """A module without some names; the others are those of the original, also if tests patch it."""

    def __getattr__(self, name: str) -> Any:
        module = self.__name__
        if name in MISSING.get(module, ()) or (module == "mmap" and name.startswith("MADV_")):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(sys.modules[module], name)


def _copy(name: str) -> types.ModuleType:
    """Return a module as wids sees it."""
    if name not in _copies:
        _import(name)
        copy: Any = _Without(name)
        if name == "os":
            copy.path = _Without("os.path")
            copy.path.exists = _exists
            copy.open, copy.O_BINARY = _open, _O_BINARY
        _copies[name] = copy
    return _copies[name]


def _import_without_posix(
    name: str,
    globals: Any = None,  # noqa: A002 - Python's name
    locals: Any = None,  # noqa: A002
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    importer = str((globals or {}).get("__name__", ""))
    if level == 0 and importer.partition(".")[0] == "wids":
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in ("os", "signal", "mmap"):
            return _copy(name)
        if name == "os.path":
            return _copy("os")
    module = _import(name, globals, locals, fromlist, level)
    context = sys.modules.get("multiprocessing.context")
    default = getattr(context, "_default_context", None)
    if default is not None and len(context._concrete_contexts) > 1:  # type: ignore[union-attr]
        spawn = context._concrete_contexts["spawn"]  # type: ignore[union-attr]
        context._concrete_contexts = {"spawn": spawn}  # type: ignore[union-attr]
        default._default_context = spawn
    return module


builtins.__import__ = _import_without_posix
