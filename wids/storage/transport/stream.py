"""Define what every transport is, the stream that it returns, and the errors that it raises."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, ClassVar, Final, NamedTuple, TypeAlias

from wids.errors import FetchError, NotFoundError
from wids.storage.transport import urls

CHUNK_NBYTES: Final = 256 << 10
TRANSIENT_STATUSES: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
REFUSAL_STATUSES: Final = frozenset((429, 503))
"""A server answers with these when it has too many requests, S3 with 503 and SlowDown."""
_REFUSALS: Final = frozenset((errno.EPERM, errno.ENOSYS, errno.EMSGSIZE, errno.ENAMETOOLONG))
"""Numbers of errors that the next attempt would meet again."""

Data: TypeAlias = "bytes | bytearray | memoryview"
"""Bytes in the form in which they arrived, to copy them as rarely as possible."""


class TransientError(FetchError):
    """A failure that may not recur on retry.

    Attributes:
        wait_s: Seconds to wait first, as requested by the server, or None.
        is_answer: Whether the server responded, although it failed.
        is_outage: Whether the server may be down; otherwise only a few attempts are made.
        is_refusal: Whether the server had too many requests.
    """

    def __init__(
        self,
        message: str,
        wait_s: float | None = None,
        *,
        is_answer: bool = False,
        is_outage: bool = True,
        is_refusal: bool = False,
    ) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.is_answer = is_answer
        self.is_outage = is_outage
        self.is_refusal = is_refusal


def check_complete(url: str, nbytes: int, total_nbytes: int | None) -> None:
    """Raise `TransientError` if a stream ended early."""
    if total_nbytes is not None and nbytes != total_nbytes:
        raise TransientError(
            f"{urls.redact(url)}: expected {total_nbytes} bytes, found {nbytes}; the transfer was "
            "cut off",
            is_outage=False,
        )


class Entry(NamedTuple):
    """A file or folder in a listed folder.

    Attributes:
        name: Its name, without the folder.
        nbytes: Length of a remote file, if the listing states it; else None.
        is_folder: Whether it is a folder.
    """

    name: str
    nbytes: int | None = None
    is_folder: bool = False


class AccessError(FetchError, PermissionError):
    """A request that the server understands, and refuses."""


class NotByHttpError(AccessError):
    """A refusal of a request by HTTP, of what a driver of the transport may be able to open."""


class PastEndError(FetchError):
    """A range that begins past the end of the file."""


class Content(NamedTuple):
    """What an answer has of a file.

    Attributes:
        start: Position of the first byte in the file: the one that was asked for, or 0.
        total_nbytes: Length of the whole file, or None if it is unknown.
        tag: Text that differs between versions of the file, such as an ETag; None from a transport
            without versions.
        stop: Position after the last byte; None if it is the rest of the file.
    """

    start: int = 0
    total_nbytes: int | None = None
    tag: str | None = None
    stop: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all bytes of the file."""
        return self.start == 0 and self.stop in (None, self.total_nbytes)


