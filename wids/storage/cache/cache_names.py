"""Name the files of a cache folder, and write its small ones.

The names are pure functions of strings. All versions of this library that use one folder share
them, so they never change (CACHE-2, and the golden cache folders).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache
from io import FileIO
from typing import Final, NamedTuple

from wids.storage import files, locks
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


# Narrow on purpose: a file whose name matches may be deleted (CACHE-9).
_OWN_NAME: Final = re.compile(r"[0-9a-f]{32}-.*")
_TEMPORARY_NAME: Final = re.compile(r"\.([0-9a-f]{32}-.*\.[0-9a-f]{16}|pipe-.*)\.tmp")


class RemoteFile(NamedTuple):
    """A remote file, and what is known about it.

    Attributes:
        url: Its URL.
        nbytes: Its length, or None.
        md5sum, sha256: Its digests in hexadecimal digits, or None.
        version: What distinguishes it from an earlier file of the same URL.
    """

    url: str
    nbytes: int | None = None
    md5sum: str | None = None
    sha256: str | None = None
    version: str = ""

    def digests(self) -> list[tuple[str, str]]:
        """Return the name and the value of each stated digest."""
        stated = (("md5", self.md5sum), ("sha256", self.sha256))
        return [(name, digest.lower()) for name, digest in stated if digest is not None]


def default_folder() -> str:
    """Return ``$WIDS_CACHE``, or else the cache folder of this user."""
    stated = os.environ.get("WIDS_CACHE")
    if stated:
        return os.path.abspath(os.path.expanduser(stated))
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        home = os.path.expanduser("~")
        if home == "~":  # without $HOME, and a user without a name, as in containers
            return _temporary_folder()
        base = os.path.join(home, ".cache")
    return os.path.join(base, "wids")


@cache
def _temporary_folder() -> str:
    """Return a folder that no other user can write, the same for each process if that is free."""
    import tempfile

    number = os.getuid() if hasattr(os, "getuid") else 0
    folder = os.path.join(tempfile.gettempdir(), f"wids-{number}")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != number or status.st_mode & 0o022:
        folder = tempfile.mkdtemp(prefix="wids-")
    _logger.warning(
        "%s: used as the cache folder, since this user has no home; set WIDS_CACHE or HOME", folder
    )
    return folder


def shards_folder(folder: str) -> str:
    """Return the folder of copies and their indexes, in a cache folder."""
    return os.path.join(folder, "shards")


def indexes_folder(folder: str) -> str:
    """Return the folder of indexes of local shards, in a cache folder."""
    return os.path.join(folder, "indexes")


def copy_path(folder: str, remote_file: RemoteFile) -> str:
    """Return the path of the cache's own copy of a file.

    It is named by the digest, if one is stated, so that signed URLs of one file share a copy.
    """
    url, nbytes, md5sum, sha256, version = remote_file
    # SHA-256 first, because MD5 collisions can be constructed, and the name would be shared.
    digest = sha256 or md5sum
    name = _hashed_name(url, digest.lower() if digest else url, nbytes, version)
    return os.path.join(shards_folder(folder), name)


def directory_path(folder: str, remote_file: RemoteFile) -> str:
    """Return the path of the directory of a large remote dataset index."""
    name = _hashed_name(remote_file.url, "directory", remote_file.url, remote_file.version)
    return os.path.join(indexes_folder(folder), f"{name}.directory")


def frames_path(folder: str, shard: str, member: str, crc: int, nbytes: int) -> str:
    """Return the path of the times of the frames of a video.

    Args:
        folder: The cache folder.
        shard: The name of the shard in messages.
        member: The name of the member.
        crc: Its checksum.
        nbytes: Its length.
    """
    name = _hashed_name(member, shard, member, crc, nbytes, "frames")
    return os.path.join(indexes_folder(folder), f"{name}.frames")


@lru_cache(maxsize=4096)  # a shard that was closed is opened again under the same name
def local_index_path(folder: str, shard_path: str, key_split: str) -> str:
    """Return the path of a local shard's index, named by a hash of the shard's path.

    Args:
        folder: The cache folder.
        shard_path: The path of the shard.
        key_split: What distinguishes it from another index of the same shard.
    """
    path = os.path.abspath(shard_path)
    return os.path.join(indexes_folder(folder), f"{_hashed_name(path, key_split, path)}.index")


def lock_path(folder: str, path: str) -> str:
    """Return the path of the file to lock while a file is fetched to this path."""
    name = os.path.basename(path)
    if not _OWN_NAME.fullmatch(name):
        # A file that `localname` names may have any name and length, so a hash stands for its path.
        name = _hashed_name(path, path)
    return os.path.join(folder, "locks", f"{name}.lock")


def eviction_path(folder: str, kind: str) -> str:
    """Return the path of a file about evictions.

    Args:
        folder: The cache folder.
        kind: ``"lock"`` for the file to lock while copies are evicted, ``"json"`` for the total of
            what the folder holds.
    """
    return os.path.join(folder, "locks", f"evict.{kind}")


def is_own_name(name: str) -> bool:
    """Return whether this is the name of a copy or an index, which the cache may delete."""
    return _OWN_NAME.fullmatch(name) is not None


def is_temporary_name(name: str) -> bool:
    """Return whether this names a file or folder that is being written, or whose writer died."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def dataset_pattern(name: str) -> str:
    """Return what the names of a dataset's files have in common: ``train-*.tar``, for people.

    It is the end of a name, with a star for its last number, so two datasets may share one.
    """
    tail = name.lstrip(".")[33:] if is_temporary_name(name) or is_own_name(name) else name
    tail = re.sub(r"(\.[0-9a-f]{16}\.tmp|\.index)+$", "", tail)
    return re.sub(r"[0-9]+(?=[^0-9]*$)", "*", tail)


