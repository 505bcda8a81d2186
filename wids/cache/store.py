"""URL → local path: a folder of copies of remote files, and of indexes, on this machine.

A file under its final name is complete: it was fetched into a temporary file beside it, verified,
indexed (by a callable of the caller's, for this room never looks into a tar), and renamed. Locks
keep two processes from fetching the same file, and keep files in use from being evicted; without
working locks work is done twice and the result is the same. Nothing here is an authority: whatever
is missing, damaged or deleted is fetched again. specs/cache.md is the whole of it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Final, NamedTuple, TypeAlias

from wids.errors import FetchError, MismatchError, ShardFormatError
from wids.files import locks, publish
from wids.files.digests import file_digest
from wids.files.progress import Bar
from wids.tars.index import TarIdentity
from wids.tars.names import KeySplit
from wids.transport import urls
from wids.transport.fetch import Expected, Fetcher

Prepare: TypeAlias = Callable[[IO[bytes]], bytes]
Localname: TypeAlias = Callable[[str], "str | os.PathLike[str] | None"]

_SETTLED_NS: Final = 2_000_000_000
"""Age at which a time of modification is believed to change with the file: the coarsest file
systems count in steps of two seconds, so a younger file could change again unnoticed."""

_PATIENCE_S: Final = 120.0
"""How long to wait for another process's download that does not grow, before doing it oneself."""

_POLL_S: Final = 0.05
_ABANDONED_S: Final = 60.0
"""Age at which a temporary file that nobody has locked is litter."""
_ABANDONED_UNLOCKED_S: Final = 86_400.0
"""The same where locks say nothing."""

_OWN_NAME: Final = re.compile(r"[0-9a-f]{32}-.*")
_TEMPORARY_NAME: Final = re.compile(r"\.([0-9a-f]{32}-.*\.[0-9a-f]{16}|pipe-.*)\.tmp")

_logger = logging.getLogger("wids")


# Where things are.


def default_folder() -> str:
    """Give ``$WIDS_CACHE``, or else the user's own cache folder."""
    stated = os.environ.get("WIDS_CACHE")
    if stated:
        return os.path.abspath(os.path.expanduser(stated))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "wids")


@lru_cache(maxsize=4096)  # a shard that was closed is opened again by the same name
def index_path(folder: str, shard_path: str, key_split: KeySplit) -> str:
    """Give where the index of a local shard is kept: named by a hash of the shard's path."""
    path = os.path.abspath(shard_path)
    return os.path.join(folder, "indexes", f"{_name(path, key_split, path)}.index")


def _name(url: str, *about: object) -> str:
    """Give a name for the cache: a hash, and a tail that people can read."""
    text = "\0".join(map(str, about))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    tail = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(urls.path_of(url).rstrip("/"))[-60:])
    return f"{digest[:32]}-{tail or 'file'}"


# What is known of local shards: their indexes.


def is_settled(identity: TarIdentity) -> bool:
    """Tell whether a file's time of modification is old enough to be told by."""
    return time.time_ns() - identity.mtime_ns > _SETTLED_NS


def keep(path: str, data: bytes) -> bool:
    """Write a file of the cache, all at once; tell whether that was possible.

    Two processes that write the same file do not disturb each other: what they write is equal.
    """
    try:
        _make_folder(os.path.dirname(path))
        # Checked whenever it is read, so it need not be waited for.
        with publish.replacing(path, mode=0o600, sync=False) as file:
            file.write(data)
    except OSError:  # read-only, full, or not ours
        return False
    return True


def _make_folder(path: str) -> None:
    """Make a folder of the cache: the user's own, or as open as the cache folder that he made."""
    parent = os.path.dirname(path)
    os.makedirs(parent, mode=0o700, exist_ok=True)  # the mode counts for the last part only
    with suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, os.stat(parent).st_mode & 0o7777)  # whatever the umask


def _open_up(handle: int, folder: str) -> None:
    """Make a new file as open as its folder, whatever the umask."""
    with suppress(OSError):
        os.fchmod(handle, os.stat(folder).st_mode & 0o666)


# Copies of remote files.


class RemoteFile(NamedTuple):
    """A remote file, and what is known of it.

    Attributes:
        url: Where it is.
        nbytes: Its length, or None.
        md5sum, sha256: Its digests in hexadecimal digits, or None.
        version: What tells it from another file that had the same URL.
    """

    url: str
    nbytes: int | None = None
    md5sum: str | None = None
    sha256: str | None = None
    version: str = ""


