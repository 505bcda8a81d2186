"""Read objects of S3, Google Cloud Storage and Azure by HTTP; list and write them by obstore.

A `Bucket` reads objects like any file of a server, in every process, where this process can sign:
by URLs for S3 and Azure, by a header for Google. obstore reads what cannot be signed here, which
docs/object-stores.md lists. fsspec is used where the caller asks for it, where the form of a URL
has no counterpart in obstore, and where only its driver is installed.

obstore cannot be used in a process that was forked from one that has used it, such as the workers
of a DataLoader on Linux before Python 3.14.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

from wids.errors import FetchError, NotFoundError, UploadError
from wids.storage.transport import fsspec, store_settings, urls
from wids.storage.transport.connections import Head
from wids.storage.transport.http import Http
from wids.storage.transport.range_loop import raise_error, read_ranges
from wids.storage.transport.range_reads import Range
from wids.storage.transport.retry import Timeouts, check_waits
from wids.storage.transport.signing import Keys, signed
from wids.storage.transport.store_credentials import Provider
from wids.storage.transport.store_errors import right_region, store_error
from wids.storage.transport.store_settings import ObjectLocation, Store, location_of
from wids.storage.transport.stream import (
    TRANSIENT_STATUSES,
    AccessError,
    Content,
    Entry,
    NotByHttpError,
    Stream,
    Transport,
)

_logger = logging.getLogger(__name__)


_LIFE_S: Final = 3600
_BACK_S: Final = 300
"""How long before now a signature is dated: clocks differ."""

_MOST_SIGNED: Final = 4096
_PACKAGES: Final = {"s3": "botocore", "gcs": "google-auth"}
_BY_OBSTORE: Final = frozenset(
    ("allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes",
     "proxy_ca_certificate", "read_timeout", "use_emulator", "use_fabric_endpoint")
)  # fmt: skip
"""Options with which obstore reads."""

_AT_HAND: Final = ("skip_signature", "bearer_token", "sas_key", "account_key")
"""Options that are enough to read without a provider of credentials."""


class Bucket(Http):
    """An open bucket, whose objects are read by HTTP, or by obstore.

    Threads can share it.

    Args:
        location: The bucket, by any object in it.
        options: The caller's.

    Attributes:
        is_by_http: Whether its objects are read by HTTP.
        is_refused: Whether it has refused a signature in an address.
    """

    def __init__(self, location: ObjectLocation, options: Mapping[str, Any]) -> None:
        self._location = location._replace(key="")
        settings = store_settings.config_for(location.kind, options)
        self._settings = store_settings.completed(location, settings)
        config, client = self._settings.config, self._settings.client
        self._config, self._region = config, ""
        self._signed: dict[str, tuple[tuple[object, ...], str]] = {}
        self._skew_s = float(-_BACK_S)  # from now to the date of a signature
        self._stores: dict[Any, Store] = {}
        self.is_refused = False
        provider = self._settings.provider
        self.is_by_http = (
            (provider is not None or any(map(config.get, _AT_HAND)))
            and _BY_OBSTORE.isdisjoint([*settings.client, *config])
            # A directory bucket, or one that a name of AWS stands for.
            and not (location.bucket.endswith("--x-s3") or ":" in location.bucket)
            and str(config.get("server_side_encryption")).lower() != "sse-c"
        )
        headers = {"User-Agent": client["user_agent"], **client.get("default_headers", {})}
        if "bearer_token" in config:
            headers["Authorization"] = f"Bearer {config['bearer_token']}"
        has_tokens = location.kind == "gcs" and provider is not None
        super().__init__(
            partial(_with_token, headers, provider) if has_tokens else headers,  # type: ignore[arg-type]
            settings.timeout_s,
            client.get("root_certificate"),
        )

    @property
    def signs(self) -> bool:
        """Whether signatures are in its addresses, which a policy may forbid."""
        return self._location.kind == "s3" and not self._config.get("skip_signature")

    def reads(self, key: str) -> bool:
        """Return whether an object is read by HTTP."""
        # A client resolves dots in a path, and obstore, which signs for Azure, refuses empty parts.
        odd = {".", "..", ""} if "account_key" in self._config else {".", ".."}
        return self.is_by_http and odd.isdisjoint(key.split("/"))

    def store(self, **client: str) -> Store:
        """Return the store of obstore.

        Args:
            client: Options of the HTTP client that replace the others.
        """
        place = self._region, *client.items()
        if place not in self._stores:
            self._stores[place] = store_settings.new_store(
                self._location, self._settings, self._region, **client
            )
        return self._stores[place]

    def address(self, url: str) -> str:
        """Return the address of an object, which is replaced after half an hour at most.

        Raises:
            FetchError: There are no credentials.
        """
        keys, skew_s, now_s = self._keys(), self._skew_s, time.time()
        made_by = now_s // (_LIFE_S / 2), skew_s, self._region, keys
        found = self._signed.get(url)
        if found is None or found[0] != made_by:
            if len(self._signed) >= _MOST_SIGNED:
                self._signed.clear()
            address = self._new_address(location_of(url).key, keys, now_s + skew_s)
            found = self._signed[url] = made_by, address
        return found[1]

    def _keys(self) -> Keys | None:
        provider = self._settings.provider
        if provider is None or not self.signs:
            return None
        found = provider()
        return Keys(found["access_key_id"], found["secret_access_key"], found["token"])

    def _new_address(self, key: str, keys: Keys | None, date_s: float) -> str:
        config, (kind, bucket, *_) = self._config, self._location
        region = self._region or config.get("region") or config.get("default_region") or "us-east-1"
        endpoint = config.get("endpoint") or config.get("base_url") or {
            "s3": f"https://s3.{region}.amazonaws.com",
            "gcs": "https://storage.googleapis.com",
            "azure": f"https://{config.get('account_name')}.blob.core.windows.net",
        }[kind]  # fmt: skip
        scheme, _, host = endpoint.rstrip("/").partition("://")
        path = f"{bucket}/{quote(key)}"
        if kind == "s3" and config.get("virtual_hosted_style_request"):
            path = quote(key)
            if not config.get("endpoint"):
                host = f"{bucket}.{host}"
        url = f"{scheme}://{host}/{path}"
        if keys is not None:
            payer = {"x_amz_request_payer": "requester"} if config.get("request_payer") else {}
            return signed(url, keys, region, date_s, _LIFE_S, **payer)
        if "sas_key" in config and not config.get("skip_signature"):
            return f"{url}?{config['sas_key']}"
        if "account_key" in config and not config.get("skip_signature"):
            import obstore

            call: Any = obstore.sign  # needs no network
            return str(call(self.store(), "GET", key, timedelta(seconds=_LIFE_S)))
        return url

    def if_version(self, tag: str) -> dict[str, str]:
        """Return the header, which is another one: S3 has no If-Range."""
        return {"If-Match": tag} if tag.startswith('"') else {}  # not a date

    def refusal(
        self, url: str, address: str, head: Head, text: str, *, is_last: bool
    ) -> FetchError | None:
        """Return the error of a refusal; None if the object has another address now."""
        if head.status in TRANSIENT_STATUSES:
            return super().refusal(url, address, head, text, is_last=is_last)
        try:
            if not is_last and (self.address(url) != address or self._corrects(head, text)):
                return None
        except FetchError as no_keys:
            return no_keys
        found = OSError(f"status code: {head.status}: {text}")
        error = store_error(self._location.kind, url, found)
        is_refused = isinstance(error, AccessError) and self.signs and not self.is_proven
        if not is_refused or store_settings.is_forked():
            return error
        self.is_refused = True
        return NotByHttpError(str(error))

    def _corrects(self, head: Head, text: str) -> bool:
        """Have addresses be as a refusal of one says; return whether that changes anything."""
        if self.moves(text, head.headers.get("x-amz-bucket-region")):
            return True
        with suppress(ValueError, TypeError):  # no date
            date_s = parsedate_to_datetime(head.headers.get("date", "")).timestamp()
            skew_s = date_s - time.time() - _BACK_S
            if head.status == 403 and self.signs and abs(skew_s - self._skew_s) > _BACK_S:
                self._skew_s = skew_s
                return True
        return False

    def moves(self, text: str, stated: str | None = None) -> bool:
        """Sign for another region, if a refusal says so; return whether it does.

        Args:
            text: The refusal.
            stated: What a header says.
        """
        region = right_region(text)
        if self._location.kind != "s3" or region is None:
            return False
        region = region or stated or _asked_region(self._location, self._config.get("endpoint"))
        if region:
            self._region = region
        return bool(region)


def _with_token(headers: Mapping[str, str], provider: Provider) -> tuple[dict[str, str], float]:
    """Return headers with a token, and the Unix time at which to ask for the next one."""
    found = provider()
    return {**headers, "Authorization": f"Bearer {found['token']}"}, found["expires_at"].timestamp()


_T = TypeVar("_T")
_CHUNK_NBYTES: Final = 256 << 10
"""Size of the pieces of a stream: smaller ones cost more calls, larger ones a copy more."""

_FSSPEC_DRIVERS: Final = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}


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


def _asked_region(location: ObjectLocation, endpoint: str | None) -> str | None:
    """Return the region that the store states to anyone who asks for a bucket."""
    address = f"{(endpoint or 'https://s3.amazonaws.com').rstrip('/')}/{location.bucket}"
    asking, timeouts = _Asking(), Timeouts(urls.origin(address), retry_s=0.0)
    nothing = (lambda: None), (lambda *_: None), (lambda _, data: data)
    with suppress(FetchError):
        wanted = Range(asking, address, 0, 1, *nothing, timeouts, may_hedge=False)
        read_ranges([wanted], raise_error)
    check_waits()  # raises if the wait was cut short
    return asking.region


class _Asking(Http):
    """Asks a bucket for its region, which a refusal and a redirect state too.

    Attributes:
        region: The region; None if it was not stated.
    """

    region: str | None = None

    def content_of(self, url: str, start: int, head: Head) -> Content:
        """Note the region."""
        self.region = head.headers.get("x-amz-bucket-region")
        return super().content_of(url, start, head)

    def refusal(
        self, url: str, address: str, head: Head, text: str, *, is_last: bool
    ) -> FetchError | None:
        """Note the region."""
        self.region = head.headers.get("x-amz-bucket-region")
        return super().refusal(url, address, head, text, is_last=is_last)


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
