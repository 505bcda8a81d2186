"""URL → file, bytes, or byte range: asked again after a failure, gone on with after a cut.

What comes back is complete, as far as the server says how long the file is, and is the right file,
as far as the caller says how to tell. This room knows nothing of shards, specs or caches.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final, NamedTuple, TypeAlias, TypeVar

from wids.errors import FetchError, MismatchError
from wids.transport import transports, urls
from wids.transport.transports import Stream, TransientError, Transport

_T = TypeVar("_T")
_logger = logging.getLogger("wids")

MAX_FAILURES: Final = 5
"""Failures in a row, with next to nothing received in between, before giving up."""

_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 10.0
_PROGRESS_NBYTES: Final = 1 << 20
"""Bytes after which a server counts as one that works."""

Opener: TypeAlias = Callable[[str], IO[bytes]]
Report: TypeAlias = Callable[[int, "int | None"], None]


class Expected(NamedTuple):
    """What is known of a file before it is fetched.

    Attributes:
        nbytes: Its length, or None.
        md5sum, sha256: Its digests in hexadecimal digits, or None.
    """

    nbytes: int | None = None
    md5sum: str | None = None
    sha256: str | None = None


class RangeError(FetchError):
    """A server that gives whole files only."""


class CancelledError(FetchError):
    """A fetch that was called off."""


class Fetcher:
    """Reads URLs, with the caller's options and handlers.

    Can be used by any number of threads, after a fork, and be pickled as far as its handlers can.

    Args:
        storage_options: What servers want to know. ``headers`` (a dict) and ``timeout`` (seconds)
            are for HTTP; the rest goes to the fsspec file systems of other schemes. Or a dict of
            such dicts by URL prefix, ``{"https://host/": {"headers": …}, "s3://": {…}}``, of which
            the longest that fits is used. Once a document was read from a URL, options that are not
            for a prefix go to the server of the first such document only.
        handlers: For each scheme a callable that gives an open binary file for a URL, in place of
            what is used otherwise.
        scratch: Folder for the files of ``pipe:`` commands; None for that of the system.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        handlers: Mapping[str, Opener] | None = None,
        scratch: str | None = None,
    ) -> None:
        self._options = _by_prefix(storage_options or {})
        self._handlers: dict[str, Transport] = {
            scheme.lower(): transports.from_opener(opener)
            for scheme, opener in (handlers or {}).items()
        }
        self._handlers.setdefault("pipe", transports.Pipe(scratch))
        for scheme in ("", "file"):
            self._handlers.setdefault(scheme, transports.local)
        self._transports: dict[tuple[bool, str | None], Transport] = {}

    def read(self, url: str, limit_nbytes: int) -> bytes:
        """Read all bytes of a document.

        Args:
            url: Where it is.
            limit_nbytes: Most bytes to accept.

        Raises:
            NotFoundError: There is nothing.
            FetchError: It cannot be read, the server answers with an error, or it is too long.
        """
        if "" in self._options and urls.origin(url):
            # What a document from elsewhere names is not the caller's word.
            self._options[urls.origin(url)] = self._options.pop("")

        def attempt() -> bytes:
            data = bytearray()
            with self._open(url) as stream:
                for chunk in stream.chunks:
                    data += chunk
                    if len(data) > limit_nbytes:
                        raise FetchError(
                            f"{urls.redact(url)}: expected at most {limit_nbytes} bytes, found "
                            "more; this is not the document that it should be"
                        )
            _check_whole(url, len(data), stream.total_nbytes)
            return bytes(data)

        return _persistently(attempt)

    def read_range(self, url: str, start: int, stop: int, total_nbytes: int) -> bytes:
        """Read the bytes from ``start`` to ``stop`` of a file of a known length.

        Raises:
            RangeError: The server has no ranges, or does not say of how long a file they are.
            MismatchError: The file has another length.
            FetchError: It cannot be read.
        """

        def attempt() -> bytes:
            with self._open(url, start, stop) as stream:
                if stream.start != start or stream.total_nbytes is None:
                    raise RangeError(
                        f"{urls.redact(url)}: expected a part of the file, found a server that "
                        'gives whole files only; use access="download"'
                    )
                if stream.total_nbytes != total_nbytes:
                    raise MismatchError(
                        f"{urls.redact(url)}: expected a file of {total_nbytes} bytes, as its "
                        f"index says, found {stream.total_nbytes}; it was published anew: make "
                        "its index anew too"
                    )
                data = bytearray()
                for chunk in stream.chunks:
                    data += chunk
                    if len(data) > stop - start:  # all of it, from a server without ranges
                        break
            del data[stop - start :]
            _check_whole(url, len(data), stop - start)
            return bytes(data)

        return _persistently(attempt)

    def save(
        self,
        url: str,
        file: IO[bytes],
        expected: Expected = Expected(),  # noqa: B008 - a tuple
        report: Report = lambda received_nbytes, total_nbytes: None,  # noqa: ARG005
        cancel: threading.Event | None = None,
    ) -> None:
        """Write all bytes of a URL into an empty file, and compare what passes with what is known.

        After a cut it goes on where it was, if the server can, and the file is the same as before.

        Args:
            url: Where it is.
            file: An empty file that can seek.
            expected: What is known of it.
            report: Called with the bytes received, and the length of the whole or None: once
                before the first ones, and then for each piece.
            cancel: Ends the fetch when it is set.

        Raises:
            MismatchError: It is not what was expected.
            NotFoundError: There is nothing.
            FetchError: It cannot be read.
        """
        download = _Download(url, file, expected, report, cancel)

        def attempt() -> None:
            try:
                with self._open(url, download.resume_at, None, download.tag) as stream:
                    download.take(stream)
            except transports.PastEndError as error:
                if not download.resume_at:
                    raise
                download.start_over()
                raise TransientError(str(error)) from error

        _persistently(attempt, lambda: download.received_nbytes, cancel)
        download.verify()

    def about(self, url: str) -> tuple[int | None, str | None]:
        """Give the length and the tag of the file at a URL, as far as the server tells."""

        def attempt() -> tuple[int | None, str | None]:
            with self._open(url, 0, 1) as stream:
                return stream.total_nbytes, stream.tag

        return _persistently(attempt)

    def _open(
        self, url: str, start: int = 0, stop: int | None = None, tag: str | None = None
    ) -> Stream:
        place = where(url)
        transport = self._handlers.get(urls.scheme(place)) or self._transport(url, place)
        return transport(place, start, stop, tag)

    def _transport(self, url: str, place: str) -> Transport:
        """Give the transport for a URL, which keeps its connections for the next one."""
        is_http = urls.scheme(place) in ("http", "https")
        fitting = (p for p in self._options if not p or urls.is_below(url, p))
        prefix = max(fitting, key=len, default=None)
        key = (is_http, prefix)
        if key not in self._transports:
            options = dict(self._options.get(prefix or "", {})) if prefix is not None else {}
            headers, timeout_s = options.pop("headers", None), options.pop("timeout", None)
            self._transports[key] = (
                transports.Http(headers, timeout_s or transports.TIMEOUT_S)
                if is_http
                else transports.Fsspec(options)
            )
        return self._transports[key]


