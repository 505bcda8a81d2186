"""Publish a local file at a path or URL, complete or not at all.

The target is a path, an object store, or any scheme whose fsspec driver can write. A remote file is
made on the local disk and then uploaded. Where the answer to a request was lost, the repeated one
may be refused: the upload has succeeded if its URL has the bytes that were sent.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final, TypeAlias, TypeVar

from wids.errors import FetchError, UploadError
from wids.storage import files
from wids.storage.transport import fsspec, object_store, urls
from wids.storage.transport.object_store import ReplacedError
from wids.storage.transport.request_log import logged
from wids.storage.transport.retry import Timeouts, has_answered, note_answer, with_retries
from wids.storage.transport.schemes import by_prefix, options_for, waits
from wids.storage.transport.stream import driver_error, error_text
from wids.storage.upload_targets import FsspecTarget, ObjectTarget, Target

_T = TypeVar("_T")

Options: TypeAlias = "Mapping[str, Any] | None"
"""As ``storage_options`` of `wids.storage.fetch.Fetcher`."""

_WILD: Final = frozenset("*[")


@contextmanager
def publishing(
    target: str | os.PathLike[str],
    mode: int = 0o666,
    *,
    is_new: bool = False,
    replaces: str | None = None,
    sweeps: bool = True,
    storage_options: Options = None,
) -> Iterator[IO[bytes]]:
    """Yield a file to write, and publish it under a path or URL when the block succeeds.

    For a URL the file is a temporary one on the local disk (``TMPDIR``), which is uploaded at the
    end. If the block or the upload fails, also because of Ctrl-C, a previous file stays.

    Args:
        target: Path, or URL in an object store, or of a scheme that fsspec can write.
        mode: Permissions of a local file, less those that the process's umask removes.
        is_new: Whether to raise FileExistsError, rather than replace what has the name.
        replaces: The version that may be replaced, as `read` returns it; see `ReplacedError`.
        sweeps: Whether to delete what killed processes left of this local file.
        storage_options: As for `ShardListDataset`.

    Raises:
        ValueError: The URL cannot be written.
        UploadError: The upload failed.
    """
    name = os.fspath(target)
    if is_local(name):
        if sweeps:
            files.sweep_beside(name)
        with files.replacing(name, mode, is_new=is_new) as file:
            yield file
        return
    check_writable(name)
    _at(name, storage_options)  # now, since the block may take hours
    process = os.getpid()
    with files.unnamed_file() as (file, path):
        try:
            yield file
            files.check_process(process, urls.redact(name))
            file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            raise OSError(
                errno.ENOSPC,
                f"{urls.redact(name)}: expected space for the complete file in "
                f"{tempfile.gettempdir()}, found none; set TMPDIR to a folder with more space",
            ) from None
        upload(path, name, is_new=is_new, replaces=replaces, storage_options=storage_options)


def is_local(target: str) -> bool:
    """Return whether a target is a path; raise ValueError for ``file:``, which no writer takes."""
    if urls.scheme(target) == "file":
        raise ValueError(
            f"{urls.redact(target)}: expected a path or a remote URL, found file:; pass the path"
        )
    return urls.scheme(target) == ""


def absolute(target: str | os.PathLike[str]) -> str:
    """Return an absolute path, or a URL, that can be written.

    Raises:
        ValueError: It is a URL of a scheme that cannot be written.
    """
    name = os.fspath(target)
    check_writable(name)
    return urls.with_slashes(os.path.abspath(name)) if is_local(name) else name


def check_writable(url: str) -> None:
    """Raise ValueError for a URL that cannot be written, or that drivers take for a pattern."""
    if urls.scheme(url) in ("http", "https", "pipe"):
        raise ValueError(
            f"{urls.redact(url)}: expected a path, or a URL that can be written, such as "
            f"s3://bucket/name, found {urls.scheme(url)}:; write to a local folder and copy the "
            "complete files"
        )
    if not is_local(url) and "?" in url:
        raise ValueError(f"{urls.redact(url)}: expected a URL without a query to write to")
    if not is_local(url) and not _WILD.isdisjoint(urls.path_of(url)):
        raise ValueError(
            f"{urls.redact(url)}: expected a URL without wildcards (* and [), which drivers expand "
            "when they rename a file; choose another name"
        )
    if urls.scheme(url) in urls.KINDS and "::" not in url and "//" in urls.path_of(url):
        raise ValueError(
            f'{urls.redact(url)}: expected a URL without "//" in the name of the object, since '
            "drivers leave out one of the slashes when they write; choose another name"
        )


def exists(target: str, storage_options: Options = None) -> bool:
    """Return whether something exists at a path or URL.

    Raises:
        UploadError: The server does not say.
    """
    if is_local(target):
        return os.path.lexists(target)
    return _asked("HEAD", target, storage_options, lambda file: file.exists())


def move(source: str, target: str, storage_options: Options = None) -> None:
    """Move a file to another name in its folder, over any file that is there.

    Raises:
        UploadError: The server refuses.
    """
    if is_local(source):
        os.replace(source, target)
        return
    other = _at(target, storage_options)

    def is_moved(file: Target) -> bool:
        return not file.exists() and other.exists()

    attempt = _repeatable(lambda file: file.move(target), is_moved)
    _asked("MOVE", source, storage_options, attempt)


def remove(target: str, storage_options: Options = None) -> None:
    """Delete a file.

    Raises:
        UploadError: The server refuses.
    """
    if is_local(target):
        os.unlink(target)
        return
    attempt = _repeatable(lambda file: file.remove(), lambda file: not file.exists())
    _asked("DELETE", target, storage_options, attempt)


def file_names(folder: str, storage_options: Options = None) -> list[str]:
    """Return the names in a folder, local or remote; a remote one that does not exist is empty.

    Raises:
        OSError: The local folder cannot be listed.
        UploadError: The server does not list it.
    """
    if is_local(folder):
        return os.listdir(folder)

    return _asked("LIST", folder, storage_options, lambda file: file.names())


def read(target: str, storage_options: Options = None) -> tuple[bytes, str | None]:
    """Return the bytes at a path or URL, which is not rewritten.

    Also return their version if the server can compare it when it writes; else None.

    Raises:
        OSError: It cannot be read; FileNotFoundError if there is none.
    """
    if is_local(target):
        with open(target, "rb") as file:
            return file.read(), None

    def attempt(file: Target) -> tuple[bytes, str | None] | None:
        try:
            return file.read()
        except FileNotFoundError:
            return None

    found = _asked("GET", target, storage_options, attempt)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "not found", urls.redact(target))
    return found


@contextmanager
def local_copy(target: str, storage_options: Options = None) -> Iterator[str]:
    """Provide the path of a file: the file itself, or a temporary copy of a remote one.

    Raises:
        UploadError: The remote one cannot be read.
    """
    if is_local(target):
        yield target
        return
    with files.unnamed_file() as (_, copy):
        _asked("GET", target, storage_options, lambda file: file.save(copy))
        yield copy


def upload(
    path: str,
    url: str,
    *,
    is_new: bool = False,
    replaces: str | None = None,
    storage_options: Options = None,
) -> None:
    """Upload a complete local file.

    If an attempt is refused and the URL has the same bytes, the upload has succeeded, and only the
    server's answer was lost.

    Args:
        path: The file.
        url: Where it appears.
        is_new: Whether to raise FileExistsError if the URL exists. If two programs upload at the
            same time, servers that can compare (S3, Google) refuse one of them; on others a small
            race remains.
        replaces: As for `publishing`.
        storage_options: As for `ShardListDataset`.

    Raises:
        FileExistsError: The URL exists.
        ReplacedError: The URL has another version than the one to replace.
        ValueError: The URL cannot be written.
        UploadError: The upload failed, and was retried if that could help.
    """
    check_writable(url)
    server = urls.origin(url)
    has_sent = False

    def attempt(file: Target) -> None:
        nonlocal has_sent
        try:
            if is_new:
                file.check_absent()
            elif not has_answered(server):
                with suppress(PermissionError):  # some keys are for writing alone
                    file.exists()
            note_answer(server)  # now, since the attempt may take hours
            has_sent = True
            file.put(path, is_new=is_new, replaces=replaces)
        except (ReplacedError, FileExistsError, FileNotFoundError) as error:
            # Drivers repeat requests too, so this very attempt may have stored the file.
            if has_sent and file.has_bytes_of(path):
                return
            if isinstance(error, FileExistsError):  # its text may quote the URL with its query
                raise FileExistsError(errno.EEXIST, "already exists", urls.redact(url)) from None
            raise

    _asked("PUT", url, storage_options, attempt, os.path.getsize(path))


def _at(url: str, storage_options: Options) -> Target:
    """Return the caller's own URL as a target, which gets the caller's options."""
    options = options_for(url, by_prefix(storage_options))
    try:
        if urls.scheme(url) in urls.KINDS:
            stores = object_store.transport_for(options, None)
            driver = stores.driver(url, is_read=False)
            if driver is None:
                return ObjectTarget(stores, url)
        else:
            driver = fsspec.transport_for(options, None)
        return FsspecTarget(driver, url)
    except FetchError as error:
        raise UploadError(str(error)) from error


def _repeatable(
    change: Callable[[Target], None], is_done: Callable[[Target], bool]
) -> Callable[[Target], None]:
    """Return an attempt at a change that an earlier attempt may have made without an answer."""
    has_tried = False

    def attempt(file: Target) -> None:
        nonlocal has_tried
        is_repeated, has_tried = has_tried, True
        try:
            change(file)
        except Exception:  # drivers have no common error for a file that is not there
            if not (is_repeated and is_done(file)):
                raise

    return attempt


def _asked(
    method: str,
    url: str,
    storage_options: Options,
    attempt: Callable[[Target], _T],
    nbytes: int = 0,
) -> _T:
    """Make an attempt, with retries; its errors and its log name the URL without its secrets."""
    file = _at(url, storage_options)
    wait_s = waits(options_for(url, by_prefix(storage_options)))["retry_s"]

    def translated() -> _T:
        try:
            with logged(method, url, nbytes):
                return attempt(file)
        except (FileExistsError, FetchError, ReplacedError):
            raise
        except FileNotFoundError as error:
            folder = urls.redact(urls.parent(url))
            raise FetchError(
                f"{urls.redact(url)}: expected {urls.origin(url)} and the folder {folder} to "
                f"exist, found: {error_text(error, url)}; check the name, or create it"
            ) from None
        except Exception as error:  # noqa: BLE001 - drivers raise errors of any kind
            is_read = method in ("GET", "HEAD", "LIST")
            expected = "a readable file" if is_read else "to write it"
            raise driver_error(url, error, expected) from None

    try:
        return with_retries(translated, Timeouts(urls.origin(url), wait_s))
    except FetchError as error:
        raise UploadError(str(error)) from error
