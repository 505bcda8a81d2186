"""A computer for the simulation: processes that take turns at system calls, files, locks, a clock.

Every process is a thread, of which one runs at a time. At each system call a seeded generator
decides who runs next, so that a seed determines the whole history. `System.os`, `System.time` and
the others stand in for the modules of that name, as far as the cache uses them: a function that is
missing here is an AttributeError in the simulation, not a call to the real system.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

CALL_S = 0.0001
MAX_CALLS = 200_000
"""System calls after which a history is taken for one that does not end."""


class Killed(BaseException):
    """Ends the thread of a process that was killed; none of its further calls has an effect."""


class HangError(AssertionError):
    """A history that does not end."""


class Inode:
    """A file or a folder, with its locks: open file → whether its lock is exclusive."""

    def __init__(self, mode: int, now_ns: int, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.mode = mode
        self.nlink = 1
        self.atime_ns = self.mtime_ns = now_ns
        self.locks: dict[OpenFile, bool] = {}
        self.num_open = 0
        self.used_at = 0  # the latest call at which it was open

    def status(self) -> Any:
        return SimpleNamespace(
            st_mode=self.mode,
            st_size=len(self.data),
            st_uid=0,
            st_ino=self.number,
            st_nlink=self.nlink,
            st_mtime_ns=self.mtime_ns,
            st_mtime=self.mtime_ns / 1e9,
            st_atime_ns=self.atime_ns,
        )


class OpenFile:
    """An open file, which duplicates of its descriptor share, and so its lock."""

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.position = 0
        self.num_handles = 0


class Process:
    """A thread that stands for a process, and its descriptors."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.work = work
        self.handles: dict[int, OpenFile] = {}
        self.not_inherited: set[int] = set()
        self.wakes_at_s = 0.0
        self.is_killed = False
        self.is_done = False
        self.error: BaseException | None = None
        self.turn = threading.Semaphore(0)
        self.thread: threading.Thread | None = None


