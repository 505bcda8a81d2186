"""Write local files complete or not at all, hash them, and delete what killed writers left.

A file is written under a temporary name, and renamed when it is complete. A reader of its path gets
the old file or the new one, never a part, and a process that has the old one mapped keeps it. The
writer locks its temporary file, so an unlocked one has no writer and can be deleted.

Small files are read and larger ones mapped. Touching a mapped page beyond the end of a shortened
file kills the process, so callers compare the length of a mapped file before they read.

All packages for CRC-32 compute the same checksum, that of zip and PNG, so the fastest installed one
is used. 100 kB take 23 µs with zlib and 1.8 µs with zlib-ng or isal, which is less than it takes to
copy them.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from io import FileIO
from typing import IO, Final, TypeAlias

from wids.storage import locks

STEM_LENGTH: Final = 40
"""Characters of a name that its temporary files and lock repeat, to stay within 255 bytes."""
_TEMPORARY: Final = re.compile(rf"\.(.{{1,{STEM_LENGTH}}})\.[0-9a-f]{{16}}\.tmp", re.DOTALL)
_FLUSH_S: Final = 0.1
"""Time between two flushes of a file that is being written."""
_NO_FOLDER_SYNC: Final = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EBADF))
"""Errors of file systems on which a folder cannot be flushed, unlike those of a disk."""
FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""Errors of writing to a disk, or of a user, that has no space left."""
_unfinished: Final[set[str]] = set()
"""Paths of the temporary files that this process writes."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unfinished.clear)  # they are its parent's


@contextmanager
def replacing(
    path: str | os.PathLike[str], mode: int = 0o666, *, sync: bool = True, is_new: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a file to write, and rename it to its final name when the block succeeds.

    If the block fails, also because of Ctrl-C, the old file stays and the new one is deleted. A
    process that is forked in the block can neither write it nor finish or delete it.

    Args:
        path: The final name.
        mode: Permissions of the file, less those that the process's umask removes.
        sync: Whether to wait until the disk has the file and its name, which takes milliseconds.
            Without it, a power failure can leave an empty file under the name, or none. With it,
            the file is also locked while it is written, which distinguishes a file that a killed
            process left from one that is written slowly.
        is_new: Whether to raise FileExistsError, rather than replace a file of that name.
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    # In the same folder, since only a rename within one file system is atomic.
    temporary = os.path.join(folder, temporary_name(name))
    target = os.path.join(folder, name)
    process = os.getpid()

    def opened() -> IO[bytes]:
        return open(temporary, "x+b", opener=lambda name, flags: os.open(name, flags, mode))

    _unfinished.add(temporary)
    try:
        with (
            named_if_full(target, temporary),
            locks.unshared(opened) as file,
            locks.holding(temporary) if sync else nullcontext(),
        ):
            yield file
            check_process(process, target)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if is_new:
            _rename_to_free_name(temporary, target)
        else:
            os.replace(temporary, target)
        if sync:
            _sync_folder(folder)
    # KeyboardInterrupt is not an Exception, and must not leave the file either (CACHE-10).
    except BaseException:
        if os.getpid() == process:
            with suppress(OSError):
                os.unlink(temporary)
        raise
    finally:
        _unfinished.discard(temporary)


def check_process(process: int, name: str) -> None:
    """Raise RuntimeError in any process but the one that began to write a file of this name."""
    if os.getpid() != process:
        raise RuntimeError(
            f"{name}: expected process {process}, which began to write it, found process "
            f"{os.getpid()}, which was forked since; end that with os._exit, or open another file "
            "in it"
        )


@contextmanager
def named_if_full(path: str, temporary: str | None = None) -> Iterator[None]:
    """Name the file that the block writes in the system's errors that do not.

    Args:
        path: Its name, for an error about a full disk.
        temporary: The name that it has meanwhile, which any other error may have.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno in FULL and error.filename is None
        if is_full or (temporary is not None and error.filename == temporary):
            error.filename = path
        raise


