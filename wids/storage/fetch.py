"""Read a document, a byte range, a file or its length from a URL: all of the bytes, or an error.

What a `Fetcher` returns is complete if the server states the length of the file, and is the right
file if the caller states how to recognise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from wids.errors import FetchError
from wids.storage.download import Download, Expected, Report
from wids.storage.ranges import RangeReader, read_first
from wids.storage.transport import urls
from wids.storage.transport.local import Opener
from wids.storage.transport.retry import with_retries
from wids.storage.transport.schemes import Transports
from wids.storage.transport.stream import Content, Entry, PastEndError, check_complete


class FileStart(NamedTuple):
    """The first bytes of a file.

    Attributes:
        data: The bytes.
        total_nbytes: Length of the file, or None if the server does not state it.
        has_ranges: Whether the server sends parts: False if it began to send more of the file.
    """

    data: bytes
    total_nbytes: int | None
    has_ranges: bool


class Fetcher:
    """Reads URLs, with the caller's options and handlers.

    Threads can share it, and it survives a fork. It can be pickled if its handlers can.

    Args:
        storage_options: Options for servers. ``headers`` (a dict, or a callable as for
            `http.CallerHeaders`) and ``timeout`` (in seconds) are for HTTP; ``retry_s``
            is the number of seconds that a read waits for a server that has answered before, by
            default ``$WIDS_RETRY_S``, or 300; ``deadline_s`` the number that it may take in all, by
            default ``$WIDS_DEADLINE_S``, or no limit; ``hedge`` whether late requests are sent
            twice, by default ``$WIDS_HEDGE``, or true; the others are those of object stores
            (docs/object-stores.md) and of the drivers of other schemes. Or a dict of such dicts by
            URL prefix, ``{"https://host/": {"headers": …}, "s3://": {…}}``; the longest matching
            prefix is used. Once a document has been read from a URL, options without a prefix go
            only to the server of the first such document, except for these three. None for what
            ``$WIDS_STORAGE_OPTIONS`` states as JSON.
        handlers: A callable for each scheme, which opens a URL as a binary file and replaces the
            transport of that scheme.
        scratch: Folder for the files of ``pipe:`` commands; None for the system's.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        handlers: Mapping[str, Opener] | None = None,
        scratch: str | None = None,
    ) -> None:
        self._transports = Transports(storage_options, handlers, scratch)
        # Here and not in a reader, since a shard may be closed and opened again in an epoch.
        self._tags: dict[str, str] = {}

    def read(self, url: str, limit_nbytes: int) -> bytes:
        """Read all bytes of a document.

        Args:
            url: Path or URL.
            limit_nbytes: Most bytes to accept.

        Raises:
            NotFoundError: There is no such file.
            FetchError: It cannot be read, the server answers with an error, or it is too long.
        """
        # Before the request, since its contents decide which URLs come next (SEC-9).
        self.bind_options(url)

        def check(content: Content) -> None:
            if (content.total_nbytes or 0) > limit_nbytes:
                raise _too_long_error(url, limit_nbytes)

        _, data = self._beginning(url, None, limit_nbytes, check)
        if len(data) > limit_nbytes:
            raise _too_long_error(url, limit_nbytes)
        return data

    def bind_options(self, url: str) -> None:
        """Restrict options without a prefix to the server of ``url``, which a document came from.

        The first remote URL decides; a path, and every later call, changes nothing.
        """
        self._transports.bind_options(url)

    def read_start(self, url: str, nbytes: int, nbytes_of_whole: int = 0) -> FileStart:
        """Read the first bytes of the current version of a file.

        A server that sends only whole files is cut off. The range readers of the URL expect the
        version that is read here.

        Args:
            url: Path or URL.
            nbytes: Bytes to read; fewer are returned if the file is shorter.
            nbytes_of_whole: Bytes to read instead from a server that sends only whole files, if
                that is more: it cannot be asked for the next ones.

        Raises:
            NotFoundError: There is no such file.
            FetchError: It cannot be read.
        """
        try:
            content, data = self._beginning(url, nbytes, max(nbytes, nbytes_of_whole))
        except PastEndError:  # an empty file has no first byte
            return FileStart(b"", 0, has_ranges=True)
        is_whole = len(data) > nbytes
        limit = max(nbytes, nbytes_of_whole) if is_whole else nbytes
        if is_whole:
            self._transports.note_whole_files(url, content.total_nbytes)
        if content.tag is None:
            self._tags.pop(url, None)
        else:
            self._tags[url] = content.tag
        total_nbytes = len(data) if len(data) < limit else content.total_nbytes
        return FileStart(data[:limit], total_nbytes, not is_whole)

    def _beginning(
        self,
        url: str,
        stop: int | None,
        most_nbytes: int,
        check: Callable[[Content], None] = lambda _: None,
    ) -> tuple[Content, bytes]:
        """Return the response to a request for the first bytes of a file, and what it has of them.

        Args:
            url: Path or URL.
            stop: Where the bytes end; None for those of the whole file.
            most_nbytes: Bytes after which a response with more than was requested is cut off; at
                least one more is returned then. 0 if only the response is wanted.
            check: Called with the response; may raise an error of it.

        Raises:
            PastEndError: The file is empty.
            FetchError: It cannot be read.
        """
        plan = self._transports.plan(url)

        def attempt() -> tuple[Content, bytes]:
            found = read_first(plan, stop, most_nbytes, check)
            if found is not None:
                content, data = found
            else:
                with self._transports.open(url, 0, stop if most_nbytes else 0) as stream:
                    content = stream.content
                    check(content)
                    data = bytes(stream.collected(most_nbytes) if most_nbytes else b"")
            # A cut is retried here; a parser would report a malformed document.
            if most_nbytes and len(data) <= most_nbytes and len(data) < (stop or math.inf):
                expected_nbytes = content.total_nbytes
                if expected_nbytes is None and content.stop is not None:  # there may be more
                    expected_nbytes = min(stop or content.stop, content.stop + 1)
                check_complete(url, len(data), expected_nbytes)
            return content, data

        return with_retries(attempt, plan.timeouts)

    def sends_parts(self, url: str) -> bool:
        """Return whether a URL's server may send parts; False once it has sent a whole file."""
        return self._transports.sends_parts(url)

    def range_reader(self, url: str, nbytes: int, *, is_compared: bool = False) -> RangeReader:
        """Return a reader of parts of a remote file of this length.

        All readers of a URL that this object has returned expect the same version of the file,
        except those whose bytes the caller compares.
        """
        return RangeReader(self._transports, self._tags, url, nbytes, is_compared=is_compared)

    def save(
        self,
        url: str,
        file: IO[bytes],
        expected: Expected = Expected(),  # noqa: B008 - a tuple
        report: Report | None = None,
        *,
        is_ahead: bool = False,
    ) -> None:
        """Write all bytes of a URL to an empty file, and verify them as they arrive.

        By HTTP a long file arrives in parts, several at a time, if the server can send parts of the
        same version. Otherwise it arrives as one response, or from other transports as one stream.
        After a cut, what is missing is requested if a tag or a digest tells versions apart; else
        the file starts over.

        Args:
            url: Path or URL.
            file: An empty file that can seek, and be written and read.
            expected: What is known about it.
            report: Called with the bytes received and the length of the whole file or None: once
                before the first bytes, and then for each piece, by one thread at a time.
            is_ahead: Whether nobody waits for it yet; what somebody waits for comes first.

        Raises:
            MismatchError: It is not what was expected.
            NotFoundError: There is no such file.
            FetchError: It cannot be read.
        """
        from wids.storage.download import PartRequests  # readers of local shards need none

        download = Download(url, file, expected, report or (lambda *_: None))
        with download.hashed_behind():
            PartRequests(self._transports, download, is_ahead=is_ahead).run()
        download.verify()

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, which the caller must have named, and not a document.

        Raises:
            NotFoundError: There is no such folder.
            FetchError: It cannot be listed.
        """
        timeouts = self._transports.plan(folder).timeouts
        return with_retries(lambda: self._transports.entries(folder), timeouts)

    def nbytes(self, url: str) -> int | None:
        """Return the length of the file at a URL; see `head`.

        None if the server does not state it, or if a command or a handler would have to run.

        Raises:
            NotFoundError: There is no such file.
            FetchError: The server cannot be asked.
        """
        return self.head(url)[0] if self._transports.states_nbytes(url) else None

    def head(self, url: str) -> tuple[int | None, str | None]:
        """Return the length and the tag of the file at a URL; None for what the server omits.

        It requests the first byte instead of sending HEAD, since a URL signed for GET refuses HEAD.

        Raises:
            NotFoundError: There is no such file.
            FetchError: It cannot be read.
        """
        try:
            content, _ = self._beginning(url, 1, 0)
        except PastEndError:  # an empty file has no first byte
            return 0, None
        return content.total_nbytes, content.tag


def _too_long_error(url: str, limit_nbytes: int) -> FetchError:
    return FetchError(
        f"{urls.redact(url)}: expected at most {limit_nbytes} bytes, found more; check that this "
        "is the URL of the document"
    )


@contextmanager
def downloaded(fetcher: Fetcher, url: str, report: Report | None = None) -> Iterator[str]:
    """Provide the path of a local file: the file itself, or a temporary download of a remote one.

    Args:
        fetcher: Reads the URL.
        url: Path or URL.
        report: As for `Fetcher.save`.

    Raises:
        NotFoundError: There is no such remote file.
        FetchError: It cannot be fetched.
    """
    if urls.is_local(url):
        yield urls.local_path(url)
        return
    from wids.storage.files import unnamed_file

    with unnamed_file() as (file, path):
        fetcher.save(url, file, report=report)
        file.flush()
        yield path