class System:
    """The computer.

    Args:
        rng: Decides everything.
        on_call: Called before each system call with its name; may kill, stop or start processes.
    """

    def __init__(self, rng: random.Random, on_call: Callable[[str], None]) -> None:
        self.rng = rng
        self.on_call = on_call
        self.now_s = 1e6
        self.clock_shift_s = 0.0  # of the clock on the wall, which can be set
        self.num_calls = 0
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.entries: dict[str, Inode] = {}
        self.locks_work = True
        self.before_unlink: Callable[[Inode], None] = lambda inode: None  # noqa: ARG005
        self.trace: deque[str] = deque(maxlen=3000)
        self._num_handles = 100
        self._num_inodes = 0
        self._finished = threading.Semaphore(0)
        self.os = FakeOs(self)
        self.time = SimpleNamespace(
            monotonic=lambda: self.now_s,
            time=lambda: self.now_s + self.clock_shift_s,
            time_ns=self.now_ns,
            sleep=self.sleep,
        )
        self.shutil = SimpleNamespace(
            disk_usage=lambda path: SimpleNamespace(total=1 << 40, free=1 << 40),  # noqa: ARG005
            rmtree=lambda path, ignore_errors=False: self.delete_tree(path),  # noqa: ARG005
        )
        self.mkdir("/")

    # Processes.

    def start(self, name: str, work: Callable[[], None], parent: Process | None = None) -> Process:
        """Start a process; it inherits the descriptors of its parent."""
        process = Process(name, work)
        if parent is not None:
            for handle, file in parent.handles.items():
                if handle not in parent.not_inherited:
                    process.handles[handle] = file
                    file.num_handles += 1
                    file.inode.num_open += 1
        process.thread = threading.Thread(target=self._run, args=(process,), name=name)
        self.processes.append(process)
        process.thread.start()
        return process

    def run(self) -> None:
        """Let all processes run to their ends."""
        self.current = None
        self._hand_over()
        self._finished.acquire()
        for process in self.processes:
            if process.thread is not None:
                process.thread.join()
        for process in self.processes:
            if process.error is not None:
                raise process.error
        self.processes.clear()

    def kill(self, process: Process) -> None:
        """End a process at once: the system closes its files, and nothing else is done."""
        process.is_killed = True
        process.wakes_at_s = 0.0
        for handle in list(process.handles):
            self._close(process, handle)

    def living(self) -> list[Process]:
        return [p for p in self.processes if not p.is_done and not p.is_killed]

    def _run(self, process: Process) -> None:
        process.turn.acquire()
        try:
            if not process.is_killed:
                process.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            process.error = error
            for other in self.living():
                self.kill(other)
        process.is_done = True
        for handle in list(process.handles):
            self._close(process, handle)
        self._hand_over()

    def _hand_over(self) -> Process | None:
        """Choose the next process, and let it run."""
        waiting = [p for p in self.processes if not p.is_done]
        if not waiting:
            self._finished.release()
            return None
        ready = [p for p in waiting if p.wakes_at_s <= self.now_s]
        if not ready:
            self.now_s = min(p.wakes_at_s for p in waiting)
            ready = [p for p in waiting if p.wakes_at_s <= self.now_s]
        following = self.rng.choice(ready)
        previous, self.current = self.current, following
        if following is not previous:
            following.turn.release()
        return following

    def call(self, what: str) -> None:
        """Stand for a system call: other processes may run before it."""
        process = self.current
        assert process is not None
        self._check(process)
        self.num_calls += 1
        self.now_s += CALL_S
        if self.num_calls > MAX_CALLS:
            raise HangError(f"{MAX_CALLS} system calls without an end")
        self.on_call(what)
        if process.is_killed or process.wakes_at_s > self.now_s or self.rng.random() < 0.3:
            self._give_way(process)
        self.trace.append(f"{self.now_s - 1e6:9.4f} {process.name}: {what}")

    def sleep(self, seconds: float) -> None:
        process = self.current
        assert process is not None
        self._check(process)
        process.wakes_at_s = max(process.wakes_at_s, self.now_s + seconds)
        self._give_way(process)

    def _give_way(self, process: Process) -> None:
        if self._hand_over() is not process:
            process.turn.acquire()
        self._check(process)

    def _check(self, process: Process) -> None:
        if process.is_killed:
            raise Killed

    def now_ns(self) -> int:
        return int((self.now_s + self.clock_shift_s) * 1e9)

    # Files.

    def inode(self, path: str) -> Inode:
        try:
            return self.entries[posixpath.normpath(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def new_inode(self, path: str, mode: int) -> Inode:
        path = posixpath.normpath(path)
        if path != "/":
            self.inode(posixpath.dirname(path))
        self._num_inodes += 1
        self.entries[path] = inode = Inode(mode, self.now_ns(), self._num_inodes)
        return inode

    def mkdir(self, path: str) -> None:
        if posixpath.normpath(path) in self.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.new_inode(path, stat.S_IFDIR | 0o700)

    def delete_tree(self, path: str) -> None:
        """Delete a folder and all in it, entry by entry."""
        for name in sorted(self.entries, reverse=True):
            if name == path or name.startswith(f"{path}/"):
                self.call(f"rmtree {name}")
                inode = self.entries.get(name)
                is_empty = not any(other.startswith(f"{name}/") for other in self.entries)
                if inode is not None and is_empty:
                    del self.entries[name]
                    inode.nlink = 0

    def open(self, inode: Inode) -> int:
        assert self.current is not None
        file = OpenFile(inode)
        self._num_handles += 1
        self.current.handles[self._num_handles] = file
        file.num_handles += 1
        inode.num_open += 1
        return self._num_handles

    def file(self, handle: int) -> OpenFile:
        assert self.current is not None
        try:
            return self.current.handles[handle]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _close(self, process: Process, handle: int) -> None:
        file = process.handles.pop(handle)
        file.num_handles -= 1
        file.inode.num_open -= 1
        file.inode.used_at = self.num_calls
        if not file.num_handles:
            file.inode.locks.pop(file, None)

    def close(self, handle: int) -> None:
        assert self.current is not None
        self.file(handle)
        self._close(self.current, handle)

    # Locks, with the interface of `wids.storage.locks`.

    def flock(self, handle: int, *, is_exclusive: bool) -> bool | None:
        self.call("flock")
        try:
            file = self.file(handle)
        except OSError:
            return None
        if not self.locks_work:
            return None
        held = file.inode.locks
        others = [exclusive for other, exclusive in held.items() if other is not file]
        if any(others) or (is_exclusive and others):
            return False
        held[file] = is_exclusive
        return True

    def unlock(self, handle: int) -> None:
        self.call("unlock")
        try:
            file = self.file(handle)
        except OSError:
            return
        file.inode.locks.pop(file, None)

    @contextmanager
    def lock_file(
        self,
        path: str,
        *,
        mode: int,
        timeout_s: float = 0,
        give_up: Callable[[], bool] | None = None,
    ) -> Iterator[bool | None]:
        """Lock as filelock does: forked processes do not inherit it, and the file stays."""
        process = self.current
        assert process is not None
        until_s = self.now_s + timeout_s
        is_held: bool | None = None
        handle = None
        while True:
            try:
                handle = self.os.open(path, os.O_RDWR | os.O_CREAT, mode)
            except OSError:
                break
            process.not_inherited.add(handle)
            is_held = self.flock(handle, is_exclusive=True)
            if is_held and not self.file(handle).inode.nlink:
                is_held = False
            if is_held is not False:
                break
            self.os.close(handle)
            handle = None
            if self.now_s >= until_s or (give_up is not None and give_up()):
                break
            self.sleep(0.05)
        try:
            yield is_held
        finally:
            if handle is not None:
                self.unlock(handle)
                self.os.close(handle)


class Entry(NamedTuple):
    """What `scandir` yields."""

    system: System
    path: str
    name: str

    def stat(self, *, follow_symlinks: bool = True) -> Any:  # noqa: ARG002
        return self.system.os.stat(self.path)


class Entries(list[Entry]):
    """What `scandir` returns."""

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeOs:
    """Stands in for the module `os`."""

    O_RDONLY, O_RDWR, O_CREAT, O_EXCL = os.O_RDONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL
    strerror = staticmethod(os.strerror)
    fspath = staticmethod(os.fspath)
    devnull = os.devnull
    environ: dict[str, str] = {}  # noqa: RUF012 - empty

    def __init__(self, system: System) -> None:
        self._system = system
        self.supports_fd = {self.utime}
        self.path = SimpleNamespace(
            abspath=posixpath.normpath,
            basename=posixpath.basename,
            dirname=posixpath.dirname,
            expanduser=lambda path: path,
            isdir=lambda path: stat.S_ISDIR(self.stat(path).st_mode),
            join=posixpath.join,
            lexists=self._exists,
            split=posixpath.split,
        )

    def _exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def geteuid(self) -> int:
        return 0

    def getpid(self) -> int:
        return id(self._system.current)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        self._system.call(f"open {path}")
        path = posixpath.normpath(path)
        if path not in self._system.entries and flags & os.O_CREAT:
            inode = self._system.new_inode(path, stat.S_IFREG | mode)
        else:
            inode = self._system.inode(path)
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return self._system.open(inode)

    def close(self, handle: int) -> None:
        self._system.call("close")
        self._system.close(handle)

    def stat(self, path: str) -> Any:
        self._system.call(f"stat {path}")
        return self._system.inode(path).status()

    lstat = stat

    def fstat(self, handle: int) -> Any:
        self._system.call("fstat")
        return self._system.file(handle).inode.status()

    def unlink(self, path: str) -> None:
        self._system.call(f"unlink {path}")
        inode = self._system.inode(path)
        if stat.S_ISDIR(inode.mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._system.before_unlink(inode)
        del self._system.entries[posixpath.normpath(path)]
        inode.nlink -= 1

    def replace(self, source: str, target: str) -> None:
        self._system.call(f"replace {target}")
        inode = self._system.inode(source)
        self._system.inode(posixpath.dirname(target))
        old = self._system.entries.pop(posixpath.normpath(target), None)
        if old is not None:
            old.nlink -= 1
        del self._system.entries[posixpath.normpath(source)]
        self._system.entries[posixpath.normpath(target)] = inode

    def mkdir(self, path: str) -> None:
        self._system.call(f"mkdir {path}")
        self._system.mkdir(path)

    def makedirs(self, path: str, mode: int = 0o777, *, exist_ok: bool = False) -> None:  # noqa: ARG002
        self._system.call(f"makedirs {path}")
        missing = []
        while posixpath.normpath(path) not in self._system.entries:
            missing.append(path)
            path = posixpath.dirname(path)
        for folder in reversed(missing):
            self._system.mkdir(folder)

    def scandir(self, path: str) -> Entries:
        self._system.call(f"scandir {path}")
        self._system.inode(path)
        path = posixpath.normpath(path)
        names = [name for name in self._system.entries if posixpath.dirname(name) == path != name]
        return Entries(Entry(self._system, name, posixpath.basename(name)) for name in names)

    def chmod(self, path: str, mode: int) -> None:
        self._system.call(f"chmod {path}")
        inode = self._system.inode(path)
        inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(mode)

    def fchmod(self, handle: int, mode: int) -> None:
        self._system.call("fchmod")
        inode = self._system.file(handle).inode
        inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(mode)

    def fsync(self, handle: int) -> None:
        self._system.call("fsync")
        self._system.file(handle)

    def utime(self, handle: int, *, ns: tuple[int, int]) -> None:
        self._system.call("utime")
        inode = self._system.file(handle).inode
        inode.atime_ns, inode.mtime_ns = ns


class FakeFile:
    """What the builtin `open` returns."""

    def __init__(self, system: System, path: str, mode: str, opener: Any = None) -> None:
        self._system = system
        self.name = path
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if "x" in mode else os.O_RDONLY
        self._handle = opener(path, flags) if opener else system.os.open(path, flags)
        self._is_closed = False

    def __enter__(self) -> FakeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._system.os.close(self._handle)

    def fileno(self) -> int:
        return self._handle

    def flush(self) -> None:
        pass

    def seek(self, position: int) -> None:
        self._system.file(self._handle).position = position

    def read(self, size: int = -1) -> bytes:
        self._system.call("read")
        file = self._system.file(self._handle)
        stop = None if size < 0 else file.position + size
        data = bytes(file.inode.data[file.position : stop])
        file.position += len(data)
        return data

    def write(self, data: bytes) -> int:
        self._system.call(f"write {len(data)} to {self.name}")
        file = self._system.file(self._handle)
        inode = file.inode
        inode.data.extend(bytes(max(0, file.position - len(inode.data))))
        inode.data[file.position : file.position + len(data)] = data
        file.position += len(data)
        inode.mtime_ns = self._system.now_ns()
        return len(data)

    def truncate(self, nbytes: int) -> int:
        self._system.call(f"truncate {self.name} to {nbytes}")
        inode = self._system.file(self._handle).inode
        del inode.data[nbytes:]
        inode.data.extend(bytes(nbytes - len(inode.data)))
        inode.mtime_ns = self._system.now_ns()
        return nbytes
