"""Write one file to an object store or by a driver of fsspec, complete or not at all.

Each target makes one attempt; `upload` repeats failed ones.

Object stores show an object when its last request has been answered. A large file is sent in
several parts at a time. obstore cannot send a condition with parts, so a file that must be new, or
must replace a stated version, is sent in one request, up to the 5 GB that all stores accept
(specs/decisions/0097).

Drivers of fsspec differ in what they show of an unfinished or failed upload. A rename shows a
complete file with all of them.
"""

from __future__ import annotations

import glob
import mmap
import os
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, TypeAlias

from wids.errors import NotFoundError
from wids.storage import files
from wids.storage.reading_threads import ReadingThreads
from wids.storage.transport import store_settings, urls
from wids.storage.transport.fsspec import Fsspec, part
from wids.storage.transport.object_store import ObjectStores
from wids.storage.transport.stream import TransientError, check_complete


class _Target:
    """A file, or a folder, at a URL.

    Methods raise FileNotFoundError if it does not exist, and other errors of any kind.

    Args:
        transport: Reads it.
        url: Where it is.
    """

    def __init__(self, transport: Fsspec | ObjectStores, url: str) -> None:
        self._transport = transport
        self.url = url

    def nbytes(self) -> int | None:
        """Return the length of the file, or None if the server does not state it."""
        return self._transport.open(self.url, 0, 0, None).content.total_nbytes

    def exists(self) -> bool:
        """Return whether the file exists."""
        try:
            self.nbytes()
        except FileNotFoundError:
            return False
        return True

    def check_absent(self) -> None:
        """Raise FileExistsError if the file exists."""
        if self.exists():
            raise FileExistsError

    def save(self, path: str) -> None:
        """Write the file to a local path."""
        with open(path, "wb") as file, self._transport.open(self.url, 0, None, None) as stream:
            file.writelines(stream.chunks)
            check_complete(self.url, file.tell(), stream.content.total_nbytes)

    def names(self) -> list[str]:
        """Return the names in the folder; none if it does not exist."""
        with suppress(NotFoundError):
            return [entry.name for entry in self._transport.entries(self.url)]
        return []

    def has_bytes_of(self, path: str) -> bool:
        """Return whether the file has the bytes of a local file."""
        with (
            suppress(FileNotFoundError),
            open(path, "rb") as file,
            self._transport.open(self.url, 0, None, None) as stream,
        ):
            if stream.content.total_nbytes == os.path.getsize(path):
                are_same = all(file.read(len(chunk)) == chunk for chunk in stream.chunks)
                return are_same and not file.read(1)
        return False


PART_NBYTES: Final = 16 << 20
MAX_PUT_NBYTES: Final = 5_000_000_000
"""Most bytes of one request that writes an object."""

_MAX_PARTS: Final = 10_000
_NUM_CONNECTIONS: Final = 4
"""As many parts are in memory."""

_MIN_NBYTES_PER_S: Final = 50_000
"""An upload that is slower fails."""

_ASK_S: Final = 60.0
_ABORT_S: Final = 1.0
"""How long to wait, after Ctrl-C, until the store has dropped the parts."""


