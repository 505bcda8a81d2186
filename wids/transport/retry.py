"""An attempt that may fail → its result: when to try again, how long to wait, when to give up.

Nothing here knows what is attempted.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from wids.errors import FetchError
from wids.transport.stream import TransientError

_T = TypeVar("_T")
_logger = logging.getLogger("wids")

MAX_FAILURES: Final = 5
"""Failures in a row, without `_PROGRESS_NBYTES` received in between, before giving up."""

_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 10.0
_PROGRESS_NBYTES: Final = 1 << 20
"""Bytes after which a server counts as one that works."""


class CancelledError(FetchError):
    """A fetch that the caller has cancelled."""


def with_retries(
    attempt: Callable[[], _T],
    position: Callable[[], int] = lambda: 0,
    cancel: threading.Event | None = None,
) -> _T:
    """Call ``attempt`` until it returns, fails permanently, or fails too often without progress.

    Args:
        attempt: Raises `TransientError` if another attempt may succeed.
        position: Returns the number of bytes received so far. Failures before the latest megabyte
            are forgotten.
        cancel: Ends the waiting when it is set.

    Raises:
        CancelledError: ``cancel`` was set during a wait.
        FetchError: It failed too often.
    """
    num_failures, reached = 0, 0
    while True:
        try:
            return attempt()
        except TransientError as error:
            # An attempt that starts over makes progress where it gets further than any before it:
            # otherwise a server could send the same megabytes for ever.
            if position() - reached >= _PROGRESS_NBYTES:
                num_failures, reached = 0, position()
            num_failures += 1
            if num_failures >= MAX_FAILURES:
                raise FetchError(f"{error}; tried {num_failures} times") from error
            # "Retry-After: 0" falls back to our own delay, or five attempts would be over at once.
            wait_s = error.wait_s or _wait_s(num_failures)
            _logger.info("%s; trying again in %.1f s", str(error), wait_s)
        if cancel is None:
            time.sleep(wait_s)
        elif cancel.wait(wait_s):
            raise CancelledError("the fetch was cancelled")


def _wait_s(num_failures: int) -> float:
    """Return twice the previous wait; at random, so that processes do not retry in step."""
    wait_s = min(_MAX_WAIT_S, math.ldexp(_FIRST_WAIT_S, num_failures - 1))
    return wait_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
