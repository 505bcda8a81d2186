"""Open objects of S3, Google Cloud Storage and Azure with obstore, or else with fsspec.

`ObjectStores.driver` decides for each bucket which of the two it is: fsspec where the caller asks
for it, where the form of a URL has no counterpart in obstore, and where only its driver is
installed.

obstore cannot be used in a process that was forked from one that has used it, such as the workers
of a DataLoader on Linux. There, objects are read by signed URLs over HTTP. Signing needs no
network, and costs a hundredth of a request.

obstore has a class for a missing object, a refused access and a refused version. The status of all
other answers stands only in its text, which is parsed here and nowhere else (specs/decisions/0096).
An error whose text is not understood counts as an outage, which is retried.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Final, TypeVar
from urllib.parse import quote

from wids.errors import FetchError, NotFoundError
from wids.storage.transport import fsspec, store_settings, urls
from wids.storage.transport.http import TIMEOUT_S, Http
from wids.storage.transport.retry import check_waits
from wids.storage.transport.store_credentials import Provider
from wids.storage.transport.store_settings import ObjectLocation, Store, StoreConfig
from wids.storage.transport.stream import (
    AccessError,
    Entry,
    PastEndError,
    Stream,
    Transport,
    not_found,
    transient_error,
)

_logger = logging.getLogger(__name__)


_LIFE_S: Final = 3600.0
_KEY_OPTIONS: Final = ("access_key_id", "service_account_key", "account_key")
_VARIABLES: Final = {
    "s3": ("AWS_ACCESS_KEY_ID",),
    "gcs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "azure": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
}
_PACKAGES: Final = {
    "s3": "pip install botocore, or ",
    "gcs": "pip install google-auth, or ",
    "azure": "",
}


class Bucket:
    """An open bucket, whose objects a forked process reads by signed URLs.

    Args:
        location: The bucket, by any object in it.
        store: The store of obstore.
        config: That of the store.
        provider: Provides credentials, or None.
    """

    def __init__(
        self, location: ObjectLocation, store: Store, config: StoreConfig, provider: Provider | None
    ) -> None:
        self._location = location
        self.store = store
        self._config = config
        self._provider = provider
        self._signed: dict[str, tuple[str, float]] = {}
        self._http: dict[str, Http] = {}

    def open_signed(
        self, url: str, key: str, start: int, stop: int | None, tag: str | None
    ) -> Stream:
        """Open an object or a part of it by HTTP; errors name ``url``, and not the signed one.

        Raises:
            FetchError: It cannot be read or signed.
        """
        http, signed = self.signed(url, key)
        try:
            # A URL that is signed for GET refuses HEAD.
            stream = http.open(signed, start, 1 if stop == 0 else stop, tag)
        except FetchError as error:
            error.args = (str(error).replace(urls.redact(signed), urls.redact(url)),)
            raise
        if stop == 0:
            stream.close()
            return Stream(iter(()), 0, stream.total_nbytes, stream.tag)
        return stream

    def signed(self, url: str, key: str) -> tuple[Http, str]:
        """Return what reads an object, and its address, which is good for a while.

        Raises:
            FetchError: It cannot be signed.
        """
        address, headers = self._address(url, key)
        token = headers.get("Authorization", "")
        http = self._http.get(token)
        if http is None:  # another thread may replace it, if the token was renewed
            http = Http(headers, TIMEOUT_S, self._config.client.get("root_certificate"))
            self._http = {token: http}
        return http, address

    def _address(self, url: str, key: str) -> tuple[str, Mapping[str, str]]:
        """Return the URL to request, and headers."""
        config = self._config.config
        plain = _plain(self._location, config, key)
        if config.get("skip_signature"):
            return plain, {}
        if "sas_key" in config:
            return f"{plain}?{config['sas_key']}", {}
        if self._location.kind == "gcs" and (self._provider or "bearer_token" in config):
            token = config.get("bearer_token") or self._provider()["token"]  # type: ignore[misc]
            return plain, {"Authorization": f"Bearer {token}"}
        address, until_s = self._signed.get(key, ("", 0.0))
        if time.monotonic() > until_s:
            address = self._sign(url, key)
            # Half of its life is left for downloads, and for clocks that differ.
            self._signed[key] = (address, time.monotonic() + _LIFE_S / 2)
        return address, {}

    def _sign(self, url: str, key: str) -> str:
        import obstore

        # Without keys at hand obstore would request them. That never returns here, and the parent
        # would miss answers too, since a fork shares what a process waits with (epoll).
        has_keys = any(name in self._config.config for name in _KEY_OPTIONS) or any(
            os.environ.get(name) for name in _VARIABLES[self._location.kind]
        )
        if not has_keys:
            raise FetchError(
                f"{urls.redact(url)}: expected keys to sign with, found none in this process, "
                "which was forked from one that reads object stores; "
                + _PACKAGES[self._location.kind]
                + 'start workers with multiprocessing_context="forkserver"'
            )
        call: Any = obstore.sign
        return str(call(self.store, "GET", key, timedelta(seconds=_LIFE_S)))


def _plain(location: ObjectLocation, config: Mapping[str, Any], key: str) -> str:
    """Return the URL of an object without a signature."""
    endpoint = config.get("endpoint") or config.get("base_url")
    path = f"{location.bucket}/{quote(key)}"
    if location.kind == "s3" and config.get("virtual_hosted_style_request") and endpoint:
        path = quote(key)
    if endpoint is None:
        endpoint = {
            "s3": f"https://s3.{config.get('region', 'us-east-1')}.amazonaws.com",
            "gcs": "https://storage.googleapis.com",
            "azure": f"https://{config.get('account_name')}.blob.core.windows.net",
        }[location.kind]
    return f"{endpoint.rstrip('/')}/{path}"


_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_ATTEMPT: Final = re.compile(r"Error performing [A-Z]+ (\w+://[^/\s]+)\S* in \S+ - ")
_KIND: Final = re.compile(r"kind: ([A-Z]\w+)")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\((\w+)|CaUsedAsEndEntity|UnknownIssuer")
_WRONG_REGION: Final = frozenset(
    ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
)
_BARE_REDIRECT: Final = "redirect without LOCATION"
_MACHINE: Final = ("169.254.169.254", "metadata.google.internal", "fd00:ec2::254")
"""Addresses that only machines of a cloud have, where obstore looks for credentials last."""

_KEYS: Final = {
    "s3": "pass key and secret, profile, or anon=True for a public bucket, in storage_options or "
    "$WIDS_STORAGE_OPTIONS, or set $AWS_ACCESS_KEY_ID or $AWS_PROFILE",
    "gcs": "pass token, or anon=True for a public bucket, in storage_options or "
    "$WIDS_STORAGE_OPTIONS, or set $GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "pass account_name with account_key or sas_token, or anon=True for a public "
    "container, in storage_options or $WIDS_STORAGE_OPTIONS, or set $AZURE_STORAGE_ACCOUNT_KEY",
}


def right_region(error: Exception) -> str | None:
    """Return the region to sign for, if the error says that a request was signed for another one.

    Return ``""`` if it does not say for which, and None for any other error.
    """
    text = str(error)
    is_wrong = _BARE_REDIRECT in text or _found(_CODE, text) in _WRONG_REGION
    return _found(_REGION, text) if is_wrong else None


def store_error(
    kind: str, url: str, error: Exception, expected: str = "a readable object"
) -> FetchError:
    """Return the error of wids for one that obstore raised.

    Args:
        kind: Kind of store, a key of `store_settings.NAMES`.
        url: The object.
        error: The error.
        expected: What was expected.
    """
    if isinstance(error, FetchError):
        return error
    text, name = str(error), urls.redact(url)
    status, code = int(_found(_STATUS, text) or 0), _found(_CODE, text)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        if code not in ("NoSuchBucket", "ContainerNotFound"):
            missing = not_found(url)
        else:
            missing = NotFoundError(
                f"{name}: expected the bucket {urls.origin(url)} to exist, found none ({code}); "
                "check its name and the endpoint, or create it"
            )
        return missing
    if status == 416:
        return PastEndError(f"{name}: expected a longer file, found that it ends before this part")
    refusal = _refusal(kind, url, error, status)
    if refusal is not None:
        return refusal
    reason = f"{status} {code}".strip() if status else _reason(error, text, url)
    message = f"{name}: expected {expected}, found: {reason}"
    # A value that cannot be used will not become better.
    if isinstance(error, (ValueError, TypeError)) or type(error).__name__ in _PERMANENT:
        return FetchError(message)
    is_cut = not status and "request or response body error" in text
    return transient_error(message, error, status, is_cut=is_cut)


def _found(pattern: re.Pattern[str], text: str) -> str:
    """Return what a pattern finds in a text, or nothing."""
    match = pattern.search(text)
    return match[1] if match else ""


def _refusal(kind: str, url: str, error: Exception, status: int) -> FetchError | None:
    """Return the error for a request that credentials or settings would have to change."""
    text, name, bucket = str(error), urls.redact(url), urls.origin(url)
    region = right_region(error)
    if region is not None:
        return FetchError(
            f"{name}: expected the region of {bucket}, found another"
            + (f"; it is {region}" if region else "")
            + '; pass client_kwargs={"region_name": …} in storage_options, or set $AWS_REGION'
        )
    if any(address in text for address in _MACHINE):
        return FetchError(
            f"{name}: expected credentials for {bucket}, found none, also not from the machine; "
            + _KEYS[kind]
        )
    if status in (401, 403):
        found = f"{status} {_found(_CODE, text)}".rstrip()
        advice = "; if its requester pays, pass requester_pays" if kind != "azure" else ""
        return AccessError(
            f"{name}: expected access to {bucket}, found: {found}; {_KEYS[kind]}{advice}"
        )
    certificate = _CERTIFICATE.search(text)
    if certificate is None:
        return None
    return FetchError(
        f"{name}: expected a certificate that is trusted, found: {certificate[0]}; set "
        "$SSL_CERT_FILE, or for S3 $AWS_CA_BUNDLE, to the file of your certificates"
    )


_PERMANENT: Final = frozenset(
    ("NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError")
)


def _reason(error: Exception, text: str, url: str) -> str:
    """Return what a message without a status says: its first line, and the innermost kind."""
    line = _ATTEMPT.sub(r"\1: ", text.partition("\n")[0])
    kinds = [kind for kind in _KIND.findall(text) if kind not in ("Request", "Body")]
    inner = f" ({kinds[-1]})" if kinds else ""
    dns = " (the name of the server is unknown)" if "dns error" in text else ""
    return f"{type(error).__name__}: {urls.without_secrets(line, url):.200}{dns or inner}"


_T = TypeVar("_T")
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


class ObjectStores(Transport):
    """Reads objects, and lists folders.

    Threads can share it, and it survives a fork and pickling: each process opens its own buckets.

    Args:
        options: The caller's options for these URLs, as docs/object-stores.md lists them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._buckets: dict[tuple[int, int, ObjectLocation], Bucket] = {}
        self._regions: dict[ObjectLocation, str] = {}
        self._settings: dict[str, StoreConfig | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buckets": {}}

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open an object or a part of it, by the driver that is used for its bucket."""
        driver = self.driver(url)
        if driver is not None:
            return driver.open(url, start, stop, tag)
        if not store_settings.is_forked():
            return self.asked(url, lambda store, key: _opened(url, store, key, start, stop, tag))
        location = store_settings.location_of(url)
        return self._bucket(location).open_signed(url, location.key, start, stop, tag)

    def by_http(self, url: str) -> tuple[Http, str] | None:
        """Return what reads an object in a forked process, as `open` does there."""
        if not store_settings.is_forked() or self.driver(url) is not None:
            return None
        location = store_settings.location_of(url)
        return self._bucket(location).signed(url, location.key)

    def streams_parts(self, url: str) -> bool:
        """Return whether obstore opens a URL."""
        return self.driver(url) is None

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
        kind = urls.KINDS[urls.scheme(url)]
        # An object's version, and a chain of URLs, which fsspec refuses (SEC-10).
        if "?" in url or "::" in url:
            return fsspec.transport_for(self.options, None)
        if "//" in urls.path_of(url):  # obstore refuses empty parts
            if _has_driver(kind):
                return fsspec.transport_for(self.options, None)
            raise FetchError(
                f'{urls.redact(url)}: expected a key without "//", or {_FSSPEC_DRIVERS[kind]}, '
                f"which reads it; pip install {_FSSPEC_DRIVERS[kind]}"
            )
        if kind not in self._settings:
            try:
                self._settings[kind] = self._settings_for(kind)
            except FetchError as error:
                raise FetchError(f"{urls.redact(url)}: {error}") from None
        is_helpless = not is_read and store_settings.is_forked()
        if self._settings[kind] is None or (is_helpless and _has_driver(kind)):
            return fsspec.transport_for(self.options, None)
        return None

    def _settings_for(self, kind: str) -> StoreConfig | None:
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
        return store_settings.config_for(kind, self.options)

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
        location = store_settings.location_of(url)
        if store_settings.is_forked():
            raise FetchError(
                f"{urls.redact(url)}: expected a process that can list and write objects, found "
                "one that was forked from another that reads them; start it by forkserver or spawn"
            )
        import obstore

        for is_last in (False, True):
            store = self._bucket(location, client).store
            try:
                return store_settings.interruptible(lambda s=store: call(s, location.key))  # type: ignore[misc]
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                raise FileExistsError(errno.EEXIST, "already exists", urls.redact(url)) from None
            except obstore.exceptions.PreconditionError:
                raise RefusedVersionError(f"{urls.redact(url)}: it was replaced") from None
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                region = None if is_last else self._other_region(location, error)
                if region is None:
                    raise store_error(location.kind, url, error, expected) from None
                self._regions[location._replace(key="")] = region
                self._buckets.clear()
        raise AssertionError  # the second round returns or raises

    def _bucket(self, location: ObjectLocation, client: Mapping[str, str] | None = None) -> Bucket:
        """Return the open bucket of a location, for this process."""
        # In a forked process it has credentials of this moment, which may expire.
        term = int(time.monotonic() // _TERM_S) if store_settings.is_forked() else 0
        key = (os.getpid(), term, location._replace(key=""))
        if not client and key in self._buckets:
            return self._buckets[key]
        # `driver` was asked before, and returned None: there are settings for obstore.
        settings = self._settings[location.kind] or StoreConfig()
        made = store_settings.new_store(
            location, settings, self._regions.get(key[-1]), **(client or {})
        )
        bucket = Bucket(location, *made)
        if not client:
            self._buckets[key] = bucket
        return bucket

    def _other_region(self, location: ObjectLocation, error: Exception) -> str | None:
        """Return the region of a bucket whose requests were signed for another; else None."""
        region = right_region(error)
        if location.kind != "s3" or region is None:
            return None
        settings = self._settings["s3"]
        endpoint = None if settings is None else settings.config.get("endpoint")
        return region or _asked_region(location, endpoint)


def _asked_region(location: ObjectLocation, endpoint: str | None) -> str | None:
    """Return the region that the store states to anyone who asks for a bucket."""
    address = f"{(endpoint or 'https://s3.amazonaws.com').rstrip('/')}/{location.bucket}"
    try:  # a refusal and a redirect state it too
        return Http().head(address).headers.get("x-amz-bucket-region") or None
    except FetchError:
        check_waits()  # raises if the wait was cut short
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
    except (obstore.exceptions.PreconditionError, obstore.exceptions.GenericError) as error:
        is_replaced = isinstance(error, obstore.exceptions.PreconditionError)
        if not (is_replaced or (options and "NotPartial" in str(error))):
            raise
        # As a server does for If-Range: the whole file, whose tag says that it is another.
        return _opened(url, store, key, 0, None, None)
    meta = result.meta
    end = None if stop is None else result.range[1]
    if stop is not None and stop - start <= _WHOLE_NBYTES:
        chunks = iter((memoryview(result.bytes()),))
        return Stream(chunks, start, meta["size"], _strong(meta["e_tag"]), stop=end)
    pieces = _pieces(urls.KINDS[urls.scheme(url)], url, result)
    return Stream(pieces, start, meta["size"], _strong(meta["e_tag"]), pieces.close, stop=end)


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


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
