"""URL → an open stream of its bytes, from some position on: one transport for each kind of URL.

A transport knows one protocol and its errors. It asks once: to ask again, to go on after a cut, and
to check what came, is the business of `fetch`. A transport is a callable ``(url, start, stop,
tag) -> Stream``; one that has only whole files to give, or cannot begin at ``start``, says so in
the stream's own ``start``.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urljoin
from urllib.request import getproxies, proxy_bypass

from wids.errors import FetchError, NotFoundError, local_error
from wids.transport import urls

if TYPE_CHECKING:
    import urllib3

CHUNK_NBYTES: Final = 256 << 10
TIMEOUT_S: Final = 30.0
"""Longest wait for a connection, and for the next bytes of an answer."""

_MAX_REDIRECTS: Final = 10
_MAX_RETRY_AFTER_S: Final = 60.0
_TRANSIENT_STATUSES: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")

_EXTRAS: Final = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure",
    "abfss": "azure", "adl": "azure", "hf": "hf", "sftp": "sftp", "ssh": "sftp",
}  # fmt: skip
"""The extra of this package that brings the driver for a scheme."""

_INDIRECT: Final = frozenset(
    (
        *("local", "asynclocal", "file", "git", "dvc", "reference", "dir", "zip", "tar"),
        *("libarchive", "data", "jupyter", "jlab", "dask", "worker", "generic"),
        *("async_wrapper", "asyncwrapper", "filecache", "blockcache", "simplecache", "cached"),
    )
)
"""Schemes of fsspec that read files of this machine, or anything by way of another URL, and so
would let a document from elsewhere name what it may not (specs/security.md)."""


class TransientError(FetchError):
    """A failure that may be gone at the next try.

    Attributes:
        wait_s: How long the server asks to wait, in seconds, or None.
    """

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class PastEndError(FetchError):
    """A range that begins behind the end of the file."""


@dataclass
class Stream:
    """The bytes of a URL from a position on; to be read once, by one thread, in a ``with`` block.

    Attributes:
        chunks: The bytes, in pieces.
        start: Where in the file they begin: where that was asked for, or 0.
        total_nbytes: Length of the whole file, or None where it is not known.
        tag: What changes when the file does, or None where there is no such thing.
        close: Lets go of the connection.
    """

    chunks: Iterator[bytes]
    start: int = 0
    total_nbytes: int | None = None
    tag: str | None = None
    close: Callable[[], None] = field(default=lambda: None)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Transport: TypeAlias = Callable[[str, int, "int | None", "str | None"], Stream]


class Http:
    """``http:`` and ``https:``, over connections that are kept.

    Can be used by any number of threads, after a fork, and be pickled: each process has connections
    of its own.

    Args:
        headers: Sent to the URL's own server, and not to another that it redirects to.
        timeout_s: Longest wait for a connection, and for the next bytes.
    """

    def __init__(
        self, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.headers = dict(headers or {})
        self.timeout_s = timeout_s
        self._pools: dict[tuple[int, str | None], urllib3.PoolManager] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": {}}

    def __call__(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Ask for a file from a position on; where ``tag`` is given, of the same file as before."""
        # As stored: a compressed transfer would have other lengths and no ranges.
        headers = {"Accept-Encoding": "identity", "User-Agent": "wids", **self.headers}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if tag is not None:
                headers["If-Range"] = tag
        # Redirects are followed here: urllib3 would log their URLs, and read their bodies.
        place = url
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._answer(url, place, headers)
            target = answer.get_redirect_location()
            if not target:
                try:
                    return self._stream(url, start, answer)
                except BaseException:
                    answer.close()
                    raise
            answer.close()
            target = urljoin(place, target)
            if urls.scheme(target) not in ("http", "https"):
                raise FetchError(
                    f"{urls.redact(url)}: expected an answer, found a redirect to "
                    f"{urls.redact(target)}"
                )
            if urls.origin(target) != urls.origin(place):
                ours = {name.lower() for name in self.headers}
                headers = {n: value for n, value in headers.items() if n.lower() not in ours}
            place = target
        raise FetchError(
            f"{urls.redact(url)}: expected an answer, found more than {_MAX_REDIRECTS} redirects; "
            "they may lead in a circle"
        )

    def _answer(self, url: str, place: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Send one request, to where redirects have led."""
        import urllib3

        _check_server(place)
        try:
            address = urllib3.util.parse_url(place)
            if address.auth is not None:
                place = address._replace(auth=None).url
                if "authorization" not in {name.lower() for name in headers}:
                    user = urllib3.util.make_headers(basic_auth=urls.unquoted(address.auth))
                    headers = {**headers, **user}
            return self._pool(place, address.host).request(
                "GET",
                place,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=self.timeout_s, read=self.timeout_s),
            )
        except urllib3.exceptions.HTTPError as error:
            raise _connection_error(url, error) from None
        except ValueError:  # which quotes the value, a token perhaps
            raise FetchError(
                f"{urls.redact(url)}: expected headers of one line of Latin-1 text each, found "
                "another; mend the headers in storage_options"
            ) from None

    def _pool(self, url: str, host: str | None) -> urllib3.PoolManager:
        """Give this process's connections, by way of the proxy that the environment names."""
        import urllib3

        proxy = getproxies().get(urls.scheme(url))
        if proxy is not None and proxy_bypass(host or ""):
            proxy = None
        key = (os.getpid(), proxy)
        if key not in self._pools:
            options: dict[str, Any] = {"num_pools": 20, "maxsize": 16}
            if proxy:
                address = urllib3.util.parse_url(proxy if "://" in proxy else f"http://{proxy}")
                if address.auth is not None:
                    auth = urls.unquoted(address.auth)
                    options["proxy_headers"] = urllib3.util.make_headers(proxy_basic_auth=auth)
                self._pools[key] = urllib3.ProxyManager(address._replace(auth=None).url, **options)
            else:
                self._pools[key] = urllib3.PoolManager(**options)
        return self._pools[key]

    def _stream(self, url: str, start: int, answer: urllib3.BaseHTTPResponse) -> Stream:
        """Make a stream of an answer, or an error of it."""
        _check_status(url, answer)
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding.lower() not in ("", "identity"):
            raise FetchError(
                f"{urls.redact(url)}: expected the bytes as they are stored, found them with "
                f"Content-Encoding {encoding}; tell the server to send the file as it is"
            )
        if answer.status == 206:
            match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != start:
                raise FetchError(
                    f"{urls.redact(url)}: expected the bytes from {start} on, found "
                    f"Content-Range {answer.headers.get('Content-Range')!r}"
                )
            total_nbytes = None if match[3] == "*" else int(match[3])
        else:
            start = 0
            total_nbytes = _number(answer.headers.get("Content-Length"))
        tag = answer.headers.get("ETag")
        if tag is None or tag.startswith("W/"):  # a weak one says nothing about bytes
            tag = answer.headers.get("Last-Modified")
        return Stream(_http_chunks(url, answer), start, total_nbytes, tag, answer.close)


def _check_server(url: str) -> None:
    """Refuse a URL of which readers differ on what its server is."""
    if re.search(r"[#\\\s]", urls.authority(url)):
        raise FetchError(f"{urls.redact(url)}: expected the name of a server, found another text")


def _http_chunks(url: str, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    import urllib3

    try:
        # What has come, and not a full chunk: a slow server is heard, and a cut loses nothing.
        yield from iter(lambda: answer.read1(CHUNK_NBYTES, decode_content=False), b"")
    except urllib3.exceptions.HTTPError as error:
        raise _connection_error(url, error) from None
    answer.release_conn()


def _connection_error(url: str, error: Exception) -> FetchError:
    """Give the error for a request without an answer, or an answer that broke off.

    Only the innermost reason, and no chain: urllib3 quotes the URL with its secrets.
    """
    import urllib3

    if isinstance(error, urllib3.exceptions.MaxRetryError):
        error = error.reason or error
    causes = (error.__cause__, *error.args)
    if isinstance(error, urllib3.exceptions.LocationValueError) or any(
        isinstance(cause, ssl.SSLCertVerificationError) for cause in causes
    ):
        return FetchError(f"{urls.redact(url)}: expected an answer, found: {_said(error, url)}")
    return TransientError(f"{urls.redact(url)}: the connection failed: {_said(error, url)}")


def _said(error: BaseException, url: str) -> str:
    """Give what an error of another library says, without the secrets of the URL."""
    _, _, query = url.partition("?")
    text = str(error).replace(url, urls.redact(url))
    text = text.replace(query, "…") if query else text
    return f"{type(error).__name__}: {re.sub(r'<[^<>]* object at 0x[0-9a-f]+>: ', '', text):.300}"


def _check_status(url: str, answer: urllib3.BaseHTTPResponse) -> None:
    status = answer.status
    if status in (200, 206):
        return
    if status in (404, 410):
        raise NotFoundError(f"{urls.redact(url)}: nothing there (HTTP status {status})")
    message = f"{urls.redact(url)}: expected HTTP status 200, found {status}"
    if status in _TRANSIENT_STATUSES:
        wait_s = _number(answer.headers.get("Retry-After"))
        raise TransientError(message, None if wait_s is None else min(wait_s, _MAX_RETRY_AFTER_S))
    if status in (401, 403):
        message += "; pass headers or tokens as storage_options, or sign the URL anew"
    if status == 416:
        raise PastEndError(f"{message}; the file is shorter than it should be")
    raise FetchError(message)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


class Fsspec:
    """Every scheme that fsspec knows: ``s3:``, ``gs:``, ``az:``, ``hf:``, ``ftp:``, ….

    Args:
        options: Handed to the file system, as in ``fsspec.open(url, **options)``.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})

    def __call__(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open a file, or read a part of it."""
        system, path = self._system(url)
        try:
            # Asked anew each time: what is remembered of a folder may be of yesterday.
            system.invalidate_cache()
            about = system.info(path)
            nbytes, tag = about.get("size"), about.get("ETag") or about.get("etag")
            if stop is not None:
                data = system.cat_file(path, start=start, end=stop)
                return Stream(iter([data]), start, nbytes, tag)
            file = system.open(path, "rb", block_size=16 << 20)
            if start:
                file.seek(start)
        except Exception as error:  # noqa: BLE001 - drivers raise what they like
            raise _driver_error(url, error) from None
        return Stream(_file_chunks(url, file), start, nbytes, tag and str(tag), file.close)

    def _system(self, url: str) -> tuple[Any, str]:
        import fsspec

        scheme = urls.scheme(url)
        _check_server(url)
        if scheme in _INDIRECT or "::" in url:
            raise FetchError(
                f"{urls.redact(url)}: expected a URL of a file, found one that leads to another by "
                f'"{scheme}"; name the file itself'
            )
        try:
            system, path = fsspec.core.url_to_fs(url, **self.options)
        except (ImportError, ValueError) as error:
            extra = _EXTRAS.get(scheme)
            what = f"pip install 'wids[{extra}]'" if extra else "install its fsspec driver"
            raise FetchError(
                f'{urls.redact(url)}: expected a driver for "{scheme}", found: {error}; {what}, '
                "or pass a handler for it"
            ) from error
        except Exception as error:  # noqa: BLE001 - some connect at once
            raise _driver_error(url, error) from None
        if getattr(system, "local_file", False):
            raise FetchError(f"{urls.redact(url)}: reads files of this machine; name them by path")
        return system, path


def _driver_error(url: str, error: Exception) -> FetchError:
    if isinstance(error, FetchError):
        return error
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{urls.redact(url)}: nothing there")
    message = f"{urls.redact(url)}: expected a readable file, found: {_said(error, url)}"
    permanent = (PermissionError, IsADirectoryError, TypeError, AttributeError, LookupError)
    return (FetchError if isinstance(error, permanent) else TransientError)(message)


def _file_chunks(url: str, file: IO[bytes]) -> Iterator[bytes]:
    while True:
        try:
            chunk = file.read(CHUNK_NBYTES)
        except Exception as error:  # noqa: BLE001 - drivers raise what they like
            raise _driver_error(url, error) from None
        if not chunk:
            return
        yield chunk


def from_opener(open_file: Callable[[str], IO[bytes]]) -> Transport:
    """Make a transport of a callable that gives an open binary file for a URL."""

    def transport(url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG001
        try:
            file = open_file(url)
        except Exception as error:
            raise _driver_error(url, error) from error
        return _file_stream(url, file, start, stop)

    return transport


def _limited(chunks: Iterable[bytes], nbytes: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:nbytes]
        nbytes -= len(chunk)
        if nbytes <= 0:
            return


def local(url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG001
    """Open a file of this machine."""
    path = urls.local_path(url)
    try:
        file = open(path, "rb")  # noqa: SIM115 - the stream closes it
    except OSError as error:
        raise local_error(path, error) from error
    return _file_stream(url, file, start, stop)


def _file_stream(url: str, file: IO[bytes], start: int, stop: int | None) -> Stream:
    """Make a stream of an open file, which it closes."""
    total_nbytes = None
    try:
        if file.seekable():
            total_nbytes = file.seek(0, os.SEEK_END)
            file.seek(start)
        else:
            start = 0
    except Exception as error:  # noqa: BLE001 - drivers raise what they like
        file.close()
        raise _driver_error(url, error) from None
    chunks = _file_chunks(url, file)
    if stop is not None and total_nbytes is not None:
        chunks = _limited(chunks, stop - start)
    return Stream(chunks, start, total_nbytes, None, file.close)


class Pipe:
    """The commands of ``pipe:`` URLs: the one place where a shell is started.

    A command writes to its standard output, or to the path that takes the place of ``{local}``.

    Args:
        scratch: Folder for what commands write to ``{local}``; None for that of the system.
    """

    def __init__(self, scratch: str | None = None) -> None:
        self.scratch = scratch

    def __call__(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG002
        """Run the command, when the first bytes are asked for."""
        command = url[len("pipe:") :]
        if "{local}" in command:
            chunks = _output_to_file(url, command, self.scratch)
        else:
            chunks = _output(url, command)
        # A generator that is closed runs its finally: the command is ended.
        return Stream(chunks, close=chunks.close)


def _output(url: str, command: str) -> Generator[bytes, None, None]:
    process = _started(command, subprocess.PIPE)
    try:
        output = process.stdout
        if output is not None:
            yield from iter(lambda: output.read(CHUNK_NBYTES), b"")
        _check_status_of_command(url, process.wait())
    finally:
        _end(process)


def _output_to_file(url: str, command: str, scratch: str | None) -> Generator[bytes, None, None]:
    if scratch is not None:
        os.makedirs(os.path.dirname(scratch), mode=0o700, exist_ok=True)
        os.makedirs(scratch, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pipe-", suffix=".tmp", dir=scratch) as folder:
        path = os.path.join(folder, "shard.tar")
        process = _started(command.replace("{local}", shlex.quote(path)), subprocess.DEVNULL)
        try:
            _check_status_of_command(url, process.wait())
        finally:
            _end(process)
        with local(path, 0, None, None) as stream:
            yield from stream.chunks


def _started(command: str, stdout: int) -> subprocess.Popen[bytes]:
    # A session of its own, so that all of a pipeline can be ended together.
    return subprocess.Popen(  # noqa: S602 - this is what `pipe:` is; security.md says who may
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _check_status_of_command(url: str, status: int) -> None:
    if status:
        raise TransientError(
            f"{urls.redact(url)}: expected the command to end with status 0, found {status}; "
            "what it says stands on stderr"
        )