def delete_unfinished() -> None:
    """Delete what this process has not finished, before a thread ends the process."""
    for path in list(_unfinished):
        with suppress(OSError):
            os.unlink(path)


def flushed_early(file: IO[bytes]) -> AbstractContextManager[None]:
    """Have the disk write a file while the block writes it, so that little is left at the end."""

    def flush() -> None:
        with suppress(OSError):  # the flush at the end raises it again
            os.fsync(file.fileno())

    return repeated(flush, _FLUSH_S, "wids-flush")


@contextmanager
def repeated(work: Callable[[], None], every_s: float, name: str) -> Iterator[None]:
    """Call a function again and again in a thread, while the block runs."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _sync_folder(folder: str) -> None:
    """Wait until the disk has the names in a folder, where that is possible."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows, or a folder that may be written but not listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def _rename_to_free_name(temporary: str, path: str) -> None:
    """Rename a file to a name that nothing has; raise FileExistsError if something has it."""
    try:
        os.link(temporary, path)  # unlike a rename, it fails if the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: a small race remains
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def temporary_name(name: str) -> str:
    """Return a unique name for a file that is renamed when it is complete."""
    return f".{name[:STEM_LENGTH]}.{secrets.token_hex(8)}.tmp"


def lock_name(name: str) -> str:
    """Return the name of the file to lock while files of this name or pattern are written."""
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()  # names may begin alike
    return f".{name[:STEM_LENGTH]}.{digest[:16]}.lock"


def stem_of_temporary(temporary: str) -> str | None:
    """Return the first characters of the name that a temporary file will have.

    Return None if it is not a temporary file of this module.
    """
    match = _TEMPORARY.fullmatch(temporary)
    return None if match is None else match[1]


def is_temporary_of(temporary: str, name: str) -> bool:
    """Return whether this may be the name of a temporary file for a file called ``name``."""
    return stem_of_temporary(temporary) == name[:STEM_LENGTH]


def folder_of(file: IO[bytes]) -> str | None:
    """Return the folder of a file, which has space for another file of its size.

    Return None if the file has no name.
    """
    name: object = getattr(file, "name", None)  # without one, that of a file is a number
    return os.path.dirname(name) if isinstance(name, str) else None


@contextmanager
def unnamed_file(folder: str | None = None) -> Iterator[tuple[IO[bytes], str]]:
    """Yield a temporary file and a path to it; the file has no name where that is possible.

    A file without a name is gone when its process is, even killed. A process that is forked in the
    block does not have it.

    Args:
        folder: Where it is; None for the system's folder for temporary files, which ``TMPDIR``
            names.
    """
    with locks.unshared(lambda: tempfile.TemporaryFile(dir=folder)) as file:
        path = f"/proc/self/fd/{file.fileno()}"
        if os.path.exists(path):
            yield file, path
            return
    # On Windows a named temporary file could not be opened again by its name, and would stay if it
    # is still mapped.
    own, process = tempfile.mkdtemp("", "wids-", folder), os.getpid()
    try:
        path = os.path.join(own, "file")
        with locks.unshared(lambda: open(path, "x+b")) as file:
            yield file, path
    finally:
        if os.getpid() == process:
            shutil.rmtree(own, ignore_errors=True)


def file_digest(path: str, name: str) -> str:
    """Return the digest ``"md5"`` or ``"sha256"`` of a local file, in hexadecimal digits."""
    # Builds of OpenSSL in FIPS mode refuse MD5 otherwise.
    digest = hashlib.new(name, usedforsecurity=False)
    # hashlib.file_digest needs Python 3.11.
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


Crc32: TypeAlias = Callable[..., int]
"""Takes bytes, and optionally the checksum of the preceding bytes."""

_PACKAGES: Final = ("zlib_ng.zlib_ng", "isal.isal_zlib")


@cache
def fastest_crc32() -> Crc32:
    """Return the function that computes the CRC-32 of bytes; chosen at its first use."""
    for package in _PACKAGES:
        try:
            crc32: Crc32 = import_module(package).crc32
        except (ImportError, AttributeError):  # not installed, or another package of that name
            continue
        return crc32
    return zlib.crc32


