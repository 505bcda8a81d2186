"""Write the log of requests: one line for each, when it has ended, without secrets (SEC-4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from wids.errors import WidsError
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


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
