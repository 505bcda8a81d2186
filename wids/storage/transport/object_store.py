"""Read, list and write objects of S3, Google Cloud Storage and Azure: by HTTP, obstore or fsspec.

A `Bucket` reads them by HTTP (`bucket.py`). obstore reads what cannot be signed here, which
docs/object-stores.md lists. fsspec is used where the caller asks for it, where the form of a URL
has no counterpart in obstore, and where only its driver is installed.

obstore cannot be used in a process that was forked from one that has used it, such as the workers
of a DataLoader on Linux before Python 3.14.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from typing import Any, Final, TypeVar, cast

from wids.errors import FetchError, NotFoundError, UploadError
from wids.storage.transport import fsspec, store_settings, urls
from wids.storage.transport.bucket import Bucket
from wids.storage.transport.store_errors import store_error
from wids.storage.transport.store_settings import ObjectLocation, Store, location_of
from wids.storage.transport.stream import Content, Entry, Stream, Transport

_logger = logging.getLogger(__name__)

_PACKAGES: Final = {"s3": "botocore", "gcs": "google-auth"}
_CHUNK_NBYTES: Final = 256 << 10
"""Size of the pieces of a stream: smaller ones cost more calls, larger ones a copy more."""

_FSSPEC_DRIVERS: Final = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}

_T = TypeVar("_T")


def transport_for(options: Mapping[str, Any], scratch: str | None) -> ObjectStores:  # noqa: ARG001
    """Return the transport with the caller's options."""
    return ObjectStores(options)


class ReplacedError(UploadError):
    """The file was replaced since it was read, and so it was left as it is."""