_ABANDONED_S: Final = 60.0
"""Age from which an unlocked temporary file is deleted."""
_ABANDONED_UNLOCKED_S: Final = 86_400.0
"""The same where locks do not work, and for folders, which are not locked."""


def sweep(
    folder: str, is_temporary: Callable[[str], bool], *, min_age_s: float | None = None
) -> None:
    """Delete the temporary files that killed processes left in a folder.

    Args:
        folder: The folder.
        is_temporary: Returns whether a name is that of a temporary file or folder.
        min_age_s: Age from which an unlocked file is deleted; None for a minute. A writer creates
            its file before it locks it, so pass 0 only where there is no other writer.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                delete_if_abandoned(entry.path, min_age_s)


def sweep_beside(path: str | os.PathLike[str], *, min_age_s: float | None = None) -> None:
    """Delete the temporary files that killed processes left for this path; see `sweep`."""
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    sweep(folder, lambda found: is_temporary_of(found, name), min_age_s=min_age_s)


def temporary_files(path: str) -> set[tuple[str, int, int]]:
    """Return name, length and modification time of each temporary file for this path."""
    folder, name = os.path.split(path)
    found = set()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary_of(entry.name, name):
                with suppress(OSError):  # renamed or deleted since, or a link that leads nowhere
                    status = entry.stat()
                    found.add((entry.name, status.st_size, status.st_mtime_ns))
    return found


def delete_if_abandoned(path: str, min_age_s: float | None = None) -> bool:
    """Delete an old temporary file or folder that has no writer; return whether it did so."""
    with suppress(OSError):
        # `abs`, since a time may be in the future if a clock was wrong and was corrected since.
        age_s = abs(time.time() - os.stat(path).st_mtime)
        min_age_s = _ABANDONED_S if min_age_s is None else min_age_s
        if os.path.isdir(path):
            if age_s > _ABANDONED_UNLOCKED_S:
                shutil.rmtree(path, ignore_errors=True)
                return True
        elif age_s > _ABANDONED_UNLOCKED_S or (age_s >= min_age_s and locks.probe(path)):
            os.unlink(path)
            return True
    return False


FileBytes: TypeAlias = bytes | mmap.mmap

_SMALL_NBYTES: Final = 64 << 10
"""Files up to this size are read, larger ones mapped. Mapping takes as long as reading this many
bytes, and a file descriptor; reading takes memory that processes do not share."""


def read_or_map(path: str, *, file: FileIO | None = None, is_own: bool = False) -> FileBytes | None:
    """Read a small file, or map a larger one; return None if that is not possible.

    Args:
        path: The file.
        file: The file, if it is already open; always closed here.
        is_own: Whether to return None for a file of another user, a link or a pipe: in a shared
            cache folder, users trust only their own files (INDEX-3, SEC-40).
    """
    opener = locks.open_safely if is_own else None
    try:
        with FileIO(path, opener=opener) if file is None else file as opened:
            status = os.fstat(opened.fileno())
            if is_own and not (stat.S_ISREG(status.st_mode) and is_own_file(status)):
                return None
            if status.st_size <= _SMALL_NBYTES:
                return opened.read(status.st_size)
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # a folder, or truncated to nothing after `fstat`
        return None


def is_own_file(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user; True where files have no owners."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def advise(data: mmap.mmap, advice: str, start: int = 0, nbytes: int | None = None) -> None:
    """Advise the system about a range of a mapped file, or all of it, if the platform can.

    Without advice, a cold read of a few kilobytes costs as much as the system's readahead, which is
    megabytes on some machines. With ``RANDOM`` alone, each page costs a wait; with ``WILLNEED`` on
    the range, there is one wait for all.
    """
    # Windows has no madvise, and macOS lacks some of Linux's options.
    option = getattr(mmap, f"MADV_{advice}", None)
    if option is None or nbytes == 0:
        return
    # madvise accepts only addresses at the start of a page.
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # only advice, and a closed map needs none
        data.madvise(option, first, (len(data) if nbytes is None else start + nbytes) - first)