def where(url: str) -> str:
    """Give where a URL leads on this machine, as ``WDS_REWRITE`` and ``AIS_ENDPOINT`` say."""
    rules = os.environ.get("WDS_REWRITE")
    if rules:
        url = urls.rewrite(url, rules)
    endpoint = os.environ.get("AIS_ENDPOINT")
    if endpoint:
        scheme = urls.scheme(url)
        if scheme == "ais" or scheme in os.environ.get("USE_AIS_FOR", "").split(":"):
            provider = _AIS_PROVIDERS.get(scheme, scheme)
            name = urls.quoted(url.partition("://")[2])
            url = f"{endpoint.rstrip('/')}/{provider}/{name}"
    return url


_AIS_PROVIDERS: Final = {"gcs": "gs", "aws": "s3", "azure": "az"}
"""Schemes that AIStore calls otherwise, in its URLs http://host:port/provider/bucket/object."""


def read(url: str, limit_nbytes: int) -> bytes:
    """Read a document without options; see `Fetcher.read`."""
    return Fetcher().read(url, limit_nbytes)


class _Download:
    """What has arrived of one file, over any number of tries."""

    def __init__(
        self,
        url: str,
        file: IO[bytes],
        expected: Expected,
        report: Report,
        cancel: threading.Event | None,
    ) -> None:
        self.url = url
        self.file = file
        self.expected = expected
        self.report = report
        self.cancel = cancel
        self.tag: str | None
        self.total_nbytes: int | None
        self.start_over()

    def start_over(self) -> None:
        """Forget what has arrived."""
        self.tag = None
        self.total_nbytes = None
        self.received_nbytes = 0
        self.digests = {
            name: hashlib.new(name, usedforsecurity=False)
            for name, stated in (("md5", self.expected.md5sum), ("sha256", self.expected.sha256))
            if stated is not None
        }
        self.file.seek(0)

    @property
    def resume_at(self) -> int:
        """Where to go on: where it was cut, if somebody can tell that it is still the same file."""
        return self.received_nbytes if self.tag is not None or self.digests else 0

    def take(self, stream: Stream) -> None:
        """Append what a stream has; it may begin anew."""
        if self.received_nbytes and stream.start != self.received_nbytes:
            self.start_over()
        # A part may say less of the file than the whole did.
        known = ((self.tag, stream.tag), (self.total_nbytes, stream.total_nbytes))
        if stream.start and any(None not in pair and pair[0] != pair[1] for pair in known):
            self.start_over()
            raise TransientError(f"{urls.redact(self.url)}: it changed while it was fetched")
        self.tag = stream.tag or self.tag
        if stream.total_nbytes is not None:
            self.total_nbytes = stream.total_nbytes
        self._check_length(self.total_nbytes)
        self.report(self.received_nbytes, self.total_nbytes)
        for chunk in stream.chunks:
            if self.cancel is not None and self.cancel.is_set():
                raise CancelledError(f"{urls.redact(self.url)}: the fetch was called off")
            self.file.write(chunk)
            self.received_nbytes += len(chunk)
            if self.received_nbytes > (self.expected.nbytes or math.inf):
                self._check_length(self.received_nbytes)
            for digest in self.digests.values():
                digest.update(chunk)
            self.report(self.received_nbytes, self.total_nbytes)
        _check_whole(self.url, self.received_nbytes, self.total_nbytes)

    def verify(self) -> None:
        """Compare what arrived with what was expected."""
        self.file.truncate(self.received_nbytes)
        self._check_length(self.received_nbytes)
        for name, digest in self.digests.items():
            stated = (self.expected.md5sum if name == "md5" else self.expected.sha256) or ""
            if digest.hexdigest() != stated.lower():
                raise MismatchError(
                    f"{urls.redact(self.url)}: expected the {name} {stated}, "
                    f"found {digest.hexdigest()}; the file and its spec are not of the same day"
                )

    def _check_length(self, nbytes: int | None) -> None:
        stated = self.expected.nbytes
        if nbytes is not None and stated is not None and nbytes != stated:
            raise MismatchError(
                f"{urls.redact(self.url)}: expected {stated} bytes (filesize), found {nbytes}; "
                "the file and its spec are not of the same day"
            )


def _check_whole(url: str, nbytes: int, total_nbytes: int | None) -> None:
    if total_nbytes is not None and nbytes != total_nbytes:
        raise TransientError(
            f"{urls.redact(url)}: expected {total_nbytes} bytes, found {nbytes}; it was cut off"
        )


def _persistently(
    attempt: Callable[[], _T],
    position: Callable[[], int] = lambda: 0,
    cancel: threading.Event | None = None,
) -> _T:
    """Call until it works, fails for good, or fails too often without getting on.

    Args:
        attempt: What to do.
        position: Gives how far it has come; failures before a larger step forward are forgotten.
        cancel: Ends the waiting when it is set.
    """
    num_failures, reached = 0, 0
    while True:
        try:
            return attempt()
        except TransientError as error:
            if position() - reached >= _PROGRESS_NBYTES:
                num_failures, reached = 0, position()
            reached = min(reached, position())  # it may have had to start over
            num_failures += 1
            if num_failures >= MAX_FAILURES:
                raise FetchError(f"{error}; tried {num_failures} times") from error
            # Twice as long each time, and never all processes at the same moment.
            wait_s = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2 ** (num_failures - 1))
            wait_s = error.wait_s or wait_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
            _logger.info("%s; trying again in %.1f s", str(error), wait_s)
        if cancel is None:
            time.sleep(wait_s)
        elif cancel.wait(wait_s):
            raise CancelledError("the fetch was called off")


def _by_prefix(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give options by the prefix of the URLs that they are for, ``""`` for all."""
    is_prefix = ["://" in name for name in options]
    if not any(is_prefix):
        return {"": dict(options)}
    if not all(is_prefix):
        raise ValueError(
            "storage_options: expected options, or options by URL prefix, found both: "
            + ", ".join(options)
        )
    return {prefix: dict(some) for prefix, some in options.items()}
