"""Connections of urllib3 that end a transfer which is too slow or endless, and log no URL.

Everything happens below urllib3, where the bytes of a connection are read: a time-out alone bounds
only the wait for the next byte. `http` imports this module when it sends the first request, because
urllib3 takes a while to import.
"""

from __future__ import annotations

import io
import logging
import math
import socket
import time
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

MIN_NBYTES_PER_S: Final = 1000
"""A server that sends less has stalled; even mobile networks of the year 2000 were faster."""

WINDOW_TIMEOUTS: Final = 2
"""The speed is measured over twice the time-out: a server may be silent almost as long as that."""

_MAX_OVERHEAD_NBYTES: Final = 1 << 20
"""Most bytes of headers, interim responses, chunk sizes and trailers between two pieces of a file.
A hundred headers of 65,536 bytes, the limits of http.client, do not occur."""

_logger = logging.getLogger("wids")


def new_pool(proxy: str | None, **options: Any) -> urllib3.PoolManager:
    """Return a pool of such connections, through the proxy at this URL unless it is None.

    Args:
        proxy: URL of a proxy, or None.
        options: As for `urllib3.PoolManager`, or `urllib3.ProxyManager`.
    """
    pool = (
        urllib3.PoolManager(**options) if proxy is None else urllib3.ProxyManager(proxy, **options)
    )
    # Only for this pool: other libraries in the process use the classes of urllib3 itself.
    pool.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
    return pool


class _Measured(io.RawIOBase):
    """The bytes that a connection receives; raises if they are too slow or too many.

    Only the time spent waiting for the server counts, not that of a slow reader.

    Attributes:
        allowed_nbytes: Bytes that may still arrive.
    """

    def __init__(self, raw: io.RawIOBase, timeout_s: float | None) -> None:
        self._raw = raw
        self._window_s = math.inf if timeout_s is None else timeout_s * WINDOW_TIMEOUTS
        self._waited_s = 0.0
        self._received_nbytes = 0
        self.allowed_nbytes: float = _MAX_OVERHEAD_NBYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        started_s = time.monotonic()
        nbytes = self._raw.readinto(buffer)
        self._waited_s += time.monotonic() - started_s
        self._received_nbytes += nbytes or 0
        self.allowed_nbytes -= nbytes or 0
        if self.allowed_nbytes < 0:
            raise ConnectionError(f"more than {_MAX_OVERHEAD_NBYTES} bytes of headers or trailers")
        if self._waited_s >= self._window_s:
            if self._received_nbytes < self._waited_s * MIN_NBYTES_PER_S:
                # Not a TimeoutError, whose text urllib3 replaces.
                raise ConnectionError(
                    f"{self._received_nbytes} bytes in {self._waited_s:.1f} s, which is too slow"
                )
            # A new window: a fast beginning must not excuse a stall later on.
            self._waited_s, self._received_nbytes = 0.0, 0
        return nbytes

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    """A response whose bytes are measured, and that never makes urllib3 log the URL."""

    def __init__(self, host: str, sock: socket.socket, **options: Any) -> None:
        super().__init__(sock, **options)
        self._host = host
        self._measured = _Measured(self.fp.detach(), sock.gettimeout())
        # Detached above, so that no byte stays in a buffer that is no longer read.
        self.fp = io.BufferedReader(self._measured)

    def begin(self) -> None:
        """Read the status and the headers."""
        super().begin()
        # urllib3 looks for these two, and logs them as a warning with the complete URL.
        if self.headers.defects or self.headers.get_payload():
            _logger.warning(
                "%s: a line of the response's headers has no colon; the lines after it are ignored",
                self._host,
            )
            self.headers.defects.clear()
            self.headers.set_payload("")

    def read1(self, n: int = -1) -> bytes:
        """Read the next piece of the file, of at most ``n`` bytes."""
        # Reset for each piece, so only overhead between two pieces adds up, and a long file does
        # not.
        self._measured.allowed_nbytes = n + _MAX_OVERHEAD_NBYTES
        return super().read1(n)


class _HttpConnection(HTTPConnection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.response_class = partial(_Response, self.host)  # type: ignore[assignment]


class _HttpsConnection(HTTPSConnection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.response_class = partial(_Response, self.host)  # type: ignore[assignment]


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection
