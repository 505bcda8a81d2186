"""Count and log the requests of all transports; no line has the query of a URL.

Those of `range_loop` are counted by admission control, and those of streams here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wids.errors import WidsError
from wids.storage import stages
from wids.storage.transport import urls
from wids.storage.transport.retry import check_waits, waiting_for
from wids.storage.transport.stream import Data, Stream

_logger = logging.getLogger(__name__)

is_on: Final = _logger.isEnabledFor
"""Whether requests are logged, at a level: a caller of many asks before it calls."""


def noted(method: str, url: str, stream: Stream, sent_s: float) -> Stream:
    """Return the stream of a response whose bytes are counted, and whose end is logged.

    Args:
        method: As for `log_request`.
        url: The same.
        stream: The response.
        sent_s: When it was requested.
    """
    # Not the stream: it would be part of a cycle, and stay open when a reader drops it.
    chunks, close_stream = iter(stream.chunks), stream.close
    nbytes, error = 0, None

    def received() -> Iterator[Data]:
        nonlocal nbytes, error
        while True:
            try:
                with waiting_for("bytes"):
                    chunk = next(chunks, None)
            except BaseException as found:
                error = found
                raise
            if chunk is None:
                return
            nbytes += len(chunk)
            stages.count(stages.NBYTES, len(chunk))
            check_waits()
            yield chunk

    def close() -> None:
        try:
            close_stream()
        finally:
            log_request(method, url, sent_s, nbytes=nbytes, error=error)

    stream.chunks, stream.close = received(), close
    return stream


def log_request(
    method: str,
    url: str,
    sent_s: float,
    *,
    status: int | None = None,
    nbytes: int = 0,
    waited_s: float = 0.0,
    error: BaseException | None = None,
) -> None:
    """Write the line of a request that has ended.

    Args:
        method: Its method; or one like it, for what a driver may send as several requests.
        url: What was requested.
        sent_s: When it was sent.
        status: The status of the response, if the driver states it.
        nbytes: Bytes of the response, or of what was written.
        waited_s: Seconds that it waited for its turn.
        error: What went wrong, if anything.
    """
    if not _logger.isEnabledFor(logging.DEBUG):
        return
    # Errors of wids have no secrets; those of others may.
    outcome = str(error) if isinstance(error, WidsError) else type(error).__name__
    if error is None:
        outcome = "done" if status is None else f"status {status}"
    _logger.debug(
        "%s %s: %s, %d bytes in %.1f ms, after %.1f ms for its turn",
        *(method, urls.redact(url), outcome, nbytes),
        1e3 * (time.monotonic() - sent_s),
        1e3 * waited_s,
    )


@contextmanager
def logged(method: str, url: str, nbytes: int = 0) -> Iterator[None]:
    """Write a line about what the block requests, which waits for no turn."""
    sent_s = time.monotonic()
    try:
        yield
    except BaseException as error:
        log_request(method, url, sent_s, error=error)
        raise
    log_request(method, url, sent_s, nbytes=nbytes)
