"""Open the files beside shards: dataset indexes, tables and joined files.

Only their server knows their versions: a remote file is stored in the cache, and fetched again when
another version was published. No spec states their digests, so a record is stored beside each copy,
as an index is beside the copy of a shard; `open_copy` compares the copy with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, BinaryIO, NamedTuple

from wids.errors import local_error
from wids.storage.cache.cache_names import RemoteFile, save_quietly
from wids.storage.cache.eviction import StorageError
from wids.storage.cache.store import Cache, CachedCopy
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.files import file_digest, is_own_file, read_or_map
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


class CopyRecord(NamedTuple):
    """What is recorded about a copy.

    Attributes:
        url: A digest of the URL, which may contain secrets.
        nbytes: Length of the copy.
        mtime_ns: When it was last changed.
        sha256: Its digest, compared if the time differs.
    """

    url: str
    nbytes: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of_file(cls, url: str, path: str, status: os.stat_result) -> CopyRecord:
        """Return the record of a file."""
        facts = (status.st_size, status.st_mtime_ns, file_digest(path, "sha256"))
        return cls(url_digest(url), *facts)

    @classmethod
    def load(cls, path: str) -> CopyRecord | None:
        """Return the record that this user stored at a path; None if there is none."""
        data = read_or_map(path, is_own=True)
        with suppress(ValueError, TypeError):
            return None if data is None else cls(**json.loads(bytes(data)))
        return None

    def dump(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps(self._asdict()).encode("ascii")


def url_digest(url: str) -> str:
    """Return the digest that identifies a URL in records."""
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()


def open_copy(
    store: Cache,
    remote_file: RemoteFile,
    check: Callable[[IO[bytes]], None] = lambda _: None,
    *,
    is_suspect: bool = False,
) -> CachedCopy:
    """Open the copy of a file, and fetch it again if it was changed in the cache; see `Cache.open`.

    Args:
        store: The cache.
        remote_file: The file.
        check: Called with the complete file before it has its name; if it raises, nothing is
            stored.
        is_suspect: Whether to compare its bytes even if its time is the recorded one.

    Raises:
        FetchError: The file cannot be fetched or stored.
    """
    prepare = partial(_dumped_record, remote_file.url, check)
    copy = store.open(remote_file, prepare)
    if _is_as_recorded(copy, remote_file.url, is_suspect=is_suspect):
        return copy
    copy.file.close()
    _logger.warning(
        "%s: expected the bytes that were fetched, found others; it was changed in the cache; "
        "fetching it again",
        copy.path,
    )
    store.discard(remote_file)
    return store.open(remote_file, prepare)


def _is_as_recorded(copy: CachedCopy, url: str, *, is_suspect: bool) -> bool:
    """Whether a copy has the recorded bytes; if only its time differs, record the new time.

    Args:
        copy: The copy; it is closed after an error.
        url: Its URL.
        is_suspect: As for `open_copy`.
    """
    try:
        status = os.fstat(copy.file.fileno())
        # Users who share a folder trust only their own records (SEC-41).
        if not (copy.is_own and is_own_file(status)):
            return True
        recorded = CopyRecord.load(copy.index_path)
        if recorded is not None and not is_suspect:
            state = (recorded.nbytes, recorded.mtime_ns)
            if state == (status.st_size, status.st_mtime_ns):
                return True
        found = CopyRecord.of_file(url, copy.path, status)
        if recorded is not None and found.sha256 != recorded.sha256:
            return False
        if found != recorded:
            save_quietly(copy.index_path, found.dump())
    except BaseException:
        copy.file.close()
        raise
    return True


def _dumped_record(url: str, check: Callable[[IO[bytes]], None], file: IO[bytes]) -> bytes:
    check(file)
    return CopyRecord.of_file(url, file.name, os.fstat(file.fileno())).dump()


def versioned_file(fetcher: Fetcher, url: str) -> tuple[RemoteFile, int | None]:
    """Return a remote file in its current version, and its length if the server states it.

    Raises:
        FetchError: The server cannot be reached.
    """
    nbytes, tag = fetcher.head(url)
    version = "" if (nbytes, tag) == (None, None) else repr((nbytes, tag))
    return RemoteFile(url, version=version), nbytes


@contextmanager
def local_file(store: Cache, url: str) -> Iterator[str]:
    """Provide the path of a file; fetch it into the cache if it is remote.

    Raises:
        NotFoundError: There is no such remote file.
        FetchError: It cannot be fetched.
    """
    local_path = urls.local_place(url)
    if local_path is not None:
        yield local_path
        return
    try:
        copy = open_copy(store, versioned_file(store.fetcher, url)[0])
    except StorageError:  # a read-only cache folder: use it without storing it
        with downloaded(store.fetcher, url) as path:
            yield path
        return
    with copy.file:  # after it, the copy may be evicted
        yield copy.path


def discard(store: Cache, url: str) -> bool:
    """Delete the copy of a file, so that it is fetched again; return whether the file is remote.

    Raises:
        FetchError: Its server cannot be reached.
    """
    if urls.local_place(url) is not None:
        return False
    store.discard(versioned_file(store.fetcher, url)[0])
    return True


@contextmanager
def open_file(store: Cache, url: str) -> Iterator[BinaryIO]:
    """Open a file to read it.

    Raises:
        NotFoundError: There is no such file.
        FetchError: It cannot be opened.
    """
    with local_file(store, url) as path:
        try:
            file = open(path, "rb")  # noqa: SIM115 - errors of the caller's block are its own
        except OSError as error:
            raise local_error(path, error) from error
        with file:
            yield file
