"""Take away from wids, in each Python process, what Windows does not have.

With the folder of this file on ``PYTHONPATH``, Python imports it when it starts, also in workers
and commands. What wids imports is the standard library without the functions of POSIX; other
programs keep them, since they know that they run on Linux. multiprocessing can only spawn, for all.
A file that this process has open, or mapped, is not renamed, replaced or deleted. Paths and the
console stay Linux's, and what filelock does for lock files.
"""

from __future__ import annotations

import builtins
import errno
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}
OS = """
O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NDELAY O_NOATIME O_NOCTTY
O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE WEXITSTATUS WIFEXITED WIFSIGNALED WNOHANG
WTERMSIG chown chroot copy_file_range environb eventfd fchdir fchmod fchown fdatasync fork
forkpty fstatvfs get_blocking getegid getenvb geteuid getgid getgroups getloadavg getpgid
getpgrp getpriority getrandom getsid getuid getxattr killpg lchown listxattr lockf
memfd_create mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise
posix_fallocate posix_spawn pread preadv pwrite pwritev readv register_at_fork removexattr
sched_getaffinity sched_setaffinity sched_yield sendfile set_blocking setgid setpgid
setpriority setsid setuid setxattr statvfs sync sysconf ttyname uname wait wait3 wait4
waitid writev
"""
SIGNAL = """
ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP
SIGUSR1 SIGUSR2 SIGWINCH alarm getitimer pause pthread_kill pthread_sigmask setitimer
siginterrupt sigpending sigtimedwait sigwait
"""
MISSING = {"os": OS.split(), "select": ["epoll", "poll"], "signal": SIGNAL.split()}

_O_BINARY = 0x8000
_import = builtins.__import__
_copies: dict[str, types.ModuleType] = {}


def _exists(path: Any) -> bool:
    import os

    return not str(path).startswith("/proc/") and os.path.exists(path)


def _open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    """Open a file as ``os.open`` does; on Windows it would be read as text without the flag."""
    import os

    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder", path)
    # What `open` passes to an opener has the flag there; here it has another one.
    assert flags & (_O_BINARY | os.O_CLOEXEC) or path == os.devnull, path
    return os.open(path, flags & ~_O_BINARY, *arguments, **options)


def _refuse_open(path: Any) -> None:
    """Raise the error of Windows for a file that this process has open; a map has it open too."""
    import os

    try:
        status = os.lstat(path)
    except OSError:
        return
    for handle in map(int, os.listdir("/proc/self/fd")):
        try:
            is_it = os.path.samestat(os.fstat(handle), status)
        except OSError:  # that of the listing itself
            continue
        if is_it:
            raise PermissionError(errno.EACCES, "used by another process", path)


def _unlink(path: Any) -> None:
    import os

    _refuse_open(path)
    os.unlink(path)


def _replace(source: Any, target: Any) -> None:
    import os

    _refuse_open(source)
    _refuse_open(target)
    os.replace(source, target)


def _rename(source: Any, target: Any) -> None:
    import os

    _refuse_open(source)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "already exists", target)
    os.rename(source, target)


def _utime(path: Any, *arguments: Any, **options: Any) -> None:
    import os

    if isinstance(path, int):
        raise TypeError("utime: path should be string, bytes or os.PathLike, not int")
    os.utime(path, *arguments, **options)


class _Entry:
    """What is in a folder, without what a listing of Windows does not say."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        import os

        status = self._entry.stat(follow_symlinks=follow_symlinks)
        if follow_symlinks and self._entry.is_symlink():
            return status
        names = [name for name in dir(status) if name.startswith("st_")]
        values = list(status)
        values[1:4] = 0, 0, 0  # st_ino, st_dev, st_nlink
        return os.stat_result(values, {name: getattr(status, name) for name in names})


class _Entries:
    """The entries of a folder."""

    def __init__(self, path: Any) -> None:
        import os

        self._entries = os.scandir(path)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *arguments: object) -> None:
        self._entries.__exit__(*arguments)

    def __del__(self) -> None:
        with suppress(Exception):
            self._entries.close()

    def __iter__(self) -> Iterator[_Entry]:
        return map(_Entry, self._entries)


def _named_temporary_file(*arguments: Any, **options: Any) -> Any:
    import tempfile

    # One that is deleted when it is closed cannot be opened by its name meanwhile.
    assert options.get("delete") is False
    return tempfile.NamedTemporaryFile(*arguments, **options)


class _Without(types.ModuleType):
    """A module without some names; the others are those of the original, also if tests patch it."""

    def __getattr__(self, name: str) -> Any:
        module = self.__name__
        if name in MISSING.get(module, ()) or (module == "mmap" and name.startswith("MADV_")):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(sys.modules[module], name)


REPLACED: dict[str, dict[str, Any]] = {
    "mmap": {},
    "os": {
        "name": "nt",
        "O_BINARY": _O_BINARY,
        "open": _open,
        "remove": _unlink,
        "rename": _rename,
        "replace": _replace,
        "scandir": _Entries,
        "unlink": _unlink,
        "utime": _utime,
    },
    "select": {},
    "signal": {},
    "tempfile": {"NamedTemporaryFile": _named_temporary_file},
}


def _copy(name: str) -> types.ModuleType:
    """Return a module as wids sees it."""
    if name not in _copies:
        _import(name)
        copy: Any = _Without(name)
        if name == "os":
            copy.path = _Without("os.path")
            copy.path.exists = _exists
        vars(copy).update(REPLACED[name])
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
        if name in REPLACED:
            return _copy(name)
        if name == "os.path":
            return _copy("os")
    module = _import(name, globals, locals, fromlist, level)
    context = sys.modules.get("multiprocessing.context")
    default = getattr(context, "_default_context", None)
    if default is not None and len(context._concrete_contexts) > 1:  # type: ignore[union-attr]
        spawn = context._concrete_contexts["spawn"]  # type: ignore[union-attr]
        context._concrete_contexts = {"spawn": spawn}  # type: ignore[union-attr]
        type(default).get_all_start_methods = lambda _: ["spawn"]
        default._default_context = spawn
    return module


builtins.__import__ = _import_without_posix