class ObjectTarget(_Target):
    """An object that obstore writes."""

    _transport: ObjectStores

    def __init__(self, transport: ObjectStores, url: str) -> None:
        super().__init__(transport, url)
        # Google compares generations of objects, the others tags.
        self._version = "version" if urls.KINDS[urls.scheme(url)] == "gcs" else "e_tag"

    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes and their version, from one response."""

        def read(store: store_settings.Store, key: str) -> tuple[bytes, str | None]:
            result = store.get(key)
            return bytes(result.bytes()), result.meta[self._version]

        return self._transport.asked(self.url, read)

    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:
        """Upload, compare the length, and delete what is only a part."""
        nbytes = os.path.getsize(path)
        is_compared = replaces is not None or (is_new and nbytes <= MAX_PUT_NBYTES)
        if is_compared or nbytes <= PART_NBYTES:
            self._put_at_once(path, nbytes, is_new=is_new, replaces=replaces)
        else:
            self._put_parts(path, nbytes, is_new=is_new)
        with suppress(PermissionError):  # some keys are for writing alone
            _check_length(self, nbytes)

    def _put_at_once(self, path: str, nbytes: int, *, is_new: bool, replaces: str | None) -> None:
        version = {self._version: replaces}
        mode = "create" if is_new else "overwrite" if replaces is None else version

        def put(store: store_settings.Store, key: str) -> None:
            with open(path, "rb") as file:
                # Mapped, so that the file takes no memory; nothing cannot be mapped.
                data: Any = b""
                if nbytes:
                    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                store.put(key, data, mode=mode, use_multipart=False)

        timeout = f"{max(300, nbytes // _MIN_NBYTES_PER_S)}s"
        times = {"timeout": timeout, "read_timeout": timeout}
        self._transport.asked(self.url, put, "to write it", **times)

    def _put_parts(self, path: str, nbytes: int, *, is_new: bool) -> None:
        part_nbytes = max(PART_NBYTES, -(-nbytes // _MAX_PARTS))
        is_over, has_ended = threading.Event(), threading.Event()

        def parts() -> Generator[bytes, None, None]:
            with open(path, "rb") as file:
                while part := file.read(part_nbytes):
                    yield part
                    if is_over.is_set():
                        raise InterruptedError  # obstore then drops the parts
            if is_new:  # asked as late as can be; obstore takes no call within its own
                with ReadingThreads(1, "wids-upload") as thread:
                    thread.submit(self.check_absent).result(_ASK_S)

        def put(store: store_settings.Store, key: str) -> None:
            sizes = {"chunk_size": part_nbytes, "max_concurrency": _NUM_CONNECTIONS}
            try:
                store.put(key, parts(), use_multipart=True, **sizes)
            finally:
                has_ended.set()

        limit = store_settings.REQUEST_TIMEOUT  # for a part
        try:
            self._transport.asked(self.url, put, "to write it", timeout=limit, read_timeout=limit)
        except (KeyboardInterrupt, SystemExit):
            is_over.set()
            has_ended.wait(_ABORT_S)
            raise

    def move(self, url: str) -> None:
        """Copy the object to another name, and delete it."""
        other = store_settings.location_of(url).key
        self._transport.asked(self.url, lambda store, key: store.rename(key, other))

    def remove(self) -> None:
        """Delete the object."""
        self._transport.asked(self.url, lambda store, key: store.delete(key))


class FsspecTarget(_Target):
    """A file that a driver of fsspec writes.

    Raises:
        FetchError: There is no driver for its scheme, or it leads to local files.
    """

    _transport: Fsspec

    def __init__(self, transport: Fsspec, url: str) -> None:
        super().__init__(transport, url)
        self._system, self._path = transport.file_system(url)

    def read(self) -> tuple[bytes, str | None]:
        """Return all bytes, of one version if the server states it."""
        stream = part(self.url, self._system, self._path, 0, None, None)
        return bytes(next(stream.chunks)), None

    def put(self, path: str, *, is_new: bool, replaces: str | None) -> None:  # noqa: ARG002
        """Upload under a temporary name, compare the length, and rename."""
        folder, _, name = self.url.rpartition("/")
        url = f"{folder}/{files.temporary_name(name)}"
        temporary = FsspecTarget(self._transport, url)
        try:
            self._system.put_file(path, temporary._path)
            _check_length(temporary, os.path.getsize(path))
            if is_new:
                self.check_absent()
            self._system.mv(temporary._path, self._path)
        except BaseException:
            with suppress(Exception):
                temporary.remove()
            raise

    def move(self, url: str) -> None:
        """Rename the file."""
        self._system.mv(self._path, self._transport.file_system(url)[1])

    def remove(self) -> None:
        """Delete the file."""
        try:
            self._system.rm_file(self._path)
        except NotImplementedError:  # of drivers that only delete by pattern
            self._system.rm(glob.escape(self._path))


Target: TypeAlias = "ObjectTarget | FsspecTarget"


def _check_length(file: Target, expected: int) -> None:
    """Refuse an upload of which only a part has arrived, and delete that."""
    nbytes = file.nbytes()
    if nbytes in (None, expected):
        return
    if nbytes is not None and nbytes < expected:
        file.remove()
    message = f"{urls.redact(file.url)}: expected {expected} bytes after the upload, "
    raise TransientError(f"{message}found {nbytes}", is_outage=False)