class ObjectStores(Transport):
    """Reads objects, and lists folders.

    Threads can share it, and it survives a fork and pickling: each process opens its own buckets.

    Args:
        options: The caller's options for these URLs, as docs/object-stores.md lists them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._buckets: dict[tuple[int, ObjectLocation], Bucket | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buckets": {}}

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open an object or a part of it by obstore or a driver."""
        bucket = self.by_http(url)
        driver = self.driver(url)
        if driver is not None:
            return driver.open(url, start, stop, tag)
        stream = self.asked(url, lambda store, key: _opened(url, store, key, start, stop, tag))
        if bucket is not None and bucket.is_refused:
            bucket.is_by_http = False  # its policy refuses signatures in addresses
        return stream

    def by_http(self, url: str) -> Bucket | None:
        """Return the bucket of an object that is read by HTTP; None if obstore or a driver does."""
        # An object's version, and a chain of URLs, which fsspec refuses (SEC-10).
        bucket = None if "?" in url or "::" in url else self._bucket(url)
        return None if bucket is None or not bucket.reads(location_of(url).key) else bucket

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, which ends at the next slash."""
        if "//" in urls.path_of(folder):
            raise FetchError(
                f'{urls.redact(folder)}: expected a folder without "//" in its name, which drivers '
                "cannot list; name the shards with braces, as in train-{000000..000146}.tar"
            )
        driver = self.driver(folder, is_read=False)
        if driver is not None:
            return driver.entries(folder)

        def listed(store: Store, key: str) -> list[Entry]:
            path = key.strip("/")
            found = store.list_with_delimiter(f"{path}/" if path else None)
            infos = [{"name": meta["path"], "size": meta["size"]} for meta in found["objects"]]
            infos += [{"name": each, "type": "directory"} for each in found["common_prefixes"]]
            if path and not infos:
                raise NotFoundError(f"{urls.redact(folder)}: no such folder")
            return fsspec.entries_of(infos, path)

        return self.asked(folder, listed)

    def driver(self, url: str, *, is_read: bool = True) -> fsspec.Fsspec | None:
        """Return the fsspec driver for what is not done by HTTP, or None if obstore does it.

        Args:
            url: An object or folder.
            is_read: Whether an object is read.

        Raises:
            FetchError: Neither can: the error names what to install or to change.
        """
        kind = urls.KINDS[urls.scheme(url)]
        is_plain = not ("?" in url or "::" in url)
        is_odd = is_plain and "//" in urls.path_of(url)  # obstore refuses empty parts
        if is_odd and not _has_driver(kind):
            raise FetchError(
                f'{urls.redact(url)}: expected a key without "//", or {_FSSPEC_DRIVERS[kind]}, '
                f"which takes it; pip install {_FSSPEC_DRIVERS[kind]}"
            )
        is_helpless = not is_read and store_settings.is_forked()
        by_fsspec = is_odd or not is_plain or self._bucket(url) is None
        if by_fsspec or (is_helpless and _has_driver(kind)):
            return fsspec.transport_for(self.options, None)
        return None

    def _bucket(self, url: str) -> Bucket | None:
        """Return the open bucket of an object, for this process; None if fsspec is used."""
        location = location_of(url)
        place = os.getpid(), location._replace(key="")
        if place not in self._buckets:
            try:
                is_driven = self._is_driven(location.kind)
                bucket = None if is_driven else Bucket(location, self.options)
            except FetchError as error:
                raise FetchError(f"{urls.redact(url)}: {error}") from None
            self._buckets.setdefault(place, bucket)
        return self._buckets[place]

    def _is_driven(self, kind: str) -> bool:
        """Return whether fsspec is used for a kind of store."""
        asked = self.options.get("driver")
        if asked not in (None, "obstore", "fsspec"):
            raise FetchError(
                f"storage_options: driver: expected obstore or fsspec, found {asked!r:.40}"
            )
        if asked == "fsspec" or find_spec("obstore") is not None:
            return asked == "fsspec"
        if asked == "obstore" or not _has_driver(kind):
            raise FetchError(
                f"expected a driver for this scheme, found none; pip install 'wids[{kind}]', or "
                "pass a handler for it"
            )
        driver = _FSSPEC_DRIVERS[kind]
        _logger.info("%s is used, which is slower; pip install 'wids[%s]'", driver, kind)
        return True

    def asked(
        self,
        url: str,
        call: Callable[[Store, str], _T],
        expected: str = "a readable object",
        **client: str,
    ) -> _T:
        """Return what a call to a store returns, in the region of the bucket.

        Args:
            url: The object or folder.
            call: Called with the store and the key.
            expected: What an error says was expected.
            client: Options of the HTTP client that replace the defaults.

        Raises:
            FileExistsError: The object exists, and the call was for a new one.
            ReplacedError: The object has another version than the call was for.
            FetchError: It failed; or this process was forked, and can only read.
        """
        location = location_of(url)
        if store_settings.is_forked():
            package = _PACKAGES.get(location.kind)
            advice = f"pip install {package}, whose credentials all can use, or " if package else ""
            raise FetchError(
                f"{urls.redact(url)}: expected a process that can use obstore, found one that was "
                f"forked from another that has used it; {advice}start it by forkserver or spawn: "
                'multiprocessing_context="forkserver"'
            )
        import obstore

        bucket = cast("Bucket", self._bucket(url))
        for is_last in (False, True):
            store = bucket.store(**client)
            try:
                return store_settings.interruptible(lambda s=store: call(s, location.key))  # type: ignore[misc]
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                raise FileExistsError(errno.EEXIST, "already exists", urls.redact(url)) from None
            except obstore.exceptions.PreconditionError:
                raise ReplacedError(f"{urls.redact(url)}: it was replaced meanwhile") from None
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                if is_last or not bucket.moves(str(error)):
                    raise store_error(location.kind, url, error, expected) from None
        raise AssertionError  # the second round returns or raises


def _opened(
    url: str, store: Store, key: str, start: int, stop: int | None, tag: str | None
) -> Stream:
    """Open an object or a part of it, once."""
    import obstore

    options: dict[str, Any] = {"head": stop == 0}
    if stop != 0 and (start or stop is not None):
        options["range"] = {"offset": start} if stop is None else (start, stop)
        if tag is not None and tag.startswith('"'):
            options["if_match"] = tag
    try:
        result = store.get(key, options=options)
    except (obstore.exceptions.PreconditionError, obstore.exceptions.GenericError) as error:
        is_replaced = isinstance(error, obstore.exceptions.PreconditionError)
        if not (is_replaced or ("range" in options and "NotPartial" in str(error))):
            raise
        # As a server does for If-Range: the whole file, whose tag says that it is another.
        return _opened(url, store, key, 0, None, None)
    meta = result.meta
    end = result.range[1] if stop else None
    pieces = _pieces(urls.KINDS[urls.scheme(url)], url, result)
    content = Content(start, meta["size"], _strong(meta["e_tag"]), end)
    return Stream(content, pieces, pieces.close)


def _pieces(kind: str, url: str, result: Any) -> Generator[bytes, None, None]:
    import obstore

    stream = result.stream(min_chunk_size=_CHUNK_NBYTES)
    try:
        while piece := store_settings.interruptible(lambda: next(stream, b"")):
            yield piece
    except (obstore.exceptions.BaseError, OSError) as error:
        raise store_error(kind, url, error) from None


def _has_driver(kind: str) -> bool:
    return find_spec(_FSSPEC_DRIVERS[kind]) is not None


def _strong(tag: str | None) -> str | None:
    return None if tag is None or tag.startswith("W/") else tag
