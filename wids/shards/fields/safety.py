"""Guard against hostile fields: decoding never fills the memory and never runs code unasked."""

from __future__ import annotations

import gzip
import io
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from wids.shards.fields.archives import archive_nbytes

MAX_UNZIPPED_NBYTES: Final = 1 << 30
"""Largest decompressed size of a ``.gz`` field, and of all members of an archive together."""

MAX_UNZIPPED_STRUCTURE_NBYTES: Final = 64_000_000
"""The same for a ``.gz`` field of nested values: ``[],`` has 3 bytes, but its list takes 64."""


T = TypeVar("T")


class RefusedError(Exception):
    """The error for a field that wids refuses to decode, regardless of its content."""


def unzip(data: bytes, max_nbytes: int) -> bytes:
    """Decompress gzip data.

    Args:
        data: One or more gzip streams.
        max_nbytes: Largest decompressed size.

    Raises:
        ValueError: The data is empty, or longer than the limit when decompressed.
        OSError: The data is not gzip.
        EOFError: The data ends early.
    """
    if not data:  # GzipFile would read this as a valid empty stream
        raise ValueError("expected gzip data, found none: the field is empty")
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        # One byte more than allowed shows that there is more, and hardly anything beyond it is
        # decompressed. The size at the end of gzip data does not help: it is a claim, modulo 2**32.
        unzipped = stream.read(max_nbytes + 1)
    if len(unzipped) > max_nbytes:
        raise ValueError(f"it is longer than {max_nbytes} bytes when decompressed (`max_nbytes`)")
    return unzipped


def check_archive(data: bytes, max_nbytes: int | None) -> None:
    """Raise ValueError for data that is not a zip archive, or would fill the memory.

    Args:
        data: The archive.
        max_nbytes: Largest total length of its decompressed members; None for
            `MAX_UNZIPPED_NBYTES`. Members may always be as long as the archive, which is already
            in memory.
    """
    limit = MAX_UNZIPPED_NBYTES if max_nbytes is None else max_nbytes
    # SEC-12. The directory states this sum; SEC-50 ensures that no reader finds another one.
    if archive_nbytes(data) > max(limit, len(data)):
        raise ValueError(f"it is longer than {limit} bytes when decompressed (`max_nbytes`)")


_MAX_GIVEN_UP: Final = 2
"""Most decoders that may run on after they were given up: what they occupy is still occupied."""
_given_up: Final[set[threading.Thread]] = set()
_limits: Final = threading.local()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let `check_time` raise in this thread once this time is over."""
    _limits.until_s = time.monotonic() + seconds
    try:
        yield
    finally:
        del _limits.until_s


def check_time() -> None:
    """Raise ValueError if nobody waits for this thread any more: called for each frame."""
    if time.monotonic() > getattr(_limits, "until_s", math.inf):
        raise ValueError("decoding took too long, and was given up")


def within_s(seconds: float, decode: Callable[[], T]) -> T:
    """Return what a function returns, which runs in a thread of its own for a limited time.

    A thread that takes longer is left behind, and does not keep the process from ending: native
    code cannot be interrupted. While two such threads run, no other is started.

    Args:
        seconds: Longest time to wait.
        decode: The function. What it reads must not be used after a time-out.

    Raises:
        ValueError: It takes longer, or two that took longer have not ended in this time either.
        Exception: The function raised it.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            with time_limit(seconds):
                result.set_result(decode())
        except BaseException as error:  # noqa: BLE001 - raised by `result` below
            result.set_exception(error)

    for left in tuple(_given_up):
        if len(_given_up) >= _MAX_GIVEN_UP:
            left.join(seconds)
        if not left.is_alive():
            _given_up.discard(left)
    if len(_given_up) >= _MAX_GIVEN_UP:
        raise ValueError(f"{len(_given_up)} decoders that were given up still run; not decoded")
    thread = threading.Thread(target=run, name="wids-decode", daemon=True)
    thread.start()
    thread.join(seconds)
    if not result.done():
        _given_up.add(thread)
        raise ValueError(f"decoding took longer than {seconds:g} s, and was given up")
    return result.result()
