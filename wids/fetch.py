"""URL → bytes.

This room knows schemes and their errors; it knows nothing of shards, specs or caches.
"""

from __future__ import annotations

import os

from wids import urls
from wids.errors import FetchError, NotFoundError

TIMEOUT_S = 30.0
"""Longest wait for a connection, and for the next bytes of an answer."""


def read(url: str, limit_nbytes: int) -> bytes:
    """Read all bytes of a small document: a local path, ``file:`` or ``http(s):``.

    Args:
        url: Where it is.
        limit_nbytes: Most bytes to accept.

    Raises:
        NotFoundError: There is nothing.
        FetchError: It cannot be read, the server answers with an error, or it is too long.
    """
    if urls.is_local(url):
        data = _read_local(urls.local_path(url), limit_nbytes)
    elif urls.scheme(url) in ("http", "https"):
        data = _read_http(url, limit_nbytes)
    else:
        raise FetchError(
            f"{urls.redact(url)}: expected a path, file: or http(s): URL, found scheme "
            f'"{urls.scheme(url)}"; download it first'
        )
    if len(data) > limit_nbytes:
        raise FetchError(
            f"{urls.redact(url)}: expected at most {limit_nbytes} bytes, found more; "
            "this is not the document that it should be"
        )
    return data


def local_error(path: str, error: OSError) -> FetchError:
    """Give the error for a local path that could not be opened."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError(
            f"{path}: no such file (seen from {os.getcwd()}); check the path, or `base`"
        )
    found = "a folder" if os.path.isdir(path) else error.strerror or error
    return FetchError(f"{path}: expected a readable file, found: {found}")


def _read_local(path: str, limit_nbytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit_nbytes + 1)
    except OSError as error:
        raise local_error(path, error) from error


def _read_http(url: str, limit_nbytes: int) -> bytes:
    # Imported here because a dataset of local shards needs no HTTP client.
    import urllib3

    timeout = urllib3.Timeout(connect=TIMEOUT_S, read=TIMEOUT_S)
    try:
        with urllib3.PoolManager(
            timeout=timeout, retries=urllib3.Retry(3, backoff_factor=0.2)
        ) as pool:
            answer = pool.request("GET", url, preload_content=False)
            try:
                data = answer.read(limit_nbytes + 1)
            finally:
                answer.release_conn()
    except urllib3.exceptions.HTTPError as error:
        # Only the innermost reason, and no chain: urllib3 quotes the URL with its secrets.
        reason = getattr(error, "reason", None) or type(error).__name__
        raise FetchError(f"{urls.redact(url)}: expected an answer, found: {reason}") from None
    if answer.status in (404, 410):
        raise NotFoundError(f"{urls.redact(url)}: nothing there (HTTP status {answer.status})")
    if answer.status != 200:
        raise FetchError(f"{urls.redact(url)}: expected HTTP status 200, found {answer.status}")
    return data
