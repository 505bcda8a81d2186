"""Find, open or fetch the verified copy of a remote file on this machine.

A file under its final name is complete: it was fetched into a temporary file beside it, verified,
indexed (by the caller's function, since this package never parses a tar) and renamed. Locks
keep two processes from fetching the same file, and keep files in use from being evicted; where
locks do not work, work is done twice and the result is the same. The cache never holds the only
copy: a file that is missing, damaged or deleted is fetched again. specs/cache.md specifies it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from io import FileIO
from typing import IO, Final, NamedTuple, TypeAlias

from wids.errors import FetchError, MismatchError, ShardFormatError, SpecError
from wids.storage import files, stages
from wids.storage.cache import cache_names, eviction, leases
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.verified import VerifiedFiles
from wids.storage.download import Expected, Report
from wids.storage.fetch import Fetcher
from wids.storage.progress import Bar
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls
from wids.storage.transport.stream import error_text

Prepare: TypeAlias = Callable[[IO[bytes]], bytes]
Localname: TypeAlias = Callable[[str], "str | os.PathLike[str] | None"]

_UNREADABLE: Final = frozenset((errno.EACCES, errno.EPERM, errno.EIO))
"""Errors that are the file's own, unlike too many open files."""

_logger = logging.getLogger(__name__)


class CachedCopy(NamedTuple):
    """A complete local file.

    Attributes:
        path: Its path.
        file: The file itself, which the caller closes. While it, or a memory map made from it, is
            open, it is not evicted.
        index_path: The path of its index.
        is_own: Whether the cache fetched it, and so may fetch it again if it is damaged.
        inode: Inode number. A copy that is fetched again may have the same one, and a later time.
        was_fetched: Whether there was no copy, so that this one was fetched to open it.
    """

    path: str
    file: FileIO
    index_path: str
    is_own: bool
    inode: int
    was_fetched: bool