@dataclass
class Stream:
    """The bytes of a file from a position on.

    One thread reads it, once, in a ``with`` block.

    Attributes:
        content: What it has.
        chunks: The bytes, in pieces.
        close: Releases the connection or the open file.
    """

    content: Content
    chunks: Iterator[Data]
    close: Callable[[], None] = lambda: None

    def collected(self, most_nbytes: int) -> Data:
        """Return all bytes; or, of more than the most that are wanted, the first ones."""
        data: Data = next(self.chunks, b"")
        for piece in self.chunks if len(data) <= most_nbytes else ():
            if not isinstance(data, bytearray):  # not a list: a tiny piece takes 400 bytes
                data = bytearray(data)
            data += piece
            if len(data) > most_nbytes:
                break
        return data

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Reads the files of some schemes, and lists their folders.

    It asks once: `retry` repeats, and `download` resumes and verifies. Threads can share it, and it
    survives a fork and pickling.

    Attributes:
        states_nbytes: Whether the length of a file can be asked without reading the file.
        prefix: What all URLs begin with that the caller's options are for; ``""`` for any.
    """

    states_nbytes: ClassVar[bool] = True
    prefix: str = ""

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open a file or a part of it, which is not read by HTTP.

        A transport that cannot begin at ``start`` sends the whole file instead, and says so in the
        stream's content. If it cannot end at ``stop``, the reader closes the stream. From 0 to 0
        only the length and the tag are wanted.

        Args:
            url: The file.
            start: Position of the first byte.
            stop: Position after the last byte; None for the end of the file.
            tag: The version that the part must be of. If the file has another one, all of it is
                returned.

        Raises:
            NotFoundError: There is no such file.
            PastEndError: The file ends before ``start``.
            TransientError: It cannot be read now.
            FetchError: It cannot be read, or the options cannot be used.
        """
        raise NotImplementedError

    def by_http(self, url: str) -> Transport | None:  # noqa: ARG002
        """Return the `http.Http` that reads a file; None if `open` does.

        Raises:
            FetchError: The options cannot be used.
        """
        return None

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder.

        Raises:
            NotFoundError: There is no such folder.
            FetchError: It cannot be listed.
        """
        raise FetchError(
            f"{urls.redact(folder)}: expected a scheme whose folders can be listed, found "
            f"{urls.scheme(folder)}:; plain HTTP, commands and handlers have no lists: write the "
            "names with braces, as in train-{000000..000146}.tar, or pass the URL of a spec"
        )


def file_stream(url: str, file: IO[bytes], start: int, stop: int | None) -> Stream:
    """Return the stream of an open file, which it will close.

    A file that cannot seek is read from its beginning.

    Raises:
        FetchError: The file cannot be positioned; it is closed.
    """
    total_nbytes = None
    try:
        if file.seekable():
            total_nbytes = file.seek(0, os.SEEK_END)
            file.seek(start)
        else:
            start = 0
    except Exception as error:  # noqa: BLE001 - drivers raise errors of any kind
        with suppress(Exception):  # it may not be a file
            file.close()
        raise driver_error(url, error) from None
    nbytes = None if stop is None or total_nbytes is None else stop - start
    return Stream(Content(start, total_nbytes), file_chunks(url, file, nbytes), file.close)


def file_chunks(url: str, file: IO[bytes], nbytes: int | None = None) -> Iterator[Data]:
    """Yield the next bytes of an open file in pieces, or all that are left.

    Raises:
        FetchError: It cannot be read.
    """
    num_left = sys.maxsize if nbytes is None else nbytes
    while num_left > 0:
        try:
            chunk = file.read(min(num_left, CHUNK_NBYTES))
        except Exception as error:  # noqa: BLE001 - drivers raise errors of any kind
            raise driver_error(url, error) from None
        if not chunk:
            return
        yield chunk
        num_left -= len(chunk)


def not_found(url: str, answer: str = "") -> NotFoundError:
    """Return the error for a file that is not there, by what a server answered."""
    return NotFoundError(
        f"{urls.redact(url)}: not found{answer}; check the URL, or `base`; some servers answer so "
        "without a token, which storage_options pass"
    )


def driver_error(url: str, error: Exception, expected: str = "a readable file") -> FetchError:
    """Return the error of wids for one that a driver or a caller's opener raised."""
    if isinstance(error, FetchError):
        return error
    # The driver's own text is left out: it may quote the URL with its query (SEC-4).
    if isinstance(error, FileNotFoundError):
        return not_found(url)
    found = error_text(error, url)
    if _is_denied(error):
        return AccessError(
            f"{urls.redact(url)}: expected access to {urls.origin(url) or 'it'}, found: {found}; "
            "pass keys or tokens as storage_options, or in $WIDS_STORAGE_OPTIONS, and check the "
            "permissions"
        )
    message = f"{urls.redact(url)}: expected {expected}, found: {found}"
    # Drivers have no common error for a lost connection, so only these count as permanent.
    permanent = (
        *(IsADirectoryError, NotADirectoryError, NotImplementedError),
        *(TypeError, AttributeError, LookupError),
    )
    is_permanent = isinstance(error, permanent) or getattr(error, "errno", None) in _REFUSALS
    return FetchError(message) if is_permanent else transient_error(message, error, _status(error))


def _is_denied(error: Exception) -> bool:
    """Whether a server refuses a user, and would again: another attempt may lock the account."""
    # By name: drivers are imported only where they are used.
    names = {cls.__name__ for cls in type(error).__mro__}
    return (
        isinstance(error, PermissionError)
        or "Credentials" in type(error).__name__
        or "AuthenticationException" in names  # of paramiko
        or ("error_perm" in names and str(error).startswith("530"))  # of FTP: not logged in
    )


def transient_error(
    message: str, error: Exception, status: int, *, is_cut: bool = False
) -> TransientError:
    """Return the error for a failure of a driver that may not recur.

    Args:
        message: What to say.
        error: The driver's error.
        status: The HTTP status in it, or 0.
        is_cut: Whether a response broke off.
    """
    is_final = 400 <= status < 500 and status not in TRANSIENT_STATUSES
    # An error of Python about a wrong value is not an outage either.
    is_wrong = isinstance(error, (ValueError, ArithmeticError))
    return TransientError(
        message,
        is_answer=bool(status),
        is_outage=not (is_final or is_cut or is_wrong),
        is_refusal=status in REFUSAL_STATUSES or "SlowDown" in str(error),
    )


def _status(error: BaseException) -> int:
    """Return the HTTP status in an error of a driver, or 0; drivers name it differently."""
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):  # of botocore
            metadata = response.get("ResponseMetadata", {})
            candidates = [metadata.get("HTTPStatusCode")]
        else:
            candidates = [getattr(found, name, None) for name in ("status", "status_code", "code")]
            candidates.append(getattr(response, "status_code", None))
        for status in candidates:
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return 0


def error_text(error: BaseException, url: str) -> str:
    """Return type and message of another library's error, without the secrets of the URL."""
    text = urls.without_secrets(str(error), url)
    # Some put the repr of a connection in front of their messages.
    return f"{type(error).__name__}: {re.sub(r'<[^<>]* object at 0x[0-9a-f]+>: ', '', text):.300}"
