"""Open objects of S3, Google Cloud Storage and Azure with obstore, or else with fsspec.

Which of the two is decided for each bucket by `ObjectStores.driver`: fsspec where the caller asks
for it, where the form of a URL has no counterpart in obstore, and where only its driver is
installed.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeVar

from wids.errors import FetchError, NotFoundError
from wids.storage.transport import fsspec, store_clients, store_errors, store_options, urls
from wids.storage.transport.http import Http
from wids.storage.transport.retry import check_waits
from wids.storage.transport.signed_urls import SignedUrls
from wids.storage.transport.store_clients import KINDS, Place, Store, interruptible
from wids.storage.transport.stream import Entry, Stream

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

_CHUNK_NBYTES: Final = 256 << 10
"""Size of the pieces of a stream: smaller ones cost more calls, larger ones a copy more."""

_WHOLE_NBYTES: Final = 4 << 20
"""Parts up to this size arrive in one call."""

_TERM_S: Final = 300.0
"""How long a forked process uses the same credentials; botocore renews them long before."""

_FSSPEC_DRIVERS: Final = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}


def transport_for(options: Mapping[str, Any], scratch: str | None) -> ObjectStores:  # noqa: ARG001
    """Return the transport with the caller's options."""
    return ObjectStores(options)


class RefusedVersionError(OSError):
    """The store does not replace an object, since it has another version than the stated one."""


class Bucket(NamedTuple):
    """An open bucket.

    Attributes:
        store: The store of obstore.
        signed: Reads the same objects by signed URLs, for a forked process.
    """

    store: Store
    signed: SignedUrls


class ObjectStores:
    """Reads objects, and lists folders.

    Threads can share it, and it survives a fork and pickling: each process opens its own buckets.

    Args:
        options: The caller's options for these URLs, as docs/object-stores.md lists them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._buckets: dict[tuple[int, int, Place], Bucket] = {}
        self._regions: dict[Place, str] = {}
        self._settings: dict[str, store_options.Settings | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buckets": {}}

    def __call__(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open an object, or read a part of it if it still has this tag, or else all of it.

        Raises:
            NotFoundError: There is no such object or bucket.
            PastEndError: The object ends before ``start``.
            TransientError: The connection failed, or the store is busy.
            FetchError: The store refuses, or the options cannot be used.
        """
        driver = self.driver(url)
        if driver is not None:
            return driver(url, start, stop, tag)
        if not store_clients.is_forked():
            return self.asked(url, lambda store, key: _opened(url, store, key, start, stop, tag))
        place = store_clients.place_of(url)
        return self._bucket(place).signed(url, place.key, start, stop, tag)

    def streams_parts(self, url: str) -> bool:
        """Return whether obstore opens a URL; see `Transports.streams_parts`."""
        return self.driver(url) is None

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder.

        Raises:
            NotFoundError: There is no such folder.
            FetchError: It cannot be listed.
        """
        driver = self.driver(folder, is_read=False)
        if driver is not None:
            return driver.entries(folder)

        def listed(store: Store, key: str) -> list[Entry]:
            import obstore

            path = key.strip("/")
            found = obstore.list_with_delimiter(store, f"{path}/" if path else None)
            files = [Entry(_name(meta["path"]), meta["size"]) for meta in found["objects"]
                     if meta["path"] != path]  # fmt: skip
            folders = [Entry(_name(each), is_folder=True) for each in found["common_prefixes"]]
            if path and not found["objects"] and not folders:
                raise NotFoundError(f"{urls.redact(folder)}: no such folder")
            return [entry for entry in files + folders if "\0" not in entry.name]

        return self.asked(folder, listed)

    def driver(self, url: str, *, is_read: bool = True) -> fsspec.Fsspec | None:
        """Return the fsspec driver that opens a URL, or None if obstore does.

        Args:
            url: An object or folder.
            is_read: Whether an object is read, which signed URLs do in a forked process.

        Raises:
            FetchError: Neither can: the error names what to install or to change.
        """
        kind = KINDS[urls.scheme(url)]
        # An object's version, and a chain of URLs, which fsspec refuses (SEC-10).
        if "?" in url or "::" in url:
            return fsspec.transport_for(self.options, None)
        if kind not in self._settings:
            try:
                self._settings[kind] = self._settings_for(kind)
            except FetchError as error:
                raise FetchError(f"{urls.redact(url)}: {error}") from None
        is_helpless = not is_read and store_clients.is_forked()
        if self._settings[kind] is None or (is_helpless and _has_driver(kind)):
            return fsspec.transport_for(self.options, None)
        return None

    def _settings_for(self, kind: str) -> store_options.Settings | None:
        """Return the settings for obstore; None if fsspec is used."""
        asked = self.options.get("driver")
        if asked == "fsspec":
            return None
        if asked not in (None, "obstore"):
            raise FetchError(
                f"storage_options: driver: expected obstore or fsspec, found {asked!r:.40}"
            )
        if find_spec("obstore") is None:
            if asked is None and _has_driver(kind):
                driver = _FSSPEC_DRIVERS[kind]
                _logger.info("%s is used, which is slower; pip install 'wids[%s]'", driver, kind)
                return None
            raise FetchError(
                f"expected a driver for this scheme, found none; pip install 'wids[{kind}]', or "
                "pass a handler for it"
            )
        return store_options.settings_for(kind, self.options)

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
            RefusedVersionError: The object has another version than the call was for.
            FetchError: It failed; or this process was forked, and can only read.
        """
        place = store_clients.place_of(url)
        if store_clients.is_forked():
            raise FetchError(
                f"{urls.redact(url)}: expected a process that can list and write objects, found "
                "one that was forked from another that reads them; start it by forkserver or spawn"
            )
        import obstore

        for is_last in (False, True):
            store = self._bucket(place, client).store
            try:
                return interruptible(lambda s=store: call(s, place.key))  # type: ignore[misc]
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                raise FileExistsError(errno.EEXIST, "already exists", urls.redact(url)) from None
            except obstore.exceptions.PreconditionError:
                raise RefusedVersionError(f"{urls.redact(url)}: it was replaced") from None
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                region = None if is_last else self._other_region(place, error)
                if region is None:
                    raise store_errors.store_error(place.kind, url, error, expected) from None
                self._regions[_root(place)] = region
                self._buckets.clear()
        raise AssertionError  # the second round returns or raises

    def _bucket(self, place: Place, client: Mapping[str, str] | None = None) -> Bucket:
        """Return the open bucket of a place, for this process."""
        # In a forked process it has credentials of this moment, which may expire.
        term = int(time.monotonic() // _TERM_S) if store_clients.is_forked() else 0
        key = (os.getpid(), term, _root(place))
        if not client and key in self._buckets:
            return self._buckets[key]
        # `driver` was asked before, and returned None: there are settings for obstore.
        settings = self._settings[place.kind] or store_options.Settings()
        region = self._regions.get(_root(place))
        made = store_clients.new_store(place, settings, region, **(client or {}))
        bucket = Bucket(made[0], SignedUrls(place, *made))
        if not client:
            self._buckets[key] = bucket
        return bucket

    def _other_region(self, place: Place, error: Exception) -> str | None:
        """Return the region of a bucket whose requests were signed for another; else None."""
        if place.kind != "s3" or not store_errors.is_wrong_region(error):
            return None
        settings = self._settings["s3"]
        endpoint = None if settings is None else settings.config.get("endpoint")
        return store_errors.stated_region(error) or _asked_region(place, endpoint)


def _root(place: Place) -> Place:
    """Return the place of the bucket itself."""
    return Place(place.kind, place.bucket, place.account, "")


def _asked_region(place: Place, endpoint: str | None) -> str | None:
    """Return the region that the store states to anyone who asks for a bucket."""
    address = f"{(endpoint or 'https://s3.amazonaws.com').rstrip('/')}/{place.bucket}"
    try:  # a refusal and a redirect state it too
        return Http().head(address).headers.get("x-amz-bucket-region") or None
    except FetchError:
        check_waits()  # a wait that had to end is no answer
        return None


def _opened(
    url: str, store: Store, key: str, start: int, stop: int | None, tag: str | None
) -> Stream:
    """Open an object or a part of it, once."""
    import obstore

    if stop == 0:
        meta = obstore.head(store, key)
        return Stream(iter(()), 0, meta["size"], _strong(meta["e_tag"]))
    options: dict[str, Any] = {}
    if start or stop is not None:
        options["range"] = {"offset": start} if stop is None else (start, stop)
        if tag is not None and tag.startswith('"'):
            options["if_match"] = tag
    try:
        result = obstore.get(store, key, options=options)
    except obstore.exceptions.PreconditionError:
        # As a server does for If-Range: the whole file, whose tag says that it is another.
        return _opened(url, store, key, 0, None, None)
    except obstore.exceptions.GenericError as error:
        if not (options and store_errors.is_whole_file(error)):
            raise
        return _opened(url, store, key, 0, None, None)
    meta = result.meta
    end = None if stop is None else result.range[1]
    if stop is not None and stop - start <= _WHOLE_NBYTES:
        chunks = iter((memoryview(result.bytes()),))
        return Stream(chunks, start, meta["size"], _strong(meta["e_tag"]), stop=end)
    pieces = _pieces(KINDS[urls.scheme(url)], url, result)
    return Stream(pieces, start, meta["size"], _strong(meta["e_tag"]), pieces.close, stop=end)


def _pieces(kind: str, url: str, result: Any) -> Generator[bytes, None, None]:
    import obstore

    stream = result.stream(min_chunk_size=_CHUNK_NBYTES)
    try:
        while piece := interruptible(lambda: next(stream, b"")):
            yield piece
    except (obstore.exceptions.BaseError, OSError) as error:
        raise store_errors.store_error(kind, url, error) from None


def _has_driver(kind: str) -> bool:
    return find_spec(_FSSPEC_DRIVERS[kind]) is not None


def _strong(tag: str | None) -> str | None:
    return None if tag is None or tag.startswith("W/") else tag


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