@dataclass(eq=False, repr=False)
class Cache:
    """Copies of remote files in one folder, shared by all processes that use it.

    Safe to use from any number of threads and processes, and after a fork. Can be pickled if its
    fetcher and ``localname`` can.

    Attributes:
        folder: The folder; made when something is first stored.
        fetcher: Reads URLs.
        limit_nbytes: The most bytes of it, or None to never evict anything.
        localname: Returns the path of the caller's own file for a URL, or None.
        offered: Base names of files that the user may have placed in the folder.
        wants_progress: As in `progress.Bar`.
    """

    folder: str
    fetcher: Fetcher
    _: KW_ONLY
    limit_nbytes: int | None = None
    localname: Localname | None = None
    offered: Container[str] = frozenset()
    wants_progress: bool | None = None
    # Once per cache object, and only before a fetch: opening copies should not list the folder.
    _was_swept: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._verified = VerifiedFiles(self.folder)

    def find(self, remote_file: RemoteFile) -> str | None:
        """Return the path of the copy of a file, if there is one that matches what is known."""
        for path in self._candidates(remote_file):
            is_own = self._is_own(remote_file, path)
            try:
                # A link in place of a copy could lead to another file; the user's own files may be
                # links (SEC-40).
                status = os.lstat(path) if is_own else os.stat(path)
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):  # another user's link or pipe, or a folder
                continue
            if remote_file.nbytes is not None and status.st_size != remote_file.nbytes:
                continue
            # What this user fetched was verified on the way; the rest is verified once.
            is_fetched = is_own and files.is_own_file(status)
            if is_fetched or self._verified.verify(path, remote_file):
                return path
        return None

    def copy_paths(self, remote_file: RemoteFile) -> list[str]:
        """Return the paths that `find` may return for a file, whether or not they exist."""
        paths = self._candidates(remote_file)
        if self.offered and self._is_own(remote_file, paths[-1]):
            name = os.path.basename(urls.path_of(remote_file.url))
            paths.append(os.path.join(self.folder, name))  # the user may place it there later
        return paths

    def _candidates(self, remote_file: RemoteFile) -> list[str]:
        """Return where a copy of a file can be now; it is fetched to the last of these paths."""
        path = self.named_path(remote_file.url)
        if path is not None:
            return [path]
        own = cache_names.copy_path(self.folder, remote_file)
        base_name = os.path.basename(urls.path_of(remote_file.url))
        # A base name alone proves nothing: something has to be known to compare the file with.
        is_comparable = remote_file.nbytes is not None or remote_file.sha256 or remote_file.md5sum
        if base_name in self.offered and is_comparable:
            return [os.path.join(self.folder, base_name), own]
        return [own]

    def _is_own(self, remote_file: RemoteFile, path: str) -> bool:
        """Whether a path is that of the cache's own copy, and not of a file of the user."""
        return path == cache_names.copy_path(self.folder, remote_file)

    def open(
        self,
        remote_file: RemoteFile,
        prepare: Prepare | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> CachedCopy:
        """Open the copy of a file, or fetch it first; it is not evicted while it is open.

        Args:
            remote_file: Its URL, and what is known about it.
            prepare: Returns the bytes of its index, made from the complete file before it is
                renamed; if it raises, the file is not published.
            make_room: Called if all that could be evicted is in use; closes what is not needed.

        Raises:
            FetchError: It cannot be fetched.
            StorageError: It cannot be stored.
            MismatchError: Twice it was not what its spec says.
        """
        # Another process may evict the copy before it is leased (CACHE-7); then try again.
        for _ in range(3):
            path = self.find(remote_file)
            was_fetched = path is None
            if path is None:
                path = self._fetched(remote_file, prepare, make_room)
            else:
                stages.count(stages.HITS)
            file = None
            try:
                file = self._lease(remote_file, path)
                if file is not None:
                    index_path = self.index_path(remote_file, path)
                    is_own = self._is_own(remote_file, path)
                    inode = os.fstat(file.fileno()).st_ino
                    return CachedCopy(path, file, index_path, is_own, inode, was_fetched)
            except BaseException:  # Ctrl-C
                if file is not None:
                    file.close()
                raise
        raise FetchError(
            f"{urls.redact(remote_file.url)}: other processes evicted it from {self.folder} each "
            "time before it could be opened; make cache_size larger"
        )

    def _lease(self, remote_file: RemoteFile, path: str) -> FileIO | None:
        """Open a copy; return None if it is gone, or cannot be read and was therefore deleted."""
        try:
            return leases.lease(path)
        except OSError as error:
            reason = error.strerror or str(error)
            if self._is_own(remote_file, path) and error.errno in _UNREADABLE:
                self.discard(remote_file)
                # Only if the deletion worked: without permission to delete, every later fetch would
                # fail too.
                if not os.path.lexists(path):
                    _logger.warning("%s: cannot be read: %s; fetching it again", path, reason)
                    return None
            raise FetchError(f"{path}: cannot be read: {reason}") from error

    def fetch(self, remote_file: RemoteFile, prepare: Prepare | None, report: Report) -> None:
        """Fetch a file ahead of its use, unless there is a copy or another process fetches it.

        Args:
            remote_file: Its URL, and what is known about it.
            prepare: As for `open`.
            report: As for `Fetcher.save`.

        Raises:
            FetchError: It cannot be fetched or stored, or the fetch was cancelled.
            MismatchError: Twice it was not what its spec says.
        """
        if self.find(remote_file) is None:
            self._fetched(remote_file, prepare, report_ahead=report)

    def index_path(self, remote_file: RemoteFile, path: str | None = None) -> str:
        """Return the path of a copy's index: beside it, or among those of local shards."""
        if path is None or self._is_own(remote_file, path):
            return cache_names.copy_path(self.folder, remote_file) + ".index"
        return cache_names.local_index_path(self.folder, path, "first")

    def is_as_stated(self, remote_file: RemoteFile, path: str) -> bool:
        """Return whether a copy exists and has the stated digests; hash it if that is not known."""
        return self._verified.verify(path, remote_file)

    def discard(self, remote_file: RemoteFile) -> None:
        """Delete the cache's own copy of a file and its index, so that it is fetched again."""
        own_path = cache_names.copy_path(self.folder, remote_file)
        index_path = self.index_path(remote_file)
        try:
            # In one step, whenever the process is killed: a copy without its index would be
            # believed (CACHE-35), and an index without its copy serves reads by range. What has the
            # name of the index then is none, and every reader of it notices.
            os.replace(own_path, index_path)
        except FileNotFoundError:  # there is no copy
            pass
        except OSError:
            # Windows, where a process has one of them mapped. The new time makes the next process
            # compare a copy that cannot be deleted with its index.
            with suppress(OSError):
                os.utime(own_path)
                os.unlink(own_path)
        if not os.path.lexists(own_path):  # or another process has fetched both again
            with suppress(OSError):
                os.unlink(index_path)

    def named_path(self, url: str) -> str | None:
        """Return the absolute path that ``localname`` returns for a URL, if it does.

        It is called with the absolute path of a local shard.

        Raises:
            SpecError: It raises an error, or returns something else.
        """
        if self.localname is None:
            return None
        is_local = urls.is_local(url)
        try:
            path = self.localname(os.path.abspath(urls.local_path(url)) if is_local else url)
            path = None if path is None else os.fsdecode(path)
        except Exception as error:
            raise SpecError(
                f"{urls.redact(url)}: expected localname to return the path of a file, or None, "
                f"found an error: {error_text(error, url)}"
            ) from error
        return path and os.path.abspath(os.path.expanduser(path))

    def _fetched(
        self,
        remote_file: RemoteFile,
        prepare: Prepare | None,
        make_room: Callable[[], None] = lambda: None,
        report_ahead: Report | None = None,
    ) -> str:
        """Fetch a file, or wait for the process that does, and return where it is then.

        What is fetched ahead of its use does not wait for another process.
        """
        path = self._candidates(remote_file)[-1]
        try:
            lock_path = cache_names.lock_path(self.folder, path)
            with (
                stages.fetching(),
                leases.turn(lock_path, path, waits=report_ahead is None) as is_ours,
            ):
                if not is_ours:
                    return path
                found = self.find(remote_file)  # another process may have just fetched it
                if found is not None:
                    return found
                if not self._was_swept:
                    self._was_swept = True
                    leases.sweep(self.folder)
                for is_last in (False, True):
                    try:
                        self._fetch_once(remote_file, path, prepare, make_room, report_ahead)
                    except (MismatchError, ShardFormatError, FileNotFoundError) as error:
                        # Cut or corrupted in transit, or the cache folder was deleted. A FetchError
                        # was retried already, or is final, such as status 404.
                        if is_last or isinstance(error, FetchError):
                            raise
                        _logger.warning("%s; fetching it once more", str(error))
                    else:
                        break
                with suppress(OSError):  # it may be deleted already
                    is_own = self._is_own(remote_file, path)
                    if not (is_own and files.is_own_file(os.stat(path))):  # `find` compares it
                        self._verified.note_fetched(path, remote_file)
        except FetchError:
            raise
        except OSError as error:
            limit = self.limit_nbytes
            raise eviction.storage_error(
                remote_file.url, path, self.folder, limit, error
            ) from error
        return path

    def _fetch_once(
        self,
        remote_file: RemoteFile,
        path: str,
        prepare: Prepare | None,
        make_room: Callable[[], None],
        report_ahead: Report | None,
    ) -> None:
        """Fetch a file beside its final name, verify it, index it and rename it."""
        folder, is_own = os.path.dirname(path), self._is_own(remote_file, path)
        if is_own:
            cache_names.make_folder(folder)
        else:  # one of the user's, that `sweep` skips
            os.makedirs(folder, exist_ok=True)
            files.sweep_beside(path)
        name = os.path.basename(urls.path_of(remote_file.url)) or "a shard"
        # Nobody waits for what is fetched ahead, so it shows no bar.
        wants_progress = self.wants_progress if report_ahead is None else False
        started_s = time.monotonic()
        known = "" if remote_file.nbytes is None else f", {nbytes_text(remote_file.nbytes)}"
        _logger.info("%s: downloading%s", urls.redact(remote_file.url), known)
        bar = Bar(f"fetching {name}", remote_file.nbytes, "B", wanted=wants_progress)
        # The lock of the temporary file shows a sweeping process that it has a writer.
        with bar, files.replacing(path) as file:
            if is_own:
                cache_names.open_up(file.fileno(), folder)
            limit = self.limit_nbytes if is_own else None

            def reserve(nbytes: int, limit_nbytes: int) -> None:
                eviction.make_space(self.folder, file, nbytes, limit_nbytes, make_room)

            space = eviction.Space(folder, remote_file.nbytes, limit, reserve)

            def report(received_nbytes: int, total_nbytes: int | None) -> None:
                space.cover(received_nbytes, total_nbytes)
                bar.reach(received_nbytes, total_nbytes)
                if report_ahead is not None:
                    report_ahead(received_nbytes, total_nbytes)

            expected = Expected(remote_file.nbytes, remote_file.md5sum, remote_file.sha256)
            is_ahead = report_ahead is not None
            with files.flushed_early(file):
                self.fetcher.save(remote_file.url, file, expected, report, is_ahead=is_ahead)
            file.flush()
            if prepare is not None:
                # Before the rename, so that a copy that can be found has its index beside it.
                index_path = self.index_path(remote_file, path)
                if not cache_names.save_quietly(index_path, prepare(file)):
                    with suppress(OSError):  # that of an earlier copy, which may differ
                        os.unlink(index_path)
            if is_own:
                cache_names.protect(file.fileno(), file.name)
            nbytes = os.fstat(file.fileno()).st_size
        if is_own and (limit is None or nbytes > limit):
            # Now: it was not reserved, and others may have listed it at the length that it had.
            eviction.forget_total(self.folder)
        stages.count(stages.FETCHES)
        name = urls.redact(remote_file.url)
        seconds = time.monotonic() - started_s
        _logger.info("%s: downloaded, %s in %.1f s", name, nbytes_text(nbytes), seconds)