class Copy(NamedTuple):
    """A complete local file.

    Attributes:
        path: Where it is.
        handle: A descriptor of it, to be closed by who gets it. As long as it, or a memory map made
            from it, is open, the file is not evicted.
        index_path: Where the index is that was made of it.
        is_own: Whether the cache fetched it, and so may fetch it again when it is damaged.
    """

    path: str
    handle: int
    index_path: str
    is_own: bool


class Errand:
    """A fetch that nobody waits for yet.

    Attributes:
        cancelled: To be set to call it off.
        begun: Set when it is begun, so that whoever wants the file now would wait for it.
        done: For its owner to set when it is over, well or not.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.begun = threading.Event()
        self.done = threading.Event()


@dataclass(frozen=True)
class Limits:
    """What may stay in the cache.

    Attributes:
        nbytes: Most bytes; None for no limit.
        keep: Whether nothing is ever evicted.
    """

    nbytes: int | None = None
    keep: bool = False

    @property
    def share_nbytes(self) -> int | None:
        """Most bytes that one process should have open at a time, beside others."""
        return None if self.nbytes is None or self.keep else self.nbytes // 4


class Cache:
    """Copies of remote files in one folder, shared by all processes that use it.

    Can be used by any number of threads and processes at once, after a fork, and be pickled as far
    as its fetcher and ``localname`` can.

    Args:
        folder: The folder; made when something is first stored.
        fetcher: Reads URLs.
        limits: What may stay.
        localname: Gives the path of a file of the caller's own for a URL, or None.
        offered: Base names of files that the user may have placed in the folder himself.
        wants_progress: As in `progress.Bar`.
    """

    def __init__(
        self,
        folder: str,
        fetcher: Fetcher,
        *,
        limits: Limits = Limits(),
        localname: Localname | None = None,
        offered: frozenset[str] = frozenset(),
        wants_progress: bool | None = None,
    ) -> None:
        self.folder = folder
        self.fetcher = fetcher
        self.limits = limits
        self.localname = localname
        self.offered = offered
        self.wants_progress = wants_progress
        self._was_swept = False
        self._has_warned = False
        self._proven: set[tuple[object, ...]] = set()

    def find(self, about: RemoteFile) -> str | None:
        """Give the path of the copy of a file, where there is one that fits what is known."""
        for path, is_own in self._places(about):
            try:
                status = os.stat(path)
            except OSError:
                continue
            if about.nbytes is not None and status.st_size != about.nbytes:
                continue
            # What was fetched was verified as it came. What was placed is verified once.
            if is_own or self._is_proven(path, status, about):
                return path
        return None

    def open(
        self,
        about: RemoteFile,
        prepare: Prepare | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> Copy:
        """Give a copy of a file, fetched if need be, that stays as long as it is open.

        Args:
            about: Its URL, and what is known of it.
            prepare: Makes the bytes of its index from the complete file, before anybody sees it;
                whatever it raises keeps the file from being published.
            make_room: Called when all that could be evicted is in use: closes what is not needed.

        Raises:
            FetchError: It cannot be fetched, or not be stored.
            MismatchError: Twice it was not what its spec says.
        """
        for _ in range(3):  # more than once only if it is evicted before it can be leased
            path = self.find(about) or self._fetched(about, prepare, make_room)
            handle = None if path is None else _leased(path)
            if path is not None and handle is not None:
                is_own = path == self._own_path(about)
                return Copy(path, handle, self.index_path(about, path), is_own)
        raise FetchError(
            f"{urls.redact(about.url)}: it was evicted from {self.folder} as soon as it was there; "
            "make cache_size larger"
        )

    def fetch(self, about: RemoteFile, prepare: Prepare | None, errand: Errand) -> None:
        """Fetch a file that nobody waits for yet, unless it is here, or another fetches it.

        Raises:
            FetchError: It cannot be fetched, not be stored, or the errand was called off.
            MismatchError: Twice it was not what its spec says.
        """
        if self.find(about) is None:
            self._fetched(about, prepare, errand=errand)

    def index_path(self, about: RemoteFile, path: str | None = None) -> str:
        """Give where the index of a copy is: beside it, or with those of local shards."""
        own = self._own_path(about)
        if path is None or path == own:
            return own + ".index"
        return index_path(self.folder, path, "first")

    def discard(self, about: RemoteFile) -> None:
        """Forget the cache's own copy of a file, so that it is fetched again."""
        path = self._own_path(about)
        for name in (self.index_path(about, path), path):
            with suppress(OSError):
                os.unlink(name)

    # Where the copy of a file can be.

    def _own_path(self, about: RemoteFile) -> str:
        """Give the path of what the cache itself fetches, named by digest and length, or by URL."""
        digest = about.sha256 or about.md5sum
        known = digest.lower() if digest else about.url
        name = _name(about.url, known, about.nbytes, about.version)
        return os.path.join(self.folder, "shards", name)

    def _places(self, about: RemoteFile) -> list[tuple[str, bool]]:
        """Give the paths where a copy may be, and whether it is the cache's own; own ones last."""
        if self.localname is not None:
            path = self.localname(about.url)
            if path is not None:
                return [(os.path.abspath(os.path.expanduser(os.fspath(path))), False)]
        own = [(self._own_path(about), True)]
        base_name = os.path.basename(urls.path_of(about.url))
        is_stated = about.nbytes is not None or about.sha256 or about.md5sum
        if base_name in self.offered and is_stated:
            return [(os.path.join(self.folder, base_name), False), *own]
        return own

    def _is_proven(self, path: str, status: os.stat_result, about: RemoteFile) -> bool:
        """Compare a file that somebody placed with the stated digest; once, for it takes a while.

        A note that it was done is kept, bound to the file's length and time of modification.
        """
        stated = _stated_digests(about)
        if not stated:
            return True
        proof = (path, *_length_and_time(status), *stated)
        if proof in self._proven:
            return True
        note_path = index_path(self.folder, path, "first") + ".proof"
        note = repr(proof).encode("utf-8", "surrogateescape")
        with suppress(OSError), open(note_path, "rb") as file:
            # Not somebody else's word, in a cache folder that users share.
            is_ours = not hasattr(os, "geteuid") or os.stat(note_path).st_uid == os.geteuid()
            if is_ours and file.read() == note:
                self._proven.add(proof)
                return True
        try:
            is_proven = all(file_digest(path, name) == digest for name, digest in stated)
        except OSError:
            return False
        if is_proven:
            self._proven.add(proof)
            keep(note_path, note)
        else:
            _logger.warning("%s: it is not what its spec says, and is not used", path)
        return is_proven

    # Fetching.

    def _fetched(
        self,
        about: RemoteFile,
        prepare: Prepare | None,
        make_room: Callable[[], None] = lambda: None,
        errand: Errand | None = None,
    ) -> str | None:
        """Fetch a file, or wait for the process that does, and give its path.

        An errand does not wait, and gives None.
        """
        path, is_own = self._places(about)[-1]
        try:
            with self._turn(path, errand) as is_ours:
                if not is_ours:
                    return None
                found = self.find(about)  # another one may have fetched it meanwhile
                if found is not None:
                    return found
                self._sweep()
                for is_last in (False, True):
                    try:
                        self._publish(about, path, prepare, make_room, errand)
                    except (MismatchError, ShardFormatError, FileNotFoundError) as error:
                        # Cut or mixed up on the way, or its folder was deleted: once more.
                        if is_last or isinstance(error, FetchError):
                            raise
                        _logger.warning("%s; fetching it once more", str(error))
                    else:
                        break
                if not is_own:
                    length_and_time = _length_and_time(os.stat(path))
                    self._proven.add((path, *length_and_time, *_stated_digests(about)))
        except OSError as error:
            if isinstance(error, FetchError):
                raise
            raise self._storage_error(about, path, error) from error
        return path

    def _publish(
        self,
        about: RemoteFile,
        path: str,
        prepare: Prepare | None,
        make_room: Callable[[], None],
        errand: Errand | None,
    ) -> None:
        """Fetch a file to its final name."""
        is_own = path == self._own_path(about)
        if is_own:
            _make_folder(os.path.dirname(path))
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            for name, *_ in _temporary_files(path):  # of a process that was killed
                _sweep_one(os.path.join(os.path.dirname(path), name))
        # A person may be waiting for what is no errand.
        wants_progress = self.wants_progress if errand is None else False
        cancel = None if errand is None else errand.cancelled
        name = os.path.basename(urls.path_of(about.url)) or "a shard"
        bar = Bar(f"fetching {name}", about.nbytes, "B", wanted=wants_progress)
        with bar, publish.replacing(path, sync=False) as file:
            has_room = not is_own
            if is_own:
                _open_up(file.fileno(), os.path.dirname(path))

            def report(received_nbytes: int, total_nbytes: int | None) -> None:
                nonlocal has_room
                if not has_room:
                    has_room = True
                    self._reserve(file, total_nbytes or about.nbytes or 0, make_room)
                bar.reach(received_nbytes, total_nbytes)

            # Whoever sweeps sees by this that the temporary file is alive.
            locks.acquire(file.fileno())
            try:
                expected = Expected(about.nbytes, about.md5sum, about.sha256)
                self.fetcher.save(about.url, file, expected, report, cancel)
                file.flush()
                if prepare is not None:
                    keep(self.index_path(about, path), prepare(file))
                # While it is still locked, for this can take long.
                os.fsync(file.fileno())
            finally:
                # A process that was forked meanwhile has the file open too, and so the lock.
                locks.release(file.fileno())

    @contextmanager
    def _turn(self, path: str, errand: Errand | None) -> Iterator[bool]:
        """Keep other processes from fetching the same file for as long as the block takes.

        Gives False, to an errand only, if another process fetches it already.
        """
        with _lock_file(self._lock_path(os.path.basename(path), path)) as handle:
            patient_until_s, seen = time.monotonic() + _PATIENCE_S, None
            look_at_s = 0.0
            is_busy = handle is not None and locks.acquire(handle) is False
            if errand is not None:
                errand.begun.set()
                yield not is_busy
                return
            while handle is not None and is_busy:
                now_s = time.monotonic()
                if now_s >= look_at_s:  # seldom, since the folder may be large
                    look_at_s = now_s + _PATIENCE_S / 20
                    growth = _temporary_files(path)
                    if growth != seen:
                        patient_until_s, seen = now_s + _PATIENCE_S, growth
                if now_s > patient_until_s:
                    _logger.warning("%s: another process fetches it and does not get on", path)
                    break
                time.sleep(_POLL_S)
                is_busy = locks.acquire(handle) is False
            yield True

    def _lock_path(self, name: str, path: str) -> str:
        own = _OWN_NAME.fullmatch(name)
        return os.path.join(self.folder, "locks", (name if own else _name(path, path)) + ".lock")

    # Limits.

    def _reserve(self, file: IO[bytes], nbytes: int, make_room: Callable[[], None]) -> None:
        """Evict the least recently used files, as far as a new one needs their room."""
        folder = os.path.join(self.folder, "shards")
        if nbytes > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {nbytes} bytes")
        limit = self.limits.nbytes
        if limit is None or self.limits.keep:
            return
        # For what is too large in any case, nothing is evicted on the word of a server.
        beyond = max(0, nbytes - limit)
        nbytes = 0 if beyond else nbytes
        with _lock_file(os.path.join(self.folder, "locks", "evict.lock")) as handle:
            # One at a time, so that two do not each evict what one has to; but nobody waits long.
            until_s = time.monotonic() + 5
            while handle is not None and locks.acquire(handle) is False:
                if time.monotonic() > until_s:
                    break
                time.sleep(_POLL_S)
            excess = self._evict(limit - nbytes)
            if excess > 0:
                make_room()
                excess = self._evict(limit - nbytes)
            file.truncate(nbytes)  # for others, who count what is in the cache
        excess = max(excess, beyond)
        if excess > 0 and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s: cache_size is %d bytes, and with what is in use now it takes %d; make "
                "cache_size larger or lru_size smaller",
                *(self.folder, limit, limit + excess),
            )

    def _evict(self, limit_nbytes: int) -> int:
        """Evict until no more than this is left; give how many bytes too many remain."""
        files = _own_files(os.path.join(self.folder, "shards"))
        names = {file.name for file in files}
        by_use = sorted(files, key=lambda file: file.used_ns)
        tars = [f for f in by_use if not f.name.endswith(".index") and not f.is_temporary]
        # An index outlives its tar, for reading by range, and is worth a tenth of the room.
        orphans = [
            f
            for f in by_use
            if f.name.endswith(".index") and f.name.removesuffix(".index") not in names
        ]
        # The index of a copy that is here is a percent of it, and comes on top.
        counted = [*tars, *orphans, *(file for file in files if file.is_temporary)]
        total = sum(file.nbytes for file in counted)
        spare = sum(file.nbytes for file in orphans) - limit_nbytes // 10
        first = []
        for file in orphans:
            if spare <= 0:
                break
            first.append(file)
            spare -= file.nbytes
        for file in [*first, *tars, *orphans[len(first) :]]:
            if total <= limit_nbytes:
                break
            if _was_evicted(file.path):
                total -= file.nbytes
        return max(0, total - limit_nbytes)

    def _sweep(self) -> None:
        """Delete what killed processes left half-written; once for each process."""
        if self._was_swept:
            return
        self._was_swept = True
        for folder in ("shards", "indexes"):
            try:
                entries = list(os.scandir(os.path.join(self.folder, folder)))
            except OSError:
                continue
            for entry in entries:
                if _TEMPORARY_NAME.fullmatch(entry.name):
                    _sweep_one(entry.path)

    def _storage_error(self, about: RemoteFile, path: str, error: OSError) -> FetchError:
        folder = os.path.dirname(path)
        what = f"{urls.redact(about.url)}: cannot be stored in {folder}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                what += f", {shutil.disk_usage(folder).free} bytes are free"
            return FetchError(
                f"{what}; set cache_size (now {self.limits.nbytes or 'unlimited'}) to what fits "
                f"there, or cache_dir (now {self.folder}) to a larger disk"
            )
        return FetchError(f"{what}; set cache_dir (now {self.folder}) to a folder of your own")