@lru_cache(maxsize=4096)  # each sample that is read by range asks whether there is a copy
def _hashed_name(url: str, *parts: object) -> str:
    """Return a hash of the parts, and the end of the URL's path, for people to read."""
    # A NUL occurs in no URL or path, so no two lists of parts make the same text.
    text = "\0".join(map(str, parts))
    # Paths on Linux need not be UTF-8; surrogates stand for such bytes.
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    # The path only: queries, users and commands may be secrets.
    tail = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(urls.path_of(url).rstrip("/"))[-60:])
    return f"{digest[:32]}-{tail or 'file'}"


_SETTLED_NS: Final = 2_000_000_000
"""Age from which a modification time identifies a file's content: the coarsest file systems count
in steps of two seconds, so a younger file could change without a new time."""


def is_settled(mtime_ns: int) -> bool:
    """Return whether a file of this modification time will get a new one when it changes."""
    return time.time_ns() - mtime_ns > _SETTLED_NS


def save(path: str, data: bytes) -> None:
    """Write a file of the cache, which appears when it is complete.

    Processes that save the same file at once do not disturb each other: they save equal bytes.

    Raises:
        OSError: The folder is read-only, full, or another user's.
    """
    make_folder(os.path.dirname(path))
    # Every reader checks the content, so there is no need to wait for the disk.
    with files.replacing(path, mode=0o600, sync=False) as file:
        file.write(data)


def save_quietly(path: str, data: bytes) -> bool:
    """Write a file of the cache; return whether that was possible."""
    with suppress(OSError):
        save(path, data)
        return True
    return False


def saved_or_made(path: str, make: Callable[[], bytes]) -> bytes:
    """Return the bytes of a file of the cache; make and save them if it is missing or damaged.

    Args:
        path: The file, which begins with the CRC-32 of the bytes; not one of another user.
        make: Returns them.
    """
    data = files.read_or_map(path, is_own=True) or b""
    if len(data) >= 4 and int.from_bytes(data[:4], "little") == zlib.crc32(data[4:]):
        return data[4:]
    del data  # Windows does not replace a file that is mapped
    made = make()
    save_quietly(path, zlib.crc32(made).to_bytes(4, "little") + made)
    return made


def save_or_warn(folder: str, paths: Iterable[str], data: bytes) -> str | None:
    """Write an index of the cache under the first of some paths that can be written.

    Args:
        folder: The cache folder, which one warning in each process names if none can be written.
        paths: The paths.
        data: What to write.

    Returns:
        The path that was written; None if there is none.
    """
    reason = ""
    for path in paths:
        try:
            save(path, data)
        except OSError as error:
            reason = reason or error.strerror or str(error)
        else:
            return path
    warn_once(
        "%s: the cache folder cannot be written (%s), so that each process scans its tars again; "
        "pass cache_dir or set WIDS_CACHE to a folder that can be, or store the indexes beside the "
        "shards with `wids create`",
        *(folder, reason),
    )
    return None


_warned: Final[set[tuple[str, str]]] = set()


def warn_once(text: str, folder: str, *details: str) -> None:
    """Log a warning about a cache folder, once in each process."""
    if (text, folder) not in _warned:
        _warned.add((text, folder))
        _logger.warning(text, folder, *details)


def make_folder(path: str) -> None:
    """Make a folder in the cache folder with its permissions; a new cache folder is private."""
    parent = os.path.dirname(path)
    os.makedirs(parent, mode=0o700, exist_ok=True)  # the mode applies to the last part only
    with suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, os.stat(parent).st_mode & 0o7777)  # mkdir would apply the umask


def open_up(handle: int, folder: str) -> None:
    """Set the permissions of a new file to those of its folder, regardless of the umask."""
    with suppress(OSError, AttributeError):  # Windows, where folders decide, has no `fchmod`
        # Otherwise the umask would close a group's shared folder to the group (CACHE-1).
        os.fchmod(handle, os.stat(folder).st_mode & 0o666)


def protect(handle: int, path: str) -> None:
    """Make a complete file read-only, for those who may read its folder.

    Args:
        handle: The file, on which this process has a lock.
        path: Its path.
    """
    with suppress(OSError):
        # Opened again: `flock` belongs to the open file, so this gets the answer that another
        # process would get.
        with FileIO(path, opener=locks.open_safely) as other:
            # On NFS a file that cannot be opened for writing cannot be locked exclusively, so no
            # process could know whether it may be evicted.
            can_lock = locks.acquire(other.fileno()) is not None
        if can_lock:
            os.fchmod(handle, os.stat(os.path.dirname(path)).st_mode & 0o444)