class File(NamedTuple):
    """A file that the cache has made."""

    path: str
    name: str
    nbytes: int
    used_ns: int
    is_temporary: bool


def _own_files(folder: str) -> list[File]:
    files = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            is_temporary = _TEMPORARY_NAME.fullmatch(entry.name) is not None
            if is_temporary or _OWN_NAME.fullmatch(entry.name):
                with suppress(OSError):  # gone meanwhile
                    about = entry.stat(follow_symlinks=False)
                    used_ns = about.st_atime_ns
                    files.append(File(entry.path, entry.name, about.st_size, used_ns, is_temporary))
    return files


def contents(folder: str) -> list[File]:
    """Give the copies, their indexes and unfinished files of a cache folder."""
    return _own_files(os.path.join(folder, "shards"))


def clear(folder: str) -> tuple[int, int, int]:
    """Delete the copies that no process uses, and the indexes of local shards.

    Returns:
        How many files were deleted, of how many bytes, and how many are in use.
    """
    files = [*contents(folder), *_own_files(os.path.join(folder, "indexes"))]
    gone = [file for file in files if _was_evicted(file.path)]
    return len(gone), sum(file.nbytes for file in gone), len(files) - len(gone)


def _was_evicted(path: str) -> bool:
    """Delete a file unless some process has it open for use."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        if locks.acquire(handle) is False:
            return False
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _sweep_one(path: str) -> None:
    """Delete a temporary file or folder if it is old and nobody writes to it."""
    with suppress(OSError):
        age_s = time.time() - os.stat(path).st_mtime
        if os.path.isdir(path):
            if age_s > _ABANDONED_UNLOCKED_S:
                shutil.rmtree(path, ignore_errors=True)
        elif age_s > _ABANDONED_UNLOCKED_S or (age_s > _ABANDONED_S and locks.work(path)):
            os.unlink(path)


def _leased(path: str) -> int | None:
    """Open a file so that it is not evicted while it is open; None if it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FetchError(f"{path}: cannot be read: {error.strerror or error}") from error
    for _ in range(20):
        if locks.acquire(handle, shared=True) is not False:
            break
        time.sleep(0.001)  # somebody looks whether it can be evicted
    status = os.fstat(handle)
    if status.st_nlink == 0:
        os.close(handle)
        return None
    with suppress(OSError):  # when it was last used, whatever the file system notes by itself
        os.utime(handle, ns=(time.time_ns(), status.st_mtime_ns))
    return handle


@contextmanager
def _lock_file(path: str) -> Iterator[int | None]:
    """Give an open lock file, unlocked, or None where there can be none. It is never deleted."""
    handle = None
    with suppress(OSError):
        _make_folder(os.path.dirname(path))
        try:
            handle = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            _open_up(handle, os.path.dirname(path))
    try:
        yield handle
    finally:
        if handle is not None:
            locks.release(handle)
            os.close(handle)


def _temporary_files(path: str) -> list[tuple[str, int, int]]:
    """Give names, lengths and times of what is being written for a path."""
    folder, name = os.path.split(path)
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(publish.temporary_prefix(name)):
                with suppress(OSError):
                    found.append((entry.name, *_length_and_time(entry.stat())))
    return sorted(found)


def _length_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _stated_digests(about: RemoteFile) -> list[tuple[str, str]]:
    """Give name and value of the digests that a spec states."""
    stated = (("md5", about.md5sum), ("sha256", about.sha256))
    return [(name, digest.lower()) for name, digest in stated if digest is not None]
